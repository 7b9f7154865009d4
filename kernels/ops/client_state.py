"""The state that a client rule starts a round with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .. import check, covers, hosts
from ..table import CLIENT_RULES, COUNTERS, DECAY, NON_NEGATIVE, ClientRule, find_rule
from .common import State

if TYPE_CHECKING:
    from fastfed.packing import Packing


def client_state(
    rule: str,
    x: Tensor,
    *,
    packing: Packing | None = None,
    cover: Sequence[Sequence[int] | Tensor] | None = None,
    v0: float | Tensor | None = None,
    beta1: float = 0.0,
    delay_mode: str = "compact",
    same_batch: bool = False,
) -> State:
    """The state of a client rule at the start of a round, for one client ``x`` (d,) or a batch (clients, d).

    SM3 rules need `packing`, which knows the tensors' shapes (or, on the reference backend, `cover`: a list of index
    sets). `v0` starts the second moment: a number (default 0) or the server's v, shape (d,); an SM3 set starts at the
    largest v0 inside it. `beta1` > 0 gives sm3 and sm3_1 the momentum of their reference implementation.
    `delay_mode` "exact" keeps nu for delayed sm3 and sm3_adam; "compact" (default) uses the cover's bound instead.
    `same_batch` leaves the last gradient of delta_sgd out: `client_step` is then given `previous_grad`. The state is of
    tensors, also for an array of another library.
    """
    entry = find_rule(CLIENT_RULES, rule)
    x, v0 = hosts.read("x", x), hosts.read("v0", v0)
    check.vector("x", x)
    _refuse_foreign_state_options(entry, packing, cover, v0, beta1, delay_mode, same_batch)
    state: State = {name: torch.zeros_like(x) for name in entry.vectors}
    for name in entry.scalars:
        dtype = torch.int64 if name in COUNTERS else torch.float64
        state[name] = torch.zeros(x.shape[:-1], dtype=dtype, device=x.device)
    if entry.step_size == "delta_sgd" and not same_batch:
        state["grad_prev"] = torch.zeros_like(x)
    if beta1 > 0:
        state["m"] = torch.zeros_like(x)
    if delay_mode == "exact":
        state["nu"] = torch.zeros_like(x)
    if entry.cover is not None:
        state.update(_cover_state(x, packing, cover))
    if v0 is not None:
        _start_second_moment(entry, x, state, v0)
    return state


def _refuse_foreign_state_options(
    entry: ClientRule,
    packing: Packing | None,
    cover: object,
    v0: float | Tensor | None,
    beta1: float,
    delay_mode: str,
    same_batch: bool,
) -> None:
    who = f"client rule {entry.name!r}"
    if not DECAY.admits(beta1):
        raise ValueError(f"beta1: must be {DECAY.words}, got {beta1!r}")
    if delay_mode not in ("compact", "exact"):
        raise ValueError(f"delay_mode: must be 'compact' or 'exact', got {delay_mode!r}")
    foreign = {
        "packing": packing is not None and entry.cover is None,
        "cover": cover is not None and entry.cover is None,
        "v0": v0 is not None and not entry.has_second_moment,
        "beta1": beta1 != 0 and (entry.second_moment != "sum" or entry.cover is None),
        "delay_mode": delay_mode == "exact" and entry.cover != "II",
        "same_batch": same_batch and entry.step_size != "delta_sgd",
    }
    for name, is_foreign in foreign.items():
        if is_foreign:
            raise ValueError(f"{name}: {who} keeps nothing that it could change")
    if entry.cover is not None and (packing is None) == (cover is None):
        raise ValueError(f"packing: {who} needs the tensors' shapes: packing=Packing.of(module), or cover=[sets]")


def _cover_state(x: Tensor, packing: Packing | None, sets: Sequence[Sequence[int] | Tensor] | None) -> State:
    """mu at zero, and what its entries stand for: "cover" (axes of packed tensors) or "sets" (explicit)."""
    d = x.shape[-1]
    if packing is not None:
        if packing.size != d:
            raise ValueError(f"packing: describes {packing.size} numbers, x has {d}")
        layout = packing.cover()
        size = covers.decode(layout).mu_size
        return {"mu": x.new_zeros((*x.shape[:-1], size)), "cover": layout}
    if not sets:
        raise ValueError("cover: must hold at least one set")
    members = [torch.as_tensor(indices, dtype=torch.int64, device=x.device).reshape(-1) for indices in sets]
    which = torch.cat([torch.full_like(indices, number) for number, indices in enumerate(members)])
    coordinate = torch.cat(members)
    if coordinate.numel() == 0 or coordinate.min() < 0 or coordinate.max() >= d or coordinate.unique().numel() != d:
        raise ValueError(f"cover: must hold every coordinate 0 .. {d - 1} in at least one set, and no other")
    return {"mu": x.new_zeros((*x.shape[:-1], len(members))), "sets": torch.stack([which, coordinate])}


def _start_second_moment(entry: ClientRule, x: Tensor, state: State, v0: float | Tensor) -> None:
    if isinstance(v0, Tensor):
        check.like("v0", v0, x, x.shape[-1:])
        if v0.is_cpu and not bool((v0 >= 0).all()):  # elsewhere, a look would have to wait
            raise ValueError("v0: must be >= 0 everywhere")
    elif not NON_NEGATIVE.admits(v0):
        raise ValueError(f"v0: must be {NON_NEGATIVE.words} or a tensor, got {v0!r}")
    if "v" in state:
        state["v"].copy_(torch.as_tensor(v0, dtype=x.dtype, device=x.device).expand_as(x))
        return
    if not isinstance(v0, Tensor):
        state["mu"].fill_(v0)
    else:
        state["mu"].copy_(cover_maxima(v0, state).expand_as(state["mu"]))
    if "nu" in state:
        state["nu"].copy_(torch.as_tensor(v0, dtype=x.dtype, device=x.device).expand_as(x))


def cover_maxima(vector: Tensor, state: State) -> Tensor:
    """The largest entry of a non-negative `vector` (d,) inside every cover set of an SM3 state: (sets,)."""
    from ..reference.client_step import cover_of

    mu = state["mu"]
    return cover_of(state, vector[None]).maxima(vector[None], mu.new_zeros((1, mu.shape[-1])))[0]
