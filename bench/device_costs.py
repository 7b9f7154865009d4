"""`python -m fastfed.bench.device_costs`: what a round of executor 'device' costs, without a card to run it on.

Launches are the executor's own. Written down, they are compiled for three generations of cards (registers, spills,
tensor-core instructions, residents); run in Triton's interpreter for one client and for two, they tell how many
bytes they move and what they multiply, and how both grow with the clients. From these a round's least time is
calculated: per launch the slowest of memory, second-level cache and tensor cores, then the sum. Nothing of it has been
measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from ..kernels.registry import interpreting
from ..packing import Packing
from ..train.device.engine import terms_of
from ..train.device.lanes import LANES
from .device.host import COHORTS, allocations, launch_row, launch_table, launches_of, seconds_of_rooms
from .device.kernels import LAYER_CASES, compiled, kernel_rows, kernel_table
from .device.rounds import CASES, round_of, run_and_step, steps_of
from .device.stubbed import stubbed_card
from .rounds.workloads import WORKLOADS

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

FEW = (1, 2)  # clients that are counted, for what grows with them
IN_LANES = (2 * LANES, 3 * LANES)  # likewise, for sums over clients

# Bounds of a round on an A100 (seconds): W1 and W2 by the bytes that must pass its memory, W3 by tf32x3 products.
BOUNDS = {"W1": 0.06e-3, "W2": 5.7e-3, "W3": 13.8e-3}


# ---- counted in the interpreter -------------------------------------------------------------------------------------


def few_steps(name: str) -> tuple[int, int]:
    """Two numbers of local steps that tell what a further one costs.

    A convolution reads its own weights from the second step on; a dense first layer, which is updated a step late, from
    the third. (Counting a step of W3 takes the interpreter minutes.)
    """
    return (1, 2) if name == "W3" else (2, 3)


@dataclass
class Moved:
    """One launch: what passes memory (every byte once), what passes the cache, what is multiplied; how many bytes of
    clients' models it touches."""

    kernel: str
    read: float
    written: float
    touched: float
    flops: dict[str, float]
    models: float = 0.0

    def grown(self, other: Moved, between: tuple[int, int], clients: int) -> Moved:
        """With so many clients, from the same launch with fewer, as many as `between` says (self, other)."""
        least, most = between

        def line(few: float, more: float) -> float:
            return few + (clients - least) * (more - few) / (most - least)

        flops = {name: line(n, other.flops[name]) for name, n in self.flops.items()}
        read, written = line(self.read, other.read), line(self.written, other.written)
        models = line(self.models, other.models)
        return Moved(self.kernel, read, written, line(self.touched, other.touched), flops, models)


def count(name: str, rule: str, clients: int, steps: int) -> list[Moved]:
    """The launches of a round, counted while the interpreter runs them."""
    from ..kernels.triton.counted import counted

    executor, work = round_of(name, rule, clients, steps)
    with counted() as launches:
        run_and_step(executor, work)
    return _moved(launches)


def _moved(launches: list[Any]) -> list[Moved]:
    return [
        Moved(
            kernel=c.kernel,
            read=c.distinct_read,
            written=c.distinct_written,
            touched=c.bytes_read + c.bytes_written,
            flops=dict(c.flops),
            models=sum(c.by_argument[name] for name in ("x", "models", "sink.x")),
        )
        for c in launches
    ]


def passes_per_step(name: str, counted: dict[str, list[Moved]], parameters: int) -> float:
    """How often a further local step reads or writes the clients' weights."""
    models = {key: sum(m.models for m in launches) for key, launches in counted.items()}
    few, more = (models[f"{FEW[1]}x{n}"] - models[f"{FEW[0]}x{n}"] for n in few_steps(name))
    return (more - few) / (4 * parameters)


def count_sum(name: str, clients: int) -> list[Moved]:
    """The launches that make one sum of the clients' models: with so many that every lane has several."""
    from ..kernels.triton.counted import counted

    executor, work = round_of(name, "SGD", clients, 1)
    terms = terms_of(work)
    part = executor.lane_sum(terms, range(LANES))
    x = executor.program.to_engine(work.start).repeat(clients, 1) + 1
    with counted() as launches:
        part.add(0, x, work.start, {})
    return _moved(launches)


def counts(name: str, rule: str, kept: Path | None) -> dict[str, list[Moved]]:
    """By "clients x steps" (`FEW`, `few_steps`) and "sum of clients"; from an earlier run's file if there is one."""
    file = None if kept is None else kept / f"{name}-{rule}.json"
    if file is None or not file.exists():
        command = [sys.executable, "-m", "fastfed.bench.device_costs", "--count", f"{name},{rule}"]
        env = {**os.environ, "TRITON_INTERPRET": "1", "FASTFED_BACKEND": "triton"}
        found = subprocess.run(
            command,
            env=env,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(found)
    else:
        found = file.read_text()
    return {key: [Moved(**each) for each in launches] for key, launches in json.loads(found).items()}


def launches_of_round(name: str, counted: dict[str, list[Moved]], clients: int, steps: int) -> list[Moved]:
    """All launches of a round with so many clients and steps: those of few steps, one more's as often as needed."""
    fewest = few_steps(name)
    short, long = (
        [few.grown(more, FEW, clients) for few, more in zip(*(counted[f"{c}x{n}"] for c in FEW), strict=True)]
        for n in fewest
    )
    begin, end, step = _difference([m.kernel for m in short], [m.kernel for m in long])
    middle = long[begin : begin + step]
    launches = [*short[:begin], *(middle * max(0, steps - fewest[0])), *short[len(short) - end :]]
    sums = {
        few.kernel: few.grown(more, IN_LANES, clients)
        for few, more in zip(*(counted[f"sum of {c}"] for c in IN_LANES), strict=True)
    }
    return [sums.get(launch.kernel, launch) for launch in launches]


def _difference(short: list[str], long: list[str]) -> tuple[int, int, int]:
    """Where a step more was put in: how many launches go before, how many come after, how many it is."""
    begin = 0
    while begin < len(short) and short[begin] == long[begin]:
        begin += 1
    end = len(short) - begin
    if short[begin:] != long[len(long) - end :]:
        raise ValueError(f"launches: a step more must be launches more in one place, got {short} and {long}")
    return begin, end, len(long) - len(short)


def programs_of_round(name: str, rule: str) -> list[tuple[str, int]]:
    """Kernel and number of programs of every launch of a round."""
    from ..kernels.triton.launch import recorded

    with stubbed_card(), recorded() as launches:
        executor, work = round_of(name, rule, WORKLOADS[name].clients, steps_of(name))
        run_and_step(executor, work)
    return [(item.kernel.__name__, item.programs) for item in launches]


# ---- the table ------------------------------------------------------------------------------------------------------


def seconds(moved: Moved, programs: int, card: str) -> float:
    """The least time of a launch."""
    from ..kernels.triton.cards import CARDS, Cost

    return Cost(moved.read, moved.written, moved.flops, programs, moved.touched).seconds(CARDS[card])


def row(name: str, rule: str, kept: Path | None) -> dict[str, Any]:
    """What is known of one workload with one rule."""
    clients, steps = WORKLOADS[name].clients, steps_of(name)
    counted = counts(name, rule, kept)
    launches = launches_of_round(name, counted, clients, steps)
    programs = programs_of_round(name, rule)
    if [kernel for kernel, _ in programs] != [m.kernel for m in launches]:
        raise ValueError(f"launches: counted {[m.kernel for m in launches]}, made {[kernel for kernel, _ in programs]}")
    sizes = [count for _, count in programs]
    few, many = launches_of(name, rule, COHORTS[0]), launches_of(name, rule, clients)
    kernels = list(compiled(name, rule))
    return {
        "workload": name,
        "rule": rule,
        "clients": clients,
        "launches_per_step": many.per_step,
        "launches_per_round": many.per_round,
        "same_for_10_clients": few == many,
        "torch_operations_per_step": many.torch_per_step,
        "torch_operations_per_round": many.torch_per_round,
        "host_seconds": seconds_of_rooms(name, rule, clients)["round"],
        "bytes_read": sum(m.read for m in launches),
        "bytes_written": sum(m.written for m in launches),
        "flops": sum(sum(m.flops.values()) for m in launches),
        "seconds_calculated": {
            card: sum(seconds(m, n, card) for m, n in zip(launches, sizes, strict=True))
            for card in ("A100", "H100", "B200")
        },
        "bound_seconds": BOUNDS[name],
        "passes_per_step": passes_per_step(name, counted, Packing.of(WORKLOADS[name].make_module()).parameters),
        "allocations_of_10_clients": allocations(name, rule),
        "spilled": max(k.spilled for k in kernels),
        "kernels": [asdict(k) for k in kernels],
        "by_kernel": _by_kernel(launches, sizes),
    }


def _by_kernel(launches: list[Moved], sizes: list[int]) -> dict[str, dict[str, float]]:
    """Sums over the launches of each kernel of a round."""
    found: dict[str, dict[str, float]] = {}
    for m, programs in zip(launches, sizes, strict=True):
        one = found.setdefault(m.kernel, {"launches": 0, "bytes": 0.0, "flops": 0.0, "seconds_A100": 0.0})
        one["launches"] += 1
        one["bytes"] += m.read + m.written
        one["flops"] += sum(m.flops.values())
        one["seconds_A100"] += seconds(m, programs, "A100")
    return found


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="A round of executor 'device', calculated; no card has been measured")
    for heading in (
        "workload", "rule", "clients", "launches/step", "launches/round", "torch ops/step", "torch ops/round",
        "host ms", "passes/step", "GB", "GFLOP", "A100 ms", "bound ms", "A100/bound", "H100 ms", "spilled",
    ):  # fmt: skip
        table.add_column(heading, justify="right")
    for r in rows:
        a100, h100, bound = (r["seconds_calculated"]["A100"], r["seconds_calculated"]["H100"], r["bound_seconds"])
        table.add_row(
            r["workload"], r["rule"], f"{r['clients']:,}", str(r["launches_per_step"]), str(r["launches_per_round"]),
            str(r["torch_operations_per_step"]), str(r["torch_operations_per_round"]), f"{1e3 * r['host_seconds']:.2f}",
            f"{r['passes_per_step']:.2f}",
            f"{(r['bytes_read'] + r['bytes_written']) / 1e9:.3f}", f"{r['flops'] / 1e9:.1f}", f"{1e3 * a100:.3f}",
            f"{1e3 * bound:.2f}", f"{a100 / bound:.2f}x", f"{1e3 * h100:.3f}", str(r["spilled"]),
        )  # fmt: skip
    return table


@app.command()
def main(
    only: Annotated[str, typer.Option(help="Cases such as W2,SGD; default: all.")] = "",
    json_file: Annotated[Path | None, typer.Option("--json", help="Writes the rows there.")] = None,
    keep: Annotated[
        Path | None, typer.Option(help="Keeps counts in this folder, and reads those that it holds.")
    ] = None,
    launches: Annotated[
        bool, typer.Option("--launches", help="Only launches and the host's time: minutes, without the interpreter.")
    ] = False,
    layers: Annotated[
        bool, typer.Option("--layers", help="Only compiles the kernels of the layers that the workloads do not have.")
    ] = False,
    count_case: Annotated[str, typer.Option("--count", hidden=True)] = "",
) -> None:
    """Count launches, bytes and products of a round, and calculate its least time."""
    if count_case:
        name, rule = count_case.split(",")
        found = {f"{c}x{n}": count(name, rule, c, n) for c in FEW for n in few_steps(name)}
        found |= {f"sum of {c}": count_sum(name, c) for c in IN_LANES}
        print(json.dumps({key: [asdict(m) for m in launches] for key, launches in found.items()}))
        return
    if interpreting():
        raise typer.BadParameter(
            "TRITON_INTERPRET is set, but kernels are compiled here; it runs the interpreter itself"
        )
    known = LAYER_CASES if layers else CASES
    wanted = [case for case in known if only in ("", ",".join(case))]
    if not wanted:
        raise typer.BadParameter(f"must be one of {'; '.join(','.join(c) for c in known)}", param_hint="--only")
    console = Console()
    console.width = max(console.width, 170)
    if layers:
        rows = kernel_rows(wanted)
        console.print(kernel_table(rows))
    elif launches:
        rows = [launch_row(name, rule) for name, rule in wanted]
        console.print(launch_table(rows))
    else:
        rows = [row(name, rule, keep) for name, rule in wanted]
        console.print(_table(rows))
        for r in rows:
            sizes = ", ".join(f"{size:,}" for size in r["allocations_of_10_clients"]) or "none"
            console.print(
                f"{r['workload']} {r['rule']}: allocated as large as 10 clients' models or larger: {sizes} bytes"
            )
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    torch.set_num_threads(1)
    app()
