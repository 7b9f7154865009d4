"""Predictions of the native engine: torch's own outputs in evaluation mode, for every task of the table."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fastfed as ff
from fastfed.data import Examples
from fastfed.norms import Statistics
from fastfed.program import Unsupported
from fastfed.train.native import Native

from .agreement import BATCH_NORMS, TASKS, TRANSFORMERS
from .support import normal

NATIVE = {name: task for name, task in (TASKS | BATCH_NORMS | TRANSFORMERS).items() if isinstance(task.loss, str)}


@pytest.mark.parametrize("name", NATIVE)
def test_outputs_are_those_of_torch(name: str) -> None:
    """Against float64, at most twice torch's own float32 error."""
    task = NATIVE[name]
    generator = torch.Generator().manual_seed(4)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(9)
        module = task.module().eval()
        for buffer in module.buffers():  # running statistics that are not the first ones
            buffer.copy_(buffer + torch.rand(buffer.shape) if buffer.is_floating_point() else buffer)
    examples = task.examples(generator)
    try:
        native = Native(module, task.loss, examples)
    except Unsupported as why:
        pytest.skip(f"the native engine does not run this task: {why}")
    rows = torch.randperm(len(examples), generator=generator)[:-3]
    layout = Statistics.of(module)
    statistics = None if layout is None else layout.pack(module, torch.float32)
    found = native.predict(ff.Packing.of(module, batch_norm=True).pack(module), examples, rows, statistics)
    with torch.no_grad():
        single = module(examples.batch(rows)[0])
        exact = module.double()(examples.batch(rows, torch.float64)[0])
    assert found.shape == exact.shape
    allowed = 2 * (single.double() - exact).abs().max() + torch.finfo(torch.float32).eps * exact.abs().max()
    assert float((found.double() - exact).abs().max()) <= float(allowed)


def test_the_same_bits_for_any_number_of_threads_and_after_training() -> None:
    model = nn.Sequential(nn.Linear(6, 300), nn.ReLU(), nn.Dropout(0.5), nn.Linear(300, 3))
    examples = Examples(normal(1, 1000, 6), torch.zeros(1000, dtype=torch.int64))
    packing = ff.Packing.of(model)
    rows = torch.arange(1000)
    found = []
    for threads in (1, 2, 5):
        native = Native(model, "cross_entropy", examples, threads=threads)
        x = packing.pack(model)
        before = native.predict(x, examples, rows)
        work = ff.train.RoundWork(
            start=x, rows=rows, offsets=torch.tensor([0, 400, 1000]), ids=torch.arange(2), steps=torch.tensor([3, 3]),
            batch_size=50, optimizers=(ff.clients.SGD(lr=0.1),),
        )  # fmt: skip
        outcome = native.run(work)
        assert torch.equal(native.predict(x, examples, rows), before)  # the worker has forgotten the client's model
        assert torch.equal(native.run(work).delta, outcome.delta)  # and the other way round
        found.append(native.predict(x + outcome.delta, examples, rows))
        assert not torch.equal(found[-1], before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_other_examples_of_the_same_form() -> None:
    model = nn.Linear(6, 3)
    native = Native(model, "cross_entropy", Examples(normal(1, 10, 6), torch.zeros(10, dtype=torch.int64)))
    other = Examples(normal(2, 70, 6), torch.zeros(70, dtype=torch.int64))
    x = ff.Packing.of(model).pack(model)
    with torch.no_grad():
        torch.testing.assert_close(native.predict(x, other, torch.arange(70)), model(other.inputs))
    with pytest.raises(ValueError, match="examples: must have the form of the executor's, float32"):
        native.predict(x, Examples(normal(2, 70, 5), torch.zeros(70, dtype=torch.int64)), torch.arange(70))
    with pytest.raises(ValueError, match=r"rows: must lie in \[0, 70\), got 70"):
        native.predict(x, other, torch.tensor([70]))
