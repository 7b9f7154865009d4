"""The weighted sum of deltas, on every backend."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fastfed import kernels

from .support import BIG, EPSILON, SIZES, SLOW, makes_nan, normal, same_bits

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def exact_sum(deltas: Tensor, weights: Tensor) -> Tensor:
    return (deltas.double() * weights.double()[:, None]).sum(dim=0)


def allowed(deltas: Tensor, weights: Tensor) -> Tensor:
    """The textbook bound of a sum in float32: one rounding per product and per addition of what was added."""
    terms = (deltas.double() * weights.double()[:, None]).abs().sum(dim=0)
    return (deltas.shape[0] + 1) * EPSILON / 2 * terms + torch.finfo(torch.float32).tiny


def assert_sum(got: Tensor, deltas: Tensor, weights: Tensor) -> None:
    assert got.dtype == torch.float32
    assert ((got.double() - exact_sum(deltas, weights)).abs() <= allowed(deltas, weights)).all()


@pytest.mark.parametrize("d", SIZES)
def test_sizes(backend: str, d: int) -> None:
    deltas, weights = normal(d, 3, d), torch.tensor([0.2, 0.5, -0.3])
    kept = deltas.clone(), weights.clone()
    assert_sum(kernels.weighted_sum(deltas, weights, backend=backend), deltas, weights)
    assert same_bits(deltas, kept[0])
    assert same_bits(weights, kept[1])


@pytest.mark.parametrize("clients", [1, 2, 8, 9, 65, 50 if SLOW else 1000])
def test_numbers_of_clients(backend: str, clients: int) -> None:
    deltas, weights = normal(1, clients, 333), normal(2, clients)
    assert_sum(kernels.weighted_sum(deltas, weights, backend=backend), deltas, weights)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("d", [1, 7, 4097])
def test_dtypes(backend: str, dtype: torch.dtype, d: int) -> None:
    """Half-width deltas are widened exactly, so that the sum of the widened ones is the same to the bit."""
    deltas, weights = normal(d, 5, d).to(dtype), normal(2, 5)
    got = kernels.weighted_sum(deltas, weights, backend=backend)
    assert_sum(got, deltas, weights)
    assert same_bits(got, kernels.weighted_sum(deltas.float(), weights, backend=backend))


def test_float64(backend: str) -> None:
    if torch.float64 not in kernels.registry.BACKENDS[backend].dtypes:
        pytest.skip(f"{backend} computes in float32")
    deltas, weights = normal(1, 7, 4097).double() / 3, normal(2, 7).double() / 3
    got = kernels.weighted_sum(deltas, weights, backend=backend)
    assert got.dtype == torch.float64
    torch.testing.assert_close(got, exact_sum(deltas, weights), rtol=1e-13, atol=1e-14)


def test_weights_in_float64_beside_float32_deltas(backend: str) -> None:
    deltas, weights = normal(1, 5, 331), normal(2, 5)
    wide = kernels.weighted_sum(deltas, weights.double(), backend=backend)
    assert same_bits(wide, kernels.weighted_sum(deltas, weights, backend=backend))


@pytest.mark.parametrize("d", [1, 7, 4097, BIG])
def test_out_is_overwritten_and_returned(backend: str, d: int) -> None:
    deltas, weights = normal(1, 4, d), normal(2, 4)
    out = torch.full((d,), math.nan)
    assert kernels.weighted_sum(deltas, weights, out, backend=backend) is out
    assert same_bits(out, kernels.weighted_sum(deltas, weights, backend=backend))


def test_out_inside_a_larger_buffer(backend: str) -> None:
    """Only the slice is written, at any alignment."""
    deltas, weights = normal(1, 4, 101), normal(2, 4)
    buffer = torch.full((120,), 7.0)
    kernels.weighted_sum(deltas, weights, buffer[3:104], backend=backend)
    assert same_bits(buffer[3:104], kernels.weighted_sum(deltas, weights, backend=backend))
    assert (buffer[:3] == 7).all()
    assert (buffer[104:] == 7).all()


def test_clients_are_added_in_their_order(backend: str) -> None:
    """1 + 2^30 - 2^30 in float32 depends on the order: (1 + big) - big loses the 1, big - big + 1 keeps it."""
    big = 2.0**30
    ones = torch.ones(3)
    assert kernels.weighted_sum(torch.tensor([[1.0], [big], [-big]]), ones, backend=backend).item() == 0.0
    assert kernels.weighted_sum(torch.tensor([[big], [-big], [1.0]]), ones, backend=backend).item() == 1.0


@makes_nan
def test_what_is_not_finite_propagates_in_its_coordinate(backend: str) -> None:
    deltas, weights = normal(1, 3, 331), torch.tensor([0.2, 0.5, 0.3])
    deltas[1, 5], deltas[2, 9], deltas[0, 330] = math.nan, math.inf, -math.inf
    got = kernels.weighted_sum(deltas, weights, backend=backend)
    assert got[5].isnan()
    assert got[9] == math.inf
    assert got[330] == -math.inf
    assert got.isfinite().sum() == 331 - 3


@makes_nan
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_extremes_of_half_width_deltas(backend: str, dtype: torch.dtype) -> None:
    """The largest, the smallest normal and a subnormal number, infinities and NaN are widened as they are."""
    info = torch.finfo(dtype)
    row = torch.tensor([info.max, info.min, info.tiny, info.smallest_normal / 4, 0.0, -0.0, math.inf, math.nan])
    deltas = row.to(dtype)[None]
    got = kernels.weighted_sum(deltas, torch.ones(1), backend=backend)
    torch.testing.assert_close(got, deltas[0].float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.skipif(kernels.backends()["cpp"] is not True, reason="the compiled extension is missing")
def test_quick_check_waves_only_the_usual_call_through() -> None:
    from fastfed._core import surely_valid_deltas

    deltas, weights = normal(1, 3, 5), normal(2, 3)
    assert surely_valid_deltas(deltas, weights) == 5
    assert surely_valid_deltas(deltas.double(), weights.double()) == 5
    unusual = {
        "no tensor": (deltas, [1.0, 2.0, 3.0]),
        "no deltas": (None, weights),
        "too few weights": (deltas, weights[:2]),
        "a matrix of weights": (deltas, weights[:, None]),
        "one delta": (deltas[0], weights),
        "empty": (deltas[:, :0], weights),
        "half-width": (deltas.half(), weights),
        "half-width weights, too": (deltas.half(), weights.half()),
        "wide weights": (deltas, weights.double()),
        "strided": (normal(1, 5, 3).T, weights),
        "strided weights": (deltas, normal(2, 6)[::2]),
        "elsewhere": (deltas.to("meta"), weights),
        "in a graph": (deltas.clone().requires_grad_(), weights),
        "weights in a graph": (deltas, weights.clone().requires_grad_()),
    }
    for what, (rows, scales) in unusual.items():
        assert surely_valid_deltas(rows, scales) == 0, what
