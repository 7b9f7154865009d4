"""AFO's pictures (Appendix C.1), literally: Python's whole numbers and loops over NumPy, one picture at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = tuple[int, int, int, int]
AUGMENT = 12  # the purpose of the stream


def philox(counter: Words, key: tuple[int, int]) -> Words:
    """Philox4x32-10, from its paper."""
    c, k = list(counter), list(key)
    for _ in range(10):
        first, second = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(second >> 32) ^ c[1] ^ k[0], second % 2**32, (first >> 32) ^ c[3] ^ k[1], first % 2**32]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c[0], c[1], c[2], c[3]


def view(
    seed: int, round: int, client: int, position: int, stored: tuple[int, int], crop: int, flip: bool
) -> tuple[int, int, bool]:
    """Where the crop of the picture at a position of a client's stream begins, and whether it is mirrored."""
    key = philox((AUGMENT, 0, 0, 0), (seed % 2**32, seed >> 32))[:2]
    words = philox((position % 2**32, position >> 32, client, round), key)
    top, left = (word * (side - crop + 1) // 2**32 for word, side in zip(words, stored, strict=False))
    return top, left, flip and words[2] >= 2**31


def seen(
    image: NDArray[np.uint8], top: int, left: int, mirrored: bool, crop: int, standardise: bool
) -> NDArray[np.float64]:
    """A picture (channels, height, width) in a view; bytes from 0 to 1 if it is not standardised."""
    part = image[:, top : top + crop, left : left + crop].astype(np.float64)
    if mirrored:
        part = part[:, :, ::-1]
    if not standardise:
        return part / 255
    # tf.image.per_image_standardization of float pixels from 0 to 255
    return (part - part.mean()) / max(part.std(), 1 / np.sqrt(part.size))
