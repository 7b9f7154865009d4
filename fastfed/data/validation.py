"""Examples that are held out to choose settings by, so that the test set is left for the result."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch

from ..kernels import Stream, permutation
from ..purposes import Purpose
from ..saved.recipe import remembered
from .arguments import check_real
from .dataset import Federated, Federation, gather

_OF_EXAMPLES, _OF_CLIENTS = 5, 6  # what the streams are for: their word `round`, after those of partitions


@remembered
def hold_out(
    fed: Federation, share: float = 0.1, of: Literal["examples", "clients"] = "examples", seed: int = 0
) -> Federated:
    """The same clients without a `share`, 0 < share < 1, of their examples, drawn at random: these are the validation
    set, on which a simulation evaluates the global model whenever it evaluates the test set.

    `of` "examples": so much of every client, rounded down. `of` "clients": all examples of so many of the clients, at
    least one, who then take no part; the others are numbered anew, in their order.
    """
    share = check_real("share", share, above=0)
    if share >= 1:
        raise ValueError(f"share: must be a number in (0, 1), got {share!r}")
    if of not in ("examples", "clients"):
        raise ValueError(f"of: must be 'examples' or 'clients', got {of!r}")
    if not isinstance(fed, Federated):
        raise TypeError(f"fed: {fed.name} makes its examples when they are asked for; there are none to hold out")
    if fed.validation_rows is not None:
        raise ValueError(f"fed: {fed.name} has a validation set already")
    if len(fed.rows.unique()) < len(fed.rows):
        raise ValueError(
            f"fed: some examples of {fed.name} are dealt twice; held out here, they would be trained on there"
        )
    held = _of_examples(fed, share, seed) if of == "examples" else _of_clients(fed, share, seed)
    if not len(held.rows):
        raise ValueError(f"share: {share} of {fed.name} leaves no example to train on")
    if held.validation_rows is None or not len(held.validation_rows):
        raise ValueError(f"share: {share} of every client of {fed.name} is no whole example; see of='clients'")
    return held


def _of_examples(fed: Federated, share: float, seed: int) -> Federated:
    given = (fed.sizes * share).floor().long()
    is_held = torch.zeros(len(fed.rows), dtype=torch.bool)
    for client, number in enumerate(given.tolist()):
        order = permutation(int(fed.sizes[client]), Stream(seed, Purpose.PARTITION, _OF_EXAMPLES, client))
        is_held[int(fed.offsets[client]) + order[:number]] = True
    offsets = torch.zeros_like(fed.offsets)
    offsets[1:] = (fed.sizes - given).cumsum(0)
    return replace(fed, rows=fed.rows[~is_held], offsets=offsets, validation_rows=fed.rows[is_held], recipe=None)


def _of_clients(fed: Federated, share: float, seed: int) -> Federated:
    drawn = permutation(len(fed), Stream(seed, Purpose.PARTITION, _OF_CLIENTS))
    number = max(1, int(share * len(fed)))
    held, kept = drawn[:number].sort().values, drawn[number:].sort().values
    if not len(kept):
        raise ValueError(f"share: {share} of the {len(fed)} clients of {fed.name} leaves none to train")
    rows, offsets = gather(fed.rows, fed.offsets, kept)
    tests: dict[str, Any] = {}
    if fed.test_rows is not None and fed.test_offsets is not None:
        tests["test_rows"], tests["test_offsets"] = gather(fed.test_rows, fed.test_offsets, kept)
    names = tuple(fed.client_names[client] for client in kept.tolist()) if fed.client_names else ()
    aside = gather(fed.rows, fed.offsets, held)[0]
    own = {"rows": rows, "offsets": offsets, "validation_rows": aside, "client_names": names, **tests}
    return replace(fed, recipe=None, **own)
