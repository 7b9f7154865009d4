"""What does not fit is refused with a sentence, and nothing is changed."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch
from torch import nn

import fastfed as ff

from .support import give, go_on, gradients, parameters, same_bits, snapshot


@pytest.mark.parametrize(
    ("made", "options", "words"),
    [
        (ff.optim.FedAdam, {"lr": -1.0}, "lr: must be a finite number >= 0, got -1.0"),
        (ff.optim.FedAdam, {"lr": 0.1, "beta1": 1.0}, "beta1: must be a number in [0, 1), got 1.0"),
        (ff.optim.FedAdam, {"lr": 0.1, "eps": 1e-8}, "eps: must be one of 'authors', 'torch', got 1e-08"),
        (ff.optim.FedAdam, {"lr": 0.1, "v0": -1.0}, "v0: must be a finite number >= 0, got -1.0"),
        (ff.optim.FedAdam, {"lr": 0.1, "second_moment_of": "g"}, "second_moment_of: must be one of"),
        (ff.optim.FedAMS, {"lr": 0.1, "weight_decay": -0.1}, "weight_decay: must be a finite number >= 0, got -0.1"),
        (ff.optim.FedAvg, {"maximize": 1}, "maximize: must be True or False, got 1"),
        (ff.optim.FedAdagrad, {"lr": 0.1, "tau": 0.0}, "tau: must be a finite number > 0, got 0.0"),
        (ff.optim.SM3, {"lr": 0.1, "eps": 0.0}, "eps: must be > 0 unless root_eps is, got 0"),
        (ff.optim.SM3Adam, {"lr": 0.1, "cover": "III"}, "form: must be 'adagrad' or 'adam' and cover 'II' or 'I'"),
        (ff.optim.DeltaSGD, {"lr": 0.0}, "lr: must be a finite number > 0, got 0.0"),
        (ff.optim.SPS, {"c": 0.0}, "c: must be a finite number > 0, got 0.0"),
        (ff.optim.FedAdam, {"lr": [0.1]}, "lr: must be a finite number >= 0, got [0.1]"),
    ],
)
def test_options(made: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        made(parameters(), **options)


@pytest.mark.parametrize("option", ["foreach", "fused", "capturable", "differentiable", "nesterov", "prox"])
def test_options_of_others(option: str) -> None:
    with pytest.raises(TypeError, match=option):
        ff.optim.FedAdam(parameters(), lr=0.1, **{option: True})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="maximize"):
        ff.optim.SPS(parameters(), maximize=True)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("dtype", "why"),
    [(torch.complex64, "no order"), (torch.float16, "autocast"), (torch.bfloat16, "autocast")],
)
def test_dtypes(dtype: torch.dtype, why: str) -> None:
    params = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, dtype=dtype))]
    with pytest.raises(
        TypeError, match=rf"params\[1\]: SM3 steps float32 and float64 parameters, got {dtype}; .*{why}"
    ):
        ff.optim.SM3(params, lr=0.1)


def test_a_group_that_does_not_fit_is_not_added() -> None:
    params = parameters()
    optimizer = ff.optim.FedAdam(params[:2], lr=0.1)
    with pytest.raises(ValueError, match="beta2: must be"):
        optimizer.add_param_group({"params": params[2:], "beta2": 2.0})
    assert len(optimizer.param_groups) == 1
    optimizer.add_param_group({"params": params[2:], "beta2": 0.5})


def test_sparse_gradients() -> None:
    params = [nn.Parameter(torch.ones(3, 2)), nn.Parameter(torch.ones(3, 2))]
    optimizer = ff.optim.FedYogi(params, lr=0.1)
    params[0].grad = torch.ones(3, 2)
    params[1].grad = torch.ones(3, 2).to_sparse()
    with pytest.raises(TypeError, match=r"grad: FedYogi steps along dense gradients, got torch\.sparse_coo"):
        optimizer.step()
    assert torch.equal(params[0], torch.ones(3, 2))
    assert not optimizer.state[params[0]]


def test_an_option_that_is_spoilt_later() -> None:
    params = parameters()
    optimizer = ff.optim.FedYogi(params, lr=0.1)
    go_on(optimizer, params, range(1))
    before = snapshot(optimizer)
    optimizer.param_groups[0]["lr"] = float("nan")
    give(params, gradients(1))
    with pytest.raises(ValueError, match="lr: must be a finite number >= 0, got nan"):
        optimizer.step()
    assert same_bits(before, snapshot(optimizer))


@pytest.mark.parametrize("made", [ff.optim.FedAdagrad, ff.optim.SM3])
def test_a_first_moment_cannot_begin_later(made: Any) -> None:
    params = parameters()
    optimizer = made(params, lr=0.1)
    go_on(optimizer, params, range(1))
    optimizer.param_groups[0]["beta1"] = 0.5
    give(params, gradients(1))
    with pytest.raises(ValueError, match=r"beta1: is 0\.5, but"):
        optimizer.step()


@pytest.mark.parametrize("made", [ff.optim.FedAdagrad, ff.optim.SM3, ff.optim.DeltaSGD])
@pytest.mark.parametrize("begun", [1, 2], ids=["the first group begins", "all groups have begun"])
def test_what_is_refused_in_a_later_group_leaves_all_groups(made: Any, begun: int) -> None:
    params = parameters()
    optimizer = made([{"params": params[:1]}, {"params": params[1:]}], lr=0.1)
    give(params, gradients(0))
    if begun == 1:
        params[0].grad = None
    optimizer.step()
    optimizer.param_groups[1].update({"lr": 0.2} if made is ff.optim.DeltaSGD else {"beta1": 0.5})
    before, groups = snapshot(optimizer), copy.deepcopy(optimizer.state_dict()["param_groups"])
    give(params, gradients(1))
    with pytest.raises(ValueError, match=r"^(beta1|lr): is "):
        optimizer.step()
    assert same_bits(before, snapshot(optimizer))
    assert optimizer.state_dict()["param_groups"] == groups
    assert not (begun == 1 and optimizer.state[params[0]])


def test_sps_needs_one_loss() -> None:
    params = parameters()
    optimizer = ff.optim.SPS(params)
    give(params, gradients(0))
    with pytest.raises(ValueError, match="neither was given"):
        optimizer.step()
    with pytest.raises(ValueError, match="both were given"):
        optimizer.step(lambda: torch.ones(()), loss=1.0)
    with pytest.raises(ValueError, match="loss: must be one number"):
        optimizer.step(loss=torch.ones(2))
    with pytest.raises(ValueError, match="loss: must be one number"):
        optimizer.step(lambda: None)


def test_schedulers_of_step_sizes_that_are_found() -> None:
    params = parameters()
    optimizer = ff.optim.DeltaSGD(params, lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    go_on(optimizer, params, range(1))
    before = snapshot(optimizer)
    scheduler.step()
    give(params, gradients(1))
    with pytest.raises(ValueError, match=r"lr: is that of DeltaSGD's first step, 0\.1"):
        optimizer.step()
    assert same_bits(before, snapshot(optimizer))
    with pytest.raises(KeyError, match="lr"):
        torch.optim.lr_scheduler.ExponentialLR(ff.optim.SPS(params), 0.5)
