"""The flat example store: the examples of all clients in one place, in the form they came in.

Nothing is copied per client or per round: images stay bytes, bags of words stay sparse, and a batch is made of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..shown import Shown
from .augment import Augment, Views, standardised


@dataclass(frozen=True, repr=False)
class Sparse(Shown):
    """A matrix of mostly zeros, row by row (CSR).

    Row i holds ``values[starts[i]:starts[i + 1]]`` (float32) at ``columns[...]`` (int32, below `width`, each at most
    once); `starts` is (rows + 1,) int64.
    """

    starts: Tensor
    columns: Tensor
    values: Tensor
    width: int

    def __post_init__(self) -> None:
        for name, dtype in (("starts", torch.int64), ("columns", torch.int32), ("values", torch.float32)):
            tensor = getattr(self, name)
            if not isinstance(tensor, Tensor) or tensor.dtype is not dtype or tensor.dim() != 1:
                raise TypeError(f"{name}: must be a one-dimensional {dtype} tensor")
        if self.columns.shape != self.values.shape:
            raise ValueError(f"columns: has {self.columns.numel()} entries, values has {self.values.numel()}")
        if self.starts.numel() == 0 or self.starts[0] != 0 or self.starts[-1] != self.columns.numel():
            raise ValueError(f"starts: must run from 0 to the number of values, {self.columns.numel()}")
        if bool((self.starts[1:] < self.starts[:-1]).any()):
            raise ValueError("starts: must not fall")
        if self.columns.numel() and not 0 <= int(self.columns.min()) <= int(self.columns.max()) < self.width:
            raise ValueError(f"columns: must lie in [0, {self.width})")
        doubled = _first_doubled(self.starts.numpy(), self.columns.numpy())
        if doubled is not None:
            row, column = doubled
            raise ValueError(f"columns: row {row} has column {column} more than once; add up what it holds there")

    @classmethod
    def of(cls, dense: Tensor) -> Sparse:
        """The non-zeros of a (rows, width) matrix."""
        rows, columns = dense.nonzero(as_tuple=True)
        starts = torch.zeros(dense.shape[0] + 1, dtype=torch.int64)
        starts[1:] = torch.bincount(rows, minlength=dense.shape[0]).cumsum(0)
        return cls(starts, columns.to(torch.int32), dense[rows, columns].to(torch.float32), dense.shape[1])

    def _facts(self) -> dict[str, object]:
        return {"rows": len(self), "width": self.width, "entries": self.values.numel()}

    def __len__(self) -> int:
        return self.starts.numel() - 1

    def dense(self, rows: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """The given rows (n,) int64 as a matrix (n, width)."""
        begin = self.starts[rows].numpy()  # numpy: torch would wake its threads for a few microseconds' work
        counts = self.starts[rows + 1].numpy() - begin
        where = torch.from_numpy(np.repeat(np.arange(len(rows)), counts))
        first = np.repeat(begin - (counts.cumsum() - counts), counts)
        entries = torch.from_numpy(first + np.arange(counts.sum()))
        out = torch.zeros(len(rows), self.width, dtype=dtype)
        out[where, self.columns[entries].long()] = self.values[entries].to(dtype)
        return out


_PIECE = 1 << 20  # entries of sparse rows that are looked at together


def _first_doubled(starts: NDArray[np.int64], columns: NDArray[np.int32]) -> tuple[int, int] | None:
    """A row that has a column more than once, which some readers would add up and others overwrite; and the column."""
    row = 0
    while row < len(starts) - 1:
        end = max(row + 1, int(np.searchsorted(starts, starts[row] + _PIECE, "right")) - 1)
        own, borders = columns[starts[row] : starts[end]], starts[row + 1 : end] - starts[row]
        rises = own[1:] > own[:-1]
        rises[borders[(borders > 0) & (borders < len(own))] - 1] = True  # the next row begins
        if not rises.all():
            of = np.repeat(np.arange(row, end), np.diff(starts[row : end + 1]))
            order = np.lexsort((own, of))
            of, own = of[order], own[order]
            found = np.flatnonzero((of[1:] == of[:-1]) & (own[1:] == own[:-1]))
            if len(found):
                return int(of[found[0]]), int(own[found[0]])
        row = end
    return None


@dataclass(frozen=True, repr=False)
class Pixels(Shown):
    """Images as bytes (examples, channels, height, width), normalised when read: ``(byte / 255 - mean) / std``.

    `mean` and `std` have one number per channel; by default bytes are only scaled to [0, 1]. `augment` says how images
    are cropped, mirrored and standardised on the way; what standardises takes the place of `mean` and `std`.
    """

    bytes: Tensor
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    augment: Augment | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.bytes, Tensor) or self.bytes.dtype is not torch.uint8 or self.bytes.dim() != 4:
            raise TypeError("bytes: must be a uint8 tensor (examples, channels, height, width)")
        for name in ("mean", "std"):
            if len(getattr(self, name)) not in (1, self.bytes.shape[1]):
                raise ValueError(f"{name}: must hold one number, or one per channel ({self.bytes.shape[1]})")
        if not all(s > 0 for s in self.std):
            raise ValueError(f"std: must be > 0, got {self.std}")
        if self.augment is not None:
            _check_augment(self.augment, self)

    def _facts(self) -> dict[str, object]:
        return {"images": len(self), "shape": self.stored, "augment": self.augment}

    def __len__(self) -> int:
        return self.bytes.shape[0]

    @property
    def stored(self) -> tuple[int, int, int]:
        """The shape (channels, height, width) of the bytes of an image."""
        channels, height, width = self.bytes.shape[1:]
        return channels, height, width

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape (channels, height, width) of an image when it is read."""
        return self.stored if self.augment is None else self.augment.shape(self.stored)

    def dense(self, rows: Tensor, dtype: torch.dtype = torch.float32, views: Views | None = None) -> Tensor:
        """The given rows (n,) int64 as images (n, channels, height, width), normalised in `dtype`; those that are
        augmented in these views (None: as they are when nobody trains on them)."""
        images = self.bytes[rows]
        if self.augment is not None:
            images = self.augment.seen(images, views)
            if self.augment.standardise:
                return standardised(images, dtype)
        mean = torch.tensor(self.mean, dtype=dtype).view(1, -1, 1, 1)
        std = torch.tensor(self.std, dtype=dtype).view(1, -1, 1, 1)
        return (images.to(dtype) / 255 - mean) / std

    def scale_and_shift(self) -> tuple[Tensor, Tensor]:
        """What bytes stand for is ``scale * byte + shift``: (channels,) float32 each."""
        channels = self.bytes.shape[1]
        mean, std = (torch.tensor(given, dtype=torch.float64).expand(channels) for given in (self.mean, self.std))
        return (1 / (255 * std)).float(), (-mean / std).float()

    def values_of_bytes(self) -> Tensor:
        """What each byte stands for in each channel: (channels, 256) float32."""
        channels = self.bytes.shape[1]
        every_byte = torch.arange(256, dtype=torch.uint8).view(256, 1, 1, 1).expand(256, channels, 1, 1)
        values = Pixels(every_byte, self.mean, self.std).dense(torch.arange(256))
        return values[:, :, 0, 0].T.contiguous()


Inputs = Tensor | Sparse | Pixels


def _check_augment(augment: Augment, pixels: Pixels) -> None:
    if not isinstance(augment, Augment):
        raise TypeError(f"augment: must be an Augment, or None, got {augment!r}")
    augment.shape(pixels.stored)
    if augment.standardise and (pixels.mean, pixels.std) != ((0.0,), (1.0,)):
        raise ValueError("standardise: takes every image's own mean and deviation in place of mean and std; give none")


@dataclass(frozen=True, repr=False)
class Examples(Shown):
    """Inputs and targets, row for row.

    `inputs`: float32 (examples, ...), int64 tokens (examples, length), `Pixels`, or `Sparse` rows. `targets`: int64
    labels (examples,), int64 sequences (examples, length), float32 (examples, ...), or `Sparse` tags.
    """

    inputs: Inputs
    targets: Tensor | Sparse

    def __post_init__(self) -> None:
        for name, kinds in (("inputs", (Tensor, Sparse, Pixels)), ("targets", (Tensor, Sparse))):
            value = getattr(self, name)
            wanted = "a float32 or int64 tensor, or " + " or ".join(kind.__name__ for kind in kinds[1:])
            if not isinstance(value, kinds):
                hint = "; ff.data.as_dataset and ff.data.from_arrays take arrays of NumPy"
                given = type(value)
                raise TypeError(f"{name}: must be {wanted}, got {given.__module__}.{given.__qualname__}{hint}")
            if isinstance(value, Tensor) and value.dtype not in (torch.float32, torch.int64):
                raise TypeError(f"{name}: must be {wanted}, got {value.dtype}")
        if len(self.inputs) != len(self.targets):
            raise ValueError(f"targets: has {len(self.targets)} rows, inputs has {len(self.inputs)}")

    def _facts(self) -> dict[str, object]:
        return {"examples": len(self), "form": self.form}

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def nbytes(self) -> int:
        """What inputs and targets take; twice where they are the same."""
        return sum(_nbytes(store) for store in (self.inputs, self.targets))

    @property
    def form(self) -> str:
        """Kind and shape of one example, in words: what two stores share that one model can read."""
        return f"{_form(self.inputs)} -> {_form(self.targets)}"

    def batch(
        self, rows: Tensor, dtype: torch.dtype = torch.float32, views: Views | None = None
    ) -> tuple[Tensor, Tensor]:
        """The given rows (n,) int64 as dense tensors (inputs, targets): floating-point ones in `dtype`; images that are
        augmented in these views."""
        if views is not None and isinstance(self.inputs, Pixels):
            return self.inputs.dense(rows, dtype, views), self.targets_of(rows, dtype)
        return _rows(self.inputs, rows, dtype), self.targets_of(rows, dtype)

    @property
    def augmented(self) -> Pixels | None:
        """The inputs, if they are augmented."""
        return self.inputs if isinstance(self.inputs, Pixels) and self.inputs.augment is not None else None

    def targets_of(self, rows: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """The targets of the given rows (n,) int64, as in `batch`."""
        return _rows(self.targets, rows, dtype)


def _rows(store: Inputs, rows: Tensor, dtype: torch.dtype) -> Tensor:
    if not isinstance(store, Tensor):
        return store.dense(rows, dtype)
    picked = store[rows]
    return picked.to(dtype) if picked.is_floating_point() else picked


def _nbytes(store: Inputs) -> int:
    if isinstance(store, Sparse):
        return store.starts.nbytes + store.columns.nbytes + store.values.nbytes
    return (store.bytes if isinstance(store, Pixels) else store).nbytes


def _form(store: Inputs) -> str:
    if isinstance(store, Sparse):
        return f"sparse ({store.width},)"
    if isinstance(store, Pixels):
        augmented = "" if store.augment is None else f", {store.augment}"
        return f"bytes {store.stored} of mean {store.mean} and std {store.std}{augmented}"
    return f"{str(store.dtype).removeprefix('torch.')} {tuple(store.shape[1:])}"
