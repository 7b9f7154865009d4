"""`fastfed run`: one configuration, one directory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from ..counting import counted
from .shorthands import with_shorthands
from .terminal import FAILED, INTERRUPTED, complain, report_command, say, show_table
from .watch import Live, live

if TYPE_CHECKING:
    from rich.table import Table

    from ...ranks import Ranks
    from ..config import Config
    from ..runs import Run

File = Annotated[Path, typer.Argument(metavar="FILE.toml", help="The configuration; `fastfed init` writes one.")]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="As in server.lr=0.1; repeatable.")]
_CHECKPOINT = re.compile(r"(?:round-)?(\d+)(?:\.safetensors|\.json)?")
DataOption = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        metavar="[NAME=]DIR|synthetic",
        help="Where the data is, in place of data.root (repeatable, where there are several directories; NAME=DIR is"
        " for the data set NAME alone, in a sweep over several); or synthetic: made-up data of the same shapes."
        " Relative directories are relative to the working directory.",
    ),
]


Centralised = Annotated[
    bool,
    typer.Option(
        "--centralised",
        help="Train without clients instead, for comparison: the same model, data, learning rate and batch size, and as"
        " many examples in a round, drawn from all. A dashed line in reports.",
    ),
]


@with_shorthands
def run(
    file: File,
    sets: Sets = None,
    data: DataOption = None,
    out: Annotated[Path | None, typer.Option(help="The run's directory. Default: runs/ and the file's name.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run that is there.")] = False,
    from_: Annotated[
        str | None, typer.Option("--from", help="With --resume: the checkpoint to go on from, as in round-120.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing unless it fails.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print every round as a JSON object on a line.")] = False,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads; they change no result.")] = None,
    centralised: Centralised = False,
    is_live: Live = False,
) -> None:
    """Run a configuration.

    A file may name another as its base, and say only what differs.

    The directory gets the configuration with every default stated, a row per round, checkpoints, and what it ran on.
    Ctrl-C leaves a checkpoint (exit code 130); the same command with --resume goes on to the same bits.
    With --from round-120 it goes back to that checkpoint first; later ones are set aside.

    On several processes: torchrun --nproc-per-node 4 -m fastfed run digits.toml, to the same bits.

    Example: fastfed run digits.toml --rounds 200 --set server.tau=1e-4 --out runs/a
    """
    from ...ranks import join

    given = [*(sets or ()), *([] if threads is None else [f"run.threads={threads}"])]
    home = default_home("runs", file, data) if out is None else out
    if centralised and out is None:
        home = home.with_name(f"{home.name}-centralised")
    with join() as ranks, _one_voice(ranks):
        config = _loaded(ranks, file, given, data or (), centralised)
        says = Says(quiet, as_json, ranks is None or ranks.is_first)
        with live(is_live and says.first, home):
            _run(config, home, resume, _round(from_, resume), says)


def _loaded(ranks: Ranks | None, file: Path, given: list[str], data: Sequence[str], centralised: bool) -> Config:
    from .. import config as configs

    def load() -> Config:
        config = configs.load(file, given, data)
        return configs.centralised(config, config.federation()) if centralised else config

    return load() if ranks is None else ranks.each(load)


class Says(NamedTuple):
    """What a run says: nothing unless it fails (`quiet`), its rounds on standard output (`as_json`); nothing at all, if
    it is not the `first` of several ranks."""

    quiet: bool
    as_json: bool
    first: bool

    @property
    def much(self) -> bool:
        return self.first and not self.quiet


@contextmanager
def _one_voice(ranks: Ranks | None) -> Iterator[None]:
    """Of several ranks one says what went wrong; the others, if they know of the same, end without a word."""
    from ...ranks import RankLost, is_shared

    try:
        yield
    except typer.Exit:
        raise
    except Exception as error:
        if ranks is None or ranks.speaks or not (isinstance(error, RankLost) or is_shared(error)):
            raise
        raise typer.Exit(FAILED) from None


def _round(named: str | None, resume: bool) -> int | None:
    """The round of a checkpoint that is named by it."""
    from ..config import ConfigError

    if named is None:
        return None
    found = _CHECKPOINT.fullmatch(named)
    if found is None:
        raise ConfigError(f"--from: must name a checkpoint, as in round-120, got {named!r}")
    if not resume:
        raise ConfigError("--from: goes on from a checkpoint of a run that is there; give --resume, too")
    return int(found[1])


def _run(config: Config, home: Path, resume: bool, from_round: int | None, says: Says) -> None:
    from .. import runs

    if resume and not runs.on_first(lambda: runs.holds_run(home)):
        if says.much:
            complain(f"{home}: holds no run to go on with; it starts from the beginning")
    elif resume and from_round is None and runs.on_first(lambda: runs.is_finished(config, home)):
        if says.much:
            _conclude(runs.read(home), says.as_json, f"{home}: this run is finished; nothing was left to do")
        return
    _carry_out(config, home, resume, from_round, says)


def default_home(folder: str, file: Path, data: Sequence[str] | None) -> Path:
    """Where results go that were given no place: those on made-up data never beside the real ones."""
    return Path(folder) / (f"{file.stem}-synthetic" if "synthetic" in (data or ()) else file.stem)


def _carry_out(config: Config, home: Path, resume: bool, from_round: int | None, says: Says) -> None:
    from .. import runs

    try:
        with _rows_on_stdout(home) if says.as_json and says.first else nullcontext():
            quietly = False if says.quiet or says.as_json else None
            done = runs.execute(config, home, resume=resume, from_round=from_round, progress=quietly)
    except KeyboardInterrupt:
        if says.first:
            _tell_of_interruption(home, says)
        raise typer.Exit(INTERRUPTED) from None
    if says.much:
        _conclude(done, says.as_json)


def _tell_of_interruption(home: Path, says: Says) -> None:
    from .. import runs

    if not runs.holds_run(home):
        complain("interrupted before the first round")
    elif says.much:
        stopped = runs.read(home)
        _conclude(stopped, says.as_json, f"interrupted after round {len(stopped.history)}; --resume goes on")


# ---- what it says ---------------------------------------------------------------------------------------------------


def _conclude(run: Run, as_json: bool, sentence: str | None = None) -> None:
    """The summary; with --json, standard output is left to the rounds."""
    for note in run.info.get("notes", ()) if as_json else ():  # elsewhere they are told when they come up
        complain(note)
    if sentence is not None:
        complain(sentence)
    show_table(summary(run), stderr=as_json)
    if not len(run.history):
        say("No round was run (run.rounds is 0): the model is as it began.", stderr=as_json)
    say(f"Run:    {run.path.resolve()}", stderr=as_json)
    if len(run.history):
        say(f"Report: type {report_command(run.path)}", stderr=as_json)


def summary(run: Run) -> Table:
    """A run in a few numbers."""
    from rich.markup import escape
    from rich.table import Table

    history, metric = run.history, run.metric
    table = Table(title=escape(run.name), show_header=False)
    sent = sum(row["bytes_down"] + row["bytes_up"] for row in history)
    measured = history.values(metric)
    name = metric.removeprefix("test_").replace("_", " ")
    rows = {
        "method": run.info["method"],
        "status": run.status,
        "rounds": f"{len(history):,}",
        f"test {name}" if metric.startswith("test_") else name: f"{measured[-1]:.4g}" if measured else "-",
        f"best {name}": f"{history.best(metric):.4g}" if measured else "-",
        "train loss": f"{history.last('train_loss'):.4g}" if history.values("train_loss") else "-",
        "clients refused": f"{sum(history.values('skipped')):,}",
        "MB sent": f"{sent / 1e6:,.1f}",
        "seconds": f"{run.info['seconds']:.1f}",
        "executor": f"{run.info['executor']}, {_processes(run)}{counted(run.info['threads'], 'thread')}",
    }
    for key, value in rows.items():
        table.add_row(key, escape(str(value)))
    return table


def _processes(run: Run) -> str:
    count = run.info.get("ranks", 1)
    return f"{count} ranks of " if count > 1 else ""


@contextmanager
def _rows_on_stdout(home: Path) -> Iterator[None]:
    """Prints the rows of this start as they come; those of an earlier one were printed then."""
    from ...saved import checkpoint
    from .. import runs
    from .follow import followed

    before = max(checkpoint.rounds_of(home / runs.CHECKPOINT), default=0)
    with followed(home / runs.ROUNDS, before, lambda line: print(line, flush=True)):
        yield
