"""Texts of one topic each, as tokens or as bags of words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ....saved.recipe import remembered
from ...arguments import check_real, check_whole
from ...generated import Generated
from ...sampling import choose_rows, log_gammas, shares, uniforms
from ...store import Examples
from .common import DRAWS, LABELS, TABLE, TASTE, ZIPF_BITS, Shared, generated, random_24_bits, stream_for, zipf_table
from .tags import bags


@remembered
def synthetic_topics(
    clients: int,
    classes: int = 4,
    vocabulary: int = 10004,
    length: int = 64,
    examples: float = 100,
    alpha: float = 1.0,
    spread: float = 0.5,
    test_examples: int = 1000,
    seed: int = 0,
    bag: bool = False,
) -> Generated:
    """Tokens (length,) with the topic of the text, int64; with `bag`, bags of words (vocabulary,), sparse.

    AG News's shape by default. A topic has words of its own, which make a quarter of a text; the others are common
    ones. Texts have between a half and all of `length` words, and token 0 pads. `alpha` and the others as in
    `synthetic_images`.
    """
    classes, length = check_whole("classes", classes, least=2), check_whole("length", length, least=1)
    vocabulary = check_whole("vocabulary", vocabulary, least=2)
    check_real("alpha", alpha, above=0)
    shared = Shared(clients, examples, spread, test_examples, seed)
    maker = _Topics.of(classes, vocabulary, length, alpha, seed, bag)
    told = {"classes": classes, "vocabulary": vocabulary, "length": length, "alpha": alpha, "bag": bag}
    return generated("synthetic_topics", maker, shared, **told)


_OWN_WORDS = 32  # of a topic
_OWN_OF = 4  # one word of so many is the topic's own


@dataclass(frozen=True)
class _Topics:
    seed: int
    vocabulary: int
    length: int
    alpha: float
    bag: bool
    own: NDArray[np.int64]  # (classes, 32) words from 1
    common: NDArray[np.int32]

    @classmethod
    def of(cls, classes: int, vocabulary: int, length: int, alpha: float, seed: int, bag: bool) -> _Topics:
        drawn = random_24_bits(_OWN_WORDS, seed, TABLE, torch.arange(classes)).astype(np.int64)
        own = 1 + ((drawn * (vocabulary - 1)) >> 24)
        return cls(seed, vocabulary, length, alpha, bag, own, zipf_table(vocabulary - 1, ZIPF_BITS))

    def make(self, clients: Tensor, owner: Tensor, ids: Tensor) -> Examples:
        taste = shares(log_gammas(np.full(len(self.own), self.alpha), stream_for(self.seed, TASTE), clients))
        labels = choose_rows(taste, owner.numpy(), uniforms(1, stream_for(self.seed, LABELS), ids)[:, 0])
        tokens = self._tokens(labels, ids)
        if self.bag:
            drawn = np.where(tokens > 0, tokens, self.vocabulary).astype(np.int32)  # the width stands for no word
            return Examples(bags(drawn, self.vocabulary, 1 / self.length), torch.from_numpy(labels))
        return Examples(torch.from_numpy(tokens), torch.from_numpy(labels))

    def _tokens(self, labels: NDArray[np.int64], ids: Tensor) -> NDArray[np.int64]:
        bits = random_24_bits(1 + self.length, self.seed, DRAWS, ids)
        ends = self.length - bits[:, :1] % (self.length // 2 + 1)
        bits = bits[:, 1:]
        own = self.own[labels[:, None], (bits >> 2) % _OWN_WORDS]
        words = np.where(bits % _OWN_OF == 0, own, 1 + self.common[bits >> (24 - ZIPF_BITS)])
        return np.where(np.arange(self.length) < ends, words, 0).astype(np.int64)
