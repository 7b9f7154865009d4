"""`batched`: chunks, padding, and what it refuses. That it computes the right thing stands in test_agreement.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fastfed import clients
from fastfed.data import Examples
from fastfed.data.resident import Resident
from fastfed.train import Contrast, DeltaPolicy, Outcome, RoundWork, batched, policy
from fastfed.train.batched import Batched
from fastfed.train.policy import DeltaSum
from fastfed.train.trial import DropoutShape, try_forward
from fastfed.train.work import SCALARS

from .agreement import (
    CASES,
    RULES,
    STEPS,
    TASKS,
    Case,
    assert_agrees,
    examples_of,
    kept,
    module_of,
    reference,
    run,
    work_of,
)
from .support import network, round_of, vectors

# ---- chunks ---------------------------------------------------------------------------------------------------------

RICH = [case for case in CASES if len(case.asks) >= 4]


@pytest.mark.parametrize("case", RICH, ids=lambda case: case.id)
def test_the_chunk_size_changes_nothing_but_rounding(case: Case) -> None:
    executor = Batched(module_of(case.task), TASKS[case.task].loss, examples_of(case.task), memory=1)
    assert_agrees(case, executor.run(work_of(case, torch.float32)))


def clients_at_once(memory: int, work: RoundWork) -> int:
    executor = Batched(network(), "cross_entropy", vectors(), memory=memory)
    return executor._clients_at_once(work, work.optimizers[0], torch.arange(3), executor.resident)


def test_chunks_fit_the_memory() -> None:
    work = round_of(network())
    assert clients_at_once(1, work) == 1
    few = clients_at_once(1 << 20, work)
    assert few == pytest.approx(clients_at_once(1 << 24, work) / 16, rel=0.1)
    for greedy in (
        round_of(network(), optimizers=(clients.Adam(lr=0.1),)),
        round_of(network(), measure_cosine=True),
        round_of(network(), batch_size=9),
        round_of(network(), corrections=torch.zeros(3, work.start.numel())),
        round_of(network(), contrast=Contrast(1.0, 0.5, None, torch.zeros(3, work.start.numel()))),
    ):
        assert clients_at_once(1 << 20, greedy) < few
    assert clients_at_once(1 << 20, round_of(network(), batch_size=10**9)) == clients_at_once(
        1 << 20, round_of(network(), batch_size=9)
    )  # no client fills a larger batch


def test_chunks_are_powers_of_two_and_nobody_is_alone() -> None:
    def lengths(clients: int, fit: int) -> list[int]:
        chunks = batched._chunks(torch.arange(clients), fit)
        assert torch.cat(list(chunks)).tolist() == list(range(clients))
        return [len(chunk) for chunk in chunks]

    assert lengths(70, 33) == lengths(70, 63) == [32, 32, 6]
    assert lengths(65, 40) == [32, 33]
    assert lengths(5, 2) == [2, 3]
    assert lengths(3, 1) == [1, 1, 1]
    assert lengths(1, 1) == lengths(1, 100) == [1]
    assert lengths(70, 70) == [64, 6]
    assert lengths(70, 10**12) == [70]


def test_half_of_what_is_free_on_the_card_is_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Batched(network(), "cross_entropy", vectors()).memory == 1 << 30
    monkeypatch.setattr(batched, "free_memory", lambda device: 1001)
    assert Batched(network(), "cross_entropy", vectors()).memory == 500
    assert Batched(network(), "cross_entropy", vectors(), memory=7).memory == 7


def test_double_precision() -> None:
    case = next(case for case in CASES if case.task == "dropout")
    made = run(case, "batched", torch.float64)
    torch.testing.assert_close(made.delta, reference(case, torch.float64).delta, rtol=1e-10, atol=1e-12)


# ---- the same bits --------------------------------------------------------------------------------------------------


def bits_of(outcome: Outcome) -> dict[str, Tensor]:
    """Everything in it, as whole numbers."""
    made = {"delta": outcome.delta, "deltas": kept(outcome), **outcome.scalars}
    return {"refused": outcome.refused, **{name: t.contiguous().view(torch.uint8) for name, t in made.items()}}


def assert_same_bits(one: Outcome, other: Outcome) -> None:
    first, second = bits_of(one), bits_of(other)
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_portions_do_not_change_the_sum(case: Case) -> None:
    """The deltas of a round, one of them spoiled, in portions of one, of three, and all at once."""
    work, steps = work_of(case, torch.float32), torch.tensor(STEPS)
    deltas = kept(reference(case, torch.float32)).clone()
    deltas[2, 1] = torch.nan
    order = torch.tensor([5, 2, 0, 4, 6, 3, 1])
    sums = []
    for size in (1, 3, 7):
        total = DeltaSum(work, steps)
        for portion in order.split(size):
            total.add(portion, deltas[portion])
        sums.append(total.outcome({}))
    assert sums[0].refused.tolist() == [False, False, True, False, False, False, False]
    assert float(sums[0].delta.norm()) > 0
    for other in sums[1:]:
        assert_same_bits(sums[0], other)


def many(task: str, rules: tuple[str, ...]) -> RoundWork:
    """A round of 70 clients of any size, some of which take no step; those that take only one have short batches."""
    start = work_of(Case(task, ("sgd",)), torch.float32).start
    steps = torch.arange(70) % 4
    sizes = [(7 * i) % (24 if i % 4 > 1 else 6) for i in range(70)]
    return round_of(
        start,
        sizes,
        rows=torch.arange(sum(sizes)) % len(examples_of(task)),
        steps=steps,
        batch_size=20,
        optimizers=tuple(RULES[rule] for rule in rules),
        optimizer_index=torch.arange(70) % len(rules),
        measure_cosine=True,
    )


def run_in_chunks(task: str, work: RoundWork, fit: int, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    monkeypatch.setattr(Batched, "_clients_at_once", lambda *given: fit)
    return Batched(module_of(task), TASKS[task].loss, examples_of(task)).run(work)


@pytest.mark.parametrize("task", TASKS)
def test_chunks_of_32_have_the_bits_of_the_whole_round(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    work = many(task, ("sgd",))
    whole = run_in_chunks(task, work, 1000, monkeypatch)
    assert_same_bits(whole, run_in_chunks(task, work, 32, monkeypatch))


def test_chunks_of_several_optimizers_have_the_bits_of_the_whole_round(monkeypatch: pytest.MonkeyPatch) -> None:
    work = many("mlp", ("adam", "delta-sgd same batch corrected"))
    work = replace(work, optimizer_index=(torch.arange(70) % 8 == 0).long(), policy=DeltaPolicy("uniform", 0.02, True))
    whole = run_in_chunks("mlp", work, 1000, monkeypatch)
    assert_same_bits(whole, run_in_chunks("mlp", work, 32, monkeypatch))


def by_turns(cases: Sequence[Case]) -> list[Any]:
    """Every second of them; the others in `make device-proof`."""
    return [pytest.param(one, id=one.id, marks=pytest.mark.exhaustive if n % 2 else ()) for n, one in enumerate(cases)]


# ---- devices --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", by_turns(CASES[::8] + RICH))
def test_nothing_waits_for_the_device(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """On torch's device "meta", which computes nothing, every look at a number is an error; only the numbers of the
    round are fetched, once. What a small forward pass tells of the module is found out before, on the CPU."""
    fetched = []

    def zeros(numbers: Tensor) -> Tensor:
        fetched.append(tuple(numbers.shape))
        return torch.zeros(numbers.shape, dtype=numbers.dtype)

    monkeypatch.setattr(policy, "fetch", zeros)
    examples, work = examples_of(case.task), work_of(case, torch.float32)
    on_cpu, on_meta = (
        Batched(module_of(case.task), TASKS[case.task].loss, examples, device=device) for device in ("cpu", "meta")
    )
    on_meta.model._trials[torch.float32] = on_cpu.model.trial(work, examples)
    if work.contrast is not None:
        on_meta.model.model._heads[None] = on_cpu.model.model.head(None, examples)
    made = on_meta.run(work)
    assert fetched == [(1 + len(SCALARS), len(work))]  # and the norms
    assert made.delta.is_meta
    assert kept(made).is_meta


def test_it_says_where_the_examples_are() -> None:
    assert Batched(network(), "cross_entropy", vectors()).why == Batched.why
    elsewhere = Batched(network(), "cross_entropy", vectors(), device="meta")
    assert elsewhere.why == f"{Batched.why}; examples (1.1 KiB) were copied to meta once"


@pytest.mark.parametrize("case", RICH, ids=lambda case: case.id)
def test_streamed_examples_change_nothing(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = run(case, "batched")
    monkeypatch.setattr(batched, "resident", lambda examples, device: Resident(examples, device, 0))
    streaming = Batched(module_of(case.task), TASKS[case.task].loss, examples_of(case.task))
    assert streaming.resident.streamed
    assert_same_bits(wanted, streaming.run(work_of(case, torch.float32)))


def test_examples_of_a_round_are_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that a work brings along, to a device; they may be others than the executor's."""
    monkeypatch.setattr(batched, "passing", lambda examples, device: Resident(examples, device, 0))
    own = vectors(60)
    work = round_of(network(), examples=own)
    shown = Examples(own.inputs[:4], own.targets[:4])  # type: ignore[index]
    made = Batched(network(), "cross_entropy", shown).run(work)
    assert_same_bits(made, Batched(network(), "cross_entropy", own).run(replace(work, examples=None)))


def test_streamed_examples_take_memory() -> None:
    executor = Batched(network(), "cross_entropy", vectors(), memory=1 << 20)
    work = round_of(network())
    few, fewer = (
        executor._clients_at_once(work, work.optimizers[0], torch.arange(3), store)
        for store in (executor.resident, Resident(vectors(), "cpu", 0))
    )
    assert fewer < few


# ---- refusals -------------------------------------------------------------------------------------------------------


def test_a_loss_of_ones_own_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^loss: must be one of"):
        Batched(network(), lambda outputs, targets: outputs.sum(), vectors())


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x.view(-1, 2, 3))[0][:, -1]


class Branching(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if bool(self.bias.sum() > 0) else -x)


@pytest.mark.parametrize("module", [Recurrent(), Branching(6, 3)], ids=["lstm", "branching"])
def test_what_vmap_cannot_run_is_refused_with_the_cause(module: nn.Module) -> None:
    with pytest.raises(ValueError, match=r"^module: torch.func.vmap, .*cannot run it \(.+\); use") as raised:
        Batched(module, "cross_entropy", vectors()).run(round_of(module))
    assert raised.value.__cause__ is not None


def test_batch_statistics_are_refused() -> None:
    module = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3, track_running_stats=False))
    with pytest.raises(ValueError, match="depend on the rest of its batch"):
        Batched(module, "cross_entropy", vectors()).run(round_of(module))


class TimeMajor(nn.Module):
    """Dropout over (time, batch) merged into one axis: padding would not come last."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(3, 3), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        steps = x.view(-1, 2, 3).transpose(0, 1)
        return self.dropout(self.linear(steps).reshape(-1, 3)).view(2, -1, 3).transpose(0, 1).sum(dim=1)


def test_dropout_beside_the_batch_axis_is_refused() -> None:
    with pytest.raises(ValueError, match="first axis of a tensor with dropout is not the batch"):
        Batched(TimeMajor(), "cross_entropy", vectors()).run(round_of(TimeMajor()))


@pytest.mark.parametrize(("name", "value"), [("memory", 0), ("memory", 1.5), ("memory", True), ("threads", 2)])
def test_bad_arguments(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{name}: "):
        Batched(network(), "cross_entropy", vectors(), **{name: value})


def test_an_error_names_clients_and_step() -> None:
    examples = Examples(vectors().inputs, torch.where(torch.arange(40) == 12, 7, vectors().targets))  # type: ignore
    with pytest.raises(RuntimeError, match=r"^client 3 \(position 0\), 10 \(position 1\), .*local step 1: "):
        Batched(network(), "cross_entropy", examples).run(round_of(network()))


# ---- trials ---------------------------------------------------------------------------------------------------------


def test_a_trial_finds_dropouts_and_memory() -> None:
    weight = torch.ones(4, 5, requires_grad=True)

    def forward(n: int) -> Tensor:
        x = torch.nn.functional.dropout(torch.ones(n, 4) @ weight, 0.5).repeat_interleave(3, dim=0)
        return torch.nn.functional.dropout(x * x, 0.5).view(n, 15) * torch.nn.functional.dropout(weight, 0.5).sum()

    trial = try_forward(forward)
    assert [shape.at(7) for shape in trial.dropouts] == [(7, 5), (21, 5), (4, 5)]
    assert trial.dropouts[1] == DropoutShape((6, 5), 3)
    assert trial.example_bytes > 15 * 4
    assert trial.bytes_of(10) == trial.fixed_bytes + 10 * trial.example_bytes
