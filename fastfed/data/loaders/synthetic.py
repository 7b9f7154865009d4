"""Made-up tasks in the shapes of the papers' ones, for any number of clients, with something in them to be learnt.

Each `synthetic_*` gives clients that differ: in how many examples they have (log-normal, between 1 and ten times the
mean), in what these are about, and in style. Everything is made when it is visited, from whole numbers or with `exact`
arithmetic: the same bits on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...kernels import Stream, uniform
from ...purposes import Purpose
from ...saved.recipe import remembered
from ..arguments import check_real, check_whole
from ..exact import Floats
from ..generated import MOST_EXAMPLES, Generated, Maker, generate
from ..sampling import Ints, choose_rows, log_gammas, normals, shares, sizes, uniforms
from ..store import Examples, Pixels, Sparse

_LARGEST = 10  # times the mean: the most examples that a client can have

# What the streams are for: their word `round`.
_SIZES, _TABLE, _TASTE, _STYLE, _LABELS, _NOISE, _DRAWS = range(7)


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
) -> Generated:
    """Images as bytes with labels: a smooth pattern per class, the client's contrast and shade, and noise.

    `shape` (channels, height, width): (1, 28, 28) with 62 classes is EMNIST's, (3, 32, 32) is CIFAR's. `examples` is
    the mean per client and `spread` the deviation of its logarithm (0: all alike). Class proportions of a client are
    from a symmetric Dir(alpha). `test_examples` are held, one of each of so many other clients.
    """
    return _generated("synthetic_images", _images(classes, shape, alpha, seed), dict(locals()))


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
    maker = _Reconstructions(_images(classes, shape, alpha, seed))
    return _generated("synthetic_autoencoder", maker, dict(locals()))


@remembered
def synthetic_text(
    clients: int,
    vocabulary: int = 90,
    length: int = 80,
    examples: float = 20,
    skew: float = 0.3,
    spread: float = 1.0,
    test_examples: int = 1000,
    seed: int = 0,
) -> Generated:
    """Sequences of tokens (length,) whose targets are the next ones: (length,), of a Markov chain.

    Shakespeare's shape by default; `vocabulary` 10004 and `length` 20 are that of next words. A token has a few
    successors, frequent and rare ones by a Zipf-like law. Each client speaks one of 16 dialects, whose successors
    replace the common ones in a share `skew` of the steps. The others as in `synthetic_images`.
    """
    vocabulary, length = check_whole("vocabulary", vocabulary, least=2), check_whole("length", length, least=1)
    if check_real("skew", skew) > 1:
        raise ValueError(f"skew: is a share, at most 1, got {skew!r}")
    return _generated("synthetic_text", _Text.of(vocabulary, length, skew, seed), dict(locals()))


@remembered
def synthetic_tags(
    clients: int,
    words: int = 10000,
    tags: int = 500,
    examples: float = 100,
    spread: float = 1.0,
    test_examples: int = 1000,
    seed: int = 0,
) -> Generated:
    """Bags of words (words,) as shares of the text, and one to three tags (tags,) each: both sparse.

    Stack Overflow's shape by default. A tag has words of its own, which make half of a text; the other half are common
    ones. A client writes about a few tags. `examples`, `spread` and `test_examples` as in `synthetic_images`.
    """
    words, tags = check_whole("words", words, least=2), check_whole("tags", tags, least=2)
    return _generated("synthetic_tags", _Tags.of(words, tags, seed), dict(locals()))


@remembered
def synthetic_regression(
    clients: int,
    features: int = 20,
    examples: float = 50,
    skew: float = 0.5,
    noise: float = 0.1,
    spread: float = 0.5,
    test_examples: int = 1000,
    seed: int = 0,
) -> Generated:
    """Normal inputs (features,) and a linear target (1,), both float32, for the loss "mse".

    Every client has its own weights, `skew` standard deviations from the common ones, and its own mean of inputs,
    likewise from 0; targets have normal noise of deviation `noise`. Common weights are standard normal numbers divided
    by the root of `features`. `examples`, `spread` and `test_examples` as in `synthetic_images`.
    """
    features = check_whole("features", features, least=1)
    skew, noise = check_real("skew", skew), check_real("noise", noise)
    return _generated("synthetic_regression", _Regression.of(features, skew, noise, seed), dict(locals()))


def _generated(name: str, maker: Maker, arguments: Mapping[str, Any]) -> Generated:
    """What all tasks share: the sizes of clients, and the test set."""
    given = {key: value for key, value in arguments.items() if key != "maker"}
    clients = check_whole("clients", given["clients"], least=1)
    mean = check_real("examples", given["examples"], least=1)
    spread = check_real("spread", given["spread"])
    held = check_whole("test_examples", given["test_examples"], least=0)
    if clients * mean > MOST_EXAMPLES:
        raise ValueError(
            f"examples: {clients:,} clients with {mean:g} each are too many, at most 2**31 can be numbered"
        )
    stream = _stream(given["seed"], _SIZES)
    return generate(name, maker, sizes(clients, mean, spread, round(_LARGEST * mean), stream), held, given)


def _stream(seed: int, what: int) -> Stream:
    return Stream(seed, Purpose.SYNTHETIC, round=what)


def _bits(n: int, seed: int, what: int, ids: Tensor) -> NDArray[np.int32]:
    """Whole numbers of 24 random bits, (len(ids), n)."""
    return (uniform(n, _stream(seed, what), clients=ids).numpy() * np.float32(2.0**24)).astype(np.int32)


# ---- images ---------------------------------------------------------------------------------------------------------

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
    patterns: NDArray[np.int16]  # (classes, pixels), 0 to 255

    def make(self, clients: Tensor, owner: Tensor, ids: Tensor) -> Examples:
        labels = self._labels(clients, owner, ids)
        contrast, shade = self._style(clients)
        pixels = np.empty((len(ids), self.patterns.shape[1]), dtype=np.uint8)
        for begin in range(0, len(ids), _PORTION):
            part = slice(begin, begin + _PORTION)
            mine = owner.numpy()[part]
            image = np.take(self.patterns, labels[part], axis=0)
            image *= np.take(contrast, mine, axis=0)
            image >>= _FULL_CONTRAST
            image += np.take(shade, mine, axis=0)
            self._add_noise(image, ids[part])
            np.clip(image, 0, 255, out=pixels[part], casting="unsafe")
        return Examples(Pixels(torch.from_numpy(pixels).view(-1, *self.shape)), torch.from_numpy(labels))

    def _labels(self, clients: Tensor, owner: Tensor, ids: Tensor) -> Ints:
        kinds = len(self.patterns)
        taste = shares(log_gammas(np.full(kinds, self.alpha), _stream(self.seed, _TASTE), clients))
        drawn = uniforms(1, _stream(self.seed, _LABELS), ids)[:, 0]
        return choose_rows(taste, owner.numpy(), drawn)

    def _style(self, clients: Tensor) -> tuple[NDArray[np.int16], NDArray[np.int16]]:
        """The contrast (clients, 1), 40 to 88 of 64, and the shade (clients, pixels)."""
        points = self.shape[0] * _COARSE * _COARSE
        drawn = uniforms(1 + points, _stream(self.seed, _STYLE), clients)
        contrast = np.floor(40 + 49 * drawn[:, :1]).astype(np.int16)
        shade = np.rint(_SHADE_DEPTH * (2 * _interpolated(drawn[:, 1:], self.shape) - 1)).astype(np.int16)
        return contrast, shade

    def _add_noise(self, image: NDArray[np.int16], ids: Tensor) -> None:
        """To images (n, pixels), -64 to 63 with equal chances: a number of 24 bits serves a pixel of each third."""
        third = -(-image.shape[1] // 3)
        bits = _bits(third, self.seed, _NOISE, ids)
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
    coarse = uniforms(channels * _COARSE * _COARSE, _stream(seed, _TABLE), torch.arange(classes))
    smooth = _interpolated(coarse, (channels, height, width))
    patterns = np.rint(255 * np.clip(2 * smooth - 1, 0, 1)).astype(np.int16)
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


# ---- text -----------------------------------------------------------------------------------------------------------

_DIALECTS = 16
_SUCCESSORS = 8  # of a token in one dialect
_HALF_BITS = 12  # a number of 24 bits decides two things
_ZIPF_SHIFT = 2.7  # token k has a chance like 1 / (k + 2.7)
_ZIPF_BITS = 18  # of the table that numbers are looked up in


@dataclass(frozen=True)
class _Text:
    """A Markov chain that every client shares, and one for each dialect."""

    seed: int
    vocabulary: int
    length: int
    own: int  # of 2**12 steps, those that follow the client's dialect
    successors: NDArray[np.int32]  # (1 + dialects, vocabulary, successors), flat; the first chain is the common one
    starts: NDArray[np.int32]
    choices: NDArray[np.int32]

    @classmethod
    def of(cls, vocabulary: int, length: int, skew: float, seed: int) -> _Text:
        starts = _zipf_table(vocabulary, _ZIPF_BITS)
        chains = _bits(vocabulary * _SUCCESSORS, seed, _TABLE, torch.arange(1 + _DIALECTS))
        successors = starts[chains >> (24 - _ZIPF_BITS)].ravel()
        choices = _zipf_table(_SUCCESSORS, _HALF_BITS, shift=1.0)
        return cls(seed, vocabulary, length, round(skew * 2**_HALF_BITS), successors, starts, choices)

    def make(self, clients: Tensor, owner: Tensor, ids: Tensor) -> Examples:
        dialect = 1 + (_bits(1, self.seed, _TASTE, clients)[:, 0] % _DIALECTS)[owner.numpy()]
        bits = np.ascontiguousarray(_bits(1 + self.length, self.seed, _DRAWS, ids).T)
        chain = np.where((bits & (2**_HALF_BITS - 1)) < self.own, dialect, 0)
        entry = chain * (self.vocabulary * _SUCCESSORS) + self.choices[bits >> _HALF_BITS]
        tokens = np.empty((1 + self.length, len(ids)), dtype=np.int32)
        tokens[0] = self.starts[bits[0] >> (24 - _ZIPF_BITS)]
        for step in range(1, 1 + self.length):
            tokens[step] = self.successors[entry[step] + tokens[step - 1] * _SUCCESSORS]
        found = torch.from_numpy(np.ascontiguousarray(tokens.T)).long()
        return Examples(found[:, :-1].contiguous(), found[:, 1:].contiguous())


def _zipf_table(kinds: int, bits: int, shift: float = _ZIPF_SHIFT) -> NDArray[np.int32]:
    """(2**bits,): looked up with a random number, it gives k below `kinds` with a chance like 1 / (k + shift)."""
    cumulative = np.cumsum(1 / (np.arange(kinds) + shift))
    places = (np.arange(2**bits) + 0.5) / 2**bits
    return np.searchsorted(cumulative, places * cumulative[-1], side="right").astype(np.int32)


# ---- tags -----------------------------------------------------------------------------------------------------------

_LENGTH = 60  # words of a text
_OWN_WORDS = 32  # of a tag
_FAVOURITES = 8  # tags of a client
_MOST_TAGS = 3  # of a text


@dataclass(frozen=True)
class _Tags:
    """A text takes its words from those of its tags and from the common ones, by halves."""

    seed: int
    words: int
    tags: int
    tag_words: NDArray[np.int32]  # (tags, 32)
    common: NDArray[np.int32]
    popular: NDArray[np.int32]

    @classmethod
    def of(cls, words: int, tags: int, seed: int) -> _Tags:
        tag_words = (_bits(_OWN_WORDS, seed, _TABLE, torch.arange(tags)).astype(np.int64) * words) >> 24
        common, popular = _zipf_table(words, _ZIPF_BITS), _zipf_table(tags, _ZIPF_BITS)
        return cls(seed, words, tags, tag_words.astype(np.int32), common, popular)

    def make(self, clients: Tensor, owner: Tensor, ids: Tensor) -> Examples:
        favourites = self.popular[_bits(_FAVOURITES, self.seed, _TASTE, clients) >> (24 - _ZIPF_BITS)]
        choice = _bits(1 + _MOST_TAGS, self.seed, _LABELS, ids)
        many = 1 + choice[:, :1] % _MOST_TAGS
        tags = favourites[owner.numpy()[:, None], choice[:, 1:] % _FAVOURITES]
        words = self._words(tags, many, ids)
        told = np.where(np.arange(_MOST_TAGS) < many, tags, self.tags)  # the width stands for no tag
        return Examples(_bags(words, self.words, 1 / _LENGTH), _bags(told, self.tags, None))

    def _words(self, tags: NDArray[np.int32], many: NDArray[np.int32], ids: Tensor) -> NDArray[np.int32]:
        """(n, 60) words of texts with the first `many` (n, 1) of the tags (n, 3)."""
        bits = _bits(_LENGTH, self.seed, _DRAWS, ids)
        about = np.take_along_axis(tags, (bits >> 1) % 32 % many, axis=1)
        own = self.tag_words[about, (bits >> 6) % _OWN_WORDS]
        return np.where(bits & 1, own, self.common[bits >> (24 - _ZIPF_BITS)])


def _bags(drawn: NDArray[np.int32], width: int, each: float | None) -> Sparse:
    """Which numbers below `width` each row of `drawn` (n, draws) has, worth `each` per draw, or 1 however often."""
    ordered = np.sort(drawn, axis=1)
    first = np.ones(ordered.shape, dtype=bool)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    times = np.diff(np.append(np.flatnonzero(first), ordered.size))  # a row's last run ends where the next row begins
    columns = ordered[first]
    kept = columns < width
    starts = np.zeros(len(drawn) + 1, dtype=np.int64)
    np.cumsum((first & (ordered < width)).sum(axis=1), out=starts[1:])
    values = np.ones(int(kept.sum())) if each is None else times[kept] * each
    return Sparse(
        torch.from_numpy(starts),
        torch.from_numpy(columns[kept].astype(np.int32)),
        torch.from_numpy(values.astype(np.float32)),
        width,
    )


# ---- regression -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Regression:
    """Targets of a client: its inputs times its weights, and noise."""

    seed: int
    skew: float
    noise: float
    weights: Floats  # (features,), the common ones

    @classmethod
    def of(cls, features: int, skew: float, noise: float, seed: int) -> _Regression:
        return cls(seed, skew, noise, normals(features, _stream(seed, _TABLE)) / np.sqrt(features))

    def make(self, clients: Tensor, owner: Tensor, ids: Tensor) -> Examples:
        features, mine = len(self.weights), owner.numpy()
        own = normals(2 * features, _stream(self.seed, _STYLE), clients)
        weights = self.weights + self.skew / np.sqrt(features) * own[:, :features]
        drawn = normals(features + 1, _stream(self.seed, _DRAWS), ids)
        inputs = drawn[:, :features] + self.skew * own[mine, features:]
        targets = self.noise * drawn[:, features:]
        for feature in range(features):  # in order: a matrix product adds as its library likes
            targets += inputs[:, feature : feature + 1] * weights[mine, feature : feature + 1]
        return Examples(*(torch.from_numpy(part.astype(np.float32)) for part in (inputs, targets)))
