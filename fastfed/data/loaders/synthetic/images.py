"""Images as bytes with labels, and as rows that are their own targets."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .... import kernels
from ....saved.recipe import remembered
from ...arguments import check_real, check_whole
from ...augment import Augment, augment_of
from ...exact import Floats
from ...generated import Generated
from ...sampling import Ints, choose_rows, log_gammas, shares, uniforms
from ...store import Examples, Pixels
from .common import LABELS, NOISE, STYLE, TABLE, TASTE, Shared, generated, random_24_bits, stream_for


@remembered
def synthetic_images(
    clients: int,
    classes: int = 10,
    shape: tuple[int, int, int] = (1, 28, 28),
    examples: float = 100,
    alpha: float = 1.0,
    spread: float = 0.5,
    test_examples: int = 1000,
    seed: int = 0,
    crop: int | None = None,
    flip: bool = False,
    standardise: bool = False,
) -> Generated:
    """Images as bytes with labels: a smooth pattern per class, the client's contrast and shade, and noise.

    `shape` (channels, height, width): (1, 28, 28) with 62 classes is EMNIST's, (3, 32, 32) is CIFAR's. `examples` is
    the mean per client and `spread` the deviation of its logarithm (0: all alike). Class proportions of a client are
    from a symmetric Dir(alpha). `test_examples` are held, one of each of so many other clients. `crop`, `flip`,
    `standardise`: see `Augment`.
    """
    shared = Shared(clients, examples, spread, test_examples, seed)
    augment = augment_of(crop, flip, standardise)
    maker = replace(_images(classes, shape, alpha, seed), augment=augment)
    seen: dict[str, Any] = {}  # images as they are have the fingerprint that they had before there was a choice
    if augment is not None:
        augment.shape(maker.shape)
        seen = asdict(augment)
    return generated("synthetic_images", maker, shared, classes=classes, shape=shape, alpha=alpha, **seen)


@remembered
def synthetic_autoencoder(
    clients: int,
    classes: int = 62,
    shape: tuple[int, int, int] = (1, 28, 28),
    examples: float = 100,
    alpha: float = 1.0,
    spread: float = 0.5,
    test_examples: int = 1000,
    seed: int = 0,
) -> Generated:
    """The images of `synthetic_images` as float32 rows in [0, 1] that are their own targets, for the loss "mse"."""
    shared = Shared(clients, examples, spread, test_examples, seed)
    maker = _Reconstructions(_images(classes, shape, alpha, seed))
    return generated("synthetic_autoencoder", maker, shared, classes=classes, shape=shape, alpha=alpha)


Bytes = NDArray[np.uint8]
_COARSE = 7  # points across a pattern, between which it is interpolated
_FULL_CONTRAST = 6  # bits: a contrast of 64 leaves a pattern as it is
_NOISE_DEPTH = 64  # the most that noise adds to a pixel or takes away
_SHADE_DEPTH = 64  # likewise of a client's shade
_PORTION = 512  # images made at once: what they need on the way stays in cache


@dataclass(frozen=True)
class _Images:
    """Pixel = pattern of the class * contrast of the client + shade of the client + noise, cut to a byte."""

    seed: int
    shape: tuple[int, int, int]
    alpha: float
    patterns: Bytes  # (classes, pixels)
    augment: Augment | None = None

    def make(self, clients: Tensor, owner: Tensor, ids: Tensor) -> Examples:
        labels = self._labels(clients, owner, ids)
        contrast, shade = self._style(clients)
        pixels = np.empty((len(ids), self.patterns.shape[1]), dtype=np.uint8)
        paint = self._paint_compiled if kernels.backends()["cpp"] is True else self.paint
        paint(pixels, contrast, shade, labels, owner.numpy(), ids)
        images = torch.from_numpy(pixels).view(-1, *self.shape)
        return Examples(Pixels(images, augment=self.augment), torch.from_numpy(labels))

    def _paint_compiled(
        self, pixels: Bytes, contrast: Bytes, shade: Bytes, labels: Ints, owner: Ints, ids: Tensor
    ) -> None:
        """One call for all images, shared among the threads."""
        from ....kernels.cpp.images import make_images

        words = stream_for(self.seed, NOISE).words()
        make_images(pixels, words, self.patterns, contrast, shade, labels, owner, ids)

    def paint(self, pixels: Bytes, contrast: Bytes, shade: Bytes, labels: Ints, owner: Ints, ids: Tensor) -> None:
        """Images (n, pixels) of these labels, owners and numbers; where the extension is missing, and its witness."""
        for begin in range(0, len(ids), _PORTION):
            part = slice(begin, begin + _PORTION)
            mine = owner[part]
            image = np.take(self.patterns, labels[part], axis=0).astype(np.int16)
            image *= np.take(contrast, mine)[:, None]
            image >>= _FULL_CONTRAST
            image += np.take(shade, mine, axis=0)
            image -= _SHADE_DEPTH
            self._add_noise(image, ids[part])
            np.clip(image, 0, 255, out=pixels[part], casting="unsafe")

    def _labels(self, clients: Tensor, owner: Tensor, ids: Tensor) -> Ints:
        kinds = len(self.patterns)
        taste = shares(log_gammas(np.full(kinds, self.alpha), stream_for(self.seed, TASTE), clients))
        drawn = uniforms(1, stream_for(self.seed, LABELS), ids)[:, 0]
        return choose_rows(taste, owner.numpy(), drawn)

    def _style(self, clients: Tensor) -> tuple[Bytes, Bytes]:
        """The contrast (clients,), 40 to 88 of 64, and the shade (clients, pixels), 0 to 128: 64 changes nothing."""
        points = self.shape[0] * _COARSE * _COARSE
        drawn = uniforms(1 + points, stream_for(self.seed, STYLE), clients)
        contrast = np.floor(40 + 49 * drawn[:, 0]).astype(np.uint8)
        shade = np.rint(_SHADE_DEPTH * (2 * _interpolated(drawn[:, 1:], self.shape) - 1)) + _SHADE_DEPTH
        return contrast, shade.astype(np.uint8)

    def _add_noise(self, image: NDArray[np.int16], ids: Tensor) -> None:
        """To images (n, pixels), -64 to 63 with equal chances: a number of 24 bits serves a pixel of each third."""
        third = -(-image.shape[1] // 3)
        bits = random_24_bits(third, self.seed, NOISE, ids)
        for number in range(3):
            pixels = image[:, number * third : (number + 1) * third]
            noise = ((bits >> (8 * number)) & 127).astype(np.int16)
            noise -= _NOISE_DEPTH
            pixels += noise[:, : pixels.shape[1]]


@dataclass(frozen=True)
class _Reconstructions:
    """Images that are their own targets: flat float32 rows."""

    images: _Images

    def make(self, clients: Tensor, owner: Tensor, ids: Tensor) -> Examples:
        pixels = self.images.make(clients, owner, ids).inputs
        assert isinstance(pixels, Pixels)
        rows = pixels.bytes.flatten(1).to(torch.float32) / 255
        return Examples(rows, rows)


def _images(classes: int, shape: tuple[int, int, int], alpha: float, seed: int) -> _Images:
    classes = check_whole("classes", classes, least=2)
    alpha = check_real("alpha", alpha, above=0)
    if not isinstance(shape, (tuple, list)) or len(shape) != 3:
        raise ValueError(f"shape: must be (channels, height, width), got {shape!r}")
    channels, height, width = (check_whole("shape", side, least=1) for side in shape)
    coarse = uniforms(channels * _COARSE * _COARSE, stream_for(seed, TABLE), torch.arange(classes))
    smooth = _interpolated(coarse, (channels, height, width))
    patterns = np.rint(255 * np.clip(2 * smooth - 1, 0, 1)).astype(np.uint8)
    return _Images(seed, (channels, height, width), alpha, patterns)


def _interpolated(points: Floats, shape: tuple[int, int, int]) -> Floats:
    """Planes of 7 x 7 points (n, channels * 49), interpolated linearly to (n, channels * height * width)."""
    grid = points.reshape(len(points), shape[0], _COARSE, _COARSE)
    for axis, side in ((2, shape[1]), (3, shape[2])):
        place = np.linspace(0, _COARSE - 1, side)
        lower = np.minimum(place.astype(np.int64), _COARSE - 2)
        part = (place - lower).reshape(-1, 1) if axis == 2 else place - lower
        grid = np.take(grid, lower, axis) * (1 - part) + np.take(grid, lower + 1, axis) * part
    return np.ascontiguousarray(grid.reshape(len(points), -1))
