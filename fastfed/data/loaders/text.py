"""Text as numbers: characters and words as token sequences, bags of words and tags as sparse rows.

Tokens are those of "Adaptive Federated Optimization" (AFO): 0 pads, symbols count from 1, and after the last symbol
come the tokens for unknown symbols, the begin and the end of a text (`Tokens`).
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...losses import IGNORED
from ..store import Examples, Sparse

Integers = NDArray[np.int64]

# TensorFlow Federated's 86 characters of Shakespeare, in the order in which it numbers them.
CHARACTERS = "dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#'/37;?bfjnrvzBFJNRVZ\"&*.26:\naeimquyAEIMQUY]!%)-159\r"
PAD = 0


@dataclass(frozen=True)
class Tokens:
    """The tokens around `symbols` known symbols, which are 1 ... symbols; ``len`` counts all of them."""

    symbols: int

    @property
    def unknown(self) -> int:
        return self.symbols + 1

    @property
    def begin(self) -> int:
        return self.symbols + 2

    @property
    def end(self) -> int:
        return self.symbols + 3

    @property
    def special(self) -> tuple[int, int, int]:
        """All that are learnt as others are, but are no symbols."""
        return self.unknown, self.begin, self.end

    def __len__(self) -> int:
        return self.symbols + 4


CHARACTER_TOKENS = Tokens(len(CHARACTERS))


def _token_of_byte() -> Integers:
    """The token of each of the 256 bytes: text is read byte by byte, as AFO does, so é is unknown twice."""
    tokens = np.full(256, CHARACTER_TOKENS.unknown, dtype=np.int64)
    tokens[np.frombuffer(CHARACTERS.encode("ascii"), dtype=np.uint8)] = np.arange(1, len(CHARACTERS) + 1)
    return tokens


_TOKEN_OF_BYTE = _token_of_byte()


def character_tokens(text: bytes) -> Integers:
    """The tokens of a text, (bytes,) int64."""
    return _TOKEN_OF_BYTE[np.frombuffer(text, dtype=np.uint8)]


def character_sequences(texts: Sequence[bytes], length: int = 80) -> tuple[Examples, Integers]:
    """Texts as next-character examples, and how many each text gives, (texts,) int64.

    A text between its begin and end tokens is cut every length + 1 tokens: the first `length` of a piece are its input
    and the last `length` its target, both int64 (examples, length). Inputs of the last piece are padded with `PAD`, its
    targets with `IGNORED`. A last piece of one token has nothing to predict and is left out.
    """
    width = length + 1
    sizes = np.fromiter((len(text) for text in texts), dtype=np.int64, count=len(texts)) + 2
    pieces = -(-sizes // width)
    first = np.cumsum(pieces) - pieces
    flat = np.full(int(pieces.sum()) * width, PAD, dtype=np.int64)
    begin = first * width
    flat[begin] = CHARACTER_TOKENS.begin
    flat[begin + sizes - 1] = CHARACTER_TOKENS.end
    flat[_runs(begin + 1, sizes - 2)] = character_tokens(b"".join(texts))
    lone = sizes % width == 1  # holds for no text of one piece, as width >= 2 and sizes >= 2
    rows = np.delete(flat.reshape(-1, width), (first + pieces - 1)[lone], axis=0)
    return next_token_examples(rows), pieces - lone


def next_token_examples(rows: Integers) -> Examples:
    """Examples of tokens (examples, length + 1) int64: each predicts the next one, padding is never predicted."""
    targets = np.where(rows[:, 1:] == PAD, IGNORED, rows[:, 1:])
    return Examples(torch.from_numpy(np.ascontiguousarray(rows[:, :-1])), torch.from_numpy(targets))


def fill_words(row: Integers, words: Sequence[str], vocabulary: Mapping[str, int], tokens: Tokens) -> None:
    """Writes a sentence into a row (length + 1,) of `PAD`: begin, at most `length` words, and the end if it fits.

    `vocabulary` gives the place of every known word, from 0.
    """
    length = len(row) - 1
    kept = words[:length]
    row[0] = tokens.begin
    row[1 : len(kept) + 1] = [vocabulary.get(word, tokens.symbols) + 1 for word in kept]
    if len(kept) < length:
        row[len(kept) + 1] = tokens.end


def most_common(counts: Mapping[str, int], size: int) -> dict[str, int]:
    """The `size` keys of the highest counts, each with its place from 0; equal counts in alphabetical order."""
    ordered = sorted(counts, key=lambda key: (-counts[key], key))
    return {key: place for place, key in enumerate(ordered[:size])}


class SparseRows:
    """Collects rows of a `Sparse` of `width` columns, in compact arrays."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._starts = array("q", [0])
        self._columns = array("i")
        self._values = array("f")

    def add(self, columns: Iterable[int], values: Iterable[float]) -> None:
        """One more row: each column at most once."""
        self._columns.extend(columns)
        self._values.extend(values)
        self._starts.append(len(self._columns))

    def add_words(self, words: Iterable[str], vocabulary: Mapping[str, int], count_unknown: bool = False) -> None:
        """A bag of words as frequencies that sum to 1 over the known words.

        With `count_unknown` a frequency is the share among all words, known or not, as in the code of AFO's authors.
        """
        counts = Counter(words)
        known = sorted((vocabulary[word], count) for word, count in counts.items() if word in vocabulary)
        total = sum(counts.values()) if count_unknown else sum(count for _, count in known)
        self.add((place for place, _ in known), (count / total for _, count in known))

    def add_tags(self, tags: Iterable[str], vocabulary: Mapping[str, int]) -> None:
        """Known tags as ones."""
        places = sorted({vocabulary[tag] for tag in tags if tag in vocabulary})
        self.add(places, (1.0 for _ in places))

    def first_columns(self) -> Tensor:
        """The first column that each row has, (rows,) int64: `IGNORED` (-100) where it has none."""
        starts, columns = np.array(self._starts), np.array([*self._columns, IGNORED])
        return torch.from_numpy(np.where(np.diff(starts) > 0, columns[starts[:-1]], IGNORED).astype(np.int64))

    def sparse(self) -> Sparse:
        """All rows so far."""
        starts, columns, values = (np.array(part) for part in (self._starts, self._columns, self._values))
        return Sparse(torch.from_numpy(starts), torch.from_numpy(columns), torch.from_numpy(values), self.width)


Labels = Literal["all", "one"]


def tags_as(labels: Labels, rows: SparseRows) -> Sparse | Tensor:
    """Tags as targets: all that apply, ones of a `Sparse`, or the most frequent one, int64 (examples,)."""
    return rows.sparse() if labels == "all" else rows.first_columns()


def check_labels(labels: Labels) -> None:
    if labels not in ("all", "one"):
        raise ValueError(f"labels: must be 'all' or 'one', got {labels!r}")


def held_out(count: int, fraction: float) -> int:
    """How many of a client's `count` examples are for testing: `fraction`, rounded up, but never all of them."""
    wanted = math.ceil(count * fraction - 1e-9)  # 0.07 * 100 is 7.000000000000001
    return max(0, min(wanted, count - 1))


def check_fraction(name: str, value: float) -> None:
    """Refuses what is no share of a client's examples."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise ValueError(f"{name}: must lie in [0, 1), got {value!r}")


def _runs(starts: Integers, counts: Integers) -> Integers:
    """The numbers starts[i], starts[i] + 1, ... (counts[i] of them), one run after the other."""
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(starts - (ends - counts), counts)
