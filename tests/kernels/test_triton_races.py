"""The race detector finds the races of small kernels made to have one, and none in the kernels of the backend.

The backend's kernels run here at the tile sizes that ship, on small shapes, and must agree with the reference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fastfed import kernels
from fastfed.kernels import registry
from fastfed.kernels.table import CLIENT_RULES, SERVER_RULES

from .agreement import assert_runs_agree
from .cases import CLIENT_CASES, SERVER_CASES, ClientCase, ServerCase, run_client, run_server
from .support import normal

pytest.importorskip("triton", reason="Triton is not installed")
if not registry.interpreting():
    pytest.skip("only interpreted kernels can be watched (TRITON_INTERPRET=1)", allow_module_level=True)

import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError

from fastfed.kernels.triton import tiles
from fastfed.kernels.triton.cards import CARDS, Cost
from fastfed.kernels.triton.counted import counted
from fastfed.kernels.triton.launch import launch
from fastfed.kernels.triton.races import Excuse, Kind, RaceError, watched

if tiles.WIDE:
    pytest.skip("wide tiles are not those that ship (FASTFED_TILES)", allow_module_level=True)

pytestmark = pytest.mark.backend
TILE = 128  # as many elements as the four warps of a launch have threads


@pytest.fixture
def _no_races() -> None:
    """Instead of the one that `make device-proof` puts around every test: these have races."""


@triton.jit
def _shift(x, out, BARRIER: tl.constexpr, T: tl.constexpr):
    """Every element passes through `out` to its neighbour."""
    at = tl.arange(0, T)
    tl.store(out + at, tl.load(x + at))
    if BARRIER:
        tl.debug_barrier()
    tl.store(x + at, tl.load(out + (at + 1) % T))


@triton.jit
def _reverse(x, BARRIER: tl.constexpr, T: tl.constexpr):
    at = tl.arange(0, T)
    value = tl.load(x + T - 1 - at)
    if BARRIER:
        tl.debug_barrier()
    tl.store(x + at, value)


@triton.jit
def _double(x, T: tl.constexpr):
    at = tl.program_id(0) * T + tl.arange(0, T)
    tl.store(x + at, 2 * tl.load(x + at))


@triton.jit
def _reshaped(x, T: tl.constexpr):
    at = tl.arange(0, T)
    tile = tl.arange(0, 2)[:, None] * (T // 2) + tl.arange(0, T // 2)[None, :]
    tl.store(x + tile, tl.reshape(tl.load(x + at), (2, T // 2)))


@triton.jit
def _write_twice(x, SECOND: tl.constexpr, BARRIER: tl.constexpr, T: tl.constexpr):
    at = tl.arange(0, T)
    tl.store(x + at, at.to(tl.float32))
    if BARRIER:
        tl.debug_barrier()
    tl.store(x + SECOND + at, at.to(tl.float32), mask=at < 1)


@triton.jit
def _collapse(x, EQUAL: tl.constexpr, T: tl.constexpr):
    """All elements to one address."""
    at = tl.arange(0, T)
    tl.store(x + at * 0, (at * 0 if EQUAL else at).to(tl.float32))


@triton.jit
def _overlapping(x, STRIDE: tl.constexpr, T: tl.constexpr):
    at = tl.program_id(0) * STRIDE + tl.arange(0, T)
    tl.store(x + at, at.to(tl.float32))


@triton.jit
def _neighbours(x, out, HALO: tl.constexpr, SAME: tl.constexpr, T: tl.constexpr):
    at = tl.program_id(0) * T + tl.arange(0, T)
    value = tl.load(x + at + HALO)
    tl.store((x if SAME else out) + at, value)


@triton.jit
def _raise(x, OF: tl.constexpr, PLAIN: tl.constexpr, T: tl.constexpr):
    at = tl.arange(0, T)
    if OF == "max":
        tl.atomic_max(x + at % 3, at, sem="relaxed")
    elif OF == "add":
        tl.atomic_add(x + at % 3, at.to(x.dtype.element_ty), sem="relaxed")
    else:
        tl.atomic_xchg(x + at % 3, at, sem="relaxed")
    if PLAIN:
        tl.store(x + at, at, mask=at == 2)


@triton.jit
def _bytes(x, words, T: tl.constexpr):
    """Byte 5 is part of word 1."""
    at = tl.arange(0, T)
    tl.store(words + at, at)
    tl.store(x + at, at.to(tl.int8), mask=at == 5)


@triton.jit
def _beyond(x, n, T: tl.constexpr):
    at = tl.arange(0, T)
    tl.store(x + at, at.to(tl.float32), mask=at < n)


def _kinds(kernel: Any, programs: int, *args: Any, excuses: tuple[Excuse, ...] = (), **constants: Any) -> list[Kind]:
    with watched(excuses) as verdict:
        launch(kernel, programs, args[0], *args, **constants)
    assert verdict.launches == 1
    return [race.kind for race in verdict.races]


def _floats(n: int) -> Tensor:
    return torch.arange(float(n))


def test_a_missing_barrier_between_write_and_read() -> None:
    x, out = _floats(TILE), torch.zeros(TILE)
    assert _kinds(_shift, 1, x, out, BARRIER=True, T=TILE) == []
    assert _kinds(_shift, 1, x, out, BARRIER=False, T=TILE) == [Kind.READ_AFTER_WRITE]


def test_a_missing_barrier_between_read_and_write() -> None:
    assert _kinds(_reverse, 1, _floats(TILE), BARRIER=True, T=TILE) == []
    assert _kinds(_reverse, 1, _floats(TILE), BARRIER=False, T=TILE) == [Kind.WRITE_AFTER_READ]


def test_elements_may_be_updated_in_place_where_one_thread_has_them() -> None:
    assert _kinds(_double, 3, _floats(3 * TILE), T=TILE) == []


def test_a_tile_smaller_than_the_program_may_not_be_updated_in_place() -> None:
    """64 elements of 128 threads are read twice each."""
    assert _kinds(_double, 3, _floats(3 * 64), T=64) == [Kind.WRITE_AFTER_READ]
    with watched() as verdict:
        launch(_double, 3, x := _floats(3 * 64), x, T=64, warps=2)
    assert verdict.races == []


def test_a_tile_of_another_shape_is_another_layout() -> None:
    assert _kinds(_reshaped, 1, _floats(TILE), T=TILE) == [Kind.WRITE_AFTER_READ]


def test_two_writes() -> None:
    x = torch.zeros(2 * TILE)
    assert _kinds(_write_twice, 1, x, SECOND=7, BARRIER=False, T=TILE) == [Kind.WRITTEN_TWICE]
    assert _kinds(_write_twice, 1, x, SECOND=7, BARRIER=True, T=TILE) == []
    assert _kinds(_write_twice, 1, x, SECOND=TILE, BARRIER=False, T=TILE) == []


def test_one_instruction_with_two_values() -> None:
    assert _kinds(_collapse, 1, torch.zeros(3), EQUAL=True, T=TILE) == []
    assert _kinds(_collapse, 1, torch.zeros(3), EQUAL=False, T=TILE) == [Kind.TWO_VALUES]


def test_programs_that_write_the_same_address() -> None:
    assert _kinds(_overlapping, 3, torch.zeros(3 * TILE), STRIDE=TILE, T=TILE) == []
    assert _kinds(_overlapping, 3, torch.zeros(3 * TILE), STRIDE=TILE - 1, T=TILE) == [Kind.PROGRAMS]


def test_programs_that_read_what_another_writes() -> None:
    x, out = torch.zeros(4 * TILE), torch.zeros(4 * TILE)
    assert _kinds(_neighbours, 2, x, out, HALO=TILE, SAME=True, T=TILE) == [Kind.PROGRAMS]
    assert _kinds(_neighbours, 2, x, out, HALO=TILE, SAME=False, T=TILE) == []
    assert _kinds(_neighbours, 2, x, out, HALO=2 * TILE, SAME=True, T=TILE) == []


def test_atomics_whose_order_cannot_be_seen() -> None:
    words, floats = torch.zeros(TILE, dtype=torch.int32), torch.zeros(TILE)
    assert _kinds(_raise, 2, words, OF="max", PLAIN=False, T=TILE) == []
    assert _kinds(_raise, 2, words, OF="add", PLAIN=False, T=TILE) == []
    assert _kinds(_raise, 1, floats, OF="add", PLAIN=False, T=TILE) == [Kind.ORDER_SEEN]
    assert _kinds(_raise, 2, floats, OF="add", PLAIN=False, T=TILE) == [Kind.ORDER_SEEN, Kind.PROGRAMS]
    assert _kinds(_raise, 1, words, OF="exchange", PLAIN=False, T=TILE) == [Kind.ORDER_SEEN]
    assert _kinds(_raise, 1, words, OF="max", PLAIN=True, T=TILE) == [Kind.ATOMIC_AND_PLAIN]


def test_overlapping_bytes_of_different_widths() -> None:
    words = torch.zeros(TILE, dtype=torch.int32)
    assert _kinds(_bytes, 1, words.view(torch.int8), words, T=TILE) == [Kind.WRITTEN_TWICE]
    apart = torch.zeros(TILE, dtype=torch.int8)
    assert _kinds(_bytes, 1, apart, words, T=TILE) == []


def test_an_address_of_no_argument_is_refused_before_it_is_touched() -> None:
    x = torch.zeros(100)
    assert _kinds(_beyond, 1, x, 100, T=TILE) == []
    with pytest.raises(InterpreterError, match=r"_beyond: .*py:\d+: element \(100,\) of the tile \(128,\) is outside"):
        _kinds(_beyond, 1, x, 101, T=TILE)


def test_a_report_names_kernel_lines_program_argument_and_element() -> None:
    x = torch.zeros(3 * TILE)
    with watched() as verdict:
        launch(_overlapping, 3, x, x, STRIDE=TILE - 1, T=TILE)
    with pytest.raises(RaceError) as error:
        verdict.check()
    said = str(error.value)
    assert said.startswith(f"_overlapping: x[{TILE - 1}] is written by one program and touched by another: ")
    assert said.endswith("program (0, 0, 0) and (1, 0, 0), 2 addresses in all")
    first = _overlapping.fn.__code__.co_firstlineno
    assert f"{__file__.rsplit('/', 1)[-1]}:{first + 3}," in said


def test_excuses_cover_their_own_race_only() -> None:
    known = Excuse("_collapse", Kind.TWO_VALUES, "x", because="the test says so")
    for excuse in (known, Excuse("_collapse", Kind.TWO_VALUES, "y", ""), Excuse("_double", Kind.TWO_VALUES, "x", "")):
        found = _kinds(_collapse, 1, torch.zeros(3), EQUAL=False, T=TILE, excuses=(excuse,))
        assert found == ([] if excuse is known else [Kind.TWO_VALUES])


def test_watching_ends() -> None:
    with pytest.raises(ZeroDivisionError), watched() as verdict:
        raise ZeroDivisionError
    launch(_collapse, 1, x := torch.zeros(3), x, EQUAL=False, T=TILE)
    assert (verdict.launches, verdict.races) == (0, [])


# ---- the backend's kernels ------------------------------------------------------------------------------------------

# Every rule with most of what a pass may read; SM3's, which have many tiles, with two clients and steps only.
PLAIN = [case for case in CLIENT_CASES if case.clients == 3 and "anchor" in case.extras and case.d is not None]
COVERED = [case for case in CLIENT_CASES if case.clients == 2 and "clip" in case.options and case.d is None]
BATCHES = PLAIN + COVERED
AGGREGATES = [case for case in SERVER_CASES if (case.clients, case.d) == (64, 130)]


@pytest.mark.parametrize("case", BATCHES, ids=lambda case: case.id)
def test_client_steps_have_no_race(case: ClientCase) -> None:
    with watched() as verdict:
        got = run_client(case, "triton", torch.float32)
    verdict.check()
    assert verdict.launches >= case.steps
    assert_runs_agree(got, *(run_client(case, "reference", dtype) for dtype in (torch.float32, torch.float64)))


@pytest.mark.parametrize("case", AGGREGATES, ids=lambda case: case.id)
def test_server_steps_have_no_race(case: ServerCase) -> None:
    for one in (case, replace(case, clients=None)):
        with watched() as verdict:
            got = run_server(one, "triton", torch.float32)
        verdict.check()
        assert verdict.launches == one.steps
        assert_runs_agree(got, *(run_server(one, "reference", dtype) for dtype in (torch.float32, torch.float64)))


@pytest.mark.parametrize(("rows", "n"), [(1, 1), (3, 1027), (35, 133), (66, 33)])
def test_the_other_ops_have_no_race(rows: int, n: int) -> None:
    x, weights, stream, ids = normal(1, rows, n), normal(2, rows), kernels.Stream(5), torch.arange(rows)

    def results(backend: str) -> dict[str, Tensor]:
        clipped = x.clone()
        half = x.bfloat16()
        return {
            "sum": kernels.weighted_sum(x, weights, backend=backend),
            "sum of bfloat16": kernels.weighted_sum(half, weights, backend=backend),
            "median": kernels.trimmed_mean(x, (rows - 1) // 2, backend=backend),
            "trimmed mean of bfloat16": kernels.trimmed_mean(half, rows // 10, backend=backend),
            "norms": kernels.norms(x, backend=backend),
            "norms before": kernels.clip(clipped, 3.0, backend=backend),
            "clipped": clipped,
            "uniform": kernels.uniform(n, stream, clients=ids, backend=backend),
            "normal": kernels.normal(n, stream, clients=ids, backend=backend),
            "permutation": kernels.permutation(n, stream, clients=ids, backend=backend),
        }

    with watched() as verdict:
        got = results("triton")
    verdict.check()
    assert verdict.launches == 12
    for name, wanted in results("reference").items():
        torch.testing.assert_close(
            got[name], wanted, rtol=1e-5, atol=1e-5, msg=lambda said, name=name: f"{name}: {said}"
        )


def test_every_rule_is_watched() -> None:
    assert {case.rule for case in BATCHES} == set(CLIENT_RULES)
    assert {case.rule for case in AGGREGATES} == set(SERVER_RULES)


# ---- counting -------------------------------------------------------------------------------------------------------


@triton.jit
def _product(a, b, out, rows, K: tl.constexpr, T: tl.constexpr):
    i, k = tl.arange(0, T), tl.arange(0, T)
    total = tl.zeros((T, T), tl.float32)
    for first in range(0, K, T):
        left = tl.load(a + i[:, None] * K + (first + k)[None, :], mask=(i < rows)[:, None], other=0.0)
        right = tl.load(b + (first + k)[:, None] * T + i[None, :])
        total = tl.dot(left, right.to(tl.float32), total, input_precision="tf32x3")
    tl.store(out + i[:, None] * T + i[None, :], total, mask=(i < rows)[:, None])


def test_bytes_and_flops_are_those_of_unmasked_elements_and_of_every_turn() -> None:
    a, b, out = torch.ones(5, 64), torch.ones(64, 16, dtype=torch.bfloat16), torch.zeros(5, 16)
    with counted() as launches:
        launch(_product, 2, a, a, b, out, 5, K=64, T=16)
        launch(_raise, 1, w := torch.zeros(3, dtype=torch.int32), w, OF="max", PLAIN=False, T=TILE)
    first, second = launches
    assert (first.kernel, first.programs, second.kernel) == ("_product", 2, "_raise")
    assert first.bytes_read == 2 * (5 * 64 * 4 + 64 * 16 * 2)
    assert first.bytes_written == 2 * 5 * 16 * 4
    assert first.flops == {"tf32x3": 2 * 2 * 16 * 16 * 64}
    assert (second.atomics, second.bytes_read, second.bytes_written) == (TILE, 0, 0)


def test_clip_touches_only_the_rows_that_are_too_long() -> None:
    x = torch.tensor([[3.0, 4.0, 0.0], [0.375, 0.5, 0.0], [0.0, 0.0, 0.0], [0.0, 5.0, 12.0]])
    with counted() as launches:
        assert kernels.clip(x, 1.0, backend="triton").tolist() == [5.0, 0.625, 0.0, 13.0]
    assert (launches[-1].kernel, launches[-1].bytes_written) == ("_scale_rows", 2 * 3 * 4)
    torch.testing.assert_close(x[[0, 3]].norm(dim=1), torch.ones(2))
    assert x[1:3].tolist() == [[0.375, 0.5, 0.0], [0.0, 0.0, 0.0]]


def test_a_step_moves_what_the_rule_needs() -> None:
    """The interpreter's count beside the 12 bytes per element that compiled code has (``test_triton_aot``)."""
    clients, d = 3, 1027
    x = normal(1, clients, d)
    with counted() as launches:
        kernels.client_step("sgd", x, normal(2, clients, d), {}, lr=0.1, backend="triton")
    (update,) = launches
    coefficients = 5 * 4 * update.programs  # compiled code leaves out two that sgd has no use for
    assert update.programs == clients * 2
    assert update.bytes_read == 2 * 4 * clients * d + coefficients
    assert update.bytes_written == update.distinct_written == 4 * clients * d
    once = 5 * 4 * clients  # both programs of a client read the same coefficients
    assert update.distinct_read == 2 * 4 * clients * d + once
    card = CARDS["A100"]
    assert Cost.of(update).seconds(card) == pytest.approx(
        (12 * clients * d + once) / card.bandwidth * card.multiprocessors / 6 + card.launch_seconds
    )
