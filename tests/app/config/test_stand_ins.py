"""``--data``: other directories, and made-up data in the shapes of the real."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from fastfed.app import config
from fastfed.app.config import kinds
from fastfed.app.config.stand_ins import STAND_INS
from fastfed.app.sweep import plan

from .support import tables

# A data set with loader options, the model that its paper trains on it, and the loss.
TASKS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "mnist": ({}, {"name": "fmnist_cnn"}, "cross_entropy"),
    "fashion_mnist": ({}, {"name": "lenet"}, "cross_entropy"),
    "emnist": ({"split": "letters"}, {"name": "emnist_cnn", "classes": 26}, "cross_entropy"),
    "qmnist": ({}, {"name": "lenet"}, "cross_entropy"),
    "digits": ({}, {"name": "mlp", "sizes": [64, 10]}, "cross_entropy"),
    "cifar10": ({}, {"name": "resnet18_gn"}, "cross_entropy"),
    "cifar100": ({}, {"name": "resnet18_gn", "classes": 100}, "cross_entropy"),
    "federated_cifar100": ({}, {"name": "resnet18_gn", "classes": 100}, "cross_entropy"),
    "federated_emnist": ({}, {"name": "emnist_cnn"}, "cross_entropy"),
    "federated_emnist digits": ({"only_digits": True}, {"name": "emnist_cnn", "classes": 10}, "cross_entropy"),
    "federated_emnist autoencoder": ({"autoencoder": True}, {"name": "emnist_autoencoder"}, "mse"),
    "federated_shakespeare": ({}, {"name": "shakespeare_lstm"}, "cross_entropy"),
    "shakespeare_plays": ({"min_lines": 20, "length": 40}, {"name": "shakespeare_lstm"}, "cross_entropy"),
    "stack_overflow_nwp": (
        {"words": 500, "clients": 50}, {"name": "stack_overflow_nwp", "vocabulary": 504}, "cross_entropy",
    ),
    "stack_overflow_tags": (
        {"words": 300, "tags": 20, "clients": 50},
        {"name": "stack_overflow_lr", "words": 300, "tags": 20},
        "binary_cross_entropy",
    ),
    "ag_news": (
        {"words": 50, "length": 12},
        {"name": "text_transformer", "vocabulary": 54, "length": 12, "channels": 8},
        "cross_entropy",
    ),
    "dbpedia bag": (
        {"words": 60, "bag": True}, {"name": "softmax_regression", "inputs": 60, "classes": 14}, "cross_entropy",
    ),
    "gld23k": ({"size": 16}, {"name": "softmax_regression", "inputs": 768, "classes": 203}, "cross_entropy"),
    "stack_exchange": (
        {"words": 200, "tags": 30}, {"name": "stack_overflow_lr", "words": 200, "tags": 30}, "binary_cross_entropy",
    ),
}  # fmt: skip


def natural(name: str) -> dict[str, Any]:
    own = {"qmnist", "federated_cifar100", "federated_emnist", "federated_shakespeare", "shakespeare_plays"}
    if name in own or name.startswith(("stack", "gld")):
        return {"partition": "natural"}
    return {"partition": "dirichlet", "clients": 30, "alpha": 0.1, "seed": 4}


@pytest.mark.parametrize("task", TASKS)
def test_the_paper_s_model_fits_the_stand_in(task: str) -> None:
    options, model, loss = TASKS[task]
    name = task.split()[0]
    data = {"name": name, **options, **natural(name), "test_examples": 20}
    given = tables(data=data, model=model, run={"rounds": 1, "cohort": 1, "loss": loss})
    made = config.parse(config.with_data(given, ["synthetic"]))
    assert made.data.loader.name.startswith("synthetic_")
    written = made.resolved()
    assert written["data"]["test_examples"] == 20
    for key in ("classes", "vocabulary", "words", "tags"):  # as many as the model has, not only few enough for it
        if key in written["model"]:
            assert written["data"][key] == written["model"][key]
    made.simulation()  # refuses a model that does not fit


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "federated_cifar100"])
def test_stand_ins_are_seen_as_the_file_asks(name: str) -> None:
    asked = {"crop": 24, "flip": True, "standardise": True}
    normalise = {} if name.startswith("federated") else {"normalise": False}
    data = {"name": name, **asked, **normalise, **natural(name), "test_examples": 20}
    model = {"name": "softmax_regression", "inputs": 3 * 24 * 24, "classes": 100}
    given = tables(data=data, model=model, run={"rounds": 1, "cohort": 1})
    made = config.parse(config.with_data(given, ["synthetic"]))
    assert asked.items() <= made.resolved()["data"].items()
    sim = made.simulation()
    assert sim.fed.examples.augmented is not None
    assert sim.fed.examples.augmented.shape == (3, 24, 24)


def test_every_loader_of_files_has_a_stand_in_or_is_refused() -> None:
    assert {task.split()[0] for task in TASKS} == set(STAND_INS)
    for name in set(kinds.LOADERS) - set(STAND_INS):
        table = {"name": name, "partition": "natural"}
        if name.startswith("synthetic_"):
            assert config.stand_in(table) == table
        else:
            with pytest.raises(config.ConfigError, match=f"^--data: nothing stands in for '{name}'"):
                config.stand_in(table)


@pytest.mark.parametrize(
    "model", [{"name": "softmax_regression", "inputs": 384, "classes": 100}, {"name": "mlp", "sizes": [384, 20, 100]}]
)
def test_the_model_tells_the_shapes_of_a_store(model: dict[str, Any]) -> None:
    given = tables(data={"name": "open_store", "clients": 30}, model=model, run={"rounds": 1, "cohort": 1})
    made = config.parse(config.with_data(given, ["synthetic"]))
    assert (made.resolved()["data"]["shape"], made.resolved()["data"]["classes"]) == ([1, 1, 384], 100)
    assert len(made.simulation().fed) == 30
    with pytest.raises(config.ConfigError, match=r"^--data: nothing stands in for 'open_store'"):
        config.with_data({**given, "model": {"name": "lenet"}}, ["synthetic"])


def dealt(**partition: Any) -> Any:
    return config.parse(tables(data=config.stand_in({"name": "mnist", **partition}))).federation()


def classes_of(fed: Any, client: int) -> torch.Tensor:
    visit = fed.visit(torch.tensor([client]))
    return torch.bincount(visit.examples.targets[visit.rows], minlength=10)


def test_the_partition_s_keys_are_respected() -> None:
    fed = dealt(partition="dirichlet", clients=50, alpha=0.1, examples=200)
    assert len(fed) == 50
    assert fed.sizes.tolist() == [200] * 50
    assert dealt(partition="dirichlet", clients=50).sizes.tolist() == [1200] * 50
    ranged = dealt(partition="dirichlet", clients=400, examples=[100, 500]).sizes.double()
    assert 280 < ranged.mean() < 320
    assert 90 < ranged.std() < 140  # 115 of a uniform distribution
    skewed = [classes_of(fed, client).max() for client in range(20)]
    printed = {"name": "mnist", "partition": "dirichlet", "alpha": 1.0, "prior": "printed"}
    assert config.stand_in(printed)["alpha"] == 0.1
    unequal = dealt(partition="dirichlet_by_label", clients=400, alpha=0.5).sizes.double()
    assert 100 < unequal.mean() < 200
    assert 0.3 < unequal.std() / unequal.mean() < 0.6  # sqrt(2 / 10) of it, by the ten classes' shares
    even = [classes_of(dealt(partition="iid", clients=300), client).max() for client in range(20)]
    assert min(even) >= 20
    assert max(even) < 45
    assert sum(map(int, skewed)) / 20 > 100
    other = dealt(partition="dirichlet", clients=50, alpha=0.1, examples=200, seed=1)
    assert [classes_of(other, c).tolist() for c in range(5)] != [classes_of(fed, c).tolist() for c in range(5)]


def test_natural_clients_are_as_many_as_the_data_has() -> None:
    table = config.stand_in({"name": "federated_emnist", "partition": "natural"})
    assert (table["clients"], table["examples"], table["classes"]) == (3400, 197.5, 62)
    few = config.stand_in({"name": "stack_overflow_tags", "partition": "natural", "clients": 40, "examples": 50})
    assert (few["clients"], few["examples"]) == (40, 50.0)


def test_keys_of_the_made_up_data_are_passed_on_and_typos_are_not() -> None:
    table = config.stand_in({"name": "qmnist", "partition": "natural", "clients": 9, "examples": 12.0})
    assert (table["clients"], table["examples"]) == (9, 12.0)
    with pytest.raises(config.ConfigError, match=r"^data\.alfa: .* Did you mean 'alpha'\?"):
        config.stand_in({"name": "mnist", "partition": "dirichlet", "alfa": 1.0})


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"name": "mnist", "partition": "natural"}, "data.partition: this data does not say who its clients are"),
        ({"name": "shakespeare_plays", "partition": "dirichlet"}, "data.partition: 'dirichlet' deals by classes"),
        ({"name": "mnist", "partition": "file", "path": "a"}, "--data: the partition 'file' belongs to the real data"),
        ({"name": "mnist", "partition": "iid"}, "data.clients: data 'mnist' with partition 'iid' needs it"),
        ({"name": "mnist", "partition": "dirichlet", "clients": 0}, "data.clients: must be a whole number >= 1, got 0"),
        ({"name": "emnist", "partition": "dirichlet", "split": "x"}, "data.split: must be one of byclass,"),
        ({"partition": "iid"}, "data.name: must be given"),
    ],
)
def test_what_cannot_be_stood_in_for_is_refused(table: dict[str, Any], sentence: str) -> None:
    with pytest.raises(config.ConfigError) as caught:
        config.stand_in(table)
    assert str(caught.value).startswith(sentence)


def test_the_name_says_that_the_data_is_made_up() -> None:
    named = tables(name="a", data={"name": "mnist", "partition": "iid", "clients": 5})
    once = config.with_data(named, ["synthetic"])
    assert once["name"] == "a (synthetic data)"
    assert config.with_data(once, ["synthetic"]) == once
    assert named["name"] == "a"


def test_directories_take_the_place_of_the_file_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    qmnist = tables(data={"name": "qmnist", "root": "/old", "images": "/pictures", "partition": "natural"})
    one = config.parse(config.with_data(qmnist, ["new"])).resolved()["data"]
    assert (one["root"], one["images"]) == (str(tmp_path / "new"), "/pictures")
    both = config.parse(config.with_data(qmnist, ["/a", "/b"])).resolved()["data"]
    assert (both["root"], both["images"]) == ("/a", "/b")
    sites = tables(data={"name": "stack_exchange", "partition": "natural"})
    assert config.with_data(sites, ["/a", "/b"])["data"]["root"] == ["/a", "/b"]
    assert config.with_data(sites, []) == sites


def test_a_directory_may_be_for_one_data_set_alone() -> None:
    mnist, fashion = (tables(data={"name": name, "partition": "iid"}) for name in ("mnist", "fashion_mnist"))
    given = ["mnist=/digits", "fashion_mnist=/a=b"]
    assert config.with_data(mnist, given)["data"]["root"] == "/digits"
    assert config.with_data(fashion, given)["data"]["root"] == "/a=b"
    assert config.with_data(fashion, given[:1]) == fashion
    assert config.with_data(mnist, ["run=1/digits"])["data"]["root"] == "run=1/digits"


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ("fashion_mnist=/clothes", "'fashion_mnist=/clothes' is for data that is not read here; mnist is"),
        ("mnist=", "must have a directory behind the name, as in mnist=DIR, got 'mnist='"),
        ("mnist=synthetic", "must have a directory behind the name, as in mnist=DIR, got 'mnist=synthetic'"),
    ],
)
def test_a_directory_for_nobody_is_refused(tmp_path: Path, data: str, sentence: str) -> None:
    file = tmp_path / "a.toml"
    file.write_text('[data]\nname = "mnist"\npartition = "iid"\nclients = 2\n')
    with pytest.raises(config.ConfigError) as caught:
        config.load(file, data=[data])
    assert str(caught.value) == f"--data: {sentence}"
    with pytest.raises(config.ConfigError, match=re.escape(sentence)):
        plan(file, ["run.rounds=1,2"], data=[data])


def test_two_data_sets_do_not_share_a_directory(tmp_path: Path) -> None:
    """Their files bear the same names: one would be taken for the other."""
    file = tmp_path / "a.toml"
    file.write_text('[data]\nname = "mnist"\npartition = "iid"\nclients = 2\n')
    with pytest.raises(config.ConfigError) as caught:
        plan(file, ["data.name=mnist,fashion_mnist"], data=["/m"])
    assert str(caught.value) == "--data: must say for which of mnist, fashion_mnist, as in mnist=DIR, got '/m'"


def test_a_name_that_is_no_name_gets_its_own_sentence(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('[data]\nname = ["mnist"]\n')
    with pytest.raises(config.ConfigError, match=re.escape("data.name: must be one of")):
        config.load(file, data=["/m"])


@pytest.mark.parametrize(
    ("name", "data", "sentence"),
    [
        ("digits", ["somewhere"], "--data: data 'digits' reads no files, so it takes no directory, got 'somewhere'"),
        ("mnist", ["a", "b"], "--data: data 'mnist' takes root, got 2 directories"),
        ("mnist", ["a", "synthetic"], "--data: must be synthetic alone, or directories, got a, synthetic"),
    ],
)
def test_directories_that_make_no_sense_are_refused(name: str, data: list[str], sentence: str) -> None:
    with pytest.raises(config.ConfigError) as caught:
        config.with_data(tables(data={"name": name, "partition": "iid", "clients": 2}), data)
    assert str(caught.value) == sentence
