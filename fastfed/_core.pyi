"""The compiled kernels (csrc/bind). Private: fastfed.kernels checks arguments and picks backends."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

def surely_valid(
    x: Tensor,
    like: tuple[Tensor, ...],
    counters: tuple[Tensor, ...],
    reals: tuple[Tensor, ...],
    beside: tuple[Tensor, ...],
    /,
) -> bool: ...
def surely_valid_deltas(deltas: Tensor, weights: Tensor, /) -> int: ...
def server_step(
    formula: int,
    x: Tensor,
    delta: Tensor,
    m: Tensor | None,
    v: Tensor | None,
    vmax: Tensor | None,
    numbers: tuple[float, ...],
) -> None: ...
def aggregate_step(
    formula: int,
    x: Tensor,
    deltas: Tensor,
    weights: Tensor,
    m: Tensor | None,
    v: Tensor | None,
    vmax: Tensor | None,
    numbers: tuple[float, ...],
) -> None: ...
def aggregate_parts(
    formula: int,
    parts: list[tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]],
    clients: list[list[Tensor]],
    weights: Tensor,
    subtract: bool,
    numbers: tuple[float, ...],
) -> None: ...
def gradient_parts(
    formula: int,
    x: list[Tensor],
    grad: list[Tensor],
    m: list[Tensor] | None,
    v: list[Tensor] | None,
    vmax: list[Tensor] | None,
    scale: float,
    weight_decay: float,
    numbers: tuple[float, ...],
    /,
) -> bool: ...
def covered_parts(
    formula: int,
    cover: int,
    x: list[Tensor],
    grad: list[Tensor],
    m: list[Tensor] | None,
    mu: list[Tensor],
    layouts: list[Tensor],
    scale: float,
    weight_decay: float,
    step: float,
    root_scale: float,
    numbers: tuple[float | None, ...],
    /,
) -> bool: ...
def squares_of_parts(
    x: list[Tensor], grad: list[Tensor], grad_prev: list[Tensor] | None, scale: float, weight_decay: float, /
) -> float | None: ...
def move_parts(
    x: list[Tensor], grad: list[Tensor], scale: float, weight_decay: float, step: float, measured: bool, /
) -> float | None: ...
def weighted_sum(deltas: Tensor, weights: Tensor, out: Tensor) -> None: ...
def trimmed_mean(deltas: Tensor, trim: int, out: Tensor) -> None: ...
def client_step(
    formula: int,
    cover: int,
    step_size: int,
    x: Tensor,
    grad: Tensor,
    m: Tensor | None,
    v: Tensor | None,
    nu: Tensor | None,
    mu: Tensor | None,
    layout: Tensor | None,
    grad_prev: Tensor | None,
    step: Tensor | None,
    refreshes: Tensor | None,
    lr: Tensor | None,
    theta: Tensor | None,
    move: Tensor | None,
    given_lr: Tensor | None,
    loss: Tensor | float | None,
    anchor: Tensor | None,
    correction: Tensor | None,
    previous_grad: Tensor | None,
    epoch: Tensor | None,
    finished: Tensor | None,
    numbers: tuple[float | None, ...],
    /,
) -> None: ...
def norms(x: Tensor, out: Tensor) -> None: ...
def clip(x: Tensor, limit: float, out: Tensor) -> None: ...
def uniform(out: Tensor, stream: tuple[int, int, int, int], clients: Tensor | int, /) -> None: ...
def normal(out: Tensor, stream: tuple[int, int, int, int], clients: Tensor | int, /) -> None: ...
def permutation(out: Tensor, stream: tuple[int, int, int, int], clients: Tensor | int, /) -> None: ...
def shuffles(
    out: Tensor, stream: tuple[int, int, int, int], clients: Tensor, steps: Tensor, counts: Tensor, /
) -> None: ...
def make_images(
    out: NDArray[np.uint8],
    stream: tuple[int, int, int, int],
    patterns: NDArray[np.uint8],
    contrasts: NDArray[np.uint8],
    shades: NDArray[np.uint8],
    labels: NDArray[np.int64],
    owners: NDArray[np.int64],
    ids: Tensor,
    /,
) -> None: ...
def choose_rows(
    out: NDArray[np.int64],
    cumulative: NDArray[np.float64],
    rows: NDArray[np.int64],
    numbers: NDArray[np.float64],
    /,
) -> None: ...
def run_events(state: tuple[Any, ...], until: float, budget: int, /) -> int: ...
def commit_events(state: tuple[Any, ...], /) -> None: ...
def settle_events(state: tuple[Any, ...], /) -> None: ...
def count_threads_by(source: Callable[[], int], /) -> None: ...
def stream_probe(reads: list[Tensor], updates: list[Tensor]) -> None: ...
def product_probe(rounds: int, /) -> int: ...
def server_formulas() -> list[str]: ...
def directions() -> list[str]: ...
def covers() -> list[str]: ...
def step_sizes() -> list[str]: ...
def server_numbers() -> list[str]: ...
def client_numbers() -> list[str]: ...
def scalars() -> list[str]: ...
def meet(counters: NDArray[np.int64], rank: int, count: int, number: int, seconds: float, /) -> bool: ...
def duties() -> list[str]: ...
def build_info() -> dict[str, object]: ...

counter_apart: int

class Program:
    """A model's local training (csrc/engine/program.h); fastfed.train.native makes and runs it."""

    def __init__(
        self,
        values: list[tuple[str, int, int, int, int]],
        instructions: list[tuple[str, list[int], int, list[int], dict[str, float]]],
        output: int,
        loss: str,
        reduction: str,
        d: int,
        statistics: int,
        constants: Tensor,
        /,
    ) -> None: ...
    def train(self, examples: dict[str, object], work: dict[str, object], results: dict[str, object], /) -> None: ...
    def deal(self, work: dict[str, object], corrected: bool, order: Tensor, /) -> int: ...
    def predict(
        self,
        examples: dict[str, object],
        params: Tensor,
        statistics: Tensor | None,
        rows: Tensor,
        outputs: Tensor,
        threads: int,
        /,
    ) -> None: ...
    def ways(self) -> list[str]: ...
