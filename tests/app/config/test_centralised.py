"""Training without clients: the same data and as many examples in a round, against a loop of gradient descent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import fastfed as ff
from fastfed.app import config as configs
from fastfed.app import runs
from fastfed.app.cli import app
from fastfed.app.config import ConfigError
from fastfed.app.report.entries import Entry, group
from fastfed.data import Federated

from .support import tables


def central(**changes: Any) -> tuple[configs.Config, Federated]:
    given = configs.parse(tables(**changes))
    fed = given.federation()
    assert isinstance(fed, Federated)
    return configs.centralised(given, fed), fed


def test_one_client_has_all_examples_once() -> None:
    fed = ff.data.dirichlet(ff.data.digits(), clients=7, seed=2)
    rows = torch.cat([fed.rows, fed.rows[:5]])
    twice = Federated("twice", fed.examples, rows, torch.cat([fed.offsets, torch.tensor([len(rows)])]), fed.test)
    whole = ff.data.pooled(twice)
    assert len(whole) == 1
    assert whole.rows.tolist() == sorted(fed.rows.tolist())
    with pytest.raises(TypeError, match="cannot be put together"):
        ff.data.pooled(ff.data.synthetic_images(clients=3))


def test_made_up_examples_are_in_no_one_place() -> None:
    config = configs.parse(tables(data={"name": "synthetic_images", "clients": 20}))
    with pytest.raises(configs.ConfigError, match="--centralised: synthetic_images makes its examples when they are"):
        configs.centralised(config, config.federation())


def test_a_round_sees_as_many_examples_as_a_cohort() -> None:
    run = {"rounds": 3, "cohort": 4, "epochs": 2, "batch_size": 10}
    config, fed = central(run=run)
    sim = config.simulation()
    row = sim.step()
    assert row["clients"] == 1
    assert row["gradients"] == pytest.approx(4 * 2 * float(fed.sizes.double().mean()), abs=10)
    private = {**run, "cohort": {"poisson": 0.5}}
    config, fed = central(run=private)
    assert config.simulation().step()["gradients"] == pytest.approx(0.5 * 2 * len(fed.rows), abs=10)


def test_what_stays_with_clients_is_the_one_models_own() -> None:
    """One client's layers, kept at home, would never be evaluated."""
    run = {"rounds": 1, "cohort": 2, "batch_norm": "local"}
    assert central(run=run)[0].resolved()["run"]["batch_norm"] == "average"
    assert central(run={**run, "batch_norm": "frozen"})[0].resolved()["run"]["batch_norm"] == "frozen"


@pytest.mark.parametrize(
    ("data", "run"),
    [
        ({"clients": 100}, {"steps": 10, "batch_size": 64}),  # a client's 14 examples make short batches
        ({"clients": 100}, {"steps": 10, "batch_size": 20}),
        ({"clients": 1000}, {"epochs": 1, "batch_size": 20}),  # a round has fewer examples than a batch
        ({"clients": 50}, {"epochs": 1.5, "batch_size": 7}),
    ],
)
def test_gradients_of_a_round_are_those_of_the_cohort(data: dict[str, Any], run: dict[str, Any]) -> None:
    changes = {"data": {"name": "digits", "partition": "iid", **data}, "run": {"rounds": 1, "cohort": 5, **run}}
    config, _ = central(**changes)
    federated = configs.parse(tables(**changes)).simulation().step()["gradients"]
    assert config.simulation().step()["gradients"] == pytest.approx(federated, rel=0.05, abs=4)


def test_with_all_examples_in_a_batch_it_is_gradient_descent() -> None:
    """In float64, by autograd: a step a round, on what all clients together have. The rate halves after two rounds."""
    config, fed = central(
        run={"rounds": 5, "cohort": 20, "epochs": 1, "batch_size": 5000, "seed": 3},
        client={"rule": "sgd", "lr": 0.3, "weight_decay": 0.01},
        schedule={"client": {"kind": "staircase", "factor": 0.5, "every": 2}},
        model={"name": "mlp", "sizes": [64, 10]},  # smooth: a kink would part float32 from float64
    )
    sim = config.simulation()
    sim.run(5, progress=False)
    model = config.make_model().double()
    inputs, targets = fed.examples.batch(fed.rows.unique(), torch.float64)
    for step in range(5):
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for weight, gradient in zip(model.parameters(), gradients, strict=True):
                weight -= 0.3 * 0.5 ** (step // 2) * (gradient + 0.01 * weight)
    wanted = sim.packing.pack(model.float())
    torch.testing.assert_close(sim.params, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"client": {"rule": "adam", "lr": 0.1}},
            "client: --centralised trains by SGD, as Adam would forget its state",
        ),
        ({"method": "fathom", "client": {"lr": 0.1}, "server": None}, "tuner: --centralised has nothing to tune by"),
        (
            {"run": {"rounds": 1, "cohort": [[0, 1], [2]], "batch_size": 5}},
            "run.cohort: --centralised does not know how many clients a round has",
        ),
    ],
)
def test_what_it_cannot_do_is_a_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        central(**changes)
    assert sentence in str(caught.value)


def test_the_command_makes_a_run_that_resumes_and_is_dashed(tmp_path: Path) -> None:
    file = tmp_path / "digits.toml"
    file.write_text(configs.parse(tables()).toml())
    arguments = ["run", str(file), "--centralised", "--quiet", "--out", str(tmp_path / "central")]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert CliRunner().invoke(app, [*arguments, "--resume"]).exit_code == 0
    run = runs.read(tmp_path / "central")
    assert (run.config["data"]["pooled"], run.info["method"]) == (True, "centralised sgd")
    federated = Entry("other", run.history, {}, {"data": {"name": "digits"}})
    line = Entry("central", run.history, run.info, run.config)
    assert [one.style for one in group([line, federated])] == [8, 0]
