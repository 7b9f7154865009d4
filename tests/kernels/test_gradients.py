"""Steps along gradients of a model in parts: the bits of the packed ops, whatever the parts' sizes; what is unusual is
left to a closer look, with nothing written."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import fastfed as ff
from fastfed.kernels import extension, registry
from fastfed.kernels.ops import gradients
from fastfed.kernels.ops.gradients import Sight

SHAPES: list[tuple[int, ...]] = [(300, 500), (70_001,), (), (3,), (64, 32, 3, 3), (2, 40_000)]
STEPS = 3


def drawn(seed: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in SHAPES]


def like(x: list[Tensor], start: float = 0.0) -> list[Tensor]:
    return [torch.full_like(part, start) for part in x]


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rule", ["sm3", "sm3_1", "sm3_adam", "sm3_1_adam"])
def test_covers_have_the_bits_of_the_packed_step(rule: str, dtype: torch.dtype, decay: float) -> None:
    packing = ff.Packing.from_shapes({str(i): shape for i, shape in enumerate(SHAPES)}, dtype=dtype)
    x, packed = drawn(0, dtype), packing.pack(drawn(0, dtype))
    state = ff.kernels.client_state(rule, packed, packing=packing)
    held = {"mu": [part.new_zeros(gradients.sets_of(part.shape)) for part in x]}
    if "m" in state:
        held["m"] = like(x)
    for step in range(STEPS):
        grad = drawn(step + 1, dtype)
        gradients.covered_gradient_step(rule, x, grad, held, Sight(1.0, decay), step + 1, lr=0.1)
        ff.kernels.client_step(rule, packed, packing.pack(grad), state, lr=0.1, weight_decay=decay)
    views = packing.views(packed)
    assert all(torch.equal(part, views[str(i)]) for i, part in enumerate(x))
    assert torch.equal(torch.cat(held["mu"]), state["mu"])
    if "m" in state:
        assert all(torch.equal(part, packing.views(state["m"])[str(i)]) for i, part in enumerate(held["m"]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_over_parts(dtype: torch.dtype) -> None:
    x, grad, before = drawn(0, dtype), drawn(1, dtype), drawn(2, dtype)
    flat, g, last = (torch.cat([part.double().reshape(-1) for part in parts]) for parts in (x, grad, before))
    seen = -(g - 0.3 * flat)
    sight = Sight.of(0.3, maximize=True)
    exact = {"rel": 1e-5 if dtype is torch.float32 else 1e-12}
    assert gradients.gradient_squares(x, grad, sight) == pytest.approx(float(seen.square().sum()), **exact)
    change = gradients.gradient_squares(x, grad, sight, before)
    assert change == pytest.approx(float((seen - last).square().sum()), **exact)
    assert all(torch.equal(b, -(h - 0.3 * p)) for b, h, p in zip(before, grad, x, strict=True))
    moved = gradients.move(x, grad, sight, 0.25, measured=True)
    assert moved == pytest.approx(float((0.25 * seen).square().sum()), rel=1e-4 if dtype is torch.float32 else 1e-10)
    found = torch.cat([part.double().reshape(-1) for part in x])
    torch.testing.assert_close(found, flat - 0.25 * seen, rtol=1e-6, atol=1e-6)


def strided(part: Tensor) -> Tensor:
    return torch.stack([part, part], -1)[..., 0]


UNUSUAL: dict[str, Any] = {
    "a strided parameter": lambda x, g, v: ([strided(x[0]), *x[1:]], g, v),
    "a strided gradient": lambda x, g, v: (x, [*g[:-1], strided(g[-1])], v),
    "a strided moment": lambda x, g, v: (x, g, [strided(v[0]), *v[1:]]),
    "another dtype": lambda x, g, v: ([x[0].double(), *x[1:]], g, v),
    "a gradient of another dtype": lambda x, g, v: (x, [g[0].half(), *g[1:]], v),
    "half-width parameters": lambda x, g, v: ([p.half() for p in x], [h.half() for h in g], [w.half() for w in v]),
    "a gradient of another length": lambda x, g, v: (x, [g[1], *g[1:]], v),
    "too few gradients": lambda x, g, v: (x, g[:-1], v),
    "too many moments": lambda x, g, v: (x, g, [*v, v[0]]),
    "a sparse gradient": lambda x, g, v: (x, [g[0].to_sparse(), *g[1:]], v),
    "what is no tensor": lambda x, g, v: (x, [None, *g[1:]], v),
    "nothing": lambda x, g, v: ([], [], []),
}


@pytest.mark.skipif(registry.BACKENDS["cpp"].why_not() is not None, reason="fastfed._core is not built here")
@pytest.mark.parametrize("name", UNUSUAL)
def test_the_extension_leaves_what_is_unusual_alone(name: str) -> None:
    core = extension.load()
    x, grad, v = UNUSUAL[name](drawn(0), drawn(1), like(drawn(0), 0.5))
    before = [[part.clone() for part in parts if part is not None] for parts in (x, v)]
    numbers = ff.kernels.table.server_numbers("adagrad", ("lr",), 0.1)
    adagrad = extension.numbers("server_formulas")["adam"]
    assert core.gradient_parts(adagrad, x, grad, None, v, None, 1.0, 0.0, numbers) is False
    assert core.squares_of_parts(x, grad, v, 1.0, 0.0) is None
    if "moment" not in name:
        assert core.move_parts(x, grad, 1.0, 0.0, 0.1, True) is None
    for old, parts in zip(before, (x, v), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(old, parts, strict=True))


@pytest.mark.skipif(registry.BACKENDS["cpp"].why_not() is not None, reason="fastfed._core is not built here")
def test_the_extension_refuses_what_would_write_elsewhere() -> None:
    core = extension.load()
    x, numbers = drawn(0), ff.kernels.table.server_numbers("adam", ("lr",), 0.1)
    adam = extension.numbers("server_formulas")["adam"]
    with pytest.raises(ValueError, match="v: must be given"):
        core.gradient_parts(adam, x, drawn(1), like(x), None, None, 1.0, 0.0, numbers)
    with pytest.raises(ValueError, match="m: must be given unless beta1 is 0"):
        core.gradient_parts(adam, x, drawn(1), None, like(x), None, 1.0, 0.0, numbers)
    with pytest.raises(ValueError, match="formula: must be"):
        core.gradient_parts(99, x, drawn(1), like(x), like(x), None, 1.0, 0.0, numbers)
    of_clients = ff.kernels.table.client_numbers("sm3", False, ("lr",), 0.1)
    direction, cover = extension.numbers("directions")["adagrad"], extension.numbers("covers")["II"]
    layouts = [gradients.cover_of(tuple(part.shape)) for part in x]
    mu = [part.new_zeros(gradients.sets_of(part.shape)) for part in x]

    def covered(layouts: list[Tensor], mu: list[Tensor]) -> Any:
        return core.covered_parts(direction, cover, x, drawn(1), None, mu, layouts, 1.0, 0.0, 0.1, 1.0, of_clients)

    with pytest.raises(ValueError, match="cover is not one of vectors like x"):
        covered([*layouts[1:], layouts[0]], mu)
    with pytest.raises(ValueError, match="layouts: must be as many as arrays"):
        covered(layouts[1:], mu)
    assert covered(layouts, [*mu[1:], mu[0]]) is False
    assert all(torch.equal(a, b) for a, b in zip(x, drawn(0), strict=True))
    assert covered(layouts, mu) is True
