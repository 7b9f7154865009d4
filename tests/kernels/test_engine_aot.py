"""The kernels of the device engine compiled ahead of time for three generations of cards: no spills in what ships,
tensor-core instructions in every product. Needs Triton, but no card."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from fastfed.kernels import registry

pytest.importorskip("triton", reason="Triton is not installed")
if registry.interpreting():
    pytest.skip("interpreted kernels compile to nothing (TRITON_INTERPRET=1)", allow_module_level=True)

from fastfed.bench.device.kernels import CAPABILITIES, LAYER_CASES, Compiled, compiled, forms
from fastfed.bench.device.rounds import CASES, LAYERS
from fastfed.kernels.triton import engine

MMA = {80: "mma.sync", 90: "wgmma", 100: "tcgen05"}
PRODUCTS = {
    "products": {"_forward", "_backward", "_update", "_update_forward", "_input_gradient"},
    "convolution": {"_forward", "_update", "_input_gradient"},
    "sequences": {"_cell", "_cell_gradient", "_update_table"},
    "client": {"_train"},
}
# The wide instructions of newer cards take 64 rows, of which W2 and W3 have enough outputs.
WIDE = {"products._forward", "products._update_forward", "convolution._forward"}
OTHERS = (
    "norms",
    "pooling",
    "elementwise",
    "losses",
    "batches",
    "deltas",
    "orders",
    "views",
)  # files of kernels without a product


def is_product(kernel: Compiled) -> bool:
    file, _, name = kernel.kernel.partition(".")
    return name in PRODUCTS.get(file, ())


def assert_fits(found: list[Compiled]) -> None:
    """Nothing is spilled, every program fits on a multiprocessor, and products are the tensor cores' work."""
    assert [(kernel.kernel, kernel.spilled) for kernel in found if kernel.spilled] == []
    for kernel in found:
        assert kernel.resident >= 1, kernel
        assert bool(kernel.mma) == is_product(kernel), kernel


def _given() -> list[Any]:
    chosen = {("W2", "SM3", 80), ("W3", "SGD", 90)}
    cases = [(*case, capability) for case in CASES for capability in CAPABILITIES]
    return [pytest.param(*case, marks=() if case in chosen else pytest.mark.exhaustive) for case in cases]


@pytest.mark.parametrize(("workload", "rule", "capability"), _given())
def test_no_spills_and_tensor_cores_in_products(workload: str, rule: str, capability: int) -> None:
    found = list(compiled(workload, rule, (capability,)))
    assert any(map(is_product, found))
    assert_fits(found)
    for kernel in found:
        if kernel.kernel in WIDE:
            assert any(family.startswith(MMA[capability]) for family in kernel.mma), kernel


def _layers() -> list[Any]:
    chosen = {("SO-LR", "clipped", 80)}
    found = []
    for case in [(*case, capability) for case in LAYER_CASES for capability in CAPABILITIES]:
        found.append(pytest.param(*case, marks=[] if case in chosen else [pytest.mark.exhaustive]))
    return found


@pytest.mark.parametrize(("layers", "rule", "capability"), _layers())
def test_the_other_layers_fit_too(layers: str, rule: str, capability: int) -> None:
    assert_fits(list(compiled(layers, rule, (capability,))))


# Quick ones of the same: by files of kernels.
SMALL = [("images", "SGD", OTHERS), ("AE", "clipped", OTHERS), ("text", "SGD", ("sequences",))]
SMALL += [(crops, "SGD", ("views",)) for crops in ("crops", "standardised crops")]


@pytest.mark.parametrize(("layers", "rule", "files"), SMALL)
def test_small_kernels_fit_too(layers: str, rule: str, files: tuple[str, ...]) -> None:
    found = list(compiled(layers, rule, (90,), files))
    assert found
    assert {kernel.kernel.partition(".")[0] for kernel in found} <= set(files)
    assert_fits(found)


def kernels_of_the_engine() -> set[str]:
    """All that is written there to be launched, as file.name."""
    found = set()
    for file in Path(engine.__file__).parent.glob("*.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef) and any("triton.jit" in ast.unparse(d) for d in node.decorator_list):
                found.add(f"{file.stem}.{node.name}")
    return found


def test_every_kernel_of_the_engine_is_among_those_compiled() -> None:
    cases = [("W1", "SGD"), ("W2", "SGD"), *((name, rule) for name in LAYERS for rule in ("SGD", "clipped"))]
    seen = {kernel for case in cases for kernel, *_ in forms(*case)}
    assert kernels_of_the_engine() - seen == set()
