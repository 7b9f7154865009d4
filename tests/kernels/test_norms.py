"""Norms and clipping of rows, on every backend."""

from __future__ import annotations

import math

import pytest
import torch

from fastfed import kernels

from .support import BIG, EPSILON, SIZES, makes_nan, normal, same_bits


def double_norms(x: torch.Tensor) -> torch.Tensor:
    """The norm of every row, summed exactly."""
    rows = x.double().reshape(-1, x.shape[-1])
    exact = [math.sqrt(math.fsum(row.square().tolist())) for row in rows]
    return torch.tensor(exact, dtype=torch.float64).reshape(x.shape[:-1])


@pytest.mark.parametrize("d", SIZES)
def test_norm_of_one_vector(backend: str, d: int) -> None:
    x = normal(d, d)
    before = x.clone()
    got = kernels.norms(x, backend=backend)
    assert got.shape == ()
    assert got.dtype == torch.float64
    # float32 numbers, squared and summed in float64: what is left is rounding, at worst once per term.
    torch.testing.assert_close(got, double_norms(x), rtol=1e-13, atol=0)
    assert same_bits(x, before)


@pytest.mark.parametrize("clients", [1, 3, 17])
@pytest.mark.parametrize("d", [1, 7, 4097])
def test_norms_of_a_batch(backend: str, clients: int, d: int) -> None:
    x = normal(d + clients, clients, d) * torch.logspace(-3, 3, clients)[:, None]
    got = kernels.norms(x, backend=backend)
    assert got.shape == (clients,)
    torch.testing.assert_close(got, double_norms(x), rtol=1e-13, atol=0)


def test_norms_of_double_vectors(backend: str) -> None:
    if torch.float64 not in kernels.registry.BACKENDS[backend].dtypes:
        pytest.skip(f"{backend} computes in float32")
    x = torch.randn((3, 4097), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(kernels.norms(x, backend=backend), double_norms(x), rtol=1e-13, atol=0)


def test_norms_neither_overflow_nor_underflow(backend: str) -> None:
    """Squares of float32 numbers leave float32, never float64."""
    x = torch.tensor([[3e38, 3e38], [1e-30, 1e-30], [0.0, 0.0]])
    torch.testing.assert_close(kernels.norms(x, backend=backend), double_norms(x), rtol=1e-13, atol=0)


@makes_nan
@pytest.mark.parametrize("d", [1, 7, 4097])
def test_what_is_not_finite_propagates_within_its_row(backend: str, d: int) -> None:
    x = normal(0, 4, d)
    x[1, d // 2], x[2, d - 1] = math.nan, -math.inf
    got = kernels.norms(x, backend=backend)
    assert got[1].isnan()
    assert got[2] == math.inf
    assert got[[0, 3]].isfinite().all()


@pytest.mark.parametrize("d", SIZES)
def test_clip(backend: str, d: int) -> None:
    x = normal(d, d)
    before, norm = x.clone(), double_norms(x).item()
    limit = norm / 3
    got = kernels.clip(x, limit, backend=backend)
    torch.testing.assert_close(got.item(), norm, rtol=1e-13, atol=0)
    torch.testing.assert_close(x, before * (limit / norm), rtol=2 * EPSILON, atol=0)


def test_clip_leaves_short_rows_alone(backend: str) -> None:
    d = min(BIG, 5003)
    scale = torch.tensor([0.1, 10.0, 1.0, 0.0, 2.0])[:, None]
    x = normal(1, 5, d)
    x *= scale / x.norm(dim=1, keepdim=True)
    before, norms = x.clone(), double_norms(x)
    limit = float(norms[2])  # exactly the norm of row 2, which is not longer than itself
    got = kernels.clip(x, limit, backend=backend)
    torch.testing.assert_close(got, norms, rtol=1e-13, atol=0)
    for row in (0, 3):
        assert same_bits(x[row], before[row])
    for row in (1, 4):
        torch.testing.assert_close(kernels.norms(x[row], backend=backend).item(), limit, rtol=1e-5, atol=0)
        torch.testing.assert_close(x[row], before[row] * (limit / float(norms[row])), rtol=2 * EPSILON, atol=0)
    torch.testing.assert_close(x[2], before[2], rtol=2 * EPSILON, atol=0)


def test_clip_above_every_norm_changes_nothing(backend: str) -> None:
    x = normal(2, 3, 4097)
    before = x.clone()
    kernels.clip(x, 1e6, backend=backend)
    assert same_bits(x, before)


@makes_nan
def test_clip_does_not_hide_what_is_not_finite(backend: str) -> None:
    x = normal(3, 3, 331)
    x[0, 5], x[1, 7] = math.nan, math.inf
    got = kernels.clip(x, 1.0, backend=backend)
    assert not got[:2].isfinite().any()
    assert not x[0].isfinite().all()
    assert not x[1].isfinite().all()
    assert x[2].isfinite().all()
