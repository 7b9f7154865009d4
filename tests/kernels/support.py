"""What several kernel tests share: sizes that a session can afford, fixed numbers, packed shapes, equal bits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import fastfed as ff
from fastfed import kernels

EPSILON = torch.finfo(torch.float32).eps
SLOW = (
    kernels.registry.interpreting() or kernels.registry.on_host()
)  # kernels run element by element in Python or on a simulated grid
BIG = 10_007 if SLOW else 1_000_003  # several blocks and lanes of any kernel, and a multiple of nothing
SIZES = (1, 7, 4097, BIG)
SM3 = ("sm3", "sm3_1", "sm3_adam", "sm3_1_adam")
Snapshot = dict[str, Tensor]  # x and the state after a step
# NumPy, in which Triton's interpreter computes, warns of every NaN it makes.
makes_nan = pytest.mark.filterwarnings("ignore::RuntimeWarning")
RANKS = {  # every rank that SM3 tells apart, a singleton axis, and odd sizes, so that gaps lie between tensors
    "scalar": (),
    "bias": (7,),
    "matrix": (5, 9),
    "cube": (3, 4, 5),
    "conv": (6, 1, 3, 2),
}


def normal(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normal numbers, the same float32 ones in every dtype."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def inside(packing: ff.Packing) -> Tensor:
    """(size,) bool: the coordinates that belong to a tensor."""
    mask = torch.zeros(packing.size, dtype=torch.bool)
    for slot in packing.slots:
        mask[slot.span] = True
    return mask


def packed_normal(packing: ff.Packing, seed: int, *lead: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal numbers in the tensors of a packed vector (or batch), zeros in its gaps."""
    return normal(seed, *lead, packing.size, dtype=dtype) * inside(packing).to(dtype)


def axis_sets(packing: ff.Packing) -> list[list[int]]:
    """SM3's cover of packed tensors written out: one set per index of every axis; singletons for rank 0 and 1."""
    sets = []
    for slot in packing.slots:
        coordinates = torch.arange(slot.offset, slot.offset + slot.numel)
        if len(slot.shape) < 2:
            sets += [[int(j)] for j in coordinates]
            continue
        grid = coordinates.view(slot.shape)
        for axis, size in enumerate(slot.shape):
            sets += [grid.select(axis, index).flatten().tolist() for index in range(size)]
    return sets


def assert_runs_close(
    got: list[dict[str, Tensor]], plain: list[dict[str, Tensor]], exact: list[dict[str, Tensor]], start: Tensor
) -> None:
    """As ``agreement.assert_close`` for every tensor of `exact` after every step, with errors and sizes taken over the
    run so far and one rounding per step: short vectors that pass near zero say little at any single step."""
    assert len(got) == len(plain) == len(exact)
    error = dict.fromkeys(exact[0], 0.0)
    largest = {name: float(start.abs().max()) if name == "x" else 0.0 for name in exact[0]}
    for step, (g, p, e) in enumerate(zip(got, plain, exact, strict=True), start=1):
        for name, wanted in e.items():
            assert g[name].shape == wanted.shape, name
            if not wanted.dtype.is_floating_point:
                assert torch.equal(g[name], wanted), f"{name} after step {step}"
                continue
            error[name] = max(error[name], _largest_difference(p[name], wanted))
            largest[name] = max(largest[name], float(wanted.abs().max()))
            allowed = 2 * error[name] + step * EPSILON * largest[name]
            off = _largest_difference(g[name], wanted)
            assert off <= allowed, f"{name} after step {step}: error {off:.3e} against float64, allowed {allowed:.3e}"


def _largest_difference(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).abs().max())


def bits(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def same_bits(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(bits(a), bits(b))


def assert_same_bits(a: dict[str, Tensor], b: dict[str, Tensor], what: str = "") -> None:
    """Two snapshots (x and state) are equal to the last bit."""
    assert a.keys() == b.keys()
    for name in a:
        assert same_bits(a[name], b[name]), f"{what} {name} differs"


def snapshot(x: Tensor, state: dict[str, Tensor]) -> Snapshot:
    return {"x": x.clone(), **{name: tensor.clone() for name, tensor in state.items()}}


def packing_for(rule: str) -> ff.Packing | None:
    return ff.Packing.from_shapes(RANKS) if rule in SM3 else None
