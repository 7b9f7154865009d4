"""Random numbers and permutations."""

from __future__ import annotations

from torch import Tensor

from fastfed import _core

from ..streams import StreamWords


def uniform(out: Tensor, stream: StreamWords, clients: Tensor) -> None:
    _core.uniform(out, *stream, clients)


def normal(out: Tensor, stream: StreamWords, clients: Tensor) -> None:
    _core.normal(out, *stream, clients)


def permutation(out: Tensor, stream: StreamWords, clients: Tensor) -> None:
    _core.permutation(out, *stream, clients)
