"""Dealing a data set to clients: by Dirichlet draws, by Pachinko allocation, by natural client, or evenly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ..kernels import Stream, permutation
from ..purposes import Purpose
from ..saved.recipe import remembered
from .arguments import check_real, check_whole
from .dataset import Dataset, Federated, deal
from .exact import Floats, exp
from .sampling import Ints, choose, log_gammas, shares, uniforms

Sizes = int | tuple[int, int] | None
Weights = Callable[[np.ndarray], Floats]
"""The weights (classes,) of a client's next draw, given which classes are left (classes,) bool: 0 where none is."""

# What a partition's streams are for: their word `round`.
_ORDER, _SIZES, _CLASSES, _DRAWS, _LEAVES, _ROWS, _BY_LABEL = range(7)  # the last one: and on, for every attempt
_ATTEMPTS = 1000  # to draw proportions that leave enough for every client


@remembered
def dirichlet(
    data: Dataset,
    clients: int = 100,
    alpha: float = 0.1,
    seed: int = 0,
    examples: Sizes = None,
    replacement: bool = False,
    prior: Literal["scaled", "printed"] = "scaled",
) -> Federated:
    """Clients with class proportions from Dir(alpha * prior), each with exactly as many examples as it should have.

    `examples`: a number, the same for all clients; a range (lowest, highest), drawn uniformly for each; default: all
    rows shared equally, ``rows // clients``. Rows are dealt without replacement, client after client; a class that
    runs out is dropped and the others' proportions are renormalised. With `replacement`, every example is any row of
    its class, whoever has it: no class runs out, and clients may have more rows than there are.

    The `prior` of a class is "scaled": its frequency in the data times the number of classes that occur. Of balanced
    data every class has prior 1, so that alpha is the parameter of a symmetric Dirichlet distribution, as in AFO (0.1)
    and in DSGD's experiments (1, 0.1, 0.01). As "printed" by who writes Dir(alpha * p) with frequencies p that sum to 1
    (Hsu et al.; CC, footnote 6), it is the frequency itself: the same clients as from alpha divided by the number of
    classes.
    """
    alpha = check_real("alpha", alpha, above=0)
    if prior not in ("scaled", "printed"):
        raise ValueError(f"prior: must be 'scaled' or 'printed', got {prior!r}")
    labels = _labels(data)
    counts = _sizes_of_clients(data, clients, examples, seed, replacement)
    pile = _Pile(labels, seed)
    frequency = pile.left / len(labels)
    shapes = frequency * np.count_nonzero(pile.left) if prior == "scaled" else frequency
    logs = log_gammas(alpha * shapes, _stream(seed, _CLASSES), torch.arange(len(counts)))

    def weights_of(client: int) -> Weights:
        return lambda left: shares(np.where(left, logs[client], -np.inf))

    deal_rows = _rows_with_replacement if replacement else _rows_of_clients
    return _dealt(data, deal_rows(pile, counts, weights_of, seed))


@remembered
def dirichlet_by_label(
    data: Dataset,
    clients: int = 10,
    alpha: float = 0.5,
    seed: int = 0,
    min_examples: int = 10,
    balance: bool = False,
) -> Federated:
    """Every class is cut into the clients' parts by proportions from a symmetric Dir(alpha) over clients, so that
    clients have different numbers of examples: NIID-Bench's partition (Li et al. 2021; alpha is their beta).

    Proportions are drawn again until every client has at least `min_examples`. All rows are dealt, each once. With
    `balance`, as in the authors' code, a client that already has its equal share of all rows gets nothing of further
    classes.
    """
    alpha = check_real("alpha", alpha, above=0)
    clients = check_whole("clients", clients, least=1)
    min_examples = check_whole("min_examples", min_examples, least=0)
    labels = _labels(data)
    if clients * min_examples > len(labels):
        raise ValueError(
            f"min_examples: {data.name} has {len(labels)} rows, too few for {clients} clients with {min_examples} each"
        )
    shuffled = permutation(len(labels), _stream(seed, _ORDER)).numpy()
    classes = [shuffled[labels[shuffled] == label] for label in range(int(labels.max()) + 1)]
    for attempt in range(_ATTEMPTS):
        logs = log_gammas(np.full(clients, alpha), _stream(seed, _BY_LABEL + attempt), torch.arange(len(classes)))
        ends = _ends_of_parts([len(rows) for rows in classes], shares(logs), balance)
        if int(np.diff(ends, prepend=0).sum(axis=0).min()) >= min_examples:
            parts = [np.split(rows, cuts[:-1]) for rows, cuts in zip(classes, ends, strict=True)]
            return _dealt(data, (np.concatenate([of[client] for of in parts]) for client in range(clients)))
    raise ValueError(
        f"min_examples: in {_ATTEMPTS} draws of Dir({alpha}) some of {clients} clients always had fewer than "
        f"{min_examples} examples; ask for fewer, or for a larger alpha"
    )


@remembered
def pachinko(
    data: Dataset,
    clients: int = 500,
    examples: Sizes = 100,
    alpha: float = 0.1,
    beta: float = 10.0,
    seed: int = 0,
) -> Federated:
    """Pachinko allocation (AFO, appendix F): clients draw a coarse label, then one of its fine labels, then an example.

    A client's proportions of coarse labels are from a symmetric Dir(alpha), those of the fine labels of a coarse one
    from a symmetric Dir(beta). Rows are dealt without replacement; a fine label that runs out is dropped and its
    siblings are renormalised, a coarse label is dropped with its last fine one. `data` must have `coarse` labels; the
    defaults are AFO's for CIFAR-100. `examples` as in `dirichlet`.
    """
    alpha, beta = check_real("alpha", alpha, above=0), check_real("beta", beta, above=0)
    labels = _labels(data)
    parents = _parents(data)
    counts = _sizes_of_clients(data, clients, examples, seed)
    pile = _Pile(labels, seed)
    ids = torch.arange(len(counts))
    roots = log_gammas(np.full(int(parents.max()) + 1, alpha), _stream(seed, _CLASSES), ids)
    leaves = log_gammas(np.full(len(parents), beta), _stream(seed, _LEAVES), ids)

    def weights_of(client: int) -> Weights:
        return lambda left: _pachinko_weights(roots[client], leaves[client], parents, left)

    return _dealt(data, _rows_of_clients(pile, counts, weights_of, seed))


@remembered
def natural(data: Dataset, min_examples: int = 1) -> Federated:
    """One client for every natural client of the data that has at least `min_examples` training rows, in their order.

    Test rows that belong to these clients are dealt to them, too; the server's test set is all of them.
    """
    min_examples = check_whole("min_examples", min_examples, least=1)
    if data.client is None:
        raise ValueError(f"data: {data.name} does not say which client a row belongs to; deal it with dirichlet or iid")
    count = len(data.client_names) or max(
        int(keys.max()) + 1 for keys in (data.client, data.test_client) if keys is not None and len(keys)
    )
    kept = torch.bincount(data.client, minlength=count) >= min_examples
    if not bool(kept.any()):
        raise ValueError(f"min_examples: no client of {data.name} has {min_examples} examples")
    rows, offsets = _deal_kept(data.client, kept)
    test_rows = test_offsets = None
    if data.test_client is not None and bool(kept[data.test_client].any()):
        test_rows, test_offsets = _deal_kept(data.test_client, kept)
    return Federated(
        name=data.name,
        examples=data.train,
        rows=rows,
        offsets=offsets,
        test=data.test,
        test_rows=test_rows,
        test_offsets=test_offsets,
        client_names=tuple(name for name, keep in zip(data.client_names, kept.tolist(), strict=False) if keep),
        class_names=data.class_names,
        uncounted=data.uncounted,
    )


@remembered
def iid(data: Dataset, clients: int, seed: int = 0) -> Federated:
    """All rows in a random order, cut into clients whose sizes differ by at most one."""
    clients = check_whole("clients", clients, least=1)
    if clients > len(data.train):
        raise ValueError(f"clients: {data.name} has {len(data.train)} rows, too few for {clients} clients")
    order = permutation(len(data.train), _stream(seed, _ORDER))
    offsets = torch.arange(clients + 1) * len(order) // clients
    return _federated(data, order, offsets)


# ---- dealing without replacement ------------------------------------------------------------------------------------


class _Pile:
    """The rows of every class in a random order, and how many of each are left."""

    def __init__(self, labels: Ints, seed: int) -> None:
        shuffled = permutation(len(labels), _stream(seed, _ORDER)).numpy()
        self._rows = shuffled[np.argsort(labels[shuffled], kind="stable")]
        self.left = np.bincount(labels)
        self._next = np.cumsum(self.left) - self.left  # where in `_rows` the next one of each class is

    def take(self, classes: Ints) -> Ints:
        """A row of each of these classes (n,)."""
        counts = np.bincount(classes, minlength=len(self.left))
        by_class = np.argsort(classes, kind="stable")
        earlier = np.empty(len(classes), dtype=np.int64)  # how many of the same class come before it
        earlier[by_class] = np.arange(len(classes)) - np.repeat(np.cumsum(counts) - counts, counts)
        rows = self._rows[self._next[classes] + earlier]
        self._next += counts
        self.left -= counts
        return rows

    def any_of(self, classes: Ints, numbers: Floats) -> Ints:
        """A row of each of these classes (n,), chosen by numbers (n,) in (0, 1) among all that are left."""
        return self._rows[self._next[classes] + np.floor(numbers * self.left[classes]).astype(np.int64)]

    def lasts_for(self, classes: Ints) -> int:
        """How many of these draws there are until one takes the last row of its class, itself included; or all."""
        counts = np.bincount(classes, minlength=len(self.left))
        emptied = np.flatnonzero((counts > 0) & (counts >= self.left))
        return min((int(np.flatnonzero(classes == c)[self.left[c] - 1]) + 1 for c in emptied), default=len(classes))


def _rows_of_clients(pile: _Pile, counts: Ints, weights_of: Callable[[int], Weights], seed: int) -> Iterator[Ints]:
    """The rows of each client, one client after the other."""
    for client, count in enumerate(counts):
        numbers = uniforms(int(count), _stream(seed, _DRAWS, client))
        yield _rows_of_client(pile, numbers, weights_of(client))


def _rows_with_replacement(
    pile: _Pile, counts: Ints, weights_of: Callable[[int], Weights], seed: int
) -> Iterator[Ints]:
    """The rows of each client, of which others, and the client itself, may have the same."""
    for client, count in enumerate(counts):
        classes = choose(weights_of(client)(pile.left > 0), uniforms(int(count), _stream(seed, _DRAWS, client)))
        yield pile.any_of(classes, uniforms(int(count), _stream(seed, _ROWS, client)))


def _ends_of_parts(sizes: Sequence[int], proportions: Floats, balance: bool) -> Ints:
    """Where the clients' parts of every class end, in its rows: (classes, clients), from `proportions` like it."""
    clients = proportions.shape[1]
    ends, held = np.empty(proportions.shape, dtype=np.int64), np.zeros(clients, dtype=np.int64)
    for label, size in enumerate(sizes):
        weights = proportions[label] * (held * clients < sum(sizes)) if balance else proportions[label]
        cumulative = np.cumsum(weights)  # adds in order, so that the bits are the same everywhere
        # of clients that are all full, or too unlikely to be told from 0, the last one has the class
        ends[label] = (cumulative / cumulative[-1] * size).astype(np.int64) if cumulative[-1] > 0 else 0
        ends[label, -1] = size
        held += np.diff(ends[label], prepend=0)
    return ends


def _rows_of_client(pile: _Pile, numbers: Floats, weights: Weights) -> Ints:
    """Number i decides draw i. When a class runs out, the numbers after it are read against the other classes."""
    rows: list[Ints] = []
    while len(numbers):
        classes = choose(weights(pile.left > 0), numbers)
        fine = pile.lasts_for(classes)
        rows.append(pile.take(classes[:fine]))
        numbers = numbers[fine:]
    return np.concatenate(rows)


def _pachinko_weights(root: Floats, leaves: Floats, parents: Ints, left: np.ndarray) -> Floats:
    """The share of each leaf (leaves,) that is left: its coarse label's share, times its own among its siblings."""
    alive = np.bincount(parents[left], minlength=len(root)) > 0
    largest = np.full(len(root), -np.inf)
    np.maximum.at(largest, parents[left], leaves[left])
    own = np.zeros(len(leaves))
    own[left] = exp(leaves[left] - largest[parents[left]])
    siblings = np.bincount(parents, weights=own, minlength=len(root))  # at least 1 where there is a leaf left
    coarse = shares(np.where(alive, root, -np.inf))
    return coarse[parents] * own / np.maximum(siblings, 1.0)[parents]


# ---- arguments and results ------------------------------------------------------------------------------------------


def _stream(seed: int, what: int, client: int = 0) -> Stream:
    return Stream(seed, Purpose.PARTITION, round=what, client=client)


def _labels(data: Dataset) -> Ints:
    labels = data.labels.numpy()
    if not len(labels) or labels.min() < 0:
        problem = f"has the label {labels.min()}" if len(labels) else "has no rows"
        raise ValueError(f"data: {data.name} {problem}; a partition by class needs rows with labels >= 0")
    return labels


def _parents(data: Dataset) -> Ints:
    """The coarse label of every fine label: (classes,); 0 for a fine label that does not occur."""
    if data.coarse is None:
        raise ValueError(f"data: {data.name} has no coarse labels, which Pachinko allocation needs; use dirichlet")
    labels, coarse = _labels(data), data.coarse.numpy()
    parents = np.zeros(int(labels.max()) + 1, dtype=np.int64)
    parents[labels] = coarse
    strays = np.flatnonzero(parents[labels] != coarse)
    if len(strays):
        fine = labels[strays[0]]
        found = f"{coarse[strays[0]]} and {parents[fine]}"
        raise ValueError(f"coarse: every label must have one coarse label, label {fine} of {data.name} has {found}")
    return parents


def _sizes_of_clients(data: Dataset, clients: int, examples: Sizes, seed: int, replacement: bool = False) -> Ints:
    """How many examples each client is to have: (clients,)."""
    clients = check_whole("clients", clients, least=1)
    rows = len(data.train)
    if isinstance(examples, (tuple, list)):
        sizes = _sizes_in_range(clients, examples, seed)
    elif examples is None and clients > rows:
        raise ValueError(f"clients: {data.name} has {rows} rows, too few for {clients} clients")
    else:
        each = rows // clients if examples is None else check_whole("examples", examples, least=1)
        sizes = np.full(clients, each, dtype=np.int64)
    if sizes.sum() > rows and not replacement:
        raise ValueError(
            f"examples: {data.name} has {rows} rows, {clients} clients with {examples!r} examples need {sizes.sum()}"
        )
    return sizes


def _sizes_in_range(clients: int, examples: tuple[int, int], seed: int) -> Ints:
    if len(examples) != 2:
        raise ValueError(f"examples: a range has two ends (lowest, highest), got {examples!r}")
    lowest = check_whole("examples (lowest)", examples[0], least=1)
    highest = check_whole("examples (highest)", examples[1], least=lowest)
    drawn = uniforms(1, _stream(seed, _SIZES), torch.arange(clients))[:, 0]
    return lowest + np.floor(drawn * (highest - lowest + 1)).astype(np.int64)


def _dealt(data: Dataset, rows: Iterator[Ints]) -> Federated:
    parts = list(rows)
    offsets = torch.tensor([0, *np.cumsum([len(part) for part in parts])])
    return _federated(data, torch.from_numpy(np.concatenate(parts)), offsets)


def _federated(data: Dataset, rows: Tensor, offsets: Tensor) -> Federated:
    return Federated(
        name=data.name,
        examples=data.train,
        rows=rows,
        offsets=offsets,
        test=data.test,
        class_names=data.class_names,
        uncounted=data.uncounted,
    )


def _deal_kept(keys: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and offsets of the clients that are `kept` (clients,) bool, from the client of every row (rows,)."""
    number = kept.cumsum(0) - 1  # of a kept client among the kept ones
    mine = kept[keys].nonzero()[:, 0]
    rows, offsets = deal(number[keys[mine]], int(kept.sum()))
    return mine[rows], offsets
