"""Some of the experiments on the real data, where it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fastfed.app import runs
from fastfed.app.cli import app

from .support import DATA, FILES, planned

REAL = {
    "afo/qmnist_heatmap": ["qmnist_writers", "mnist"],
    "cc/fashion_mnist": ["fmnist"],
    "dsgd/table1_mnist_fmnist": ["mnist"],
    "dsgd/table4_fmnist": ["fmnist"],
    "fedada2/private_tags": ["stackexchange"],
}


@pytest.mark.parametrize("file", REAL)
def test_its_model_fits_its_real_data(file: str) -> None:
    folders = [DATA / name for name in REAL[file]]
    if not all(folder.is_dir() for folder in folders):
        pytest.skip(f"the real data is not here: {', '.join(map(str, folders))}")
    sim = list(planned(file, "run.rounds=1", data=tuple(map(str, folders))).values())[-1].simulation()
    history = sim.run(rounds=1, evaluate_every=0, progress=False)
    assert history.column("train_loss")[0] < 5.0
    assert sim.executor.name == "native"


def test_one_command_runs_a_table_on_real_data(tmp_path: Path) -> None:
    folder = DATA / "stackexchange"
    if not folder.is_dir():
        pytest.skip(f"the real data is not here: {folder}")
    command = ["sweep", str(FILES["afo/stack_exchange"]), "--data", str(folder), "--out", str(tmp_path / "tags")]
    said = CliRunner().invoke(app, [*command, "--set", "run.rounds=2", "--set", "run.evaluate_every=2"])
    assert said.exit_code == 0, said.output
    found = runs.find(tmp_path / "tags")
    assert sorted(runs.read(path).name for path in found) == ["FedAdagrad", "FedAdam", "FedAvg"]
    assert {len(runs.read(path).history) for path in found} == {2}
