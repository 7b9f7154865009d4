"""The same bits for any number of threads, of every op."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import fastfed as ff
from fastfed import kernels

from .support import (
    BIG,
    SLOW,
    assert_same_bits,
    normal,
    packed_normal,
    snapshot,
)


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets the number of threads of torch (and of the C++ kernels, which follow it) and of numba; both are restored."""
    before = torch.get_num_threads()
    try:
        import numba
    except ImportError:
        numba = None
    numba_before = None if numba is None else numba.get_num_threads()

    def use(count: int) -> None:
        torch.set_num_threads(count)
        if numba is not None:
            numba.set_num_threads(min(count, numba.config.NUMBA_NUM_THREADS))

    yield use
    torch.set_num_threads(before)
    if numba is not None:
        numba.set_num_threads(numba_before)


def many_tensors(size: int) -> ff.Packing:
    """Packed shapes of about `size` numbers, one of them most of it."""
    side = int(size**0.5)
    return ff.Packing.from_shapes({"first": (3, 5), "big": (side, side - 7), "bias": (side,), "conv": (5, 2, 3, 3)})


THREADED: dict[str, Callable[[str], dict[str, Tensor]]] = {}


def threaded(function: Callable[[str], dict[str, Tensor]]) -> Callable[[str], dict[str, Tensor]]:
    THREADED[function.__name__.removeprefix("run_")] = function
    return function


@threaded
def run_server_step(backend: str) -> dict[str, Tensor]:
    x, delta = normal(0, BIG), normal(1, BIG)
    state = kernels.server_state("yogi", x)
    kernels.server_step("yogi", x, delta, state, lr=0.1, backend=backend)
    return snapshot(x, state)


@threaded
def run_aggregate_step(backend: str) -> dict[str, Tensor]:
    x, deltas, weights = normal(0, BIG), normal(1, 3, BIG), torch.tensor([0.2, 0.5, 0.3])
    state = kernels.server_state("ams", x)
    kernels.aggregate_step("ams", x, deltas, weights, state, lr=0.1, backend=backend)
    return snapshot(x, state)


@threaded
def run_weighted_sum(backend: str) -> dict[str, Tensor]:
    return {"sum": kernels.weighted_sum(normal(1, 5, BIG), normal(2, 5), backend=backend)}


@threaded
def run_weighted_sum_of_many(backend: str) -> dict[str, Tensor]:
    rows = 20 if SLOW else 300
    return {"sum": kernels.weighted_sum(normal(1, rows, 777), normal(2, rows), backend=backend)}


@threaded
def run_trimmed_mean(backend: str) -> dict[str, Tensor]:
    return {"mean": kernels.trimmed_mean(normal(1, 5, BIG), 1, backend=backend)}


@threaded
def run_trimmed_mean_of_many(backend: str) -> dict[str, Tensor]:
    rows = 20 if SLOW else 300
    return {"mean": kernels.trimmed_mean(normal(1, rows, 777), rows // 10, backend=backend)}


@threaded
def run_norms_and_clip(backend: str) -> dict[str, Tensor]:
    x = normal(0, 3, BIG)
    return {"norms": kernels.norms(x, backend=backend), "before": kernels.clip(x, 5.0, backend=backend), "x": x}


@threaded
def run_norm_of_one(backend: str) -> dict[str, Tensor]:
    return {"norm": kernels.norms(normal(0, BIG), backend=backend)}


@threaded
def run_clipped_adam_with_floor(backend: str) -> dict[str, Tensor]:
    return _client_run(backend, "adam", normal(0, BIG), 2, lr=0.1, clip=2.0, floor=1e-3)


@threaded
def run_delta_sgd(backend: str) -> dict[str, Tensor]:
    return _client_run(backend, "delta_sgd", normal(0, BIG), 3)


@threaded
def run_sps(backend: str) -> dict[str, Tensor]:
    return _client_run(backend, "sps", normal(0, BIG), 2, loss=100.0)


@threaded
def run_batch_of_delta_sgd(backend: str) -> dict[str, Tensor]:
    return _client_run(backend, "delta_sgd", normal(0, 5, 3001), 3, clip=2.0)


@threaded
def run_batch_of_adam(backend: str) -> dict[str, Tensor]:
    finished = torch.tensor([False, True, False, False, False])
    return _client_run(backend, "adam", normal(0, 5, 3001), 2, lr=0.1, clip=2.0, floor=1e-3, finished=finished)


@threaded
def run_sm3(backend: str) -> dict[str, Tensor]:
    packing = many_tensors(BIG)
    return _client_run(backend, "sm3", packed_normal(packing, 0), 2, packing, lr=0.1, clip=2.0, floor=1e-3)


@threaded
def run_sm3_1(backend: str) -> dict[str, Tensor]:
    packing = many_tensors(BIG)
    return _client_run(backend, "sm3_1", packed_normal(packing, 0), 2, packing, lr=0.1)


@threaded
def run_batch_of_sm3_adam(backend: str) -> dict[str, Tensor]:
    packing = many_tensors(3001)
    return _client_run(backend, "sm3_adam", packed_normal(packing, 0, 5), 2, packing, lr=0.1, clip=2.0)


@threaded
def run_random_numbers(backend: str) -> dict[str, Tensor]:
    stream, ids = kernels.Stream(seed=5, purpose=3, round=2), torch.arange(7)
    return {
        "uniform": kernels.uniform(BIG, stream, backend=backend),
        "normal": kernels.normal(BIG, stream, backend=backend),
        "permutation": kernels.permutation(min(BIG, 100_003), stream, backend=backend),
        "batch": kernels.normal(1001, stream, clients=ids, backend=backend),
        "short rows": kernels.uniform(5, stream, clients=torch.arange(37 if SLOW else 3001), backend=backend),
        "permutations": kernels.permutation(101, stream, clients=ids, backend=backend),
        "shuffles": kernels.shuffles(300 * ids, stream, clients=ids, backend=backend),
    }


def _client_run(
    backend: str, rule: str, x: Tensor, steps: int, packing: ff.Packing | None = None, **options: Any
) -> dict[str, Tensor]:
    state = kernels.client_state(rule, x, **({} if packing is None else {"packing": packing}))
    lead = x.shape[:-1]
    for step in range(steps):
        shape = (*lead, x.shape[-1])
        grad = normal(1 + step, *shape) if packing is None else packed_normal(packing, 1 + step, *lead)
        given = {**options, "loss": torch.full(lead, options["loss"])} if "loss" in options and lead else options
        kernels.client_step(rule, x, grad, state, backend=backend, **given)
    return snapshot(x, state)


@pytest.mark.parametrize("name", THREADED)
def test_same_bits_for_any_number_of_threads(backend: str, name: str, threads: Callable[[int], None]) -> None:
    runs = []
    for count in (1, 7) if SLOW else (1, 2, 7):
        threads(count)
        runs.append(THREADED[name](backend))
    for run in runs[1:]:
        assert_same_bits(runs[0], run)
