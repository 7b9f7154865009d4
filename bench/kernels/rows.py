"""One measurement as one flat row: the long format that tables, pictures and later comparisons all read."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """One contender of one op at one size; times in seconds a call.

    `kind` is "fastfed", "peer" or "bound"; `backend` is the backend's or the peer's name. `size` is what was asked for,
    `d` what was run (a square matrix, or fewer numbers where memory bounds them). `bound` is the streaming bound's
    median, `of_bound` the share of it that was reached, `best` the fastest peer and `ratio` how many times as fast as
    that peer this one is; None where there is nothing to compare with. `device` is "cpu" or
    the name of a card.
    """

    op: str
    kind: str
    backend: str
    size: int
    d: int
    median: float
    p20: float
    p80: float
    rounds: int
    loops: int
    bytes_per_element: int
    bound: float | None
    of_bound: float | None
    best: str | None
    ratio: float | None
    threads: int
    machine: str
    versions: str
    device: str = "cpu"

    @property
    def gigabytes_per_second(self) -> float:
        return self.bytes_per_element * self.d / self.median / 1e9

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "gigabytes_per_second": self.gigabytes_per_second}
