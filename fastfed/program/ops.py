"""Builders of everything that computes: products, recurrence, pooling, activations, norms."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .. import models
from ..norms import FrozenNorm
from .draft import NUMBERS, Activation, Draft, Weight, Withheld, plainly
from .ir import Kind
from .scores import Scores, add_to_scores
from .table import Builder, builds
from .views import Parameter, Part, copied, look, rows_of

# ---- products


@builds(F.linear)
def linear(draft: Draft, input: Any, weight: Any, bias: Any = None) -> Activation:
    value = draft.number(input, "vector", "sequence", "sparse")
    sparse = draft.values[value].kind == "sparse"
    params = (draft.slot(weight, *((1, 0) if sparse else (0, 1))), draft.slot(bias))
    return draft.emit("sparse_linear" if sparse else "linear", (value,), draft.shape(F.linear, input, weight), params)


@builds(F.conv2d)
def conv2d(
    draft: Draft,
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Activation:
    value = draft.number(input, "image")
    if groups != 1:
        draft.refuse(f"has groups={groups}; FastFed's engine's convolutions have one group")
    if _pair(dilation) != (1, 1):
        draft.refuse(f"has dilation={dilation}; FastFed's engine's convolutions have dilation 1")
    params = (draft.slot(weight, 2, 3, 1, 0), draft.slot(bias))
    kernel = _pair(weight.shape[2:])
    window = _window(kernel, stride, _padding(draft, padding, kernel))
    shape = draft.shape(F.conv2d, input, weight, stride=stride, padding=padding)
    return draft.emit("conv2d", (value,), shape, params, window)


def _padding(draft: Draft, padding: Any, kernel: tuple[int, int]) -> tuple[int, int]:
    if padding == "valid":
        return (0, 0)
    if padding != "same":
        return _pair(padding)
    if any(size % 2 == 0 for size in kernel):
        draft.refuse(f"has padding='same' with an even kernel {kernel}, which pads unevenly; give numbers instead")
    return (kernel[0] // 2, kernel[1] // 2)


@builds(F.embedding, parameters=True)
def embedding(
    draft: Draft,
    input: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Activation | Part:
    for name, given in (("max_norm", max_norm), ("scale_grad_by_freq", scale_grad_by_freq), ("sparse", sparse)):
        if given:
            draft.refuse(f"has {name}={given}; FastFed's engine's embeddings are plain tables")
    if isinstance(input, Weight):
        if padding_idx is not None:
            draft.refuse("has a padding_idx, whose row is not trained; FastFed's engine trains all rows of positions")
        return _rows_in_order(draft, input, weight)
    value = draft.number(input, "tokens")
    params = (draft.slot(weight),)
    rows, width = weight.shape
    table = {"padding_idx": -1 if padding_idx is None else padding_idx % rows, "vocabulary": rows}
    return draft.emit("embedding", (value,), (*input.shape, width), params, table)


def _rows_in_order(draft: Draft, positions: Weight, weight: Any) -> Part:
    """The rows of a table at positions that are the same for every example, such as torch.arange(length)."""
    if positions.constant is None or positions.constant.dim() not in (1, 2) or positions.constant.is_floating_point():
        draft.refuse(f"is given {positions.name!r}, which is no tokens and no positions")
    found = positions.constant.flatten()
    first = int(found[0])
    if positions.constant.shape[:-1].numel() != 1 or found.tolist() != list(range(first, first + len(found))):
        draft.refuse(
            "is given positions that do not count up by one; FastFed's engine takes rows that follow each other"
        )
    rows: Part = look(draft, weight, torch.narrow, 0, first, len(found))
    return rows if positions.constant.dim() == 1 else look(draft, rows, torch.unsqueeze, 0)


# ---- recurrence: leaf modules, which also get the module itself and `weight`, that finds its parameters


@builds(models.LSTM)
def lstm(draft: Draft, module: models.LSTM, weight: Callable[[str], Weight], x: Any) -> Activation:
    for layer in range(module.layers):
        names = (f"weight_ih_l{layer}", f"weight_hh_l{layer}", f"bias_l{layer}")
        x = _lstm_layer(draft, x, module.hidden, *map(weight, names), None)
    return x


@builds(nn.LSTM)
def torch_lstm(
    draft: Draft, module: nn.LSTM, weight: Callable[[str], Weight], input: Any, hx: Any = None
) -> tuple[Activation, Withheld]:
    refusals = {
        "batch_first=False": not module.batch_first,
        "bidirectional=True": module.bidirectional,
        f"proj_size={module.proj_size}": module.proj_size > 0,
        f"dropout={module.dropout} between its layers": module.dropout > 0 and module.num_layers > 1,
        "a given initial state": hx is not None,
    }
    for option, given in refusals.items():
        if given:
            draft.refuse(
                f"has {option}; FastFed's engine's LSTMs are batch_first, one-way, without dropout inside, from zero"
            )
    for layer in range(module.num_layers):
        biases = [weight(f"bias_{part}_l{layer}") if module.bias else None for part in ("ih", "hh")]
        weights = weight(f"weight_ih_l{layer}"), weight(f"weight_hh_l{layer}")
        input = _lstm_layer(draft, input, module.hidden_size, *weights, *biases)
    return input, Withheld("uses the final state of an LSTM; FastFed's engine gives its outputs: take x[:, -1]")


def _lstm_layer(draft: Draft, x: Any, hidden: int, *weights: Weight | None) -> Activation:
    value = draft.number(x, "sequence")
    weight = weights[0]
    assert weight is not None
    length, width = draft.values[value].shape
    if width != weight.shape[1]:
        draft.refuse(f"takes {weight.shape[1]} features, but is given {width}")
    return draft.emit("lstm", (value,), (length, hidden), tuple(draft.slot(weight) for weight in weights))


# ---- pooling


@builds(F.max_pool2d, torch.max_pool2d)
def max_pool(
    draft: Draft,
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,  # True is another function to torch
) -> Activation:
    if _pair(dilation) != (1, 1):
        draft.refuse(f"has dilation={dilation}; FastFed's engine pools neighbours (dilation 1)")
    return _pool(draft, "max_pool", F.max_pool2d, input, kernel_size, stride, padding, ceil_mode)


@builds(F.avg_pool2d)
def avg_pool(
    draft: Draft,
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Activation:
    if divisor_override is not None:
        draft.refuse(f"has divisor_override={divisor_override}; FastFed's engine divides by the window's size")
    counted = {"count_include_pad": float(count_include_pad)}
    return _pool(draft, "avg_pool", F.avg_pool2d, input, kernel_size, stride, padding, ceil_mode, **counted)


def _pool(
    draft: Draft, op: str, function: Any, x: Any, kernel: Any, stride: Any, padding: Any, ceil_mode: bool, **more: float
) -> Activation:
    value = draft.number(x, "image")
    if ceil_mode:
        draft.refuse("has ceil_mode=True; FastFed's engine drops windows that do not fit (ceil_mode=False)")
    stride = stride or kernel  # None and an empty list mean the kernel's
    shape = draft.shape(function, x, kernel, stride, padding)
    return draft.emit(op, (value,), shape, settings={**_window(_pair(kernel), stride, _pair(padding)), **more})


@builds(F.adaptive_avg_pool2d)
def adaptive_avg_pool(draft: Draft, input: Any, output_size: Any) -> Activation:
    value = draft.number(input, "image")
    return draft.emit("adaptive_avg_pool", (value,), draft.shape(F.adaptive_avg_pool2d, input, output_size))


@builds(F.adaptive_max_pool2d)
def adaptive_max_pool(draft: Draft, input: Any, output_size: Any, return_indices: bool = False) -> Activation:
    value = draft.number(input, "image")
    return draft.emit("adaptive_max_pool", (value,), draft.shape(F.adaptive_max_pool2d, input, output_size))


@builds(torch.mean, "mean")
def mean(draft: Draft, input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Activation:
    value = draft.number(input, "image", "sequence")
    rank = len(input.shape) + 1
    axes = {axis % rank for axis in (dim if isinstance(dim, (tuple, list)) else (dim,)) if axis is not None}
    if dtype is None and rank == 4 and axes == {2, 3}:
        pooled = draft.emit("adaptive_avg_pool", (value,), (input.shape[0], 1, 1))
        return pooled if keepdim else draft.see(pooled, pooled.shape[:1])
    if dtype is None and rank == 3 and axes == {1}:
        meant = draft.emit("mean_rows", (value,), (input.shape[1],), settings={"padding": -1})
        return draft.see(meant, (1, *meant.shape)) if keepdim else meant
    draft.refuse(
        "takes another mean than that of an image over (2, 3) or of a sequence over 1, which is all that FastFed's "
        "engine has"
    )


# ---- number by number


def _elementwise(op: str, *, inplace: bool = False) -> Builder:
    def build(draft: Draft, input: Any, inplace: bool = inplace) -> Activation:
        return _change(draft, op, input, inplace)

    return build


def _change(draft: Draft, op: str, x: Any, inplace: bool, **settings: float) -> Activation:
    result = draft.emit(op, (draft.number(x, *NUMBERS),), x.shape, settings=settings)
    if inplace:
        draft.overwrite(x, result)
    return result


for _op in ("relu", "sigmoid", "tanh"):
    builds(getattr(torch, _op), _op)(_elementwise(_op))
    builds(getattr(torch, f"{_op}_"), f"{_op}_")(_elementwise(_op, inplace=True))
builds(F.relu)(_elementwise("relu"))
builds(F.silu)(_elementwise("silu"))


@builds(F.gelu)
def gelu(draft: Draft, input: Any, approximate: str = "none") -> Activation:
    return _change(draft, "gelu", input, False, tanh=approximate == "tanh")


@builds(F.dropout)
def dropout(draft: Draft, input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Activation:
    """The program's last pass numbers the dropouts."""
    if p == 0 or not training:
        return input
    return _change(draft, "dropout", input, inplace, p=p, index=0)


def _add(draft: Draft, x: Any, other: Any, alpha: float, inplace: bool) -> Any:
    if alpha != 1:
        draft.refuse(f"has alpha={alpha}; FastFed's engine adds as it is (alpha=1)")
    if isinstance(x, Weight | Part):
        x, other = other, x
    if isinstance(x, Scores):
        return add_to_scores(draft, x, other)
    x, other = copied(draft, x), copied(draft, other)
    result = _sum_with_parameter(draft, x, other) if isinstance(other, Weight | Part) else _sum(draft, x, other)
    if inplace:
        draft.overwrite(x, result)
    return result


def _sum(draft: Draft, x: Any, other: Any) -> Activation:
    values = draft.number(x, *NUMBERS), draft.number(other, *NUMBERS)
    if x.shape != other.shape:
        draft.refuse(f"adds shapes {x.shape} and {other.shape}; FastFed's engine adds tensors of one shape")
    return draft.emit("add", values, x.shape)


def _sum_with_parameter(draft: Draft, x: Any, other: Parameter) -> Activation:
    """The parameter is added to every example, or to every row."""
    value = draft.number(x, "vector", "sequence")
    offset, shape = rows_of(draft, other)
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    if not shape or shape != x.shape[-len(shape) :]:
        draft.refuse(
            f"adds {plainly(other)}, shaped {shape}, to {x.shape}; FastFed's engine adds it to examples or to rows"
        )
    return draft.emit("add_parameter", (value,), x.shape, (offset,), {"width": math.prod(shape)})


@builds(operator.add, torch.add, "add", seen=True, parameters=True)
def add(draft: Draft, input: Any, other: Any, *, alpha: float = 1) -> Any:
    return _add(draft, input, other, alpha, inplace=False)


@builds(operator.iadd, "add_", seen=True)
def add_(draft: Draft, input: Any, other: Any, *, alpha: float = 1) -> Any:
    return _add(draft, input, other, alpha, inplace=True)


# ---- one after the other


@builds(torch.cat, torch.concat)
def concatenate(draft: Draft, tensors: Any, dim: int = 0) -> Activation:
    """Steps of sequences, and parameters that stand for some, such as class tokens."""
    parts = [copied(draft, part) for part in tensors]
    if dim not in (1, -2):
        draft.refuse(f"is along axis {dim}; FastFed's engine puts the steps of sequences one after the other: dim=1")
    inputs: list[int] = []
    params: list[int] = []
    settings: dict[str, float] = {"parts": len(parts)}
    shapes = []
    for number, part in enumerate(parts):
        if isinstance(part, Weight | Part):
            offset, shape = rows_of(draft, part)
            source = -1 - len(params)
            params.append(offset)
        else:
            value, shape = draft.number(part, "sequence"), part.shape
            source = inputs.index(value) if value in inputs else len(inputs)
            inputs += [] if value in inputs else [value]
        settings |= {f"part_{number}": source, f"rows_{number}": shape[0]}
        shapes.append(shape)
    if not inputs or any(len(shape) != 2 or shape[1] != shapes[0][1] for shape in shapes):
        draft.refuse(f"puts shapes {shapes} together; FastFed's engine puts sequences and parameters of one width so")
    length = sum(shape[0] for shape in shapes)
    return draft.emit("concatenate", tuple(inputs), (length, shapes[0][1]), tuple(params), settings)


# ---- norms


@builds(F.group_norm)
def group_norm(
    draft: Draft, input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Activation:
    value = draft.number(input, "image")
    shape = draft.shape(F.group_norm, input, num_groups, weight, bias)
    params = draft.slot(weight), draft.slot(bias)
    return draft.emit("group_norm", (value,), shape, params, {"groups": num_groups, "eps": eps})


@builds(F.layer_norm)
def layer_norm(
    draft: Draft, input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Activation:
    value = draft.number(input, "vector", "sequence")
    if len(normalized_shape) != 1:
        draft.refuse(f"has normalized_shape={tuple(normalized_shape)}; FastFed's engine normalises the last axis")
    shape = draft.shape(F.layer_norm, input, normalized_shape, weight, bias)
    return draft.emit("layer_norm", (value,), shape, (draft.slot(weight), draft.slot(bias)), {"eps": eps})


@builds(nn.BatchNorm1d, nn.BatchNorm2d)
def batch_norm(
    draft: Draft, module: nn.BatchNorm1d | nn.BatchNorm2d, weight: Callable[[str], Weight], input: Any
) -> Activation:
    """Of vectors and of images: what torch takes for the channels of a sequence are its rows here."""
    kind: Kind = "vector" if isinstance(module, nn.BatchNorm1d) else "image"
    return _batch_norm(draft, module, weight, input, draft.number(input, kind), module.momentum or 0.0)


@builds(FrozenNorm)
def frozen_norm(draft: Draft, module: FrozenNorm, weight: Callable[[str], Weight], input: Any) -> Activation:
    return _batch_norm(draft, module, weight, input, draft.number(input, "vector", "image"), None)


def _batch_norm(
    draft: Draft, module: Any, weight: Callable[[str], Weight], input: Any, value: int, momentum: float | None
) -> Activation:
    """`momentum`: of the running statistics; None: they stay as they are, and training normalises by them too."""
    mean_at = draft.running("running_mean")
    if input.shape[0] != len(module.running_mean):
        draft.refuse(f"has {len(module.running_mean)} channels and is given {input.shape} per example")
    settings = {
        "mean": mean_at,
        "variance": draft.running("running_var"),
        "eps": module.eps,
        "momentum": momentum or 0.0,
        "frozen": momentum is None,
    }
    params = (-1, -1) if module.weight is None else (draft.slot(weight("weight")), draft.slot(weight("bias")))
    return draft.emit("batch_norm", (value,), input.shape, params, settings)


def _pair(x: Any) -> tuple[int, int]:
    """One number for both axes, or one each."""
    both = (x,) * 2 if isinstance(x, int) else tuple(x) * 2
    return (int(both[0]), int(both[1]))


def _window(kernel: tuple[int, int], stride: Any, padding: tuple[int, int]) -> dict[str, float]:
    pairs = {"kernel": kernel, "stride": _pair(stride), "pad": padding}
    return {f"{name}_{axis}": pair[i] for name, pair in pairs.items() for i, axis in enumerate("hw")}
