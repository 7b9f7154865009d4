"""`fastfed run`: one configuration, one directory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .terminal import INTERRUPTED, complain, console, say

if TYPE_CHECKING:
    from rich.table import Table

    from ..config import Config
    from ..runs import Run

File = Annotated[Path, typer.Argument(metavar="FILE.toml", help="The configuration; `fastfed init` writes one.")]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="As in server.lr=0.1; repeatable.")]
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


def run(
    file: File,
    sets: Sets = None,
    data: DataOption = None,
    out: Annotated[Path | None, typer.Option(help="The run's directory. Default: runs/ and the file's name.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run that is there.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing unless it fails.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print every round as a JSON object on a line.")] = False,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads; they change no result.")] = None,
    centralised: Centralised = False,
) -> None:
    """Run a configuration.

    A file may name another as its base, and say only what differs.

    The directory gets the configuration with every default stated, a row per round, checkpoints, and what it ran on.
    Ctrl-C leaves a checkpoint (exit code 130); the same command with --resume goes on to the same bits.

    Example: fastfed run digits.toml --set server.lr=0.1 --set run.rounds=200 --out runs/a
    """
    from .. import config as configs
    from .. import runs

    given = [*(sets or ()), *([] if threads is None else [f"run.threads={threads}"])]
    config = configs.load(file, given, data or ())
    home = default_home("runs", file, data) if out is None else out
    if centralised:
        config = configs.centralised(config, config.federation())
        home = home.with_name(f"{home.name}-centralised") if out is None else home
    if resume and not runs.holds_run(home):
        if not quiet:
            complain(f"{home}: holds no run to go on with; it starts from the beginning")
    elif resume and runs.is_finished(config, home):
        if not quiet:
            _conclude(runs.read(home), as_json, f"{home}: this run is finished; nothing was left to do")
        return
    _carry_out(config, home, resume, quiet, as_json)


def default_home(folder: str, file: Path, data: Sequence[str] | None) -> Path:
    """Where results go that were given no place: those on made-up data never beside the real ones."""
    return Path(folder) / (f"{file.stem}-synthetic" if "synthetic" in (data or ()) else file.stem)


def _carry_out(config: Config, home: Path, resume: bool, quiet: bool, as_json: bool) -> None:
    from .. import runs

    try:
        with _rows_on_stdout(home) if as_json else nullcontext():
            done = runs.execute(config, home, resume=resume, progress=False if quiet or as_json else None)
    except KeyboardInterrupt:
        if runs.holds_run(home):
            stopped = runs.read(home)
            if not quiet:
                _conclude(stopped, as_json, f"interrupted after round {len(stopped.history)}; --resume goes on")
        else:
            complain("interrupted before the first round")
        raise typer.Exit(INTERRUPTED) from None
    if not quiet:
        _conclude(done, as_json)


# ---- what it says ---------------------------------------------------------------------------------------------------


def _conclude(run: Run, as_json: bool, sentence: str | None = None) -> None:
    """The summary; with --json, standard output is left to the rounds."""
    if sentence is not None:
        complain(sentence)
    console(stderr=as_json).print(summary(run))
    say(f"Run: {run.path.resolve()}", stderr=as_json)


def summary(run: Run) -> Table:
    """A run in a few numbers."""
    from rich.markup import escape
    from rich.table import Table

    history, metric = run.history, run.metric
    table = Table(title=escape(run.name), show_header=False)
    sent = sum(row["bytes_down"] + row["bytes_up"] for row in history)
    measured = history.column(metric)
    name = metric.removeprefix("test_").replace("_", " ")
    rows = {
        "method": run.info["method"],
        "status": run.status,
        "rounds": f"{len(history):,}",
        f"test {name}" if metric.startswith("test_") else name: f"{measured[-1]:.4g}" if measured else "-",
        f"best {name}": f"{history.best(metric):.4g}" if measured else "-",
        "train loss": f"{history.last('train_loss'):.4g}" if history.column("train_loss") else "-",
        "clients refused": f"{sum(history.column('skipped')):,}",
        "MB sent": f"{sent / 1e6:,.1f}",
        "seconds": f"{run.info['seconds']:.1f}",
        "executor": f"{run.info['executor']}, {run.info['threads']} threads",
    }
    for key, value in rows.items():
        table.add_row(key, escape(str(value)))
    return table


@contextmanager
def _rows_on_stdout(home: Path) -> Iterator[None]:
    """Prints the rows of this start as they come; those of an earlier one were printed then."""
    from ...saved import checkpoint
    from .. import runs
    from .follow import followed

    before = max(checkpoint.rounds_of(home / runs.CHECKPOINT), default=0)
    with followed(home / runs.ROUNDS, before, lambda line: print(line, flush=True)):
        yield
