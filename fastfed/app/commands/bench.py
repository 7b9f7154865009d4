"""`fastfed bench kernels | rounds | peers`: FastFed measured on this machine, its peers beside it."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import first_line
from .terminal import CommandError, bouts, console, told_plainly

if TYPE_CHECKING:
    from rich.console import Console

    from ...bench.common.place import Place
    from ...bench.kernels.rows import Row
    from ...bench.kernels.run import Plan
    from ...bench.peers.run import Plan as PeersPlan
    from ...bench.peers.run import Results as PeersResults
    from ...bench.rounds.rows import RoundRow
    from ...bench.rounds.run import Plan as RoundsPlan
    from ...bench.rounds.run import Results

app = typer.Typer(
    help="Measure FastFed on this machine.\n\nExample: fastfed bench kernels --ops 'server_*'",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Threads = Annotated[int | None, typer.Option(min=1, help="Threads for everybody. Default: torch's number.")]
Rounds = Annotated[int, typer.Option(min=1, help="Rounds; each times every contender once.")]
Device = Annotated[str, typer.Option(help="Where to run: cpu, or a CUDA device as in cuda:0.")]
Plot = Annotated[Path | None, typer.Option(help="Write a picture (.png, .svg, .pdf).")]


def _need_benchmark_package() -> None:
    if importlib.util.find_spec("pytest_benchmark") is None:
        raise CommandError("bench needs the package 'pytest-benchmark'; install it with: pip install 'fastfed[bench]'")


def _place(device: str) -> Place:
    from ...bench.common.place import find_place

    try:
        return find_place(device)
    except (ValueError, RuntimeError) as error:  # torch's own, for a word that names no device
        raise typer.BadParameter(first_line(error), param_hint="--device") from None


# ---- kernels --------------------------------------------------------------------------------------------------------


@app.command()
def kernels(
    sizes: Annotated[str, typer.Option(help="Vector lengths d, separated by commas.")] = "1e4,1e6,2.5e7",
    ops: Annotated[str, typer.Option(help="Ops, separated by commas; patterns like 'client_*' are welcome.")] = "*",
    threads: Threads = None,
    rounds: Rounds = 7,
    backend: Annotated[str | None, typer.Option(help="A backend of the device. Default: the fastest here.")] = None,
    device: Device = "cpu",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all measurements as JSON rows.")] = None,
    plot: Plot = None,
) -> None:
    """Time every op beside torch.optim, optax and this machine's streaming bound.

    All contenders of an op take turns, so that ratios survive a noisy machine. On a card the clock is read when the
    card is done, and the bound is torch's update of as many bytes in place.

    Example: fastfed bench kernels --sizes 1e6 --ops 'server_*' --json out/kernels.json --plot out/kernels.png
    """
    _need_benchmark_package()
    plan = _kernels_plan(_parse_sizes(sizes), ops, rounds, threads, backend, _place(device))
    from ...bench.kernels import run as kernel_bench

    shown = console()
    with told_plainly(RuntimeError, MemoryError, OSError):
        with bouts(shown, len(plan.bouts), lambda line: "d = " in line) as tell:
            rows = list(kernel_bench.run(plan, tell))
        _show_rows(rows, shown)
        if json_file is not None:
            kernel_bench.save(rows, json_file)
            shown.print(f"Rows: {json_file}")
        if plot is not None:
            from ...bench.kernels import plot as kernel_plot

            kernel_plot.save(rows, plot)
            shown.print(f"Picture: {plot}")


def _parse_sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(float(part)) for part in text.split(","))
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"must be numbers like 1e4,1e6, got {text!r}", param_hint="--sizes") from None
    if not sizes or min(sizes) < 1:
        raise typer.BadParameter(f"must be at least 1, got {text!r}", param_hint="--sizes")
    return sizes


def _kernels_plan(
    sizes: tuple[int, ...], ops: str, rounds: int, threads: int | None, backend: str | None, place: Place
) -> Plan:
    import torch

    from ...bench.kernels import run as kernel_bench
    from ...kernels import BackendUnavailable

    try:
        chosen = kernel_bench.choose_ops([part.strip() for part in ops.split(",")])
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--ops") from None
    try:
        with told_plainly(BackendUnavailable):
            name = kernel_bench.choose_backend(backend, place.device)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--backend") from None
    return kernel_bench.Plan(sizes, chosen, rounds, threads or torch.get_num_threads(), name, place)


def _show_rows(rows: list[Row], shown: Console) -> None:
    from ...bench.kernels import run as kernel_bench
    from ...bench.kernels import table, targets

    if any(row.size != kernel_bench.LATENCY_SIZE for row in rows):
        shown.print(table.speed(rows, kernel_bench.LATENCY_SIZE))
    shown.print(table.latency(rows, kernel_bench.LATENCY_SIZE))
    if rows[0].device == "cpu":  # promises are for the host
        shown.print(table.verdicts(targets.judge(rows)))
    _show_place(rows[0], shown)


def _show_place(row: Row | RoundRow, shown: Console) -> None:
    card = "" if row.device == "cpu" else f"{row.device}; "
    shown.print(f"{card}{row.machine}; {row.threads} threads; {row.versions}", highlight=False)


# ---- rounds ---------------------------------------------------------------------------------------------------------


@app.command("rounds")
def whole_rounds(
    workloads: Annotated[str, typer.Option(help="Workloads, separated by commas; patterns like 'W*' too.")] = "*",
    scale: Annotated[float, typer.Option(min=1e-4, max=1.0, help="Shrinks every cohort, as in 0.1.")] = 1.0,
    threads: Threads = None,
    rounds: Rounds = 7,
    scaling: Annotated[bool, typer.Option("--scaling", help="Also W1, W2 with 10 to 10,000 clients.")] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Instead: where the seconds go, by layer and by room.")
    ] = False,
    device: Device = "cpu",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all measurements as JSON.")] = None,
    plot: Plot = None,
) -> None:
    """Time whole rounds beside a plain PyTorch client loop and torch.func.vmap, over the cohort at once and in chunks.

    Clients train with SGD, the server steps with FedAdam. All contenders of a workload see the same batches, must agree
    about the aggregate before any is timed, and take turns. On a card executor 'device' is timed, 'batched' beside it,
    and the clock is read when the card is done.

    Workloads: W1 softmax regression, W2 MLP, W3 EMNIST CNN, LSTM Shakespeare, AE EMNIST autoencoder, SO-LR sparse
    logistic regression, ResNet ResNet-18 with group norm, one client.

    With --profile, FastFed's rounds alone, those of bench peers among them (W2x5, ResNet10, ViT): seconds per layer and
    per room of a whole simulation, and how much of a round the machine's peaks would take.

    Example: fastfed bench rounds --workloads W1,W2 --scale 0.1 --json out/rounds.json --plot out/rounds.png
    """
    _need_benchmark_package()
    if profile:
        _profile_rounds(workloads, scale, rounds, threads, json_file, {"scaling": scaling, "plot": plot}, device)
        return
    plan = _rounds_plan(workloads, scale, rounds, threads, scaling, _place(device))
    from ...bench.rounds import run as round_bench

    shown = console()
    with told_plainly(RuntimeError, MemoryError, OSError, ValueError):
        with bouts(shown, plan.bouts) as tell:
            results = round_bench.run(plan, tell)
        _show_rounds(results, shown)
        if json_file is not None:
            round_bench.save(results, json_file)
            shown.print(f"Rows: {json_file}")
        if plot is not None:
            from ...bench.rounds import plot as round_plot

            round_plot.save(results.rows, plot)
            shown.print(f"Picture: {plot}")


def _profile_rounds(
    workloads: str,
    scale: float,
    rounds: int,
    threads: int | None,
    json_file: Path | None,
    others: Mapping[str, object],
    device: str,
) -> None:
    import torch

    from ...bench.rounds import profile, profile_table

    for name, given in others.items():
        if given:
            raise typer.BadParameter("does not go with --profile", param_hint=f"--{name}")
    if device != "cpu":
        raise typer.BadParameter(
            "is told of the host's engine only, and --device is not the cpu", param_hint="--profile"
        )
    try:
        chosen = profile.choose_workloads([part.strip() for part in workloads.split(",")])
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--workloads") from None
    shown = console()
    with told_plainly(RuntimeError, MemoryError, OSError, ValueError):
        with bouts(shown, len(chosen)) as tell:
            rows = profile.run(chosen, scale, rounds, threads or torch.get_num_threads(), tell)
        for row in rows:
            shown.print(profile_table.layers(row))
        shown.print(profile_table.rooms(rows))
        shown.print(profile_table.bounds(rows))
        for sentence in profile_table.disturbed(rows):
            shown.print(sentence, highlight=False)
        shown.print(f"{rows[0].machine}; {rows[0].threads} threads", highlight=False)
        if json_file is not None:
            profile.save(rows, json_file)
            shown.print(f"Rows: {json_file}")


def _rounds_plan(
    workloads: str, scale: float, rounds: int, threads: int | None, scaling: bool, place: Place
) -> RoundsPlan:
    import torch

    from ...bench.rounds import run as round_bench

    try:
        chosen = round_bench.choose_workloads([part.strip() for part in workloads.split(",")])
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--workloads") from None
    if scaling and place.on_card:
        raise typer.BadParameter("is about threads of the host, and --device is not the cpu", param_hint="--scaling")
    executor = "device" if place.on_card else "native"
    return round_bench.Plan(chosen, scale, rounds, threads or torch.get_num_threads(), scaling, executor, place)


def _show_rounds(results: Results, shown: Console) -> None:
    from ...bench.rounds import table as round_table
    from ...bench.rounds import targets as round_targets

    shown.print(round_table.contenders(results.rows))
    for sentence in (*round_table.skipped(results.rows), *round_table.disturbed(results.rows)):
        shown.print(sentence, highlight=False)
    if results.scaling:
        shown.print(round_table.scaling(results.scaling))
    if results.rows[0].device == "cpu":  # promises are for the host
        shown.print(round_table.verdicts(round_targets.judge(results)))
    _show_place(results.rows[0], shown)


# ---- peers ----------------------------------------------------------------------------------------------------------


@app.command()
def peers(
    workloads: Annotated[str, typer.Option(help="Workloads, separated by commas; patterns like 'W*' too.")] = "*",
    names: Annotated[str, typer.Option("--peers", help="Frameworks, separated by commas; patterns too.")] = "*",
    scale: Annotated[float, typer.Option(min=1e-4, max=1.0, help="Shrinks every cohort, as in 0.1.")] = 1.0,
    turns: Annotated[int, typer.Option(min=1, help="Turns; in each everybody is timed once.")] = 5,
    threads: Threads = None,
    environments: Annotated[
        Path | None, typer.Option(help="Where .venv-pfl and the others are. Default: where make bench-peers puts them.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Real files: qmnist_writers/ and mnist/ are in it.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all measurements as JSON rows.")] = None,
    plot: Plot = None,
) -> None:
    """Time whole rounds of FedAvg beside other frameworks, each in an environment of its own (make bench-peers).

    Frameworks: fedjax, pfl, flower, blazefl, a plain PyTorch loop, torch.func.vmap and jax.vmap. All have the same
    examples, batches, weights and steps, and must agree with FastFed about the model before they are timed; then they
    take turns. Who does not install or does not run is told with its reason.

    Workloads: W1 softmax regression, W2 MLP, W2x5 the same for 5 epochs, W3 EMNIST CNN, LSTM Shakespeare, ResNet10
    ResNet-18 with group norm, AE EMNIST autoencoder, ViT a small vision transformer. Whole tasks, in seconds from a
    process's start to an accuracy: digits, writers (QMNIST's).

    Example: fastfed bench peers --workloads W1,W2 --peers pfl,plain --json out/peers.json --plot out/peers.png
    """
    plan = _peers_plan(workloads, names, scale, turns, threads, environments, data)
    from ...bench.peers import run as peer_bench

    shown = console()
    with told_plainly(RuntimeError, MemoryError, OSError, ValueError):
        with bouts(shown, plan.bouts) as tell:
            results = peer_bench.run(plan, tell)
        _show_peers(results, shown)
        if json_file is not None:
            peer_bench.save(results, json_file)
            shown.print(f"Rows: {json_file}")
        if plot is not None:
            from ...bench.peers import plot as peer_plot

            peer_plot.save(results.rows, plot)
            shown.print(f"Picture: {plot}")
    apart = [f"{row.workload}, {row.peer}" for row in results.rows if row.disagrees]
    if apart:
        raise CommandError(f"another model than FastFed's, so not timed: {'; '.join(apart)}")


def _peers_plan(
    workloads: str,
    names: str,
    scale: float,
    turns: int,
    threads: int | None,
    environments: Path | None,
    data: Path | None,
) -> PeersPlan:
    import torch

    from ...bench.peers import run as peer_bench

    try:
        chosen = peer_bench.choose_workloads([part.strip() for part in workloads.split(",")])
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--workloads") from None
    try:
        frameworks = peer_bench.choose_peers([part.strip() for part in names.split(",")])
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--peers") from None
    given = {"environments": environments, "data": data}
    elsewhere = {name: place for name, place in given.items() if place is not None}
    return peer_bench.Plan(chosen, frameworks, scale, turns, threads or torch.get_num_threads(), **elsewhere)


def _show_peers(results: PeersResults, shown: Console) -> None:
    from ...bench.peers import table, targets
    from ...bench.rounds.table import verdicts

    if results.rows:
        shown.print(table.frameworks(results.rows))
    if results.whole:
        shown.print(table.whole(results.whole))
    for sentence in (*table.skipped(results.rows, results.whole), *table.disturbed(results.rows)):
        shown.print(sentence, highlight=False, soft_wrap=True, markup=False)
    judged = targets.judge(results.rows)
    if judged:
        shown.print(verdicts(judged))
    shown.print(table.place(results.rows, results.whole), highlight=False)
