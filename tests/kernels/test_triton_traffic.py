"""Accesses, products, loops and residents read off compiled code, and the times that follow from them."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from fastfed.kernels import registry

pytest.importorskip("triton", reason="Triton is not installed")
if registry.interpreting():
    pytest.skip("interpreted kernels compile to nothing (TRITON_INTERPRET=1)", allow_module_level=True)

import triton
import triton.language as tl

from fastfed.kernels.triton.cards import CARDS, MULTIPROCESSORS, Card, Cost, seconds
from fastfed.kernels.triton.counted import Counts
from fastfed.kernels.triton.launch import Launch, launch, recorded
from fastfed.kernels.triton.traffic import Access, Mma, Traffic, read_code, traffic_of

ROWS, COLS, STEP, TURNS = 64, 64, 32, 8


@triton.jit
def _product(a, b, out, inner, ROWS: tl.constexpr, COLS: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr):
    row, col, k = tl.arange(0, ROWS), tl.arange(0, COLS), tl.arange(0, STEP)
    total = tl.zeros((ROWS, COLS), tl.float32)
    for first in range(0, inner, STEP):
        left = tl.load(a + row[:, None] * inner + (first + k)[None, :])
        right = tl.load(b + (first + k)[:, None] * COLS + col[None, :])
        total = tl.dot(left, right, total, input_precision=PRECISION)
    tl.store(out + row[:, None] * COLS + col[None, :], total)


def _launch(precision: str, dtype: torch.dtype = torch.float32) -> Launch:
    inner = STEP * TURNS
    a, b, out = torch.zeros(ROWS, inner, dtype=dtype), torch.zeros(inner, COLS, dtype=dtype), torch.zeros(ROWS, COLS)
    with recorded() as launches:
        launch(_product, 1, a, a, b, out, inner, ROWS=ROWS, COLS=COLS, STEP=STEP, PRECISION=precision)
    return launches[0]


def _traffic(capability: int, precision: str = "tf32x3", dtype: torch.dtype = torch.float32) -> Traffic:
    return traffic_of(_launch(precision, dtype), ROWS * COLS, capability)


# ---- code -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "access"),
    [
        ("ld.global.b32 %r1, [%rd1];", Access("ld", 4)),
        ("@%p1 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];", Access("ld", 16)),
        ("@!%p12 ld.global.nc.L1::evict_last.v2.b64 { %rd1, %rd2 }, [ %rd3 + 0 ];", Access("ld", 16)),
        ("ld.global.L1::evict_first.L2::cache_hint.v2.b32 { %r1, %r2 }, [ %rd3 + 0 ], %rd9;", Access("ld", 8)),
        ("ld.relaxed.gpu.global.u8 %rs1, [%rd1];", Access("ld", 1)),
        ("st.global.cg.v4.b32 [ %rd1 + 0 ], { %r1, %r2, %r3, %r4 };", Access("st", 16)),
        ("red.global.gpu.relaxed.max.s32 [ %rd1 + 0 ], %r1;", Access("red", 4)),
        ("cp.async.cg.shared.global [ %r19 + 0 ], [ %rd10 + 0 ], 0x10, %r20;", Access("cp.async", 16)),
        ("@%p3 cp.async.ca.shared.global.L2::128B [ %r19 + 0 ], [ %rd10 + 0 ], 0x8, 0x8;", Access("cp.async", 8)),
    ],
)
def test_an_access_is_read_with_its_width(line: str, access: Access) -> None:
    assert read_code(line) == ((access,), (), 0)


@pytest.mark.parametrize(
    "line",
    [
        "ld.param.b64 %rd1, [kernel_param_0];",
        "ld.shared.v4.b32 { %r1, %r2, %r3, %r4 }, [%r5];",
        "st.shared::cta.b32 [%r1], %r2;",
        "cp.async.commit_group;",
        "cp.async.wait_group 0x2;",
        "bar.sync 0;",
        "tcgen05.ld.sync.aligned.16x32bx2.x32.b32 {%r264}, [%r296 + 0], 32;",
    ],
)
def test_what_leaves_global_memory_alone_is_no_access(line: str) -> None:
    assert read_code(line) == ((), (), 0)


@pytest.mark.parametrize("opcode", ["cp.async.bulk.tensor.2d.shared::cta.global.tile", "ld.local.b32", "st.async.b32"])
def test_an_unknown_access_is_refused_by_name(opcode: str) -> None:
    with pytest.raises(ValueError, match=f"opcode: '{opcode}' touches memory in a way that is not counted"):
        read_code(f"@%p1 {opcode} [%r1], [%rd1];")


@pytest.mark.parametrize(
    ("line", "product"),
    [
        ("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 { %r1 }", Mma("mma.sync", "tf32", (16, 8, 8))),
        ("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%r1}", Mma("wgmma.mma_async", "bf16", (64, 32, 16))),
        ("@%p10 tcgen05.mma.cta_group::1.kind::tf32 [ %r254 + 0 ]", Mma("tcgen05.mma", "tf32", None)),
    ],
)
def test_a_product_is_read_with_its_shape(line: str, product: Mma) -> None:
    assert read_code(line) == ((), (product,), 0)


LOOPS = """
  ld.global.b32 %r1, [%rd1];
$L__outer:
  ld.global.b64 %rd2, [%rd1];
$L__inner:
  st.global.b32 [%rd1], %r1;
  @%p1 bra $L__inner;
$L__waiting:
  mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], %r3;
  @!%p2 bra.uni $L__waiting;
  @%p1 bra $L__outer;
  ld.global.b32 %r1, [%rd1];
"""


def test_accesses_know_their_loops_and_turns_multiply() -> None:
    accesses, products, loops = read_code(LOOPS)
    assert loops == 2  # waiting moves nothing
    assert accesses == (Access("ld", 4), Access("ld", 8, (0,)), Access("st", 4, (0, 1)), Access("ld", 4))
    traffic = Traffic(accesses, products, loops, 1, 32, 0, 0, warps=2, capability=80, layouts=frozenset())
    assert traffic.bytes_read([10, 3]) == 64 * (4 + 10 * 8 + 4)
    assert traffic.bytes_written([10, 3]) == 64 * 10 * 3 * 4
    with pytest.raises(ValueError, match="turns: the kernel has 2 loops that move or multiply, got 1 numbers"):
        traffic.bytes_read([10])


MOVED_AWAY = """
  @%p1 bra $L__seldom;
$L__usual:
  ld.global.b32 %r1, [%rd1];
  ret;
$L__seldom:
  st.global.b32 [%rd1], %r1;
  bra.uni $L__usual;
"""


def test_a_way_back_to_code_that_does_not_repeat_is_no_loop() -> None:
    assert read_code(MOVED_AWAY) == ((Access("ld", 4), Access("st", 4)), (), 0)


# ---- a compiled product ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("capability", "family"), [(80, "mma.sync"), (90, "wgmma.mma_async"), (100, "tcgen05.mma")])
def test_each_generation_multiplies_with_its_own_instruction(capability: int, family: str) -> None:
    traffic = _traffic(capability)
    assert traffic.mma_families == {family}
    assert {product.numbers for product in traffic.products} == {"tf32"}


def test_float32_in_full_precision_needs_no_tensor_core() -> None:
    assert _traffic(80, "ieee").products == ()


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize(("precision", "passes"), [("tf32", 1), ("tf32x3", 3)])
def test_products_count_every_pass(capability: int, precision: str, passes: int) -> None:
    traffic = _traffic(capability, precision)
    turns = [TURNS if any(p.loops for p in traffic.products) else 1] * traffic.loops
    assert traffic.mma_flops(turns) == passes * 2 * ROWS * COLS * STEP * TURNS


def test_the_work_of_a_product_in_tensor_memory_is_refused() -> None:
    traffic = _traffic(100)
    with pytest.raises(ValueError, match=r"products: tcgen05\.mma keeps its shape in a descriptor"):
        traffic.mma_flops([TURNS] * traffic.loops)


@pytest.mark.parametrize("capability", MULTIPROCESSORS)
def test_asynchronous_copies_are_read_bytes(capability: int) -> None:
    """A turn copies both operands; two more turns' copies stand before the loop."""
    traffic = _traffic(capability)
    operands = 4 * STEP * (ROWS + COLS)
    assert Counter(access.kind for access in traffic.accesses if access.loops) == {"cp.async": operands // 16 // 128}
    assert traffic.bytes_read([TURNS]) == (TURNS + 2) * operands
    assert traffic.bytes_written([TURNS]) == 4 * ROWS * COLS


# ---- cards ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capability", "registers", "shared", "warps", "resident"),
    [
        (80, 32, 0, 4, 16),  # 64 warps
        (80, 32, 0, 1, 32),  # 32 programs
        (80, 110, 0, 8, 2),  # 18 warps' registers, of which 16 are counted
        (80, 110, 0, 6, 2),
        (80, 255, 0, 4, 2),
        (80, 33, 0, 4, 12),  # 40 registers each, in units of 256: 51 warps
        (80, 32, 48 * 1024, 4, 3),
        (90, 32, 48 * 1024, 4, 4),
        (90, 32, 227 * 512, 4, 1),  # and 1 KB each for the system
        (100, 32, 227 * 1024, 4, 1),
        (100, 32, 228 * 1024, 4, 0),
    ],
)
def test_programs_that_are_resident_at_once(
    capability: int, registers: int, shared: int, warps: int, resident: int
) -> None:
    assert MULTIPROCESSORS[capability].resident(registers, shared, warps) == resident
    traffic = Traffic((), (), 0, 1, registers, 0, shared, warps, capability, frozenset())
    assert (traffic.resident, traffic.occupancy) == (resident, resident * warps / 64)


CARD = Card("test", 80, multiprocessors=100, bandwidth=1e9, peaks={"fp32": 1e9, "tf32": 8e9}, launch_seconds=0.5)


def test_the_slower_resource_decides() -> None:
    assert Cost(1e9, 1e9).seconds(CARD) == 2.5
    assert Cost(1e9, 0, {"tf32": 24e9}).seconds(CARD) == 3.5
    assert Cost(1e9, 0, {"tf32x3": 24e9}).seconds(CARD) == 9.5
    assert Cost(0, 0, {"ieee": 2e9, "tf32": 8e9}).seconds(CARD) == 3.5


def test_few_programs_use_a_part_of_the_card() -> None:
    assert Cost(1e9, 0, programs=25).seconds(CARD) == 4.5
    assert Cost(1e9, 0, programs=1000).seconds(CARD) == 1.5
    assert seconds([Cost(1e9, 0)] * 3, CARD) == 4.5


def test_a_cost_can_be_what_was_counted() -> None:
    counts = Counts("_product", 50, 10, 20, distinct_read=6, distinct_written=5, flops=Counter({"tf32": 7}))
    assert Cost.of(counts) == Cost(6, 5, {"tf32": 7}, 50, touched=30)


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ValueError, match=r"flops: precision must be one of ieee, tf32, .*, got 'fp4'"):
        Cost(0, 0, {"fp4": 1}).seconds(CARD)


def test_cards_have_a_peak_for_all_numbers() -> None:
    for card in CARDS.values():
        assert card.capability in MULTIPROCESSORS
        assert set(card.peaks) == {"fp32", "tf32", "fp16", "bf16"}
        assert card.peaks["fp32"] < card.peaks["tf32"] < card.peaks["bf16"]
