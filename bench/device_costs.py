"""`python -m fastfed.bench.device_costs`: what a round of executor 'device' costs, without a card to run it on.

Launches are the executor's own. Written down, they are compiled for three generations of cards (registers, spills,
tensor-core instructions, residents); run in Triton's interpreter for two clients and for three, they tell how many
bytes they move and what they multiply, and how both grow with the clients. From these a round's least time is
calculated: per launch the slowest of memory, second-level cache and tensor cores, then the sum. Nothing of it has been
measured.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch.utils._python_dispatch import TorchDispatchMode

from ..clients import SGD, SM3, Adam, Client
from ..data import Examples, Pixels
from ..kernels import registry
from ..kernels.registry import interpreting
from ..packing import Packing
from ..train.device.engine import Device, terms_of
from ..train.device.lanes import LANES, outcome
from ..train.work import RoundWork
from .workloads import WORKLOADS, Workload

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

RULES: dict[str, Client] = {"SGD": SGD(lr=0.1), "Adam": Adam(lr=0.01), "SM3": SM3(lr=0.01)}
CASES = [(workload, rule) for workload in ("W1", "W2", "W3") for rule in RULES]
CAPABILITIES = (80, 90, 100)
FEW = (2, 3)  # clients that are counted, for what grows with them
IN_LANES = (2 * LANES, 3 * LANES)  # likewise, for sums over clients

# Bounds of a round on an A100 (seconds): W1 and W2 by the bytes that must pass its memory, W3 by tf32x3 products.
BOUNDS = {"W1": 0.06e-3, "W2": 5.7e-3, "W3": 13.8e-3}


# ---- rounds ---------------------------------------------------------------------------------------------------------


def round_of(name: str, rule: str, clients: int, steps: int) -> tuple[Device, RoundWork]:
    """The executor of a workload, and a round of it; inside `recorded` or `launches(run=False)`, or interpreting."""
    workload: Workload = WORKLOADS[name]
    module = workload.make_module()
    data = _in_bytes(workload.data(min(clients, 10) * workload.examples))
    executor = Device(module, workload.loss, data, device="cpu", memory=1 << 62)
    work = workload.work(Packing.of(module).pack(module), clients, min(clients, 10), steps)
    return executor, replace(work, clients=(RULES[rule],))


def _in_bytes(examples: Examples) -> Examples:
    """The same labels, and images as a store holds them."""
    numbers = len(examples)
    images = torch.randint(256, (numbers, 1, 28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    return Examples(Pixels(images), examples.targets)


def steps_of(name: str) -> int:
    """The local steps of a workload."""
    return -(-WORKLOADS[name].examples // WORKLOADS[name].batch)


@contextmanager
def as_on_a_card() -> Iterator[None]:
    """Ops pick Triton's kernels for CPU tensors, too: nothing runs."""
    backends, default = dict(registry.BACKENDS), registry.default
    registry.BACKENDS["triton"] = registry.Backend("triton", lambda: None, lambda: ("cpu",))
    registry.default = "triton"
    registry._asked.cache_clear()
    try:
        yield
    finally:
        registry.BACKENDS.update(backends)
        registry.default = default
        registry._asked.cache_clear()


# ---- counted in the interpreter -------------------------------------------------------------------------------------


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
        executor.run(work)
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


def passes_per_step(counted: dict[str, list[Moved]], parameters: int) -> float:
    """How often a further local step reads or writes the clients' weights."""
    models = {key: sum(m.models for m in launches) for key, launches in counted.items()}
    few, more = (models[f"{FEW[1]}x{n}"] - models[f"{FEW[0]}x{n}"] for n in (2, 3))
    return (more - few) / (4 * parameters)


def allocations(name: str, rule: str) -> list[tuple[int, ...]]:
    """The shapes of what a round allocates that is as large as all clients' models, or larger."""
    from ..kernels.triton.launch import launches

    with as_on_a_card(), launches(run=False):
        executor, work = round_of(name, rule, 10, 2)
        executor.run(work)
        with Operations() as operations:
            executor.run(work)
    return [shape for shape in operations.made if math.prod(shape) >= 10 * work.start.numel()]


def count_sum(name: str, clients: int) -> list[Moved]:
    """The launches that make one sum of the clients' models: with so many that every lane has several."""
    from ..kernels.triton.counted import counted

    executor, work = round_of(name, "SGD", clients, 1)
    terms = terms_of(work)
    part = executor.lane_sum(terms, range(LANES))
    x = executor.program.to_engine(work.start).repeat(clients, 1) + 1
    with counted() as launches:
        part.add(0, x, work.start, {})
        outcome([part])
    return _moved(launches)


def counts(name: str, rule: str, kept: Path | None) -> dict[str, list[Moved]]:
    """By "clients x steps" (two and three of each) and "sum of clients"; from an earlier run's file if there is one."""
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


def launches_of_round(counted: dict[str, list[Moved]], clients: int, steps: int) -> list[Moved]:
    """All launches of a round with so many clients and steps: those of two steps, the third's as often as needed."""
    short, long = (
        [few.grown(more, FEW, clients) for few, more in zip(*(counted[f"{c}x{n}"] for c in FEW), strict=True)]
        for n in (2, 3)
    )
    begin, end, step = _difference([m.kernel for m in short], [m.kernel for m in long])
    middle = long[begin : begin + step]
    launches = [*short[:begin], *(middle * max(0, steps - 2)), *short[len(short) - end :]]
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

    with as_on_a_card(), recorded() as launches:
        executor, work = round_of(name, rule, WORKLOADS[name].clients, steps_of(name))
        executor.run(work)
    return [(item.kernel.__name__, item.programs) for item in launches]


# ---- launches and the host ------------------------------------------------------------------------------------------

_VIEWS = frozenset(
    """view _unsafe_view expand permute transpose t slice select unsqueeze squeeze detach alias as_strided split unbind
    reshape _reshape_alias empty new_empty empty_like empty_strided unfold lift_fresh split_with_sizes""".split()  # noqa: SIM905
)


class Operations(TorchDispatchMode):
    """Counts torch's own operations that would be kernels or copies on a device."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()
        self.made: list[tuple[int, ...]] = []  # shapes of new tensors

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, out = func.overloadpacket.__name__, func(*args, **(kwargs or {}))
        if name not in _VIEWS:
            self.seen[name] += 1
        if isinstance(out, torch.Tensor) and (name not in _VIEWS or "empty" in name) and not name.endswith("_"):
            self.made.append(tuple(out.shape))
        return out


@dataclass
class Host:
    """Launches of FastFed's kernels in a round and in one more step, torch's operations likewise, and the host's time
    of a round with the kernels left out."""

    per_round: int
    per_step: int
    torch_per_round: int
    torch_per_step: int
    seconds: float


def host(name: str, rule: str, clients: int) -> Host:
    """With kernels counted, not run."""
    from ..kernels.triton.launch import launches

    found = {}
    with as_on_a_card(), launches(run=False) as seen:
        for steps in (steps_of(name), steps_of(name) + 1):
            executor, work = round_of(name, rule, clients, steps)
            executor.run(work)
            seen.clear()
            with Operations() as operations:
                executor.run(work)
            found[steps] = (seen.total(), operations.seen.total())
        executor, work = round_of(name, rule, clients, steps_of(name))
        executor.run(work)
        taken = []
        for _ in range(7):
            begin = time.process_time()  # the processor's, not the clock's: neighbours do not count
            executor.run(work)
            taken.append(time.process_time() - begin)
    (ours, torchs), (more, torchs_more) = found.values()
    return Host(ours, more - ours, torchs, torchs_more - torchs, sorted(taken)[3])


# ---- compiled -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Compiled:
    """One kernel of a round as compiled for a card."""

    kernel: str
    capability: int
    registers: int
    spilled: int
    shared: int
    resident: int
    occupancy: float
    mma: tuple[str, ...]


def compiled(name: str, rule: str, capabilities: tuple[int, ...] = CAPABILITIES) -> Iterator[Compiled]:
    """Every kernel of a round, in every form in which it occurs."""
    from ..kernels.triton.launch import recorded
    from ..kernels.triton.traffic import traffic_of

    with as_on_a_card(), recorded() as launches:
        executor, work = round_of(name, rule, 2, 2)
        executor.run(work)
    forms = {(item.kernel.__name__, str(item.constants)): item for item in launches}
    for (kernel, _), item in forms.items():
        for capability in capabilities:
            t = traffic_of(item, 1, capability)
            families = tuple(sorted(t.mma_families))
            yield Compiled(
                kernel, capability, t.registers, t.local_bytes, t.shared_bytes, t.resident, t.occupancy, families
            )


# ---- the table ------------------------------------------------------------------------------------------------------


def seconds(moved: Moved, programs: int, card: str) -> float:
    """The least time of a launch."""
    from ..kernels.triton.cards import CARDS, Cost

    return Cost(moved.read, moved.written, moved.flops, programs, moved.touched).seconds(CARDS[card])


def row(name: str, rule: str, kept: Path | None) -> dict[str, Any]:
    """What is known of one workload with one rule."""
    clients, steps = WORKLOADS[name].clients, steps_of(name)
    counted = counts(name, rule, kept)
    launches = launches_of_round(counted, clients, steps)
    programs = programs_of_round(name, rule)
    if [kernel for kernel, _ in programs] != [m.kernel for m in launches]:
        raise ValueError(f"launches: counted {[m.kernel for m in launches]}, made {[kernel for kernel, _ in programs]}")
    sizes = [count for _, count in programs]
    few, many = host(name, rule, 10), host(name, rule, clients)
    kernels = list(compiled(name, rule))
    return {
        "workload": name,
        "rule": rule,
        "clients": clients,
        "launches_per_step": many.per_step,
        "launches_per_round": many.per_round,
        "same_for_10_clients": (few.per_step, few.per_round) == (many.per_step, many.per_round),
        "torch_operations_per_step": many.torch_per_step,
        "torch_operations_per_round": many.torch_per_round,
        "host_seconds": many.seconds,
        "bytes_read": sum(m.read for m in launches),
        "bytes_written": sum(m.written for m in launches),
        "flops": sum(sum(m.flops.values()) for m in launches),
        "seconds_calculated": {
            card: sum(seconds(m, n, card) for m, n in zip(launches, sizes, strict=True))
            for card in ("A100", "H100", "B200")
        },
        "bound_seconds": BOUNDS[name],
        "passes_per_step": passes_per_step(counted, Packing.of(WORKLOADS[name].make_module()).parameters),
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
    count_case: Annotated[str, typer.Option("--count", hidden=True)] = "",
) -> None:
    """Count launches, bytes and products of a round, and calculate its least time."""
    if count_case:
        name, rule = count_case.split(",")
        found = {f"{c}x{n}": count(name, rule, c, n) for c in FEW for n in (2, 3)}
        found |= {f"sum of {c}": count_sum(name, c) for c in IN_LANES}
        print(json.dumps({key: [asdict(m) for m in launches] for key, launches in found.items()}))
        return
    if interpreting():
        raise typer.BadParameter(
            "TRITON_INTERPRET is set, but kernels are compiled here; it runs the interpreter itself"
        )
    wanted = [tuple(only.split(","))] if only else CASES
    unknown = [case for case in wanted if case not in CASES]
    if unknown:
        raise typer.BadParameter(f"must be one of {'; '.join(','.join(c) for c in CASES)}", param_hint="--only")
    rows = [row(name, rule, keep) for name, rule in wanted]
    console = Console()
    console.width = max(console.width, 170)
    console.print(_table(rows))
    for r in rows:
        shapes = ", ".join(str(shape) for shape in r["allocations_of_10_clients"]) or "none"
        console.print(f"{r['workload']} {r['rule']}: allocated as large as 10 clients' models or larger: {shapes}")
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    torch.set_num_threads(1)
    app()
