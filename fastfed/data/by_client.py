"""One data set per client, as people have it who have collected it so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..kernels import Stream
from ..purposes import Purpose
from ..saved.recipe import remembered
from .arrays import as_dataset, read_pairs
from .dataset import Dataset, Federated
from .normalise import Statistic
from .splitting import draw, rows_of
from .store import Examples, Inputs, Pixels, Sparse

_OF_TESTS = 8  # what the streams are for: their word `round`


@remembered
def from_clients(
    clients: Any,
    tests: Any = None,
    test: Any = None,
    test_fraction: float | None = None,
    seed: int = 0,
    name: str = "clients",
    mean: Statistic | None = None,
    std: Statistic | None = None,
) -> Federated:
    """One data set per client: a list of them, or a dict by the clients' names.

    Each is a pair of arrays (inputs, targets), or items by index: a torch data set, one of Hugging Face, a list of
    pairs or dicts (as `from_torch` reads them). `tests` has as many test sets, one per client, which together are the
    server's test set; or `test_fraction` is the share of every client's examples, drawn with `seed`, that become its
    tests (a client with one example keeps it). `test` is a test set of the server's own. `mean` and `std` as in
    `from_arrays`.
    """
    given = {"tests": tests, "test": test, "test_fraction": test_fraction}
    if sum(one is not None for one in given.values()) > 1:
        both = " and ".join(argument for argument, one in given.items() if one is not None)
        raise ValueError(f"tests: give one of tests, test and test_fraction, got {both}")
    names, held = _listed("clients", clients)
    labels = [f"clients[{label}]" for label in _labels(names, held)]
    parts = [_examples(label, one, mean, std) for label, one in zip(labels, held, strict=True)]
    tested: list[Examples | None] = [None] * len(parts)
    if tests is not None:
        tested = _tests(names, tests, len(parts), mean, std)
    if test_fraction is not None:
        parts, tested = _drawn(parts, test_fraction, seed)
    examples = _joined("clients", parts)
    counts = torch.tensor([len(part) for part in parts])
    whole, test_rows, test_offsets = None, None, None
    if test is not None:
        whole = _examples("test", test, mean, std)
        _check_form("test", whole, examples)
    elif any(part is not None for part in tested):
        whole = _joined("tests", [part for part in tested if part is not None])
        _check_form("tests", whole, examples)
        test_offsets = _offsets(torch.tensor([0 if part is None else len(part) for part in tested]))
        test_rows = torch.arange(len(whole))
    return Federated(
        name, examples, torch.arange(len(examples)), _offsets(counts), whole, test_rows, test_offsets, tuple(names)
    )


def _listed(argument: str, clients: Any) -> tuple[list[str], list[Any]]:
    """Names and data sets, in order."""
    if isinstance(clients, Mapping):
        names, held = [str(name) for name in clients], list(clients.values())
    elif isinstance(clients, Sequence) and not isinstance(clients, str):
        names, held = [], list(clients)
    else:
        kind = type(clients).__name__
        raise TypeError(f"{argument}: must be a list of data sets, or a dict of them by name, got {kind}")
    if not held:
        raise ValueError(f"{argument}: there are none")
    return names, held


def _labels(names: Sequence[str], held: Sequence[Any]) -> list[str]:
    return [repr(name) for name in names] or [str(place) for place in range(len(held))]


def _tests(names: list[str], tests: Any, clients: int, mean: Any, std: Any) -> list[Examples | None]:
    if isinstance(tests, Mapping) != bool(names):
        raise TypeError("tests: must be a dict where clients is one, and a list where that is a list")
    if isinstance(tests, Mapping):
        unknown = [name for name in tests if str(name) not in names]
        if unknown:
            raise ValueError(f"tests: {unknown[0]!r} is no client")
        held = [tests.get(name) for name in names]
    else:
        held = _listed("tests", tests)[1]
    if len(held) != clients:
        raise ValueError(f"tests: must be one for each of the {clients} clients (None: no test), got {len(held)}")
    return [
        None if one is None else _examples(f"tests[{label}]", one, mean, std)
        for label, one in zip(_labels(names, held), held, strict=True)
    ]


def _examples(argument: str, given: Any, mean: Any, std: Any) -> Examples:
    """One client's data set."""
    if isinstance(given, Examples):
        return given
    if isinstance(given, Dataset):
        return given.train
    is_pair = isinstance(given, (tuple, list)) and len(given) == 2 and all(hasattr(one, "shape") for one in given)
    try:
        x, y = given if is_pair else read_pairs("items", given)
        return as_dataset(x, y, mean=mean, std=std).train
    except (ValueError, TypeError) as error:
        raise type(error)(f"{argument}: {error}") from error


def _drawn(parts: Sequence[Examples], fraction: float, seed: int) -> tuple[list[Examples], list[Examples | None]]:
    kept: list[Examples] = []
    tested: list[Examples | None] = []
    for client, part in enumerate(parts):
        if len(part) < 2:
            kept.append(part)
            tested.append(None)
            continue
        chosen, rest = draw(len(part), fraction, Stream(seed, Purpose.PARTITION, _OF_TESTS, client))
        kept.append(rows_of(part, rest))
        tested.append(rows_of(part, chosen))
    return kept, tested


def _offsets(counts: Tensor) -> Tensor:
    found = torch.zeros(len(counts) + 1, dtype=torch.int64)
    found[1:] = counts.cumsum(0)
    return found


def _joined(argument: str, parts: Sequence[Examples]) -> Examples:
    """All in one place; they must be of one form."""
    for place, part in enumerate(parts):
        if part.form != parts[0].form:
            raise ValueError(f"{argument}[{place}]: must be like the first, {parts[0].form}, got {part.form}")
    targets = _concatenated([part.targets for part in parts])
    assert not isinstance(targets, Pixels)
    return Examples(_concatenated([part.inputs for part in parts]), targets)


def _concatenated(stores: Sequence[Inputs]) -> Inputs:
    first = stores[0]
    if isinstance(first, Pixels):
        images = torch.cat([store.bytes for store in stores if isinstance(store, Pixels)])
        return Pixels(images, first.mean, first.std, first.augment)
    if isinstance(first, Sparse):
        sparse = [store for store in stores if isinstance(store, Sparse)]
        counts = torch.cat([store.starts.diff() for store in sparse])
        return Sparse(
            _offsets(counts),
            torch.cat([store.columns for store in sparse]),
            torch.cat([store.values for store in sparse]),
            first.width,
        )
    return torch.cat([store for store in stores if isinstance(store, Tensor)])


def _check_form(argument: str, test: Examples, examples: Examples) -> None:
    if test.form != examples.form:
        raise ValueError(f"{argument}: must be like the clients' examples, {examples.form}, got {test.form}")
