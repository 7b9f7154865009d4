"""Attention as products with a softmax between them, and the instruction that it becomes; masks that are constants, or
that hide some token."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import models
from .draft import BATCH, Activation, Draft, Symbol, Weight, plainly
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


def with_mask(draft: Draft, scores: Scores, mask: Any, hides: bool) -> Scores:
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
    if isinstance(mask, TokenMask) and not mask.unless_all and value != float("-inf"):
        draft.refuse(
            f"fills the scores of padding with {value}, which looks at all of a text of padding alone; FastFed's "
            "engine fills them with float('-inf'), or hides what models.hidden_tokens says"
        )
    return with_mask(draft, input, mask, hides=True)


# ---- products -------------------------------------------------------------------------------------------------------


@builds(torch.matmul, operator.matmul, "matmul", torch.bmm, "bmm", seen=True)
def matmul(draft: Draft, input: Any, other: Any) -> Any:
    if isinstance(input, Scores) and input.soft and isinstance(other, Activation | View):
        return attend(draft, input, other)
    if not isinstance(input, Activation | View) or not isinstance(other, Activation | View):
        draft.refuse(
            f"multiplies by {plainly(other)}; FastFed's engine multiplies queries by keys, probabilities by "
            "values, and has nn.Linear"
        )
    query, key = view_of(draft, input), view_of(draft, other)
    return products(draft, query, replace(key, seen=key.seen.transpose(-2, -1)), 1.0)


def products(draft: Draft, query: View, key: View, scale: float) -> Scores:
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


def _is_of_batch(factor: float) -> bool:
    """Whether a number comes from the size of a batch, which stands at a prime while a model is traced."""
    parts = [one / BATCH for one in (factor, 1 / factor if factor else 0.0)]
    return any(abs(part) >= 1 and abs(part - round(part)) < 1e-9 * abs(part) for part in parts)


def times(draft: Draft, input: Any, factor: Any, inverse: bool = False) -> Any:
    if type(factor) not in (int, float):
        draft.refuse(f"is given {plainly(factor)}; FastFed's engine multiplies by numbers, and in layers")
    if _is_of_batch(factor):
        draft.refuse("multiplies by the number of examples in a batch, which FastFed's engine does not know beforehand")
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
    return times(draft, other, input) if type(input) in (int, float) else times(draft, input, other)


@builds(operator.truediv, torch.div, "div", seen=True)
def div(draft: Draft, input: Any, other: Any) -> Any:
    if type(input) in (int, float):
        draft.refuse("divides a number by something computed; FastFed's engine divides by numbers")
    return times(draft, input, other, inverse=True)


# ---- the instruction ------------------------------------------------------------------------------------------------


def attend(draft: Draft, scores: Scores, value: Data, *, blind: float = math.nan) -> Data:
    """softmax(scores) @ value: (heads, queries, width) per example, whose numbers lie queries first. `blind`, NaN or 0:
    what comes of a query that sees no key."""
    operands = dict(zip(_OPERANDS, (scores.query, scores.key, view_of(draft, value)), strict=True))
    seen = {name: _by_heads(draft, view) for name, view in operands.items()}
    heads, queries, width = seen["query"].shape[1:]
    keys, value_width = seen["value"].shape[2:]
    if seen["key"].shape[1:] != (heads, keys, width) or seen["value"].shape[1] != heads:
        draft.refuse("is given keys or values that do not fit its queries: as many heads, one value for every key")
    inputs = list(dict.fromkeys(view.value for view in operands.values()))
    settings: dict[str, float] = {
        "heads": heads, "queries": queries, "keys": keys, "width": width, "value_width": value_width,
        "scale": scores.scale, "causal": scores.causal, "zero_if_blind": blind == 0.0,
        **_mask_settings(draft, scores, heads),
    }  # fmt: skip
    for name, view in operands.items():
        _, head, row, _ = seen[name].stride()
        settings[f"{name}_input"] = inputs.index(view.value)
        settings[f"{name}_at"] = int(seen[name].storage_offset())
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
    tokens: dict[str, float] = {"padding": -1, "unless_all": 0}
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
