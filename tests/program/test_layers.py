"""Every layer and option that the native engine has, as modules."""

from __future__ import annotations

import pytest
from torch import nn

from fastfed import models
from fastfed.norms import frozen

from .support import Case, Net, check, conv, of, picture, sequence, sparse, tokens, vector

LAYERS = {
    "linear": Case(lambda: nn.Linear(6, 3), vector, "linear"),
    "linear, no bias": Case(lambda: nn.Linear(6, 3, bias=False), vector, "linear"),
    "linear on a sequence": Case(lambda: nn.Linear(4, 3), sequence, "linear", "cross_entropy"),
    "linear on a sparse input": Case(lambda: nn.Linear(9, 4), sparse, "sparse_linear"),
    "linear on a sparse input, no bias": Case(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(9, 4, bias=False), nn.ReLU(), nn.Linear(4, 2)),
        sparse,
        "sparse_linear relu linear",
    ),
    "conv": Case(conv(3, 3), picture, "conv2d flatten"),
    "conv, no bias": Case(conv(3, 3, bias=False), picture, "conv2d flatten"),
    "conv, oblong": Case(conv(5, (2, 3), (3, 1), (1, 2)), lambda: picture(2, 6, 9), "conv2d flatten"),
    "conv, same": Case(conv(3, (3, 5), padding="same"), picture, "conv2d flatten"),
    "conv, valid": Case(conv(3, (4, 2), padding="valid"), picture, "conv2d flatten"),
    "max pool": Case(of(lambda: nn.MaxPool2d(2)), picture, "conv2d max_pool flatten"),
    "max pool, oblong": Case(of(lambda: nn.MaxPool2d((3, 2), (2, 1), (1, 0))), picture, "conv2d max_pool flatten"),
    "avg pool": Case(of(lambda: nn.AvgPool2d(3, 2, 1)), picture, "conv2d avg_pool flatten"),
    "avg pool, padding not counted": Case(
        of(lambda: nn.AvgPool2d((3, 2), (1, 2), (1, 0), count_include_pad=False)), picture, "conv2d avg_pool flatten"
    ),
    "adaptive avg pool": Case(of(lambda: nn.AdaptiveAvgPool2d(1)), picture, "conv2d adaptive_avg_pool flatten"),
    "adaptive avg pool, oblong": Case(
        of(lambda: nn.AdaptiveAvgPool2d((3, None))), picture, "conv2d adaptive_avg_pool flatten"
    ),
    "adaptive max pool": Case(of(lambda: nn.AdaptiveMaxPool2d((2, 3))), picture, "conv2d adaptive_max_pool flatten"),
    "relu": Case(of(nn.ReLU), picture, "conv2d relu flatten"),
    "relu in place": Case(of(lambda: nn.ReLU(inplace=True)), picture, "conv2d relu flatten"),
    "gelu": Case(of(nn.GELU), picture, "conv2d gelu flatten"),
    "gelu by tanh": Case(of(lambda: nn.GELU("tanh")), picture, "conv2d gelu flatten"),
    "sigmoid": Case(of(nn.Sigmoid), picture, "conv2d sigmoid flatten"),
    "tanh": Case(of(nn.Tanh), picture, "conv2d tanh flatten"),
    "silu": Case(of(nn.SiLU), picture, "conv2d silu flatten"),
    "silu in place": Case(of(lambda: nn.SiLU(inplace=True)), picture, "conv2d silu flatten"),
    "activations on a sequence": Case(
        lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.GELU(), nn.Dropout(0.2)),
        sequence,
        "linear tanh gelu dropout",
    ),
    "dropout": Case(of(lambda: nn.Dropout(0.3)), picture, "conv2d dropout flatten"),
    "dropout of all": Case(of(lambda: nn.Dropout(1.0)), picture, "conv2d dropout flatten"),
    "dropout of nothing": Case(of(lambda: nn.Dropout(0.0)), picture, "conv2d flatten"),
    "identity": Case(of(nn.Identity), picture, "conv2d flatten"),
    "group norm": Case(of(lambda: nn.GroupNorm(2, 4, eps=1e-2)), picture, "conv2d group_norm flatten"),
    "group norm, plain": Case(of(lambda: nn.GroupNorm(4, 4, affine=False)), picture, "conv2d group_norm flatten"),
    "batch norm": Case(of(lambda: nn.BatchNorm2d(4, eps=1e-2)), picture, "conv2d batch_norm flatten"),
    "batch norm, plain": Case(of(lambda: nn.BatchNorm2d(4, affine=False)), picture, "conv2d batch_norm flatten"),
    "batch norm of vectors": Case(
        lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 4), nn.BatchNorm1d(4)),
        vector,
        "batch_norm linear batch_norm",
    ),
    "batch norm alone": Case(lambda: nn.BatchNorm1d(6), vector, "batch_norm"),
    "batch norm, frozen": Case(
        lambda: frozen(nn.Sequential(nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(70, 3), nn.BatchNorm1d(3))),
        picture,
        "batch_norm flatten linear batch_norm",
    ),
    "layer norm": Case(lambda: nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4, eps=1e-2)), vector, "linear layer_norm"),
    "layer norm, plain, on a sequence": Case(
        lambda: nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3, elementwise_affine=False)), sequence, "linear layer_norm"
    ),
    "layer norm, no bias": Case(
        lambda: nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3, bias=False)), sequence, "linear layer_norm"
    ),
    "embedding": Case(lambda: nn.Embedding(11, 3), tokens, "embedding"),
    "embedding with padding": Case(lambda: nn.Embedding(11, 3, padding_idx=-2), tokens, "embedding"),
    "lstm": Case(lambda: models.LSTM(4, 3), sequence, "lstm"),
    "lstm, two layers": Case(lambda: nn.Sequential(models.LSTM(4, 3, 2)), sequence, "lstm lstm"),
    "torch's lstm": Case(
        lambda: Net(lambda net, x: net.lstm(x)[0], lstm=nn.LSTM(4, 3, batch_first=True)), sequence, "lstm"
    ),
    "torch's lstm, two layers, no bias": Case(
        lambda: Net(lambda net, x: net.lstm(x)[0], lstm=nn.LSTM(4, 3, 2, bias=False, batch_first=True)),
        sequence,
        "lstm lstm",
    ),
    "flatten": Case(lambda: nn.Sequential(nn.Flatten(), nn.Linear(70, 2)), picture, "flatten linear"),
    "flatten a sequence": Case(lambda: nn.Sequential(nn.Flatten(), nn.Linear(20, 2)), sequence, "flatten linear"),
    "unflatten": Case(
        lambda: nn.Sequential(nn.Unflatten(1, (2, 3, 4)), nn.Conv2d(2, 3, 2)),
        lambda: vector(24),
        "image conv2d flatten",
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str) -> None:
    check(LAYERS[name])
