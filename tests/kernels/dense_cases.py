"""The fused step of dense layers, as a table of cases: both GPU backends run it, each in a session of its own, and are
held against the same torch code in float64, so that they witness each other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fastfed.kernels.layers import NONE, RELU, SIGMOID, TANH, Dense, Place
from fastfed.kernels.passes import COEFFICIENTS, KEEP, REFRESH, ROOT_SCALE, SCALE, STEP
from fastfed.kernels.sink import Sink
from fastfed.kernels.table import DIRECTIONS
from fastfed.kernels.torch_rules import rules

from .support import normal

CURVES = {NONE: lambda z: z, RELU: torch.relu, SIGMOID: torch.sigmoid, TANH: torch.tanh}
UNTOUCHED = 7.0  # what `out` holds where nothing may be written


@dataclass(frozen=True)
class Case:
    """One call. `lengths` and `lengths_before` are the examples of every client's batch in this and the last step."""

    name: str
    formula: str = "sgd"
    outputs: int = 10
    inputs: int = 37
    batch: int = 20
    rows: int = 1
    lengths: tuple[int, ...] = (20, 0, 1, 13, 0)
    lengths_before: tuple[int, ...] = (20, 7, 0, 1, 0)
    bias: bool = True
    curve: int = NONE
    offset: int = 16
    gap: int = 0  # numbers between the rows of a value, besides those that make it whole quads
    weight_decay: float = 0.0
    anchor: str = ""  # "own": every client has one, "shared"
    correction: str = ""
    eps: float = 1e-3
    refresh: tuple[int, ...] = (1, 1, 1, 1, 1)

    @property
    def layer(self) -> Dense:
        """Weight, a gap, bias, and a gap in which others' parameters could be."""
        after = self.offset + self.outputs * self.inputs + 5
        bias = Place(after, 1, self.outputs) if self.bias else None
        weight = Place(self.offset, self.outputs, self.inputs)
        strides = (-(-width // 4) * 4 + self.gap for width in (self.inputs, self.outputs))
        return Dense(weight, bias, self.outputs, self.inputs, self.rows, *strides, self.curve)

    @property
    def size(self) -> int:
        """Of a client's vector."""
        return -(-(self.offset + self.outputs * self.inputs + 5 + self.outputs + 3) // 16) * 16


def _one_client(name: str, **options: Any) -> Case:
    alone = {"lengths": (1,), "lengths_before": (1,), "batch": 1, "refresh": (1,)}
    return Case(name, **{**alone, **options})


CORRECTED: dict[str, Any] = {"weight_decay": 0.02, "anchor": "own", "correction": "own"}
CASES = [
    Case("sgd"),
    Case("sgd-corrected", **CORRECTED, curve=RELU),
    Case("sgd-shared-anchor", anchor="shared", correction="shared", outputs=70, inputs=132),
    Case("sgd-without-bias", bias=False, outputs=65, inputs=64),
    Case("sgd-odd-places", offset=3, gap=1, outputs=9, inputs=36),
    Case("momentum-relu", "momentum", curve=RELU, outputs=64, inputs=128),
    Case("momentum-corrected", "momentum", **CORRECTED, outputs=130, inputs=67, curve=TANH),
    Case("adagrad-sigmoid", "adagrad", curve=SIGMOID, outputs=66, inputs=68),
    Case("adagrad-corrected", "adagrad", **CORRECTED, refresh=(0, 1, 1, 0, 1)),
    Case("adagrad-without-eps", "adagrad", eps=0.0, outputs=3, inputs=5),
    Case("adam-tanh", "adam", curve=TANH, outputs=68, inputs=200),
    Case("adam-corrected", "adam", **CORRECTED, outputs=80, inputs=100, refresh=(0, 1, 1, 0, 1), curve=SIGMOID),
    Case("adam-long", "adam", outputs=10, inputs=784, batch=32, lengths=(32, 31, 8, 1, 0)),
    Case("adam-many-rows", "adam", **CORRECTED, outputs=67, inputs=90, batch=64, lengths=(64, 33, 0, 7, 32)),
    Case("momentum-many-rows", "momentum", outputs=64, inputs=96, batch=40, lengths_before=(40, 33, 2, 0, 0)),
    Case("sgd-two-rows-an-example", rows=2, outputs=12, inputs=40, bias=False),
    Case("adagrad-three-rows-an-example", "adagrad", rows=3, outputs=12, inputs=33, curve=RELU),
    Case("nobody-yet", "adam", lengths_before=(0, 0, 0, 0, 0), **CORRECTED),
    Case("nobody-any-more", "adam", lengths=(0, 0, 0, 0, 0)),
    _one_client("one-number", outputs=1, inputs=1),
    _one_client("one-example-adam", formula="adam", outputs=65, inputs=33, **CORRECTED),
]


@dataclass
class Call:
    """The tensors of a case: x (clients, d), values (clients, capacity, stride). NaN where nothing may be read."""

    x: Tensor
    moments: dict[str, Tensor]
    value: Tensor
    before: Tensor
    d_out: Tensor
    out: Tensor
    lengths: Tensor
    lengths_before: Tensor
    sink: Sink

    def results(self) -> dict[str, Tensor]:
        return {"x": self.x, **self.moments, "out": self.out}


def call_of(case: Case) -> Call:
    """Float32, the same numbers every time."""
    clients, size, layer = len(case.lengths), case.size, case.layer
    x = normal(1, clients, size)
    moments = {"m": normal(2, clients, size), "v": normal(3, clients, size).square()}
    moments = {name: moments[name] for name in DIRECTIONS[case.formula].vectors}
    others = {
        name: normal(seed, 1 if kind == "shared" else clients, size)
        for name, seed, kind in (("anchor", 4, case.anchor), ("correction", 5, case.correction))
        if kind
    }
    sink = Sink(
        size=size,
        x=x,
        **moments,
        **others,
        coef=_coefficients(case),
        anchor_stride=size if case.anchor == "own" else 0,
        correction_stride=size if case.correction == "own" else 0,
        weight_decay=case.weight_decay,
        prox=0.3 if case.anchor else 0.0,
        **_gains(case.formula),
        eps=case.eps,
    )
    lengths, lengths_before = (torch.tensor(n, dtype=torch.int32) for n in (case.lengths, case.lengths_before))
    value, before, d_out = (
        _ragged(case, seed, n, width, stride)
        for seed, n, width, stride in (
            (6, case.lengths, layer.inputs, layer.in_stride),
            (7, case.lengths_before, layer.inputs, layer.in_stride),
            (8, case.lengths_before, layer.outputs, layer.out_stride),
        )
    )
    out = torch.full((clients, case.batch * case.rows, layer.out_stride), UNTOUCHED)
    return Call(x, moments, value, before, d_out, out, lengths, lengths_before, sink)


def _gains(formula: str) -> dict[str, float]:
    beta1 = 0.9 if "m" in DIRECTIONS[formula].vectors else 0.0
    beta2 = {"mean": 0.99, "sum": 1.0, None: 0.0}[DIRECTIONS[formula].second_moment]
    return {"beta1": beta1, "gain1": 1 - beta1, "beta2": beta2, "gain2": 1.0 if beta2 == 1 else 1 - beta2}


def _coefficients(case: Case) -> Tensor:
    coef = torch.ones(len(case.lengths), COEFFICIENTS)
    spread = torch.arange(1, len(case.lengths) + 1)
    coef[:, STEP] = 0.1 * spread
    coef[:, SCALE] = 1.0 / spread
    coef[:, ROOT_SCALE] = 1.0 + 0.1 * spread
    coef[:, REFRESH] = torch.tensor(case.refresh)
    coef[1:2, KEEP] = 0.0  # the second client's update floor takes m away
    return coef


def _ragged(case: Case, seed: int, examples: tuple[int, ...], width: int, stride: int) -> Tensor:
    full = torch.full((len(examples), case.batch * case.rows, stride), torch.nan)
    numbers = normal(seed, len(examples), case.batch * case.rows, width)
    for client, count in enumerate(examples):
        full[client, : count * case.rows, :width] = numbers[client, : count * case.rows]
    return full


# ---- the same step in plain torch -----------------------------------------------------------------------------------


def in_torch(case: Case, dtype: torch.dtype) -> dict[str, Tensor]:
    """x, moments and out after the step, computed in `dtype`."""
    call = call_of(case)
    made = {name: tensor.to(dtype) for name, tensor in call.results().items()}
    for client in range(len(case.lengths)):
        own = {name: tensor[client] for name, tensor in made.items()}
        if case.lengths_before[client]:
            _update(case, call, client, own, dtype)
        _forward(case, call, client, own, dtype)
    return made


def _update(case: Case, call: Call, client: int, own: dict[str, Tensor], dtype: torch.dtype) -> None:
    layer, rows, s = case.layer, case.lengths_before[client] * case.rows, call.sink
    d_out = call.d_out[client, :rows, : layer.outputs].to(dtype)
    gradients = [(layer.weight, d_out.T @ call.before[client, :rows, : layer.inputs].to(dtype))]
    if layer.bias is not None:
        gradients.append((layer.bias, d_out.sum(0)))
    coef = call.sink.coef[client].to(dtype)  # type: ignore[index]
    for place, gradient in gradients:
        span = slice(place.offset, place.offset + gradient.numel())
        x = own["x"][span].clone()
        anchor, correction = (
            absent if rows is None else rows[client % len(rows), span].to(dtype)
            for rows, absent in ((s.anchor, x), (s.correction, torch.zeros_like(x)))
        )
        g = rules.corrected_gradient(gradient.flatten(), x, anchor, correction, s.weight_decay, s.prox, coef[SCALE])
        if "v" in own and coef[REFRESH] != 0:
            own["v"][span] = rules.second_moment(own["v"][span], g * g, s.beta2, s.gain2)
        m, v = (own[name][span] if name in own else torch.zeros_like(x) for name in "mv")
        formula = getattr(rules, f"direction_{case.formula}")
        direction, m = formula(g, m, v, s, coef[ROOT_SCALE], coef[KEEP])
        if "m" in own:
            own["m"][span] = m
        own["x"][span] = rules.moved(x, direction, coef[STEP])


def _forward(case: Case, call: Call, client: int, own: dict[str, Tensor], dtype: torch.dtype) -> None:
    layer, rows = case.layer, case.lengths[client] * case.rows
    weight = own["x"][layer.weight.offset :][: layer.outputs * layer.inputs].view(layer.outputs, layer.inputs)
    made = call.value[client, :rows, : layer.inputs].to(dtype) @ weight.T
    if layer.bias is not None:
        made = made + own["x"][layer.bias.offset :][: layer.outputs]
    own["out"][:rows, : layer.outputs] = CURVES[case.curve](made)


def alone(case: Case, client: int) -> tuple[Case, Call]:
    """The case with one of its clients only."""
    one = slice(client, client + 1)
    call = call_of(case)
    s = call.sink
    own = {
        name: rows[one] if rows is not None and len(rows) > 1 else rows
        for name in ("x", "m", "v", "coef", "anchor", "correction")
        for rows in (getattr(s, name),)
    }
    picked = {name: getattr(call, name)[one].contiguous() for name in ("value", "before", "d_out", "out")}
    lengths = {name: getattr(call, name)[one] for name in ("lengths", "lengths_before")}
    smaller = replace(case, lengths=case.lengths[one], lengths_before=case.lengths_before[one])
    moments = {name: own[name] for name in call.moments}
    return smaller, Call(own["x"], moments, **picked, **lengths, sink=s._replace(**own))
