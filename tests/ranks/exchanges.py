"""One rank that exchanges vectors by the board and by the network: ``python -m tests.ranks.exchanges FOLDER``. It
writes down what came of each way, as hashes."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import fastfed as ff
from fastfed import board
from fastfed.ranks import Ranks

SIZES = (1, 2, 7, 1000, 40_001)  # numbers of a row: fewer than ranks, and more than the first area holds


def rows_of(rank: int, k: int, size: int, dtype: torch.dtype, turn: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * turn + 10 * size + rank)
    return (100 * torch.randn(k, size, generator=generator)).to(dtype)


def counts_of(ranks: Ranks, turn: int) -> list[int]:
    """Rows of every rank: other numbers every time, of some none."""
    return [(turn + 2 * rank) % 3 for rank in range(ranks.count)]


def exchanged(ranks: Ranks) -> dict[str, str]:
    """What comes of exchanges of all sizes and kinds, by name."""
    found: dict[str, list[Tensor]] = {}
    for turn, size in enumerate(SIZES * 3):
        counts = counts_of(ranks, turn)
        for dtype in (torch.float32, torch.float64, torch.uint8):
            rows = rows_of(ranks.rank, counts[ranks.rank], size, dtype, turn)
            every = found[f"gathered {turn} {dtype}"] = ranks.gathered(rows, counts)
            kept = [one.clone() for one in every]
            if dtype != torch.uint8 and sum(counts):
                found[f"summed {turn} {dtype}"] = [ranks.summed_in_slices(rows, counts, in_a_row)]
            assert all(torch.equal(*pair) for pair in zip(every, kept, strict=True)), "written to by a later exchange"
    return {name: _hash(tensors) for name, tensors in found.items()}


def in_a_row(rows: Tensor) -> Tensor:
    total = rows[0].clone()
    for row in rows[1:]:
        total = total * 0.5 + row
    return total


def expected(count: int) -> dict[str, str]:
    """The same, by a process that has what all have."""

    class Alone:
        rank = 0

        def __init__(self) -> None:
            self.count, self.turn, self.size = count, -1, 0

        def gathered(self, rows: Tensor, counts: list[int]) -> list[Tensor]:
            if rows.dtype == torch.float32:
                self.turn += 1
            size = SIZES[self.turn % len(SIZES)]
            return [rows_of(rank, k, size, rows.dtype, self.turn) for rank, k in enumerate(counts)]

        def summed_in_slices(self, rows: Tensor, counts: list[int], fold: Any) -> Tensor:
            size = SIZES[self.turn % len(SIZES)]
            every = [rows_of(rank, k, size, rows.dtype, self.turn) for rank, k in enumerate(counts)]
            total: Tensor = fold(torch.cat(every))
            return total

    return exchanged(Alone())  # type: ignore[arg-type]


def _hash(tensors: list[Tensor]) -> str:
    held = hashlib.sha256()
    for tensor in tensors:
        held.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        held.update(tensor.contiguous().numpy().tobytes())
    return held.hexdigest()[:16]


@contextmanager
def by_network(ranks: Ranks) -> Iterator[None]:
    held, ranks.board = ranks.board, None
    yield
    ranks.board = held


def with_little_memory(ranks: Ranks) -> dict[str, Any]:
    """An area that is not to be had is asked for once; what fits goes by the board still."""
    made, asked = board._made, []

    def none(name: str, size: int) -> None:
        asked.append(size)

    board._made = none  # type: ignore[assignment]
    large = torch.full((1, 1 << 20), float(ranks.rank))
    sums = [ranks.summed_in_slices(large, [1] * ranks.count, in_a_row)[:2].tolist() for _ in range(3)]
    board._made = made
    assert ranks.board is not None
    return {
        "sums": sums,
        "asked": len(asked),
        "takes": [ranks.board.takes(large, ranks.count + 1), ranks.board.takes(large[:, :100], 2)],
    }


def main() -> None:
    torch.set_num_threads(1)
    with ff.ranks.join(timeout=60) as ranks:
        assert ranks is not None
        found: dict[str, Any] = {"board": ranks.board is not None, "exchanged": exchanged(ranks)}
        with by_network(ranks):
            found["by network"] = exchanged(ranks)
        if ranks.board is not None:
            found["little memory"] = with_little_memory(ranks)
        found["files"] = sorted(map(str, Path(board.MEMORY).glob(f"fastfed-{os.getpid()}-*")))
    Path(sys.argv[1], f"rank-{ranks.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
