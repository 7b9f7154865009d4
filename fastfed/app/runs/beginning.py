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
from ...files import as_json
from ...record.evaluate import prior_metric
from ...simulation import Simulation
from ..config import Config
from ..doctor import machine
from .clients import who_has_what
from .directory import CLIENTS, CONFIG, COSTS, INFO, RunExists, RunFailed, holds_run


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
