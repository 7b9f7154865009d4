"""Every way that the engine has with a convolution, at every SIMD level, against float64 autograd."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from fastfed.data import Examples
from fastfed.train.native import Native

from .agreement import SIZES, Case, assert_close, run, why_not
from .support import printed_at, simd_levels

pytestmark = pytest.mark.skipif(why_not("native") is not None, reason=str(why_not("native")))

WAYS = ("winograd", "direct", "unrolled")

# Prints, for every shape, the way that it took, and how far the outputs and one step are from float64, relative to
# their size. The layer under test lies behind another convolution, whose step shows what the layer gave to its input.
PROGRAM = """
import copy, itertools, torch
import torch.nn.functional as F
from torch import nn
import fastfed as ff
from fastfed.data import Examples
from fastfed.train import RoundWork
from fastfed.train.native import Native


class Behind(nn.Module):
    def __init__(self, layer, channels, residual):
        super().__init__()
        self.first, self.layer, self.residual = nn.Conv2d(5, channels, 1), layer, residual

    def forward(self, x):
        x = self.first(x)
        y = self.layer(x)
        return torch.flatten(x + y if self.residual else y, 1)


def shapes():
    squares = ((3, 3), (6, 6), (4, 5), (8, 2), (1, 1))  # by the batch
    large = ((10, 12), (11, 10), (13, 9))  # one by one
    for size, (channels, out) in itertools.product(squares + large, ((16, 32), (32, 16), (80, 48), (16, 16))):
        for padding in (0, 1, 2, (2, 1)):
            yield size, channels, out, 3, 1, padding
    for size, (channels, out) in itertools.product(squares[:-1] + large, ((3, 5), (16, 32), (70, 33))):
        for kernel, stride, padding in ((1, 1, 0), (1, 2, 0), (3, 2, 1), ((3, 2), (2, 3), 1), (3, 1, 1), (5, 2, 2)):
            yield size, channels, out, kernel, stride, padding


def close(got, exact):
    return float((got - exact).norm() / exact.norm())


torch.manual_seed(3)
for number, (size, channels, out, kernel, stride, padding) in enumerate(shapes()):
    layer = nn.Conv2d(channels, out, kernel, stride, padding, bias=number % 3 > 0)
    rows, fused = (1, 3, 7)[number % 3], number % 2 == 0
    try:
        residual = layer(torch.zeros(1, channels, *size)).shape[1:] == (channels, *size)
    except RuntimeError:  # the kernel is larger than the image
        continue
    module = Behind(layer, channels, residual)
    inputs = torch.randn(rows, 5, *size)
    targets = torch.randn_like(module(inputs)).detach()
    examples = Examples(inputs, targets)
    native = Native(module, "mse", examples)
    packing = ff.Packing.of(module)
    start, everyone = packing.pack(module), torch.arange(rows)
    optimizer = ff.clients.SGD(lr=1.0) if fused else ff.clients.Momentum(lr=1.0)
    found = native.predict(start, examples, everyone)
    step = native.run(
        RoundWork(
            start=start, rows=everyone, offsets=torch.tensor([0, rows]), ids=torch.tensor([0]), steps=torch.tensor([1]),
            batch_size=rows, optimizers=(optimizer,),
        )
    )
    double = copy.deepcopy(module).double()
    outputs = double(inputs.double())
    F.mse_loss(outputs, targets.double()).backward()
    moved = packing.views(step.delta)
    errors = [close(found, outputs.detach())]
    errors += [close(moved[name], -parameter.grad) for name, parameter in double.named_parameters()]
    print((size, channels, out, kernel, stride, padding), native._core.ways()[1], *errors, sep="|")
"""


@pytest.mark.parametrize("level", simd_levels())
@pytest.mark.parametrize("way", ["", *WAYS])
def test_every_way_of_every_shape(way: str, level: str) -> None:
    """A product that is lost or counted twice, or a pixel beyond the border, is of order 0.01 and more."""
    lines = [line.split("|") for line in printed_at(level, PROGRAM, FASTFED_CONVOLUTION=way)]
    assert len(lines) > 200
    taken = Counter(line[1] for line in lines)
    if way == "winograd":  # the shapes that can go it at all; the others go unrolled
        assert set(taken) == {way, "unrolled"}
        assert taken[way] > 100
    else:
        assert set(taken) == ({way} if way else set(WAYS))
    for shape, _, *errors in lines:
        assert all(float(error) < 5e-5 for error in errors), (shape, way, errors)


def test_a_way_that_there_is_not_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTFED_CONVOLUTION", "fourier")
    examples = Examples(torch.zeros(1, 1, 4, 4), torch.zeros(1, dtype=torch.int64))
    module = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten(), torch.nn.Linear(8, 2))
    with pytest.raises(
        ValueError, match="FASTFED_CONVOLUTION: must be one of winograd, direct, unrolled, got 'fourier'"
    ):
        Native(module, "cross_entropy", examples)


@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("rule", ["sgd", "momentum", "sm3"])
def test_threads_that_share_a_client_give_the_bits_of_one(rule: str, clients: int) -> None:
    """Fewer clients than threads of a large model: a batch, and the last, shorter one, are shared."""
    sizes = torch.tensor([11, 0, 5][:clients])
    asked = {
        "offsets": torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)]),
        "rows": torch.arange(int(sizes.sum())),
        "ids": torch.arange(clients),
        "steps": torch.full((clients,), 3),
        "batch_size": 9,
        "keep_deltas": False,
        "measure_cosine": False,
    }
    case = Case("wide pyramid", (rule,))
    one, *others = (run(case, "native", threads=threads, **asked) for threads in (1, 2, 3, 7))
    assert float(one.delta.norm()) > 0
    for other in others:
        assert torch.equal(one.delta, other.delta)
        for name, value in one.scalars.items():
            assert torch.equal(value.nan_to_num(-7), other.scalars[name].nan_to_num(-7)), name


@pytest.mark.parametrize("rule", ["sgd", "momentum", "adam", "sm3"])
@pytest.mark.parametrize("kept", [False, True])
def test_one_step_is_as_close_to_float64_as_that_of_a_plain_loop(rule: str, kept: bool) -> None:
    """By the measure of the table of agreement: at most twice the error of `eager` in float32."""
    asked = {"steps": torch.ones(len(SIZES), dtype=torch.int64), "keep_deltas": kept, "measure_cosine": kept}
    case = Case("wide pyramid", (rule,))
    got, plain, exact = (
        run(case, executor, dtype, **asked)
        for executor, dtype in (("native", torch.float32), ("eager", torch.float32), ("eager", torch.float64))
    )
    assert_close("delta", got.delta, plain.delta, exact.delta)
    assert_close("delta_norm", *(outcome.scalars["delta_norm"] for outcome in (got, plain, exact)))
