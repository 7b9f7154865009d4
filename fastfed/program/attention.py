"""Builders of torch's own attention, nn.MultiheadAttention, and its form with adapters."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch.nn.functional as F
from torch import nn

from ..lora import AdaptedAttention
from .draft import BATCH, Activation, Draft, Weight, Withheld, plainly
from .scores import TokenMask, attend, products, times, with_mask
from .table import builds
from .views import Data, View, stored, view_of


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
    found = products(draft, view_of(draft, query), view_of(draft, key), usual)
    if attn_mask is not None:
        found = with_mask(draft, found, attn_mask, hides=False)
    return attend(draft, replace(found, causal=is_causal), value, blind=0.0)


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
            thin = times(draft, _linear(draft, x, weight(down), None), module.scale)
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
    found = products(draft, parts[0], parts[1], 1 / math.sqrt(channels // heads))
    if attn_mask is not None:
        found = with_mask(draft, found, attn_mask, hides=True)
    if key_padding_mask is not None:
        found = with_mask(draft, found, _per_key(key_padding_mask), hides=True)
    mixed = attend(draft, found, parts[2], blind=math.nan if need_weights else 0.0)  # as torch has it
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
