"""What is the user's own in files: data, losses, metrics, algorithms; run, swept, resumed and reported."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import fastfed as ff
from fastfed.app import config, report, runs, sweep
from fastfed.app.config import document
from fastfed.app.config.schema import file_model
from fastfed.app.report import charts
from fastfed.lora import AdaptedLinear

from ..commands.support import fastfed
from .support import MODEL, read_again, tables

MODULE = """
from dataclasses import dataclass

import torch
from torch import nn

import fastfed as ff
from helper import GAMMA


def dealt(clients: int = 6): return ff.data.iid(ff.data.digits(), clients=clients)
def undealt(): return ff.data.digits()
def seven(): return 7


def focal(outputs, targets):
    losses = nn.functional.cross_entropy(outputs, targets, reduction="none")
    return ((1 - (-losses).exp()) ** GAMMA * losses).mean()


def top2(outputs, targets):
    return (outputs.topk(2).indices == targets[:, None]).any(1).double().mean()


def half(state, x, aggregate, lr):
    return {"steps": state.get("steps", torch.zeros(())) + 1}, x + 0.5 * lr * aggregate.delta


@dataclass(frozen=True)
class Trimmed:
    share: float = 0.25

    def reduce(self, deltas, weights):
        k = int(self.share * len(deltas))
        return deltas.sort(0).values[k : len(deltas) - k].mean(0)


@dataclass(frozen=True)
class Prox:
    lr: float
    mu: float = 0.1
    keeps = "zeros"

    def client_init(self, start, round):
        return {"start": start, "h": round.kept, "lr": round.lr}

    def client_step(self, state, params, gradient, step):
        return state, params - state["lr"] * (gradient + self.mu * (params - state["start"]))

    def client_final(self, state, params):
        return {"params": params, "kept": state["h"] + 1}
"""

RUN = {"rounds": 2, "cohort": 4, "weights": "uniform", "loss": "ours:focal", "metrics": ["ours:top2"]}
OWN: dict[str, Any] = {
    "data": {"name": "ours:dealt", "clients": 8},
    "client": {"rule": "ours:Prox", "lr": 0.1, "mu": 0.01},
    "server": {"rule": "ours:half"},
    "aggregation": {"kind": "ours:Trimmed", "share": 0.3},
    "run": RUN,
}


def refused(said: Any, sentence: str) -> None:
    assert said.exit_code == 2
    assert sentence in said.stderr
    assert len(said.stderr.splitlines()) == 1


def accepted(tables: Any) -> None:
    _schema().model_validate(document.without_none(tables))


_schema = cache(file_model)  # it takes a while to make


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "ours.py").write_text(MODULE)
    (tmp_path / "helper.py").write_text("GAMMA = 2\n")
    return tmp_path


def write(home: Path, name: str = "a.toml", **changed: Any) -> Path:
    file = home / name
    file.write_text(document.write(tables(**changed)))
    return file


def test_everything_is_found_beside_the_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = config.load(write(home, **OWN))
    monkeypatch.chdir("/")
    for one in (made, read_again(made)):
        sim = one.simulation()
        row = sim.run(rounds=1, progress=False).rounds[-1]
        assert {"test_accuracy", "test_top2"} <= set(row)
        assert len(sim.fed) == 8
        assert sim.settings.client.mu == 0.01  # type: ignore[union-attr]
        assert sim.settings.aggregation.share == 0.3  # type: ignore[union-attr]
        assert any(name.endswith("steps") and tensor == 1 for name, tensor in sim.tensors().items())  # the server's
        accepted(one.resolved())
    assert read_again(made).resolved() == made.resolved()
    told = made.resolved()
    assert told["client"] == {
        "rule": "ours:Prox",
        "from": str(home),
        "source-digest": told["data"]["source-digest"],
        "lr": 0.1,
        "mu": 0.01,
    }
    assert told["run"]["metrics"] == {"top2": "ours:top2"}
    accepted(tables(**OWN))


def test_data_of_ones_own_may_be_dealt_by_a_partition_and_hold_examples_out(home: Path) -> None:
    data = {"name": "ours:undealt", "partition": "dirichlet", "clients": 5, "alpha": 0.3, "validation": 0.2}
    made = config.load(write(home, data=data))
    fed = made.federation()
    assert len(fed) == 5
    assert fed.validation_rows is not None  # type: ignore[attr-defined]
    assert read_again(made).resolved()["data"]["alpha"] == 0.3
    assert len(config.load(write(home, data="ours:dealt")).federation()) == 6


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"data": "ours:undealt"}, "data.name: ours:undealt gives data without clients; data.partition says how"),
        ({"data": "ours:seven"}, "data.name: ours:seven gives a int, not data of clients (see ff.data)"),
        (
            {"data": {"name": "ours:dealt", "partition": "iid", "clients": 3}},
            "data.name: ours:dealt gives a Federated, and a partition deals an ff.data.Dataset; leave data.",
        ),
        ({"data": {"name": "ours:dealt", "client": 3}}, "data.client: data 'ours:dealt' has no such option (it "),
        ({"server": {"rule": "ours:half", "lr": 1.0}}, "server.lr: ours:half is a step, not a class: it has "),
        ({"client": {"rule": "ours:Prox"}}, "client.lr: client 'ours:Prox' needs it"),
        ({"client": {"rule": "ours:Pox"}}, "client.rule: the module 'ours' ({home}/ours.py) has no function or "),
        ({"run": {**RUN, "loss": "ours:fokal"}}, "run.loss: the module 'ours' ({home}/ours.py) has no function or "),
        ({"run": {**RUN, "metrics": ["ours:top2", "helper:top2"]}}, "run.metrics: two of them have the same name"),
        ({"run": {**RUN, "metrics": "ours:top2"}}, "run.metrics: must be a list of "),
        ({"run": {**RUN, "loss": "mean"}}, 'run.loss: must be "cross_entropy" or "binary_cross_entropy" or "mse"'),
        ({"method": "scaffold", "client": OWN["client"], "server": None}, "client.rule: "),
    ],
)
def test_what_goes_wrong_is_one_sentence(home: Path, changed: Any, sentence: str) -> None:
    said = fastfed("run", write(home, **changed), "--out", home / "out")
    refused(said, sentence.format(home=home))
    assert not (home / "out").exists()


def test_a_run_goes_on_to_the_same_rows_and_not_with_another_source(home: Path) -> None:
    file, whole, parts = write(home, **OWN), home / "whole", home / "parts"
    assert fastfed("run", file, "--set", "run.rounds=4", "--out", whole, "--quiet").exit_code == 0
    for rounds in (2, 4):
        said = fastfed("run", file, "--set", f"run.rounds={rounds}", "--out", parts, "--resume", "--quiet")
        assert said.exit_code == 0, said.output
    assert runs.read(parts).history.column("train_loss") == runs.read(whole).history.column("train_loss")
    assert json.loads((parts / "run.json").read_text())["metrics"] == ["top2"]
    (home / "helper.py").write_text("GAMMA = 3\n")  # it is imported by what the file names
    said = fastfed("run", file, "--set", "run.rounds=5", "--out", parts, "--resume")
    refused(said, f"data.source-digest: the source of what [data] names has changed since {parts} began")
    said = fastfed("run", parts / "config.toml", "--out", home / "other")
    refused(said, "source-digest: ours:")
    assert fastfed("run", file, "--out", home / "new", "--quiet").exit_code == 0
    losses = [runs.read(place).history.column("train_loss")[0] for place in (whole, home / "new")]
    assert losses[0] != losses[1]  # and not what was imported before


def test_a_loss_alone_is_noticed_too(home: Path) -> None:
    file = write(home, run=RUN)
    assert fastfed("run", file, "--out", home / "a", "--quiet").exit_code == 0
    (home / "ours.py").write_text(MODULE + "\n# another\n")
    said = fastfed("run", file, "--set", "run.rounds=3", "--out", home / "a", "--resume")
    refused(said, "run.source-digest: the source of what [run] names has changed since")


def test_a_sweep_over_them_and_its_report(home: Path) -> None:
    file = write(home, **{**OWN, "run": {**RUN, "evaluate_every": 1}})
    planned = sweep.plan(file, ["server.rule=sgd,ours:half"], metric="test_top2")
    assert len(planned.points) == 2
    with pytest.raises(config.ConfigError, match=r"measure 'test_top3'; they measure train_loss, test_loss, test_acc"):
        sweep.plan(file, metric="test_top3")
    out = home / "sweep"
    for point in planned.points:
        runs.execute(planned.configs[point.name], out / point.name, progress=False)
    told = json.loads(fastfed("compare", out, "--metric", "test_top2", "--json").stdout)
    assert all(one["final"]["mean"] > 0 for one in told["runs"])
    entries = report.gather([out])
    drawn = [chart.id for chart in charts.progress(report.group(entries), "test_accuracy")]
    assert "test_top2_by_round" in drawn


def test_a_base_and_what_the_command_line_sets(home: Path) -> None:
    write(home, "base.toml", **OWN)
    above = home / "above"
    above.mkdir()
    (above / "top.toml").write_text('base = "../base.toml"\n\n[server]\nrule = "sgd"\n\n[run]\nrounds = 3\n')
    made = config.load(above / "top.toml")
    assert made.resolved()["client"]["from"] == str(home)
    assert "from" not in made.resolved()["server"]
    assert made.resolved()["run"]["loss"] == "ours:focal"
    assert config.load(write(home), ["run.loss=ours:focal"]).resolved()["run"]["from"] == str(home)


# ---- weights and adapters -------------------------------------------------------------------------------------------


def test_adapters_on_weights_of_a_file(home: Path) -> None:
    torch.manual_seed(3)
    whole = ff.models.mlp(64, 8, 10)
    save_file(whole.state_dict(), home / "whole.safetensors")
    torch.save({"state_dict": whole.state_dict(), "epoch": 3}, home / "whole.pt")
    for weights in ("whole.safetensors", "whole.pt"):
        model = {**MODEL, "weights": weights, "lora": {"rank": 2, "alpha": 4.0}}
        made = config.load(write(home, model=model))
        module = made.make_model()
        adapted = [layer for layer in module.modules() if isinstance(layer, AdaptedLinear)]
        assert [layer.scale for layer in adapted] == [2.0, 2.0]
        assert torch.equal(adapted[0].base.weight, next(whole.parameters()))
        assert made.resolved()["model"]["lora"] == {"rank": 2, "alpha": 4.0, "targets": None, "trained": []}
        assert made.resolved()["model"]["weights"] == str(home / weights)
        accepted(made.resolved())
        assert read_again(made).resolved() == made.resolved()
    file = home / "a.toml"
    for rounds in (1, 2):
        said = fastfed("run", file, "--set", f"run.rounds={rounds}", "--out", home / "out", "--resume", "--quiet")
        assert said.exit_code == 0, said.output
    sim = ff.Simulation.resume(home / "out" / "checkpoint", model=made.make_model(), fed=made.federation())
    trained = [layer for layer in sim.trained_model().modules() if isinstance(layer, AdaptedLinear)]
    assert torch.equal(trained[0].base.weight, next(whole.parameters()))
    assert trained[0].up.abs().sum() > 0
    assert sim.packing.parameters == 2 * (64 + 8 + 8 + 10)


def test_a_layer_that_is_trained_as_a_whole_may_be_new(home: Path) -> None:
    torch.save(ff.models.mlp(64, 8, 4).state_dict(), home / "four.pt")
    names = [name for name, _ in ff.models.mlp(64, 8, 10).named_modules() if name]
    head = names[-1]
    model = {**MODEL, "weights": "four.pt", "lora": {"rank": 1, "trained": [head.rpartition(".")[2]]}}
    module = config.load(write(home, model=model)).make_model()
    assert sum(p.numel() for p in module.parameters() if p.requires_grad) == 64 + 8 + 8 * 10 + 10


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ({"weights": "nowhere.pt"}, "model.weights: {home}/nowhere.pt: no such file"),
        ({"weights": "four.pt"}, "model.weights: {home}/four.pt has "),
        ({"weights": "text.pt"}, "model.weights: {home}/text.pt holds no weights that can be read"),
        ({"weights": 3}, "model.weights: must be a file, .safetensors or .pt, got 3"),
        ({"lora": {"alpha": 1.0}}, "model.lora.rank: [model.lora] needs it, a whole number"),
        ({"lora": {"rank": 0}}, "model.lora.rank: must be >= 1, got 0"),
        ({"lora": {"rank": 1, "targets": ["hed"]}}, "model.lora.targets: no layer's name ends with 'hed'"),
        ({"lora": {"rank": 1, "beta": 1}}, "model.lora.beta: [model.lora] has no such option (it takes rank, alpha, t"),
    ],
)
def test_weights_and_adapters_that_will_not_do(home: Path, model: Any, sentence: str) -> None:
    torch.save(ff.models.mlp(64, 8, 4).state_dict(), home / "four.pt")
    (home / "text.pt").write_text("weights")
    said = fastfed("run", write(home, model={**MODEL, **model}), "--out", home / "out")
    refused(said, sentence.format(home=home))
