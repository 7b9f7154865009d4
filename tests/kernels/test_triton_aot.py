"""Triton kernels compiled ahead of time for three generations of cards: no spills, every element by 128-bit accesses,
and not a byte more than the rule needs. Needs Triton, but no card."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest
import torch

from fastfed import Packing, kernels
from fastfed.kernels import Stream, backend_ops, registry
from fastfed.kernels.client_call import ClientCall
from fastfed.kernels.table import CLIENT_RULES, SERVER_RULES, client_numbers, server_numbers

pytest.importorskip("triton", reason="Triton is not installed")
if registry.interpreting():
    pytest.skip("interpreted kernels compile to nothing (TRITON_INTERPRET=1)", allow_module_level=True)

from fastfed.bench.kernels import triton_traffic as bench
from fastfed.kernels.triton.engine import deltas
from fastfed.kernels.triton.launch import Launch, recorded
from fastfed.kernels.triton.traffic import WIDE, Traffic, compiling_for, traffic_of

backend = backend_ops.load("triton")

FLOAT = 4
VARIANTS = {variant.name: variant for variant in bench.variants()}

# What the papers' rules cost, stated once by hand so that `bench`'s own arithmetic has a witness.
KNOWN_BYTES = {
    "server sgd": 12,
    "server momentum m": 20,
    "server adagrad v": 20,
    "server adagrad m v": 28,
    "server adam m v": 28,
    "server yogi m v": 28,
    "server ams m v vmax": 36,
    "client sgd": 12,
    "client momentum": 20,
    "client adagrad": 20,
    "client adam": 28,
    "client sm3": 12,
}


@cache
def traffic(name: str, capability: int) -> Traffic:
    return VARIANTS[name].traffic(capability)


every_variant = pytest.mark.parametrize("name", VARIANTS)
USUAL_CARD = 90  # the others are as slow to compile for, and belong to device-proof
every_card = pytest.mark.parametrize(
    "capability",
    [pytest.param(card, marks=() if card == USUAL_CARD else pytest.mark.exhaustive) for card in bench.CAPABILITIES],
)


@every_variant
@every_card
def test_moves_the_minimum_in_128_bit_accesses(name: str, capability: int) -> None:
    variant, found = VARIANTS[name], traffic(name, capability)
    assert found.bytes_per_element() == variant.bytes
    assert found.loops == variant.loops
    for loop, clients in enumerate(variant.at_once):
        assert found.bytes_per_element(loop) == clients * variant.client_bytes


@every_variant
@every_card
def test_nothing_else_is_accessed(name: str, capability: int) -> None:
    narrow = Counter(access for access in traffic(name, capability).accesses if access.bytes != WIDE)
    assert narrow == VARIANTS[name].narrow


@every_variant
@every_card
def test_no_register_is_spilled(name: str, capability: int) -> None:
    assert traffic(name, capability).local_bytes == 0


@every_variant
@every_card
def test_three_eighths_of_the_warps_are_resident(name: str, capability: int) -> None:
    """Enough for loads to be on their way while others are waited for; most kernels have more."""
    assert traffic(name, capability).occupancy >= 3 / 8


@every_variant
@every_card
def test_threads_write_back_what_they_have_read(name: str, capability: int) -> None:
    """The race detector lets tiles be updated in place because of this. Beside half-width deltas float32 tiles are read
    in wider pieces than they are written: there a write waits for the read because the rule needs the value."""
    layouts = traffic(name, capability).in_place_layouts()
    pieces = 2 if "float16)" in name else 1
    assert all(len(found) == pieces for found in layouts.values()), layouts


def test_tiles_updated_in_place_are_seen() -> None:
    assert set(traffic("client adam", 90).in_place_layouts()) == {f"{bench.BLOCK}xf32"}


@pytest.mark.parametrize("name", KNOWN_BYTES)
def test_minimum_is_the_rules(name: str) -> None:
    assert VARIANTS[name].bytes == KNOWN_BYTES[name]


def test_aggregate_adam_reads_each_delta_once() -> None:
    variant = VARIANTS["aggregate adam m v"]
    assert (variant.client_bytes, variant.bytes) == (4, 24)


@pytest.mark.parametrize("d", [1, 7850, 15_000, 30_000, 60_000, 199_210, 1_200_000])
@every_card
def test_sums_over_clients_reach_all_of_a_card(d: int, capability: int) -> None:
    """However short the vectors: two programs a multiprocessor, or one warp for every 32 elements; and every thread has
    32 numbers on their way at once."""
    aligned = -(-d // 16) * 16
    x, deltas, weights = torch.zeros(aligned), torch.zeros(3, aligned), torch.ones(3)
    state = kernels.server_state("yogi", x)
    with recorded() as launches:
        backend.weighted_sum(deltas, weights, x)
        call = (*map(state.get, ("m", "v", "vmax")), server_numbers("yogi", ("lr",), 0.1))
        backend.aggregate_step(SERVER_RULES["yogi"], x, deltas, weights, *call)
    for launch in launches:
        assert launch.programs >= min(216, -(-d // 32))
        found = traffic_of(launch, launch.constants["BLOCK"], capability)
        assert found.local_bytes == 0
        loaded = [a.bytes for a in found.accesses if a.loops == (0,)]
        assert sum(loaded) == FLOAT * (32 + launch.constants["AHEAD"])  # numbers, and the clients' weights


TRIMMED = {(3, 1 << 18): 128, (16, 1 << 18): 128, (64, 1 << 18): 32, (65, 1 << 18): 128, (64, 7856): 32, (65, 7856): 32}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("clients", "d"), TRIMMED)
@every_card
def test_trimmed_means_hold_few_clients_and_spill_none(
    clients: int, d: int, dtype: torch.dtype, capability: int
) -> None:
    """Up to 64 clients are read once for all bits and once for the sum, more of them once a bit; either way four
    programs a scheduler or more find room, and short vectors are cut finely."""
    with recorded() as launches:
        backend.trimmed_mean(torch.zeros(clients, d, dtype=dtype), 1, torch.zeros(d))
    (launch,) = launches
    assert launch.constants["BLOCK"] == TRIMMED[clients, d]
    assert launch.programs * launch.constants["BLOCK"] >= d
    found = traffic_of(launch, launch.constants["BLOCK"], capability)
    assert found.local_bytes == 0
    assert found.resident >= 16
    in_loops = {access.loops for access in found.accesses if access.kind == "ld"}
    assert in_loops == ({(), (0,)} if clients <= 64 else {(0, 1), (2,)})
    searched = {access.bytes for access in found.accesses if access.loops in ((), (0, 1)) and access.kind == "ld"}
    assert searched == {WIDE}


def test_clients_and_trims_do_not_recompile_trimmed_means() -> None:
    with recorded() as launches:
        for clients, trim in ((65, 0), (80, 1), (128, 16), (1000, 499)):
            backend.trimmed_mean(torch.zeros(clients, 64), trim, torch.zeros(64))
    with compiling_for(90):
        assert len({id(launch.compile()) for launch in launches}) == 1


@pytest.mark.parametrize("own", [False, True], ids=["one start", "own starts"])
@pytest.mark.parametrize("d", [1, 7850, 30_000, 1_200_000])
@every_card
def test_sums_of_deltas_reach_all_of_a_card(d: int, own: bool, capability: int) -> None:
    """Also where a chunk's clients are in one lane; start models of their own are half of what is on its way."""
    aligned = -(-d // 16) * 16
    x, sums = torch.zeros(3, aligned), torch.zeros(8, aligned)
    with recorded() as launches:
        deltas.fold(x, x if own else x[0], torch.ones(3), sums, 2, 5)
    (launch,) = launches
    assert launch.programs >= min(216, -(-d // 32))
    found = traffic_of(launch, launch.constants["BLOCK"], capability)
    assert found.local_bytes == 0
    loaded = [a.bytes for a in found.accesses if a.loops == (0,)]
    assert sum(loaded) == FLOAT * (32 + launch.constants["AHEAD"])


def test_more_lanes_are_more_programs() -> None:
    """However the chunks lie across lanes, blocks are as large as those of all lanes together allow."""
    x, sums = torch.zeros(8, 32 * 1024), torch.zeros(8, 32 * 1024)
    with recorded() as launches:
        for run in (8, 1):
            deltas.fold(x, x[0], torch.ones(8), sums, 0, run)
    assert [(launch.programs, launch.constants["BLOCK"]) for launch in launches] == [(256, 128), (256, 1024)]


MIXED = {"dense": (200, 784), "convolution": (6, 1, 3, 3), "bias": (10,)}  # every form of tile


def _sm3_launches(rule: str, shapes: dict[str, tuple[int, ...]], **options: float) -> list[Launch]:
    packing = Packing.from_shapes(shapes)
    x = torch.zeros(3, packing.size)
    state = kernels.client_state(rule, x, packing=packing)
    numbers = client_numbers(rule, False, ("lr", *options), 0.1, *options.values())
    with recorded() as launches:
        backend.client_step(ClientCall(CLIENT_RULES[rule], numbers, x, torch.zeros_like(x), state))
    return launches


@pytest.mark.parametrize("shapes", [MIXED, {"dense": (200, 784)}, {"bias": (10,)}], ids=lambda shapes: "-".join(shapes))
def test_sm3_is_two_launches_whatever_the_tensors(shapes: dict[str, tuple[int, ...]]) -> None:
    names = [launch.kernel.__name__ for launch in _sm3_launches("sm3", shapes)]
    assert names == ["_cover_pass", "_settle"]
    names = [launch.kernel.__name__ for launch in _sm3_launches("sm3_1", shapes)]
    assert names == ["_cover_pass", "_settle", "_cover_pass"]
    names = [launch.kernel.__name__ for launch in _sm3_launches("sm3", shapes, floor=1.0)]
    assert names == ["_cover_pass", "_fold", "_cover_pass", "_settle"]


@pytest.mark.parametrize("rule", ["sm3", "sm3_1", "sm3_adam", "sm3_1_adam"])
@every_card
def test_sm3_leaves_room_for_three_programs(rule: str, capability: int) -> None:
    for launch in _sm3_launches(rule, MIXED, floor=1.0):
        found = traffic_of(launch, 1024, capability)
        assert found.local_bytes == 0
        assert found.resident >= 3


# Sizes for which a step along lanes is cut into blocks of 1,024 elements, of 512 and so on down to 32.
CUT = {1024: bench.SUM_SIZE, 512: 199_232, 256: 64_000, 128: 32_000, 64: 16_000, 32: 7_856}


def _cut_lanes() -> list[Any]:
    chosen = {("sgd", False, 80), ("ams", False, 80), ("ams", True, 90)}
    given = [(rule, moved, card) for rule in SERVER_RULES for moved in (False, True) for card in bench.CAPABILITIES]
    return [pytest.param(*case, marks=() if case in chosen else pytest.mark.exhaustive) for case in given]


@pytest.mark.parametrize(("rule", "moved", "capability"), _cut_lanes())
def test_a_step_along_lanes_spills_nothing_however_it_is_cut(rule: str, moved: bool, capability: int) -> None:
    for block, size in CUT.items():
        launch = bench.lanes_variant(rule, moved=moved, size=size).launch
        elements = launch.constants["BLOCK"]
        assert elements == (32 * launch.warps if moved else block)
        assert traffic_of(launch, elements, capability).local_bytes == 0, block


def test_variant_names_are_unique() -> None:
    assert len(VARIANTS) == len(bench.variants())


@pytest.mark.parametrize("change", [{"lr": 0.5}, {"lr": 1.0}, {"beta1": 0.5}, {"tau": 16.0}, {"beta2": 0.0}])
def test_hyperparameters_do_not_recompile(change: dict[str, float]) -> None:
    with compiling_for(90):
        compiled = bench.server_variant("adam").launch.compile()
        assert bench.server_variant("adam", **change).launch.compile() is compiled


def test_streams_do_not_recompile() -> None:
    clients, out = torch.zeros(1, dtype=torch.int64), torch.zeros(1, 64)
    with recorded() as launches:
        for stream in (Stream(0), Stream(1, 16, 1, 0, 1), Stream(2**64 - 1, 3, 2**32 - 1, 0, 2**31)):
            backend.uniform(out, stream.words(), clients)
    with compiling_for(90):
        assert len({id(launch.compile()) for launch in launches}) == 1


def test_number_of_clients_does_not_recompile() -> None:
    out = torch.zeros(64)
    with recorded() as launches:
        for clients in (1, 2, 16):
            backend.weighted_sum(torch.zeros(clients, 64), torch.ones(clients), out)
    with compiling_for(90):
        assert len({id(launch.compile()) for launch in launches}) == 1


def test_places_in_lanes_do_not_recompile() -> None:
    x, sums = torch.zeros(16, 64), torch.zeros(8, 64)
    with recorded() as launches:
        for clients, first, run in ((1, 0, 1), (2, 5, 16), (16, 1, 17), (3, 1, 2)):
            deltas.fold(x[:clients], x[0], torch.ones(clients), sums, first, run)
    with compiling_for(90):
        assert len({id(launch.compile()) for launch in launches}) == 1


def test_odd_sizes_compile_without_wide_accesses() -> None:
    """Rows of an odd length start anywhere, so no wide access would be aligned."""
    x, out = torch.zeros(2, 1027), torch.zeros(2, dtype=torch.float64)
    with recorded() as launches:
        backend.norms(x, out)
    with compiling_for(90):
        assert "ld.global.v4" not in launches[0].compile().asm["ptx"]
