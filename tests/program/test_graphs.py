"""Whole graphs: residual blocks, tied weights, work in place, windows of any size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from fastfed import models

from .support import Block, Case, Net, check, picture, sequence, tokens, vector


def residual(net: Any, x: Any) -> Any:
    out = F.relu(net.norm(net.conv(x)))
    out += net.shortcut(x)
    return F.relu(out)


def sum_seen_under_another_name(net: Any, x: Any) -> Any:
    y = kept = net.linear(x)
    y += net.linear(x.relu())
    return kept + y


def relu_in_place_ignored(net: Any, x: Any) -> Any:
    y = net.linear(x)
    F.relu(y, inplace=True)
    return y


def relu_in_place_through_a_view(net: Any, x: Any) -> Any:
    y = net.conv(x)
    y.view(y.size(0), -1).relu_()
    return net.conv2(y)


def preactivation(net: Any, x: Any) -> Any:
    """Where an in-place ReLU also changes the shortcut."""
    y = net.conv(x)
    return y + net.conv2(F.relu(y, inplace=True))


def two_views(net: Any, x: Any) -> Any:
    """One flatten serves both."""
    return net.a(x.flatten(1)) + net.b(x.view(x.size(0), -1))


def unused(net: Any, x: Any) -> Any:
    y = net.linear(x)
    torch.tanh(y)
    return F.dropout(y, 0.1, net.training)


def tied_names() -> nn.Module:
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.ReLU(), layer)


def tied_lstms() -> nn.Module:
    net = nn.Sequential(models.LSTM(4, 4), models.LSTM(4, 4))
    net[1].weight_hh_l0 = net[0].weight_hh_l0
    return net


def tied_embedding() -> nn.Module:
    net = nn.Sequential(nn.Embedding(11, 4), models.LSTM(4, 4), nn.Linear(4, 11))
    net[2].weight = net[0].weight
    return net


def conv_pair(forward: Callable[[Any, Any], Any]) -> Callable[[], nn.Module]:
    return lambda: Net(forward, conv=nn.Conv2d(2, 2, 3, padding=1), conv2=nn.Conv2d(2, 2, 1))


GRAPHS = {
    "residual block": Case(
        lambda: Net(
            residual,
            conv=nn.Conv2d(2, 4, 3, 2, 1, bias=False),
            norm=nn.GroupNorm(2, 4),
            shortcut=nn.Conv2d(2, 4, 1, 2, bias=False),
        ),
        picture,
        "conv2d group_norm relu conv2d add relu flatten",
    ),
    "nested blocks": Case(
        lambda: nn.Sequential(
            Block(lambda parts, x: parts["a"](x) + x, a=Block(lambda parts, x: parts["b"](x).tanh(), b=nn.Linear(6, 6)))
        ),
        vector,
        "linear tanh add",
    ),
    "x += y under another name": Case(
        lambda: Net(sum_seen_under_another_name, linear=nn.Linear(6, 6)), vector, "linear relu linear add add"
    ),
    "in place, result ignored": Case(lambda: Net(relu_in_place_ignored, linear=nn.Linear(6, 6)), vector, "linear relu"),
    "in place, through a view": Case(
        conv_pair(relu_in_place_through_a_view), picture, "conv2d flatten relu image conv2d flatten"
    ),
    "in place, before the shortcut": Case(conv_pair(preactivation), picture, "conv2d relu conv2d add flatten"),
    "two views": Case(
        lambda: Net(two_views, a=nn.Linear(70, 2), b=nn.Linear(70, 2)), picture, "flatten linear linear add"
    ),
    "results that nobody uses": Case(lambda: Net(unused, linear=nn.Linear(6, 6)), vector, "linear dropout"),
    "tied layers": Case(tied_names, vector, "linear relu linear"),
    "tied lstms": Case(tied_lstms, sequence, "lstm lstm"),
    "tied embedding": Case(tied_embedding, tokens, "embedding lstm linear", "cross_entropy"),
    "tied convolution": Case(
        lambda: Net(lambda net, x: net.conv(net.conv(x)), conv=nn.Conv2d(2, 2, 3)), picture, "conv2d conv2d flatten"
    ),
    "parameters that nobody uses": Case(
        lambda: Net(lambda net, x: net.b(x), a=nn.Conv2d(1, 2, 3), b=nn.Linear(6, 2)), vector, "linear"
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs(name: str) -> None:
    check(GRAPHS[name])


@settings(max_examples=20, deadline=None)
@given(
    size=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    pad=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    channels=st.tuples(st.integers(1, 3), st.integers(1, 3)),
)
def test_windows_of_any_size(
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    pad: tuple[int, int],
    channels: tuple[int, int],
) -> None:
    assume(all(2 * p <= k <= s for p, k, s in zip(pad, kernel, size, strict=True)))
    layers = (
        nn.Conv2d(*channels, kernel, stride, pad),
        nn.Sequential(nn.MaxPool2d(kernel, stride, pad), nn.Conv2d(*channels, 1)),
        nn.Sequential(nn.AvgPool2d(kernel, stride, pad), nn.Conv2d(*channels, 1)),
    )
    for module in layers:
        check(Case(module.cpu, lambda: picture(channels[0], *size)))
