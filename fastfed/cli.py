"""The command line: `fastfed doctor`, `fastfed bench kernels`, `fastfed bench rounds`, `fastfed demo`.

Exit codes: 0 done, 1 failed, 2 asked for wrongly. Each command imports what it needs itself.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from ._version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

    from .bench.kernels import Plan
    from .bench.rounds import Plan as RoundsPlan
    from .bench.rounds import Results
    from .bench.rows import Row
    from .doctor import Report

app = typer.Typer(
    name="fastfed",
    help="FastFed: federated optimisation simulated fast.\n\nExample: fastfed doctor",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
bench = typer.Typer(
    help="Measure FastFed on this machine.\n\nExample: fastfed bench kernels --ops 'server_*'",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(bench, name="bench")


def main() -> None:
    """The entry point: a failure is one sentence and exit code 1, never a traceback."""
    try:
        app()
    except CommandError as error:
        _complain(str(error))
        sys.exit(1)


class CommandError(Exception):
    """Something a user can act on; its text is the sentence they read."""


@contextmanager
def _told_plainly(*kinds: type[Exception]) -> Iterator[None]:
    try:
        yield
    except kinds as error:
        raise CommandError(str(error)) from error


def _complain(sentence: str) -> None:
    print(f"fastfed: {sentence}", file=sys.stderr)


def _console() -> Console:
    """Tables need room: where the output is no terminal, nobody wraps them for us."""
    console = Console()
    return console if console.is_terminal else Console(width=150)


def _say_version(asked: bool) -> None:
    if asked:
        print(f"fastfed {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass


# ---- doctor ---------------------------------------------------------------------------------------------------------


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Say which backends work here, and what the others lack.

    Each backend that can start takes one small step, compared with the reference. Exit code 0 if a fast one works.

    Example: fastfed doctor --json
    """
    from .doctor import examine

    report = examine()
    if as_json:
        print(json.dumps(report.as_dict(), indent=1))
    else:
        _show_report(report)
    if not report.fast:
        raise CommandError("no fast backend works here; only the slow reference is left (the table above says why)")


def _show_report(report: Report) -> None:
    from rich.markup import escape
    from rich.table import Table

    console = _console()
    console.print(f"Machine:  {escape(report.machine.words)}", highlight=False)
    console.print(f"Versions: {', '.join(f'{k} {v}' for k, v in report.versions.items())}", highlight=False)
    table = Table()
    for name in ("backend", "usable", "device", "compiler", "SIMD", "threads"):
        table.add_column(name, overflow="fold")
    table.add_column("why not", overflow="fold", ratio=1)
    for row in report.backends:
        usable = "[green]yes[/]" if row.usable else "[red]no[/]"
        threads = "-" if row.threads is None else str(row.threads)
        table.add_row(row.backend, usable, row.device, row.compiler, row.simd, threads, escape(row.why_not))
    console.print(table)
    console.print(f"CPU tensors run on: {escape(report.chosen)}", highlight=False)


# ---- bench ----------------------------------------------------------------------------------------------------------


def _parse_sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(float(part)) for part in text.split(","))
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"must be numbers like 1e4,1e6, got {text!r}", param_hint="--sizes") from None
    if not sizes or min(sizes) < 1:
        raise typer.BadParameter(f"must be at least 1, got {text!r}", param_hint="--sizes")
    return sizes


def _need_benchmark_package() -> None:
    if importlib.util.find_spec("pytest_benchmark") is None:
        raise CommandError("bench needs the package 'pytest-benchmark'; install it with: pip install 'fastfed[bench]'")


@bench.command("kernels")
def bench_kernels(
    sizes: Annotated[str, typer.Option(help="Vector lengths d, separated by commas.")] = "1e4,1e6,2.5e7",
    ops: Annotated[str, typer.Option(help="Ops, separated by commas; patterns like 'client_*' are welcome.")] = "*",
    threads: Annotated[int | None, typer.Option(min=1, help="Threads for everybody. Default: torch's number.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; each times every contender once.")] = 7,
    backend: Annotated[str | None, typer.Option(help="A CPU backend. Default: the fastest here.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all measurements as JSON rows.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a picture (.png, .svg, .pdf).")] = None,
) -> None:
    """Time every op beside torch.optim, optax and this machine's streaming bound.

    All contenders of an op take turns, so that ratios survive a noisy machine.

    Example: fastfed bench kernels --sizes 1e6 --ops 'server_*' --json out/kernels.json --plot out/kernels.png
    """
    _need_benchmark_package()
    plan = _plan(_parse_sizes(sizes), ops, rounds, threads, backend)
    from .bench import kernels as kernel_bench

    console = _console()
    with _told_plainly(RuntimeError, MemoryError, OSError):
        rows = _run_with_progress(plan, console)
        _show_rows(rows, console)
        if json_file is not None:
            kernel_bench.save(rows, json_file)
            console.print(f"Rows: {json_file}")
        if plot is not None:
            from .bench import plot as kernel_plot

            kernel_plot.save(rows, plot)
            console.print(f"Picture: {plot}")


def _plan(sizes: tuple[int, ...], ops: str, rounds: int, threads: int | None, backend: str | None) -> Plan:
    import torch

    from .bench import kernels as kernel_bench
    from .kernels import BackendUnavailable

    try:
        chosen = kernel_bench.choose_ops([part.strip() for part in ops.split(",")])
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--ops") from None
    try:
        with _told_plainly(BackendUnavailable):
            name = kernel_bench.choose_backend(backend)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--backend") from None
    return kernel_bench.Plan(sizes, chosen, rounds, threads or torch.get_num_threads(), name)


def _run_with_progress(plan: Plan, console: Console) -> list[Row]:
    """A bar on a terminal, a line per bout elsewhere."""
    from .bench import kernels as kernel_bench

    if not console.is_terminal:
        return list(kernel_bench.run(plan, lambda line: print(line, file=sys.stderr, flush=True)))
    with _bar(console, len(plan.bouts), lambda line: "d = " in line) as tell:
        return list(kernel_bench.run(plan, tell))


@contextmanager
def _bar(
    console: Console, total: int, starts_bout: Callable[[str], bool] = lambda line: True
) -> Iterator[Callable[[str], None]]:
    """What to tell the bar: lines that start one of its `total` bouts; others are printed above it."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=total)
        started = 0

        def tell(line: str) -> None:
            nonlocal started
            if not starts_bout(line):
                progress.console.print(line)
                return
            progress.update(task, description=line, completed=started)
            started += 1

        yield tell


def _show_rows(rows: list[Row], console: Console) -> None:
    from .bench import kernels as kernel_bench
    from .bench import table, targets

    if any(row.size != kernel_bench.LATENCY_SIZE for row in rows):
        console.print(table.speed(rows, kernel_bench.LATENCY_SIZE))
    console.print(table.latency(rows, kernel_bench.LATENCY_SIZE))
    console.print(table.verdicts(targets.judge(rows)))
    console.print(f"{rows[0].machine}; {rows[0].threads} threads; {rows[0].versions}", highlight=False)


@bench.command("rounds")
def bench_rounds(
    workloads: Annotated[str, typer.Option(help="Workloads, separated by commas; patterns like 'W*' too.")] = "*",
    scale: Annotated[float, typer.Option(min=1e-4, max=1.0, help="Shrinks every cohort, as in 0.1.")] = 1.0,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads for everybody. Default: torch's number.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; each times every contender once.")] = 7,
    scaling: Annotated[bool, typer.Option("--scaling", help="Also W1, W2 with 10 to 10,000 clients.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all measurements as JSON.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a picture (.png, .svg, .pdf).")] = None,
) -> None:
    """Time whole rounds beside a plain PyTorch client loop and torch.func.vmap.

    Clients train with SGD, the server steps with FedAdam. All contenders of a workload see the same batches, must agree
    about the aggregate before any is timed, and take turns.

    Workloads: W1 softmax regression, W2 MLP, W3 EMNIST CNN, LSTM Shakespeare, AE EMNIST autoencoder, SO-LR sparse
    logistic regression, ResNet ResNet-18 with group norm, one client.

    Example: fastfed bench rounds --workloads W1,W2 --scale 0.1 --json out/rounds.json --plot out/rounds.png
    """
    _need_benchmark_package()
    plan = _rounds_plan(workloads, scale, rounds, threads, scaling)
    from .bench import rounds as round_bench

    console = _console()
    with _told_plainly(RuntimeError, MemoryError, OSError, ValueError):
        results = _run_rounds(plan, console)
        _show_rounds(results, console)
        if json_file is not None:
            round_bench.save(results, json_file)
            console.print(f"Rows: {json_file}")
        if plot is not None:
            from .bench import round_plot

            round_plot.save(results.rows, plot)
            console.print(f"Picture: {plot}")


def _rounds_plan(workloads: str, scale: float, rounds: int, threads: int | None, scaling: bool) -> RoundsPlan:
    import torch

    from .bench import rounds as round_bench

    try:
        chosen = round_bench.choose_workloads([part.strip() for part in workloads.split(",")])
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--workloads") from None
    return round_bench.Plan(chosen, scale, rounds, threads or torch.get_num_threads(), scaling)


def _run_rounds(plan: RoundsPlan, console: Console) -> Results:
    from .bench import rounds as round_bench

    if not console.is_terminal:
        return round_bench.run(plan, lambda line: print(line, file=sys.stderr, flush=True))
    with _bar(console, plan.bouts) as tell:
        return round_bench.run(plan, tell)


def _show_rounds(results: Results, console: Console) -> None:
    from .bench import round_table, round_targets

    console.print(round_table.contenders(results.rows))
    for sentence in (*round_table.skipped(results.rows), *round_table.disturbed(results.rows)):
        console.print(sentence, highlight=False)
    if results.scaling:
        console.print(round_table.scaling(results.scaling))
    console.print(round_table.verdicts(round_targets.judge(results)))
    first = results.rows[0]
    console.print(f"{first.machine}; {first.threads} threads; {first.versions}", highlight=False)


# ---- demo -----------------------------------------------------------------------------------------------------------


@app.command()
def demo(
    rounds: Annotated[int, typer.Option(min=1, help="Federated rounds per method.")] = 100,
    out: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("out/demo.png"),
) -> None:
    """Train the embedded digits with eight methods of the papers.

    Ends with a table and a picture.

    Example: fastfed demo --rounds 200 --out out/demo.png
    """
    from . import demo as demonstration
    from .pictures import curves

    with _told_plainly(OSError, RuntimeError):
        console = _console()
        runs = demonstration.run(rounds, say=lambda name: console.print(f"{name}: {rounds} rounds", highlight=False))
        console.print(demonstration.table(runs))
        title = f"Digits, {demonstration.COHORT} of {demonstration.CLIENTS} clients a round"
        curves({one.name: one.history for one in runs}, "test_accuracy", out, title)
        console.print(f"Picture: {out.resolve()}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
