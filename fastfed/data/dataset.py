"""A data set as its files hold it (`Dataset`), and dealt to clients (`Federated`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ..saved.recipe import Recipe
from ..shown import Shown
from .fingerprint import is_sampled, sampled, whole
from .store import Examples, Sparse


@dataclass(frozen=True, repr=False)
class Dataset(Shown):
    """Examples before clients are made of them.

    `client` (examples,) int64 is the natural client of every training row, an index into `client_names`; `test_client`
    says the same of the test rows. `coarse` (examples,) int64 holds coarse labels where there are two levels.
    `uncounted` are labels that are learnt but count in no accuracy, such as "unknown word".
    """

    name: str
    train: Examples
    test: Examples | None = None
    client: Tensor | None = None
    client_names: tuple[str, ...] = field(default=(), repr=False)
    test_client: Tensor | None = None
    class_names: tuple[str, ...] = field(default=(), repr=False)
    coarse: Tensor | None = None
    uncounted: tuple[int, ...] = field(default=(), repr=False)
    recipe: Recipe | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_keys("client", self.client, len(self.train), len(self.client_names) or None)
        _check_keys("coarse", self.coarse, len(self.train), None)
        if self.test_client is not None and self.test is None:
            raise ValueError("test_client: there are no test examples to belong to a client")
        _check_keys("test_client", self.test_client, len(self.test or ()), len(self.client_names) or None)

    def _facts(self) -> dict[str, object]:
        return {
            "name": self.name,
            "examples": len(self.train),
            "form": self.train.form,
            "test": None if self.test is None else len(self.test),
            "natural_clients": len(self.client_names) or None,
            "classes": len(self.class_names) or None,
        }

    @property
    def labels(self) -> Tensor:
        """The training rows' labels (examples,) int64, for partitions by class."""
        return labels_of(self.train, self.name)


def labels_of(examples: Examples, name: str) -> Tensor:
    """One label per example, (examples,) int64, or an error that says what the targets are instead."""
    targets = examples.targets
    if isinstance(targets, Sparse) or targets.dim() != 1 or targets.dtype is not torch.int64:
        kind = "tags" if isinstance(targets, Sparse) else f"{targets.dtype} {tuple(targets.shape)}"
        raise ValueError(f"{name}: a partition by class needs one int64 label per example, its targets are {kind}")
    return targets


@dataclass(frozen=True, repr=False)
class Visit(Shown):
    """The examples of a cohort: client i of it has ``rows[offsets[i]:offsets[i + 1]]`` of `examples`."""

    examples: Examples
    rows: Tensor
    offsets: Tensor

    def _facts(self) -> dict[str, object]:
        return {"clients": self.offsets.numel() - 1, "examples": self.rows.numel()}


class Federation(Protocol):
    """Clients with examples: held in memory (`Federated`) or made when visited (``ff.data.synthetic_*``).

    `examples` is the store that visits read, or, where every visit makes its own, one that shows their shapes.
    """

    @property
    def name(self) -> str: ...

    @property
    def examples(self) -> Examples: ...

    @property
    def test(self) -> Examples | None: ...

    @property
    def uncounted(self) -> tuple[int, ...]:
        """Labels that count in no accuracy."""

    @property
    def sizes(self) -> Tensor:
        """How many examples each client has: (clients,) int64."""

    def __len__(self) -> int: ...

    def visit(self, cohort: Tensor) -> Visit:
        """The examples of these clients, (n,) int64."""

    def fingerprint(self) -> str:
        """Tells this data from any other, for checkpoints."""


@dataclass(frozen=True, repr=False)
class Federated(Shown):
    """A data set dealt to clients: client i has the rows ``rows[offsets[i]:offsets[i + 1]]`` of `examples`.

    `test` is the server's test set. Where test rows belong to clients too, client i has
    ``test_rows[test_offsets[i]:test_offsets[i + 1]]`` of it. `uncounted` labels count in no accuracy. `validation_rows`
    of `examples` are no client's: they are held out (``ff.data.hold_out``).
    """

    name: str
    examples: Examples
    rows: Tensor
    offsets: Tensor
    test: Examples | None = None
    test_rows: Tensor | None = None
    test_offsets: Tensor | None = None
    client_names: tuple[str, ...] = field(default=(), repr=False)
    class_names: tuple[str, ...] = field(default=(), repr=False)
    uncounted: tuple[int, ...] = field(default=(), repr=False)
    validation_rows: Tensor | None = None
    recipe: Recipe | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_deal("rows", self.rows, self.offsets, len(self.examples))
        if (self.test_rows is None) != (self.test_offsets is None) or (self.test_rows is not None and not self.test):
            raise ValueError("test_rows: comes together with test_offsets and test")
        if self.test_rows is not None and self.test_offsets is not None and self.test is not None:
            _check_deal("test_rows", self.test_rows, self.test_offsets, len(self.test))
            if self.test_offsets.numel() != self.offsets.numel():
                raise ValueError(f"test_offsets: must have {self.offsets.numel()} entries, as offsets has")
        if self.client_names and len(self.client_names) != len(self):
            raise ValueError(f"client_names: must name {len(self)} clients, got {len(self.client_names)}")

    def _facts(self) -> dict[str, object]:
        return {**facts_of(self), "validation": None if self.validation_rows is None else self.validation_rows.numel()}

    def __len__(self) -> int:
        return self.offsets.numel() - 1

    @cached_property
    def sizes(self) -> Tensor:
        """How many examples each client has: (clients,) int64."""
        return self.offsets[1:] - self.offsets[:-1]

    def rows_of(self, client: int) -> Tensor:
        """The example rows of one client, (n,) int64."""
        return self.rows[int(self.offsets[client]) : int(self.offsets[client + 1])]

    def visit(self, cohort: Tensor) -> Visit:
        """The examples of these clients, (n,) int64."""
        rows, offsets = gather(self.rows, self.offsets, cohort)
        return Visit(self.examples, rows, offsets)

    def visit_tests(self, cohort: Tensor) -> Visit | None:
        """The test examples of these clients, where clients have any."""
        if self.test is None or self.test_rows is None or self.test_offsets is None:
            return None
        rows, offsets = gather(self.test_rows, self.test_offsets, cohort)
        return Visit(self.test, rows, offsets)

    def fingerprint(self) -> str:
        """Tells this data from any other: who has which rows, and all that they hold. Reads everything."""
        return whole(self)


def has_fingerprint(fed: Federation, fingerprint: str) -> bool:
    """Whether a fingerprint, perhaps one that was written before all contents counted, is the one of this data."""
    if isinstance(fed, Federated) and is_sampled(fingerprint):
        return sampled(fed) == fingerprint
    return fed.fingerprint() == fingerprint


def facts_of(fed: Federation) -> dict[str, object]:
    """What is worth a look of clients with data."""
    few, many = int(fed.sizes.min()), int(fed.sizes.max())
    return {
        "name": fed.name,
        "clients": len(fed),
        "examples": int(fed.sizes.sum()),
        "examples_each": few if few == many else f"{few} to {many}",
        "form": fed.examples.form,
        "test": None if fed.test is None else len(fed.test),
    }


def gather(rows: Tensor, offsets: Tensor, cohort: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of these clients (n,) one after the other, and their offsets (n + 1,)."""
    chosen, begin = cohort.numpy(), offsets.numpy()  # numpy: torch would wake its threads for a few microseconds' work
    counts = begin[chosen + 1] - begin[chosen]
    ends = np.concatenate([np.zeros(1, np.int64), counts.cumsum()])
    places = np.arange(ends[-1]) + np.repeat(begin[chosen] - ends[:-1], counts)
    return torch.from_numpy(rows.numpy()[places]), torch.from_numpy(ends)


def deal(keys: Tensor, clients: int) -> tuple[Tensor, Tensor]:
    """Rows by client from the client of every row (examples,) int64: rows (examples,) in their order within a client,
    and offsets (clients + 1,)."""
    rows = torch.argsort(keys, stable=True)
    offsets = torch.zeros(clients + 1, dtype=torch.int64)
    offsets[1:] = torch.bincount(keys, minlength=clients).cumsum(0)
    return rows, offsets


def _check_keys(name: str, keys: Tensor | None, rows: int, count: int | None) -> None:
    if keys is None:
        return
    if keys.dtype is not torch.int64 or keys.shape != (rows,):
        raise ValueError(f"{name}: must be int64 ({rows},), one entry per row, got {keys.dtype} {tuple(keys.shape)}")
    if rows and (int(keys.min()) < 0 or (count is not None and int(keys.max()) >= count)):
        raise ValueError(
            f"{name}: must lie in [0, {count or 'number of clients'}), got {int(keys.min())} to {int(keys.max())}"
        )


def _check_deal(name: str, rows: Tensor, offsets: Tensor, examples: int) -> None:
    for label, tensor in ((name, rows), (name.replace("rows", "offsets"), offsets)):
        if not isinstance(tensor, Tensor) or tensor.dtype is not torch.int64 or tensor.dim() != 1:
            raise TypeError(f"{label}: must be a one-dimensional int64 tensor")
    if offsets.numel() < 2 or offsets[0] != 0 or offsets[-1] != rows.numel() or bool((offsets.diff() < 0).any()):
        raise ValueError(
            f"{name}: its offsets must run from 0 to {rows.numel()}, never falling, for at least one client"
        )
    if rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < examples:
        raise ValueError(f"{name}: must lie in [0, {examples}), got {int(rows.min())} to {int(rows.max())}")
