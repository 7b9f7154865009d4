"""The engine's matrix products at every SIMD level: shapes that fill tiles, vectors and panels, and that do not."""

from __future__ import annotations

import pytest

from .agreement import why_not
from .support import printed_at, simd_levels

pytestmark = pytest.mark.skipif(why_not("native") is not None, reason=str(why_not("native")))

# Prints, for every shape, how far a linear layer's outputs and its first step are from float64, over the root of the
# number of products in a sum.
PROGRAM = """
import itertools, torch
import fastfed as ff
from fastfed.data import Examples
from fastfed.train import RoundWork
from fastfed.train.native import Native

generator = torch.Generator().manual_seed(7)

def normal(*shape):
    return torch.randn(shape, generator=generator)

for rows, inputs, outputs in itertools.product(
    (1, 2, 5, 7, 13, 45, 100), (0, 3, 16, 17, 200, 784, 1025, 2600), (1, 6, 35, 131)
):
    module = torch.nn.Linear(inputs, outputs)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(normal(*parameter.shape))
    examples = Examples(normal(rows, inputs), normal(rows, outputs))
    native = Native(module, "mse", examples)
    packing = ff.Packing.of(module)
    start, everyone = packing.pack(module), torch.arange(rows)
    found = native.predict(start, examples, everyone)
    step = native.run(
        RoundWork(
            start=start, rows=everyone, offsets=torch.tensor([0, rows]), ids=torch.tensor([0]), steps=torch.tensor([1]),
            batch_size=rows, optimizers=(ff.clients.SGD(lr=outputs / 2),),  # the mean over the examples is left
        )
    )
    x, w, b, t = (v.detach().double() for v in (examples.inputs, module.weight, module.bias, examples.targets))
    exact = x @ w.T + b
    wanted = {"weight": -(exact - t).T @ x / rows, "bias": -(exact - t).sum(0) / rows}
    moved = packing.views(step.delta)
    pairs = [(found, exact), *((moved[name], value) for name, value in wanted.items())]
    errors = [float((got - value).abs().max()) if value.numel() else 0.0 for got, value in pairs]
    print(rows, inputs, outputs, *(error / max(inputs, 1) ** 0.5 for error in errors))
"""


@pytest.mark.parametrize("level", simd_levels())
def test_products_of_every_shape_of_tile(level: str) -> None:
    """A product that is lost or counted twice is of order 1 (in a step: over the rows), roundings are not."""
    lines = [line.split() for line in printed_at(level, PROGRAM)]
    assert len(lines) == 7 * 8 * 4
    for rows, inputs, outputs, *errors in lines:
        assert all(float(error) < 1e-5 for error in errors), (rows, inputs, outputs, errors)
