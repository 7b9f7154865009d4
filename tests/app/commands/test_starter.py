"""`fastfed init`, `methods` and `schema`: what helps to write a configuration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fastfed.app import config, runs
from fastfed.app.config import kinds
from fastfed.app.config import method as homes

from ..config.support import DATA, MODEL, tomllib
from .support import assert_refused, fastfed

# ---- init -----------------------------------------------------------------------------------------------------------


def test_what_init_writes_runs_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = fastfed("init", "new.toml")
    assert said.exit_code == 0
    assert said.stdout == "Written: new.toml\nNext:    fastfed run new.toml\n"
    assert fastfed("run", "new.toml", "--quiet", "--set", "run.rounds=30").exit_code == 0
    assert runs.read("runs/new").history.best("test_accuracy") > 0.8


def test_what_init_comments_out_may_be_taken_in(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    fastfed("init", file)
    text = file.read_text()
    for line in ("# clip = 1.0", "# tau = 1e-3", "# target = ", "# checkpoint_every", "# [schedule]", "# server = "):
        assert line in text
        text = text.replace(line, line[2:])
    for line in ("# [compression]", '# kind = "top_k"', "# fraction = 0.01"):
        assert line in text
        text = text.replace(line, line[2:])
    file.write_text(text)
    made = config.load(file).resolved()
    assert made["client"]["clip"] == 1.0
    assert made["schedule"]["server"]["kind"] == "staircase"
    assert made["compression"] == {"kind": "top_k", "fraction": 0.01, **made["compression"]}


def test_init_overwrites_nothing(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("precious")
    assert_refused(fastfed("init", file), 2, f"{file}: exists already, and is left as it is; name another file")
    assert file.read_text() == "precious"


def test_init_where_nothing_can_be_written_is_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "none" / "a.toml"
    assert_refused(fastfed("init", file), 1, f"{file}: No such file or directory")


# ---- methods --------------------------------------------------------------------------------------------------------


def test_methods_names_every_one_with_its_keys_and_the_papers() -> None:
    said = fastfed("methods")
    assert said.exit_code == 0
    for method in kinds.METHODS:
        assert f"│ {method} " in said.stdout
        for name, key in homes.homes(method).items():
            assert key in said.stdout, f"{method}: {name}"
    assert 'AFO = "Adaptive Federated Optimization"' in said.stdout
    assert "server.tau = 0.001" in said.stdout
    assert "method_options.mu (must be given)" in said.stdout


@pytest.mark.parametrize("method", kinds.METHODS)
def test_a_method_is_shown_as_a_part_of_a_file_that_lacks_only_what_must_be_given(method: str) -> None:
    said = fastfed("methods", method)
    assert said.exit_code == 0
    needed = [homes.homes(method)[name] for name in homes.needed(method)]
    shown = tomllib.loads(said.stdout)
    for key in needed:
        table, _, name = key.partition(".")
        assert f"# {name} must be given" in said.stdout
        shown.setdefault(table, {})[name] = 1 if name == "concurrency" else 0.0 if name == "mu" else 0.1
    run = {"rounds": 1, "cohort": None if "timing" in shown else 4, **shown.get("run", {})}
    made = config.parse({"data": DATA, "model": MODEL, **shown, "run": run})
    assert made.resolved()["method"] == method
    assert said.stdout.startswith("# ")


def test_the_bounds_of_fathom_need_not_be_given() -> None:
    """Their names end as those of learning rates do."""
    assert homes.needed("fathom") == ("client_lr",)


def test_a_method_that_there_is_not_is_a_sentence() -> None:
    assert_refused(fastfed("methods", "fedyog"), 2, "METHOD: must be one of fedavg,")


def test_methods_have_costs() -> None:
    said = fastfed("methods", "--costs", "--model", "softmax_regression")
    assert said.exit_code == 0
    lines = said.stdout.splitlines()
    assert "d = 7,850 parameters (31,400 bytes)" in lines[0]
    cells = [cell.strip() for line in lines if "DJA, AdaGrad" in line for cell in line.strip("│").split("│")]
    assert cells == ["DJA, AdaGrad", "62,800 (2 d)", "31,400 (1 d)", "94,200 (3 d)", "31,400 (1 d)"]
    assert_refused(fastfed("methods", "--costs", "--model", "lenett"), 2, "--model: must be one of softmax_regression,")
    assert_refused(fastfed("methods", "--costs", "--model", "mlp"), 2, "--model: mlp must be told its sizes")


# ---- schema ---------------------------------------------------------------------------------------------------------


def test_schema_goes_to_standard_output_or_to_a_file(tmp_path: Path) -> None:
    said = fastfed("schema")
    assert json.loads(said.stdout) == config.json_schema()
    file = tmp_path / "new" / "fastfed.schema.json"
    assert fastfed("schema", "--out", file).stdout == f"Schema: {file}\n"
    assert json.loads(file.read_text()) == config.json_schema()
