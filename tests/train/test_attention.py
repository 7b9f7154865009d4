"""The engine's attention against one written out, with gradients by autograd in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastfed as ff
from fastfed import models
from fastfed.clients import SGD, Adam
from fastfed.data import Examples

from .agreement import assert_close
from .support import labels, make, normal, round_of

pytest.importorskip("fastfed._core", reason="the compiled extension is missing")


@dataclass(frozen=True)
class Shape:
    length: int
    heads: int
    width: int
    mask: str = ""  # or causal, fixed, padding
    batch: int = 3


class Model(nn.Module):
    """Attention between two linear layers, as torch has it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        channels = shape.heads * shape.width
        self.words = nn.Embedding(7, channels)
        self.inputs, self.outputs = nn.Linear(channels, 3 * channels), nn.Linear(channels, 2)
        self.register_buffer("mask", normal(3, shape.heads, shape.length, shape.length))

    def forward(self, tokens: Tensor) -> Tensor:
        shape = self.shape
        qkv = self.inputs(self.words(tokens)).view(tokens.shape[0], shape.length, 3, shape.heads, shape.width)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        given = {}
        if shape.mask == "fixed":
            given["attn_mask"] = self.mask
        if shape.mask == "padding":
            given["attn_mask"] = (tokens != 6)[:, None, None, :]
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=shape.mask == "causal", **given)
        return self.outputs(mixed.transpose(1, 2).flatten(2))


def by_hand(model: Model, tensors: dict[str, Tensor], tokens: Tensor) -> Tensor:
    """The model's outputs, one head of one example after the other, softmax and all."""
    shape = model.shape
    channels = shape.heads * shape.width
    results = []
    for text in tokens:
        x = tensors["words.weight"][text] @ tensors["inputs.weight"].T + tensors["inputs.bias"]
        heads = []
        for h in range(shape.heads):
            q, k, v = (x[:, part * channels + h * shape.width :][:, : shape.width] for part in range(3))
            scores = torch.einsum("qc,kc->qk", q, k) / math.sqrt(shape.width)
            if shape.mask == "fixed":
                scores = scores + model.mask[h].double()
            shown = torch.ones_like(scores, dtype=torch.bool)
            if shape.mask == "causal":
                shown = torch.arange(len(q))[:, None] >= torch.arange(len(k))
            if shape.mask == "padding":
                shown = shown & (text != 6)
            powers = torch.where(shown, scores, -torch.inf).exp()
            heads.append(powers / powers.sum(1, keepdim=True) @ v)
        results.append(torch.cat(heads, 1) @ tensors["outputs.weight"].T + tensors["outputs.bias"])
    return torch.stack(results)


SHAPES = [
    Shape(5, 2, 3),
    Shape(1, 3, 4),
    Shape(17, 1, 5, batch=1),
    Shape(9, 3, 8, "fixed"),
    Shape(11, 2, 7, "padding"),
    Shape(48, 1, 4, "causal"),
    Shape(101, 2, 3, "causal", batch=1),
    Shape(33, 2, 17),
    Shape(70, 1, 16, "fixed", batch=2),
]


def data(shape: Shape) -> Examples:
    tokens = labels(4, 7, shape.batch, shape.length)
    tokens[:, 0] = 2  # no text of padding alone
    return Examples(tokens, normal(5, shape.batch, shape.length, 2).flatten(1))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients_are_those_of_attention_written_out(shape: Shape) -> None:
    """One step of SGD: at most twice the error of torch's own attention in float32."""
    torch.manual_seed(1)
    model, examples = Model(shape), data(shape)
    packing = ff.Packing.of(model)
    exact = {slot.name: value.double().requires_grad_() for slot in packing.slots
             for value in [model.get_parameter(slot.name).detach()]}  # fmt: skip
    inputs, targets = examples.batch(torch.arange(shape.batch))
    F.mse_loss(by_hand(model, exact, inputs).flatten(1), targets.double()).backward()
    F.mse_loss(model(inputs).flatten(1), targets).backward()
    wanted = torch.cat([exact[slot.name].grad.flatten() for slot in packing.slots])
    single = torch.cat([model.get_parameter(slot.name).grad.flatten() for slot in packing.slots])
    for keep in (True, False):
        work = round_of(model, [shape.batch], steps=torch.tensor([1]), batch_size=shape.batch, keep_deltas=keep,
                        optimizers=(SGD(lr=1.0),))  # fmt: skip
        delta = make("native", model, "mse", examples).run(work).delta
        found = torch.cat([delta[slot.span] for slot in packing.slots])
        room = (
            2 * torch.finfo(torch.float32).eps * float(packing.pack(model).norm())
        )  # weights are rounded as they move
        assert_close("gradient", -found, single, wanted, room + 2 * float((single - wanted).norm()))


def text_case() -> tuple[nn.Module, Examples]:
    words = labels(1, 9, 300, 13)
    return models.TextTransformer(9, 13, 4, 12, 2, 3), Examples(words * (words > 2), labels(2, 4, 300))


def picture_case() -> tuple[nn.Module, Examples]:
    return models.small_vit(size=8), Examples(normal(1, 300, 1, 8, 8), labels(2, 10, 300))


def adapted_case() -> tuple[nn.Module, Examples]:
    model, examples = picture_case()
    return models.lora(model, 2), examples


@pytest.mark.parametrize("case", [text_case, picture_case, adapted_case])
@pytest.mark.parametrize("client", [SGD(lr=0.1), Adam(lr=0.01)], ids=lambda client: client.rule)
def test_same_bits_for_any_number_of_threads(case, client) -> None:
    torch.manual_seed(0)
    model, examples = case()
    work = round_of(model, [7, 3, 9, 1, 6, 8, 2, 5, 4], steps=torch.full((9,), 3), optimizers=(client,))
    outcomes = [make("native", model, "cross_entropy", examples, threads=threads).run(work) for threads in (1, 2, 7)]
    for other in outcomes[1:]:
        assert torch.equal(outcomes[0].delta, other.delta)
        assert torch.equal(outcomes[0].deltas, other.deltas)
        assert torch.equal(outcomes[0].scalars["last_loss"], other.scalars["last_loss"])


def test_the_engine_refuses_what_does_not_fit() -> None:
    from fastfed import _core

    model, examples = picture_case()
    program = ff.program.trace(model, examples.inputs, "cross_entropy")
    values, instructions = program.spec()
    size = program.packing.size

    def make_program(op: str, **wrong: float) -> None:
        changed = [
            (name, *rest, settings | wrong if name == op else settings) for name, *rest, settings in instructions
        ]
        _core.Program(values, changed, program.output, "cross_entropy", "mean", size, 0, torch.zeros(0))

    make_program("attention")
    for op, setting, says in (
        ("attention", {"key_at": 250.0}, "attention: looks beyond its input"),
        ("attention", {"value_input": 1.0}, "attention: names an input that is not there"),
        ("attention", {"value_width": 31.0}, "attention: an odd output"),
        ("attention", {"mask": 0.0}, "program: a mask lies outside the constants"),
        ("pick", {"at": 1.0}, "pick: looks beyond its input"),
        ("concatenate", {"rows_0": 2.0}, "concatenate: its parts do not add up"),
        ("concatenate", {"part_0": -2.0}, "concatenate: names a part that is not there"),
        ("add_parameter", {"width": 7.0}, "add_parameter: does not fit its input"),
    ):
        with pytest.raises(ValueError, match=says):
            make_program(op, **setting)
