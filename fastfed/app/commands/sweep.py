"""`fastfed sweep`: many runs of one configuration, over a grid of settings, variants and seeds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..counting import counted
from .run import DataOption, File, Sets, default_home
from .shorthands import with_shorthands
from .terminal import FAILED, INTERRUPTED, complain, console, report_command, say, show_table
from .watch import Live, live

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from ..sweep import Plan, PointOutcome, Shard, SweepOutcome
    from ..sweep.runner import Event, Tell

_MOST_POINTS_SHOWN = 20


Axes = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUES]...", help="More axes, as after --grid.", show_default=False)
]
Grid = Annotated[
    list[str] | None,
    typer.Option(
        "--grid", metavar="KEY=VALUES", help="An axis: a:b:logN, a:b:linN or a,b,c. More may follow it, or more --grid."
    ),
]
Out = Annotated[Path | None, typer.Option(help="The sweep's directory. Default: sweeps/ and the file's name.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads of each point. Default: the cores' share.")]
Metric = Annotated[str | None, typer.Option(help="What is reported. Default: what goes with the loss.")]
Select = Annotated[
    str | None,
    typer.Option(
        help="What settings are chosen by. Default: the metric on the validation set (data.validation), where there is "
        "one, else train_loss; the test set only if it is named."
    ),
]
LastRounds = Annotated[int | None, typer.Option(min=1, help="Judge by means over so many last rounds, as AFO by 100.")]
ShardOption = Annotated[
    str | None,
    typer.Option(
        "--shard",
        metavar="I/N",
        help="Run only the I-th of N parts of the points, as in 2/4; others run the rest, on a disk that is shared "
        "or into directories that are put together later.",
        show_default=False,
    ),
]
PoolOption = Annotated[
    str | None,
    typer.Option(
        "--pool",
        metavar="dask://HOST:PORT",
        help="Let the workers of a Dask cluster run the points; they share this machine's disk.",
        show_default=False,
    ),
]
Halve = Annotated[bool, typer.Option("--halve", help="Successive halving: drop the worse after a few rounds.")]


@with_shorthands
def sweep(
    file: File,
    axes: Axes = None,
    grid: Grid = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs of each point: run.seed and those after it.")] = None,
    sets: Sets = None,
    data: DataOption = None,
    out: Out = None,
    resume: Annotated[bool, typer.Option("--resume", help="Run only what is missing there, or unfinished.")] = False,
    jobs: Annotated[int | None, typer.Option(min=1, help="Points at once. Default: as many as cores.")] = None,
    threads: Threads = None,
    shard: ShardOption = None,
    pool: PoolOption = None,
    metric: Metric = None,
    select: Select = None,
    last: Annotated[int | None, typer.Option(min=1, help="Judge by the mean of so many last evaluations.")] = None,
    last_rounds: LastRounds = None,
    halve: Halve = False,
    eta: Annotated[int, typer.Option(min=2, help="With --halve: one in so many goes on.")] = 3,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing unless something fails.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object per run, at the end; or per point.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say which points there are.")] = False,
    is_live: Live = False,
) -> None:
    """Run a configuration over a grid.

    Axes and named variants may also stand in the file, in a table [sweep]; the command line wins. The data is loaded
    once, several points run at once, and each is the run that `fastfed run` would make, in a directory of its own. The
    directory of the sweep gets results.csv, results.json and pictures: heat maps, sensitivity and ranks.

    Settings are chosen by one column (--select), and another is reported (--metric), so that a test set does not choose
    what is shown of it. A point that diverges is a finding; one that fails is told, the others go on, and the exit code
    is 1. Ctrl-C lets points in flight leave checkpoints (exit code 130). Points that another process is at work on are
    passed over: several may share one sweep, each with --resume or a --shard of its own.

    Example: fastfed sweep digits.toml --grid client.lr=1e-3:1e0:log7 server.lr=0.01,0.1,1 --seeds 3
    """
    from .. import sweep as sweeps

    given = [*(grid or ()), *(axes or ())]
    plan = sweeps.plan(
        file,
        given,
        sets or (),
        data or (),
        seeds=seeds,
        metric=metric,
        select=select,
        last=last,
        last_rounds=last_rounds,
    )
    for text, names in plan.skipped.items():
        complain(f"--set {text}: left out for {', '.join(names)}, which would ignore it")
    plan.check_places()
    part = sweeps.Shard() if shard is None else sweeps.Shard.of(shard)
    if dry_run:
        _list_plan(plan, part) if as_json else _show_plan(plan, part, jobs, threads)
        return
    home = default_home("sweeps", file, data) if out is None else out
    if resume and not sweeps.holds_sweep(home) and not quiet:
        complain(f"{home}: holds no sweep to go on with; it starts from the beginning")
    with live(is_live, home), _told(quiet or as_json) as tell:
        swept = sweeps.carry_out(
            plan,
            home,
            resume=resume,
            jobs=jobs,
            threads=threads,
            eta=eta if halve else None,
            shard=part,
            pool=pool,
            tell=tell,
        )
    _conclude(swept, quiet, as_json)


# ---- while it runs --------------------------------------------------------------------------------------------------


@contextmanager
def _told(silent: bool) -> Iterator[Tell]:
    """A bar over the points on a terminal, a line for each elsewhere."""
    if silent:
        yield _only_stopping
    elif sys.stderr.isatty():
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("points"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, TextColumn("{task.fields[says]}"), console=console(stderr=True)) as progress:
            yield _Bar(progress, progress.add_task("points", total=None, says="")).tell
    else:
        yield _line


def _only_stopping(event: Event) -> None:
    if event.kind == "stopping":
        complain(_STOPPING)


_STOPPING = "stopping: points in flight write checkpoints (Ctrl-C again ends them at once)"


class _Bar:
    def __init__(self, progress: Progress, task: TaskID) -> None:
        self.progress, self.task = progress, task

    def tell(self, event: Event) -> None:
        best = "" if event.best is None else f"best {_value(event.best)}: {event.best.point.label}"
        self.progress.update(self.task, total=event.total, completed=event.done, says=best)
        if event.kind in ("rung", "stopping", "loading") or (event.outcome is not None and event.outcome.error):
            said = _words(event)
            self.progress.console.print(said, highlight=False, markup=False, soft_wrap=True)


def _line(event: Event) -> None:
    if event.kind != "started":
        print(_words(event), file=sys.stderr, flush=True)


def _words(event: Event) -> str:
    if event.kind == "stopping":
        return _STOPPING
    if event.kind == "loading":
        return f"loading {event.text}"
    if event.kind == "rung" or event.outcome is None:
        return event.text
    one = event.outcome
    told = [] if one.status == "done" else [one.status if one.error is None else f"{one.status}, {one.error}"]
    told += [_value(one)] if one.value is not None and one.error is None else []
    told.append(f"{one.seconds:.1f} s" if event.kind == "finished" else "was there already")
    return f"[{event.done}/{event.total}] {one.point.label}, seed {one.point.seed}: {', '.join(told)}"


def _value(one: PointOutcome) -> str:
    from ..report.entries import MISSING
    from ..report.words import name_of, value_of

    if one.metric is None or one.value is None:
        return MISSING
    return f"{name_of(one.metric)} {value_of(one.metric, one.value)}"


# ---- when it ends ---------------------------------------------------------------------------------------------------


def _list_plan(plan: Plan, shard: Shard) -> None:
    """For other programs: a JSON object per point."""
    import json

    from ..sweep.results import identity

    for point in shard.own(plan.points):
        print(json.dumps(identity(plan, point), default=str))


def _show_plan(plan: Plan, shard: Shard, jobs: int | None, threads: int | None) -> None:
    from ..sweep.runner import shares
    from ..sweep.transfer import tuned_points

    points = shard.own(plan.points)
    at_once, each = shares(len(points), jobs, threads or plan.threads)
    part = "" if shard.is_all else f" of {len(plan.points):,}"
    say(f"{counted(len(points), 'run')}{part}, {at_once} at once with {counted(each, 'thread')} each")
    if plan.spec.tune_on:
        say(f"{len(tuned_points(plan)):,} of them to tune on; of the others, only those with what is chosen there")
    for point in points[:_MOST_POINTS_SHOWN]:
        say(f"  {point.label}, seed {point.seed}")
    if len(points) > _MOST_POINTS_SHOWN:
        say(f"  and {len(points) - _MOST_POINTS_SHOWN:,} more")


def _conclude(swept: SweepOutcome, quiet: bool, as_json: bool) -> None:
    """Files first, then the tables; the exit code last."""
    import json

    from ..sweep import charts, drawing, results, tables

    files = results.write(swept)
    pictures = drawing.save(charts.pictures(swept), swept.path / "figures")
    if as_json:
        for row in results.rows(swept):
            print(json.dumps(row, default=str))
    elif not quiet:
        show_table(tables.ranking(swept))
        champions = tables.champions(swept)
        if champions is not None:
            show_table(champions)
        shown = [*files, *(path for path in pictures if path.suffix == ".png")]
        say(f"{'Report:':<10}type {report_command(swept.path)}")
        for name, paths in (("Results", shown[: len(files)]), ("Pictures", shown[len(files) :])):
            for path in paths:
                say(f"{name + ':':<10}{path.resolve()}")
    _exit(swept)


def _exit(swept: SweepOutcome) -> None:
    _tell_of_failures(swept)
    if swept.interrupted:
        done = sum(one.status not in ("waiting", "interrupted", "elsewhere") for one in swept.outcomes)
        complain(f"interrupted with {done} of {counted(len(swept.outcomes), 'run')} finished; --resume goes on")
        raise typer.Exit(INTERRUPTED)
    if swept.elsewhere:
        away = f"{len(swept.elsewhere)} of {counted(len(swept.outcomes), 'run')} are left to other processes"
        complain(f"{away}; when they are done, the same command with --resume tells of all")
    if swept.failed:
        complain(f"{len(swept.failed)} of {counted(len(swept.outcomes), 'run')} failed; --resume tries them again")
        raise typer.Exit(FAILED)


def _tell_of_failures(swept: SweepOutcome) -> None:
    """Each reason once, however many runs have it."""
    by_reason: dict[str, list[PointOutcome]] = {}
    for one in swept.failed:
        home = str(swept.path / "points" / one.point.name)
        by_reason.setdefault(str(one.error).replace(home, "the run"), []).append(one)
    for failed in by_reason.values():
        first, number = failed[0], len(failed) - 1
        more = f" (and {counted(number, 'other')} for the same reason)" if number else ""
        complain(f"{first.point.label}, seed {first.point.seed}: {first.error}{more}")
