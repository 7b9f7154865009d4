"""The benchmark of optimizers: torch's operations on lists do what ours do, the tensors are those of the networks."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import fastfed as ff
from fastfed.bench import optim as bench
from fastfed.bench.peers import foreach

SHAPES = [(6, 3, 3, 3), (6,), (4, 6)]
LR = 1e-3


@pytest.mark.parametrize(
    ("ours", "peer"),
    [
        (partial(ff.optim.FedYogi, lr=LR), foreach.yogi),
        (partial(ff.optim.DeltaSGD, lr=LR), foreach.delta_sgd),
        (partial(ff.optim.SPS, lr_max=LR), foreach.sps),
        (partial(ff.optim.SM3, lr=LR), foreach.sm3),
        (partial(ff.optim.SM3I, lr=LR), partial(foreach.sm3, form="I")),
        (partial(ff.optim.SM3Adam, lr=LR, bias_correction=False), partial(foreach.sm3, adam=True)),
    ],
)
def test_peers_do_the_same(ours: Any, peer: Any) -> None:
    start, grads = ([torch.randn(shape) for shape in SHAPES] for _ in range(2))
    params = [nn.Parameter(each.clone()) for each in start]
    own = [each.clone() for each in start]
    for p, g in zip(params, grads, strict=True):
        p.grad = g
    optimizer, step = ours(params), peer(own, grads)
    for _ in range(4):
        optimizer.step(**({"loss": 3.0} if isinstance(optimizer, ff.optim.SPS) else {}))
        step()
        for g in grads:
            g.add_(torch.randn_like(g), alpha=0.1)
    for mine, p, begun in zip(own, params, start, strict=True):
        torch.testing.assert_close(mine, p.detach(), rtol=1e-4, atol=1e-6)
        assert not torch.equal(mine, begun)


def test_the_networks_tensors() -> None:
    sizes = {name: (len(shapes), sum(map(math.prod, shapes))) for name, shapes in bench.MODELS.items()}
    assert sizes == {"resnet32": (101, 466_906), "resnet34": (110, 21_797_672)}


@pytest.mark.exhaustive
def test_the_command_says_what_it_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bench.MODELS, "resnet32", SHAPES)
    command = ["--model", "resnet32", "--turns", "2", "--json", str(tmp_path / "rows.json")]
    said = CliRunner().invoke(bench.app, command)
    assert said.exit_code == 0, said.output
    rows = json.loads((tmp_path / "rows.json").read_text())
    contenders = {(row["optimizer"], row["contender"]) for row in rows}
    assert {row["optimizer"] for row in rows} == set(ff.optim.__all__) - {"Descent"}
    assert ("FedAMS", "torch fused") in contenders
    assert ("SM3", "torch foreach") in contenders
    assert all(0 < row["p20"] <= row["seconds"] <= row["p80"] for row in rows)


def test_bars_that_are_missed_are_told() -> None:
    def row(optimizer: str, contender: str, seconds: float) -> bench.OptimRow:
        return bench.OptimRow("m", 1, 1, optimizer, contender, seconds, seconds, seconds, 1, 1, "a machine")

    rows = [row("FedAdam", "ff.optim", 2.0), row("FedAdam", "torch fused", 1.0), row("FedAdam", "torch foreach", 9.0)]
    rows += [row("SM3", "ff.optim", 1.0), row("SM3", "torch foreach", 6.0)]
    assert bench.missed(rows) == ["FedAdam is 0.50x torch fused; the bar is 1x."]


@pytest.mark.parametrize("wrong", [["--model", "vgg"], ["--optimizers", "FedAdam,Lion"]])
def test_what_is_not_there_is_refused(wrong: list[str]) -> None:
    said = CliRunner().invoke(bench.app, wrong)
    assert said.exit_code == 2
    assert "must be of" in said.output
