"""Made-up examples for whole rounds: the shapes and ranges of the papers' data, the same from the same seed."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ...data import Examples, Sparse

SEED = 2025
_PORTION = 4096  # rows made at once, so that making them needs little more memory than they do
_NOISE = 0.15


def pictures(n: int, channels: int, side: int, classes: int) -> Examples:
    """Images (n, channels, side, side) in [0, 1]: a smooth pattern per class, and noise."""
    generator = _generator()
    coarse = torch.rand(classes, channels, 7, 7, generator=generator)
    patterns = F.interpolate(coarse, (side, side), mode="bilinear").sub_(0.5).clamp_(min=0).mul_(2)
    labels = torch.randint(classes, (n,), generator=generator)
    inputs = torch.empty(n, channels, side, side)
    for part, own in zip(inputs.split(_PORTION), labels.split(_PORTION), strict=True):
        part.normal_(0, _NOISE, generator=generator).add_(patterns[own]).clamp_(0, 1)
    return Examples(inputs, labels)


def digits(n: int, classes: int = 10) -> Examples:
    """Flat 28 x 28 images (n, 784) with labels."""
    images = pictures(n, 1, 28, classes)
    return Examples(_flat(images.inputs), images.targets)


def reconstructions(n: int) -> Examples:
    """Flat 28 x 28 images (n, 784) that are their own targets."""
    images = _flat(pictures(n, 1, 28, 62).inputs)
    return Examples(images, images)


def text(n: int, length: int, vocabulary: int) -> Examples:
    """Sequences of characters (n, length) by a Zipf-like law, each one's target being the next."""
    characters = _zipf(n, length + 1, vocabulary, shift=2.7, generator=_generator())
    return Examples(characters[:, :-1].contiguous(), characters[:, 1:].contiguous())


def bags(n: int, words: int, tags: int) -> Examples:
    """Bags of words, about 60 of them different, as shares of the text; and about 3 tags each: both sparse."""
    generator = _generator()
    inputs = _sparse(_zipf(n, 70, words, shift=2.7, generator=generator), words)
    share = inputs.values / torch.zeros(n).index_add_(0, _row_of(inputs), inputs.values)[_row_of(inputs)]
    targets = _sparse(_zipf(n, 3, tags, shift=2.7, generator=generator), tags)
    return Examples(
        Sparse(inputs.starts, inputs.columns, share, words),
        Sparse(targets.starts, targets.columns, torch.ones_like(targets.values), tags),
    )


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(SEED)


def _flat(images: object) -> Tensor:
    assert isinstance(images, Tensor)
    return images.flatten(1)


def _zipf(n: int, draws: int, kinds: int, shift: float, generator: torch.Generator) -> Tensor:
    """(n, draws) int64 in [0, kinds), number k with a probability like 1 / (k + shift)."""
    law = 1 / (torch.arange(kinds) + shift)
    return torch.multinomial(law, n * draws, replacement=True, generator=generator).view(n, draws)


def _sparse(drawn: Tensor, width: int) -> Sparse:
    """How often each row of `drawn` (n, draws) drew each number."""
    n = drawn.shape[0]
    places, counts = torch.unique(drawn + width * torch.arange(n)[:, None], return_counts=True)
    starts = torch.zeros(n + 1, dtype=torch.int64)
    starts[1:] = torch.bincount(places // width, minlength=n).cumsum(0)
    return Sparse(starts, (places % width).int(), counts.float(), width)


def _row_of(matrix: Sparse) -> Tensor:
    """The row of every value."""
    return torch.arange(len(matrix)).repeat_interleave(matrix.starts.diff())
