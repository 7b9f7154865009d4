"""Builders of attention: torch's own, nn.MultiheadAttention, and products with a softmax between them as people write
them; masks that are constants, or that hide some token."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import models
from ..lora import AdaptedAttention
from .draft import BATCH, Activation, Draft, Symbol, Weight, Withheld, plainly
from .table import builds
from .views import Data, View, stored, view_of

_NEVER = -1e9  # as low: a score that is never looked at
_LOGITS = "leave it out: the losses take logits"
_OPERANDS = ("query", "key", "value")


@dataclass(frozen=True)
class TokenMask(Symbol):
    """Which tokens are, or are not, the one with this number; of a text of that token alone nothing is hidden where
    `unless_all`. `seen`: a batch's tensor, on torch's device "meta"."""

    token: int
    equal: bool
    unless_all: bool
    seen: Tensor = field(compare=False)

    def __str__(self) -> str:
        return "a mask of tokens"

    def reshaped(self, draft: Draft, function: Callable[..., Tensor], *args: Any, **kwargs: Any) -> TokenMask:
        with draft.fitting():
            return replace(self, seen=function(self.seen, *args, **kwargs))


@dataclass(frozen=True)
class Scores(Symbol):
    """Queries times keys, not yet made into one number after the other: times `scale`, plus a constant, without those
    that `hidden` hides; `soft`: after the softmax."""

    query: View
    key: View
    scale: float
    constant: Tensor | None = None
    hidden: TokenMask | None = None
    causal: bool = False
    soft: bool = False

    def __str__(self) -> str:
        return "attention's probabilities" if self.soft else "attention's scores"

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.query.seen.shape[1:-1], self.key.seen.shape[-2])


# ---- masks ----------------------------------------------------------------------------------------------------------


def _is_token(equal: bool) -> Any:
    def build(draft: Draft, input: Any, other: Any) -> TokenMask:
        draft.number(input, "tokens")
        if type(other) is not int or other < 0:
            draft.refuse(
                f"compares tokens with {plainly(other)}; FastFed's engine compares them with the number of one"
            )
        return TokenMask(other, equal, False, torch.empty((BATCH, *input.shape), dtype=torch.bool, device="meta"))

    return build


builds(operator.eq, torch.eq, "eq")(_is_token(True))
builds(operator.ne, torch.ne, "ne")(_is_token(False))


@builds(operator.invert, torch.logical_not, "logical_not", seen=True)
def invert(draft: Draft, input: Any) -> TokenMask:
    if not isinstance(input, TokenMask):
        draft.refuse("inverts something that is no mask of tokens; FastFed's engine inverts x == 0 and the like")
    return replace(input, equal=not input.equal)


@builds(models.hidden_tokens)
def hidden_tokens(draft: Draft, tokens: Any, padding: int = 0) -> TokenMask:
    mask: TokenMask = _is_token(True)(draft, tokens, padding)
    return replace(mask, unless_all=True)


@builds(models.mean_of_shown, seen=True)
def mean_of_shown(draft: Draft, x: Any, hidden: Any) -> Activation:
    value = draft.number(x, "sequence")
    if not isinstance(hidden, TokenMask) or not hidden.equal or not hidden.unless_all or hidden.seen.dim() != 2:
        draft.refuse("wants what models.hidden_tokens gives; FastFed's engine knows no other mask there")
    return draft.emit("mean_rows", (value,), (x.shape[1],), settings={"padding": hidden.token})


def _with_mask(draft: Draft, scores: Scores, mask: Any, hides: bool) -> Scores:
    """Scores without those that a mask hides: where it is true if `hides`, else where it is not. Numbers are added."""
    if isinstance(mask, TokenMask):
        return replace(scores, hidden=_fitting_tokens(draft, scores, mask, hides))
    if not isinstance(mask, Weight) or mask.constant is None:
        draft.refuse(f"is given {plainly(mask)} as a mask; FastFed's engine takes constants, and tokens == a number")
    numbers = mask.constant
    if numbers.dtype is torch.bool:
        hidden = numbers if hides else ~numbers
        numbers = torch.zeros(numbers.shape).masked_fill(hidden, float("-inf"))
    return _plus(draft, scores, numbers)


def _plus(draft: Draft, scores: Scores, numbers: Tensor) -> Scores:
    wanted = scores.shape
    if numbers.dim() > len(wanted):
        if numbers.shape[0] != 1 and numbers.stride(0) != 0:
            draft.refuse("is given a mask per example; FastFed's engine has one for all, or tokens == a number")
        numbers = numbers[0]
    with draft.fitting():
        whole = numbers.broadcast_to(wanted)
    both = whole if scores.constant is None else scores.constant + whole
    if bool((both == float("-inf")).all(-1).any()):
        draft.refuse("is given a mask that hides all keys from a query, whose outputs would be no numbers")
    return replace(scores, constant=both)


def _fitting_tokens(draft: Draft, scores: Scores, mask: TokenMask, hides: bool) -> TokenMask:
    if mask.equal is not hides:
        draft.refuse("hides all tokens but one; FastFed's engine hides one, as padding")
    keys, between = scores.shape[-1], [0] * (len(scores.shape) - 1)
    with draft.fitting():
        spread = mask.seen.broadcast_to((BATCH, *scores.shape))
    sizes = zip(spread.shape[1:-1], spread.stride()[1:-1], between, strict=True)
    along = mask.seen.numel() == BATCH * keys and spread.stride()[0] == keys and spread.stride()[-1] in (0, 1)
    if not along or any(stride != wanted for size, stride, wanted in sizes if size > 1):
        draft.refuse("hides queries by their tokens; FastFed's engine hides keys: write mask[:, None, None, :]")
    if scores.hidden is not None and (scores.hidden.token, scores.hidden.unless_all) != (mask.token, mask.unless_all):
        draft.refuse("hides two kinds of tokens; FastFed's engine hides one")
    return mask


def add_to_scores(draft: Draft, scores: Scores, numbers: Any) -> Scores:
    if scores.soft or not isinstance(numbers, Weight) or numbers.constant is None:
        draft.refuse(
            f"adds {plainly(numbers)} to {scores}; FastFed's engine adds a constant to scores before their softmax"
        )
    return _plus(draft, scores, numbers.constant)


@builds(torch.masked_fill, "masked_fill", seen=True)
def masked_fill(draft: Draft, input: Any, mask: Any, value: Any) -> Scores:
    if not isinstance(input, Scores) or input.soft or not isinstance(value, int | float) or value > _NEVER:
        draft.refuse("fills something; FastFed's engine fills attention's scores with float('-inf')")
    return _with_mask(draft, input, mask, hides=True)


# ---- products -------------------------------------------------------------------------------------------------------


@builds(torch.matmul, operator.matmul, "matmul", torch.bmm, "bmm", seen=True)
def matmul(draft: Draft, input: Any, other: Any) -> Any:
    if isinstance(input, Scores) and input.soft and isinstance(other, Activation | View):
        return _attend(draft, input, other)
    if not isinstance(input, Activation | View) or not isinstance(other, Activation | View):
        draft.refuse(
            f"multiplies by {plainly(other)}; FastFed's engine multiplies queries by keys, probabilities by "
            "values, and has nn.Linear"
        )
    query, key = view_of(draft, input), view_of(draft, other)
    return _scores(draft, query, replace(key, seen=key.seen.transpose(-2, -1)), 1.0)


def _scores(draft: Draft, query: View, key: View, scale: float) -> Scores:
    for view in (query, key):
        if view.seen.dim() not in (3, 4) or view.seen.shape[0] != BATCH:
            draft.refuse(f"multiplies {view}; FastFed's engine multiplies (heads, length, width) per example")
    if query.seen.dim() != key.seen.dim() or query.seen.shape[-1] != key.seen.shape[-1]:
        draft.refuse(f"multiplies shapes that do not fit, {query.shape} by {key.shape} transposed")
    return Scores(query, key, scale * query.factor * key.factor)


@builds(F.softmax, torch.softmax, "softmax", seen=True)
def softmax(draft: Draft, input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Scores:
    if not isinstance(input, Scores):
        draft.refuse(f"is of no attention, and nothing else that FastFed's engine knows; {_LOGITS}")
    if input.soft or dim not in (-1, len(input.shape)) or dtype not in (None, torch.float32):
        draft.refuse("is not along the keys; FastFed's engine has softmax(scores, dim=-1)")
    return replace(input, soft=True)


def _times(draft: Draft, input: Any, factor: Any, inverse: bool = False) -> Any:
    if type(factor) not in (int, float):
        draft.refuse(f"is given {plainly(factor)}; FastFed's engine multiplies by numbers, and in layers")
    by = 1 / factor if inverse else float(factor)
    if isinstance(input, Scores):
        if input.soft or input.constant is not None:
            draft.refuse("scales attention's scores after a mask or a softmax; FastFed's engine does so before")
        return replace(input, scale=input.scale * by)
    if isinstance(input, View):
        return replace(input, factor=input.factor * by)
    value = draft.number(input, "vector", "sequence", "image")
    return draft.emit("scale", (value,), input.shape, settings={"factor": by})


@builds(operator.mul, torch.mul, "mul", seen=True)
def mul(draft: Draft, input: Any, other: Any) -> Any:
    return _times(draft, other, input) if type(input) in (int, float) else _times(draft, input, other)


@builds(operator.truediv, torch.div, "div", seen=True)
def div(draft: Draft, input: Any, other: Any) -> Any:
    if type(input) in (int, float):
        draft.refuse("divides a number by something computed; FastFed's engine divides by numbers")
    return _times(draft, input, other, inverse=True)


# ---- torch's own ----------------------------------------------------------------------------------------------------


@builds(F.scaled_dot_product_attention, seen=True)
def scaled_dot_product_attention(
    draft: Draft,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Data:
    if dropout_p > 0:
        draft.refuse(
            f"has dropout_p={dropout_p}; FastFed's engine drops nothing inside attention: use nn.Dropout after"
        )
    if enable_gqa or (is_causal and attn_mask is not None):
        draft.refuse("has enable_gqa, or a mask besides is_causal; FastFed's engine has neither")
    for operand in (query, key, value):
        if not isinstance(operand, Activation | View):
            draft.refuse(f"is given {plainly(operand)}; FastFed's engine attends with what a model computes")
    usual = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    scores = _scores(draft, view_of(draft, query), view_of(draft, key), usual)
    if attn_mask is not None:
        scores = _with_mask(draft, scores, attn_mask, hides=False)
    return _attend(draft, replace(scores, causal=is_causal), value)


_Project = Callable[[Draft, Any], Activation]


@builds(nn.MultiheadAttention)
def multihead_attention(
    draft: Draft, module: nn.MultiheadAttention, weight: Callable[[str], Weight], query: Any, key: Any, value: Any,
    *args: Any, **kwargs: Any,
) -> tuple[Activation, Withheld]:  # fmt: skip
    _refuse_others(draft, module, query is key is value)

    def projected(weight_name: str, bias_name: str, bias: Any) -> _Project:
        return lambda draft, x: _linear(draft, x, weight(weight_name), None if bias is None else weight(bias_name))

    into = projected("in_proj_weight", "in_proj_bias", module.in_proj_bias)
    out = projected("out_proj.weight", "out_proj.bias", module.out_proj.bias)
    return _self_attention(draft, module, query, into, out, *args, **kwargs)


@builds(AdaptedAttention)
def adapted_attention(
    draft: Draft, module: AdaptedAttention, weight: Callable[[str], Weight], query: Any, key: Any, value: Any,
    *args: Any, **kwargs: Any,
) -> tuple[Activation, Withheld]:  # fmt: skip
    base = module.base
    _refuse_others(draft, base, query is key is value)

    def projected(weight_name: str, bias_name: str, bias: Any, down: str, up: str) -> _Project:
        def project(draft: Draft, x: Any) -> Activation:
            plain = _linear(draft, x, weight(weight_name), None if bias is None else weight(bias_name))
            thin = _times(draft, _linear(draft, x, weight(down), None), module.scale)
            return draft.emit("add", (plain.value, _linear(draft, thin, weight(up), None).value), plain.shape)

        return project

    into = projected("base.in_proj_weight", "base.in_proj_bias", base.in_proj_bias, "down", "up")
    out = projected("base.out_proj.weight", "base.out_proj.bias", base.out_proj.bias, "out_down", "out_up")
    return _self_attention(draft, base, query, into, out, *args, **kwargs)


def _refuse_others(draft: Draft, module: nn.MultiheadAttention, is_self: bool) -> None:
    refusals = {
        "batch_first=False": not module.batch_first,
        f"dropout={module.dropout}": module.dropout > 0,
        "add_bias_kv": module.bias_k is not None,
        "add_zero_attn": module.add_zero_attn,
        "keys or values of other widths": module.in_proj_weight is None,
        "keys or values that are not its queries": not is_self,
    }
    for option, given in refusals.items():
        if given:
            draft.refuse(f"has {option}; FastFed's engine has self-attention, batch_first, without dropout inside")


def _self_attention(
    draft: Draft,
    module: nn.MultiheadAttention,
    x: Any,
    into: _Project,
    out: _Project,
    key_padding_mask: Any = None,
    need_weights: bool = True,
    attn_mask: Any = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Activation, Withheld]:
    if is_causal and attn_mask is None:
        draft.refuse("has is_causal, which torch wants to come with the mask itself")
    channels, heads = module.embed_dim, module.num_heads
    projected = into(draft, x)
    length = projected.shape[0]
    seen = stored(draft.values[projected.value]).view(BATCH, length, 3, heads, channels // heads)
    parts = [View(projected.value, part, draft.place.name) for part in seen.permute(2, 0, 3, 1, 4)]
    scores = _scores(draft, parts[0], parts[1], 1 / math.sqrt(channels // heads))
    if attn_mask is not None:
        scores = _with_mask(draft, scores, attn_mask, hides=True)
    if key_padding_mask is not None:
        scores = _with_mask(draft, scores, _per_key(key_padding_mask), hides=True)
    mixed = _attend(draft, scores, parts[2])
    return out(draft, Activation(mixed.value, (length, channels))), Withheld(
        "uses attention's weights, which FastFed's engine does not give: take the outputs alone, need_weights=False"
    )


def _linear(draft: Draft, x: Any, weight: Weight, bias: Weight | None) -> Activation:
    value = draft.number(x, "sequence")
    shape = draft.shape(F.linear, x, weight)
    return draft.emit("linear", (value,), shape, (draft.slot(weight), draft.slot(bias)))


def _per_key(mask: Any) -> Any:
    """A mask of keys (n, T), for scores (n, heads, T, T)."""
    if isinstance(mask, TokenMask):
        return replace(mask, seen=mask.seen[:, None, None, :])
    if isinstance(mask, Weight) and mask.constant is not None:
        return replace(mask, constant=mask.constant[..., None, None, :])
    return mask


# ---- the instruction ------------------------------------------------------------------------------------------------


def _attend(draft: Draft, scores: Scores, value: Data) -> Data:
    """softmax(scores) @ value: (heads, queries, width) per example, whose numbers lie queries first."""
    operands = dict(zip(_OPERANDS, (scores.query, scores.key, view_of(draft, value)), strict=True))
    seen = {name: _by_heads(draft, view) for name, view in operands.items()}
    heads, queries, width = seen["query"].shape[1:]
    keys, value_width = seen["value"].shape[2:]
    if seen["key"].shape[1:] != (heads, keys, width) or seen["value"].shape[1] != heads:
        draft.refuse("is given keys or values that do not fit its queries: as many heads, one value for every key")
    inputs = list(dict.fromkeys(view.value for view in operands.values()))
    settings: dict[str, float] = {
        "heads": heads, "queries": queries, "keys": keys, "width": width, "value_width": value_width,
        "scale": scores.scale, "causal": scores.causal, **_mask_settings(draft, scores, heads),
    }  # fmt: skip
    for name, view in operands.items():
        _, head, row, _ = seen[name].stride()
        settings[f"{name}_input"] = inputs.index(view.value)
        settings[f"{name}_at"] = seen[name].storage_offset()
        settings |= {f"{name}_head": head if heads > 1 else 0, f"{name}_row": row}
    for_values = operands["value"].factor
    made = draft.emit("attention", tuple(inputs), (queries, heads * value_width), settings=settings)
    if for_values != 1.0:
        made = draft.emit("scale", (made.value,), made.shape, settings={"factor": for_values})
    if scores.query.seen.dim() == 3:
        return made
    by_head = stored(draft.values[made.value]).view(BATCH, queries, heads, value_width)
    return View(made.value, by_head.transpose(1, 2), draft.place.name)


def _by_heads(draft: Draft, view: View) -> Tensor:
    """(n, heads, length, width) with numbers of a row side by side."""
    seen = view.seen.unsqueeze(1) if view.seen.dim() == 3 else view.seen
    size = math.prod(draft.values[view.value].shape)
    if seen.dim() != 4 or seen.shape[0] != BATCH or seen.stride(0) != size:
        draft.refuse(f"is given {view}; FastFed's engine attends with (heads, length, width) per example")
    if seen.stride(3) != 1 and seen.shape[3] != 1:
        draft.refuse(f"is given {view}, whose features lie apart; split heads as x.view(n, length, heads, width)")
    return seen


def _mask_settings(draft: Draft, scores: Scores, heads: int) -> dict[str, float]:
    tokens: dict[Literal["padding", "unless_all"], float] = {"padding": -1, "unless_all": 0}
    if scores.hidden is not None:
        tokens = {"padding": scores.hidden.token, "unless_all": scores.hidden.unless_all}
    if scores.constant is None:
        return {"mask": -1, "mask_head": 0, **tokens}
    by_head = scores.constant if scores.constant.dim() == 3 else scores.constant[None]
    queries, keys = by_head.shape[-2:]
    same = heads == 1 or bool((by_head == by_head[:1]).all())
    held = by_head[:1] if same else by_head
    at = draft.constant(f"{draft.place.name} mask", held.contiguous())
    return {"mask": at, "mask_head": 0 if same else queries * keys, **tokens}
