"""The mean of deltas without the extremes of every coordinate, on every backend."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from fastfed import kernels

from .support import BIG, EPSILON, SIZES, SLOW, makes_nan, normal, same_bits

HALVES = [torch.bfloat16, torch.float16]
# Odd and even, around what a program holds in registers, and around powers of two, at which the sort changes.
CLIENTS = [1, 2, 9, 64, 65] if SLOW else [1, 2, 3, 8, 9, 31, 64, 65, 333, 1000]


def trims(clients: int) -> list[int]:
    """Some, and all but the middle; where that is affordable also none, and half as many."""
    return sorted({clients // 10, (clients - 1) // 2, *(() if SLOW else (0, (clients - 1) // 4))})


def exact_mean(deltas: Tensor, trim: int) -> Tensor:
    ordered = np.sort(deltas.double().numpy(), axis=0)
    return torch.from_numpy(ordered[trim : len(deltas) - trim].mean(0))


def assert_mean(got: Tensor, deltas: Tensor, trim: int) -> None:
    """Within the textbook bound of a sum in float32: one rounding per addition of what was kept, and the division's."""
    assert got.dtype == torch.float32
    ordered = deltas.double().sort(0).values[trim : len(deltas) - trim]
    allowed = (len(ordered) + 1) * EPSILON / 2 * ordered.abs().mean(0) + torch.finfo(torch.float32).tiny
    assert ((got.double() - exact_mean(deltas, trim)).abs() <= allowed).all()


@pytest.mark.parametrize("d", SIZES)
def test_sizes(backend: str, d: int) -> None:
    deltas = normal(d, 5, d)
    kept = deltas.clone()
    assert_mean(kernels.trimmed_mean(deltas, 1, backend=backend), deltas, 1)
    assert same_bits(deltas, kept)


@pytest.mark.parametrize("clients", CLIENTS)
def test_numbers_of_clients(backend: str, clients: int) -> None:
    deltas = normal(clients, clients, 133)
    for trim in trims(clients):
        assert_mean(kernels.trimmed_mean(deltas, trim, backend=backend), deltas, trim)


@pytest.mark.skipif(
    kernels.registry.interpreting(), reason="ten thousand clients, one pass for each bit, take the interpreter minutes"
)
def test_ten_thousand_clients(backend: str) -> None:
    deltas = normal(1, 10_000, 21)
    for trim in (1000, 4999):
        assert_mean(kernels.trimmed_mean(deltas, trim, backend=backend), deltas, trim)


@pytest.mark.parametrize("clients", CLIENTS)
def test_the_median_is_numpys(backend: str, clients: int) -> None:
    deltas = normal(clients, clients, 77)
    got = kernels.trimmed_mean(deltas, (clients - 1) // 2, backend=backend)
    wanted = torch.from_numpy(np.median(deltas.double().numpy(), axis=0))
    if clients % 2:
        assert torch.equal(got.double(), wanted)  # one of the deltas: nothing is rounded
    else:
        torch.testing.assert_close(got.double(), wanted, rtol=2 * EPSILON, atol=EPSILON)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.25, 0.49])
def test_the_trimmed_mean_is_scipys(backend: str, share: float) -> None:
    deltas = normal(3, 37, 55)
    got = kernels.trimmed_mean(deltas, int(share * 37), backend=backend)
    wanted = torch.from_numpy(stats.trim_mean(deltas.double().numpy(), share))
    torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize(("clients", "d"), [(6, 7), (70, 35), *(() if SLOW else ((1, 1), (33, 130), (5, 4097)))])
def test_half_width_deltas(backend: str, dtype: torch.dtype, clients: int, d: int) -> None:
    """They are widened exactly, so that the mean of the widened ones is the same to the bit."""
    deltas = normal(d, clients, d).to(dtype)
    for trim in trims(clients):
        got = kernels.trimmed_mean(deltas, trim, backend=backend)
        assert_mean(got, deltas, trim)
        assert same_bits(got, kernels.trimmed_mean(deltas.float(), trim, backend=backend))


@pytest.mark.parametrize("clients", [1, 2, 7, 64, 333])
def test_float64(backend: str, clients: int) -> None:
    if torch.float64 not in kernels.registry.BACKENDS[backend].dtypes:
        pytest.skip(f"{backend} computes in float32")
    deltas = normal(1, clients, 1037).double() / 3
    for trim in trims(clients):
        got = kernels.trimmed_mean(deltas, trim, backend=backend)
        assert got.dtype == torch.float64
        torch.testing.assert_close(got, exact_mean(deltas, trim), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("d", [1, 7, 4097, BIG])
def test_out_is_overwritten_and_returned(backend: str, d: int) -> None:
    deltas, out = normal(1, 4, d), torch.full((d,), math.nan)
    assert kernels.trimmed_mean(deltas, 1, out, backend=backend) is out
    assert same_bits(out, kernels.trimmed_mean(deltas, 1, backend=backend))


def test_out_inside_a_larger_buffer(backend: str) -> None:
    """Only the slice is written, at any alignment; deltas begin anywhere, too."""
    deltas, buffer = normal(1, 5 * 101 + 3)[3:].view(5, 101), torch.full((120,), 7.0)
    kernels.trimmed_mean(deltas, 1, buffer[3:104], backend=backend)
    assert same_bits(buffer[3:104], kernels.trimmed_mean(deltas.clone(), 1, backend=backend))
    assert (buffer[:3] == 7).all()
    assert (buffer[104:] == 7).all()


# ---- order, ties and what is no number ------------------------------------------------------------------------------


def test_clients_are_added_in_their_order(backend: str) -> None:
    """2^24 loses every 1 that is added to it in float32, but not four of them that have been added before."""
    big = 2.0**24
    columns = torch.tensor([[big, 1, 1, 1, 1, 0, 2 * big], [1, 1, 1, 1, big, 0, 2 * big]]).T.contiguous()
    got = kernels.trimmed_mean(columns, 0, backend=backend)
    assert torch.equal(got, torch.tensor([3 * big, 3 * big + 4]) / 7)


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("clients", [3, 20, 65])
def test_ties_are_kept_as_often_as_they_are_there(backend: str, clients: int, dtype: torch.dtype) -> None:
    """Columns of few different numbers, so that both bounds stand there several times, inside and outside."""
    generator = torch.Generator().manual_seed(clients)
    deltas = torch.randint(-2, 3, (clients, 97), generator=generator).to(dtype)
    for trim in trims(clients):
        assert_mean(kernels.trimmed_mean(deltas, trim, backend=backend), deltas, trim)


@makes_nan
def test_equal_deltas_are_their_own_mean(backend: str) -> None:
    """Also where a sum of them would round, or overflow."""
    row = torch.tensor([0.1, -1 / 3, 3e38, -3e38, 1e-45, 0.0, math.inf, -math.inf])
    got = kernels.trimmed_mean(row.repeat(7, 1), 1, backend=backend)
    assert torch.equal(got, row)


def test_zeros_of_both_signs_are_equal(backend: str) -> None:
    """-0.0 neither counts as less than 0.0 nor comes out."""
    zero = torch.tensor([0.0, -0.0])
    deltas = torch.stack([zero[torch.tensor([(c >> j) & 1 for j in range(5)])] for c in range(32)], 1).contiguous()
    for trim in range(3):
        assert same_bits(kernels.trimmed_mean(deltas, trim, backend=backend), torch.zeros(32))
    ends = torch.tensor([[-1.0], [-0.0], [0.0], [-0.0], [5.0]])
    assert kernels.trimmed_mean(ends, 0, backend=backend).item() == pytest.approx(0.8)


@makes_nan
def test_a_nan_makes_its_coordinate_nan_however_much_is_trimmed(backend: str) -> None:
    deltas = normal(1, 7, 331)
    deltas[3, 5], deltas[6, 9], deltas[:, 330] = math.nan, -math.nan, math.nan
    deltas[0, 7], deltas[1, 7], deltas[2, 7] = math.inf, -math.inf, math.nan
    for trim in range(4):
        got = kernels.trimmed_mean(deltas, trim, backend=backend)
        assert got.isnan().nonzero().flatten().tolist() == [5, 7, 9, 330]


@makes_nan
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
def test_infinities_are_ordered_as_numbers(backend: str, dtype: torch.dtype) -> None:
    up, down = math.inf, -math.inf
    rows = [[1.0, 2.0, 3.0, 4.0, up], [1.0, up, 3.0, up, 5.0], [down, 2.0, 3.0, 4.0, up], [down, 2.0, down, up, up]]
    rows.append([1.0, down, 3.0, 2.0, down])
    columns, nan = torch.tensor(rows).T.contiguous(), math.nan
    wanted = {0: [up, up, nan, nan, down], 1: [3.0, up, 3.0, nan, down], 2: [3.0, 5.0, 3.0, 2.0, 1.0]}
    for trim, means in wanted.items():
        got = kernels.trimmed_mean(columns.to(dtype), trim, backend=backend)
        torch.testing.assert_close(got, torch.tensor(means), rtol=0, atol=0, equal_nan=True)


@makes_nan
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
def test_extremes_of_every_dtype(backend: str, dtype: torch.dtype) -> None:
    """The largest, the smallest and subnormal numbers keep their places, and come out as they are."""
    info = torch.finfo(dtype)
    tiny = info.smallest_normal
    ladder = [-math.inf, info.min, -tiny, -tiny / 4, 0.0, tiny / 4, tiny, info.max, math.inf]
    shuffled = torch.tensor(ladder)[torch.tensor([4, 8, 1, 6, 0, 3, 7, 5, 2])].to(dtype)
    for above in range(len(ladder)):  # padded with infinities, each of them is the median of some column
        sides = [math.inf] * (len(ladder) - 1 - above) + [-math.inf] * above
        column = torch.cat([shuffled, torch.tensor(sides).to(dtype)]).flip(0)[:, None].contiguous()
        middle = sorted(column[:, 0].tolist())[(len(column) - 1) // 2]
        got = kernels.trimmed_mean(column, (len(column) - 1) // 2, backend=backend)
        assert got.item() == middle


NUMBERS = st.one_of(
    st.floats(width=32, allow_subnormal=True),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e-45]),
)


@makes_nan
@settings(max_examples=8 if SLOW else 150, deadline=None)
@given(st.data())
def test_every_backend_gives_the_bits_of_the_reference(backend: str, data: st.DataObject) -> None:
    """Whatever the numbers are, NaN aside, whose bits are nobody's concern."""
    column = data.draw(st.lists(NUMBERS, min_size=1, max_size=19))
    trim = data.draw(st.integers(0, (len(column) - 1) // 2))
    deltas = torch.tensor(column)[:, None].repeat(1, 3)
    deltas[:, 1], deltas[:, 2] = deltas[:, 0].flip(0), -deltas[:, 0]
    got, wanted = (kernels.trimmed_mean(deltas, trim, backend=name) for name in (backend, "reference"))
    assert torch.equal(got.isnan(), wanted.isnan())
    assert same_bits(got.nan_to_num(1.0, math.inf, -math.inf), wanted.nan_to_num(1.0, math.inf, -math.inf))


def test_bits_do_not_depend_on_neighbours(backend: str) -> None:
    """A coordinate's mean is the same alone, at any place, and in any block."""
    deltas = normal(1, 20, 4097)
    whole = kernels.trimmed_mean(deltas, 3, backend=backend)
    for begin, end in ((0, 1), (1, 66), (4000, 4097)):
        part = kernels.trimmed_mean(deltas[:, begin:end].contiguous(), 3, backend=backend)
        assert same_bits(part, whole[begin:end])
