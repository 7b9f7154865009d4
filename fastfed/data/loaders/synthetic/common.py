"""What all made-up tasks share: sizes of clients, random bits, and chances by a Zipf-like law."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ....kernels import Stream, uniform
from ....purposes import Purpose
from ...arguments import check_real, check_whole
from ...generated import MOST_EXAMPLES, Generated, Maker, generate
from ...sampling import sizes

_LARGEST = 10  # times the mean: the most examples that a client can have
_ZIPF_SHIFT = 2.7  # token k has a chance like 1 / (k + 2.7)
ZIPF_BITS = 18  # of the table that numbers are looked up in

# What the streams are for: their word `round`.
SIZES, TABLE, TASTE, STYLE, LABELS, NOISE, DRAWS = range(7)


class Shared(NamedTuple):
    """The arguments that all tasks have, as in `synthetic_images`."""

    clients: int
    examples: float
    spread: float
    test_examples: int
    seed: int


def generated(name: str, maker: Maker, shared: Shared, **own: Any) -> Generated:
    """A task with the sizes of its clients and its test set. Its `own` arguments tell it from others, too."""
    clients = check_whole("clients", shared.clients, least=1)
    mean = check_real("examples", shared.examples, least=1)
    spread = check_real("spread", shared.spread)
    held = check_whole("test_examples", shared.test_examples, least=0)
    if clients * mean > MOST_EXAMPLES:
        raise ValueError(
            f"examples: {clients:,} clients with {mean:g} each are too many, at most 2**31 can be numbered"
        )
    stream = stream_for(shared.seed, SIZES)
    told = {**shared._asdict(), **own}
    return generate(name, maker, sizes(clients, mean, spread, round(_LARGEST * mean), stream), held, told)


def stream_for(seed: int, what: int) -> Stream:
    return Stream(seed, Purpose.SYNTHETIC, round=what)


def random_24_bits(n: int, seed: int, what: int, ids: Tensor) -> NDArray[np.int32]:
    """Whole numbers of 24 random bits, (len(ids), n)."""
    return (uniform(n, stream_for(seed, what), clients=ids).numpy() * np.float32(2.0**24)).astype(np.int32)


def zipf_table(kinds: int, bits: int, shift: float = _ZIPF_SHIFT) -> NDArray[np.int32]:
    """(2**bits,): looked up with a random number, it gives k below `kinds` with a chance like 1 / (k + shift)."""
    cumulative = np.cumsum(1 / (np.arange(kinds) + shift))
    places = (np.arange(2**bits) + 0.5) / 2**bits
    return np.searchsorted(cumulative, places * cumulative[-1], side="right").astype(np.int32)
