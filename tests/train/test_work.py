"""A round's work: bad input is refused, and the error names the argument."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fastfed.clients import SGD, SPS, Adam
from fastfed.train import Contrast, DeltaPolicy, RoundWork

from .support import network, round_of

D = 8


def int64(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


BAD: dict[str, list[Any]] = {  # for three clients with 9, 4 and 6 examples
    "start": [
        *(None, torch.zeros(D, dtype=torch.int64), torch.zeros(D).half(), torch.zeros(1, 1, D), torch.zeros(0)),
        *(torch.zeros(D, requires_grad=True), torch.zeros(D, 2)[:, 0]),
    ],
    "rows": [None, torch.arange(19).int(), torch.arange(19)[None], -torch.arange(19)],
    "offsets": [[0, 9, 13, 19], int64(0, 9, 19), int64(1, 9, 13, 19), int64(0, 13, 9, 19), int64(0, 9, 13, 18)],
    "ids": [None, [1, 2, 3], int64(), torch.arange(3).int(), int64(1, -1, 2)],
    "steps": [4, int64(1, 2), int64(1, -1, 2), torch.ones(3)],
    "batch_size": [0, -1, 2.0, True, None],
    "optimizers": [(), SGD(lr=1.0), [SGD(lr=1.0)], ("sgd",)],
    "seed": [-1, 1 << 64, 0.5, None],
    "round": [-1, 1 << 32, True],
    "start_index": [int64(0, 0), int64(0, 1, 0), torch.zeros(3), 0],
    "optimizer_index": [int64(0, 0), int64(0, 1, 0), int64(0, -1, 0)],
    "lr": [0.1, torch.ones(3), torch.ones(2).double(), -torch.ones(3).double(), torch.full((3,), torch.nan).double()],
    "seen": [int64(1, 2), int64(1, -2, 3), torch.ones(3)],
    "corrections": [torch.zeros(D), torch.zeros(2, D), torch.zeros(3, D).double(), torch.zeros(D, 3).T, 0.1],
    "preconditioner": [torch.zeros(D + 1), torch.zeros(D).double(), torch.zeros(D, 2)[:, 0], 0.1],
    "policy": [None, "examples"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_bad_arguments_are_named(name: str, value: Any) -> None:
    given: dict[str, Any] = {"start": torch.zeros(D), "optimizers": (Adam(lr=0.1),), name: value}
    with pytest.raises((ValueError, TypeError), match=f"^{name}: "):
        round_of(given.pop("start"), **given) if name != "start" else _with_start(value)


def _with_start(start: Any) -> RoundWork:
    good = round_of(torch.zeros(D))
    fields = {name: getattr(good, name) for name in ("rows", "offsets", "ids", "steps", "batch_size", "optimizers")}
    return RoundWork(start=start, **fields)


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("weights", {"weights": "equal"}),
        ("weights", {"weights": torch.ones(2)}),
        ("weights", {"weights": torch.tensor([1.0, torch.inf, 0.0])}),
        ("weights", {"weights": int64(1, 2, 3)}),
        ("clip", {"clip": 0.0}),
        ("clip", {"clip": -1.0}),
        ("clip", {"clip": torch.inf}),
        ("clip", {"clip": torch.nan}),
        ("clip", {"clip": "1"}),
    ],
)
def test_bad_policies_are_named(name: str, policy: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError), match=f"^{name}: "):
        round_of(torch.zeros(D), policy=DeltaPolicy(**policy))


def test_several_start_models_need_a_choice() -> None:
    with pytest.raises(ValueError, match=r"^start_index: must choose one of the 2"):
        round_of(torch.zeros(2, D))


def test_a_preconditioner_needs_a_second_moment() -> None:
    v = torch.ones(D)
    with pytest.raises(ValueError, match=r"^preconditioner: no second moment .* 'sgd'"):
        round_of(torch.zeros(D), optimizers=(SGD(lr=0.1),), preconditioner=v)
    round_of(torch.zeros(D), optimizers=(SGD(lr=0.1), Adam(lr=0.1)), preconditioner=v)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("corrections", torch.zeros(3, D, device="meta")),
        ("preconditioner", torch.zeros(D, device="meta")),
        ("contrast", Contrast(1.0, 0.5, None, torch.zeros(3, D, device="meta"))),
    ],
)
def test_vectors_are_on_the_device_of_the_start_models(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{name}: .*must be on cpu like start, got .* on meta"):
        round_of(torch.zeros(D), optimizers=(Adam(lr=0.1),), **{name: value})


def test_learning_rates_are_refused_where_the_rule_finds_its_own() -> None:
    with pytest.raises(ValueError, match=r"^lr: client rule 'sps'"):
        round_of(torch.zeros(D), optimizers=(SPS(),), lr=torch.ones(3).double())


def test_lookups() -> None:
    work = round_of(
        normal_models := torch.arange(2.0 * D).view(2, D),
        start_index=int64(1, 0, 1),
        optimizers=(SGD(lr=0.1), Adam(lr=0.1)),
        optimizer_index=int64(0, 1, 1),
    )
    assert len(work) == 3
    assert work.counts.tolist() == [9, 4, 6]
    assert torch.equal(work.start_of(0), normal_models[1])
    assert torch.equal(work.starts_of(int64(2, 1)), normal_models[[1, 0]])
    assert [work.optimizer_of(i).rule for i in range(3)] == ["sgd", "adam", "adam"]
    alone = round_of(network())
    assert torch.equal(alone.starts_of(int64(0, 2)), torch.stack([alone.start, alone.start]))
