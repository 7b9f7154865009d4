"""Every file of experiments/ is what its first lines say, fits its data, and runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import fastfed as ff
from fastfed.app.config import document as documents
from fastfed.door import check_model

from .support import BASE, FILES, HOME, head_of, planned, tables_of

SMALL = ("run.rounds=2", "run.evaluate_every=2", "data.clients=12", "data.examples=2", "data.test_examples=2")
RESIDUAL_MODELS = ("resnet18_bn", "resnet18_gn", "resnet50_bn", "resnet50_gn")
LARGE_MODELS = ("emnist_autoencoder", "emnist_cnn", "shakespeare_lstm", "stack_overflow_lr", "stack_overflow_nwp")
EVERY_VARIANT = (  # of these all variants are run, of the others the last one: their rules are the same
    "afo/qmnist_writers",
    "cc/fashion_mnist",
    "dsgd/table1_mnist_fmnist",
    "fathom/qmnist_starts",
    "fedada2/private_tags",
    "fedada2/table4_gld23k",
    "stragglers",
)


def test_the_readme_has_a_row_for_every_file_and_for_no_other() -> None:
    rows = re.findall(r"^\| `(\S+)\.toml` \|", (HOME / "README.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(FILES)


PAPERS = {"afo": "AFO", "fedada2": "FedAda2", "dsgd": "DSGD", "fathom": "FATHOM", "cc": "CC"}


@pytest.mark.parametrize("file", FILES)
def test_a_file_says_what_it_reproduces_and_how_it_is_run(file: str) -> None:
    head = head_of(file)
    paper = PAPERS.get(file.partition("/")[0])
    assert head.startswith(paper if paper else "Of no paper")
    if paper:
        assert re.search(r"Tables? \d|Figures? \d|Propositions? \d|DSGD's point", head)
        assert "Published" in head or "paper" in head
    verb = "sweep" if "sweep" in tables_of(file) else "data show" if " --labels " in head else "run"
    assert f"fastfed {verb} experiments/{file}.toml " in head
    assert " --data " in head or tables_of(file)["data"]["name"].startswith("synthetic_")


def test_every_base_is_used_and_says_what_it_is_for() -> None:
    used = {(path.parent / named).resolve() for path in HOME.rglob("*.toml") if (named := _base_of(path)) is not None}
    assert set(BASE.glob("*.toml")) <= used
    assert all(path.read_text().startswith("# What ") for path in BASE.glob("*.toml"))


def _base_of(path: Path) -> str | None:
    named: str | None = documents.read_alone(path).get("base")
    return named


def _is_store(file: str) -> bool:
    return tables_of(file)["data"]["name"] == "open_store"


def _task(file: str) -> str:
    tables = tables_of(file)
    return str([tables["data"]["name"], tables["model"], "privacy" in tables])


def _is_last_of_its_task(file: str) -> bool:
    return file == [other for other in FILES if _task(other) == _task(file)][-1]


def _is_run(file: str) -> bool:
    """Of the files that have a large model and learn the same one is run; of residual networks the one whose loss needs
    more of the model than its output."""
    tables = tables_of(file)
    if _is_store(file) or tables["model"]["name"] in RESIDUAL_MODELS:
        return "exchange" in tables
    return file in EVERY_VARIANT or tables["model"]["name"] not in LARGE_MODELS or _is_last_of_its_task(file)


@pytest.mark.parametrize(
    "file", [name for name in FILES if not (_is_store(name) or _is_run(name)) and _is_last_of_its_task(name)]
)
def test_its_model_fits_the_stand_in(file: str) -> None:
    config = planned(file, *SMALL, data=("synthetic",)).popitem()[1]
    check_model(config.make_model(), config.federation(), config.resolved()["run"]["loss"])


@pytest.mark.parametrize("file", [name for name in FILES if _is_run(name)])
def test_it_takes_its_first_rounds_on_the_stand_in(file: str) -> None:
    tables = tables_of(file)
    private = isinstance(tables["run"].get("cohort"), dict)  # a tenth of the clients a round
    sets = ["data.clients=40"] if private else [] if "timing" in tables else ["run.cohort=1"]
    configs = list(planned(file, *SMALL, *sets, data=("synthetic",)).values())
    fed = configs[-1].federation()
    for config in configs if file in EVERY_VARIANT else configs[-1:]:
        _takes_rounds(config.simulation(fed))


@pytest.mark.parametrize("file", [name for name in FILES if _is_store(name)])
def test_it_takes_its_first_rounds_on_features(file: str, tmp_path: Path) -> None:
    """The stand-in of a ViT's features: a store like that which its user would write."""
    model = tables_of(file)["model"]
    x, y = torch.randn(64, model["inputs"], generator=torch.Generator().manual_seed(0)), torch.arange(64)
    fed = ff.data.from_arrays(x, y % model["classes"], client=y % 8, test=(x[:8], y[:8]))
    ff.data.save_store(fed, tmp_path / "features")
    # Two steps: under a warm-up the first does not move.
    sets = ("run.rounds=2", "run.evaluate_every=2", "run.cohort=2", "run.batch_size=4")
    configs = list(planned(file, *sets, data=(str(tmp_path / "features"),)).values())
    for config in configs if file in EVERY_VARIANT else configs[-1:]:
        _takes_rounds(config.simulation())


def _takes_rounds(sim: ff.Simulation) -> None:
    start = sim.params.clone()
    history = sim.run(rounds=2, evaluate_every=2, progress=False)
    assert len(history) == 2
    assert len(history.column("test_loss")) == 1
    assert not torch.equal(sim.params, start)
