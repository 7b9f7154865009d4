"""A plain interpreter of traced programs, written from their description and not from the tracer.

It knows `Program.spec()`, an ENGINE vector and one of running statistics only, and stores values as the engine does:
(examples, rows, width), images with their channels last. If its results are the module's own, then offsets, layouts,
order and settings are right.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fastfed.program import Program

Settings = dict[str, float]


@dataclass
class Value:
    """One value of `n` examples: data (n, rows, width), tokens (n, rows)."""

    kind: str
    rows: int
    width: int
    height: int
    across: int
    data: Tensor = field(default_factory=lambda: torch.empty(0))

    def image(self) -> Tensor:
        """(n, C, H, W), as torch has it."""
        assert self.kind == "image"
        assert self.rows == self.height * self.across
        return self.data.unflatten(1, (self.height, self.across)).permute(0, 3, 1, 2)

    def store_image(self, image: Tensor) -> None:
        assert image.shape[1:] == (self.width, self.height, self.across)
        self.data = image.permute(0, 2, 3, 1).flatten(1, 2)


class Parameters:
    """Reads tensors out of an engine vector; `statistics` are those of batch norms, `constants` what nobody trains."""

    def __init__(
        self, engine: Tensor, offsets: list[int], statistics: Tensor, constants: Tensor, tokens: Tensor
    ) -> None:
        self.engine, self.offsets, self.statistics = engine, offsets, statistics
        self.constants, self.tokens = constants, tokens

    def __call__(self, which: int, *shape: int) -> Tensor | None:
        offset = self.offsets[which]
        if offset == -1:
            return None
        held, begin = (self.engine, offset) if offset >= 0 else (self.constants, -2 - offset)
        return held[begin : begin + math.prod(shape)].view(shape)


def linear(out: Value, x: Value, take: Parameters, settings: Settings) -> None:
    out.data = F.linear(x.data, take(0, out.width, x.width), take(1, out.width))


def sparse_linear(out: Value, x: Value, take: Parameters, settings: Settings) -> None:
    assert x.kind == "sparse"
    out.data = F.linear(x.data, take(0, x.width, out.width).t(), take(1, out.width))


def conv2d(out: Value, x: Value, take: Parameters, settings: Settings) -> None:
    kernel, stride, pad = windows(settings)
    weight = take(0, *kernel, x.width, out.width).permute(3, 2, 0, 1)
    out.store_image(F.conv2d(x.image(), weight, take(1, out.width), stride, pad))


def max_pool(out: Value, x: Value, take: Parameters, settings: Settings) -> None:
    out.store_image(F.max_pool2d(x.image(), *windows(settings)))


def avg_pool(out: Value, x: Value, take: Parameters, settings: Settings) -> None:
    counted = {0.0: False, 1.0: True}[settings["count_include_pad"]]
    out.store_image(F.avg_pool2d(x.image(), *windows(settings), count_include_pad=counted))


def adaptive_avg_pool(out: Value, x: Value, take: Parameters, settings: Settings) -> None:
    out.store_image(F.adaptive_avg_pool2d(x.image(), (out.height, out.across)))


def adaptive_max_pool(out: Value, x: Value, take: Parameters, settings: Settings) -> None:
    out.store_image(F.adaptive_max_pool2d(x.image(), (out.height, out.across)))


def gelu(out: Value, x: Value, take: Parameters, settings: Settings) -> None:
    out.data = F.gelu(x.data, approximate={0.0: "none", 1.0: "tanh"}[settings["tanh"]])


def dropout(out: Value, x: Value, take: Parameters, settings: Settings) -> None:
    out.data = x.data  # in evaluation


def group_norm(out: Value, x: Value, take: Parameters, settings: Settings) -> None:
    groups = int(settings["groups"])
    out.store_image(F.group_norm(x.image(), groups, take(0, x.width), take(1, x.width), settings["eps"]))


def batch_norm(out: Value, x: Value, take: Parameters, settings: Settings) -> None:
    """In evaluation."""
    assert settings["frozen"] in (0.0, 1.0)
    assert 0 <= settings["momentum"] <= 1
    begins = int(settings["mean"]), int(settings["variance"])
    mean, variance = (take.statistics[begin : begin + x.width] for begin in begins)
    out.data = (x.data - mean) / (variance + settings["eps"]).sqrt()
    weight, bias = take(0, x.width), take(1, x.width)
    out.data = out.data if weight is None else out.data * weight + bias


def layer_norm(out: Value, x: Value, take: Parameters, settings: Settings) -> None:
    out.data = F.layer_norm(x.data, (x.width,), take(0, x.width), take(1, x.width), settings["eps"])


def embedding(out: Value, x: Value, take: Parameters, settings: Settings) -> None:
    assert x.kind == "tokens"
    assert -1 <= settings["padding_idx"] < settings["vocabulary"]
    assert x.data.max() < settings["vocabulary"]
    table = take(0, int(settings["vocabulary"]), out.width)
    assert table is not None
    out.data = table[x.data]


def lstm(out: Value, x: Value, take: Parameters, settings: Settings) -> None:
    size = out.width
    weight_ih, weight_hh = take(0, 4 * size, x.width), take(1, 4 * size, size)
    bias = sum(take(i, 4 * size) for i in (2, 3) if take.offsets[i] != -1)
    h = c = x.data.new_zeros(len(x.data), size)
    steps = []
    for t in range(x.rows):
        gates = x.data[:, t] @ weight_ih.T + h @ weight_hh.T + bias
        i, f, o = (torch.sigmoid(gates[:, k * size : (k + 1) * size]) for k in (0, 1, 3))
        c = f * c + i * torch.tanh(gates[:, 2 * size : 3 * size])
        h = o * torch.tanh(c)
        steps.append(h)
    out.data = torch.stack(steps, 1)


def flatten(out: Value, x: Value, take: Parameters, settings: Settings) -> None:
    assert x.kind in ("image", "sequence")
    out.data = (x.image() if x.kind == "image" else x.data).reshape(len(x.data), 1, -1)


def image(out: Value, x: Value, take: Parameters, settings: Settings) -> None:
    assert x.kind == "vector"
    out.store_image(x.data.reshape(len(x.data), out.width, out.height, out.across))


def select(out: Value, x: Value, take: Parameters, settings: Settings) -> None:
    assert x.kind == "sequence"
    assert 0 <= settings["index"] < x.rows
    out.data = x.data[:, int(settings["index"])][:, None]


def elementwise(function: Callable[[Tensor], Tensor]) -> Callable[..., None]:
    def run(out: Value, x: Value, take: Parameters, settings: Settings) -> None:
        out.data = function(x.data)

    return run


def add(out: Value, x: Value, other: Value, take: Parameters, settings: Settings) -> None:
    assert x.data.shape == other.data.shape
    out.data = x.data + other.data


def pick(out: Value, x: Value, take: Parameters, settings: Settings) -> None:
    at, row_step, step = (int(settings[name]) for name in ("at", "row_step", "step"))
    places = at + torch.arange(out.rows)[:, None] * row_step + torch.arange(out.width) * step
    out.data = x.data.reshape(len(x.data), -1)[:, places]


def concatenate(out: Value, *given: Any) -> None:
    *inputs, take, settings = given
    parts = []
    for number in range(int(settings["parts"])):
        source, rows = int(settings[f"part_{number}"]), int(settings[f"rows_{number}"])
        if source < 0:
            parameter = take(-1 - source, rows, out.width)
            assert parameter is not None
            parts.append(parameter.expand(len(inputs[0].data), rows, out.width))
        else:
            assert inputs[source].rows == rows
            parts.append(inputs[source].data)
    out.data = torch.cat(parts, 1)


def add_parameter(out: Value, x: Value, take: Parameters, settings: Settings) -> None:
    parameter = take(0, int(settings["width"]))
    assert parameter is not None
    out.data = (x.data.reshape(-1, len(parameter)) + parameter).view_as(x.data)


def scale(out: Value, x: Value, take: Parameters, settings: Settings) -> None:
    out.data = x.data * settings["factor"]


def mean_rows(out: Value, x: Value, take: Parameters, settings: Settings) -> None:
    means = []
    for example, rows in enumerate(x.data):
        shown = [r for r in range(x.rows) if settings["padding"] < 0 or take.tokens[example, r] != settings["padding"]]
        means.append(rows[shown or range(x.rows)].mean(0, keepdim=True))
    out.data = torch.stack(means)


def attention(out: Value, *given: Any) -> None:
    """Query by query: what a head looks at, one key after the other."""
    *inputs, take, settings = given
    numbers = {name: int(settings[name]) for name in ATTENTION if name != "scale"}
    heads, queries, keys = (numbers[name] for name in ("heads", "queries", "keys"))
    n = len(inputs[0].data)

    def operand(name: str, length: int, width: int) -> Tensor:
        flat = inputs[numbers[f"{name}_input"]].data.reshape(n, -1)
        places = numbers[f"{name}_at"] + numbers[f"{name}_head"] * torch.arange(heads)[:, None, None]
        places = places + numbers[f"{name}_row"] * torch.arange(length)[:, None] + torch.arange(width)
        return flat[:, places]

    query, key = operand("query", queries, numbers["width"]), operand("key", keys, numbers["width"])
    value = operand("value", keys, numbers["value_width"])
    results = []
    for example in range(n):
        hidden = [numbers["padding"] >= 0 and take.tokens[example, k] == numbers["padding"] for k in range(keys)]
        if all(hidden) and numbers["unless_all"]:
            hidden = [False] * keys
        rows = []
        for q in range(queries):
            shown = [k for k in range(keys) if not hidden[k] and not (numbers["causal"] and k > q)]
            row = []
            for h in range(heads):
                if not shown:
                    row.append(torch.full((numbers["value_width"],), 0.0 if numbers["zero_if_blind"] else torch.nan))
                    continue
                scores = settings["scale"] * (key[example, h, shown] @ query[example, h, q])
                if numbers["mask"] >= 0:
                    at = numbers["mask"] + h * numbers["mask_head"] + q * keys
                    scores = scores + take.constants[at : at + keys][shown]
                shares = (scores - scores.max()).exp()
                row.append((shares / shares.sum()) @ value[example, h, shown])
            rows.append(torch.cat(row))
        results.append(torch.stack(rows))
    out.data = torch.stack(results)


WINDOW = ("kernel_h", "kernel_w", "stride_h", "stride_w", "pad_h", "pad_w")

ATTENTION = (
    "heads", "queries", "keys", "width", "value_width", "scale", "causal", "zero_if_blind", "mask", "mask_head",
    "padding", "unless_all",
    *(f"{name}_{what}" for name in ("query", "key", "value") for what in ("input", "at", "head", "row")),
)  # fmt: skip
SEVERAL = ("attention", "concatenate")  # ops with any number of inputs and parameters; the latter's settings tell

# op: (how to run it, inputs, params, settings)
OPS: dict[str, tuple[Callable[..., None], int, int, tuple[str, ...]]] = {
    "linear": (linear, 1, 2, ()),
    "sparse_linear": (sparse_linear, 1, 2, ()),
    "conv2d": (conv2d, 1, 2, WINDOW),
    "max_pool": (max_pool, 1, 0, WINDOW),
    "avg_pool": (avg_pool, 1, 0, (*WINDOW, "count_include_pad")),
    "adaptive_avg_pool": (adaptive_avg_pool, 1, 0, ()),
    "adaptive_max_pool": (adaptive_max_pool, 1, 0, ()),
    "relu": (elementwise(torch.relu), 1, 0, ()),
    "sigmoid": (elementwise(torch.sigmoid), 1, 0, ()),
    "tanh": (elementwise(torch.tanh), 1, 0, ()),
    "silu": (elementwise(F.silu), 1, 0, ()),
    "gelu": (gelu, 1, 0, ("tanh",)),
    "dropout": (dropout, 1, 0, ("p", "index")),
    "group_norm": (group_norm, 1, 2, ("groups", "eps")),
    "batch_norm": (batch_norm, 1, 2, ("mean", "variance", "eps", "momentum", "frozen")),
    "layer_norm": (layer_norm, 1, 2, ("eps",)),
    "embedding": (embedding, 1, 1, ("padding_idx", "vocabulary")),
    "lstm": (lstm, 1, 4, ()),
    "flatten": (flatten, 1, 0, ()),
    "image": (image, 1, 0, ()),
    "select": (select, 1, 0, ("index",)),
    "add": (add, 2, 0, ()),
    "pick": (pick, 1, 0, ("at", "row_step", "step")),
    "concatenate": (concatenate, 0, 0, ()),
    "add_parameter": (add_parameter, 1, 1, ("width",)),
    "scale": (scale, 1, 0, ("factor",)),
    "mean_rows": (mean_rows, 1, 0, ("padding",)),
    "attention": (attention, 0, 0, ATTENTION),
}


def windows(settings: Settings) -> list[tuple[int, int]]:
    return [(int(settings[f"{name}_h"]), int(settings[f"{name}_w"])) for name in ("kernel", "stride", "pad")]


def run(program: Program, engine: Tensor, inputs: Tensor, statistics: Tensor) -> Tensor:
    """The program's output, as the loss sees it: (n, F) or (n, T, F); `statistics` (s,) are batch norms' own."""
    described, instructions = program.spec()
    values = [Value(*value) for value in described]
    first = values[program.input]
    if first.kind == "image":
        first.store_image(inputs)
    else:
        first.data = inputs if first.kind == "tokens" else inputs.reshape(len(inputs), first.rows, first.width)
    done = {program.input}
    for op, sources, output, params, settings in instructions:
        execute, arity, slots, names = OPS[op]
        assert op in SEVERAL or (len(sources), len(params)) == (arity, slots), op
        assert op == "concatenate" or tuple(settings) == names, op
        assert all(isinstance(setting, float) for setting in settings.values())
        assert done.issuperset(sources)
        assert output not in done
        take = Parameters(engine, params, statistics, program.constants.numbers, first.data)
        execute(values[output], *(values[source] for source in sources), take, settings)
        assert values[output].data.shape == (len(inputs), values[output].rows, values[output].width), op
        done.add(output)
    last = values[program.output]
    assert last.kind in ("vector", "sequence")
    return last.data.squeeze(1) if last.kind == "vector" else last.data
