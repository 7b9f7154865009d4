"""Recipes: what was made by FastFed's functions and settings can be made again from JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import fastfed as ff
from fastfed.saved.recipe import NoRecipe, Recipe, from_json, recipe_of, to_json

SETTINGS = [
    ff.clients.SGD(lr=0.1, prox=0.2),
    ff.clients.SM3(lr=0.1, form="adam", cover="I", delay=3),
    ff.clients.DeltaSGD(same_batch=True),
    ff.servers.FedAMS(lr=0.1, vmax0=1e-3, bias_correction=True),
    ff.plan.Poisson(0.25),
    ff.plan.Given(((0, 1), (2,))),
    ff.schedules.Drops(100, at=(0.3,)),
    ff.exchange.ControlVariates(),
    None,
    "uniform",
    (1, 2.5, "x"),
]


@pytest.mark.parametrize("setting", SETTINGS, ids=repr)
def test_settings_go_through_json(setting: object) -> None:
    assert from_json(json.loads(json.dumps(to_json("setting", setting)))) == setting


def test_models_remember_how_they_were_made() -> None:
    model = ff.models.mlp(6, 5, 4)
    recipe = recipe_of(model)
    assert recipe == Recipe("models.mlp", {"*": (6, 5, 4)})
    assert str(Recipe.from_json(json.loads(json.dumps(recipe.json()))).make()) == str(model)
    assert recipe_of(ff.models.emnist_cnn(62, dropout=False)) == Recipe(
        "models.emnist_cnn", {"classes": 62, "dropout": False, "dense_relu": None}
    )


@pytest.mark.parametrize("given", [{}, {"activations": "code"}, {"first_relu": True}], ids=str)
def test_a_default_that_was_another_one_is_written_down(given: dict[str, Any]) -> None:
    """A recipe of the EMNIST CNN from before it had the paper's activations keeps its ReLU, a new one has none."""
    model = ff.models.emnist_cnn(**given)
    recipe = recipe_of(model)
    assert recipe is not None
    assert str(Recipe.from_json(json.loads(json.dumps(recipe.json()))).make()) == str(model)
    formerly = Recipe("models.emnist_cnn", given).make()
    assert isinstance(formerly[8], torch.nn.ReLU)
    assert str(formerly) == str(ff.models.emnist_cnn(**{**given, "dense_relu": True}))


def test_a_federation_remembers_its_data_too() -> None:
    fed = ff.data.dirichlet(ff.data.digits(test_every=7), clients=9, alpha=0.2, seed=4)
    recipe = recipe_of(fed)
    assert recipe is not None
    again = Recipe.from_json(json.loads(json.dumps(recipe.json()))).make()
    assert again.fingerprint() == fed.fingerprint()
    assert torch.equal(again.rows, fed.rows)


def test_paths_become_text(tmp_path: Path) -> None:
    assert to_json("path", tmp_path) == str(tmp_path)


def test_what_cannot_be_written_has_no_recipe() -> None:
    fed = ff.data.from_arrays(torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64), client=[0, 0, 1, 1])
    assert recipe_of(fed) is None
    with pytest.raises(NoRecipe, match="schedule: function cannot be written as JSON"):
        to_json("schedule", lambda round: 1.0)
    assert recipe_of(torch.nn.Linear(2, 2)) is None
