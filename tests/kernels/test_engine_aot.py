"""The kernels of the device engine compiled ahead of time for three generations of cards: no spills in what ships,
tensor-core instructions in every product. Needs Triton, but no card."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from fastfed.kernels import registry

pytest.importorskip("triton", reason="Triton is not installed")
if registry.interpreting():
    pytest.skip("interpreted kernels compile to nothing (TRITON_INTERPRET=1)", allow_module_level=True)

from fastfed.bench.device_costs import CAPABILITIES, CASES, Compiled, compiled

MMA = {80: "mma.sync", 90: "wgmma", 100: "tcgen05"}
PRODUCTS = {"_forward", "_backward", "_update", "_update_forward", "_input_gradient", "_train"}
# Driver 2 has too few outputs for the wide instructions of newer cards, which take 64 rows.
NARROW = {"_train"}


@cache
def kernels(workload: str, rule: str, capability: int) -> tuple[Compiled, ...]:
    return tuple(compiled(workload, rule, (capability,)))


def _given() -> list[Any]:
    chosen = {("W1", "SGD", 80), ("W2", "SGD", 80), ("W2", "SM3", 80), ("W3", "SGD", 90)}
    cases = [(*case, capability) for case in CASES for capability in CAPABILITIES]
    return [pytest.param(*case, marks=() if case in chosen else pytest.mark.exhaustive) for case in cases]


@pytest.mark.parametrize(("workload", "rule", "capability"), _given())
def test_no_spills_and_tensor_cores_in_products(workload: str, rule: str, capability: int) -> None:
    found = kernels(workload, rule, capability)
    assert {kernel.kernel for kernel in found} & PRODUCTS
    assert [(kernel.kernel, kernel.spilled) for kernel in found if kernel.spilled] == []
    for kernel in found:
        if kernel.kernel in PRODUCTS:
            assert kernel.mma, kernel
            assert kernel.resident >= 1, kernel
        if kernel.kernel in ("_forward", "_update_forward"):
            assert any(family.startswith(MMA[capability]) for family in kernel.mma), kernel
