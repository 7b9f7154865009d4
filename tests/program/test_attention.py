"""Attention as people write it, and what transformers need around it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastfed import models
from fastfed.models import lora
from fastfed.program import Unsupported, describe, trace

from .support import Case, Net, check, parameter, picture, sequence, tokens, vector

CHANNELS, HEADS, LENGTH = 12, 3, 5


class Attend(nn.Module):
    """Queries, keys and values by one linear layer; `mix` does the rest with (n, T, 3 * channels)."""

    def __init__(self, mix: Callable[[Any, Any], Any], mask: Tensor | None = None, **parts: Any) -> None:
        super().__init__()
        self.mix = mix
        self.qkv, self.out = nn.Linear(CHANNELS, 3 * CHANNELS), nn.Linear(CHANNELS, CHANNELS)
        self.register_buffer("mask", mask)
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.mix(self, x))


def timm(net: Any, x: Any) -> Any:
    n, length, channels = x.shape
    qkv = net.qkv(x).reshape(n, length, 3, HEADS, channels // HEADS).permute(2, 0, 3, 1, 4)
    q, k, v = qkv.unbind(0)
    q = q * (channels // HEADS) ** -0.5
    attn = (q @ k.transpose(-2, -1)).softmax(dim=-1)
    return (attn @ v).transpose(1, 2).reshape(n, length, channels)


def nano(net: Any, x: Any) -> Any:
    n, length, channels = x.size()
    q, k, v = net.qkv(x).split(channels, dim=2)
    k = k.view(n, length, HEADS, channels // HEADS).transpose(1, 2)
    q = q.view(n, length, HEADS, channels // HEADS).transpose(1, 2)
    v = v.view(n, length, HEADS, channels // HEADS).transpose(1, 2)
    att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
    att = att.masked_fill(net.mask[:, :, :length, :length] == 0, float("-inf"))
    att = F.dropout(F.softmax(att, dim=-1), 0.0, net.training)
    return (att @ v).transpose(1, 2).contiguous().view(n, length, channels)


def by_heads(net: Any, x: Any) -> list[Any]:
    q, k, v = net.qkv(x).chunk(3, dim=-1)
    return [part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (q, k, v)]


def fused(**options: Any) -> Callable[[Any, Any], Any]:
    """torch's own function, heads by chunks; a `mask` is the module's."""

    def mix(net: Any, x: Any) -> Any:
        q, k, v = by_heads(net, x)
        mask = {"attn_mask": net.mask} if net.mask is not None else {}
        return F.scaled_dot_product_attention(q, k, v, **mask, **options).transpose(1, 2).flatten(2)

    return mix


def one_head(net: Any, x: Any) -> Any:
    q, k, v = torch.chunk(net.qkv(x), 3, 2)
    return torch.bmm(torch.softmax(torch.bmm(q, k.mT) / 2.5, -1), v)


def shared_keys(net: Any, x: Any) -> Any:
    """Queries of several heads look at the keys and values of one."""
    n, length, channels = x.shape
    width = channels // HEADS
    q = net.qkv(x)[..., :channels].view(n, length, HEADS, width).transpose(1, 2)
    k, v = (net.qkv(x)[:, :, at : at + width].unsqueeze(1).expand(-1, HEADS, -1, -1) for at in (channels, channels + 5))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, length, channels)


def one_query(net: Any, x: Any) -> Any:
    """The first two steps ask, all of them answer; values are as wide as they like."""
    q, k = x[:, :2], net.qkv(x)[:, :, :CHANNELS]
    return F.scaled_dot_product_attention(q, k, net.qkv(x)[:, :, 7 : 7 + CHANNELS] * 0.5, scale=0.3)


def scores_plus(net: Any, x: Any) -> Any:
    q, k, v = by_heads(net, x)
    scores = torch.matmul(q, k.transpose(2, 3)) / 2 + net.mask
    return torch.matmul(net.soft(scores), v).transpose(1, 2).reshape(x.shape)


def causal(length: int = LENGTH) -> Tensor:
    return torch.ones(length, length).tril()


def of(mix: Callable[[Any, Any], Any], mask: Tensor | None = None) -> Callable[[], nn.Module]:
    return lambda: Attend(mix, mask)


def multihead(mask: Tensor | None = None, **options: Any) -> Callable[[], nn.Module]:
    def mix(net: Any, x: Any) -> Any:
        return net.attend(x, x, x, need_weights=False, attn_mask=net.mask)[0]

    return lambda: Attend(mix, mask, attend=nn.MultiheadAttention(CHANNELS, HEADS, batch_first=True, **options))


def xs() -> Tensor:
    return sequence(LENGTH, CHANNELS)


PLAIN = "linear attention linear"
ATTENTION = {
    "timm": Case(of(timm), xs, PLAIN),
    "nano": Case(of(nano, causal().long()[None, None]), xs, PLAIN),
    "nano, from a longer mask": Case(of(nano, causal(8).long()[None, None]), xs, PLAIN),
    "fused": Case(of(fused()), xs, PLAIN),
    "fused, causal": Case(of(fused(is_causal=True)), xs, PLAIN),
    "fused, scaled": Case(of(fused(scale=0.7)), xs, PLAIN),
    "fused, hidden": Case(of(fused(), causal().bool()), xs, PLAIN),
    "fused, added": Case(of(fused(), torch.randn(LENGTH, LENGTH)), xs, PLAIN),
    "fused, added by head": Case(of(fused(), torch.randn(HEADS, LENGTH, LENGTH)), xs, PLAIN),
    "fused, one row for all": Case(of(fused(), torch.randn(1, 1, 1, LENGTH)), xs, PLAIN),
    "scores plus numbers": Case(
        lambda: Attend(scores_plus, torch.randn(HEADS, 1, LENGTH), soft=nn.Softmax(dim=-1)), xs, PLAIN
    ),
    "one head": Case(of(one_head), xs, PLAIN),
    "one token": Case(of(timm), lambda: sequence(1, CHANNELS), PLAIN),
    "keys of one head": Case(of(shared_keys), xs, "linear linear linear attention linear"),
    "fewer queries": Case(of(one_query), xs, "linear linear attention scale linear"),
    "multihead": Case(multihead(), xs, "linear attention linear linear"),
    "multihead, no bias": Case(multihead(bias=False), xs, "linear attention linear linear"),
    "multihead, causal": Case(multihead(~causal().bool()), xs, "linear attention linear linear"),
    "multihead, added": Case(multihead(torch.randn(LENGTH, LENGTH)), xs, "linear attention linear linear"),
    "multihead with weights": Case(
        lambda: Attend(
            lambda net, x: net.attend(x, x, x)[0], attend=nn.MultiheadAttention(CHANNELS, 2, batch_first=True)
        ),
        xs,
        "linear attention linear linear",
    ),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name: str) -> None:
    check(ATTENTION[name])


class Reader(nn.Module):
    """Tokens, some of them padding, through one attention."""

    def __init__(self, mix: Callable[[Any, Any, Any], Any]) -> None:
        super().__init__()
        self.mix, self.embedding = mix, nn.Embedding(11, CHANNELS)
        self.attend = nn.MultiheadAttention(CHANNELS, HEADS, batch_first=True)
        self.own = models.Attention(CHANNELS, HEADS)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(self, x, self.embedding(x))


def padded() -> Tensor:
    text = tokens(LENGTH)
    text[:, 0] = 3  # no text of padding alone
    text[0, 2:], text[1, 1:] = 0, 4
    return text


def nothing_but_padding() -> Tensor:
    return torch.cat([padded(), torch.zeros(1, LENGTH, dtype=torch.int64)])


def fused_tokens(net: Any, tokens: Any, x: Any) -> Any:
    return F.scaled_dot_product_attention(x, x, x, attn_mask=(tokens != 0)[:, None, :])


TEXTS = {
    "padding": Case(
        lambda: Reader(lambda net, t, x: net.attend(x, x, x, key_padding_mask=t == 0, need_weights=False)[0]),
        padded,
        "embedding linear attention linear",
    ),
    "another token": Case(
        lambda: Reader(lambda net, t, x: net.attend(x, x, x, key_padding_mask=t.eq(4))[0]),
        padded,
        "embedding linear attention linear",
    ),
    "shown tokens": Case(lambda: Reader(fused_tokens), padded, "embedding attention"),
    "texts of padding alone": Case(lambda: Reader(fused_tokens), nothing_but_padding, "embedding attention"),
    "padding alone, whole attention": Case(
        lambda: Reader(lambda net, t, x: net.attend(x, x, x, key_padding_mask=t == 0, need_weights=False)[0]),
        nothing_but_padding,
        "embedding linear attention linear",
    ),
    "hidden tokens": Case(
        lambda: Reader(lambda net, t, x: net.own(x, models.hidden_tokens(t, 4))),
        lambda: torch.cat([padded(), torch.full((1, LENGTH), 4)]),
        "embedding linear attention linear",
    ),
    "mean of shown": Case(
        lambda: Reader(lambda net, t, x: models.mean_of_shown(x, models.hidden_tokens(t))),
        lambda: torch.cat([padded(), torch.zeros(1, LENGTH, dtype=torch.int64)]),
        "embedding mean_rows",
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_masks_of_tokens(name: str) -> None:
    check(TEXTS[name])


def with_token(net: Any, x: Any) -> Any:
    x = net.patches(x).flatten(2).transpose(1, 2)
    return (torch.cat([net.token.expand(x.shape[0], -1, -1), x], dim=1) + net.places)[:, 0]


def repeated_token(net: Any, x: Any) -> Any:
    x = net.patches(x)
    x = x.reshape(x.shape[0], x.shape[1], -1).permute(0, 2, 1)
    x = x + net.places[:, 1:]
    return torch.cat((x, net.token.repeat(x.shape[0], 1, 1)), 1)[:, 1:].mean(1)


def patched(forward: Callable[[Any, Any], Any], places: int = 7) -> Callable[[], nn.Module]:
    return lambda: Net(forward, patches=nn.Conv2d(2, 4, 2, 2), token=parameter(1, 1, 4), places=parameter(1, places, 4))


def linear_then(forward: Callable[[Any, Any], Any], **parts: Any) -> Callable[[], nn.Module]:
    return lambda: Net(lambda net, x: forward(net, net.linear(x)), linear=nn.Linear(4, 6), **{
        name: parameter(*shape) for name, shape in parts.items()
    })  # fmt: skip


AROUND = {
    "class token": Case(patched(with_token), lambda: picture(2, 6, 4), "conv2d pick concatenate add_parameter select"),
    "repeated token": Case(
        patched(repeated_token), lambda: picture(2, 6, 4), "conv2d pick add_parameter concatenate pick mean_rows"
    ),
    "places of tokens": Case(
        lambda: Net(
            lambda net, x: net.words(x) + net.places[:, : x.shape[1]],
            words=nn.Embedding(11, 3),
            places=parameter(1, 8, 3),
        ),
        tokens,
        "embedding add_parameter",
    ),
    "a parameter for all rows": Case(linear_then(lambda net, x: net.a + x, a=(6,)), sequence, "linear add_parameter"),
    "a parameter for all rows, in place": Case(
        linear_then(lambda net, x: x.add_(net.a), a=(1, 1, 6)), sequence, "linear add_parameter"
    ),
    "a parameter on vectors": Case(
        lambda: Net(lambda net, x: net.linear(x) + net.a, linear=nn.Linear(6, 3), a=parameter(3)),
        vector,
        "linear add_parameter",
    ),
    "steps": Case(linear_then(lambda net, x: x[:, 1:4].relu()), sequence, "linear pick relu"),
    "features": Case(linear_then(lambda net, x: x[..., 1:4].relu()), sequence, "linear pick relu"),
    "features of vectors": Case(
        lambda: Net(lambda net, x: net.linear(x)[:, 2:5], linear=nn.Linear(6, 6)), vector, "linear pick"
    ),
    "every other step": Case(linear_then(lambda net, x: x[:, ::2]), sequence, "linear pick"),
    "turned": Case(linear_then(lambda net, x: x.transpose(1, 2).relu()), sequence, "linear pick relu"),
    "turned there and back": Case(
        linear_then(lambda net, x: x.transpose(1, 2).transpose(2, 1).relu()), sequence, "linear relu"
    ),
    "a feature of all steps": Case(linear_then(lambda net, x: x.select(2, 3)), sequence, "linear pick"),
    "put together": Case(
        linear_then(lambda net, x: torch.cat([x, net.a[None].expand(x.size(0), 2, 6), x], dim=-2), a=(2, 6)),
        sequence,
        "linear concatenate",
    ),
    "mean of steps": Case(linear_then(lambda net, x: x.mean(dim=1)), sequence, "linear mean_rows"),
    "mean of steps, kept": Case(
        linear_then(lambda net, x: x.mean(1, keepdim=True).squeeze(1).relu()), sequence, "linear mean_rows relu"
    ),
    "scaled": Case(linear_then(lambda net, x: (3 * x / 2.0).relu() * 0.5), sequence, "linear scale scale relu scale"),
    "scaled and turned": Case(
        linear_then(lambda net, x: (x.transpose(1, 2) * 0.3).relu()), sequence, "linear pick scale relu"
    ),
}


@pytest.mark.parametrize("name", AROUND)
def test_what_transformers_need_around_attention(name: str) -> None:
    check(AROUND[name])


class Positions(nn.Module):
    """Learnt places looked up by a buffer of positions, as GPTs do; and waves, which are constants."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(11, 4), nn.Embedding(9, 4)
        self.register_buffer("positions", torch.arange(9)[None])
        self.register_buffer("waves", torch.randn(1, 9, 4))

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        return self.words(x) + self.places(self.positions[:, :length]) + self.waves[:, 1 : length + 1]


def test_positions_and_waves() -> None:
    traced = check(Case(Positions, tokens, "embedding add_parameter add_parameter"))
    assert describe(traced).splitlines()[2].endswith("places.weight")
    assert "waves" not in [slot.name for slot in traced.packing.slots]


MODELS = {
    "small_vit": Case(lambda: models.small_vit(size=12), lambda: picture(1, 12, 12), None, "cross_entropy"),
    "text_transformer": Case(
        lambda: models.text_transformer(11, 6, 3, 8, 2, 2),
        lambda: torch.cat([tokens(6), torch.zeros(1, 6, dtype=torch.int64), tokens(6) // 8]),
        None,
        "cross_entropy",
    ),
    "adapted vit": Case(
        lambda: lora(models.small_vit(size=8), 2, alpha=3, trained=["head"]),
        lambda: picture(1, 8, 8),
        None,
        "cross_entropy",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    check(MODELS[name])


def test_a_block_has_so_many_instructions() -> None:
    traced = trace(models.small_vit(), picture(1, 28, 28), "cross_entropy")
    ops = [step.op for step in traced.instructions]
    block = ["layer_norm", "linear", "attention", "linear", "add", "layer_norm", "linear", "gelu", "linear", "add"]
    assert ops == ["conv2d", "pick", "concatenate", "add_parameter", *4 * block, "layer_norm", "select", "linear"]


# ---- frozen parameters ----------------------------------------------------------------------------------------------


def frozen(module: nn.Module, *names: str) -> nn.Module:
    for name in names:
        module.get_parameter(name).requires_grad_(False)
    return module


FROZEN = {
    "weight": Case(
        lambda: frozen(nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2)), "0.weight"), vector, "linear linear"
    ),
    "bias": Case(lambda: frozen(nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2)), "1.bias"), vector, "linear linear"),
    "convolution": Case(
        lambda: frozen(
            nn.Sequential(nn.Conv2d(2, 3, 3), nn.GroupNorm(1, 3), nn.Flatten(), nn.Linear(45, 2)),
            "0.weight",
            "0.bias",
            "1.weight",
        ),
        picture,
        "conv2d group_norm flatten linear",
    ),
    "embedding and lstm": Case(
        lambda: frozen(
            nn.Sequential(nn.Embedding(11, 3), models.LSTM(3, 4), nn.LayerNorm(4)),
            "0.weight",
            "1.weight_ih_l0",
            "1.bias_l0",
            "2.bias",
        ),
        tokens,
        "embedding lstm layer_norm",
    ),
    "class token and places": Case(
        lambda: frozen(patched(with_token)(), "token", "places"),
        lambda: picture(2, 6, 4),
        "conv2d pick concatenate add_parameter select",
    ),
    "computed from constants": Case(
        lambda: frozen(Net(lambda net, x: F.linear(x, 2 * net.w), w=parameter(2, 6), u=parameter(1)), "w"),
        vector,
        "linear",
    ),
}


def test_a_layer_that_is_called_twice_has_constants_for_each_time() -> None:
    check(Case(placed_twice, sequence, "add_parameter linear add_parameter"))


@pytest.mark.parametrize("name", FROZEN)
def test_frozen_parameters_are_constants(name: str) -> None:
    traced = check(FROZEN[name])
    held = [name for name, parameter in FROZEN[name].module().named_parameters() if not parameter.requires_grad]
    assert not set(held) & {slot.name for slot in traced.packing.slots}
    assert any(place < -1 for step in traced.instructions for place in step.params)


def test_frozen_parameters_are_told() -> None:
    traced = trace(FROZEN["weight"].module(), vector(), "mse")
    assert "0.weight (frozen) 0.bias" in describe(traced)


# ---- refusals -------------------------------------------------------------------------------------------------------


def placed(**options: Any) -> nn.Module:
    """Learnt places, looked up by a buffer."""
    net = Net(lambda net, x: x + net.places(net.numbers), places=nn.Embedding(5, 4, **options))
    net.register_buffer("numbers", torch.arange(5))
    return net


def placed_twice() -> nn.Module:
    """One frozen table, of which two parts are looked up."""
    net = Net(
        lambda net, x: net.linear(x + net.table(net.a)) + net.table(net.b),
        linear=nn.Linear(4, 4),
        table=nn.Embedding(9, 4),
    )
    net.table.requires_grad_(False)
    net.register_buffer("a", torch.arange(5))
    net.register_buffer("b", torch.arange(4, 9))
    return net


def dropped(net: Any, x: Any) -> Any:
    return F.dropout((x @ x.mT).softmax(-1), 0.1, net.training) @ x


def overlapping(net: Any, x: Any) -> Any:
    return net.linear(x) + net.a + net.a[1:2]


REFUSED: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], str]] = {
    "dropout of torch's own": (of(fused(dropout_p=0.1)), xs, "has dropout_p=0.1"),
    "dropout of probabilities": (of(lambda net, x: dropped(net, x)), xs, "is given attention's probabilities"),
    "a mask that hides all": (of(fused(), torch.zeros(LENGTH, LENGTH).bool()), xs, "hides all keys from a query"),
    "a learnt mask": (
        lambda: Attend(lambda net, x: F.scaled_dot_product_attention(x, x, x, net.w), w=parameter(LENGTH, LENGTH)),
        xs,
        "is given parameter 'w' as a mask",
    ),
    "time first": (
        lambda: Attend(lambda net, x: net.attend(x, x, x)[0], attend=nn.MultiheadAttention(CHANNELS, 2)),
        xs,
        r"layer 'attend' \(MultiheadAttention\) has batch_first=False",
    ),
    "weights used": (
        lambda: Attend(
            lambda net, x: net.attend(x, x, x)[1] + x, attend=nn.MultiheadAttention(CHANNELS, 2, batch_first=True)
        ),
        xs,
        "uses attention's weights",
    ),
    "other keys": (
        lambda: Attend(
            lambda net, x: net.attend(x, net.out(x), x)[0], attend=nn.MultiheadAttention(CHANNELS, 2, batch_first=True)
        ),
        xs,
        "has keys or values that are not its queries",
    ),
    "a softmax over queries": (of(lambda net, x: (x @ x.mT).softmax(1) @ x), xs, "is not along the keys"),
    "products of features": (of(lambda net, x: x.mT @ x), xs, "is given attention.s scores"),
    "all tokens but one": (
        lambda: Reader(lambda net, t, x: net.attend(x, x, x, key_padding_mask=t != 0)[0]),
        padded,
        "hides all tokens but one",
    ),
    "queries by their tokens": (
        lambda: Reader(lambda net, t, x: net.own(x) + F.scaled_dot_product_attention(x, x, x, (t != 0)[:, :, None])),
        padded,
        "hides queries by their tokens",
    ),
    "a large number for padding": (
        lambda: Reader(lambda net, t, x: (x @ x.mT).masked_fill((t == 0)[:, None], -1e9).softmax(-1) @ x),
        padded,
        r"fills the scores of padding with -1000000000.0",
    ),
    "divided by the batch": (linear_then(lambda net, x: x / x.shape[0]), sequence, "the number of examples in a batch"),
    "half a batch": (linear_then(lambda net, x: x * (2 * x.size(0))), sequence, "the number of examples in a batch"),
    "positions of which one is padding": (lambda: placed(padding_idx=0), sequence, "has a padding_idx"),
    "positions of a largest norm": (lambda: placed(max_norm=1.0), sequence, "has max_norm=1.0"),
    "overlapping parts of a parameter": (
        lambda: Net(overlapping, linear=nn.Linear(4, 6), a=parameter(5, 6)),
        sequence,
        "uses a part of parameter 'a' of which another part is used too",
    ),
    "side by side": (linear_then(lambda net, x: torch.cat([x, x], -1)), sequence, "is along axis -1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    module, inputs, says = REFUSED[name]
    with pytest.raises(Unsupported, match=says) as error:
        trace(module(), inputs(), "mse")
    assert "\n" not in str(error.value)
