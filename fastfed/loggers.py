"""Runs in other people's tools, as they go: TensorBoard, Weights & Biases, MLflow. Each is a hook.

    sim.run(rounds=100, hooks=[ff.loggers.WandB(project="digits", mode="offline")])

In a file: ``[log.wandb]`` with the same arguments as keys. A run that is resumed is told from its first round.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .extras import needed
from .hooks import Hook
from .record.history import Row
from .record.writers import Recorder
from .record.writers import TensorBoard as Events
from .saved.restore import setting_json

if TYPE_CHECKING:
    from .simulation import Simulation


class Logger(Hook):
    """A hook that opens a recorder for a run, tells it every row, and closes it. Of several ranks the first does."""

    _recorder: Recorder | None = None

    def begin(self, sim: Simulation) -> None:
        if sim.ranks is None or sim.ranks.is_first:
            self._recorder = self._open(sim)

    def after_round(self, sim: Simulation, row: Row, last: bool) -> None:
        if self._recorder is not None:
            self._recorder.write(row)

    def end(self, sim: Simulation) -> None:
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = None

    def _open(self, sim: Simulation) -> Recorder:
        raise NotImplementedError

    def in_run(self, home: Path, name: str) -> Logger:
        """The logger of a run in a directory, which has that name."""
        return self


@dataclass
class TensorBoard(Logger):
    """Events of TensorBoard in a `directory`; of a run from a file, relative to the run's."""

    directory: str = "events"

    def _open(self, sim: Simulation) -> Recorder:
        return Events(self.directory, sim.history)

    def in_run(self, home: Path, name: str) -> Logger:
        return replace(self, directory=str(home / self.directory))


@dataclass
class WandB(Logger):
    """A run of Weights & Biases. `mode` "offline" writes into `directory`, for `wandb sync`; what is not given is as
    the package has it."""

    project: str = "fastfed"
    name: str | None = None
    entity: str | None = None
    mode: Literal["online", "offline", "disabled"] | None = None
    directory: str | None = None

    def _open(self, sim: Simulation) -> Recorder:
        return _WandBRun(self, sim)

    def in_run(self, home: Path, name: str) -> Logger:
        return replace(self, name=self.name or name, directory=str(home / (self.directory or "")))


class _WandBRun:
    def __init__(self, asked: WandB, sim: Simulation) -> None:
        wandb = needed("wandb", extra="wandb", by="a log for Weights & Biases")
        if asked.directory is not None:
            Path(asked.directory).mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=asked.project, name=asked.name, entity=asked.entity, mode=asked.mode, dir=asked.directory,
            config=_settings_of(sim), reinit="create_new",
        )  # fmt: skip
        for row in sim.history:
            self.write(row)

    def write(self, row: Row) -> None:
        self._run.log(_numbers(row), step=row["round"])

    def close(self) -> None:
        self._run.finish()


@dataclass
class MLflow(Logger):
    """A run of MLflow, in an `experiment` of the server or the file that `tracking_uri` names (None: as the package
    has it)."""

    experiment: str = "fastfed"
    name: str | None = None
    tracking_uri: str | None = None

    def _open(self, sim: Simulation) -> Recorder:
        return _MLflowRun(self, sim)

    def in_run(self, home: Path, name: str) -> Logger:
        return replace(self, name=self.name or name)


class _MLflowRun:
    def __init__(self, asked: MLflow, sim: Simulation) -> None:
        tracking = needed("mlflow.tracking", extra="mlflow", by="a log for MLflow", package="mlflow")
        self._entities = needed("mlflow.entities", extra="mlflow", by="a log for MLflow", package="mlflow")
        self._client = tracking.MlflowClient(tracking_uri=asked.tracking_uri)
        known = self._client.get_experiment_by_name(asked.experiment)
        home = known.experiment_id if known is not None else self._client.create_experiment(asked.experiment)
        self._id = self._client.create_run(home, run_name=asked.name).info.run_id
        for name, value in _settings_of(sim).items():
            self._client.log_param(self._id, name, value)
        for row in sim.history:
            self.write(row)

    def write(self, row: Row) -> None:
        metrics = [self._entities.Metric(name, value, 0, row["round"]) for name, value in _numbers(row).items()]
        self._client.log_batch(self._id, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._id)


def _numbers(row: Row) -> dict[str, float]:
    return {k: float(v) for k, v in row.items() if k != "round" and isinstance(v, (int, float))}


def _settings_of(sim: Simulation) -> dict[str, str | float]:
    """What the run was told, flat: optimizers by their arguments."""
    found: dict[str, str | float] = {"data": sim.fed.name, "parameters": sim.packing.parameters}
    for name, value in sim.settings.by_name().items():
        told = setting_json(name, value)
        if isinstance(told, Mapping) and "recipe" in told:
            found[name] = str(told["recipe"])
            found |= {f"{name}.{key}": _flat(one) for key, one in told["arguments"].items() if one is not None}
        elif told is not None:
            found[name] = _flat(told)
    return found


def _flat(value: Any) -> str | float:
    return value if isinstance(value, (str, int, float)) else json.dumps(value, default=str)[:250]
