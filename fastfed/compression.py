"""Compressed deltas: what a client sends in fewer bytes, what the server reads of it, and the error it keeps.

Every message depends on its own client alone (its vector, its id, seed and round): not on the rest of the cohort, nor
on the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from .exchange.client_store import ClientStore
from .kernels import Stream, uniform
from .kernels.check import FLOATS
from .kernels.table import FINITE, FLAG
from .packing import Packing, Slot
from .purposes import Purpose

_PORTION = 1 << 20  # numbers encoded at once: what a portion needs besides stays small, however many the clients are
_LEVELS = 127  # of eight bits with a sign, the same number on both sides of 0


@dataclass(frozen=True)
class Encoded:
    """`decoded` (n, d): what the server reads of n messages; `bytes` is the size of one of them as sent."""

    decoded: Tensor
    bytes: int


@runtime_checkable
class Compression(Protocol):
    """Settings of a compression. With `feedback`, clients add to a delta what earlier messages of theirs left out."""

    @property
    def feedback(self) -> bool: ...

    def encode(self, vectors: Tensor, packing: Packing, ids: Tensor, seed: int, round: int) -> Encoded:
        """The messages of clients `ids` (n,) int64, who send `vectors` (n, d), float32 or float64 and finite.

        The gaps of the packing are neither sent nor counted, and stay 0. Nothing is remembered here.
        """

    def message_bytes(self, packing: Packing, dtype: torch.dtype = torch.float32) -> int:
        """The size of one client's message for vectors of this dtype."""


@dataclass(frozen=True)
class TopK:
    """The `fraction` of the parameters with the largest magnitudes in the whole vector, at least one; others read 0.

    Equal magnitudes: the lowest index first. A message holds values and their indices (4 bytes each; 8 for more than
    2**32 parameters). `fraction` is the decimal number as written: 0.07 of 100 parameters are 7.
    """

    fraction: float
    feedback: bool = True

    def __post_init__(self) -> None:
        if not FINITE.admits(self.fraction) or not 0 < self.fraction <= 1:
            raise ValueError(f"fraction: must be a number in (0, 1], got {self.fraction!r}")
        _check_feedback(self.feedback)

    def count(self, packing: Packing) -> int:
        """How many parameters are sent."""
        return math.ceil(Fraction(str(float(self.fraction))) * packing.parameters)

    def message_bytes(self, packing: Packing, dtype: torch.dtype = torch.float32) -> int:
        index = 4 if packing.parameters <= 1 << 32 else 8
        return self.count(packing) * (dtype.itemsize + index)

    def encode(self, vectors: Tensor, packing: Packing, ids: Tensor, seed: int, round: int) -> Encoded:
        _check_call("vectors", vectors, packing, ids)
        _stream(seed, round)
        decoded, k = torch.zeros_like(vectors), self.count(packing)
        for rows in _portions(vectors):
            magnitudes = vectors.new_full(vectors[rows].shape, -1.0)  # gaps come after everything else
            for slot in packing.slots:
                magnitudes[:, slot.span] = vectors[rows, slot.span].abs()
            decoded[rows] = torch.where(_largest(magnitudes, k), vectors[rows], 0.0)
        return Encoded(decoded, self.message_bytes(packing, vectors.dtype))


@dataclass(frozen=True)
class Sign:
    """One bit per parameter, and per tensor the mean magnitude: reads mean |v| where v >= 0, -mean |v| elsewhere.

    One bit has no third value, so a 0 reads as positive (a tensor of zeros reads 0, its mean magnitude).
    """

    feedback: bool = True

    def __post_init__(self) -> None:
        _check_feedback(self.feedback)

    def message_bytes(self, packing: Packing, dtype: torch.dtype = torch.float32) -> int:
        return math.ceil(packing.parameters / 8) + len(_tensors(packing)) * dtype.itemsize

    def encode(self, vectors: Tensor, packing: Packing, ids: Tensor, seed: int, round: int) -> Encoded:
        _check_call("vectors", vectors, packing, ids)
        _stream(seed, round)
        decoded = torch.zeros_like(vectors)
        for rows in _portions(vectors):
            for slot in _tensors(packing):
                v = vectors[rows, slot.span]
                scale = (_row_sums(v.abs()) / slot.numel).to(v.dtype)[:, None]
                decoded[rows, slot.span] = torch.where(v < 0, -scale, scale)
        return Encoded(decoded, self.message_bytes(packing, vectors.dtype))


@dataclass(frozen=True)
class Int8:
    """One byte per parameter, and per tensor max |v|, of which a byte counts 127ths from -127 to 127.

    Rounded up or down at random so that the expected reading is v itself: by Philox, keyed by seed, round and client.
    """

    feedback: bool = True

    def __post_init__(self) -> None:
        _check_feedback(self.feedback)

    def message_bytes(self, packing: Packing, dtype: torch.dtype = torch.float32) -> int:
        return packing.parameters + len(_tensors(packing)) * dtype.itemsize

    def encode(self, vectors: Tensor, packing: Packing, ids: Tensor, seed: int, round: int) -> Encoded:
        _check_call("vectors", vectors, packing, ids)
        stream = _stream(seed, round)
        decoded, clients = torch.zeros_like(vectors), ids.to(vectors.device)
        for rows in _portions(vectors):
            draws = uniform(packing.size, stream, clients=clients[rows], device=vectors.device)
            for slot in _tensors(packing):
                v = vectors[rows, slot.span]
                peak = v.abs().amax(1, keepdim=True)
                levels = torch.where(peak > 0, v / peak, 0.0).mul_(_LEVELS)  # never over 127, however small the peak
                low = levels.floor()
                # Comparing with the fraction, rather than adding to it and rounding, keeps whole levels as they are.
                low += draws[:, slot.span] < levels - low
                decoded[rows, slot.span] = low.div_(_LEVELS).mul_(peak)
        return Encoded(decoded, self.message_bytes(packing, vectors.dtype))


class Compressor:
    """A compression during a run: what clients send, and what their messages have left out so far.

    Memory grows with the clients seen, and not at all without feedback. Clients not seen yet have left out nothing.
    """

    def __init__(
        self, settings: Compression, packing: Packing, dtype: torch.dtype, *, device: torch.device | str = "cpu"
    ) -> None:
        """`dtype` of the deltas: float32 or float64; `device`: where they are, and what was left out of them."""
        if not hasattr(settings, "encode") or not hasattr(settings, "feedback"):  # text has the first
            raise TypeError(f"settings: must be TopK, Sign or Int8 of fastfed.compression, got {settings!r}")
        if not isinstance(packing, Packing):
            raise TypeError(f"packing: must be a fastfed.Packing, got {type(packing).__name__}")
        if dtype not in FLOATS:
            raise TypeError(f"dtype: must be torch.float32 or torch.float64, got {dtype!r}")
        self.settings, self.packing, self.dtype = settings, packing, dtype
        self._errors = ClientStore(packing.size, dtype, device) if settings.feedback else None

    def send(self, ids: Tensor, deltas: Tensor, seed: int, round: int) -> Encoded:
        """The messages of clients `ids` (n,) int64, each once, for their `deltas` (n, d), which stay as they are."""
        _check_call("deltas", deltas, self.packing, ids)
        if deltas.dtype is not self.dtype:
            raise TypeError(f"deltas: must be {self.dtype}, got {deltas.dtype}")
        if self._errors is None:
            return self.settings.encode(deltas, self.packing, ids, seed, round)
        if len(set(ids.tolist())) != len(ids):
            raise ValueError(f"ids: must hold every client once, got {ids.tolist()}")
        wanted = self._errors.get(ids, deltas.new_zeros(self.packing.size)).add_(deltas)
        encoded = self.settings.encode(wanted, self.packing, ids, seed, round)
        self._errors.put(ids, wanted.sub_(encoded.decoded))
        return encoded

    @property
    def stores(self) -> tuple[ClientStore, ...]:
        """What clients keep."""
        return () if self._errors is None else (self._errors,)

    def tensors(self) -> dict[str, Tensor]:
        """`ids` (clients,) int64 and `vectors` (clients, d), what each has left out, for a checkpoint; {} without
        feedback."""
        return {} if self._errors is None else self._errors.tensors()

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Takes over what `tensors` gave."""
        if self._errors is None:
            if tensors:
                raise ValueError(f"tensors: must be empty without feedback, got {sorted(tensors)}")
            return
        if set(tensors) != {"ids", "vectors"}:
            raise ValueError(f"tensors: must hold ids and vectors, got {sorted(tensors)}")
        ids, vectors = tensors["ids"], tensors["vectors"]
        if vectors.dtype is not self.dtype or vectors.shape != (len(ids), self.packing.size):
            raise ValueError(
                f"tensors: vectors must be {self.dtype} of shape ({len(ids)}, {self.packing.size}), got "
                f"{vectors.dtype} {tuple(vectors.shape)}"
            )
        self._errors.load(tensors)


# ---- numbers of a row, whatever its neighbours ----------------------------------------------------------------------


def _largest(magnitudes: Tensor, k: int) -> Tensor:
    """Where the k largest of every row of (n, d) are, (n, d) bool; of equal ones those with the lowest index."""
    least = magnitudes.topk(k, dim=1, sorted=False).values.amin(1, keepdim=True)
    chosen = magnitudes >= least
    surplus = chosen.sum(1, keepdim=True) - k
    if magnitudes.is_cpu and not bool(surplus.any()):  # as a rule; elsewhere the host would have to wait to know
        return chosen
    equal = magnitudes == least
    from_here_on = equal.flip(1).cumsum(1).flip(1)
    return chosen & ~(equal & (from_here_on <= surplus))


def _row_sums(x: Tensor) -> Tensor:
    """The sum of every row of (n, m), float64 (n,). Halves are added to halves: the order depends on m alone, where a
    library's sum may depend on the number of rows and threads."""
    x = x.double()
    while (m := x.shape[1]) > 1:
        half = (m + 1) // 2
        folded = x[:, :half].clone()
        folded[:, : m - half] += x[:, half:]
        x = folded
    return x[:, 0]


def _portions(vectors: Tensor) -> Iterator[slice]:
    """The rows of (n, d), a few at a time."""
    rows = max(1, _PORTION // vectors.shape[1])
    for first in range(0, len(vectors), rows):
        yield slice(first, first + rows)


def _tensors(packing: Packing) -> list[Slot]:
    """The tensors that hold something: only they have a scale."""
    return [slot for slot in packing.slots if slot.numel > 0]


def _stream(seed: int, round: int) -> Stream:
    return Stream(seed, Purpose.COMPRESSION, round)


# ---- checks ---------------------------------------------------------------------------------------------------------


def _check_feedback(feedback: bool) -> None:
    if not FLAG.admits(feedback):
        raise ValueError(f"feedback: must be {FLAG.words}, got {feedback!r}")


def _check_call(name: str, vectors: Tensor, packing: Packing, ids: Tensor) -> None:
    """`vectors` (n, d) fit the packing, and `ids` (n,) name their clients."""
    if not isinstance(packing, Packing):
        raise TypeError(f"packing: must be a fastfed.Packing, got {type(packing).__name__}")
    if packing.parameters == 0:
        raise ValueError("packing: must hold at least one parameter, got none")
    for which, tensor in ((name, vectors), ("ids", ids)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{which}: must be a torch.Tensor, got {type(tensor).__name__}")
    if vectors.dtype not in FLOATS:
        raise TypeError(f"{name}: must be float32 or float64, got {vectors.dtype}")
    if vectors.dim() != 2 or vectors.shape[1] != packing.size:
        raise ValueError(f"{name}: must have shape (n, {packing.size}), got {tuple(vectors.shape)}")
    if vectors.requires_grad:
        raise ValueError(f"{name}: is part of an autograd graph; pass {name}.detach()")
    if ids.dtype is not torch.int64 or ids.shape != vectors.shape[:1]:
        raise ValueError(f"ids: must be int64 of shape ({len(vectors)},), got {ids.dtype} {tuple(ids.shape)}")
    if bool(((ids < 0) | (ids >= 1 << 32)).any()):
        raise ValueError(f"ids: must lie in [0, 2**32), got {ids.tolist()}")
