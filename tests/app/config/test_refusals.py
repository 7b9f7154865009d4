"""What is wrong with a configuration is one sentence that begins with the dotted key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fastfed.app import config
from fastfed.app.config import document

from .support import MODEL, tables


def refusal(**changed: Any) -> str:
    with pytest.raises(config.ConfigError) as caught:
        config.parse(tables(**changed)).simulation()
    return str(caught.value)


FEDYOGI: dict[str, Any] = {"method": "fedyogi", "client": {"lr": 0.1}, "server": {"lr": 0.1}}


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"modle": {}}, "modle: no such key or table (there are name, method,"),
        ({"client": {"rule": "sgd", "lrr": 0.1}}, "client.lrr: client rule 'sgd' has no such option (it takes lr,"),
        ({"client": {"rule": "sdg", "lr": 0.1}}, "client.rule: must be one of sgd,"),
        ({"client": {"rule": "sgd", "lr": -0.1}}, "client.lr: must be a finite number >= 0, got -0.1"),
        ({"client": {"rule": "sgd", "lr": "fast"}}, "client.lr: must be a number, got 'fast'"),
        ({"client": {"rule": "sgd"}}, "client.lr: client rule 'sgd' needs it, a number"),
        ({"client": 3}, "client: must be a table, got 3"),
        ({"client": {"lr": 0.1}}, "client.rule: must be given, one of sgd,"),
        ({"server": {"rule": "sgd", "tau": 0.1}}, "server.tau: server rule 'sgd' would ignore it, it is an option of"),
        ({**FEDYOGI, "server": {"lr": 1.0, "momentum": 0.9}}, "server.momentum: method 'fedyogi' with server rule"),
        ({**FEDYOGI, "client": {"rule": "adam", "lr": 0.1}}, "client.rule: method 'fedyogi' has client rule 'sgd'"),
        ({**FEDYOGI, "server": {}}, "server.lr: method 'fedyogi' needs it, a number"),
        ({**FEDYOGI, "method": "fedyogy"}, "method: must be one of fedavg,"),
        ({**FEDYOGI, "method_options": {"sm3": True}}, "method_options.sm3: method 'fedyogi' has no such option"),
        ({"method_options": {"mu": 1.0}}, "method_options: belong to a method, and none is named"),
        (
            {**FEDYOGI, "method": "fedprox", "method_options": {"mu": 0.1}, "client": {"lr": 0.1, "prox": 0.5}},
            "client.prox: follows from method_options.mu, 0.1, in method 'fedprox', got 0.5",
        ),
        ({"client": {"rule": "blend", "parts": [], "lr": 1}}, "client.lr: a blend has only parts"),
        ({"client": {"rule": "blend"}}, "client.parts: must be one or more tables [[client.parts]], got None"),
        (
            {"client": {"rule": "blend", "parts": [{"rule": "sgd", "lr": 0.1, "shares": 1}]}},
            "client.parts[0].shares: a part with client rule 'sgd' has no such option (it takes rule, share,",
        ),
        ({"data": {"name": "digits"}}, "data.partition: must say how 'digits' is dealt: dirichlet,"),
        ({"data": {"name": "digit"}}, "data.name: must be one of"),
        ({"data": {"name": "synthetic_text", "partition": "iid"}}, "data.partition: 'synthetic_text' comes with"),
        (
            {"data": {"name": "digits", "partition": "iid", "clients": 2, "alpha": 1.0}},
            "data.alpha: data 'digits' with",
        ),
        ({"data": {"name": "digits", "partition": "iid", "clients": 0}}, "data.clients: must be"),
        ({"data": {"name": "mnist", "partition": "iid", "clients": 2}}, "data.root: data 'mnist' with partition 'iid'"),
        ({"data": {"name": "mnist", "root": "nowhere", "partition": "iid", "clients": 2}}, "data: "),
        ({"model": {"name": "mlpp"}}, "model.name: must be one of"),
        ({"model": {**MODEL, "classes": 3}}, "model.classes: model 'mlp' would ignore it, it is an option of model"),
        ({"model": {"name": "mlp", "sizes": [60, 10]}}, "model: does not fit the data: layer '1' (Linear) is"),
        ({"model": {"name": "mlp", "sizes": [64, 9]}}, "model: has 9 outputs, and the data has labels up to 9"),
        ({"run": {"cohort": 2}}, "run.rounds: must be given, a whole number >= 0"),
        ({"run": {"rounds": 1, "cohort": 100}}, "run.cohort: must be at most the number of clients, 20, got 100"),
        (
            {"data": {"name": "synthetic_images", "clients": 20, "validation": 0.1}},
            "data.validation: synthetic_images makes its examples when they are asked for",
        ),
        (
            {"data": {"name": "synthetic_images", "clients": 20, "pooled": True}},
            "data.pooled: synthetic_images makes its examples when they are asked for",
        ),
        ({"run": {"rounds": 1, "cohort": {"poisson": 2.0}}}, "run.cohort.poisson: must"),
        ({"run": {"rounds": 1, "cohort": {}}}, "run.cohort.size: must say how many clients take part"),
        ({"run": {"rounds": 1, "cohort": {"poisson": 0.1, "size": 3}}}, "run.cohort.size: would be ignored with pois"),
        ({"run": {"rounds": 1, "cohort": {"size": 30}}}, "run.cohort.size: must be at most the number of clients, 20"),
        (
            {"run": {"rounds": 1, "cohort": {"size": 3, "shares": {"alhpa": 1.0}}}},
            "run.cohort.shares.alhpa: [run.cohort.shares] has no such option (it takes alpha, spread)",
        ),
        (
            {"run": {"rounds": 1, "cohort": {"size": 3, "availability": {"period": 5, "length": "x"}}}},
            "run.cohort.availability.length: must be a whole number, got 'x'",
        ),
        (
            {"run": {"rounds": 1, "cohort": {"size": 3, "availability": {"period": 5, "low": "x"}}}},
            "run.cohort.availability.low: must be a number, got 'x'",
        ),
        ({"run": {"rounds": 1, "cohort": {"rate": 0.1}}}, "run.cohort.rate: [run.cohort] has no such option"),
        ({"run": {"rounds": 1, "cohort": 2, "epoch": 1}}, "run.epoch: [run] has no such option"),
        ({"run": {"rounds": 1, "cohort": 2, "client_schedule": 1}}, "run.client_schedule: [run] would ignore it"),
        ({"run": {"rounds": -1, "cohort": 2}}, "run.rounds: must be a whole number >= 0, got -1"),
        ({"run": {"rounds": 1, "cohort": 2, "device": "abacus"}}, "run.device: must be one that torch has here"),
        ({"run": {"rounds": 1, "cohort": 2, "target": {"test_acc": 0.9}}}, "run.target: this run does not measure"),
        ({"run": {"rounds": 1, "cohort": 2, "until_clock": 5.0}}, "run.until_clock: only a simulated clock"),
        ({"schedule": {"clients": {"kind": "constant"}}}, "schedule.clients: [schedule] has no such option"),
        ({"schedule": {"client": {"kind": "steps"}}}, "schedule.client.kind: must be one of"),
        ({"compression": {"kind": "top_k", "fraction": 2.0}}, "compression.fraction: must"),
        ({"privacy": {"clip": 1.0, "noise": 1.0, "delta": 1e-3}}, "run.cohort: must be"),
        (
            {
                "privacy": {"clip": 1.0, "noise": 1.0, "delta": 1e-3, "adaptive": {"quantile": 0.5}},
                "run": {"rounds": 1, "cohort": {"poisson": 0.1}, "weights": "uniform"},
            },
            "privacy.adaptive.count_noise: must be more than half the noise multiplier",
        ),
        ({"timing": {"kind": "waves", "size": 5}}, "run.cohort: with this timing a round has 5 clients"),
        ({"tuner": {"gamma": 0.1}}, "tuner.gamma: tuner 'fathom' has no such option"),
        ({"name": 3}, "name: must be a string, got 3"),
        ({"sweep": {"seeds": 3}}, "sweep: this file describes many runs; `fastfed sweep` runs them"),
    ],
)
def test_a_sentence_that_begins_with_the_key(changed: dict[str, Any], sentence: str) -> None:
    said = refusal(**changed)
    assert said.startswith(sentence)
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("changed", "meant"),
    [
        ({"modle": {}}, "model"),
        ({"client": {"rule": "sgd", "lrr": 0.1}}, "lr"),
        ({"client": {"rule": "sdg", "lr": 0.1}}, "sgd"),
        ({"data": {"name": "digits", "partition": "irichlet"}}, "dirichlet"),
        ({"model": {"name": "mpl"}}, "mlp"),
        ({"run": {"rounds": 1, "cohrt": 2}}, "cohort"),
        ({"schedule": {"client": {"kind": "stair"}}}, "staircase"),
        ({**FEDYOGI, "method": "fedyogy"}, "fedyogi"),
        ({"client": {"rule": "blend", "parts": [{"rule": "sgd", "lr": 0.1, "shares": 1}]}}, "share"),
    ],
)
def test_a_typo_gets_the_nearest_word(changed: dict[str, Any], meant: str) -> None:
    assert refusal(**changed).endswith(f"Did you mean {meant!r}?")


def test_every_problem_of_a_table_is_told_at_once() -> None:
    said = refusal(run={"rounds": "many", "cohort": 2, "epocs": 1}).splitlines()
    assert [line.partition(":")[0] for line in said] == ["run.rounds", "run.epocs"]


def test_an_option_that_another_method_has_is_named_as_its_owner() -> None:
    assert "it is an option of server rule 'momentum'" in refusal(**{**FEDYOGI, "server": {"lr": 1.0, "momentum": 0.9}})


def test_a_model_that_was_tried_keeps_its_mode_and_weights() -> None:
    made = config.parse(tables())
    sim = made.simulation()
    assert sim.model.training
    assert torch.equal(sim.packing.pack(sim.model), sim.packing.pack(made.make_model()))


# ---- files ----------------------------------------------------------------------------------------------------------


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "a.toml"
    file.write_text(text)
    return file


def test_a_missing_file_is_named_and_how_to_write_one(tmp_path: Path) -> None:
    missing = tmp_path / "none.toml"
    with pytest.raises(config.ConfigError, match=r"none\.toml: no such file; `fastfed init .*` writes one"):
        config.load(missing)


@pytest.mark.parametrize(
    ("text", "problem"),
    [("a = ", "is not TOML: "), ("a = 1\na = 2", "is not TOML: "), (f"a = {9000 * '['}", "is nested too deeply")],
)
def test_what_is_no_toml_is_named(tmp_path: Path, text: str, problem: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(config.ConfigError) as caught:
        config.load(file)
    assert str(caught.value).startswith(f"{file}: {problem}")


def test_errors_of_a_file_name_it_and_those_of_an_option_that(tmp_path: Path) -> None:
    file = written(tmp_path, document.write(tables(client={"rule": "sgd", "lr": -1})))
    with pytest.raises(config.ConfigError) as caught:
        config.load(file)
    assert str(caught.value).startswith(f"{file}: client.lr: ")
    with pytest.raises(config.ConfigError) as caught:
        config.load(file, ["client"])
    assert str(caught.value).startswith("--set: must be a dotted key and a value, as in server.lr=0.1, got 'client'")
    with pytest.raises(config.ConfigError) as caught:
        config.load(file, ["run.rounds.most=3"])
    assert str(caught.value).startswith("--set: run.rounds is not a table")


def test_sets_are_toml_values_and_bare_words(tmp_path: Path) -> None:
    file = written(tmp_path, document.write(tables()))
    sets = [
        "client.lr=0.5",
        "model.sizes=[64, 4, 10]",
        "run.cohort={poisson = 0.25}",
        "server.rule=yogi",
        "server.lr=1e-2",
    ]
    made = config.load(file, [*sets, "name=two words", "run.target={train_loss=0.5}"]).resolved()
    assert (made["client"]["lr"], made["model"]["sizes"], made["name"]) == (0.5, [64, 4, 10], "two words")
    assert made["run"]["cohort"] == {"poisson": 0.25}
    assert made["run"]["target"] == {"train_loss": 0.5}
    assert (made["server"]["rule"], made["server"]["lr"]) == ("yogi", 0.01)


def test_relative_directories_are_relative_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    file = written(
        tmp_path / "elsewhere",
        document.write(tables(data={"name": "mnist", "root": "files", "partition": "iid", "clients": 2})),
    )
    monkeypatch.chdir(tmp_path)
    assert config.load(file).resolved()["data"]["root"] == str(tmp_path / "files")


def test_a_list_of_roots_is_dealt_to_the_directories() -> None:
    both = {"name": "qmnist", "root": ["/labels", "/images"], "partition": "natural"}
    made = config.parse(tables(data=both)).resolved()["data"]
    assert (made["root"], made["images"]) == ("/labels", "/images")
    assert refusal(data={**both, "images": "/more"}).startswith("data.root: must be one directory for each of root,")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"crop": 9}, r"^data\.crop: must fit into images of 8x8 pixels, got 9$"),
        ({"crop": 0}, r"^data\.crop: must be a whole number >= 1, got 0$"),
        ({"flip": 1}, r"^data\.flip: must be true or false, got 1"),
    ],
    ids=str,
)
def test_how_images_are_seen_is_refused_by_its_key(given: dict[str, Any], said: str) -> None:
    data = {"name": "synthetic_images", "clients": 3, "shape": [1, 8, 8], **given}
    with pytest.raises(config.ConfigError, match=said):
        config.parse(tables(data=data)).federation()
