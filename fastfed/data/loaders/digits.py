"""Handwritten digits that come with FastFed: real, tiny, and there without a download."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import torch
from torch import Tensor

from ...saved.recipe import remembered
from ..dataset import Dataset
from ..normalise import Normalise, pixels, statistics
from ..store import Examples

_BRIGHTEST = 16  # the files count the dark points of 4x4 blocks


@remembered
def digits(test_every: int = 5, normalise: Normalise = True) -> Dataset:
    """1,797 handwritten digits, 1x8x8, 10 classes: 1,442 for training and 355 for testing by default.

    Of each class, every `test_every`-th row in the file's order is a test row, so that both parts hold all classes
    alike; nothing is drawn at random. The published values 0 to 16 become bytes, 16 becomes 255. `normalise`: see
    ``fastfed.data.normalise``.

    Source: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits" (its test part), 1998, UCI Machine
    Learning Repository, https://doi.org/10.24432/C50P49. Licence: CC BY 4.0.
    """
    if isinstance(test_every, bool) or not isinstance(test_every, int) or not 2 <= test_every <= 100:
        raise ValueError(f"test_every: must be an integer from 2 to 100, got {test_every!r}")
    scale = statistics("digits", normalise)
    images, labels = _embedded()
    tested = _every(labels, test_every)
    train, test = (Examples(pixels(images[rows], scale), labels[rows]) for rows in (~tested, tested))
    return Dataset("digits", train, test, class_names=tuple("0123456789"))


def _embedded() -> tuple[Tensor, Tensor]:
    """Images (1797, 1, 8, 8) uint8 and labels (1797,) int64."""
    path = files("fastfed.data") / "embedded" / "digits.npz"
    with path.open("rb") as stream, np.load(stream) as arrays:
        counts, labels = arrays["images"], arrays["labels"]
    images = np.rint(counts * (255 / _BRIGHTEST)).astype(np.uint8)
    return torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels.astype(np.int64))


def _every(labels: Tensor, step: int) -> Tensor:
    """True at every `step`-th row of each class."""
    rank = torch.empty_like(labels)
    for label in labels.unique():
        mine = labels == label
        rank[mine] = torch.arange(int(mine.sum()))
    return rank % step == step - 1
