"""Argument checks at the front door: every error names the argument, what it was and what it should be.

Checks run before anything is written, on every backend alike. Where the compiled extension is there, `surely_valid`
and `surely_valid_deltas` answer in half a microsecond for the usual call; everything they do not wave through is
looked at here.
"""

from __future__ import annotations

import torch
from torch import Tensor

try:
    from fastfed._core import surely_valid, surely_valid_deltas
except ImportError:

    def surely_valid(
        x: Tensor,
        like: tuple[Tensor, ...],
        counters: tuple[Tensor, ...],
        reals: tuple[Tensor, ...],
        beside: tuple[Tensor, ...],
        /,
    ) -> bool:
        """Without the extension nothing is waved through."""
        return False

    def surely_valid_deltas(deltas: Tensor, weights: Tensor, /) -> int:
        """Likewise."""
        return 0


FLOATS = (torch.float32, torch.float64)
DELTA_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def is_tensor(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name}: must be a torch.Tensor, got {type(value).__name__}")


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def vector(name: str, x: Tensor, dims: tuple[int, ...] = (1, 2)) -> None:
    """`x` is a contiguous float32 or float64 vector ``(d,)`` or batch ``(clients, d)`` that holds something."""
    is_tensor(name, x)
    if x.dtype not in FLOATS:
        raise TypeError(f"{name}: must be float32 or float64, got {_word(x.dtype)}")
    if x.dim() not in dims:
        wanted = " or ".join({1: "(d,)", 2: "(clients, d)"}[n] for n in dims)
        raise ValueError(f"{name}: must have shape {wanted}, got {tuple(x.shape)}")
    if x.numel() == 0:
        raise ValueError(f"{name}: is empty, shape {tuple(x.shape)}")
    plain(name, x)


def plain(name: str, x: Tensor) -> None:
    """`x` is contiguous and outside autograd's graph."""
    if not x.is_contiguous():
        raise ValueError(f"{name}: must be contiguous, got strides {x.stride()} for shape {tuple(x.shape)}")
    if x.requires_grad:
        raise ValueError(f"{name}: is part of an autograd graph; pass {name}.detach()")


def like(name: str, value: Tensor, x: Tensor, shape: torch.Size | tuple[int, ...] | None = None) -> None:
    """`value` has x's dtype and device, and x's shape unless another is wanted."""
    is_tensor(name, value)
    wanted = x.shape if shape is None else shape
    if value.dtype is not x.dtype:
        raise TypeError(f"{name}: must be {_word(x.dtype)} like x, got {_word(value.dtype)}")
    if value.shape != wanted:
        raise ValueError(f"{name}: must have shape {tuple(wanted)}, got {tuple(value.shape)}")
    if value.device != x.device:
        raise ValueError(f"{name}: must be on {x.device} like x, got {value.device}")
    plain(name, value)


def delta(name: str, value: Tensor, x: Tensor, shape: torch.Size | tuple[int, ...]) -> None:
    """`value` has `shape` and x's dtype, or a half-width dtype when x is float32."""
    is_tensor(name, value)
    if value.dtype is not x.dtype and (x.dtype is not torch.float32 or value.dtype not in DELTA_DTYPES[2:]):
        also = ", bfloat16 or float16" if x.dtype is torch.float32 else ""
        raise TypeError(f"{name}: must be {_word(x.dtype)}{also}, got {_word(value.dtype)}")
    if value.shape != shape:
        raise ValueError(f"{name}: must have shape {tuple(shape)}, got {tuple(value.shape)}")
    if value.device != x.device:
        raise ValueError(f"{name}: must be on {x.device} like x, got {value.device}")
    plain(name, value)


def deltas(name: str, value: Tensor) -> None:
    """`value` is a contiguous batch (clients, d) of deltas in any of their dtypes."""
    is_tensor(name, value)
    if value.dtype not in DELTA_DTYPES:
        words = ", ".join(_word(dtype) for dtype in DELTA_DTYPES)
        raise TypeError(f"{name}: must be one of {words}, got {_word(value.dtype)}")
    if value.dim() != 2 or value.numel() == 0:
        raise ValueError(f"{name}: must have shape (clients, d) and hold something, got {tuple(value.shape)}")
    plain(name, value)


def weights(name: str, value: Tensor, of: Tensor) -> None:
    """`value` is (clients,) floats beside the deltas `of`."""
    is_tensor(name, value)
    if value.dtype not in FLOATS:
        raise TypeError(f"{name}: must be float32 or float64, got {_word(value.dtype)}")
    if value.shape != of.shape[:1]:
        raise ValueError(f"{name}: must have shape ({of.shape[0]},), one per row of deltas, got {tuple(value.shape)}")
    if value.device != of.device:
        raise ValueError(f"{name}: must be on {of.device} like deltas, got {value.device}")
    plain(name, value)


def is_state(state: object, maker: str) -> None:
    if not isinstance(state, dict):
        raise TypeError(f"state: must be the dict that {maker} made, got {type(state).__name__}")


def names(found: tuple[str, ...], wanted: tuple[str, ...], optional: frozenset[str], maker: str) -> None:
    """A state's names are the wanted ones and none besides, optional ones aside."""
    missing = [name for name in wanted if name not in found]
    if missing:
        raise ValueError(f"state: lacks {', '.join(missing)}; make it with {maker}")
    foreign = [name for name in found if name not in wanted and name not in optional]
    if foreign:
        raise ValueError(f"state: {', '.join(foreign)} does not belong to this rule; make it with {maker}")


def disjoint(written: list[tuple[str, Tensor]], read: list[tuple[str, Tensor]]) -> None:
    """No tensor that is written shares memory with another."""
    if written and written[0][1].is_meta:
        return  # nothing has memory there
    spans = [(t.data_ptr(), t.data_ptr() + t.numel() * t.element_size(), name, True) for name, t in written]
    spans += [(t.data_ptr(), t.data_ptr() + t.numel() * t.element_size(), name, False) for name, t in read]
    spans.sort()
    end, holder, holder_written = 0, "", False
    for start, stop, name, is_written in spans:
        if start < end and (is_written or holder_written):
            raise ValueError(f"{name}: overlaps {holder} in memory; they must be separate tensors")
        if stop > end:
            end, holder, holder_written = stop, name, is_written


def per_client(name: str, value: object, x: Tensor, dtypes: tuple[torch.dtype, ...]) -> Tensor:
    """`value` as a (clients,) tensor beside x: a number for all, or one entry per client."""
    shape = x.shape[:-1]
    if not isinstance(value, Tensor):
        kind = int if dtypes[-1] is torch.int64 else (int, float)
        if dtypes[-1] is torch.bool or isinstance(value, bool) or not isinstance(value, kind):
            words = " or ".join(_word(dtype) for dtype in dtypes)
            raise TypeError(f"{name}: must be a number or a tensor of {words}, got {value!r}")
        return x.new_full((shape.numel(),), value, dtype=dtypes[-1])
    if value.dtype not in dtypes:
        raise TypeError(f"{name}: must be {' or '.join(_word(d) for d in dtypes)}, got {_word(value.dtype)}")
    if value.shape != shape:
        raise ValueError(f"{name}: must have shape {tuple(shape)}, one per client, got {tuple(value.shape)}")
    if value.device != x.device:
        raise ValueError(f"{name}: must be on {x.device} like x, got {value.device}")
    return value.to(dtypes[-1]).reshape(-1)


def scalar_state(name: str, value: Tensor, x: Tensor, dtype: torch.dtype) -> None:
    """`value` holds one number of `dtype` per client of x."""
    is_tensor(f"state[{name!r}]", value)
    if value.dtype is not dtype or value.shape != x.shape[:-1] or value.device != x.device:
        wanted = f"{_word(dtype)} of shape {tuple(x.shape[:-1])} on {x.device}"
        found = f"{_word(value.dtype)} of shape {tuple(value.shape)} on {value.device}"
        raise ValueError(f"state[{name!r}]: must be {wanted}, got {found}")
    plain(f"state[{name!r}]", value)
