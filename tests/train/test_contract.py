"""What docs/embed.md promises of every executor: rounds that leave nothing behind, predictions, ids of 64 bits."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastfed as ff
from fastfed.data import Examples
from fastfed.kernels import registry
from fastfed.norms import Statistics
from fastfed.train import Executor, RoundWork, measure, steps_for
from fastfed.train.ids import stream_ids

from .agreement import executors, kept
from .support import DEVICE, make, network, normal, round_of, train, vectors

IN_DEVICE_SESSION = registry.interpreting() or DEVICE != "cpu"
every_executor = executors("device") if IN_DEVICE_SESSION else executors("eager", "batched", "native")
pytestmark = [pytest.mark.device] if IN_DEVICE_SESSION else []

WIDE = [2**64 - 1, 2**63, 2**32 + 3]


def uint64(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.uint64)


# ---- rounds ---------------------------------------------------------------------------------------------------------


@every_executor
def test_a_round_leaves_nothing_behind(executor: str) -> None:
    """Twice the same work, another one between, have the same bits; module, start and store are as they were."""
    module, examples = network(), vectors()
    before = copy.deepcopy(module.state_dict())
    inputs = examples.inputs.clone()  # type: ignore[union-attr]
    made = make(executor, module, "cross_entropy", examples)
    work = round_of(module, optimizers=(ff.clients.Adam(lr=0.01),))
    start = work.start.clone()
    first = made.run(work)
    made.run(round_of(module, round=7, seed=3, optimizers=(ff.clients.Adam(lr=0.3),)))
    again = made.run(work)
    assert torch.equal(first.delta, again.delta)
    assert torch.equal(kept(first), kept(again))
    for name, values in first.scalars.items():
        assert torch.equal(values.nan_to_num(), again.scalars[name].nan_to_num()), name
    assert torch.equal(work.start, start)
    assert torch.equal(examples.inputs, inputs)  # type: ignore[arg-type]
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())


@every_executor
def test_it_says_what_it_is(executor: str) -> None:
    examples = vectors()
    made = make(executor, network(), "cross_entropy", examples)
    if DEVICE != "cpu":
        made = made.executor
    assert made.name == executor
    assert len(made.why) > 10
    assert len(made.examples) == len(examples)
    assert made.predicts_itself is (executor == "native")


def test_what_is_exported_is_what_is_used() -> None:
    assert ff.train.make is ff.train.executors.make
    assert ff.train.Executor is Executor


# ---- predictions ----------------------------------------------------------------------------------------------------


def made_for(executor: str, module: nn.Module, examples: Examples) -> Any:
    made = make(executor, module, "cross_entropy", examples)
    return made.executor if DEVICE != "cpu" else made


@every_executor
def test_predictions_are_the_modules(executor: str) -> None:
    """Of another model than the module's own, on other examples, with dropout off; more rows than a batch has."""
    module = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 3))
    made = made_for(executor, module, vectors())
    x = normal(3, ff.Packing.of(module).size)
    others = vectors(1300)
    rows = torch.randperm(1300, generator=torch.Generator().manual_seed(1))[:-7]
    found = made.predict(x, others, rows).cpu()
    wanted = copy.deepcopy(module).eval()
    ff.Packing.of(module).unpack(x, wanted)
    with torch.no_grad():
        torch.testing.assert_close(found, wanted(others.batch(rows)[0]), rtol=1e-5, atol=1e-5)
    assert module.training


@every_executor
@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (torch.tensor([0, -1]), r"^rows: must lie in \[0, 40\), got -1$"),
        (torch.tensor([40, 3]), r"^rows: must lie in \[0, 40\), got 40$"),
        (torch.tensor([1, 2], dtype=torch.int32), r"^rows: must be .* int64 .*, got torch.int32 \(2,\) on cpu$"),
        (torch.ones(40, dtype=torch.bool), r"^rows: must be .* int64 .*, got torch.bool \(40,\) on cpu$"),
        (torch.tensor([[1], [2]]), r"^rows: must be a one-dimensional .*, got torch.int64 \(2, 1\) on cpu$"),
        ([0, 1], r"^rows: must be .* tensor .*, got \[0, 1\]$"),
    ],
    ids=["negative", "beyond", "int32", "mask", "matrix", "list"],
)
def test_rows_that_are_no_examples_are_refused(executor: str, rows: Any, said: str) -> None:
    made, x = made_for(executor, network(), vectors()), ff.Packing.of(network()).pack(network())
    with pytest.raises((TypeError, ValueError), match=said):
        made.predict(x, vectors(), rows)
    assert made.predict(x, vectors(), torch.arange(0)).shape == (0, 3)


@every_executor
def test_examples_of_another_form_are_refused(executor: str) -> None:
    made, x = made_for(executor, network(), vectors()), ff.Packing.of(network()).pack(network())
    others = Examples(normal(1, 9, 7), torch.zeros(9, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"^examples: must have the form of the executor's, .*6.*, got .*7"):
        made.predict(x, others, torch.arange(3))


@pytest.mark.skipif(IN_DEVICE_SESSION, reason="device kernels have no batch norm that learns")
@every_executor
def test_predictions_with_running_statistics(executor: str) -> None:
    module = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    made = made_for(executor, module, vectors())
    layout = Statistics.of(module)
    assert layout is not None
    statistics = normal(4, layout.size).abs() + 0.1
    x = ff.Packing.of(module, batch_norm=True).pack(module)
    found = made.predict(x, vectors(), torch.arange(9), statistics)
    wanted = copy.deepcopy(module).eval()
    wanted.load_state_dict({**wanted.state_dict(), **layout.views(statistics)})
    with torch.no_grad():
        torch.testing.assert_close(found, wanted(vectors().batch(torch.arange(9))[0]), rtol=1e-5, atol=1e-5)


@every_executor
def test_a_metric_of_the_hosts_is_asked_client_by_client(executor: str) -> None:
    examples, rows, offsets = vectors(), torch.arange(30, 0, -1), torch.tensor([0, 11, 11, 30])
    made, module = made_for(executor, network(), examples), network()
    asked: list[tuple[Tensor, Tensor]] = []

    def metric(outputs: Tensor, targets: Tensor) -> dict[str, Any]:
        asked.append((outputs, targets))
        return {"right": (outputs.argmax(1) == targets).sum(), "count": len(targets)}

    found = measure(made, ff.Packing.of(module).pack(module), examples, rows, offsets, metric)
    assert [len(targets) for _, targets in asked] == [11, 19]
    for each, span in zip((found[0], found[2]), (rows[:11], rows[11:]), strict=True):
        inputs, targets = examples.batch(span)
        assert each == {"right": float((module(inputs).argmax(1) == targets).sum()), "count": len(span)}
    assert found[1] == {}


# ---- ids of 64 bits -------------------------------------------------------------------------------------------------


@every_executor
def test_ids_of_64_bits(executor: str) -> None:
    """Every bit of an id counts, the rest of the cohort does not, and ids below 2**32 are what they were."""
    module = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.4), nn.Linear(8, 3))

    def deltas(ids: Tensor, **given: Any) -> Tensor:
        return kept(train(module, round_of(module, ids=ids, **given), executor))

    wide = deltas(uint64(*WIDE))
    assert torch.equal(wide, deltas(uint64(*WIDE)))
    for place, changed in enumerate((2**64 - 1 - 2**40, 2**63 + 1, 3)):
        others = deltas(uint64(*WIDE[:place], changed, *WIDE[place + 1 :]))
        same = [bool((others[i] == wide[i]).all()) for i in range(3)]
        assert same == [i != place for i in range(3)]
    small = torch.tensor([2**32 - 1, 0, 9])
    assert torch.equal(deltas(small), deltas(small.to(torch.uint64)))
    words = stream_ids(uint64(*WIDE))
    assert torch.equal(wide, deltas(words))  # what the streams know them by


@pytest.mark.skipif(IN_DEVICE_SESSION, reason="compares executors that run without Triton")
def test_executors_agree_on_wide_ids() -> None:
    work = round_of(network(), ids=uint64(*WIDE))
    eager = kept(train(network(), work, "eager"))
    for executor in ("batched", "native"):
        torch.testing.assert_close(kept(train(network(), work, executor)), eager, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(IN_DEVICE_SESSION, reason="looks at the executors whose errors name clients")
@every_executor
@pytest.mark.parametrize("ids", [torch.tensor([3, 2**40 + 3, 7]), uint64(*WIDE)], ids=["int64", "uint64"])
def test_an_error_names_the_hosts_id(executor: str, ids: Tensor) -> None:
    """Not the word that streams know the client by."""
    work = round_of(network(), ids=ids)
    wrong = int(work.rows[work.offsets[1]])  # of the client at position 1
    examples = vectors()
    engine = make(executor, network(), "cross_entropy", examples)
    examples.targets[wrong] = 7  # type: ignore[index]
    with pytest.raises(RuntimeError, match=rf"\b{ids[1].item()} \(position 1\), .*local step \d+: "):
        engine.run(work)


def test_words_of_ids() -> None:
    many = torch.arange(20_000) * 2**33 + 2**34 + 5  # all of the same low half
    words = stream_ids(many)
    assert words.dtype is torch.int64
    assert 0 <= int(words.min()) <= int(words.max()) < 2**32
    assert len(words.unique()) >= 20_000 - 2  # the chance of a pair is 2**-32: 0.05 pairs of these are expected
    assert abs(float(words.double().mean()) / 2**32 - 0.5) < 0.01
    assert torch.equal(stream_ids(torch.arange(9)), torch.arange(9))
    mixed = stream_ids(torch.tensor([7, 2**40]))
    assert mixed[0] == 7
    assert torch.equal(stream_ids(torch.tensor([2**40])), mixed[1:])


@pytest.mark.parametrize("ids", [torch.tensor([0, -1, 2]), torch.tensor([1, 2, -(2**63)]), torch.zeros(3), uint64()])
def test_bad_ids_are_named(ids: Tensor) -> None:
    with pytest.raises((TypeError, ValueError), match=r"^ids: must"):
        round_of(network(), ids=ids)


# ---- lengths --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epochs", [0.3, 1.0, 1.7, 4.0])
def test_steps_for_epochs_are_those_of_a_simulation(epochs: float) -> None:
    fed = ff.data.dirichlet(ff.data.digits(), clients=30, alpha=0.3, seed=0)
    planned = ff.plan.round.LocalWork(epochs=epochs, batch_size=7)
    wanted = planned.steps_of(torch.arange(30), fed.sizes, epochs, 7)
    assert torch.equal(steps_for(epochs, fed.sizes, 7), wanted)


def test_steps_for_epochs() -> None:
    counts = torch.tensor([0, 1, 10, 11, 25])
    assert steps_for(1.0, counts, 10).tolist() == [0, 1, 1, 2, 3]
    assert steps_for(2.0, counts, 10).tolist() == [0, 2, 2, 4, 6]
    assert steps_for(0.4, counts, 10).tolist() == [0, 1, 1, 1, 1]
    assert steps_for(1.5, counts, 10).tolist() == [0, 2, 2, 3, 5]
    assert steps_for(1e-9, counts, 10).tolist() == [0, 1, 1, 1, 1]
    assert steps_for(torch.tensor([1.0, 2.0, 3.0, 1.0, 0.1]), counts, 10).tolist() == [0, 2, 3, 2, 1]
    for name, given in {"epochs": (-1.0, counts, 10), "batch_size": (1.0, counts, 0)}.items():
        with pytest.raises(ValueError, match=f"^{name}: must"):
            steps_for(*given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("a", torch.tensor([3, 0])), r"^epochs: must be a number, .* got 'a'$"),
        ((None, torch.tensor([3, 0])), r"^epochs: must be a number, .* got None$"),
        ((torch.ones(3), torch.tensor([3, 0])), r"^epochs: must be a number, or one for each of 2, got shape \(3,\)$"),
        ((1.0, [3, 0]), r"^counts: must be a one-dimensional int64 tensor, got \[3, 0\]$"),
        ((1.0, torch.tensor([3.0, 0.5])), r"^counts: must be .*, got torch.float32 \(2,\)$"),
    ],
)
def test_steps_for_says_what_it_takes(given: tuple[Any, Any], said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        steps_for(*given, 2)


def test_a_work_says_what_it_was_given() -> None:
    """The fields that a host reads back."""
    work: RoundWork = round_of(network(), ids=uint64(*WIDE))
    assert work.ids.tolist() == WIDE
