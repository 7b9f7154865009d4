"""Running: from a configuration to a directory with all that came of it, or on from what is there."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, TypeVar

from ...data import Federation
from ...files import write_whole
from ...hooks import Hooked
from ...ranks import RankLost
from ...ranks import current as current_ranks
from ...saved import checkpoint as checkpoints
from ...sharing import writes
from ...simulation import Simulation
from ..config import CHANGE_NO_RESULT, Config, ConfigError, parse
from ..config.document import DIGEST
from ..config.options import NONE, without_none
from ..errors import first_line
from .beginning import create, mend, now, refuse_existing, told_again
from .directory import (
    CHECKPOINT,
    CONFIG,
    INFO,
    ROUNDS,
    TRACEBACK,
    DamagedRun,
    Run,
    RunFailed,
    holds_run,
    read,
    read_json,
    update,
)
from .lock import alone

_Result = TypeVar("_Result")
# --resume may change them: the rounds that were run stay.
_ENDS_IT = ("run.rounds", "run.until_clock", "run.target", "run.patience")


def execute(
    config: Config,
    path: str | Path,
    *,
    resume: bool = False,
    from_round: int | None = None,
    progress: bool | None = None,
    fed: Federation | None = None,
    hooks: Sequence[Hooked] = (),
) -> Run:
    """Runs a configuration in a directory. With `resume` it goes on with the run that is there, if there is one; what
    is finished stays as it is, unless `from_round` names the checkpoint to go on from: later ones are set aside.

    `progress` and `hooks` as in ``Simulation.run``; `fed` where the data is loaded already. Raises `ConfigError` or
    `RunExists` (`RunBusy` where another process is at work on the run) before anything of a run is changed, `RunFailed`
    if it breaks down; Ctrl-C leaves a checkpoint, and is passed on. On several ranks (``fastfed.ranks``), all of which
    call it, the directory is that of the first.
    """
    home, ranks = Path(path), current_ranks()
    if on_first(lambda: _is_there(config, home, resume, from_round)):
        return on_first(lambda: read(home))
    if ranks is not None and fed is None:
        fed = _each(config.federation)
    with ExitStack() as stack:
        on_first(lambda: stack.enter_context(alone(home)))
        goes_on = on_first(lambda: resume and holds_run(home))
        sim = _each(lambda: _resumed(config, home, fed, from_round) if goes_on else _begun(config, home, fed))
        with _noting_its_end(home, sim) if writes(ranks) else nullcontext():
            asked = {**config.run_settings, "until": config.run_settings.get("rounds")}
            asked.pop("rounds", None)
            loggers = [one.in_run(home, config.name or home.resolve().name) for one in config.loggers.values()]
            sim.run(
                **asked, checkpoint=home / CHECKPOINT, log=home / ROUNDS, progress=progress, hooks=[*loggers, *hooks]
            )
    return on_first(lambda: read(home))


def on_first(function: Callable[[], _Result]) -> _Result:
    """What concerns the directory of a run is done by one process; of several ranks, the first."""
    ranks = current_ranks()
    return function() if ranks is None else ranks.on_first(function)


def _each(function: Callable[[], _Result]) -> _Result:
    """What every rank sets up for itself: if it fails on one of them, that one says so, and all end."""
    ranks = current_ranks()
    return function() if ranks is None else ranks.each(function)


def _is_there(config: Config, home: Path, resume: bool, from_round: int | None) -> bool:
    """Whether the run is finished already; refused, if it may neither begin nor go on."""
    refuse_existing(home, allow_run=resume)
    if from_round is not None:
        checkpoint_of(home, from_round)
    return resume and holds_run(home) and is_finished(config, home) and from_round is None


def checkpoint_of(home: Path, round: int | None) -> Path:
    """The run's checkpoint of a round; without one, where the newest is."""
    place = home / CHECKPOINT
    if round is None:
        return place
    there = checkpoints.all_of(place)
    for path in reversed(there):
        if checkpoints.round_of(path) == round:
            return path
    rounds = ", ".join(str(one) for one in sorted(checkpoints.rounds_of(place))) or "none"
    raise ConfigError(f"--from: {place} has no checkpoint of round {round}; it has {rounds}")


def _begun(config: Config, home: Path, fed: Federation | None) -> Simulation:
    on_first(lambda: refuse_existing(home))  # before the data is loaded
    sim = config.simulation(fed)
    on_first(lambda: create(home, config, sim))
    return sim


def is_finished(config: Config, path: str | Path) -> bool:
    """Whether a directory holds this run, done. A run of another configuration is refused."""
    mend(Path(path), config)
    run = read(path)
    difference = difference_from(run, config)
    if difference is not None:
        raise ConfigError(f"{difference}; --resume goes on with the same run")
    changed = _differences(_told(run), without_none(config.resolved()))
    return run.status == "done" and not any(key in changed for key in _ENDS_IT)


def difference_from(run: Run, config: Config) -> str | None:
    """What makes a configuration another run than this one, in words; None where it is the same, longer perhaps."""
    for key, (before, asked) in _differences(_told(run), without_none(config.resolved())).items():
        if key.endswith(f".{DIGEST}"):
            return f"{key}: the source of what [{key.partition('.')[0]}] names has changed since {run.path} began"
        if key not in (*CHANGE_NO_RESULT, *_ENDS_IT):
            return f"{key}: the run in {run.path} has {before!r}, got {asked!r}"
    return None


def _told(run: Run) -> dict[str, Any]:
    """The run's configuration with every key that there is now: what went without saying before is said."""
    return dict(without_none(parse(_with_former_meanings(run.config)).resolved()))


def _with_former_meanings(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Tables of a run that may be older than some keys: where such a key's default is not what was done then, it says
    what was done (``saved/recipe.py`` does the same for checkpoints)."""
    client, tuner, data, model = (dict(tables.get(name, {})) for name in ("client", "tuner", "data", "model"))
    if client.get("warmup"):
        client.setdefault("from_first", True)
    starts = tables.get("exchange", {}).get("kind") == "preconditioner" or client.get("v0", NONE) != NONE
    if client.get("form", client.get("rule")) == "adam" and starts:
        client.setdefault("bias_correction", True)
    if client.get("rule") == "sps":
        client.setdefault("eps", 0.0)
    if tuner:
        tuner.setdefault("form", "paper")
    if data.get("name") in ("stack_overflow_nwp", "stack_overflow_tags"):
        data.setdefault("seed", NONE)
    if model.get("name") == "emnist_cnn" and "activations" not in model:
        model |= {"activations": "paper", "dense_relu": True, "first_relu": model.get("first_relu") or NONE}
    changed = {"client": client, "tuner": tuner, "data": data, "model": model}
    return {**tables, **{name: table for name, table in changed.items() if table}}


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


def _resumed(config: Config, home: Path, fed: Federation | None, from_round: int | None) -> Simulation:
    """The simulation of a run as its last checkpoint has it, or that of a round, or from its beginning if it came to
    none."""
    if on_first(lambda: bool(checkpoints.all_of(home / CHECKPOINT))):
        fed, model = config.federation() if fed is None else fed, config.make_model()
        try:
            given = {"threads": config.settings.get("threads"), **config.given_again()}
            sim = Simulation.resume(checkpoint_of(home, from_round), model=model, fed=fed, **given)
        except (ValueError, OSError) as error:
            raise RunFailed(f"{home}: cannot go on: {error}") from error
    else:
        sim = config.simulation(fed)
    on_first(lambda: _note_beginning(config, home, sim))
    return sim


def _note_beginning(config: Config, home: Path, sim: Simulation) -> None:
    with _any_error_as_run_failed(home):
        write_whole(home / CONFIG, config.toml())
        update(home, **told_again(home, config, sim))


@contextmanager
def _noting_its_end(home: Path, sim: Simulation) -> Iterator[None]:
    """While it runs; then run.json tells how it ended, how long it took in all, and what there was to say."""
    before = read_json(home / INFO)
    began, seconds = time.monotonic(), float(before["seconds"])

    def ended(status: str, error: str | None = None) -> None:
        notes = list(dict.fromkeys([*before.get("notes", ()), *sim.notes]))
        update(
            home, status=status, error=error, finished=now(), notes=notes, seconds=seconds + time.monotonic() - began
        )

    try:
        with _any_error_as_run_failed(home):
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
def _any_error_as_run_failed(home: Path) -> Iterator[None]:
    """Any error as one sentence; what nobody expected leaves its traceback beside the run."""
    try:
        yield
    except RankLost as error:
        raise RunFailed(f"{home}: {error}") from error
    except Exception as error:
        disk = _disk_error(error)
        if disk is not None:
            stays = "what was there stays, and --resume goes on from it"
            raise RunFailed(f"{home}: cannot be written: {disk.strerror or disk}; {stays}") from error
        with suppress(OSError):
            (home / TRACEBACK).write_text("".join(traceback.format_exception(error)))
        raise RunFailed(
            f"{home}: the run failed: {type(error).__name__}: {first_line(error)} (see {TRACEBACK} there)"
        ) from error


def _disk_error(error: BaseException | None) -> OSError | None:
    """The system's refusal behind an error, also where saving a last checkpoint failed in its turn."""
    while error is not None:
        if isinstance(error, OSError) and error.errno is not None:
            return error
        error = error.__cause__ or error.__context__
    return None
