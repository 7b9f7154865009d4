"""Image normalisation in one place: every loader's argument `normalise`, and the constants behind it.

`normalise=True` (every loader's default) takes the mean and the standard deviation of the data set's training pixels,
per channel and on the scale [0, 1], as the table below has them; `False` only scales bytes to [0, 1], as
auto-encoders need it; ``(mean, std)`` are numbers of your own, each one number or one per channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real

from torch import Tensor

from .augment import Augment
from .store import Pixels

Statistic = float | Sequence[float]
Normalise = bool | tuple[Statistic, Statistic]

# The standard deviations are those of all pixels (not, as is also seen for CIFAR, the mean of every image's own).
STATISTICS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "digits": ((0.3053,), (0.3759,)),  # of all 1,797 images
    "mnist": ((0.1307,), (0.3081,)),
    "qmnist": ((0.1307,), (0.3081,)),  # MNIST's own: its pixels were made to match them
    "fashion_mnist": ((0.2860,), (0.3530,)),
    "emnist byclass": ((0.1736,), (0.3317,)),
    "emnist bymerge": ((0.1736,), (0.3317,)),  # the images of byclass
    "emnist balanced": ((0.1751,), (0.3332,)),
    "emnist letters": ((0.1722,), (0.3309,)),
    "emnist digits": ((0.1733,), (0.3317,)),
    "emnist mnist": ((0.1733,), (0.3317,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "gld23k": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),  # what vision transformers were trained with, not the pixels' own
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}


def statistics(name: str, normalise: Normalise) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(mean, std) for the images of a data set; asked for before its files are read, so that errors come early."""
    if normalise is True:
        return STATISTICS[name]
    if normalise is False:
        return (0.0,), (1.0,)
    if not isinstance(normalise, Sequence) or isinstance(normalise, str) or len(normalise) != 2:
        raise ValueError(f"normalise: must be True, False or (mean, std), got {normalise!r}")
    return numbers("normalise", normalise[0]), numbers("normalise", normalise[1])


def numbers(name: str, value: Statistic) -> tuple[float, ...]:
    """One number, or one per channel, as a tuple."""
    several = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    if not all(isinstance(one, Real) for one in several):
        raise ValueError(f"{name}: must be made of numbers, got {value!r}")
    return tuple(float(one) for one in several)


def pixels(
    images: Tensor, statistics: tuple[tuple[float, ...], tuple[float, ...]], augment: Augment | None = None
) -> Pixels:
    """Images (examples, channels, height, width) uint8 that are normalised when read."""
    mean, std = statistics
    return Pixels(images, mean, std, augment)
