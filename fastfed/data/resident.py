"""Examples on a device: the store copied there once, or, where it does not fit, the rows that are needed next.

Rows are picked and made dense on the device, with the numbers that `Examples.batch` has, and nothing waits for it. On
the CPU nothing is copied: there a `Resident` is another name for the store.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from .augment import Views, standardised
from .store import Examples, Inputs, Pixels, Sparse

STORE_SHARE = 0.5  # of a card's free memory: at most so much for a store, the rest for the run
PIECE = 1 << 24  # bytes copied at a time, through pinned memory
STRIP = 512  # entries of sparse rows that are entered at a time

# ---- copies ---------------------------------------------------------------------------------------------------------


def _pins(device: torch.device) -> bool:
    """Whether copies to the device go through pinned memory: a card reads that while the host goes on."""
    return device.type == "cuda" and torch.cuda.is_available()


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """A CPU tensor on the device, without waiting for it: through pinned memory to a CUDA device; itself on the CPU."""
    if not tensor.is_cpu or not _pins(device):
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def upload_into(place: Tensor, tensor: Tensor) -> Tensor:
    """Copies a tensor from the CPU or the device into one on the device, without waiting for it: `place`."""
    staged = tensor.pin_memory() if tensor.is_cpu and _pins(place.device) else tensor
    return place.copy_(staged, non_blocking=True)


def picked(source: Tensor, rows: Tensor, device: torch.device) -> Tensor:
    """source[rows] on the device, for rows (n,) on the CPU and a source that is on either."""
    return upload(source[rows], device) if source.is_cpu else source[upload(rows, source.device)].to(device)


def free_memory(device: torch.device) -> int | None:
    """Bytes that are free on a CUDA device, with those that torch keeps for the next tensor; None elsewhere."""
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def _copied(source: Tensor, rows: Tensor | None, device: torch.device) -> Tensor:
    """These rows (n,) of a CPU tensor, or all of it, on the device; whole numbers in 32 bits where they fit."""
    if rows is not None and source.dtype is torch.int64:
        source, rows = source[rows], None  # only these decide how many bits are needed
    pieces = source if rows is None else rows
    shape = (len(pieces), *source.shape[1:])
    out = torch.empty(shape, dtype=_narrowest(source), device=device)
    bytes_of_row = max(1, source[:1].numel() * source.element_size())
    for place, piece in zip(*(each.split(max(1, PIECE // bytes_of_row)) for each in (out, pieces)), strict=True):
        picked = piece if rows is None else source[piece]
        # torch keeps pinned memory for the next piece, and does not give it away before this copy is done.
        staged = torch.empty(picked.shape, dtype=out.dtype, pin_memory=_pins(device)).copy_(picked)
        place.copy_(staged, non_blocking=True)
    return out


def _narrowest(tensor: Tensor) -> torch.dtype:
    """int32 for int64 numbers that fit, else the tensor's own."""
    if tensor.dtype is not torch.int64 or not tensor.numel():
        return tensor.dtype
    bounds = torch.iinfo(torch.int32)
    low, high = torch.aminmax(tensor)
    return torch.int32 if bounds.min <= int(low) and int(high) <= bounds.max else torch.int64


# ---- forms ----------------------------------------------------------------------------------------------------------


class _Form(Protocol):
    """One side of the examples, on a device."""

    def dense(self, rows: Tensor, dtype: torch.dtype, views: Views | None = None) -> Tensor:
        """The given rows (n,) int64 on the device: (n, ...), floating-point numbers in `dtype`; augmented images in
        these views."""


class Numbers:
    """Floats, labels and tokens."""

    def __init__(self, numbers: Tensor, rows: Tensor | None, device: torch.device) -> None:
        self.numbers = _copied(numbers, rows, device)

    def dense(self, rows: Tensor, dtype: torch.dtype, views: Views | None = None) -> Tensor:
        picked = self.numbers[rows]
        return picked.to(dtype if picked.is_floating_point() else torch.int64)


class Bytes:
    """Images as bytes, normalised when gathered: the arithmetic of `Pixels.dense`."""

    def __init__(self, pixels: Pixels, rows: Tensor | None, device: torch.device) -> None:
        self.bytes, self.mean, self.std = _copied(pixels.bytes, rows, device), pixels.mean, pixels.std
        self.augment = pixels.augment
        self._numbers: dict[torch.dtype, list[Tensor]] = {}

    def dense(self, rows: Tensor, dtype: torch.dtype, views: Views | None = None) -> Tensor:
        images = self.bytes[rows]
        if self.augment is not None:
            images = self.augment.seen(images, views)
            if self.augment.standardise:
                return standardised(images, dtype)
        return self._normalised(images, dtype)

    def _normalised(self, images: Tensor, dtype: torch.dtype) -> Tensor:
        if dtype not in self._numbers:
            # 255 as a tensor, too: a card multiplies by the rounded inverse of a number, but divides by a tensor.
            given = [torch.tensor(values, dtype=dtype).view(1, -1, 1, 1) for values in ((255.0,), self.mean, self.std)]
            self._numbers[dtype] = [upload(values, self.bytes.device) for values in given]
        scale, mean, std = self._numbers[dtype]
        return (images.to(dtype) / scale - mean) / std


class Csr:
    """Sparse rows."""

    def __init__(self, matrix: Sparse, rows: Tensor | None, device: torch.device) -> None:
        begin = matrix.starts[:-1] if rows is None else matrix.starts[rows]
        counts = matrix.starts.diff() if rows is None else matrix.starts[rows + 1] - begin
        starts = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
        entries = None
        if rows is not None:
            entries = (begin - starts[:-1]).repeat_interleave(counts) + torch.arange(int(starts[-1]))
        self.starts, self.width = _copied(starts, None, device), matrix.width
        self.columns, self.values = (_copied(each, entries, device) for each in (matrix.columns, matrix.values))
        self.longest = int(counts.max()) if len(counts) else 0

    def dense(self, rows: Tensor, dtype: torch.dtype, views: Views | None = None) -> Tensor:
        """Every row as if it were as long as the longest: what is behind its end enters its first number once more, so
        that nobody need know how many there are in all."""
        begin = self.starts[rows]
        counts = (self.starts[rows + 1] - begin)[:, None]
        out = torch.zeros(len(rows), self.width, dtype=dtype, device=rows.device)
        for first in range(0, self.longest, STRIP):
            places = torch.arange(first, min(first + STRIP, self.longest), device=rows.device)
            at = (begin[:, None] + torch.where(places < counts, places, 0)).clamp_(max=self.columns.numel() - 1)
            columns, values = self.columns[at].long(), self.values[at].to(dtype)
            out.scatter_(1, torch.where(counts > 0, columns, 0), torch.where(counts > 0, values, 0))
        return out


def _form(store: Inputs, rows: Tensor | None, device: torch.device) -> _Form:
    """These rows (n,) of one side of the examples, or all of it, copied to a device."""
    if isinstance(store, Pixels):
        return Bytes(store, rows, device)
    if isinstance(store, Sparse):
        return Csr(store, rows, device)
    return Numbers(store, rows, device)


def _tensors(store: Inputs) -> Iterator[Tensor]:
    if isinstance(store, Pixels):
        yield store.bytes
    elif isinstance(store, Sparse):
        yield from (store.starts, store.columns, store.values)
    else:
        yield store


def bytes_of(examples: Examples) -> int:
    """What the examples take on a device."""
    tensors = (tensor for store in (examples.inputs, examples.targets) for tensor in _tensors(store))
    return sum(tensor.numel() * _narrowest(tensor).itemsize for tensor in tensors)


# ---- the store ------------------------------------------------------------------------------------------------------


class Copied:
    """Examples, or some rows of them, on a device."""

    def __init__(self, examples: Examples, rows: Tensor | None, device: torch.device) -> None:
        self.inputs, self.targets = (_form(store, rows, device) for store in (examples.inputs, examples.targets))

    def gather(
        self, rows: Tensor, dtype: torch.dtype = torch.float32, views: Views | None = None
    ) -> tuple[Tensor, Tensor]:
        """Dense inputs and targets of rows (n,) or (clients, n) int64 on the device, with rows' shape in front:
        floating-point ones in `dtype`. As `Examples.batch` has them, from `views` as many as there are rows."""
        inputs = self.inputs.dense(rows.flatten(), dtype, views)
        targets = self.targets.dense(rows.flatten(), dtype)
        return inputs.unflatten(0, rows.shape), targets.unflatten(0, rows.shape)


class InPlace:
    """Examples on the CPU, for the CPU: the store itself."""

    def __init__(self, examples: Examples) -> None:
        self.examples = examples

    def gather(
        self, rows: Tensor, dtype: torch.dtype = torch.float32, views: Views | None = None
    ) -> tuple[Tensor, Tensor]:
        """As `Copied.gather`."""
        inputs, targets = self.examples.batch(rows.flatten(), dtype, views)
        return inputs.unflatten(0, rows.shape), targets.unflatten(0, rows.shape)


class Resident:
    """A store of examples as a device reads it. `why` is a sentence: what was done with it, and for which reason.

    The store is copied to the device once if it takes at most `budget` bytes, by default half of what is free on a
    CUDA device and no limit elsewhere. Else it is `streamed`: every portion is copied when it is asked for.
    """

    def __init__(self, examples: Examples, device: torch.device | str, budget: int | None = None) -> None:
        if budget is not None and (isinstance(budget, bool) or not isinstance(budget, int) or budget < 0):
            raise ValueError(f"budget: must be a whole number of bytes >= 0, or None, got {budget!r}")
        self.examples, self.device = examples, torch.device(device)
        self._whole: Copied | InPlace | None = None
        self.streamed_bytes = 0  # that an example takes, on average, whenever it is copied
        if self.device.type == "cpu" and budget is None:
            self._whole, self.why = InPlace(examples), "examples are read where they are, in the CPU's memory"
            return
        free = free_memory(self.device)
        room = budget if budget is not None or free is None else int(STORE_SHARE * free)
        size = bytes_of(examples)
        if room is None or size <= room:
            self._whole = Copied(examples, None, self.device)
            self.why = f"examples ({_words(size)}) were copied to {self.device} once"
        else:
            fits = f"all of them ({_words(size)}) would not fit into the {_words(room)} that they may take"
            self.why = f"examples are copied to {self.device} when clients need them, because {fits}"
            self.streamed_bytes = -(-size // len(examples))

    @property
    def streamed(self) -> bool:
        return self._whole is None

    def portion(self, rows: Tensor) -> tuple[Copied | InPlace, Tensor]:
        """Where to `gather` the examples `rows` (n,) int64, given on the CPU, and their numbers there, on the device.

        Of a store that is streamed, these rows are copied now, each once.
        """
        if self._whole is not None:
            return self._whole, upload(rows, self.device)
        unique, numbers = torch.unique(rows, return_inverse=True)
        return Copied(self.examples, unique, self.device), upload(numbers, self.device)


_shared: WeakValueDictionary[tuple[int, torch.device, int | None], Resident] = WeakValueDictionary()


def resident(examples: Examples, device: torch.device | str, budget: int | None = None) -> Resident:
    """The `Resident` of a store on a device: one for all who ask, as long as anybody keeps it."""
    where = torch.device(device)
    if where.type == "cuda" and where.index is None:
        where = torch.device("cuda", torch.cuda.current_device())
    key = (id(examples), where, budget)  # a Resident keeps its store, so no other can have that id
    found = _shared.get(key)
    if found is None:
        found = _shared[key] = Resident(examples, where, budget)
    return found


def passing(examples: Examples, device: torch.device | str) -> Resident:
    """A store that is made for one round: streamed to a device; on the CPU itself."""
    where = torch.device(device)
    return Resident(examples, where, None if where.type == "cpu" else 0)


def _words(size: int) -> str:
    """So many bytes, for people."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} bytes"
