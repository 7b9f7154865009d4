"""Runs on disk: a directory with everything that a run was told, did and gave.

    config.toml   the configuration, every default stated
    run.json      how it stands and what it ran on: status, error, versions, machine, times
    rounds.jsonl  a row per round, as ``fastfed.record.writers`` writes them
    checkpoint/   where it goes on from
    clients.json  who has what
    costs.json    what a round costs a client

`execute` makes one, `read` reads one, `find` looks for them. Nothing is ever overwritten by another run.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .._version import __version__
from ..data import Federation
from ..data.dataset import labels_of
from ..record import costs
from ..record.evaluate import metric_of
from ..record.history import History
from ..record.writers import read_json_lines
from ..saved import checkpoint as checkpoints
from ..simulation import Simulation
from .config import CHANGE_NO_RESULT, Config, ConfigError
from .config import document as documents
from .config.options import without_none
from .doctor import machine

CONFIG, INFO, ROUNDS, CLIENTS, COSTS = "config.toml", "run.json", "rounds.jsonl", "clients.json", "costs.json"
CHECKPOINT, TRACEBACK = "checkpoint", "traceback.txt"

_ENDS_IT = ("run.rounds", "run.until_clock", "run.target")  # --resume may change them: the rounds that were run stay

_MOST_SIZES, _MOST_COUNTED = 10_000, 100  # clients that clients.json tells the sizes of, and the classes of


class RunExists(ValueError):
    """A directory holds a run already."""


class DamagedRun(ValueError):
    """A directory holds no run, or one that cannot be read: the message names the file."""


class RunFailed(RuntimeError):
    """A run ended before its time; its directory says so too."""


@dataclass(frozen=True)
class Run:
    """A run as its directory tells it. `config` is the resolved configuration as plain tables (``config.parse`` makes
    a `Config` of it), `info` what run.json holds, `history` the rows so far; `clients` and `costs` may be None."""

    path: Path
    config: dict[str, Any]
    info: dict[str, Any]
    history: History
    clients: dict[str, Any] | None
    costs: dict[str, Any] | None

    @property
    def name(self) -> str:
        return str(self.info["name"])

    @property
    def status(self) -> str:
        """ "running", "done", "interrupted" or "failed"."""
        return str(self.info["status"])

    @property
    def metric(self) -> str:
        """The column that says how good the model is."""
        return str(self.info["metric"])


# ---- reading --------------------------------------------------------------------------------------------------------


def find(directory: str | Path) -> list[Path]:
    """All runs below a directory, itself included, by their paths."""
    return sorted(path.parent for path in Path(directory).rglob(INFO) if (path.parent / CONFIG).is_file())


def holds_run(path: str | Path) -> bool:
    """Whether there is a run, or a part of one."""
    return any((Path(path) / name).exists() for name in (CONFIG, INFO, ROUNDS, CHECKPOINT))


def read(path: str | Path) -> Run:
    """The run of a directory."""
    home = Path(path)
    if not (home / INFO).is_file():
        raise DamagedRun(f"{home}: holds no run ({INFO} is not there)")
    info = _json(home / INFO)
    for name in ("name", "status", "metric", "seconds", "started"):
        if name not in info:
            raise DamagedRun(f"{home / INFO}: is damaged: it does not say {name!r}")
    history = History() if not (home / ROUNDS).exists() else _rows(home / ROUNDS)
    return Run(home, _tables(home / CONFIG), info, history, _optional(home / CLIENTS), _optional(home / COSTS))


def _tables(path: Path) -> dict[str, Any]:
    try:
        return documents.read_alone(path)
    except ConfigError as error:
        raise DamagedRun(str(error)) from error


def _rows(path: Path) -> History:
    try:
        return read_json_lines(path)
    except (OSError, ValueError) as error:
        raise DamagedRun(f"{path}: is damaged: {error}") from error


def _json(path: Path) -> dict[str, Any]:
    try:
        held = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise DamagedRun(f"{path}: cannot be read: {error}") from error
    if not isinstance(held, dict):
        raise DamagedRun(f"{path}: is damaged: it holds no JSON object")
    return held


def _optional(path: Path) -> dict[str, Any] | None:
    return _json(path) if path.exists() else None


# ---- making ---------------------------------------------------------------------------------------------------------


def create(path: str | Path, config: Config, sim: Simulation) -> Path:
    """Writes all that is known before the first round into a new run's directory; refuses one that holds a run."""
    home = Path(path)
    refuse_existing(home)
    contents = {
        INFO: _pretty(_info(home, config, sim)),
        CONFIG: config.toml(),
        CLIENTS: _pretty(who_has_what(sim.fed)),
        COSTS: _pretty(asdict(costs.of(_method(config), sim.settings.by_name(), sim.packing))),
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


def refuse_existing(path: str | Path) -> None:
    """An error where a new run would meet another one."""
    if holds_run(path):
        raise RunExists(_taken(Path(path)))
    if Path(path).exists() and not Path(path).is_dir():
        raise RunExists(f"{path}: is a file, and a run needs a directory; use another --out")


def _taken(home: Path) -> str:
    return f"{home}: holds a run already; use --resume to go on, or another --out"


def update(path: str | Path, **changes: Any) -> None:
    """Changes what run.json says: whole or not at all."""
    home = Path(path)
    _replace(home / INFO, _pretty({**_json(home / INFO), **changes}))


def _replace(target: Path, text: str) -> None:
    scratch = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        scratch.write_text(text)
        scratch.replace(target)
    finally:
        scratch.unlink(missing_ok=True)


def _pretty(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


def _info(home: Path, config: Config, sim: Simulation) -> dict[str, Any]:
    return {
        "name": config.name or home.resolve().name,
        "method": _method(config),
        "status": "running",
        "error": None,
        "seed": config.seed,
        "metric": "train_loss" if sim.fed.test is None else f"test_{metric_of(sim.settings.loss)}",
        **_circumstances(sim),
        "clients": len(sim.fed),
        "parameters": sim.packing.parameters,
        "started": _now(),
        "finished": None,
        "seconds": 0.0,
    }


def _method(config: Config) -> str:
    if config.method is not None:
        return config.method
    tables = config.resolved()
    return f"{tables['server']['rule']} server, {tables['client']['rule']} clients"


def _circumstances(sim: Simulation) -> dict[str, Any]:
    """What it runs on, which another start may change."""
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
    }


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


# ---- who has what ---------------------------------------------------------------------------------------------------


def who_has_what(fed: Federation) -> dict[str, Any]:
    """How many examples clients have, and of which classes: of at most 10,000 and 100 of them, spread over all."""
    sizes, sized, shown = fed.sizes, _spread(len(fed), _MOST_SIZES), _spread(len(fed), _MOST_COUNTED)
    told: dict[str, Any] = {
        "name": fed.name,
        "clients": len(fed),
        "examples": int(sizes.sum()),
        "sizes": sizes[sized].tolist(),
        "shown": shown.tolist(),
        "counts": None,
        "classes": None,
    }
    counts = class_counts(fed, shown)
    if counts is not None:
        names = list(getattr(fed, "class_names", ()))
        told["counts"] = counts.tolist()
        told["classes"] = [*names, *map(str, range(len(names), counts.shape[1]))]
    return told


def class_counts(fed: Federation, clients: torch.Tensor) -> torch.Tensor | None:
    """Examples of each class that these clients have, (clients, classes) int64; None where examples have no class."""
    visit = fed.visit(clients)
    try:
        labels = labels_of(visit.examples, fed.name)[visit.rows]
    except ValueError:
        return None
    kinds = max(len(getattr(fed, "class_names", ())), int(labels.max()) + 1 if len(labels) else 0)
    owner = torch.arange(len(clients)).repeat_interleave(visit.offsets.diff())
    return torch.bincount(owner * kinds + labels, minlength=len(clients) * kinds).view(len(clients), kinds)


def _spread(clients: int, wanted: int) -> torch.Tensor:
    """`wanted` of the clients, or all, from the first to the last."""
    return torch.linspace(0, clients - 1, min(clients, wanted), dtype=torch.float64).round().long()


# ---- running --------------------------------------------------------------------------------------------------------


def execute(
    config: Config,
    path: str | Path,
    *,
    resume: bool = False,
    progress: bool | None = None,
    fed: Federation | None = None,
) -> Run:
    """Runs a configuration in a directory. With `resume` it goes on with the run that is there, if there is one; what
    is finished stays as it is.

    `progress` as in ``Simulation.run``; `fed` where the data is loaded already. Raises `ConfigError` or `RunExists`
    before anything of a run is changed, `RunFailed` if it breaks down; Ctrl-C leaves a checkpoint, and is passed on.
    """
    home = Path(path)
    sim = None
    if not resume or not holds_run(home):
        refuse_existing(home)
        sim = config.simulation(fed)
        create(home, config, sim)
    elif is_finished(config, home):
        return read(home)
    with alone(home):
        sim = _taken_up(config, home, fed) if sim is None else sim
        with _kept_in_mind(home):
            asked = {**config.run_settings, "until": config.run_settings.get("rounds")}
            asked.pop("rounds", None)
            sim.run(**asked, checkpoint=home / CHECKPOINT, log=home / ROUNDS, progress=progress)
    return read(home)


def is_finished(config: Config, path: str | Path) -> bool:
    """Whether a directory holds this run, done. A run of another configuration is refused."""
    run = read(path)
    difference = difference_from(run, config)
    if difference is not None:
        raise ConfigError(f"{difference}; --resume goes on with the same run")
    changed = _differences(run.config, without_none(config.resolved()))
    return run.status == "done" and not any(key in changed for key in _ENDS_IT)


def difference_from(run: Run, config: Config) -> str | None:
    """What makes a configuration another run than this one, in words; None where it is the same, longer perhaps."""
    for key, (before, now) in _differences(run.config, without_none(config.resolved())).items():
        if key not in (*CHANGE_NO_RESULT, *_ENDS_IT):
            return f"{key}: the run in {run.path} has {before!r}, got {now!r}"
    return None


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """The dotted keys whose values differ, with both."""
    found: dict[str, tuple[Any, Any]] = {}
    for key in (*before, *(key for key in now if key not in before)):
        one, other = before.get(key), now.get(key)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            found |= _differences(one, other, f"{prefix}{key}.")
        elif one != other:
            found[prefix + key] = (one, other)
    return found


def _taken_up(config: Config, home: Path, fed: Federation | None) -> Simulation:
    """The simulation of a run as its last checkpoint has it, or from its beginning if it came to none."""
    if checkpoints.all_of(home / CHECKPOINT):
        fed, model = config.federation() if fed is None else fed, config.make_model()
        try:
            sim = Simulation.resume(home / CHECKPOINT, model=model, fed=fed, threads=config.settings.get("threads"))
        except (ValueError, OSError) as error:
            raise RunFailed(f"{home}: cannot go on: {error}") from error
    else:
        sim = config.simulation(fed)
    with _failing_in_words(home):
        _replace(home / CONFIG, config.toml())
        update(home, status="running", error=None, finished=None, **_circumstances(sim))
    return sim


@contextmanager
def alone(home: Path) -> Iterator[None]:
    """Nobody else goes on with the run meanwhile. The lock is the system's, which lets go of it whatever becomes of us;
    a disk without locks does without."""
    handle = os.open(home, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunExists(f"{home}: another process is at work on this run; wait for it, or stop it") from None
        except OSError:
            pass
        yield
    finally:
        os.close(handle)


@contextmanager
def _kept_in_mind(home: Path) -> Iterator[None]:
    """While it runs; then run.json tells how it ended, and how long it took in all."""
    began, before = time.monotonic(), float(_json(home / INFO)["seconds"])

    def ended(status: str, error: str | None = None) -> None:
        update(home, status=status, error=error, finished=_now(), seconds=before + time.monotonic() - began)

    try:
        with _failing_in_words(home):
            yield
            ended("done")
    except RunFailed as error:
        with suppress(OSError, DamagedRun):  # the disk may be what failed
            ended("failed", str(error))
        raise
    except BaseException as error:  # Ctrl-C above all
        with suppress(OSError, DamagedRun):
            ended("interrupted", None if isinstance(error, KeyboardInterrupt) else repr(error))
        raise


@contextmanager
def _failing_in_words(home: Path) -> Iterator[None]:
    """Any error as one sentence; what nobody expected leaves its traceback beside the run."""
    try:
        yield
    except Exception as error:
        disk = _disk_error(error)
        if disk is not None:
            stays = "what was there stays, and --resume goes on from it"
            raise RunFailed(f"{home}: cannot be written: {disk.strerror or disk}; {stays}") from error
        with suppress(OSError):
            (home / TRACEBACK).write_text("".join(traceback.format_exception(error)))
        first = (str(error).splitlines() or [""])[0]
        raise RunFailed(f"{home}: the run failed: {type(error).__name__}: {first} (see {TRACEBACK} there)") from error


def _disk_error(error: BaseException | None) -> OSError | None:
    """The system's refusal behind an error, also where saving a last checkpoint failed in its turn."""
    while error is not None:
        if isinstance(error, OSError) and error.errno is not None:
            return error
        error = error.__cause__ or error.__context__
    return None
