"""Clients whose examples are made when they are visited: a million of them cost what their sizes cost."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from ..saved.recipe import Recipe
from ..shown import Shown
from .dataset import Visit, facts_of
from .store import Examples

# Clients and examples are numbered with 32 bits, the width of a stream's words; the upper half is for test examples.
MOST_EXAMPLES = _FIRST_TEST = 1 << 31
_TEMPLATE = 4  # examples that show shapes


class Maker(Protocol):
    """Makes examples: each is a function of its own number and of its client's, whatever is made beside it."""

    def make(self, clients: Tensor, owner: Tensor, ids: Tensor) -> Examples:
        """Examples `ids` (n,) of the clients (m,): example i belongs to ``clients[owner[i]]``. All int64."""


@dataclass(frozen=True, repr=False)
class Generated(Shown):
    """A federation (see `Federation`) that holds nothing but sizes, a test set, and how to make examples.

    Client i has the examples numbered ``offsets[i]`` to ``offsets[i + 1]``. `examples` shows their shapes only: a visit
    brings its own. `test` has examples of clients that are not among these, one of each.
    """

    name: str
    examples: Examples = field(repr=False)
    test: Examples | None = field(repr=False)
    offsets: Tensor = field(repr=False)
    maker: Maker = field(repr=False)
    arguments: Mapping[str, Any]
    class_names: tuple[str, ...] = field(default=(), repr=False)
    uncounted: tuple[int, ...] = field(default=(), repr=False)
    recipe: Recipe | None = field(default=None, repr=False, compare=False)

    def _facts(self) -> dict[str, object]:
        return facts_of(self)

    def __len__(self) -> int:
        return self.offsets.numel() - 1

    @cached_property
    def sizes(self) -> Tensor:
        """How many examples each client has: (clients,) int64."""
        return self.offsets.diff()

    @cached_property
    def bytes_each(self) -> int:
        """What an example takes, about: by those that show shapes."""
        return max(1, self.examples.nbytes // max(1, len(self.examples)))

    def visit(self, cohort: Tensor) -> Visit:
        """Makes the examples of these clients, (n,) int64."""
        _check_cohort(cohort, len(self))
        begin = self.offsets[cohort]
        counts = self.offsets[cohort + 1] - begin
        ends = counts.cumsum(0)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), ends])
        if not len(cohort):
            return Visit(self.examples, torch.empty(0, dtype=torch.int64), offsets)
        owner = torch.arange(len(cohort)).repeat_interleave(counts)
        rows = torch.arange(len(owner))
        ids = rows + (begin - offsets[:-1])[owner]
        return Visit(self.maker.make(cohort, owner, ids), rows, offsets)

    def fingerprint(self) -> str:
        """Tells this data from any other: the task and its arguments."""
        # numpy's numbers are told apart from Python's by JSON, not by the examples: `item` makes them the same.
        told = json.dumps([self.name, self.arguments], sort_keys=True, default=lambda number: number.item())
        return hashlib.sha256(told.encode()).hexdigest()[:16]


def generate(name: str, maker: Maker, sizes: Tensor, test_examples: int, arguments: Mapping[str, Any]) -> Generated:
    """A federation of clients with so many examples each, (clients,) int64."""
    offsets = torch.zeros(len(sizes) + 1, dtype=torch.int64)
    torch.cumsum(sizes, 0, out=offsets[1:])
    if max(int(offsets[-1]), len(sizes)) > MOST_EXAMPLES:
        all_examples = f"{len(sizes):,} clients have {int(offsets[-1]):,} together"
        raise ValueError(f"examples: {all_examples}; at most 2**31 clients and examples can be numbered")
    return Generated(
        name=name,
        examples=_unseen(maker, _TEMPLATE),
        test=_unseen(maker, test_examples) if test_examples else None,
        offsets=offsets,
        maker=maker,
        arguments=arguments,
    )


def _unseen(maker: Maker, n: int) -> Examples:
    """An example of each of `n` clients that no federation has."""
    numbers = torch.arange(n)
    return maker.make(_FIRST_TEST + numbers, numbers, _FIRST_TEST + numbers)


def _check_cohort(cohort: Tensor, clients: int) -> None:
    if not isinstance(cohort, Tensor) or cohort.dtype is not torch.int64 or cohort.dim() != 1:
        raise TypeError("cohort: must be a one-dimensional int64 tensor of clients")
    if len(cohort) and not 0 <= int(cohort.min()) <= int(cohort.max()) < clients:
        raise ValueError(f"cohort: must lie in [0, {clients}), got {int(cohort.min())} to {int(cohort.max())}")
