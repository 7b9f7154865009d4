"""Every model of fastfed.models, traced."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
import torch
from torch import nn

from fastfed import models
from fastfed.data.augment import Augment
from fastfed.data.store import Pixels
from fastfed.program import trace

from .support import Case, check, picture, sparse, tokens, vector

MODELS = {
    "softmax_regression": Case(models.softmax_regression, lambda: vector(784), "linear", "cross_entropy"),
    "softmax_regression of pixels": Case(
        models.softmax_regression,
        lambda: Pixels(torch.randint(256, (3, 1, 28, 28), dtype=torch.uint8), (0.1,), (0.3,)),
        "flatten linear",
        "cross_entropy",
    ),
    "softmax_regression of crops": Case(
        lambda: models.softmax_regression(2 * 5 * 5),
        lambda: Pixels(torch.randint(256, (3, 2, 7, 8), dtype=torch.uint8), augment=Augment(5, True, True)),
        "flatten linear",
        "cross_entropy",
    ),
    "mlp": Case(lambda: models.mlp(784, 200, 200, 10), lambda: vector(784), "linear relu linear relu linear"),
    "emnist_cnn": Case(
        models.emnist_cnn,
        lambda: picture(1, 28, 28),
        "conv2d conv2d relu max_pool dropout flatten linear dropout linear",
        "cross_entropy",
    ),
    "emnist_cnn plain": Case(
        lambda: models.emnist_cnn(10, False, activations="code"),
        lambda: picture(1, 28, 28),
        "conv2d relu conv2d relu max_pool flatten linear relu linear",
        "cross_entropy",
    ),
    "emnist_autoencoder": Case(
        models.emnist_autoencoder, lambda: picture(1, 28, 28), "flatten" + 8 * " linear sigmoid"
    ),
    "shakespeare_lstm": Case(
        models.shakespeare_lstm, lambda: tokens(12, 90), "embedding lstm lstm linear", "cross_entropy"
    ),
    "stack_overflow_nwp": Case(
        models.stack_overflow_nwp, lambda: tokens(20, 10004), "embedding lstm linear linear", "cross_entropy"
    ),
    "stack_overflow_lr": Case(models.stack_overflow_lr, lambda: sparse(10000), "sparse_linear", "binary_cross_entropy"),
    "fmnist_cnn": Case(
        models.fmnist_cnn,
        lambda: picture(1, 28, 28),
        "conv2d max_pool relu conv2d dropout max_pool relu flatten linear relu dropout linear",
        "cross_entropy",
    ),
    "lenet": Case(
        models.lenet,
        lambda: picture(1, 28, 28),
        "conv2d relu max_pool conv2d relu max_pool flatten linear relu linear relu linear",
        "cross_entropy",
    ),
    "resnet18_gn": Case(models.resnet18_gn, lambda: picture(3, 9, 8), None, "cross_entropy"),
    "resnet18_bn": Case(models.resnet18_bn, lambda: picture(3, 9, 8), None, "cross_entropy"),
    "bottlenecks": Case(  # resnet50_gn's, but fewer
        lambda: models._resnet((1, 2), 5, partial(nn.GroupNorm, 4), bottleneck=True),
        lambda: picture(3, 9, 8),
        None,
        "cross_entropy",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    check(MODELS[name])


def test_resnet50() -> None:
    traced = trace(models.resnet50_gn(), picture(3, 24, 24), "cross_entropy")
    counts = Counter(step.op for step in traced.instructions)
    assert counts == {
        "conv2d": 53, "group_norm": 53, "relu": 49, "add": 16, "adaptive_avg_pool": 1, "flatten": 1, "linear": 1,
    }  # fmt: skip
    assert len(traced.layouts) == 53
    assert traced.values[traced.instructions[-3].inputs[0]].shape == (2048, 3, 3)
