"""The server's ops: its state, one step along an aggregated delta, and the sum of deltas fused with the step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import check, hosts, registry
from ..table import NON_NEGATIVE, SERVER_RULES, ServerNumbers, ServerRule, find_rule, resolve_options, server_numbers
from . import parts
from .common import State, numbers_of, scalar_rules

_NOTHING: frozenset[str] = frozenset()
_STEP = frozenset({"step"})


def server_state(
    rule: str,
    x: Tensor | Sequence[Tensor],
    *,
    beta1: float | None = None,
    tau: float | None = None,
    v0: float | None = None,
    vmax0: float | None = None,
    bias_correction: bool = False,
    eps: str | None = None,
) -> State:
    """The state of a server rule at its start, for a model `x` of shape (d,): vectors m, v, vmax as the rule has them.

    m starts at 0; it is left out where `beta1` (default: the rule's) is 0, because it would equal the delta. v starts
    at `v0`, by default ``tau**2``, or 0 where `eps` is "torch"; vmax at `vmax0`, by default v0. `bias_correction` adds
    the counter `step`. They are tensors, also for an array of another library. A model in parts, a list of arrays of
    any shapes, has a state of lists, for `aggregate_step`.
    """
    entry = find_rule(SERVER_RULES, rule)
    if parts.are_parts(x):
        model = [hosts.read(f"x[{i}]", part) for i, part in enumerate(x)]
        parts.check_model(model)
    else:
        model = [hosts.read("x", x)]
        check.vector("x", model[0], dims=(1,))
    given = {"beta1": beta1, "tau": tau, "eps": eps}
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
        made = [torch.full_like(part, start.get(name, 0.0)) for part in model]
        state[name] = made if parts.are_parts(x) else made[0]  # type: ignore[assignment]
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
    usual = 0.0 if resolved.get("eps") == "torch" else resolved.get("tau", 0.0) ** 2
    start = usual if v0 is None else float(v0)
    return {"v": start, "vmax": start if vmax0 is None else float(vmax0)}


def server_step(
    rule: str, x: Tensor, delta: Tensor, state: State, *, backend: str | None = None, **options: Any
) -> None:
    """One step of the server: moves `x` (d,) along the aggregated `delta` (d,), and `state`, in place.

    `delta` may be bfloat16 or float16 where x is float32. Options by rule, with defaults: ``lr`` (1 for sgd and
    momentum, else required), ``momentum`` 0.9, ``beta1`` 0.9 (adagrad: 0), ``beta2`` 0.99, ``tau`` 1e-3,
    ``second_moment_of`` "momentum" (ams: "delta"), ``bias_correction`` False, ``eps`` "authors". With ``eps`` "torch",
    tau is what torch.optim calls eps: bias corrections come before it, and ``second_moment_of`` is "delta" by default.
    """
    if not isinstance(x, Tensor):
        x, delta, state = hosts.written("x", x), hosts.read("delta", delta), hosts.state(state)
    entry, moments, numbers = _begun(rule, state, options)
    if not check.surely_valid(x, (delta, *moments.values()), (), (), ()) or x.dim() != 1:
        check.vector("x", x, dims=(1,))
        check.delta("delta", delta, x, x.shape)
        _check_moments(x, moments, [("delta", delta)])
    get = moments.get
    registry.pick(backend, x).server_step(entry, x, delta, get("m"), get("v"), get("vmax"), numbers)
    if numbers.bias_correction:
        state["step"] += 1


def aggregate_step(
    rule: str,
    x: Tensor | Sequence[Tensor],
    deltas: Tensor | Sequence[Sequence[Tensor]],
    weights: Tensor,
    state: State,
    *,
    subtract: bool = False,
    backend: str | None = None,
    **options: Any,
) -> None:
    """`weighted_sum` of `deltas` (clients, d) with `weights` (clients,), fused with `server_step`: x and state in
    place.

    The sum never exists in memory. A model in parts is a list of arrays of any shapes; its deltas are a list of each
    client's list, its state is of lists (`server_state`), and nothing is packed. `subtract`: `deltas` are the clients'
    models, of which x is subtracted in the same pass; they have x's dtype. Options as in `server_step`.
    """
    if not subtract and isinstance(x, Tensor) and isinstance(deltas, Tensor):
        _aggregate_packed(rule, x, deltas, weights, state, backend, options)
    elif subtract or parts.are_parts(x):
        _aggregate_parts(rule, x, deltas, weights, state, subtract, backend, options)
    else:
        arrays = hosts.written("x", x), hosts.read("deltas", deltas), hosts.read("weights", weights)
        _aggregate_packed(rule, *arrays, hosts.state(state), backend, options)


def _aggregate_packed(
    rule: str,
    x: Tensor,
    deltas: Tensor,
    weights: Tensor,
    state: State,
    backend: str | None,
    options: dict[str, Any],
) -> None:
    entry, moments, numbers = _begun(rule, state, options)
    usual = check.surely_valid(x, tuple(moments.values()), (), (), (deltas, weights)) and x.dim() == 1
    if not usual or check.surely_valid_deltas(deltas, weights) != x.numel():
        check.vector("x", x, dims=(1,))
        check.deltas("deltas", deltas)
        check.delta("deltas", deltas, x, (deltas.shape[0], *x.shape))
        check.weights("weights", weights, deltas)
        _check_moments(x, moments, [("deltas", deltas), ("weights", weights)])
        weights = weights.to(x.dtype)
    get = moments.get
    registry.pick(backend, x).aggregate_step(entry, x, deltas, weights, get("m"), get("v"), get("vmax"), numbers)
    if numbers.bias_correction:
        state["step"] += 1


def _aggregate_parts(
    rule: str,
    x: Any,
    deltas: Any,
    weights: Any,
    state: Any,
    subtract: bool,
    backend: str | None,
    options: dict[str, Any],
) -> None:
    """The step of a model in parts; a packed one is a part of its own."""
    if not parts.are_parts(x):
        rows = hosts.read("deltas", deltas)
        x, deltas = [x], [[row] for row in rows]
        check.is_state(state, "server_state")
        state = {name: moment if name == "step" else [moment] for name, moment in state.items()}
    entry, held, numbers = _begun(rule, state, options)
    model = parts.written("x", x)
    parts.check_model(model)
    if not isinstance(deltas, (list, tuple)) or not deltas:
        raise ValueError("deltas: must be a list of at least one client's list of arrays")
    clients = [parts.read(f"deltas[{i}]", client, model) for i, client in enumerate(deltas)]
    weights = hosts.read("weights", weights)
    check.is_tensor("weights", weights)
    check.weights("weights", weights, model[0].new_empty((len(clients), 0)))
    moments = {name: parts.written(f"state[{name!r}]", held[name], model) for name in held}
    written = [(f"x[{i}]", part) for i, part in enumerate(model)]
    for name, moment in moments.items():
        for i, (part, of) in enumerate(zip(moment, model, strict=True)):
            check.like(f"state[{name!r}][{i}]", part, of)
            written.append((f"state[{name!r}][{i}]", part))
    check.disjoint(written, [("deltas", part) for client in clients for part in client])
    scales = weights.to(model[0].dtype).contiguous()
    parts.aggregate(entry, model, clients, scales, moments, numbers, subtract=subtract, backend=backend)
    if numbers.bias_correction:
        state["step"] += 1


def lanes_step(rule: str, x: Tensor, lanes: Tensor, places: Tensor | None, state: State, **options: Any) -> None:
    """`server_step` along the sum of `lanes` (lanes, d), one after another, which never exists in memory; on Triton.

    `places` (d,) int32, each once: where a lane's elements are in x; None if they are at the same places. For the
    device engine, which makes lanes and places itself: they are not checked. Options as in `server_step`.
    """
    from ..triton.aggregate_step import step_along_lanes
    from ..triton.server_step import Moments

    entry, moments, numbers = _begun(rule, state, options)
    get = moments.get
    step_along_lanes(entry, x, lanes, places, Moments(get("m"), get("v"), get("vmax")), numbers)
    if numbers.bias_correction:
        state["step"] += 1


def _begun(rule: str, state: State, options: dict[str, Any]) -> tuple[ServerRule, State, ServerNumbers]:
    """What a step of a rule needs: its entry in the table, the moments by name, and this step's numbers."""
    numbers = numbers_of(server_numbers, options, rule)
    entry = SERVER_RULES[rule]
    moments = _moments(entry, state, numbers)
    return entry, moments, _corrected(state, numbers) if numbers.bias_correction else numbers


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


def _corrected(state: State, numbers: ServerNumbers) -> ServerNumbers:
    """The numbers with this step's bias correction in lr and root_scale."""
    if "step" not in state:
        raise ValueError("state: lacks step; make it with server_state(..., bias_correction=True)")
    return corrected_at(int(state["step"]) + 1, numbers)


def corrected_at(step: int, numbers: ServerNumbers) -> ServerNumbers:
    """The numbers with the bias correction of that step, counted from 1, in lr and root_scale."""
    scales = scalar_rules.server_scales_corrected if numbers.tau_joins_corrected else scalar_rules.server_scales
    lr, root_scale = scales(numbers.lr, numbers.beta1, numbers.beta2, step)
    return numbers._replace(lr=lr, root_scale=root_scale)
