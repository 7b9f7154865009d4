"""Bags of words and their tags."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ....saved.recipe import remembered
from ...arguments import check_whole
from ...generated import Generated
from ...store import Examples, Sparse
from ..text import Labels, check_labels
from .common import DRAWS, LABELS, TABLE, TASTE, ZIPF_BITS, Shared, generated, random_24_bits, zipf_table


@remembered
def synthetic_tags(
    clients: int,
    words: int = 10000,
    tags: int = 500,
    examples: float = 100,
    spread: float = 1.0,
    test_examples: int = 1000,
    seed: int = 0,
    labels: Labels = "all",
) -> Generated:
    """Bags of words (words,) as shares of the text, and one to three tags (tags,) each: both sparse. With `labels`
    "one", the first tag only, int64.

    Stack Overflow's shape by default. A tag has words of its own, which make half of a text; the other half are common
    ones. A client writes about a few tags. `examples`, `spread` and `test_examples` as in `synthetic_images`.
    """
    words, tags = check_whole("words", words, least=2), check_whole("tags", tags, least=2)
    check_labels(labels)
    shared = Shared(clients, examples, spread, test_examples, seed)
    own = {"labels": labels} if labels != "all" else {}  # as it was when there were no others
    return generated("synthetic_tags", _Tags.of(words, tags, seed, labels), shared, words=words, tags=tags, **own)


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
    labels: Labels

    @classmethod
    def of(cls, words: int, tags: int, seed: int, labels: Labels) -> _Tags:
        tag_words = (random_24_bits(_OWN_WORDS, seed, TABLE, torch.arange(tags)).astype(np.int64) * words) >> 24
        common, popular = zipf_table(words, ZIPF_BITS), zipf_table(tags, ZIPF_BITS)
        return cls(seed, words, tags, tag_words.astype(np.int32), common, popular, labels)

    def make(self, clients: Tensor, owner: Tensor, ids: Tensor) -> Examples:
        favourites = self.popular[random_24_bits(_FAVOURITES, self.seed, TASTE, clients) >> (24 - ZIPF_BITS)]
        choice = random_24_bits(1 + _MOST_TAGS, self.seed, LABELS, ids)
        many = 1 + choice[:, :1] % _MOST_TAGS
        tags = favourites[owner.numpy()[:, None], choice[:, 1:] % _FAVOURITES]
        words = self._words(tags, many, ids)
        texts = bags(words, self.words, 1 / _LENGTH)
        if self.labels == "one":
            return Examples(texts, torch.from_numpy(tags[:, 0].astype(np.int64)))
        told = np.where(np.arange(_MOST_TAGS) < many, tags, self.tags)  # the width stands for no tag
        return Examples(texts, bags(told, self.tags, None))

    def _words(self, tags: NDArray[np.int32], many: NDArray[np.int32], ids: Tensor) -> NDArray[np.int32]:
        """(n, 60) words of texts with the first `many` (n, 1) of the tags (n, 3)."""
        bits = random_24_bits(_LENGTH, self.seed, DRAWS, ids)
        about = np.take_along_axis(tags, (bits >> 1) % 32 % many, axis=1)
        own = self.tag_words[about, (bits >> 6) % _OWN_WORDS]
        return np.where(bits & 1, own, self.common[bits >> (24 - ZIPF_BITS)])


def bags(drawn: NDArray[np.int32], width: int, each: float | None) -> Sparse:
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
