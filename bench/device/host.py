"""The host's share of a round of executor 'device': what it launches, and how long that takes it."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from rich.table import Table
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ... import simulation
from ...record.history import ROOMS
from ..rounds.workloads import WORKLOADS
from .rounds import round_of, run_and_step, simulation_of, steps_of
from .stubbed import as_on_the_host, stubbed_card

COHORTS = (10, 1000)  # whose launches are compared
_TIMED = 15  # rounds, after one that is not

# ---- launches -------------------------------------------------------------------------------------------------------

_VIEWS = frozenset(
    """view _unsafe_view expand permute transpose t slice select unsqueeze squeeze detach alias as_strided split unbind
    reshape _reshape_alias empty new_empty empty_like empty_strided unfold lift_fresh split_with_sizes""".split()  # noqa: SIM905
)


class Operations(TorchDispatchMode):
    """Counts torch's own operations that are kernels or copies of a card, whose tensors are those of "meta": what the
    host does with its own is left out."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()
        self.made: list[int] = []  # bytes of new tensors

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, out = func.overloadpacket.__name__, func(*args, **(kwargs or {}))
        if not any(isinstance(leaf, Tensor) and leaf.is_meta for leaf in tree_leaves((args, kwargs, out))):
            return out
        if name not in _VIEWS:
            self.seen[name] += 1
        if isinstance(out, Tensor) and (name not in _VIEWS or "empty" in name) and not name.endswith("_"):
            self.made.append(out.nbytes)
        return out


@dataclass(frozen=True)
class Launches:
    """Launches of FastFed's kernels in a round, the server's step included, and in one more local step; and torch's own
    operations likewise."""

    per_round: int
    per_step: int
    torch_per_round: int
    torch_per_step: int


def launches_of(name: str, rule: str, clients: int) -> Launches:
    """Of clients that train side by side. The tensors hold no numbers: a round that waited for one would fail."""
    ours, torchs = {}, {}
    steps = steps_of(name)
    with stubbed_card("meta") as seen:
        for taken in (steps, steps + 1):
            executor, work = round_of(name, rule, clients, taken, device="meta")
            run_and_step(executor, work)
            seen.clear()
            with Operations() as operations:
                run_and_step(executor, work)
            ours[taken], torchs[taken] = seen.total(), operations.seen.total()
    return Launches(ours[steps], ours[steps + 1] - ours[steps], torchs[steps], torchs[steps + 1] - torchs[steps])


def allocations(name: str, rule: str) -> list[int]:
    """The bytes of what the first round of ten clients allocates that is as large as all their models, or larger."""
    clients = 10
    with stubbed_card("meta"):
        executor, work = round_of(name, rule, clients, 2, device="meta")
        with Operations() as operations:
            executor.run(work)
    return [size for size in operations.made if size >= clients * work.start.nbytes]


# ---- seconds --------------------------------------------------------------------------------------------------------


class _ProcessorClock(simulation._Clock):
    """Processor time by room, not the clock's: neighbours do not count. Plans are made by the host's own ops."""

    @contextmanager
    def __call__(self, room: str) -> Iterator[None]:
        with as_on_the_host() if room == "plan" else nullcontext():
            began = time.process_time()
            yield
            self.seconds[f"seconds_{room}"] += time.process_time() - began


@contextmanager
def _processor_time() -> Iterator[None]:
    """Simulations measure the processor's time."""
    clock = simulation._Clock
    simulation._Clock = _ProcessorClock  # type: ignore[misc]
    try:
        yield
    finally:
        simulation._Clock = clock  # type: ignore[misc]


def seconds_of_rooms(name: str, rule: str, clients: int) -> dict[str, float]:
    """The host's time of a whole round of a simulation by room, and of all ("round"); medians, kernels left out.

    It is at most this much: of two stand-ins for a card, the quicker one. The CPU computes torch's own operations,
    which a card would do beside the host; for tensors without numbers, torch finds their shapes in Python. On one
    thread: others that wait for work would count as if they worked.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return min((_seconds_on(device, name, rule, clients) for device in ("cpu", "meta")), key=lambda s: s["round"])
    finally:
        torch.set_num_threads(threads)


def _seconds_on(device: str, name: str, rule: str, clients: int) -> dict[str, float]:
    with stubbed_card(device), _processor_time():
        with as_on_the_host():
            sim = simulation_of(name, rule, clients, device)
        sim.step()
        taken: dict[str, list[float]] = {room: [] for room in (*ROOMS, "round")}
        for _ in range(_TIMED):
            began = time.process_time()
            row = sim.step()
            taken["round"].append(time.process_time() - began)
            for room in ROOMS:
                taken[room].append(row[f"seconds_{room}"])
    return {room: statistics.median(seconds) for room, seconds in taken.items()}


# ---- the table ------------------------------------------------------------------------------------------------------


def launch_row(name: str, rule: str) -> dict[str, Any]:
    """What the host does for one workload with one rule. Timed with the few clients, too: what is left of it then does
    not grow with them."""
    few, many = (launches_of(name, rule, clients) for clients in COHORTS)
    own = WORKLOADS[name].clients
    return {
        "workload": name,
        "rule": rule,
        "launches_per_step": many.per_step,
        "launches_per_round": many.per_round,
        "torch_operations_per_step": many.torch_per_step,
        "torch_operations_per_round": many.torch_per_round,
        "same_for_10_and_1000_clients": few == many,
        "clients_timed": own,
        "host_seconds": seconds_of_rooms(name, rule, own),
        "host_seconds_of_10_clients": seconds_of_rooms(name, rule, COHORTS[0]),
    }


def launch_table(rows: list[dict[str, Any]]) -> Table:
    """Rows of `launch_row` for people."""
    table = Table(title="The host's share of a round of executor 'device': kernels counted, not run")
    for heading in (
        "workload", "rule", "launches/step", "launches/round", "torch ops/step", "torch ops/round", "10 and 1,000",
        "clients", *(f"{room} ms" for room in ROOMS), "round ms", "10 clients ms",
    ):  # fmt: skip
        table.add_column(heading, justify="right")
    for r in rows:
        rooms = r["host_seconds"]
        table.add_row(
            r["workload"], r["rule"], str(r["launches_per_step"]), str(r["launches_per_round"]),
            str(r["torch_operations_per_step"]), str(r["torch_operations_per_round"]),
            "the same" if r["same_for_10_and_1000_clients"] else "DIFFERENT", f"{r['clients_timed']:,}",
            *(f"{1e3 * rooms[room]:.2f}" for room in (*ROOMS, "round")),
            f"{1e3 * r['host_seconds_of_10_clients']['round']:.2f}",
        )  # fmt: skip
    return table
