"""CUDA's sums over clients: however the vectors are cut into threads and blocks, the bits are those of a plain loop."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fastfed import kernels
from fastfed.kernels import registry
from fastfed.kernels.cuda import weighted_sum as sums

from .support import assert_same_bits, normal, same_bits

if not registry.on_host():
    pytest.skip("CUDA's kernels run here on the host (FASTFED_CUDA_HOST=1)", allow_module_level=True)

pytestmark = pytest.mark.backend
CUTS = {  # the least number of blocks decides: one number a thread in blocks of a warp, or quads in larger blocks
    "fine": (1 << 40, False, 32),
    "quads": (32, True, 32),
    "quads in large blocks": (1, True, 256),
}
D = 32 * 128 + 4  # the last block of every cut has threads to spare


@pytest.fixture(params=CUTS)
def cut(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    blocks, wide, threads = CUTS[request.param]
    monkeypatch.setattr(sums, "LEAST_BLOCKS", blocks)
    assert sums.SumGrid.of(D, True)[:2] == (wide, threads)
    return str(request.param)


def in_order(deltas: Tensor, weights: Tensor) -> Tensor:
    total = torch.zeros(deltas.shape[1])
    for delta, weight in zip(deltas.float(), weights, strict=True):
        total = total + weight * delta
    return total


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("clients", [1, 3, 8, 15, 32, 39])
def test_weighted_sum(clients: int, dtype: torch.dtype) -> None:
    """Numbers of clients with and without some beyond those that are on their way at once."""
    deltas, weights = normal(clients, clients, D).to(dtype), normal(2, clients)
    assert same_bits(kernels.weighted_sum(deltas, weights, backend="cuda"), in_order(deltas, weights))


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_trimmed_mean(dtype: torch.dtype) -> None:
    """In small and in large blocks; 13 clients are some more than are on their way at once."""
    deltas = normal(1, 13, D).to(dtype)
    got, wanted = (kernels.trimmed_mean(deltas, 2, backend=name) for name in ("cuda", "reference"))
    assert same_bits(got, wanted)


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("rule", ["adam", "ams", "yogi", "momentum", "sgd"])
def test_aggregate_step(rule: str) -> None:
    """As the server step along the sum."""
    deltas, weights, x = normal(1, 13, D), normal(2, 13), normal(3, D)
    fused, apart = ({"x": x.clone(), **kernels.server_state(rule, x)} for _ in range(2))
    options = {"lr": 0.1}
    state = {name: tensor for name, tensor in fused.items() if name != "x"}
    kernels.aggregate_step(rule, fused["x"], deltas, weights, state, **options, backend="cuda")
    state = {name: tensor for name, tensor in apart.items() if name != "x"}
    kernels.server_step(rule, apart["x"], in_order(deltas, weights), state, **options, backend="cuda")
    assert_same_bits(fused, apart)
