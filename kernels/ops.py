"""The ops: the one front door to every kernel. Each checks its arguments, picks a backend by device and hands over.

What an op mutates stands in its docstring; nothing is written before every check has passed. The rules, their options
and defaults stand in ``table.py``.
"""

from __future__ import annotations

import itertools
import math
import numbers
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from . import bind, check, covers, registry
from .phases import ClientCall
from .streams import Stream
from .table import (
    CLIENT_RULES,
    COUNTERS,
    DECAY,
    NON_NEGATIVE,
    POSITIVE,
    SERVER_RULES,
    ClientRule,
    ServerNumbers,
    ServerRule,
    client_numbers,
    find_rule,
    resolve_options,
    server_numbers,
)

if TYPE_CHECKING:
    from fastfed.packing import Packing

_scalar_rules = bind.load("rules", "math", {"sqrt": math.sqrt, "maximum": max, "minimum": min})

State = dict[str, Tensor]


def _numbers(resolve: Any, options: dict[str, Any], *arguments: Any) -> Any:
    """The numbers of a call from the cache, whose key tells 1 from True; an unhashable value is explained uncached."""
    try:
        return resolve(*arguments, tuple(options), *options.values())
    except TypeError:
        return resolve.__wrapped__(*arguments, tuple(options), *options.values())


# ---- server ---------------------------------------------------------------------------------------------------------


def server_state(
    rule: str,
    x: Tensor,
    *,
    beta1: float | None = None,
    tau: float | None = None,
    v0: float | None = None,
    vmax0: float | None = None,
    bias_correction: bool = False,
) -> State:
    """The state of a server rule at its start, for a model `x` of shape (d,): vectors m, v, vmax as the rule has them.

    m starts at 0; it is left out where `beta1` (default: the rule's) is 0, because it would equal the delta. v starts
    at `v0`, by default ``tau**2``; vmax at `vmax0`, by default v0. `bias_correction` adds the counter `step`.
    """
    entry = find_rule(SERVER_RULES, rule)
    check.vector("x", x, dims=(1,))
    given = {"beta1": beta1, "tau": tau}
    options = {name: value for name, value in given.items() if value is not None}
    if bias_correction:
        options["bias_correction"] = True
    known = {name: option for name, option in entry.options.items() if name != "lr"}
    resolved = resolve_options(f"server rule {rule!r}", known, options)
    start = _start_of_second_moment(entry, resolved, v0, vmax0)
    state: State = {}
    for name in entry.moments:
        if name == "m" and resolved.get("beta1", 1.0) == 0:
            continue
        state[name] = torch.full_like(x, start.get(name, 0.0))
    if bias_correction:
        state["step"] = torch.zeros((), dtype=torch.int64)
    return state


def _start_of_second_moment(
    entry: ServerRule, resolved: dict[str, Any], v0: float | None, vmax0: float | None
) -> dict[str, float]:
    for name, value, moment in (("v0", v0, "v"), ("vmax0", vmax0, "vmax")):
        if value is not None and moment not in entry.moments:
            raise ValueError(f"{name}: server rule {entry.name!r} keeps no {moment}")
        if value is not None and not NON_NEGATIVE.admits(value):
            raise ValueError(f"{name}: must be {NON_NEGATIVE.words}, got {value!r}")
    start = resolved.get("tau", 0.0) ** 2 if v0 is None else float(v0)
    return {"v": start, "vmax": start if vmax0 is None else float(vmax0)}


def server_step(
    rule: str, x: Tensor, delta: Tensor, state: State, *, backend: str | None = None, **options: Any
) -> None:
    """One step of the server: moves `x` (d,) along the aggregated `delta` (d,), and `state`, in place.

    `delta` may be bfloat16 or float16 where x is float32. Options by rule, with defaults: ``lr`` (1 for sgd and
    momentum, else required), ``momentum`` 0.9, ``beta1`` 0.9 (adagrad: 0), ``beta2`` 0.99, ``tau`` 1e-3,
    ``second_moment_of`` "momentum" (ams: "delta"), ``bias_correction`` False.
    """
    numbers = _numbers(server_numbers, options, rule)
    entry = SERVER_RULES[rule]
    moments = _moments(entry, state, numbers)
    if not check.plainly_fine(x, (delta, *moments.values()), (), (), ()) or x.dim() != 1:
        check.vector("x", x, dims=(1,))
        check.delta("delta", delta, x, x.shape)
        _check_moments(x, moments, [("delta", delta)])
    if numbers.bias_correction:
        numbers = _corrected(entry, state, numbers)
    get = moments.get
    registry.pick(backend, x).server_step(entry, x, delta, get("m"), get("v"), get("vmax"), numbers)
    if numbers.bias_correction:
        state["step"] += 1


def aggregate_step(
    rule: str,
    x: Tensor,
    deltas: Tensor,
    weights: Tensor,
    state: State,
    *,
    backend: str | None = None,
    **options: Any,
) -> None:
    """`weighted_sum` of `deltas` (clients, d) with `weights` (clients,), fused with `server_step`: x and state in
    place.

    The sum never exists in memory. Options as in `server_step`.
    """
    numbers = _numbers(server_numbers, options, rule)
    entry = SERVER_RULES[rule]
    moments = _moments(entry, state, numbers)
    usual = check.plainly_fine(x, tuple(moments.values()), (), (), (deltas, weights)) and x.dim() == 1
    if not usual or check.plain_deltas(deltas, weights) != x.numel():
        check.vector("x", x, dims=(1,))
        check.deltas("deltas", deltas)
        check.delta("deltas", deltas, x, (deltas.shape[0], *x.shape))
        check.weights("weights", weights, deltas)
        _check_moments(x, moments, [("deltas", deltas), ("weights", weights)])
        weights = weights.to(x.dtype)
    if numbers.bias_correction:
        numbers = _corrected(entry, state, numbers)
    get = moments.get
    registry.pick(backend, x).aggregate_step(entry, x, deltas, weights, get("m"), get("v"), get("vmax"), numbers)
    if numbers.bias_correction:
        state["step"] += 1


def _moments(entry: ServerRule, state: State, numbers: ServerNumbers) -> State:
    """The moments of a server state by name; without m where beta1 is 0 and the state does without."""
    wanted = entry.moments
    check.is_state(state, "server_state")
    if len(state) == len(wanted) and all(name in state for name in wanted):
        return state  # the usual case
    if numbers.beta1 == 0 and "m" not in state and "beta1" in entry.options:
        wanted = tuple(name for name in wanted if name != "m")
    optional = _STEP if numbers.bias_correction else _NOTHING
    check.names(tuple(state), wanted, optional, f"server_state({entry.name!r}, x)")
    return {name: state[name] for name in wanted}


def _check_moments(x: Tensor, moments: State, read: list[tuple[str, Tensor]]) -> None:
    written = [("x", x)]
    for name, tensor in moments.items():
        check.like(f"state[{name!r}]", tensor, x)
        written.append((f"state[{name!r}]", tensor))
    check.disjoint(written, read)


def _corrected(entry: ServerRule, state: State, numbers: ServerNumbers) -> ServerNumbers:
    """The numbers with this step's bias correction in lr and root_scale."""
    if "step" not in state:
        raise ValueError("state: lacks step; make it with server_state(..., bias_correction=True)")
    scales = _scalar_rules.server_scales_ams if entry.name == "ams" else _scalar_rules.server_scales
    lr, root_scale = scales(numbers.lr, numbers.beta1, numbers.beta2, int(state["step"]) + 1)
    return numbers._replace(lr=lr, root_scale=root_scale)


_NOTHING: frozenset[str] = frozenset()
_STEP = frozenset({"step"})

# ---- client ---------------------------------------------------------------------------------------------------------


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
    `same_batch` leaves the last gradient of delta_sgd out: `client_step` is then given `previous_grad`.
    """
    entry = find_rule(CLIENT_RULES, rule)
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
    from .reference.client_step import cover_of

    mu = state["mu"]
    return cover_of(state, vector[None]).maxima(vector[None], mu.new_zeros((1, mu.shape[-1])))[0]


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

    Options by rule, with defaults: ``lr`` (delta_sgd 0.2, else required), ``momentum`` 0.9, ``beta1`` 0.9 and ``beta2``
    0.999 (adam, sm3_adam), ``eps`` 1e-8, ``delay`` 1, ``floor`` 0, ``root_eps`` 0 and ``beta1`` 0 (sm3, sm3_1),
    ``gamma`` 2, ``delta`` 0.1, ``theta`` 1, ``grow_first`` False, ``lr_eps`` 0 (delta_sgd), ``c`` 0.5, ``f_star`` 0,
    ``lr_max`` 1 (sps), ``weight_decay`` 0, ``prox`` 0, ``clip`` None (all).
    """
    lr_per_client = isinstance(lr, Tensor)
    if lr is not None and not lr_per_client:
        options["lr"] = lr
    numbers = _numbers(client_numbers, options, rule, lr_per_client)
    entry = CLIENT_RULES[rule]
    check.is_state(state, "client_state")
    plan, glance = _state_plan(rule, tuple(state))
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
    vectors, counters, reals, sets = glance(state)
    if extra or not check.plainly_fine(x, (grad, *vectors), counters, reals, sets):
        _check_client_tensors(call, plan, extra)
    if entry.second_moment == "sum" and plan.sets and (numbers.beta1 > 0) != ("m" in state):
        _refuse_momentum(numbers.beta1, "m" in state)
    registry.pick(_who_knows_sets(backend) if "sets" in state else backend, x).client_step(call)


class StatePlan(NamedTuple):
    """The names of a client state by what they hold: vectors like x, int64 and float64 numbers per client, numbers per
    cover set."""

    vectors: tuple[str, ...]
    counters: tuple[str, ...]
    reals: tuple[str, ...]
    sets: tuple[str, ...]


@lru_cache(maxsize=256)
def _state_plan(rule: str, names: tuple[str, ...]) -> tuple[StatePlan, Callable[[State], Any]]:
    """Checks that a state with these names belongs to the rule; its plan, and what fetches its tensors. Cached."""
    entry = CLIENT_RULES[rule]
    maker = f"client_state({rule!r}, x)"
    check.names(names, entry.kept, entry.optional, maker)
    if entry.cover is not None and ("mu" not in names or ("cover" in names) == ("sets" in names)):
        raise ValueError(f"state: lacks mu or its cover; make it with {maker}")
    others = (*entry.scalars, "mu", "cover", "sets")
    plan = StatePlan(
        vectors=tuple(name for name in names if name not in others),
        counters=tuple(name for name in entry.scalars if name in COUNTERS),
        reals=tuple(name for name in entry.scalars if name not in COUNTERS),
        sets=("mu",) if entry.cover is not None else (),
    )
    return plan, _glance(plan)


def _glance(plan: StatePlan) -> Callable[[State], Any]:
    """Fetches the plan's tensors from a state as four tuples: written out once per plan, because it runs every step."""
    groups = ("(" + "".join(f"state[{name!r}], " for name in group) + ")" for group in plan)
    fetch: Callable[[State], Any] = eval(f"lambda state: ({', '.join(groups)})")
    return fetch


def _who_knows_sets(backend: str | None) -> str:
    if backend not in (None, "reference"):
        raise registry.BackendUnavailable(f"backend: explicit cover sets run on 'reference' only, not on {backend!r}")
    return "reference"


def _check_client_tensors(call: ClientCall, plan: StatePlan, extra: list[tuple[str, Tensor]]) -> None:
    """Looks closely at x, the gradient and the state of a client step."""
    x, state = call.x, call.state
    check.vector("x", x)
    check.like("grad", call.grad, x)
    for name in plan.vectors:
        check.like(f"state[{name!r}]", state[name], x)
    if plan.sets:
        covers.check_state(state, x)
    for name in plan.counters:
        check.scalar_state(name, state[name], x, torch.int64)
    for name in plan.reals:
        check.scalar_state(name, state[name], x, torch.float64)
    written = [(f"state[{name!r}]", state[name]) for name in itertools.chain(*plan)]
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


# ---- sums and norms -------------------------------------------------------------------------------------------------


def weighted_sum(deltas: Tensor, weights: Tensor, out: Tensor | None = None, *, backend: str | None = None) -> Tensor:
    """``sum_i weights[i] * deltas[i]`` of deltas (clients, d) and weights (clients,): (d,), into `out` if given.

    Float32 out of bfloat16, float16 and float32 deltas, float64 out of float64 ones; clients are added in their order.
    """
    d, dtype = check.plain_deltas(deltas, weights), None
    if d == 0:
        check.deltas("deltas", deltas)
        check.weights("weights", weights, deltas)
        d, dtype = deltas.shape[1], torch.float64 if deltas.dtype is torch.float64 else torch.float32
        weights = weights.to(dtype)
    if out is None:
        out = deltas.new_empty(d, dtype=dtype)
    elif not check.plainly_fine(out, (), (), (), (deltas, weights)) or out.dim() != 1 or out.numel() != d:
        check.like("out", out, deltas.new_empty(0, dtype=dtype), deltas.shape[1:])
        check.disjoint([("out", out)], [("deltas", deltas), ("weights", weights)])
    registry.pick(backend, out).weighted_sum(deltas, weights, out)
    return out


def trimmed_mean(deltas: Tensor, trim: int, out: Tensor | None = None, *, backend: str | None = None) -> Tensor:
    """For every coordinate of deltas (clients, d), the mean without the `trim` smallest and the `trim` largest of them:
    (d,), into `out` if given; 2 trim < clients. With trim = (clients - 1) // 2 it is the median.

    Float32 out of bfloat16, float16 and float32 deltas, float64 out of float64 ones. A coordinate in which a delta is
    NaN is NaN.
    """
    check.deltas("deltas", deltas)
    if not isinstance(trim, numbers.Integral) or isinstance(trim, bool) or not 0 <= 2 * trim < len(deltas):
        raise ValueError(f"trim: must be a whole number >= 0 that leaves some of {len(deltas)} clients, got {trim!r}")
    dtype = torch.float64 if deltas.dtype is torch.float64 else torch.float32
    if out is None:
        out = deltas.new_empty(deltas.shape[1], dtype=dtype)
    else:
        check.like("out", out, deltas.new_empty(0, dtype=dtype), deltas.shape[1:])
        check.disjoint([("out", out)], [("deltas", deltas)])
    registry.pick(backend, out).trimmed_mean(deltas, int(trim), out)
    return out


def norms(x: Tensor, *, backend: str | None = None) -> Tensor:
    """The Euclidean norm of ``x`` (d,) as (), or of every row of (clients, d) as (clients,); float64."""
    if not check.plainly_fine(x, (), (), (), ()):
        check.vector("x", x)
    out = _one_per_row(x)
    registry.pick(backend, x).norms(x, out)
    return out


def clip(x: Tensor, limit: float, *, backend: str | None = None) -> Tensor:
    """Scales ``x`` (d,), or every row of (clients, d), down to norm `limit` in place; the norms before, float64."""
    if not check.plainly_fine(x, (), (), (), ()):
        check.vector("x", x)
    if not POSITIVE.admits(limit):
        raise ValueError(f"limit: must be {POSITIVE.words}, got {limit!r}")
    out = _one_per_row(x)
    registry.pick(backend, x).clip(x, float(limit), out)
    return out


def _one_per_row(x: Tensor) -> Tensor:
    """Room for a float64 number per row: of x.shape[:-1], which would be slower to ask for."""
    return x.new_empty(() if x.dim() == 1 else len(x), dtype=torch.float64)


# ---- random numbers -------------------------------------------------------------------------------------------------


def uniform(
    n: int,
    stream: Stream,
    *,
    clients: Tensor | None = None,
    device: torch.device | str = "cpu",
    backend: str | None = None,
) -> Tensor:
    """`n` float32 numbers in [0, 1), multiples of 2**-24, of `stream`: (n,); with client ids, (len(clients), n)."""
    return _draw("uniform", torch.float32, n, stream, clients, device, backend)


def normal(
    n: int,
    stream: Stream,
    *,
    clients: Tensor | None = None,
    device: torch.device | str = "cpu",
    backend: str | None = None,
) -> Tensor:
    """`n` standard normal float32 numbers of `stream`: (n,); with client ids, (len(clients), n)."""
    return _draw("normal", torch.float32, n, stream, clients, device, backend)


def permutation(
    n: int,
    stream: Stream,
    *,
    clients: Tensor | None = None,
    device: torch.device | str = "cpu",
    backend: str | None = None,
) -> Tensor:
    """A random order of 0 .. n-1 of `stream`: (n,) int64; with client ids, one each: (len(clients), n)."""
    return _draw("permutation", torch.int64, n, stream, clients, device, backend)


def shuffles(
    counts: Tensor,
    stream: Stream,
    *,
    clients: Tensor,
    steps: Tensor | None = None,
    width: int | None = None,
    device: torch.device | str = "cpu",
    backend: str | None = None,
) -> Tensor:
    """Many random orders of unequal length at once: (rows, width) int64.

    Row r begins with ``permutation(counts[r], Stream(..., client=clients[r], step=steps[r]))`` of the `stream`'s seed,
    purpose and round, and goes on with counts[r] .. width-1 as they are. `counts` (from 0 on), `clients` and `steps`
    (default: the stream's for all) are (rows,) int64; `width` is by default the largest count. Numbers are looked at
    on the CPU only: of tensors elsewhere, for which nobody should wait, `width` must be given and bounds every count.
    """
    if not isinstance(stream, Stream):
        raise TypeError(f"stream: must be a fastfed.kernels.Stream, got {type(stream).__name__}")
    _check_clients(clients, stream)
    rows = clients.numel()
    if steps is None:
        steps = torch.full_like(clients, stream.step)
    elif stream.step != 0:
        raise ValueError("steps: give either stream.step or steps, not both")
    for name, tensor, most in (("counts", counts, 1 << 33), ("steps", steps, (1 << 32) - 1)):
        _check_one_per_row(name, tensor, rows, most)
    width = _width_of(counts, width)
    like = _FLOATS if device == "cpu" else torch.empty(0, dtype=torch.float32, device=device)
    out = like.new_empty((rows, width), dtype=torch.int64)
    there = (tensor.to(like.device).contiguous() for tensor in (clients, steps, counts))
    registry.pick(backend, like).shuffles(out, stream.words(), *there)
    return out


def _check_one_per_row(name: str, tensor: Tensor, rows: int, most: int) -> None:
    """`tensor` is (rows,) int64, in [0, most] where a look costs nothing."""
    check.is_tensor(name, tensor)
    if tensor.dtype is not torch.int64 or tensor.shape != (rows,):
        raise ValueError(f"{name}: must be a ({rows},) int64 tensor, got {tensor.dtype} {tuple(tensor.shape)}")
    if tensor.is_cpu and not 0 <= int(tensor.min()) <= int(tensor.max()) <= most:
        raise ValueError(f"{name}: must lie in [0, {most}], got {int(tensor.min())} to {int(tensor.max())}")


def _width_of(counts: Tensor, width: int | None) -> int:
    """The width of shuffles of `counts` things, by default the largest of them."""
    if width is None and not counts.is_cpu:
        raise ValueError(f"width: must be given where counts are on {counts.device.type}")
    largest = int(counts.max()) if counts.is_cpu else 0
    if width is None:
        width = max(1, largest)
    if isinstance(width, bool) or not isinstance(width, int) or not max(1, largest) <= width <= 1 << 33:
        raise ValueError(f"width: must be a whole number from {max(1, largest)} to 2**33, got {width!r}")
    return width


def _draw(
    op: str,
    dtype: torch.dtype,
    n: int,
    stream: Stream,
    clients: Tensor | None,
    device: torch.device | str,
    backend: str | None,
) -> Tensor:
    if isinstance(n, bool) or not isinstance(n, int) or not 0 < n <= 1 << 33:
        raise ValueError(f"n: must be a whole number from 1 to 2**33, got {n!r}")
    if not isinstance(stream, Stream):
        raise TypeError(f"stream: must be a fastfed.kernels.Stream, got {type(stream).__name__}")
    if clients is not None:
        _check_clients(clients, stream)
    like = _FLOATS if device == "cpu" else torch.empty(0, dtype=torch.float32, device=device)
    draw = getattr(registry.pick(backend, like), op)
    if clients is None:
        out = like.new_empty(n, dtype=dtype)
        draw(out, stream.words(), stream.client)
    else:
        out = like.new_empty((clients.numel(), n), dtype=dtype)
        draw(out, stream.words(), clients.to(device).contiguous())
    return out


# Where the usual draw happens. A tensor made from another costs half of one made on a device by name.
_FLOATS = torch.empty(0, dtype=torch.float32, device="cpu")


def _check_clients(clients: Tensor, stream: Stream) -> None:
    check.is_tensor("clients", clients)
    if clients.dim() != 1 or clients.dtype is not torch.int64 or clients.numel() == 0:
        raise ValueError(f"clients: must be a (clients,) int64 tensor, got {clients.dtype} {tuple(clients.shape)}")
    if stream.client != 0:
        raise ValueError("clients: give either stream.client or clients, not both")
    if clients.is_cpu and bool(((clients < 0) | (clients >= 1 << 32)).any()):  # elsewhere, a look would have to wait
        raise ValueError("clients: ids must lie in [0, 2**32)")
