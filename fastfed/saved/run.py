"""A simulation into a checkpoint, and out of it again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor, nn

from .._version import __version__
from ..data import Federation
from ..data.dataset import has_fingerprint
from ..ranks import current as current_ranks
from ..record.history import History, Row
from . import checkpoint as checkpoints
from .recipe import recipe_of
from .restore import (
    CONSTANT,
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
from .rows import Rows, SavedRows

if TYPE_CHECKING:
    from ..simulation import Simulation

_Result = TypeVar("_Result")


class SavedRun:
    """What a simulation knows of its checkpoints: which `run` they belong to, whether it was `resumed` from one, and
    what the directories hold that it was saved to."""

    def __init__(self, sim: Simulation) -> None:
        self.run, self.resumed = run_id(sim.settings.by_name(), sim.params), False
        self._fed, self._ranks = sim.fed, sim.ranks
        self._rows: dict[str, Rows] = {}
        self._told: tuple[str, str] | None = None  # of which run, and what
        self._known: dict[Path, SavedRows] = {}  # where it was resumed: what the checkpoint knew of its rows

    def claim(self, directory: str | Path, round: int) -> None:
        """Refuses a directory whose checkpoints this run, at this round, would mix with."""
        self._on_first(lambda: checkpoints.claim(directory, self.run, round, self.resumed))

    def save(self, sim: Simulation, directory: str | Path, keep: int | None) -> Path:
        """Writes a checkpoint; its path. With `keep`, all but the last `keep` and the best are removed."""
        if self._ranks is not None:
            self._ranks.agree()
        tensors = sim.tensors() | {f"{CONSTANT}{name}": tensor for name, tensor in constants(sim.model).items()}
        return self._on_first(lambda: self._write(sim, tensors, directory, keep))

    def _write(self, sim: Simulation, tensors: dict[str, Tensor], directory: str | Path, keep: int | None) -> Path:
        rows = sim.history.rounds
        saved_rows = self._rows_in(directory).add(rows)
        target = checkpoints.write(directory, sim.round, tensors, self._told_of(sim), saved_rows)
        if keep is not None:
            checkpoints.prune(directory, keep, spare=lambda there: _best_round(rows, sim.metric, there))
        return target

    def _on_first(self, function: Callable[[], _Result]) -> _Result:
        """Files are written by one process; of several ranks, the first."""
        return function() if self._ranks is None else self._ranks.on_first(function)

    def _rows_in(self, directory: str | Path) -> Rows:
        place = os.path.abspath(directory)
        if place not in self._rows:
            home = Path(place).resolve()
            self._rows[place] = Rows(home, self._known.get(home))
        return self._rows[place]

    def take_up(self, path: str | Path, manifest: dict[str, Any]) -> None:
        """The simulation is the one of this checkpoint, whose run it goes on with."""
        self.run, self.resumed = manifest["run"], True
        if "saved_rows" in manifest and (self._ranks is None or self._ranks.is_first):
            self._known[checkpoints.newest(path).parent.resolve()] = manifest["saved_rows"]

    @cached_property
    def _fingerprint(self) -> str:
        return self._fed.fingerprint()

    def _told_of(self, sim: Simulation) -> str:
        """What is the same in all checkpoints of a run, as JSON: made once."""
        if self._told is None or self._told[0] != self.run:
            self._told = self.run, json.dumps(self._manifest(sim), allow_nan=False)
        return self._told[1]

    def _manifest(self, sim: Simulation) -> dict[str, Any]:
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
    manifest, tensors = _read(path)
    module = restore_model(restored("model", manifest["model"], model), manifest, beginning_with(CONSTANT, tensors))
    data = restored("fed", manifest["data"], fed)
    if not has_fingerprint(data, manifest["fingerprint"]):
        raise ValueError(f"fed: is not the data of this checkpoint ({manifest['data_name']}): its contents differ")
    saved = manifest["settings"]
    sim = kind(module, data, **restore_settings(saved, moved(saved, given)))
    sim.load(tensors)
    sim.history = History(manifest["history"])
    sim.saved.take_up(path, manifest)
    return sim


def _read(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A checkpoint; of several ranks the first one reads it, and tells the others."""
    ranks = current_ranks()
    if ranks is None:
        return checkpoints.read(path)
    held: dict[str, Tensor] = {}

    def read() -> dict[str, Any]:
        manifest, tensors = checkpoints.read(path)
        held.update(tensors)
        return manifest

    return ranks.on_first(read), ranks.spread_tensors(held)


def _best_round(rows: Sequence[Row], metric: str, among: Collection[int]) -> list[int]:
    """The evaluated round of these with the best metric, if there is one."""
    there = (rows[number - 1] for number in sorted(among) if 1 <= number <= len(rows))
    evaluated = [row for row in there if row.get(metric) is not None]
    if not evaluated:
        return []
    best = History(evaluated).best(metric)
    return [row["round"] for row in evaluated if row[metric] == best][:1]
