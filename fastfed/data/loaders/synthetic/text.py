"""Sequences of tokens whose targets are the next ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ....saved.recipe import remembered
from ...arguments import check_real, check_whole
from ...generated import Generated
from ...store import Examples
from .common import DRAWS, TABLE, TASTE, ZIPF_BITS, Shared, generated, random_24_bits, zipf_table


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
    shared = Shared(clients, examples, spread, test_examples, seed)
    maker = _Text.of(vocabulary, length, skew, seed)
    return generated("synthetic_text", maker, shared, vocabulary=vocabulary, length=length, skew=skew)


_DIALECTS = 16
_SUCCESSORS = 8  # of a token in one dialect
_HALF_BITS = 12  # a number of 24 bits decides two things


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
        starts = zipf_table(vocabulary, ZIPF_BITS)
        chains = random_24_bits(vocabulary * _SUCCESSORS, seed, TABLE, torch.arange(1 + _DIALECTS))
        successors = starts[chains >> (24 - ZIPF_BITS)].ravel()
        choices = zipf_table(_SUCCESSORS, _HALF_BITS, shift=1.0)
        return cls(seed, vocabulary, length, round(skew * 2**_HALF_BITS), successors, starts, choices)

    def make(self, clients: Tensor, owner: Tensor, ids: Tensor) -> Examples:
        dialect = 1 + (random_24_bits(1, self.seed, TASTE, clients)[:, 0] % _DIALECTS)[owner.numpy()]
        bits = np.ascontiguousarray(random_24_bits(1 + self.length, self.seed, DRAWS, ids).T)
        chain = np.where((bits & (2**_HALF_BITS - 1)) < self.own, dialect, 0)
        entry = chain * (self.vocabulary * _SUCCESSORS) + self.choices[bits >> _HALF_BITS]
        tokens = np.empty((1 + self.length, len(ids)), dtype=np.int32)
        tokens[0] = self.starts[bits[0] >> (24 - ZIPF_BITS)]
        for step in range(1, 1 + self.length):
            tokens[step] = self.successors[entry[step] + tokens[step - 1] * _SUCCESSORS]
        found = torch.from_numpy(np.ascontiguousarray(tokens.T)).long()
        return Examples(found[:, :-1].contiguous(), found[:, 1:].contiguous())
