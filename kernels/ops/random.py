"""Random numbers by Philox: the same on every backend, whoever asks for them in whatever order."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import check, registry
from ..streams import Stream

# Where the usual draw happens. A tensor made from another costs half of one made on a device by name.
_FLOATS = torch.empty(0, dtype=torch.float32, device="cpu")


def uniform(
    n: int,
    stream: Stream,
    *,
    clients: Tensor | None = None,
    device: torch.device | str = "cpu",
    backend: str | None = None,
) -> Tensor:
    """`n` float32 numbers in [0, 1), multiples of 2**-24, of `stream`: (n,); with client ids, (len(clients), n)."""
    return _draw("uniform", torch.float32, n, stream, clients, device, backend)


def normal(
    n: int,
    stream: Stream,
    *,
    clients: Tensor | None = None,
    device: torch.device | str = "cpu",
    backend: str | None = None,
) -> Tensor:
    """`n` standard normal float32 numbers of `stream`: (n,); with client ids, (len(clients), n)."""
    return _draw("normal", torch.float32, n, stream, clients, device, backend)


def permutation(
    n: int,
    stream: Stream,
    *,
    clients: Tensor | None = None,
    device: torch.device | str = "cpu",
    backend: str | None = None,
) -> Tensor:
    """A random order of 0 .. n-1 of `stream`: (n,) int64; with client ids, one each: (len(clients), n)."""
    return _draw("permutation", torch.int64, n, stream, clients, device, backend)


def shuffles(
    counts: Tensor,
    stream: Stream,
    *,
    clients: Tensor,
    steps: Tensor | None = None,
    width: int | None = None,
    device: torch.device | str = "cpu",
    backend: str | None = None,
) -> Tensor:
    """Many random orders of unequal length at once: (rows, width) int64.

    Row r begins with ``permutation(counts[r], Stream(..., client=clients[r], step=steps[r]))`` of the `stream`'s seed,
    purpose and round, and goes on with counts[r] .. width-1 as they are. `counts` (from 0 on), `clients` and `steps`
    (default: the stream's for all) are (rows,) int64; `width` is by default the largest count. Numbers are looked at
    on the CPU only: of tensors elsewhere, for which nobody should wait, `width` must be given and bounds every count.
    """
    if not isinstance(stream, Stream):
        raise TypeError(f"stream: must be a fastfed.kernels.Stream, got {type(stream).__name__}")
    _check_clients(clients, stream)
    rows = clients.numel()
    if steps is None:
        steps = torch.full_like(clients, stream.step)
    elif stream.step != 0:
        raise ValueError("steps: give either stream.step or steps, not both")
    for name, tensor, most in (("counts", counts, 1 << 33), ("steps", steps, (1 << 32) - 1)):
        _check_one_per_row(name, tensor, rows, most)
    width = _width_of(counts, width)
    like = _FLOATS if device == "cpu" else torch.empty(0, dtype=torch.float32, device=device)
    out = like.new_empty((rows, width), dtype=torch.int64)
    there = (tensor.to(like.device).contiguous() for tensor in (clients, steps, counts))
    registry.pick(backend, like).shuffles(out, stream.words(), *there)
    return out


def words(places: Tensor, stream: Stream, *, clients: Tensor) -> tuple[Tensor, ...]:
    """Four random words below 2**32 for each of `places`, any whole numbers from 0 on: tensors like it.

    Place p has the words behind the numbers 4p to 4p + 3 of `uniform`; from 2**32 on, those of the stream's later
    steps. `clients` is int64 and of a shape that goes with that of `places`. Plain torch, on their device.
    """
    from ..reference.philox import words_at

    if not isinstance(stream, Stream):
        raise TypeError(f"stream: must be a fastfed.kernels.Stream, got {type(stream).__name__}")
    if stream.client or stream.step:
        raise ValueError("stream: must have client 0 and step 0, as clients and places say which are meant")
    owners, blocks = torch.broadcast_tensors(clients, places & 0xFFFFFFFF)
    return words_at(stream.words(), owners, blocks, (places >> 32).expand_as(blocks))


def _check_one_per_row(name: str, tensor: Tensor, rows: int, most: int) -> None:
    """`tensor` is (rows,) int64, in [0, most] where a look costs nothing."""
    check.is_tensor(name, tensor)
    if tensor.dtype is not torch.int64 or tensor.shape != (rows,):
        raise ValueError(f"{name}: must be a ({rows},) int64 tensor, got {tensor.dtype} {tuple(tensor.shape)}")
    if tensor.is_cpu and not 0 <= int(tensor.min()) <= int(tensor.max()) <= most:
        raise ValueError(f"{name}: must lie in [0, {most}], got {int(tensor.min())} to {int(tensor.max())}")


def _width_of(counts: Tensor, width: int | None) -> int:
    """The width of shuffles of `counts` things, by default the largest of them."""
    if width is None and not counts.is_cpu:
        raise ValueError(f"width: must be given where counts are on {counts.device.type}")
    largest = int(counts.max()) if counts.is_cpu else 0
    if width is None:
        width = max(1, largest)
    if isinstance(width, bool) or not isinstance(width, int) or not max(1, largest) <= width <= 1 << 33:
        raise ValueError(f"width: must be a whole number from {max(1, largest)} to 2**33, got {width!r}")
    return width


def _draw(
    op: str,
    dtype: torch.dtype,
    n: int,
    stream: Stream,
    clients: Tensor | None,
    device: torch.device | str,
    backend: str | None,
) -> Tensor:
    if isinstance(n, bool) or not isinstance(n, int) or not 0 < n <= 1 << 33:
        raise ValueError(f"n: must be a whole number from 1 to 2**33, got {n!r}")
    if not isinstance(stream, Stream):
        raise TypeError(f"stream: must be a fastfed.kernels.Stream, got {type(stream).__name__}")
    if clients is not None:
        _check_clients(clients, stream)
    like = _FLOATS if device == "cpu" else torch.empty(0, dtype=torch.float32, device=device)
    draw = getattr(registry.pick(backend, like), op)
    if clients is None:
        out = like.new_empty(n, dtype=dtype)
        draw(out, stream.words(), stream.client)
    else:
        out = like.new_empty((clients.numel(), n), dtype=dtype)
        draw(out, stream.words(), clients.to(device).contiguous())
    return out


def _check_clients(clients: Tensor, stream: Stream) -> None:
    check.is_tensor("clients", clients)
    if clients.dim() != 1 or clients.dtype is not torch.int64 or clients.numel() == 0:
        raise ValueError(f"clients: must be a (clients,) int64 tensor, got {clients.dtype} {tuple(clients.shape)}")
    if stream.client != 0:
        raise ValueError("clients: give either stream.client or clients, not both")
    if clients.is_cpu and not 0 <= int(clients.min()) <= int(clients.max()) < 1 << 32:  # elsewhere, a look would wait
        raise ValueError("clients: ids must lie in [0, 2**32)")
