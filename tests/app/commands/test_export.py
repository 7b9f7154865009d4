"""`fastfed export`: a run's model as a file that torch reads alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import fastfed as ff
from fastfed.app import runs
from fastfed.saved import checkpoint, export

from .support import assert_refused, fastfed, small_file

OWN = """
from torch import nn

def net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert fastfed("run", small_file(tmp_path), "--quiet", "--out", "runs/a").exit_code == 0
    return Path("runs/a")


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors"])
def test_the_file_is_a_state_dict_of_the_model_at_the_end(run: Path, name: str) -> None:
    said = fastfed("export", run, "--to", name)
    assert said.exit_code == 0, said.output
    assert said.stdout.startswith(f"Model: {Path(name).resolve()}, of runs/a/checkpoint/round-00000004.safetensors")
    state = torch.load(name, weights_only=True) if name.endswith(".pt") else load_file(name)
    model = ff.models.mlp(64, 8, 10)
    model.load_state_dict(state)
    sim = ff.Simulation.resume(run)
    assert torch.equal(sim.packing.pack(model), sim.params)
    assert sim.round == 4


def test_a_round_is_chosen_by_its_number_or_as_the_best(run: Path) -> None:
    history = runs.read(run).history
    measured = {row["round"]: row["test_accuracy"] for row in history if "test_accuracy" in row}
    assert sorted(measured) == [2, 4]
    for options, number in ((("--round", "2"), 2), (("--best",), max(measured, key=lambda r: measured[r]))):
        said = fastfed("export", run, "--to", "model.pt", "--force", *options)
        assert f"round-0000000{number}" in said.stdout
        state = torch.load("model.pt", weights_only=True)
        found = export.trained_model(run / "checkpoint" / f"round-0000000{number}.safetensors").state_dict()
        assert all(torch.equal(state[key], found[key]) for key in found)


def test_an_own_model_with_batch_norm_keeps_its_statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nets_to_export.py").write_text(OWN)
    file = small_file(tmp_path)
    said = fastfed("run", file, "--quiet", "--out", "runs/own", "--set", 'model={name="nets_to_export:net"}')
    assert said.exit_code == 0, said.output
    assert fastfed("export", "runs/own", "--to", "model.pt").exit_code == 0
    state = torch.load("model.pt", weights_only=True)
    tensors = checkpoint.read("runs/own")[1]
    mean = tensors["batch_norm.now"]
    assert state["2.running_mean"].abs().sum() > 0
    assert torch.isin(state["2.running_mean"], mean).all()


def test_what_cannot_be_exported_is_refused_by_name(run: Path) -> None:
    Path("there.pt").write_text("precious")
    for arguments, words in (
        (("runs/a", "--to", "model.onnx"), "must end in .pt or .safetensors"),
        (("runs/a", "--to", "there.pt"), "there.pt is there already; --force replaces it"),
        (("runs/a", "--to", "m.pt", "--round", "3"), "there is no checkpoint of round 3, only of"),
        (("runs/a", "--to", "m.pt", "--round", "3", "--best"), "choose one checkpoint"),
    ):
        said = fastfed("export", *arguments)
        assert said.exit_code == 2
        assert words in " ".join(said.stderr.split())
    assert Path("there.pt").read_text() == "precious"
    assert_refused(fastfed("export", "runs", "--to", "m.pt"), 1, "runs: holds no checkpoint")
