"""A simulation into a checkpoint, and out of it again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from .._version import __version__
from ..data import Federation
from ..record.history import History, Row
from . import checkpoint as checkpoints
from .recipe import recipe_of
from .restore import (
    beginning_with,
    constants,
    describe,
    moved,
    restore_model,
    restore_settings,
    restored,
    run_id,
    setting_json,
)
from .rows import Rows

if TYPE_CHECKING:
    from ..simulation import Simulation

_CONSTANT = "constant."  # what begins the names of tensors of the module that are not trained


class SavedRun:
    """What a simulation knows of its checkpoints: which `run` they belong to, whether it was `resumed` from one, and
    what the directories hold that it was saved to."""

    def __init__(self, sim: Simulation) -> None:
        self.run, self.resumed = run_id(sim.settings.by_name(), sim.params), False
        self._fed = sim.fed
        self._rows: dict[Path, Rows] = {}
        self._told: dict[str, Any] | None = None
        self._beginnings: dict[Path, Any] = {}  # where it was resumed: what the checkpoint knew of its rows

    def claim(self, directory: str | Path, round: int) -> None:
        """Refuses a directory whose checkpoints this run, at this round, would mix with."""
        checkpoints.claim(directory, self.run, round, self.resumed)

    def save(self, sim: Simulation, directory: str | Path, keep: int | None) -> Path:
        """Writes a checkpoint; its path. With `keep`, all but the last `keep` and the best are removed."""
        home = Path(directory).resolve()
        if home not in self._rows:
            self._rows[home] = Rows(home, self._beginnings.get(home))
        rows = sim.history.rounds
        manifest = self._manifest(sim) | {"history": self._rows[home].add(rows)}
        tensors = sim.tensors() | {f"{_CONSTANT}{name}": tensor for name, tensor in constants(sim.model).items()}
        target = checkpoints.write(directory, sim.round, tensors, manifest)
        if keep is not None:
            there = [number for number in checkpoints.rounds_of(directory) if 1 <= number <= sim.round]
            checkpoints.prune(directory, keep, spare=_best_round(rows, sim.metric, there))
        return target

    def take_up(self, path: str | Path, manifest: dict[str, Any]) -> None:
        """The simulation is the one of this checkpoint, whose run it goes on with."""
        self.run, self.resumed = manifest["run"], True
        if "beginning" in manifest:
            self._beginnings[checkpoints.newest(path).parent.resolve()] = manifest["beginning"]

    @cached_property
    def _fingerprint(self) -> str:
        return self._fed.fingerprint()

    def _manifest(self, sim: Simulation) -> dict[str, Any]:
        """What is the same in all checkpoints of a run: made once."""
        if self._told is None or self._told["run"] != self.run:
            self._told = self._made_manifest(sim)
        return self._told

    def _made_manifest(self, sim: Simulation) -> dict[str, Any]:
        model_recipe, data_recipe = recipe_of(sim.model), recipe_of(sim.fed)
        settings = sim.settings.by_name() | {"executor": sim.executor.name}  # what "auto" stands for here
        return {
            "fastfed": __version__,
            "run": self.run,
            "settings": {name: setting_json(name, value) for name, value in settings.items()},
            "model": model_recipe and model_recipe.json(),
            "module": describe(sim.model),
            "data": data_recipe and data_recipe.json(),
            "data_name": sim.fed.name,
            "fingerprint": self._fingerprint,
        }


def resume(
    kind: type[Simulation], path: str | Path, model: nn.Module | None, fed: Federation | None, given: dict[str, Any]
) -> Simulation:
    """The simulation of a checkpoint; model, data and settings as `given`, where they must or may be."""
    manifest, tensors = checkpoints.read(path)
    module = restore_model(restored("model", manifest["model"], model), manifest, beginning_with(_CONSTANT, tensors))
    data = restored("fed", manifest["data"], fed)
    if data.fingerprint() != manifest["fingerprint"]:
        raise ValueError(f"fed: is not the data of this checkpoint ({manifest['data_name']}): its contents differ")
    saved = manifest["settings"]
    sim = kind(module, data, **restore_settings(saved, moved(saved, given)))
    sim.load(tensors)
    sim.history = History(manifest["history"])
    sim.saved.take_up(path, manifest)
    return sim


def _best_round(rows: Sequence[Row], metric: str, among: Collection[int]) -> list[int]:
    """The evaluated round of these with the best metric, if there is one."""
    evaluated = [row for row in (rows[number - 1] for number in sorted(among)) if row.get(metric) is not None]
    if not evaluated:
        return []
    best = History(evaluated).best(metric)
    return [row["round"] for row in evaluated if row[metric] == best][:1]
