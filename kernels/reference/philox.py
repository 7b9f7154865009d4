"""Random numbers as int64 tensor arithmetic."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .. import bind
from ..rows import draws_rows
from ..streams import LARGEST_KEY, StreamWords

_MASK = 0xFFFFFFFF


def _wide_multiply(a: Any, b: int) -> tuple[Any, Any]:
    product = a * b  # wraps modulo 2^64; the shift is arithmetic, the mask drops the sign's copies
    return (product >> 32) & _MASK, product & _MASK


_philox = bind.load(
    "philox",
    "torch",
    {
        "wide_multiply": _wide_multiply,
        "to_float": lambda word: word.to(torch.float32),
        "log": torch.log,
        "sqrt": torch.sqrt,
        "cos": torch.cos,
        "sin": torch.sin,
        "UNIT24": 2.0**-24,
        "UNIT32": 2.0**-32,
        "HALF": 0.5,
        "MINUS_TWO": -2.0,
        "TWO_PI": 2.0 * math.pi,
    },
)


def _words(stream: StreamWords, clients: Tensor, blocks: int, steps: Tensor | None = None) -> list[Tensor]:
    """Four tensors (clients, blocks): the words of every block of every client's stream, at `steps` (clients,) if given
    instead of the stream's own."""
    block = torch.arange(blocks, dtype=torch.int64, device=clients.device)[None, :]
    zero = torch.zeros_like(block)
    step = zero + stream.step if steps is None else steps[:, None] + zero
    counter = (block, step, clients[:, None] + zero, zero + stream.round)
    return list(_philox.philox(*counter, stream.key0, stream.key1))


def words_at(stream: StreamWords, clients: Tensor, blocks: Tensor, steps: Tensor) -> tuple[Tensor, ...]:
    """The four words of these blocks at these steps of clients' streams, all of one shape."""
    found: tuple[Tensor, ...] = _philox.philox(
        blocks, steps, clients, torch.full_like(blocks, stream.round), stream.key0, stream.key1
    )
    return found


def _sort_keys(words: list[Tensor], n: int) -> Tensor:
    """(clients, n) int64: two of every block, side by side."""
    keys = torch.stack([_philox.sort_key(*words[:2]), _philox.sort_key(*words[2:])], dim=-1)
    return keys.flatten(1)[:, :n]


@draws_rows
def uniform(out: Tensor, stream: StreamWords, clients: Tensor) -> None:
    """out: (clients, n) float32."""
    words = _words(stream, clients, -(-out.shape[1] // 4))
    numbers = torch.stack([_philox.uniform_of(word) for word in words], dim=-1)
    out.copy_(numbers.flatten(1)[:, : out.shape[1]])


@draws_rows
def normal(out: Tensor, stream: StreamWords, clients: Tensor) -> None:
    """out: (clients, n) float32."""
    words = _words(stream, clients, -(-out.shape[1] // 4))
    numbers = torch.stack([*_philox.normal_pair(*words[:2]), *_philox.normal_pair(*words[2:])], dim=-1)
    out.copy_(numbers.flatten(1)[:, : out.shape[1]])


@draws_rows
def permutation(out: Tensor, stream: StreamWords, clients: Tensor) -> None:
    """out: (clients, n) int64, every row a permutation of 0 .. n-1."""
    n = out.shape[1]
    keys = _sort_keys(_words(stream, clients, -(-n // 2)), n)
    out.copy_(keys.sort(dim=1, stable=True).indices)


def shuffles(out: Tensor, stream: StreamWords, clients: Tensor, steps: Tensor, counts: Tensor) -> None:
    """out: (rows, width) int64; clients, steps, counts: (rows,) int64."""
    width = out.shape[1]
    keys = _sort_keys(_words(stream, clients, -(-width // 2), steps), width)
    beyond = torch.arange(width, device=out.device) >= counts[:, None]
    # The largest key of all, behind whatever has the same one: a stable sort leaves these places where they are.
    out.copy_(keys.masked_fill(beyond, LARGEST_KEY).sort(dim=1, stable=True).indices)
