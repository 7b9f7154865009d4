"""How much one program works on: the sizes that ship, and wider ones for long sessions in the interpreter.

The interpreter pays per program and hardly per element. With FASTFED_TILES=wide in the environment, read at the start,
it works on wider tiles than a card would; without it, on the same.
"""

from __future__ import annotations

import os

from ..registry import interpreting

_asked = os.environ.get("FASTFED_TILES", "")
if _asked not in ("", "wide"):
    raise ValueError(f"FASTFED_TILES: must be 'wide' or unset, got {_asked!r}")
WIDE = interpreting() and _asked == "wide"

WARP = 32  # threads
WARPS = 4
BLOCK = 1024  # 8 elements per thread: two 128-bit accesses to every float32 vector, one to a half-width one
_WIDE_BLOCK = 1 << 16
_LONG = 1 << 14  # shorter vectors keep the block that ships, so that grids of many blocks are tested in any case

# SM3's tiles: square, because one costs an atomic per row and column; one 128-bit access to each vector for every
# thread, which leaves registers for three or four programs on a multiprocessor.
MATRIX_TILE = (64, 512) if WIDE else (32, 32)
ROW_TILE = (1, 4096) if WIDE else (1, 1024)  # for tensors of one row

PHILOX_LANES = 4096 if WIDE else 256  # blocks of random numbers


def block_for(size: int) -> int:
    """Elements per program for vectors of `size`."""
    return _WIDE_BLOCK if WIDE and size > _LONG else BLOCK


def blocks_of(size: int) -> int:
    """Programs per vector of `size`."""
    return -(-size // block_for(size))
