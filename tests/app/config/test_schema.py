"""The JSON schema for editors: pydantic's, of the same models that files are checked by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from fastfed.app import config
from fastfed.app.commands.starter import STARTER
from fastfed.app.config import kinds
from fastfed.app.config import method as methods
from fastfed.app.config.schema import file_model
from fastfed.app.sweep import spec

from .support import DATA, MODEL, tables
from .support import tomllib as reader
from .test_round_trips import CASES

EXPERIMENTS = sorted((Path(__file__).parents[3] / "experiments").rglob("*.toml"))


@pytest.fixture(scope="module")
def model() -> Any:
    return file_model()


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return config.json_schema()


def starter() -> dict[str, Any]:
    return reader.loads(STARTER.format(file="a.toml"))


@pytest.mark.parametrize("case", CASES)
def test_it_accepts_what_a_run_writes(model: Any, case: str) -> None:
    model.model_validate(reader.loads(config.parse(CASES[case]).toml()))
    model.model_validate(CASES[case])


@pytest.mark.parametrize("method", kinds.METHODS)
def test_it_accepts_every_method(model: Any, method: str) -> None:
    shown = methods.tables(method)
    run = {"rounds": 2, "cohort": 4, **shown.get("run", {})}
    made = config.parse({"data": DATA, "model": MODEL, **shown, "run": run})
    model.model_validate(reader.loads(made.toml()))


@pytest.mark.parametrize("file", EXPERIMENTS, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_it_accepts_the_papers_set_ups(model: Any, file: Path) -> None:
    model.model_validate(reader.loads(file.read_text()))


def test_it_accepts_the_starter_and_refuses_typos_in_it(model: Any) -> None:
    model.model_validate(starter())
    for table in ("data", "model", "client", "server", "run"):
        wrong = starter()
        wrong[table]["alhpa"] = 1
        with pytest.raises(ValidationError):
            model.model_validate(wrong)
    with pytest.raises(ValidationError):
        model.model_validate({**starter(), "modle": {}})
    with pytest.raises(ValidationError):
        model.model_validate({**starter(), "method": "fedyogy"})
    with pytest.raises(ValidationError):
        model.model_validate({**starter(), "run": {"rounds": "many"}})


def test_it_knows_the_keys_of_a_sweep(schema: dict[str, Any]) -> None:
    known = schema["$defs"]["sweep"]["properties"]
    values = {"array": [], "object": {}, "integer": 1, "string": "test_accuracy"}
    wanted = {key: values[known[key]["type"]] for key in known if key != "last"}  # which does not go with last_rounds
    spec.read_spec(tables(sweep=wanted)["sweep"])  # refuses keys that it does not know
    with pytest.raises(config.ConfigError) as caught:
        spec.read_spec({"none of these": 1})
    assert f"(there are {', '.join(known)})" in str(caught.value)


def test_it_states_defaults_and_has_nothing_that_toml_lacks(schema: dict[str, Any]) -> None:
    run = schema["$defs"]["run"]["properties"]
    assert (run["batch_size"]["default"], run["loss"]["default"], run["steps"]["default"]) == (
        20,
        "cross_entropy",
        "none",
    )
    assert schema["$defs"]["server_yogi"]["properties"]["tau"]["default"] == 0.001
    assert "default" not in schema["$defs"]["server_yogi"]["properties"]["lr"]
    assert "null" not in json.dumps(schema)
    assert schema["additionalProperties"] is False
    assert {"title", "description", "properties"} <= set(schema)
    assert set(schema["properties"]) > {"name", "method", "data", "model", "client", "server", "run", "sweep"}
