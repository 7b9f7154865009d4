"""A frozen model's features in place of the inputs, and `fastfed data features`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import fastfed as ff
from fastfed.app import runs
from fastfed.app.config import document

from ..app.commands.support import assert_refused, fastfed
from ..app.config.support import tables


def backbone() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3),
        nn.BatchNorm2d(3),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(108, 5),
        nn.ReLU(),
        nn.Linear(5, 2),
    )


def test_they_are_what_goes_into_the_head_in_evaluation() -> None:
    fed = ff.data.iid(ff.data.digits(), clients=7)
    model = backbone().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    counts: list[tuple[int, int]] = []
    made = ff.data.features(fed, model, batch_size=100, told=lambda done, of: counts.append((done, of)))
    assert model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert fed.test is not None
    assert made.test is not None
    assert counts[-1] == (1797, 1797)
    with torch.no_grad():
        for of, found in ((fed.examples, made.examples), (fed.test, made.test)):
            inputs, targets = of.batch(torch.arange(len(of)))
            torch.testing.assert_close(found.inputs, model.eval()[:6](inputs), rtol=1e-5, atol=1e-5)
            assert torch.equal(found.targets, targets)
    assert torch.equal(made.rows, fed.rows)
    assert torch.equal(made.offsets, fed.offsets)
    assert ff.data.features(fed, model, "4").examples.inputs.shape == (1442, 108)
    with pytest.raises(ValueError, match="head: the model has no layer 'top'"):
        ff.data.features(fed, model, "top")


def test_made_up_data_is_made_first() -> None:
    fed = ff.data.synthetic_images(4, shape=(1, 8, 8), examples=5, test_examples=3)
    made = ff.data.features(fed, backbone())
    assert made.sizes.tolist() == fed.sizes.tolist()
    inputs, _ = fed.visit(torch.tensor([2])).examples.batch(torch.arange(1))
    with torch.no_grad():
        wanted = backbone().eval()[:6](inputs)
    torch.testing.assert_close(made.examples.inputs[made.rows_of(2)[:1]], wanted, rtol=1e-5, atol=1e-5)


def test_the_command_writes_a_store_that_a_linear_model_trains_on(tmp_path: Path) -> None:
    (tmp_path / "ours.py").write_text(
        "from torch import nn\n\n"
        "def net(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 10))\n"
    )
    file, store = tmp_path / "a.toml", tmp_path / "store"
    file.write_text(document.write(tables(model="ours:net")))
    torch.manual_seed(9)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 10))
    torch.save(model.state_dict(), tmp_path / "w.pt")
    said = fastfed("data", "features", file, "--out", store, "--weights", tmp_path / "w.pt")
    assert said.exit_code == 0, said.output
    assert "1,442 examples of 12 features" in " ".join(said.stdout.split())
    opened = ff.data.open_store(store)
    inputs, _ = ff.data.digits().train.batch(torch.arange(9))
    with torch.no_grad():
        torch.testing.assert_close(opened.examples.inputs[:9], model[:3](inputs), rtol=1e-5, atol=1e-5)
    linear = tmp_path / "linear.toml"
    of_store = {"name": "open_store", "directory": str(store)}
    linear.write_text(
        document.write(tables(data=of_store, model={"name": "softmax_regression", "inputs": 12, "classes": 10}))
    )
    assert fastfed("run", linear, "--out", tmp_path / "run").exit_code == 0
    assert runs.read(tmp_path / "run").status == "done"


def test_what_the_command_refuses(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text(document.write(tables()))
    assert_refused(fastfed("data", "features", file, "--out", tmp_path), 2, f"--out: {tmp_path} exists already")
    out = tmp_path / "store"
    headless = fastfed("data", "features", file, "--out", out, "--head", "top")
    assert_refused(headless, 2, "--head: the model has no layer 'top'")
    (tmp_path / "w.pt").write_text("no weights")
    refused = fastfed("data", "features", file, "--out", out, "--weights", tmp_path / "w.pt")
    assert_refused(refused, 2, f"--weights: {tmp_path / 'w.pt'} does not hold this model's: ")
    other = fastfed("data", "features", file, "--out", out, "--set", "model.sizes=[65, 10]")
    assert_refused(other, 2, "model: ")
    assert not out.exists()
