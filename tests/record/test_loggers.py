"""Runs told to other tools, checked with the real packages where they are installed, offline."""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import fastfed as ff
from fastfed.app import config, runs
from fastfed.loggers import Logger, MLflow, TensorBoard, WandB

from ..app.config.support import tables


def needs(package: str) -> Any:
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed")


def simulation() -> ff.Simulation:
    fed = ff.data.iid(ff.data.digits(), clients=8)
    return ff.Simulation(ff.models.mlp(64, 10), fed, client=ff.clients.SGD(lr=0.1), cohort=3)


class Kept(Logger):
    """A logger that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def _open(self, sim: ff.Simulation) -> Any:
        self.told.append("open")
        return self

    def write(self, row: Any) -> None:
        self.told.append(row["round"])

    def close(self) -> None:
        self.told.append("close")


def test_a_logger_is_told_every_row_and_closed() -> None:
    kept = Kept()
    sim = simulation()
    sim.run(rounds=2, progress=False, hooks=[kept])
    sim.run(rounds=1, progress=False, hooks=[kept])
    assert kept.told == ["open", 1, 2, "close", "open", 3, "close"]


@pytest.mark.parametrize(("logger", "package"), [(WandB(), "wandb"), (MLflow(), "mlflow")])
def test_a_package_that_is_not_there_is_named(logger: Logger, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [package, *(name for name in sys.modules if name.startswith(f"{package}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    if package == "mlflow":
        monkeypatch.setitem(sys.modules, "mlflow.tracking", None)
    with pytest.raises(ImportError, match=rf"needs {package}: pip install 'fastfed\[{package}\]'"):
        simulation().run(rounds=1, progress=False, hooks=[logger])


# ---- from files -----------------------------------------------------------------------------------------------------


def test_a_file_names_its_loggers_and_keeps_them() -> None:
    log = {"tensorboard": {"directory": "tb"}, "wandb": {"project": "p", "mode": "offline"}, "mlflow": {}}
    made = config.parse(tables(log=log))
    assert made.loggers == {
        "tensorboard": TensorBoard("tb"), "wandb": WandB("p", mode="offline"), "mlflow": MLflow(),
    }  # fmt: skip
    again = config.parse(config.document.tomllib.loads(made.toml()))
    assert again.loggers == made.loggers
    assert "log" not in config.parse(tables()).resolved()


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ({"tensorbord": {}}, "log.tensorbord: [log] has no such option (it takes tensorboard, wandb, mlflow)"),
        ({"wandb": {"mode": "of"}}, "log.wandb.mode: must be"),
        ({"wandb": {"projekt": "x"}}, "log.wandb.projekt: [log.wandb] has no such option"),
    ],
)
def test_a_logger_that_is_none_is_refused(log: dict[str, Any], words: str) -> None:
    with pytest.raises(config.ConfigError) as refused:
        config.parse(tables(log=log))
    assert words in str(refused.value)


def test_a_run_may_be_resumed_with_other_loggers(tmp_path: Path) -> None:
    runs.execute(config.parse(tables()), tmp_path / "a", progress=False)
    longer = tables(log={"mlflow": {"experiment": "x"}}, run={"rounds": 3, "cohort": 4})
    assert runs.difference_from(runs.read(tmp_path / "a"), config.parse(longer)) is None


# ---- the real packages ----------------------------------------------------------------------------------------------


@needs("tensorboard")
def test_tensorboard_has_every_round(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    runs.execute(config.parse(tables(log={"tensorboard": {}})), tmp_path / "a", progress=False)
    events = EventAccumulator(str(tmp_path / "a" / "events"))
    events.Reload()
    assert [one.step for one in events.Scalars("train_loss")] == [1, 2]


@needs("wandb")
@pytest.mark.filterwarnings("ignore")
def test_wandb_has_every_round_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    asked = tables(log={"wandb": {"mode": "offline", "project": "digits"}})
    runs.execute(config.parse(asked), tmp_path / "a", progress=False)
    (held,) = (tmp_path / "a" / "wandb").glob("offline-run-*/run-*.wandb")
    until = time.monotonic() + 20  # a process of its own writes the file, perhaps a moment after the run has ended
    while (told := held.read_bytes()).count(b"train_loss") < 2 and time.monotonic() < until:
        time.sleep(0.1)
    assert told.count(b"train_loss") >= 2  # the records of both rounds, and the settings
    assert b"client.lr" in told


@needs("mlflow")
@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_every_round_of_a_run_that_went_on(tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    sim = simulation()
    sim.run(rounds=2, progress=False)
    sim.run(rounds=1, progress=False, hooks=[MLflow(experiment="digits", name="mine", tracking_uri=uri)])
    client = MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
    assert (run.info.run_name, run.info.status) == ("mine", "FINISHED")
    assert run.data.params["client.lr"] == "0.1"
    assert [one.step for one in client.get_metric_history(run.info.run_id, "train_loss")] == [1, 2, 3]
