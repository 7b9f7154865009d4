"""The beginning of a run: all that is known before its first round, written into its directory."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..._version import __version__
from ...files import as_json, sync_directory, write_whole
from ...record.evaluate import prior_metric
from ...record.writers import read_json_lines
from ...saved import checkpoint as checkpoints
from ...simulation import Simulation
from ..config import Config
from ..doctor import machine
from .clients import who_has_what
from .directory import (
    CHECKPOINT,
    CLIENTS,
    CONFIG,
    COSTS,
    INFO,
    ROUNDS,
    DamagedRun,
    RunExists,
    RunFailed,
    holds_run,
    read_json,
)


def create(path: str | Path, config: Config, sim: Simulation) -> Path:
    """Writes all that is known before the first round into a new run's directory; refuses one that holds a run."""
    home = Path(path)
    refuse_existing(home)
    contents = {
        INFO: as_json(_info(home, config, sim)),
        CONFIG: config.toml(),
        CLIENTS: as_json(who_has_what(sim.fed)),
        COSTS: as_json(asdict(sim.costs(_method(config)))),
    }
    written: list[Path] = []
    was_there = home.exists()
    try:
        home.mkdir(parents=True, exist_ok=True)
        for name, text in contents.items():
            with (home / name).open("x") as file:  # "x": of two runs that start at once, one is refused
                written.append(home / name)
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        sync_directory(home)
        sync_directory(home.parent)
    except BaseException as error:  # Ctrl-C too: there is a whole beginning or none
        for path_written in written:
            path_written.unlink(missing_ok=True)
        with suppress(OSError):
            if not was_there:
                home.rmdir()
        if isinstance(error, FileExistsError):
            raise RunExists(_taken(home)) from None
        if isinstance(error, OSError):
            raise RunFailed(f"{home}: cannot be written: {error.strerror or error}; nothing was begun") from error
        raise
    return home


def told_again(home: Path, config: Config, sim: Simulation) -> dict[str, Any]:
    """What is told of a run when it goes on; when it began and how long it took so far stay as they are."""
    return {name: value for name, value in _info(home, config, sim).items() if name not in ("started", "seconds")}


def mend(home: Path, config: Config) -> None:
    """Writes run.json again where it cannot be read beside checkpoints that can, as a crash of the machine may leave
    it. What only the simulation knows is told when it goes on."""
    if not (home / CONFIG).is_file() or not checkpoints.all_of(home / CHECKPOINT):
        return
    try:
        if {"name", "status", "metric", "seconds", "started"} <= set(read_json(home / INFO)):
            return
    except DamagedRun:
        pass
    began = datetime.fromtimestamp((home / CONFIG).stat().st_mtime, timezone.utc).isoformat(timespec="seconds")
    about = {"name": config.name or home.resolve().name, "method": _method(config), "seed": config.seed}
    info = {**about, "status": "interrupted", "error": None, "metric": "", "started": began, "finished": None}
    write_whole(home / INFO, as_json({**info, "seconds": _seconds(home / ROUNDS)}))


def _seconds(rounds: Path) -> float:
    """What the rounds took that a file has rows of."""
    try:
        rows = read_json_lines(rounds).rounds
    except (OSError, ValueError):
        return 0.0
    return float(sum(value for row in rows for name, value in row.items() if name.startswith("seconds_")))


def refuse_existing(path: str | Path, allow_run: bool = False) -> None:
    """An error where a new run would meet another one (unless it is to go on with that), or what is no directory."""
    if holds_run(path) and not allow_run:
        raise RunExists(_taken(Path(path)))
    if Path(path).exists() and not Path(path).is_dir():
        raise RunExists(f"{path}: is a file, and a run needs a directory; use another --out")


def _taken(home: Path) -> str:
    return f"{home}: holds a run already; use --resume to go on, or another --out"


def _info(home: Path, config: Config, sim: Simulation) -> dict[str, Any]:
    return {
        "name": config.name or home.resolve().name,
        "method": _method(config),
        "status": "running",
        "error": None,
        "seed": config.seed,
        "metric": sim.metric,
        "metrics": list(sim.settings.metrics or ()),
        "prior": prior_metric(sim.fed, sim.settings.loss, sim.metric == "test_accuracy"),
        "notes": list(sim.notes),
        **circumstances(sim),
        "clients": len(sim.fed),
        "parameters": sim.packing.parameters,
        "started": now(),
        "finished": None,
        "seconds": 0.0,
    }


def _method(config: Config) -> str:
    if config.method is not None:
        return config.method
    tables = config.resolved()
    if config.data.is_pooled:
        return f"centralised {tables['client']['rule']}"
    return f"{tables['server']['rule']} server, {tables['client']['rule']} clients"


def circumstances(sim: Simulation) -> dict[str, Any]:
    """What a run runs on, which another start may change."""
    here = machine()
    return {
        "fastfed": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": {
            "processor": here.cpu,
            "cores": here.usable_cores,
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "system": here.system,
        },
        "executor": sim.executor.name,
        "why": sim.executor.why,
        "threads": sim.settings.threads or torch.get_num_threads(),
        "ranks": 1 if sim.ranks is None else sim.ranks.count,
    }


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
