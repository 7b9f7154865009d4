"""The table of cases on which executors must agree: model x optimizer x data x what a round's work can ask for.

Every executor runs all of it. How close is close: an executor errs, against `eager` in float64, at most twice as much
as `eager` itself does in float32 (on a card, `self_test.FACTOR` times as much).
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastfed as ff
from fastfed import clients as ff_clients
from fastfed import models
from fastfed.batch_norm import own_places
from fastfed.clients import SM3, SPS, AdaGrad, Adam, Client, DeltaSGD, Momentum
from fastfed.data import Augment, Examples, Pixels, Sparse
from fastfed.losses import IGNORED, Loss, LossReduction
from fastfed.models import LSTM
from fastfed.norms import Statistics
from fastfed.train import Contrast, DeltaPolicy, Outcome, RoundWork

from .support import TIMES, make

EPSILON = torch.finfo(torch.float32).eps
EXACT_SCALARS = ("examples", "steps")
COSINE_ROUNDINGS = 8 * EPSILON  # a cosine is of order 1, and every gradient behind it was rounded

# ---- tasks: a model, a loss and examples ----------------------------------------------------------------------------

SIZES = (7, 0, 12, 1, 5, 10, 4)  # examples of each client: none, one, several batches with and without a short one
STEPS = (4, 3, 6, 2, 3, 2, 0)
BATCH = 4
ROWS = sum(SIZES) + 5  # some belong to nobody


class Tagger(nn.Module):
    """Tokens (n, length) to labels (n, length, classes)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.lstm = LSTM(6, 8)
        self.head = nn.Linear(8, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(tokens)))


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1),
        nn.GroupNorm(2, 6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.2),
        nn.Conv2d(6, 8, 3),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.4),
        nn.Linear(8, 4),
    )


class Pyramid(nn.Module):
    """Residual blocks on large images, then on small ones: the native engine takes two ways with them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.norm = nn.GroupNorm(3, 6)
        self.large = nn.Conv2d(6, 6, (3, 5), padding=(1, 2), bias=False)
        self.down = nn.Conv2d(6, 10, (5, 3), stride=2, padding=(2, 1))
        self.small = nn.Conv2d(10, 10, 3, padding=1)
        self.head = nn.Linear(40, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.stem(x))
        x = x + self.large(torch.relu(self.norm(x)))
        x = F.relu(self.down(x))
        x = x + F.relu(self.small(x))
        return self.head(torch.flatten(F.adaptive_avg_pool2d(x, 2), 1))


@dataclass(frozen=True)
class Task:
    module: Callable[[], nn.Module]
    loss: Loss
    examples: Callable[[torch.Generator], Examples]
    reduction: LossReduction = "mean"


def _normal(g: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=g)


def _labels(g: torch.Generator, classes: int, *shape: int) -> Tensor:
    return torch.randint(classes, shape, generator=g)


def _pixels(g: torch.Generator) -> Examples:
    images = torch.randint(256, (ROWS, 2, 8, 8), generator=g, dtype=torch.uint8)
    return Examples(Pixels(images, (0.4, 0.6), (0.25, 0.3)), _labels(g, 4, ROWS))


def _augmented(g: torch.Generator) -> Examples:
    images = torch.randint(256, (ROWS, 2, 7, 6), generator=g, dtype=torch.uint8)
    images[:3] = 200  # of no deviation at all
    return Examples(Pixels(images, augment=Augment(crop=4, flip=True, standardise=True)), _labels(g, 4, ROWS))


def _mirrored(g: torch.Generator) -> Examples:
    """Of sixteen pixels: so many that the device engine would train whole clients at once if they were as stored."""
    images = torch.randint(256, (ROWS, 1, 6, 5), generator=g, dtype=torch.uint8)
    return Examples(Pixels(images, (0.4,), (0.25,), Augment(crop=4, flip=True)), _labels(g, 4, ROWS))


def _sequences(g: torch.Generator) -> Examples:
    """Sequences of unequal length: the labels beyond their ends are ignored, in one of them all."""
    labels = _labels(g, 5, ROWS, 6)
    lengths = torch.randint(1, 7, (ROWS, 1), generator=g)
    lengths[3] = 0
    return Examples(_labels(g, 11, ROWS, 6), torch.where(torch.arange(6) < lengths, labels, IGNORED))


def _words(g: torch.Generator) -> Examples:
    words = _normal(g, ROWS, 30).abs() * (torch.rand(ROWS, 30, generator=g) < 0.15)
    tags = (torch.rand(ROWS, 7, generator=g) < 0.3).float()
    return Examples(Sparse.of(words), Sparse.of(tags))


def _images_as_targets(g: torch.Generator) -> Examples:
    images = torch.rand(ROWS, 12, generator=g)
    return Examples(images, images)


def _vectors(g: torch.Generator) -> Examples:
    return Examples(_normal(g, ROWS, 9), _labels(g, 4, ROWS))


# Whose losses are also reduced otherwise: tags, numbers, labels of sequences and single ones.
_REDUCED: dict[str, tuple[LossReduction, ...]] = {
    "tags": ("outputs", "batch"),
    "autoencoder": ("outputs", "batch"),
    "tagger": ("outputs",),
    "softmax": ("batch",),
}
TASKS = {
    "softmax": Task(lambda: nn.Linear(9, 4), "cross_entropy", _vectors),
    "mlp": Task(
        lambda: nn.Sequential(nn.Linear(9, 12), nn.GELU(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 4)),
        "cross_entropy",
        _vectors,
    ),
    "dropout": Task(
        lambda: nn.Sequential(nn.Dropout(0.1), nn.Linear(9, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 4)),
        "cross_entropy",
        _vectors,
    ),
    "cnn": Task(_cnn, "cross_entropy", _pixels),
    "augmented": Task(
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 4)),
        "cross_entropy",
        _augmented,
    ),
    "mirrored": Task(lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 4)), "cross_entropy", _mirrored),
    "pyramid": Task(Pyramid, "cross_entropy", lambda g: Examples(_normal(g, ROWS, 3, 13, 17), _labels(g, 4, ROWS))),
    "tagger": Task(Tagger, "cross_entropy", _sequences),
    "tags": Task(lambda: nn.Linear(30, 7), "binary_cross_entropy", _words),
    "features of words": Task(
        lambda: nn.Sequential(nn.Linear(30, 8), nn.ReLU(), nn.Linear(8, 7)), "binary_cross_entropy", _words
    ),
    "autoencoder": Task(
        lambda: nn.Sequential(nn.Linear(12, 5), nn.Sigmoid(), nn.Linear(5, 12), nn.Sigmoid()), "mse", _images_as_targets
    ),
}
TASKS |= {
    f"{name} by {reduction}": replace(TASKS[name], reduction=reduction)
    for name, reductions in _REDUCED.items()
    for reduction in reductions
}


class NormedPyramid(nn.Module):
    """Batch norms on large images, which go one by one through the layers around them and are many rows together, and
    on small ones; one of them makes a part of a sum, one has no weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.BatchNorm2d(3, momentum=0.3)
        self.stem = nn.Conv2d(3, 5, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(5, eps=1e-3)
        self.large = nn.Conv2d(5, 5, (3, 5), padding=(1, 2))
        self.branch = nn.BatchNorm2d(5)
        self.down = nn.Conv2d(5, 7, (5, 3), stride=3, padding=(2, 1))
        self.plain = nn.BatchNorm2d(7, affine=False, momentum=0.5)
        self.head = nn.Linear(28, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(self.first(x))))
        x = x + self.branch(self.large(x))
        x = F.relu(self.plain(self.down(x)))
        return self.head(torch.flatten(F.adaptive_avg_pool2d(x, 2), 1))


class NormedTwice(nn.Module):
    """Of vectors, by a norm of the inputs and by one that looks twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.both = nn.BatchNorm1d(9, eps=0.1), nn.BatchNorm1d(11, eps=0.1, momentum=0.4)
        self.up, self.on, self.head = nn.Linear(9, 11), nn.Linear(11, 11), nn.Linear(11, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.both(self.up(self.first(x))))
        return self.head(torch.relu(self.both(self.on(x))))


def _normed_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 5, 3, padding=1),
        nn.BatchNorm2d(5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.2),
        nn.Conv2d(5, 7, 3, bias=False),
        nn.BatchNorm2d(7, eps=0.1, momentum=0.2),
        nn.SiLU(),
        nn.Flatten(),
        nn.Linear(28, 4),
    )


# Not for the device engine, which has no batch norm. Where a norm sees three or four numbers, its eps is large: some
# channel has next to no variance then, and to divide by that would make the roundings of any order of a sum large.
BATCH_NORMS = {
    "normed cnn": Task(_normed_cnn, "cross_entropy", _pixels),
    "normed pyramid": Task(
        NormedPyramid, "cross_entropy", lambda g: Examples(_normal(g, ROWS, 3, 17, 19), _labels(g, 4, ROWS))
    ),
    "normed mlp": Task(
        lambda: nn.Sequential(nn.Linear(9, 11), nn.BatchNorm1d(11, 0.1, 0.4), nn.ReLU(), nn.Linear(11, 4)),
        "cross_entropy",
        _vectors,
    ),
    "normed twice": Task(NormedTwice, "cross_entropy", _vectors),
}


class WidePyramid(nn.Module):
    """3x3 convolutions with as many channels as vectors have: on large images, on small ones, and on the smallest; so
    many products that the native engine lets threads share a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.wide = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 144, 3, padding=1)
        self.back, self.norm = nn.Conv2d(144, 16, 3, padding=1, bias=False), nn.GroupNorm(2, 16)
        self.down = nn.Conv2d(16, 32, 3, stride=2, bias=False)
        self.small, self.low = nn.Conv2d(32, 32, 3, padding=1), nn.GroupNorm(4, 32)
        self.head = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.stem(x))
        x = x + self.norm(self.back(F.silu(self.wide(x))))
        x = F.silu(self.down(x))
        x = x + F.silu(self.low(self.small(x)))
        return self.head(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


# Of the native engine's own tests (test_convolutions.py): one step says how well it convolves, several would say how
# roundings grow.
WIDE = {
    "wide pyramid": Task(
        WidePyramid, "cross_entropy", lambda g: Examples(_normal(g, ROWS, 3, 13, 12), _labels(g, 4, ROWS))
    ),
}


class Writer(nn.Module):
    """Says something of every token, having seen those before it: more of them than are worked on at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(11, 6), nn.Parameter(torch.randn(1, LONG, 6))
        self.first, self.second = nn.Linear(6, 18, bias=False), nn.MultiheadAttention(6, 1, batch_first=True)
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(6, 5)
        self.register_buffer("ahead", torch.ones(LONG, LONG).triu(1).bool())

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.drop(self.words(tokens) + self.places[:, : tokens.shape[1]])
        q, k, v = self.first(x).view(x.shape[0], x.shape[1], 3, 2, 3).permute(2, 0, 3, 1, 4)
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.second(x, x, x, attn_mask=self.ahead, need_weights=False)[0]
        return self.head(x)


class Asked(nn.Module):
    """A few learnt questions to sequences of odd length, whose keys all heads share; parts of what comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.keys, self.values, self.questions = nn.Linear(5, 4), nn.Linear(5, 14), nn.Linear(5, 8)
        self.register_buffer("nearness", torch.randn(2, 3, 7))
        self.norm, self.head = nn.LayerNorm(14), nn.Linear(14, 4)

    def forward(self, x: Tensor) -> Tensor:
        q = self.questions(x[:, 1:4]).unflatten(-1, (2, 4)).transpose(1, 2) * 0.4
        k = self.keys(x).unsqueeze(1).expand(-1, 2, -1, -1)
        v = self.values(x).view(x.shape[0], 7, 2, 7).transpose(1, 2)
        x = (F.softmax(q @ k.mT + self.nearness, -1) @ v).transpose(1, 2).flatten(2)
        return self.head(self.norm(x)[:, 1:].mean(1))


LONG = 53


def _picked(g: torch.Generator) -> Examples:
    images = torch.randint(256, (ROWS, 2, 6, 6), generator=g, dtype=torch.uint8)
    return Examples(Pixels(images, (0.4, 0.6), (0.25, 0.3)), _labels(g, 4, ROWS))


def _padded(g: torch.Generator) -> Examples:
    """Texts of unequal length, one of them of padding alone."""
    lengths = torch.randint(1, 8, (ROWS, 1), generator=g)
    lengths[5] = 0
    return Examples(torch.where(torch.arange(7) < lengths, 1 + _labels(g, 10, ROWS, 7), 0), _labels(g, 4, ROWS))


def _vit() -> models.VisionTransformer:
    return models.VisionTransformer(4, 6, patch=2, channels=12, depth=2, heads=3, colours=2)


def _freeze(module: nn.Module, *names: str) -> nn.Module:
    for name in names:
        module.get_parameter(name).requires_grad_(False)
    return module


def _frozen_cnn() -> nn.Module:
    return _freeze(_cnn(), "0.weight", "1.bias", "5.bias", "10.bias")


def _frozen_tagger() -> nn.Module:
    return _freeze(Tagger(), "embedding.weight", "lstm.weight_ih_l0", "lstm.bias_l0")


def _frozen_words() -> nn.Module:
    return _freeze(nn.Sequential(nn.Linear(30, 8), nn.ReLU(), nn.Linear(8, 7)), "0.weight")


def _adapted_writer() -> nn.Module:
    with torch.no_grad():
        module = models.lora(Writer(), 2, alpha=3.0, trained=["head"])
        for layer in (module.first, module.second):
            for name in ("up", "out_up"):
                if hasattr(layer, name):
                    getattr(layer, name).normal_(std=0.3)
    return module


# Not for the device engine, which has no attention and nothing frozen.
TRANSFORMERS = {
    "vit": Task(_vit, "cross_entropy", _picked),
    "reader": Task(lambda: models.TextTransformer(11, 7, 4, 10, 1, 2), "cross_entropy", _padded),
    "writer": Task(Writer, "cross_entropy", lambda g: Examples(_labels(g, 11, ROWS, LONG), _labels(g, 5, ROWS, LONG))),
    "asked": Task(Asked, "cross_entropy", lambda g: Examples(_normal(g, ROWS, 7, 5), _labels(g, 4, ROWS))),
    "adapted vit": Task(lambda: models.lora(_vit(), 3, 2.0, trained=["head"]), "cross_entropy", _picked),
    "adapted writer": Task(
        _adapted_writer, "cross_entropy", lambda g: Examples(_labels(g, 11, ROWS, LONG), _labels(g, 5, ROWS, LONG))
    ),
    "frozen cnn": Task(_frozen_cnn, "cross_entropy", _pixels),
    "frozen tagger": Task(_frozen_tagger, "cross_entropy", _sequences),
    "frozen words": Task(_frozen_words, "binary_cross_entropy", _words),
}

# ---- cases ----------------------------------------------------------------------------------------------------------

CORRECTED: dict[str, Any] = {"weight_decay": 0.05, "prox": 0.3, "clip": 0.7}
RULES: dict[str, Client] = {
    "sgd": ff_clients.SGD(lr=0.3),
    "sgd corrected": ff_clients.SGD(lr=0.3, warmup=3, **CORRECTED),
    "momentum": Momentum(lr=0.1, momentum=0.7, weight_decay=0.05),
    "adagrad": AdaGrad(lr=0.1, eps=1e-3, v0=0.2, **CORRECTED),
    # v0, here and in two of SM3's: a v of almost nothing would divide roundings by almost nothing, and any order of a
    # sum could fail, eager's own on another machine included
    "adagrad delayed": AdaGrad(lr=0.1, eps=1e-3, v0=0.05, delay=2, floor=0.5),
    "adam": Adam(lr=0.02, beta1=0.8, beta2=0.95, eps=1e-3, **CORRECTED),
    "adam delayed by epochs": Adam(lr=0.02, eps=1e-3, delay=2, delay_unit="epoch", warmup=2),
    "sm3": SM3(lr=0.1, eps=1e-3, weight_decay=0.05, v0=0.05),
    "sm3 delayed": SM3(lr=0.1, eps=1e-3, delay=2, delay_mode="exact", prox=0.3),
    "sm3 reference": SM3(lr=0.1, eps=0.0, root_eps=1e-6, beta1=0.9, v0=0.1),
    "sm3-I": SM3(lr=0.1, eps=1e-3, cover="I", delay=2, clip=0.7),
    "sm3-adam": SM3(lr=0.02, eps=1e-3, form="adam", beta1=0.8, beta2=0.95, delay=2, v0=0.05),
    "sm3-I-adam": SM3(lr=0.02, eps=1e-3, form="adam", cover="I", delay=2, delay_unit="epoch"),
    "delta-sgd": DeltaSGD(lr=0.1, gamma=0.3, delta=0.2),  # gamma: so that measured step sizes matter
    "delta-sgd corrected": DeltaSGD(lr=0.1, gamma=0.3, grow_first=True, lr_eps=1e-8, **CORRECTED),
    "delta-sgd same batch": DeltaSGD(lr=0.1, gamma=0.2, same_batch=True),
    "delta-sgd same batch corrected": DeltaSGD(lr=0.1, gamma=0.2, same_batch=True, **CORRECTED),
    "sps": SPS(c=0.7, f_star=0.1, lr_max=0.4),
    "sps corrected": SPS(lr_max=0.8, **CORRECTED),
}


@dataclass(frozen=True)
class Case:
    """A round: `rules` names the optimizers (blended if several), `asks` what the work asks for besides."""

    task: str
    rules: tuple[str, ...]
    asks: frozenset[str] = frozenset()

    @property
    def id(self) -> str:
        return "-".join([self.task, "+".join(self.rules), *sorted(self.asks)])


def _cases() -> list[Case]:
    cases = [Case("mlp", (rule,)) for rule in RULES]
    for task in TASKS:
        rules = ("sgd", "sgd corrected", "sm3", "delta-sgd same batch")
        if TASKS[task].reduction != "mean":
            rules = ("sgd", "sps corrected")
        cases += [Case(task, (rule,)) for rule in rules if task != "mlp"]
    blend = ("sgd", "adam", "sm3 delayed", "delta-sgd")
    cases += [
        Case("softmax", ("sgd",), frozenset(asks))
        for asks in (("seen",), ("lr",), ("models",), ("uniform", "clip"), ("weights", "divide"), ("corrections",))
    ]
    cases += [
        Case("dropout", ("adam delayed by epochs",), frozenset({"seen", "models"})),
        Case("cnn", ("sgd", "adam delayed by epochs"), frozenset({"seen", "lr", "models", "clip"})),
        Case("augmented", ("sgd", "adam delayed by epochs"), frozenset({"seen", "lr", "models", "clip"})),
        Case("mlp", ("sgd corrected",), frozenset({"cosine after"})),
        Case("softmax", ("sgd",), frozenset({"drawn"})),
        Case("mlp", ("sps corrected",), frozenset({"drawn", "models"})),
        Case("augmented", ("sgd", "adam delayed by epochs"), frozenset({"drawn", "lr"})),
        Case("tags", ("adagrad", "sm3"), frozenset({"preconditioner", "divide"})),
        Case("tags", ("momentum",), frozenset({"seen", "corrections"})),
        Case("tagger", ("adam",), frozenset({"preconditioner", "corrections", "uniform"})),
        Case("softmax", ("delta-sgd same batch corrected",), frozenset({"corrections", "lr", "models"})),
        Case("dropout", blend, frozenset({"models", "corrections", "preconditioner", "weights", "clip", "divide"})),
    ]
    return cases + _contrasts()


def _contrasts() -> list[Case]:
    """Every rule, and every kind of model that splits into features and a head: dense, with dropout just before the
    head, images by the example and by the batch, sequences, sparse inputs whose rows are tracked."""
    contrast = frozenset({"contrast"})
    cases = [Case("mlp", (rule,), contrast) for rule in RULES]
    for task in ("dropout", "cnn", "augmented", "pyramid", "tagger", "features of words"):
        cases += [Case(task, (rule,), contrast) for rule in ("sgd", "sgd corrected", "delta-sgd same batch")]
    return [
        *cases,
        Case("cnn", ("sgd", "adam"), contrast | {"seen", "lr", "models", "clip"}),
        Case("pyramid", ("sgd",), contrast | {"models", "divide"}),
        Case("features of words", ("momentum",), contrast | {"models", "corrections"}),
        Case("features of words", ("sgd",), contrast | {"models", "uniform", "clip"}),
        Case("dropout", ("adagrad", "sps"), contrast | {"models", "corrections", "preconditioner", "weights"}),
    ]


CASES = _cases()


def _batch_norms() -> list[Case]:
    """A batch of one vector shows no variance: the dense model's batches are never that short."""
    rules = ("sgd", "sgd corrected", "momentum", "adam", "sm3", "delta-sgd same batch", "sps corrected")
    cases = [Case("normed cnn", (rule,)) for rule in rules]
    cases += [Case("normed pyramid", (rule,)) for rule in ("sgd", "momentum", "delta-sgd")]
    cases += [Case("normed mlp", (rule,), frozenset({"no short batches"})) for rule in ("sgd", "sgd corrected", "adam")]
    cases += [Case("normed twice", (rule,), frozenset({"no short batches"})) for rule in ("sgd", "momentum")]
    return [
        *cases,
        Case("normed cnn", ("sgd",), frozenset({"own statistics", "own places", "models"})),
        Case("normed cnn", ("sgd", "adam"), frozenset({"own statistics", "seen", "lr", "models", "clip"})),
        Case("normed pyramid", ("sgd",), frozenset({"own statistics", "own places", "weights", "divide"})),
        Case("normed pyramid", ("sgd corrected",), frozenset({"corrections", "own places", "uniform"})),
        Case("normed mlp", ("momentum",), frozenset({"no short batches", "corrections", "own statistics"})),
    ]


BATCH_NORM_CASES = _batch_norms()


def _transformers() -> list[Case]:
    rules = ("sgd", "sgd corrected", "adam", "sm3", "delta-sgd same batch")
    cases = [Case(task, (rule,)) for task in ("vit", "reader", "adapted vit") for rule in rules]
    cases += [Case(task, (rule,)) for task in ("writer", "asked", "adapted writer") for rule in ("sgd", "adam")]
    cases += [Case(f"frozen {kind}", (rule,)) for kind in ("cnn", "tagger", "words") for rule in ("sgd", "sm3")]
    return [
        *cases,
        Case("vit", ("sgd",), frozenset({"contrast"})),
        Case("adapted vit", ("sgd", "adam"), frozenset({"seen", "lr", "models", "clip"})),
        Case("reader", ("momentum",), frozenset({"models", "corrections"})),
    ]


TRANSFORMER_CASES = _transformers()


def _generator(name: str) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(name.encode()))


@cache
def module_of(task: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(zlib.crc32(task.encode()))
        return _task(task).module()


@cache
def examples_of(task: str) -> Examples:
    return _task(task).examples(_generator(task))


def _task(name: str) -> Task:
    return (TASKS | BATCH_NORMS | WIDE | TRANSFORMERS)[name]


def work_of(case: Case, dtype: torch.dtype) -> RoundWork:
    """The round of a case: float32 numbers, held in `dtype`."""
    g = _generator(case.id)
    packing = ff.Packing.of(module_of(case.task), batch_norm=True)
    start = packing.pack(module_of(case.task))
    inside = (packing.pack(_ones_like(module_of(case.task))) != 0).float()
    clients = len(SIZES)
    asked: dict[str, Any] = {}
    if "models" in case.asks:
        start = start + 0.1 * inside * _normal(g, 3, packing.size)
        asked["start_index"] = torch.randint(3, (clients,), generator=g)
    if "seen" in case.asks:
        asked["seen"] = torch.tensor([13, 9, 18, 7, 0, 20, 6])
    if "drawn" in case.asks:
        asked |= {"seen": torch.tensor([16, 12, 24, 8, 12, 7, 4]), "drawn": True}
    if "no short batches" in case.asks:
        asked["seen"] = torch.tensor([15, 11, 19, 0, 7, 20, 7])
    if case.task in BATCH_NORMS:
        asked["statistics"] = _statistics(case, g).to(dtype)
    if "own places" in case.asks:
        asked["own"] = own_places(module_of(case.task), packing)
    if "lr" in case.asks:
        asked["lr"] = 0.02 + 0.1 * torch.rand(clients, generator=g, dtype=torch.float64)
    if "corrections" in case.asks:
        asked["corrections"] = (0.1 * inside * _normal(g, clients, packing.size)).to(dtype)
    if "preconditioner" in case.asks:
        asked["preconditioner"] = (0.2 * inside * torch.rand(packing.size, generator=g)).to(dtype)
    if "contrast" in case.asks:
        asked["contrast"] = _contrast(g, start.to(dtype), inside)
    if len(case.rules) > 1:
        asked["optimizer_index"] = torch.arange(clients) % len(case.rules)
    return RoundWork(
        start=start.to(dtype),
        rows=torch.randperm(ROWS, generator=g)[: sum(SIZES)],
        offsets=torch.tensor([0, *torch.tensor(SIZES).cumsum(0).tolist()]),
        ids=torch.tensor([17, 4, 3_000_000_000, 8, 0, 99, 5]),
        steps=torch.tensor(STEPS),
        batch_size=BATCH,
        optimizers=tuple(RULES[rule] for rule in case.rules),
        seed=1 << 40,
        round=3,
        policy=_policy(case, g),
        keep_deltas=True,
        measure_cosine=True,
        cosine_includes_step="cosine after" in case.asks,
        **asked,
    )


def _statistics(case: Case, g: torch.Generator) -> Tensor:
    """Means and variances around the first ones: of all clients, or of each."""
    layout = Statistics.of(module_of(case.task))
    assert layout is not None
    rows = (len(SIZES),) if "own statistics" in case.asks else ()
    return layout.pack(module_of(case.task), torch.float32) + torch.rand(*rows, layout.size, generator=g)


def _contrast(g: torch.Generator, start: Tensor, inside: Tensor) -> Contrast:
    """Two clients are met for the first time, of whom one trains; nobody's last model is far from a start model."""
    models = (start[:1] if start.dim() == 2 else start) + 0.2 * (inside * _normal(g, 5, len(inside))).to(start.dtype)
    return Contrast(0.4, 0.5, None, models, torch.tensor([3, 0, 1, -1, 4, 2, -1]))


def _policy(case: Case, g: torch.Generator) -> DeltaPolicy:
    weights: Any = "uniform" if "uniform" in case.asks else "examples"
    if "weights" in case.asks:
        weights = torch.rand(len(SIZES), generator=g)
    return DeltaPolicy(weights, 0.05 if "clip" in case.asks else None, "divide" in case.asks)


def _ones_like(module: nn.Module) -> nn.Module:
    ones = copy.deepcopy(module)
    for parameter in ones.parameters():
        nn.init.ones_(parameter)
    return ones


# ---- agreement ------------------------------------------------------------------------------------------------------


@cache
def why_not(executor: str) -> str | None:
    """Why this executor cannot be tested here, if so."""
    if executor != "native":
        return None
    try:
        from fastfed import _core
        from fastfed.train import native  # noqa: F401
    except ImportError as error:
        return f"the native engine does not import: {error}"
    return None if hasattr(_core, "Program") else "the compiled extension has no engine"


def executors(*names: str) -> Any:
    """Parametrises a test by the executor's name; one that cannot run is skipped with its reason."""
    marked = [
        pytest.param(name, marks=pytest.mark.skipif(why_not(name) is not None, reason=str(why_not(name))))
        for name in names
    ]
    return pytest.mark.parametrize("executor", marked)


def run(
    case: Case, executor: str, dtype: torch.dtype = torch.float32, *, threads: int | None = None, **otherwise: Any
) -> Outcome:
    """The case's round on so many threads, `otherwise` instead of what its work says."""
    task, given = _task(case.task), {} if threads is None else {"threads": threads}
    made = make(executor, module_of(case.task), task.loss, examples_of(case.task), reduction=task.reduction, **given)
    return made.run(replace(work_of(case, dtype), **otherwise))


@cache
def reference(case: Case, dtype: torch.dtype) -> Outcome:
    return run(case, "eager", dtype)


def kept(outcome: Outcome) -> Tensor:
    assert outcome.deltas is not None
    return outcome.deltas


def assert_agrees(case: Case, got: Outcome) -> None:
    """`got` (float32) is as good as what `eager` computes in float32."""
    plain, exact = reference(case, torch.float32), reference(case, torch.float64)
    assert torch.equal(got.refused, exact.refused)
    assert_close("delta", got.delta, plain.delta, exact.delta)
    assert_close("deltas", *(kept(outcome) for outcome in (got, plain, exact)))
    for name in ("statistics", "own"):
        found = [getattr(outcome, name) for outcome in (got, plain, exact)]
        assert (found[0] is None) == (found[2] is None), name
        if found[2] is not None:
            assert_close(name, *found)
    assert got.scalars.keys() == exact.scalars.keys()
    error = TIMES * float((kept(plain) - kept(exact)).norm())
    relative = error / max(float(kept(exact).norm()), EPSILON)
    room = {
        "delta_norm": error,
        "step_size": relative * float(exact.scalars["step_size"].nan_to_num().norm()),
        "min_cosine": COSINE_ROUNDINGS + relative,
    }
    for name, values in got.scalars.items():
        assert values.dtype is torch.float64, name
        wanted, measured = exact.scalars[name], plain.scalars[name]
        assert torch.equal(values.isnan(), wanted.isnan()), name
        if name in EXACT_SCALARS:
            assert torch.equal(values, wanted), name
        else:
            values, measured, wanted = (t.nan_to_num() for t in (values, measured, wanted))
            assert_close(name, values, measured, wanted, room.get(name, 0.0))


def assert_close(what: str, got: Tensor, plain: Tensor, exact: Tensor, room: float = 0.0) -> None:
    """By norm, with one rounding of the whole vector on top: near zero, twice nothing would be nothing.

    `room`: what the error of the vectors behind a scalar allows it (a norm's error is at most its vector's).
    """
    assert got.shape == exact.shape, what
    allowed = max(TIMES * float((plain - exact).norm()), room) + EPSILON * float(exact.norm())
    error = float((got - exact).norm())
    assert error <= allowed, f"{what}: error {error:.3e} against float64, allowed {allowed:.3e}"
