"""What FastFed promises of its kernels, as one table, and how a run compares: misses are shown like everything else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .cases import CASES
from .rows import Row

LARGE, MIDDLE, SMALL = 25_000_000, 1_000_000, 1_000


@dataclass(frozen=True)
class Target:
    """At nominal `size`, the worst of `ops` must reach `value`.

    `measure` is "bound" (share of the streaming bound, at least), "latency" (seconds a call, at most), or the name of a
    peer (times as fast as it, at least).
    """

    ops: tuple[str, ...]
    size: int
    measure: str
    value: float

    @property
    def words(self) -> str:
        wanted = {
            "bound": f">= {self.value:.0%} of the bound",
            "latency": f"<= {self.value * 1e6:.0f} us a call",
        }.get(self.measure, f">= {self.value:g}x {self.measure}")
        return wanted


_EVERY_STEP = tuple(name for name in CASES if name.startswith(("server_", "client_")))
_STREAMING = (
    "server_adam",
    "server_yogi",
    "server_ams",
    "server_adagrad",
    "server_adagrad_m",
    "client_adam",
)

TARGETS: tuple[Target, ...] = (
    *(Target((op,), LARGE, "bound", 0.90) for op in _STREAMING),
    Target(("client_sm3",), LARGE, "bound", 0.85),
    Target(("client_adam",), LARGE, "torch fused", 0.95),
    Target(("server_yogi",), LARGE, "optax jit", 1.7),
    Target(("client_sm3",), LARGE, "optax jit", 6.0),
    Target(("server_ams",), LARGE, "torch foreach", 3.0),
    Target(_EVERY_STEP, SMALL, "latency", 10e-6),
    Target(("norms", "clip", "uniform", "normal"), SMALL, "latency", 10e-6),
    *(Target((f"aggregate_adam_{n}",), MIDDLE, "bound", 0.90) for n in (8, 64)),
    *(Target((f"aggregate_adam_{n}",), MIDDLE, "torch.mv + server_step", 1.0) for n in (8, 64)),
)


@dataclass(frozen=True)
class Verdict:
    """A target beside what was measured at `op`, the worst of its ops; None where the run has no answer."""

    target: Target
    op: str
    measured: float | None

    @property
    def met(self) -> bool | None:
        if self.measured is None:
            return None
        if self.target.measure == "latency":
            return self.measured <= self.target.value
        return self.measured >= self.target.value


def judge(rows: Sequence[Row]) -> list[Verdict]:
    """Every target's verdict on a run."""
    return [_judge(target, rows) for target in TARGETS]


def _judge(target: Target, rows: Sequence[Row]) -> Verdict:
    found = {op: value for op in target.ops if (value := _measured(target, op, rows)) is not None}
    if len(found) < len(target.ops):
        missing = [op for op in target.ops if op not in found]
        return Verdict(target, target.ops[0] if len(target.ops) == 1 else f"{len(missing)} ops not run", None)
    worst = (max if target.measure == "latency" else min)(found, key=found.__getitem__)
    return Verdict(target, worst, found[worst])


def _measured(target: Target, op: str, rows: Sequence[Row]) -> float | None:
    at_size = {row.backend: row for row in rows if row.op == op and row.size == target.size}
    ours = next((row for row in at_size.values() if row.kind == "fastfed"), None)
    if ours is None:
        return None
    if target.measure == "latency":
        return ours.median
    if target.measure == "bound":
        return ours.of_bound
    peer = at_size.get(target.measure)
    return None if peer is None else peer.median / ours.median
