"""How images are changed when a batch is read: cropped, mirrored, standardised.

In AFO's order (Appendix C.1): a random crop, a random flip from left to right, then ``(x - mean) / std`` by the mean
and the deviation of the crop's own pixels, all channels together. Examples that are not trained on have the crop in the
middle and no flip. A deviation is at least 1 / sqrt(pixels) on the scale 0 to 255 of the bytes, as TensorFlow's
``per_image_standardization`` of them has it: on the scale 0 to 1 that bound would meet dim images, too. Elsewhere the
scale makes no difference.

This is the definition, in torch. `csrc/engine/batches.cpp` and `kernels/triton/engine/views.py` have it, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .arguments import check_whole

MOST_PIXELS = 1 << 23  # of a standardised crop: so that sums of squares, times their number, are exact in 64 bits


class Views(NamedTuple):
    """How images are seen, (n,) each: where the crop begins (int64), and whether it is mirrored (bool)."""

    top: Tensor
    left: Tensor
    flipped: Tensor


@dataclass(frozen=True)
class Augment:
    """Images cut to `crop` x `crop` pixels (None: whole), mirrored half of the time (`flip`), and standardised one by
    one (`standardise`)."""

    crop: int | None = None
    flip: bool = False
    standardise: bool = False

    def __post_init__(self) -> None:
        if self.crop is not None:
            check_whole("crop", self.crop, least=1)
        for name in ("flip", "standardise"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name}: must be True or False, got {getattr(self, name)!r}")

    def shape(self, stored: tuple[int, int, int]) -> tuple[int, int, int]:
        """What becomes of the shape (channels, height, width) of stored images."""
        channels, height, width = stored
        if self.crop is not None and self.crop > min(height, width):
            raise ValueError(f"crop: must fit into images of {height}x{width} pixels, got {self.crop}")
        shape = (channels, height, width) if self.crop is None else (channels, self.crop, self.crop)
        if self.standardise and shape[0] * shape[1] * shape[2] > MOST_PIXELS:
            raise ValueError(f"standardise: takes images of at most {MOST_PIXELS:,} numbers, got {shape}")
        return shape

    def middle(self, n: int, stored: tuple[int, int, int], device: torch.device) -> Views:
        """The views of n images that are not trained on."""
        _, height, width = self.shape(stored)
        where = [(side - kept) // 2 for side, kept in ((stored[1], height), (stored[2], width))]
        top, left = (torch.full((n,), begin, dtype=torch.int64, device=device) for begin in where)
        return Views(top, left, torch.zeros(n, dtype=torch.bool, device=device))

    def views(self, words: tuple[Tensor, ...], stored: tuple[int, int, int]) -> Views:
        """The views that random words of 32 bits, (n,) int64 each, choose: one for each field."""
        _, height, width = self.shape(stored)
        top = (words[0] * (stored[1] - height + 1)) >> 32
        left = (words[1] * (stored[2] - width + 1)) >> 32
        flipped = words[2] >> 31 == 1
        return Views(top, left, flipped if self.flip else torch.zeros_like(flipped))

    def seen(self, images: Tensor, views: Views | None = None) -> Tensor:
        """The bytes (n, channels, height, width) of stored images in these views (None: nobody trains on them)."""
        stored = (images.shape[1], images.shape[2], images.shape[3])
        views = self.middle(len(images), stored, images.device) if views is None else views
        channels, height, width = self.shape(stored)
        x = torch.arange(width, device=images.device)
        columns = views.left[:, None] + torch.where(views.flipped[:, None], width - 1 - x, x)
        rows = views.top[:, None] + torch.arange(height, device=images.device)
        n, c = torch.arange(len(images), device=images.device), torch.arange(channels, device=images.device)
        return images[n[:, None, None, None], c[:, None, None], rows[:, None, :, None], columns[:, None, None, :]]


def standardised(images: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes (n, ...), each image less its mean and divided by its deviation, in `dtype`.

    Sums of bytes are whole numbers: with S of the N pixels and Q of their squares, the result is
    ``(N x - S) / sqrt(max(N Q - S^2, N))``, which rounds only at its end.
    """
    wide = images.flatten(1).long()
    n, total = wide.shape[1], wide.sum(1)
    spread = (n * (wide * wide).sum(1) - total * total).clamp(min=n)
    root = spread.double().sqrt().to(dtype)
    return ((n * wide - total[:, None]).to(dtype) / root[:, None]).view(images.shape)


def augment_of(crop: int | None, flip: bool, standardise: bool) -> Augment | None:
    """What a loader's options ask for; None where they ask for nothing."""
    asked = Augment(crop, flip, standardise)
    return None if asked == Augment() else asked
