"""The functional forms, tensor methods and shape arithmetic of forward passes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastfed import models
from fastfed.program import trace

from .support import Case, Net, after_conv, check, linear_then, parameter, picture, sequence, tokens, vector


def unpacked_lstm(net: Any, x: Any) -> Any:
    outputs, (_hidden, _cell) = net.lstm(x)
    return outputs[:, -1]


def unpacked_shape(net: Any, x: Any) -> Any:
    x = net.conv(x)
    n, c, h, w = x.shape
    return net.linear(x.view(n, c * h * w))


FUNCTIONS = {
    "F.relu": Case(linear_then(F.relu), vector, "linear relu"),
    "torch.relu": Case(linear_then(torch.relu), vector, "linear relu"),
    "x.relu()": Case(linear_then(lambda x: x.relu()), vector, "linear relu"),
    "F.relu_": Case(linear_then(F.relu_), vector, "linear relu"),
    "x.relu_()": Case(linear_then(lambda x: x.relu_()), vector, "linear relu"),
    "F.relu, named": Case(
        linear_then(lambda x: torch.flatten(input=F.relu(input=x), start_dim=1)), vector, "linear relu"
    ),
    "F.sigmoid": Case(linear_then(F.sigmoid), vector, "linear sigmoid"),
    "torch.sigmoid": Case(linear_then(torch.sigmoid), vector, "linear sigmoid"),
    "x.sigmoid_()": Case(linear_then(lambda x: x.sigmoid_()), vector, "linear sigmoid"),
    "F.tanh": Case(linear_then(F.tanh), vector, "linear tanh"),
    "torch.tanh": Case(linear_then(torch.tanh), vector, "linear tanh"),
    "x.tanh()": Case(linear_then(lambda x: x.tanh()), vector, "linear tanh"),
    "F.silu": Case(linear_then(F.silu), vector, "linear silu"),
    "F.gelu": Case(linear_then(F.gelu), vector, "linear gelu"),
    "F.gelu by tanh": Case(linear_then(lambda x: F.gelu(x, approximate="tanh")), vector, "linear gelu"),
    "F.dropout": Case(
        lambda: Net(lambda net, x: F.dropout(net.linear(x), 0.4, net.training), linear=nn.Linear(6, 6)),
        vector,
        "linear dropout",
    ),
    "F.dropout, never": Case(linear_then(lambda x: F.dropout(x, training=False)), vector, "linear"),
    "F.linear": Case(
        lambda: Net(lambda net, x: F.linear(x, net.w, net.b), w=parameter(3, 6), b=parameter(3)), vector, "linear"
    ),
    "F.conv2d": Case(
        lambda: Net(lambda net, x: F.conv2d(x, net.w, stride=2, padding=(1, 0)), w=parameter(3, 2, 3, 2)),
        picture,
        "conv2d flatten",
    ),
    "F.embedding": Case(
        lambda: Net(lambda net, x: F.embedding(x, net.w, padding_idx=3), w=parameter(11, 2)), tokens, "embedding"
    ),
    "F.group_norm": Case(
        lambda: Net(lambda net, x: F.group_norm(x, 2, net.w), w=parameter(2)), picture, "group_norm flatten"
    ),
    "F.layer_norm": Case(
        lambda: Net(lambda net, x: F.layer_norm(x, (6,), bias=net.b), b=parameter(6)), vector, "layer_norm"
    ),
    "F.max_pool2d": Case(after_conv(lambda x: F.max_pool2d(x, 3, 2, 1)), picture, "conv2d max_pool flatten"),
    "torch.max_pool2d": Case(after_conv(lambda x: torch.max_pool2d(x, (2, 3))), picture, "conv2d max_pool flatten"),
    "F.avg_pool2d": Case(
        after_conv(lambda x: F.avg_pool2d(x, (2, 3), padding=1, count_include_pad=False)),
        picture,
        "conv2d avg_pool flatten",
    ),
    "F.adaptive_avg_pool2d": Case(
        after_conv(lambda x: F.adaptive_avg_pool2d(x, (2, 1))), picture, "conv2d adaptive_avg_pool flatten"
    ),
    "F.adaptive_max_pool2d": Case(
        after_conv(lambda x: F.adaptive_max_pool2d(x, 2)), picture, "conv2d adaptive_max_pool flatten"
    ),
    "mean over the picture": Case(
        after_conv(lambda x: x.mean((2, 3))), picture, "conv2d adaptive_avg_pool flatten", "cross_entropy"
    ),
    "mean over the picture, named": Case(
        after_conv(lambda x: torch.mean(x, dim=[-2, -1])), picture, "conv2d adaptive_avg_pool flatten", "cross_entropy"
    ),
    "mean, axes kept": Case(
        after_conv(lambda x: x.mean(dim=(3, 2), keepdim=True).squeeze(-1).squeeze(2)),
        picture,
        "conv2d adaptive_avg_pool flatten",
        "cross_entropy",
    ),
    "x + y": Case(linear_then(lambda x: x + x.relu()), vector, "linear relu add"),
    "torch.add": Case(linear_then(lambda x: torch.add(x, x.relu())), vector, "linear relu add"),
    "x.add": Case(linear_then(lambda x: x.add(x.relu())), vector, "linear relu add"),
    "x + x": Case(linear_then(lambda x: x + x), vector, "linear add"),
    "x[:, -1]": Case(lambda: Net(lambda net, x: net.lstm(x)[:, -1], lstm=models.LSTM(4, 3)), sequence, "lstm select"),
    "x[:, 2, :]": Case(
        lambda: Net(lambda net, x: net.lstm(x)[:, 2, :], lstm=models.LSTM(4, 3)), sequence, "lstm select"
    ),
    "x.select": Case(
        lambda: Net(lambda net, x: net.lstm(x).select(1, -2), lstm=models.LSTM(4, 3)), sequence, "lstm select"
    ),
    "torch's lstm, unpacked": Case(
        lambda: Net(unpacked_lstm, lstm=nn.LSTM(4, 3, 2, batch_first=True)),
        sequence,
        "lstm lstm select",
        "cross_entropy",
    ),
    "x.contiguous()": Case(linear_then(lambda x: x.contiguous().relu()), vector, "linear relu"),
    "sizes of parameters": Case(
        lambda: Net(lambda net, x: F.linear(x.view(-1, net.w.shape[1]), net.w), w=parameter(2, 20)),
        sequence,
        "flatten linear",
    ),
    "tokens.long()": Case(lambda: Net(lambda net, x: net.e(x.long()), e=nn.Embedding(11, 3)), tokens, "embedding"),
    "view(x.size(0), -1)": Case(
        lambda: Net(lambda net, x: net.linear(x.view(x.size(0), -1)), linear=nn.Linear(70, 2)),
        picture,
        "flatten linear",
    ),
    "view(-1, features)": Case(
        lambda: Net(lambda net, x: net.linear(x.view(-1, 2 * 7 * 5)), linear=nn.Linear(70, 2)),
        picture,
        "flatten linear",
    ),
    "reshape(x.shape[0], -1)": Case(
        lambda: Net(lambda net, x: net.linear(x.reshape((x.shape[0], -1))), linear=nn.Linear(20, 2)),
        sequence,
        "flatten linear",
    ),
    "n, c, h, w = x.shape": Case(
        lambda: Net(unpacked_shape, conv=nn.Conv2d(2, 3, 2), linear=nn.Linear(72, 2)), picture, "conv2d flatten linear"
    ),
    "torch.flatten": Case(
        lambda: Net(lambda net, x: net.linear(torch.flatten(x, start_dim=1)), linear=nn.Linear(70, 2)),
        picture,
        "flatten linear",
    ),
    "x.flatten(1)": Case(
        lambda: Net(lambda net, x: net.linear(x.flatten(1, -1)), linear=nn.Linear(70, 2)), picture, "flatten linear"
    ),
    "x.size(1) * x.size(2)": Case(
        lambda: Net(
            lambda net, x: net.linear(x.view(-1, x.size(1) * x.size(2) * x.shape[-1] // 1)), linear=nn.Linear(70, 2)
        ),
        picture,
        "flatten linear",
    ),
    "view into pictures": Case(
        lambda: Net(lambda net, x: net.conv(x.view(-1, 1, 6, 4)), conv=nn.Conv2d(1, 3, 3)),
        lambda: vector(24),
        "image conv2d flatten",
    ),
    "unsqueeze into pictures": Case(
        lambda: Net(lambda net, x: net.conv(x.unsqueeze(1)), conv=nn.Conv2d(1, 3, 3)),
        sequence,
        "flatten image conv2d flatten",
    ),
    "x[:, None]": Case(
        lambda: Net(lambda net, x: net.conv(x[:, None]), conv=nn.Conv2d(1, 3, 3)),
        sequence,
        "flatten image conv2d flatten",
    ),
    "there and back": Case(
        lambda: Net(lambda net, x: net.conv(x.flatten(1).view(-1, 2, 7, 5)), conv=nn.Conv2d(2, 3, 3)),
        picture,
        "conv2d flatten",
    ),
    "other channels": Case(
        lambda: Net(lambda net, x: net.conv(x.view(-1, 5, 7, 2)), conv=nn.Conv2d(5, 3, 2)),
        picture,
        "flatten image conv2d flatten",
    ),
    "output reshaped": Case(
        lambda: Net(lambda net, x: net.linear(x).view(-1, 1, 2, 3), linear=nn.Linear(6, 6)), vector, "linear"
    ),
    "pictures as output": Case(
        lambda: Net(lambda net, x: net.linear(x).view(-1, 1, 2, 3).relu(), linear=nn.Linear(6, 6)),
        vector,
        "linear image relu flatten",
    ),
    "arguments with defaults": Case(lambda: Optional(), vector, "linear"),
}


class Optional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x: Tensor, features: bool = False, scale: float | None = None) -> Any:
        y = self.linear(x)
        if scale is not None:
            y = y * scale
        return (x, y) if features else y


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    check(FUNCTIONS[name])


def test_float_of_floats() -> None:
    traced = trace(linear_then(lambda x: x.float().relu())(), vector(), "mse")
    assert [step.op for step in traced.instructions] == ["linear", "relu"]
