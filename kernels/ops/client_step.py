"""One local step of one client or of a batch of clients: what it is given is checked, then a backend takes it."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import check, covers, hosts, registry
from ..client_call import ClientCall
from ..table import CLIENT_RULES, COUNTERS, client_numbers
from .common import State, numbers_of


def client_step(
    rule: str,
    x: Tensor,
    grad: Tensor,
    state: State,
    *,
    lr: float | Tensor | None = None,
    loss: float | Tensor | None = None,
    anchor: Tensor | None = None,
    correction: Tensor | None = None,
    previous_grad: Tensor | None = None,
    epoch: int | Tensor | None = None,
    finished: Tensor | None = None,
    backend: str | None = None,
    **options: Any,
) -> None:
    """One local step of one client ``(d,)`` or of a batch ``(clients, d)``: moves `x`, and `state`, in place.

    The gradient that a rule sees is ``grad + weight_decay*x + prox*(x - anchor) + correction``, then scaled down to
    norm `clip`. `anchor` and `correction` have x's shape or, shared by all clients, (d,).

    Per client: `lr` (a number or (clients,)), `loss` (sps only), `epoch` (counted from 1; then `delay` counts epochs,
    not steps), `finished` (bool; those clients are left untouched). delta_sgd made with same_batch takes
    `previous_grad`.

    Options by rule, with defaults: ``lr`` (delta_sgd 0.2, else required), ``momentum`` 0.9, ``beta1`` 0.9, ``beta2``
    0.999 and ``bias_from`` 0 (adam, sm3_adam), ``eps`` 1e-8, ``delay`` 1, ``floor`` 0, ``root_eps`` 0 and ``beta1`` 0
    (sm3, sm3_1), ``gamma`` 2, ``delta`` 0.1, ``theta`` 1, ``grow_first`` False, ``lr_eps`` 0 (delta_sgd), ``c`` 0.5,
    ``f_star`` 0, ``lr_max`` None and ``eps`` 1e-8 (sps), ``weight_decay`` 0, ``prox`` 0, ``clip`` None (all).
    ``bias_from`` is how many steps bias corrections count before the first; infinity: moments are not corrected.
    `loss` is that without the proximal term.
    """
    if not isinstance(x, Tensor):
        x, grad, state = hosts.written("x", x), hosts.read("grad", grad), hosts.state(state)
        lr, loss, epoch = hosts.read("lr", lr), hosts.read("loss", loss), hosts.read("epoch", epoch)
        anchor, correction = hosts.read("anchor", anchor), hosts.read("correction", correction)
        previous_grad, finished = hosts.read("previous_grad", previous_grad), hosts.read("finished", finished)
    lr_per_client = isinstance(lr, Tensor)
    if lr is not None and not lr_per_client:
        options["lr"] = lr
    numbers = numbers_of(client_numbers, options, rule, lr_per_client)
    entry = CLIENT_RULES[rule]
    check.is_state(state, "client_state")
    names, getters = _sorted_names(rule, tuple(state))
    call = ClientCall(entry, numbers, x, grad, state)
    extra: list[tuple[str, Tensor]] = []
    if anchor is not None or correction is not None or numbers.prox > 0:
        check.is_tensor("x", x)
        extra = _enter_corrections(call, anchor, correction)
    if lr_per_client or loss is not None or epoch is not None or finished is not None or entry.step_size == "sps":
        check.is_tensor("x", x)
        _enter_per_client(call, lr if lr_per_client else None, loss, epoch, finished)
    if previous_grad is not None or entry.step_size == "delta_sgd":
        extra += _enter_previous_gradient(call, previous_grad)
    vectors, counters, reals, sets = [get(state) for get in getters]
    if extra or not check.surely_valid(x, (grad, *vectors), counters, reals, sets):
        _check_client_tensors(call, names, extra)
    if entry.second_moment == "sum" and names.sets and (numbers.beta1 > 0) != ("m" in state):
        _refuse_momentum(numbers.beta1, "m" in state)
    registry.pick(_who_knows_sets(backend) if "sets" in state else backend, x).client_step(call)


class StateNames(NamedTuple):
    """The names of a client state by what they hold: vectors like x, int64 and float64 numbers per client, numbers per
    cover set."""

    vectors: tuple[str, ...]
    counters: tuple[str, ...]
    reals: tuple[str, ...]
    sets: tuple[str, ...]


Getter = Callable[[State], tuple[Tensor, ...]]


@lru_cache(maxsize=256)
def _sorted_names(rule: str, names: tuple[str, ...]) -> tuple[StateNames, tuple[Getter, ...]]:
    """Checks that a state with these names belongs to the rule; the names by what they hold, and what gets the tensors
    of each kind. Cached."""
    entry = CLIENT_RULES[rule]
    maker = f"client_state({rule!r}, x)"
    check.names(names, entry.kept, entry.optional, maker)
    if entry.cover is not None and ("mu" not in names or ("cover" in names) == ("sets" in names)):
        raise ValueError(f"state: lacks mu or its cover; make it with {maker}")
    others = (*entry.scalars, "mu", "cover", "sets")
    by_kind = StateNames(
        vectors=tuple(name for name in names if name not in others),
        counters=tuple(name for name in entry.scalars if name in COUNTERS),
        reals=tuple(name for name in entry.scalars if name not in COUNTERS),
        sets=("mu",) if entry.cover is not None else (),
    )
    return by_kind, tuple(map(_getter, by_kind))


def _getter(names: tuple[str, ...]) -> Getter:
    """Gets the tensors of these names from a state; made once, because it runs every step."""
    if not names:
        return lambda state: ()
    if len(names) == 1:
        (name,) = names
        return lambda state: (state[name],)
    return operator.itemgetter(*names)


def _who_knows_sets(backend: str | None) -> str:
    if backend not in (None, "reference"):
        raise registry.BackendUnavailable(f"backend: explicit cover sets run on 'reference' only, not on {backend!r}")
    return "reference"


def _check_client_tensors(call: ClientCall, names: StateNames, extra: list[tuple[str, Tensor]]) -> None:
    """Looks closely at x, the gradient and the state of a client step."""
    x, state = call.x, call.state
    check.vector("x", x)
    check.like("grad", call.grad, x)
    for name in names.vectors:
        check.like(f"state[{name!r}]", state[name], x)
    if names.sets:
        covers.check_state(state, x)
    for name in names.counters:
        check.scalar_state(name, state[name], x, torch.int64)
    for name in names.reals:
        check.scalar_state(name, state[name], x, torch.float64)
    written = [(f"state[{name!r}]", state[name]) for name in itertools.chain(*names)]
    check.disjoint([("x", x), *written], [("grad", call.grad), *extra])


def _refuse_momentum(beta1: float, has_m: bool) -> None:
    fix = f"client_state(..., beta1={beta1})" if beta1 > 0 else "client_step(..., beta1=...) > 0"
    raise ValueError(f"beta1: is {beta1}, but state {'has' if has_m else 'lacks'} m; use {fix}")


def _enter_per_client(
    call: ClientCall,
    lr: float | Tensor | None,
    loss: float | Tensor | None,
    epoch: int | Tensor | None,
    finished: Tensor | None,
) -> None:
    x, rule = call.x, call.rule
    if lr is not None:
        if "lr" not in rule.options:
            raise ValueError(f"lr: client rule {rule.name!r} finds it itself")
        call.lr = check.per_client("lr", lr, x, check.FLOATS)
        domain = rule.options["lr"].domain
        if x.is_cpu and not all(map(domain.admits, call.lr.tolist())):
            raise ValueError(f"lr: must be {domain.words} for every client, got {call.lr.tolist()}")
    if (loss is not None) != (rule.step_size == "sps"):
        raise ValueError("loss: sps needs it" if loss is None else f"loss: client rule {rule.name!r} has no use for it")
    if loss is not None:
        alone = type(loss) is float and x.dim() == 1  # no tensor for one number: it would cost as much as the step
        call.loss = loss if alone else check.per_client("loss", loss, x, check.FLOATS)
    if epoch is not None:
        if not rule.has_second_moment:
            raise ValueError(f"epoch: client rule {rule.name!r} has no delay that could count it")
        call.epoch = check.per_client("epoch", epoch, x, (torch.int32, torch.int64))
        if x.is_cpu and min(call.epoch.tolist()) < 1:
            raise ValueError(f"epoch: must be >= 1, counted from 1, got {call.epoch.tolist()}")
    if finished is not None:
        call.finished = check.per_client("finished", finished, x, (torch.bool,))


def _enter_corrections(call: ClientCall, anchor: Tensor | None, correction: Tensor | None) -> list[tuple[str, Tensor]]:
    if (anchor is not None) != (call.numbers.prox > 0):
        raise ValueError("anchor: prox > 0 needs it" if anchor is None else "prox: must be > 0 where anchor is given")
    read = []
    for name, tensor in (("anchor", anchor), ("correction", correction)):
        if tensor is not None:
            check.is_tensor(name, tensor)
            check.like(name, tensor, call.x, call.x.shape[-1:] if tensor.dim() == 1 else call.x.shape)
            read.append((name, tensor))
    call.anchor, call.correction = anchor, correction
    return read


def _enter_previous_gradient(call: ClientCall, previous_grad: Tensor | None) -> list[tuple[str, Tensor]]:
    if call.rule.step_size != "delta_sgd":
        raise ValueError(f"previous_grad: client rule {call.rule.name!r} has no use for it")
    if (previous_grad is None) != ("grad_prev" in call.state):
        raise ValueError(
            "previous_grad: is needed with a state made with same_batch=True"
            if previous_grad is None
            else "previous_grad: the state keeps its own; make it with client_state('delta_sgd', x, same_batch=True)"
        )
    if previous_grad is None:
        return []
    check.like("previous_grad", previous_grad, call.x)
    call.previous_grad = previous_grad
    return [("previous_grad", previous_grad)]
