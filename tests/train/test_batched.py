"""`batched`: chunks, padding, and what it refuses. That it computes the right thing stands in test_agreement.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fastfed import clients
from fastfed.data import Examples
from fastfed.train import Contrast, RoundWork
from fastfed.train.batched import Batched
from fastfed.train.trial import DropoutShape, try_forward

from .agreement import CASES, TASKS, Case, assert_agrees, examples_of, module_of, reference, run, work_of
from .support import network, round_of, vectors

# ---- chunks ---------------------------------------------------------------------------------------------------------

RICH = [case for case in CASES if len(case.asks) >= 4]


@pytest.mark.parametrize("case", RICH, ids=lambda case: case.id)
def test_the_chunk_size_changes_nothing_but_rounding(case: Case) -> None:
    executor = Batched(module_of(case.task), TASKS[case.task].loss, examples_of(case.task), memory=1)
    assert_agrees(case, executor.run(work_of(case, torch.float32)))


def clients_at_once(memory: int, work: RoundWork) -> int:
    executor = Batched(network(), "cross_entropy", vectors(), memory=memory)
    return executor._clients_at_once(work, work.clients[0], torch.arange(3))


def test_chunks_fit_the_memory() -> None:
    work = round_of(network())
    assert clients_at_once(1, work) == 1
    few = clients_at_once(1 << 20, work)
    assert few == pytest.approx(clients_at_once(1 << 24, work) / 16, rel=0.1)
    for greedy in (
        round_of(network(), clients=(clients.Adam(lr=0.1),)),
        round_of(network(), measure_cosine=True),
        round_of(network(), batch_size=9),
        round_of(network(), corrections=torch.zeros(3, work.start.numel())),
        round_of(network(), contrast=Contrast(1.0, 0.5, None, torch.zeros(3, work.start.numel()))),
    ):
        assert clients_at_once(1 << 20, greedy) < few
    assert clients_at_once(1 << 20, round_of(network(), batch_size=10**9)) == clients_at_once(
        1 << 20, round_of(network(), batch_size=9)
    )  # no client fills a larger batch


def test_double_precision() -> None:
    case = next(case for case in CASES if case.task == "dropout")
    made = run(case, "batched", torch.float64)
    torch.testing.assert_close(made.delta, reference(case, torch.float64).delta, rtol=1e-10, atol=1e-12)


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
