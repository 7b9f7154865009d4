"""A card that is not there: kernels are picked as on one and left out, and what it would send is made up.

What is left is the host's share of a round, which can then be counted and timed on any machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ...kernels import registry
from ...train.device import lanes


@contextmanager
def as_on_a_card(device: str = "cpu") -> Iterator[None]:
    """Ops pick Triton's kernels for tensors of this kind of device, as for a card's: none of them can run."""
    backends, preferred, default = dict(registry.BACKENDS), dict(registry._PREFERENCE), registry.default
    registry.BACKENDS["triton"] = registry.Backend("triton", lambda: None, lambda: (device,))
    registry._PREFERENCE[device] = ("triton",)
    registry.default = None
    _choose_again()
    try:
        yield
    finally:
        registry.BACKENDS.update(backends)
        registry._PREFERENCE.clear()
        registry._PREFERENCE.update(preferred)
        registry.default = default
        _choose_again()


def _choose_again() -> None:
    registry._asked.cache_clear()
    registry._fastest.cache_clear()


@contextmanager
def as_on_the_host() -> Iterator[None]:
    """Inside `as_on_a_card`, where the CPU stands for a card: ops are the CPU's own again."""
    before = registry.default
    registry.default = "reference" if registry.BACKENDS["cpp"].why_not() else "cpp"
    try:
        yield
    finally:
        registry.default = before


@contextmanager
def stubbed_card(device: str = "cpu") -> Iterator[Counter[str]]:
    """A card whose kernels are counted by name instead of run, and which answers every number of a round with 1: all
    clients count, and the server moves.

    Its tensors may be the CPU's. Those of "meta" hold no numbers: they take no memory, and nobody can wait for them.
    """
    from ...kernels.triton.launch import launches

    fetch = lanes.fetch

    def answered(numbers: Tensor) -> Tensor:
        return torch.ones_like(numbers, device="cpu") if numbers.is_meta else torch.ones_like(fetch(numbers))

    lanes.fetch = answered
    try:
        with as_on_a_card(device), launches(run=False) as seen:
            yield seen
    finally:
        lanes.fetch = fetch
