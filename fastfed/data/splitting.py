"""A share of the examples as a test set, drawn at random."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..kernels import Stream, permutation
from ..purposes import Purpose
from .arguments import check_real
from .dataset import Dataset
from .store import Examples, Inputs, Pixels, Sparse

_OF_TESTS = 7  # what the stream is for: its word `round`, after those of partitions and of validation sets


def with_test(data: Dataset, fraction: float | None, seed: int) -> Dataset:
    """The data set with this share of its examples as test set, at least one; as it is if there is no fraction."""
    if fraction is None:
        return data
    if data.test is not None:
        raise ValueError("test_fraction: there is a test set already; give the one or the other")
    chosen, rest = draw(len(data.train), fraction, Stream(seed, Purpose.PARTITION, _OF_TESTS, 0))
    keys = None if data.client is None else data.client
    return replace(
        data,
        train=rows_of(data.train, rest),
        test=rows_of(data.train, chosen),
        client=None if keys is None else keys[rest],
        test_client=None if keys is None else keys[chosen],
        coarse=None if data.coarse is None else data.coarse[rest],
    )


def draw(rows: int, fraction: float, stream: Stream) -> tuple[Tensor, Tensor]:
    """The rows that are drawn, a share of all and at least one, and the others; each in their order."""
    share = check_real("test_fraction", fraction, above=0)
    if share >= 1 or rows < 2:
        why = f"got {fraction!r}" if share >= 1 else f"and there must be two examples at least, got {rows}"
        raise ValueError(f"test_fraction: must be a number in (0, 1), {why}")
    number = min(rows - 1, max(1, round(rows * share)))
    order = permutation(rows, stream)
    return order[:number].sort().values, order[number:].sort().values


def rows_of(examples: Examples, rows: Tensor) -> Examples:
    """These rows (n,) alone."""
    targets = _picked(examples.targets, rows)
    assert not isinstance(targets, Pixels)
    return Examples(_picked(examples.inputs, rows), targets)


def _picked(store: Inputs, rows: Tensor) -> Inputs:
    if isinstance(store, Pixels):
        return replace(store, bytes=store.bytes[rows])
    if not isinstance(store, Sparse):
        return store[rows]
    begin, counts = store.starts[rows], store.starts[rows + 1] - store.starts[rows]
    starts = torch.zeros(len(rows) + 1, dtype=torch.int64)
    starts[1:] = counts.cumsum(0)
    places = torch.arange(int(starts[-1])) + (begin - starts[:-1]).repeat_interleave(counts)
    return Sparse(starts, store.columns[places], store.values[places], store.width)
