"""The ops that `fastfed bench kernels` times: the arrays each must move, how to call it, and its peers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ... import kernels
from ...kernels.table import ClientRule
from ...packing import Packing
from ..common.place import CPU
from ..common.timing import Call
from ..peers import optimizers as peers

MOST_DELTAS = 1 << 29  # numbers in a (clients, d) buffer of deltas, 2 GiB: bigger cases get a smaller d


@dataclass
class Bout:
    """One op at one size: `ours` and `others` are ready to call; `reads` holds arrays the bound's probe may share."""

    d: int
    ours: Call
    others: dict[str, Call] = field(default_factory=dict)
    reads: list[Tensor] | None = None


@dataclass(frozen=True)
class Case:
    """One op: it must read `reads` arrays and update `updates` more; `prepare(size, backend, device)` makes a bout."""

    name: str
    reads: int
    updates: int
    prepare: Callable[[int, str, torch.device], Bout]


def _vector(d: int, seed: int, device: torch.device = CPU) -> Tensor:
    return torch.randn(d, generator=torch.Generator().manual_seed(seed)).to(device)


def _eager(step: Callable[[str], Call]) -> dict[str, Call]:
    """Where nobody else offers the rule: FastFed's own reference, which is plain torch."""
    return {"plain torch": step("reference")}


# ---- server and client rules ----------------------------------------------------------------------------------------


def _is_plain(rule: ClientRule) -> bool:
    """Whether a step of it is one pass over whole vectors."""
    return rule.cover is None and rule.step_size is None


def _server(rule: str, name: str = "", **options: Any) -> Case:
    def prepare(size: int, backend: str, device: torch.device) -> Bout:
        x, delta = _vector(size, 1, device), _vector(size, 2, device)

        def step(backend: str) -> Call:
            own = x.clone()
            state = kernels.server_state(rule, own, **options)
            return lambda: kernels.server_step(rule, own, delta, state, lr=1e-3, backend=backend, **options)

        others = {} if name else peers.of_rule(rule, x, delta)
        return Bout(size, step(backend), others or _eager(step))

    moments = kernels.server_state(rule, torch.zeros(1), **options)  # without m where beta1 is 0
    return Case(f"server_{name or rule}", 1, 1 + len(moments), prepare)


def _client(rule: str, reads: int, **options: Any) -> Case:
    def prepare(size: int, backend: str, device: torch.device) -> Bout:
        x, grad = _vector(size, 1, device), _vector(size, 2, device)

        def step(backend: str) -> Call:
            own = x.clone()
            state = kernels.client_state(rule, own)
            return lambda: kernels.client_step(rule, own, grad, state, backend=backend, **options)

        return Bout(size, step(backend), peers.of_rule(rule, x, grad) or _eager(step))

    return Case(f"client_{rule}", reads, 1 + len(kernels.CLIENT_RULES[rule].vectors), prepare)


def _delta_sgd() -> Case:
    """The gradient's sign alternates and gamma is 4, at which the rule's step size neither grows nor shrinks."""

    def prepare(size: int, backend: str, device: torch.device) -> Bout:
        x, grad = _vector(size, 1, device), _vector(size, 2, device)

        def step(backend: str) -> Call:
            own, signs = x.clone(), itertools.cycle((grad, -grad))
            state = kernels.client_state("delta_sgd", own)
            return lambda: kernels.client_step("delta_sgd", own, next(signs), state, gamma=4.0, backend=backend)

        return Bout(size, step(backend), _eager(step))

    # One pass compares two gradients; the next reads one again, moves x and keeps the gradient.
    return Case("client_delta_sgd", 3, 2, prepare)


def _cover(rule: str, reads: int, updates: int) -> Case:
    def prepare(size: int, backend: str, device: torch.device) -> Bout:
        side = peers.square_side(size)
        packing = Packing.from_shapes({"weight": (side, side)})
        d = packing.size
        x, grad = _vector(d, 1, device), _vector(d, 2, device)

        def step(backend: str) -> Call:
            own = x.clone()
            state = kernels.client_state(rule, own, packing=packing)
            return lambda: kernels.client_step(rule, own, grad, state, lr=1e-3, backend=backend)

        square = slice(0, side * side)
        others = peers.of_rule(rule, x[square].view(side, side), grad[square].view(side, side))
        return Bout(d, step(backend), others or _eager(step))

    return Case(f"client_{rule}", reads, updates, prepare)


# ---- sums, norms, random numbers ------------------------------------------------------------------------------------


def _deltas(clients: int, size: int, device: torch.device = CPU) -> tuple[Tensor, Tensor]:
    d = min(size, MOST_DELTAS // clients)
    deltas = torch.empty(clients, d, device=device)
    for row, scale in enumerate(torch.linspace(0.5, 1.5, clients).tolist()):
        torch.mul(_vector(d, 2, device) if row == 0 else deltas[0], scale, out=deltas[row])
    return deltas, torch.full((clients,), 1 / clients, device=device)


def _aggregate(clients: int) -> Case:
    def prepare(size: int, backend: str, device: torch.device) -> Bout:
        deltas, weights = _deltas(clients, size, device)
        d = deltas.shape[1]
        x = _vector(d, 1, device)
        state = kernels.server_state("adam", x)
        apart, apart_state = x.clone(), kernels.server_state("adam", x)
        total = torch.empty(d, device=device)

        def ours() -> None:
            kernels.aggregate_step("adam", x, deltas, weights, state, lr=1e-3, backend=backend)

        def in_two_steps() -> None:
            torch.mv(deltas.T, weights, out=total)
            kernels.server_step("adam", apart, total, apart_state, lr=1e-3, backend=backend)

        return Bout(d, ours, {"torch.mv + server_step": in_two_steps}, list(deltas))

    return Case(f"aggregate_adam_{clients}", clients, 3, prepare)


def _weighted_sum(clients: int) -> Case:
    def prepare(size: int, backend: str, device: torch.device) -> Bout:
        deltas, weights = _deltas(clients, size, device)
        out = torch.empty(deltas.shape[1], device=device)

        def ours() -> None:
            kernels.weighted_sum(deltas, weights, out, backend=backend)

        return Bout(deltas.shape[1], ours, {"torch.mv": peers.matrix_vector(deltas, weights)}, list(deltas))

    return Case(f"weighted_sum_{clients}", clients, 1, prepare)


def _trimmed_mean(clients: int) -> Case:
    """The median, of an odd number of clients: torch.median takes the lower of two middle ones. FastFed's time is the
    same for any trim. Deltas are drawn each for itself: a sort of multiples of one another would be half done."""

    def prepare(size: int, backend: str, device: torch.device) -> Bout:
        deltas, _ = _deltas(clients, size, device)
        for row, delta in enumerate(deltas):
            delta.copy_(_vector(len(delta), row, device))
        out = torch.empty(deltas.shape[1], device=device)

        def ours() -> None:
            kernels.trimmed_mean(deltas, clients // 2, out, backend=backend)

        return Bout(deltas.shape[1], ours, peers.medians(deltas), list(deltas))

    return Case(f"trimmed_mean_{clients}", clients, 1, prepare)


def _norms(size: int, backend: str, device: torch.device) -> Bout:
    x = _vector(size, 1, device)
    return Bout(size, lambda: kernels.norms(x, backend=backend), {"torch": peers.norm(x)})


def _clip(size: int, backend: str, device: torch.device) -> Bout:
    """Each call's limit lies a little under the last, so that every call has something to scale down."""
    x = _vector(size, 1, device)
    limit = float(x.norm())
    other = peers.clip(x, limit / 2)
    limits = (limit * 0.99999**step for step in itertools.count(1))
    return Bout(size, lambda: kernels.clip(x, next(limits), backend=backend), {"torch": other})


def _random(kind: str) -> Case:
    def prepare(size: int, backend: str, device: torch.device) -> Bout:
        draw, stream = getattr(kernels, kind), kernels.Stream(seed=0)
        others = {"torch": peers.draws(kind, size, device)}
        return Bout(size, lambda: draw(size, stream, device=device, backend=backend), others)

    return Case(kind, 0, 1, prepare)


CASES: dict[str, Case] = {
    case.name: case
    for case in (
        *map(_server, kernels.SERVER_RULES),
        _server("adagrad", name="adagrad_m", beta1=0.9),
        *(_client(name, 1, lr=1e-3) for name, rule in kernels.CLIENT_RULES.items() if _is_plain(rule)),
        _delta_sgd(),
        _client("sps", 2, loss=1.0),  # a pass for the gradient's norm, then the step
        _cover("sm3", 1, 1),
        _cover("sm3_1", 2, 1),  # its sets look at the whole gradient before the step does
        _cover("sm3_adam", 1, 2),
        _aggregate(8),
        _aggregate(64),
        _weighted_sum(8),
        _weighted_sum(64),
        _trimmed_mean(9),
        _trimmed_mean(65),
        Case("norms", 1, 0, _norms),
        Case("clip", 1, 1, _clip),  # a pass for the norm, then the scaling
        _random("uniform"),
        _random("normal"),
    )
}
