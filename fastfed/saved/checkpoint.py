"""Checkpoints in a directory: one file each, complete or absent, never half-written.

``round-00000120.safetensors`` holds the tensors, and in its metadata everything else, under a seal (``sealed.py``). It
is put in place by renaming. The rows of the run are beside it, in a file that all checkpoints share (``rows.py``), so
that a checkpoint does not grow with the run. Checkpoints of formats 1 and 2 (``older.py``) may be there, too.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from ..files import aside
from . import older, rows, sealed
from .rows import SavedRows

FORMAT = 3
OF_A_RUN = "checkpoint"  # the directory in that of a run which holds its checkpoints
_COMPLETE = re.compile(r"round-(\d+)\.(?:json|safetensors)")
_TENSORS_OF_OLDER = re.compile(r"round-(\d+)-[0-9a-f]+\.safetensors")


class DamagedCheckpoint(ValueError):
    """A checkpoint cannot be read: the message names it, says why, and offers the one before it."""


def write(directory: str | Path, round: int, tensors: Mapping[str, Tensor], told: str, history: SavedRows) -> Path:
    """Writes the checkpoint of a round; its path. `told`: JSON of what is the same in all checkpoints of the run."""
    home = Path(directory)
    home.mkdir(parents=True, exist_ok=True)
    target = home / f"round-{round:08d}.safetensors"
    known = asdict(history)
    tail = known.pop("tail")
    own = json.dumps({"format": FORMAT, "round": round, "history": known})
    with aside(target, synced=True) as scratch:
        sealed.write(scratch, tensors, {"checkpoint": own, "run": told, "rows": tail})
    older.remove(home, round)
    return target


def read(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What is told of a run and its tensors, on the CPU, of a checkpoint: a file, or a directory, whose newest is
    taken. `history` are the rows, and `saved_rows` what the checkpoint knows of their file (not in format 1)."""
    target = newest(path)
    try:
        manifest, tensors = older.read(target) if target.suffix == ".json" else _read(target)
        if manifest["format"] > 1:
            saved = SavedRows(**manifest["history"])
            manifest |= {"saved_rows": saved, "history": rows.read(target.parent, saved)}
        return manifest, tensors
    except Exception as error:  # damage makes readers raise almost anything
        raise DamagedCheckpoint(f"{target}: damaged ({error or type(error).__name__}). {_offer(target)}") from error


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    texts, tensors = sealed.read(path)
    manifest = json.loads(texts["checkpoint"])
    if manifest["format"] != FORMAT:
        raise ValueError(f"it has format {manifest['format']!r}, this FastFed reads {FORMAT}")
    manifest["history"]["tail"] = texts["rows"]
    return manifest | json.loads(texts["run"]), tensors


def claim(directory: str | Path, run: str, round: int, resumed: bool) -> None:
    """Makes sure that a directory holds no checkpoint that a run at this round would mix with.

    Checkpoints of another run are refused, and so are later ones of this run unless it was `resumed` from an earlier
    one: then they are set aside, out of the way of "the newest".
    """
    there = all_of(directory)
    for path in there:
        if _is_of_another(run, path):
            raise ValueError(f"checkpoint: {directory} holds {path.name} of another run; name another directory")
    later = [path for path in there if round_of(path) > round]
    if later and not resumed:
        raise ValueError(
            f"checkpoint: {directory} holds {later[-1].name}, and this run is at round {round}; go on from there with "
            f"Simulation.resume, or name another directory"
        )
    for path in later:
        path.replace(path.with_name(f"{path.name}.set-aside"))


def _is_of_another(run: str, path: Path) -> bool:
    """Whether a checkpoint belongs to another run; not if it cannot be read."""
    try:
        if path.suffix == ".json":
            return str(older.read_manifest(path)["run"]) != run
        if json.loads(sealed.read_texts(path)["run"])["run"] == run:
            return False
        sealed.check(path)  # all of it is read only where it would be a reason to refuse
        return True
    except Exception:
        return False


def newest(path: str | Path) -> Path:
    """The newest checkpoint of a directory, or of the run that is there; a file is its own."""
    place = Path(path)
    if place.is_file():
        return place
    found = all_of(place) or all_of(place / OF_A_RUN)
    if not found:
        raise FileNotFoundError(f"{place}: holds no checkpoint (round-*.safetensors)")
    return found[-1]


def all_of(directory: str | Path) -> list[Path]:
    """The checkpoints of a directory, the oldest first."""
    home = Path(directory)
    names = os.listdir(home) if home.is_dir() else []
    return sorted((home / name for name in names if _COMPLETE.fullmatch(name)), key=_age)


def round_of(path: Path) -> int:
    """The round of a checkpoint."""
    return int(path.stem.removeprefix("round-"))


def _age(path: Path) -> tuple[int, str]:
    """Of one round, the one of today's format is the newer."""
    return round_of(path), path.suffix


def rounds_of(directory: str | Path) -> set[int]:
    """The rounds that a directory has checkpoints of."""
    return {round_of(path) for path in all_of(directory)}


def prune(directory: str | Path, keep: int, spare: Callable[[Collection[int]], Collection[int]]) -> None:
    """Removes all but the last `keep` checkpoints and those that `spare` chooses of the rounds that are there."""
    home, names = Path(directory), os.listdir(directory)  # looked at once: it is done after every checkpoint
    complete = {name: int(found[1]) for name in names if (found := _COMPLETE.fullmatch(name))}
    there = sorted(set(complete.values()))
    left = {*there[-keep:], *spare(there)}
    of_older = {round for name, round in complete.items() if round in left and name.endswith(".json")}
    for name in [*(name for name, round in complete.items() if round not in left), *_left_over(names, of_older)]:
        (home / name).unlink()
    _prune_rows(home, [name for name in names if name.startswith(rows.NAME) and name.endswith(".jsonl")])


def _left_over(names: Iterable[str], of_older: Collection[int]) -> list[str]:
    """Files of no checkpoint: of a run that was killed while it wrote, or tensors whose JSON is not there."""
    held = {name: int(found[1]) for name in names if (found := _TENSORS_OF_OLDER.fullmatch(name))}
    unfinished = [name for name in names if name.startswith(".round-") and name.endswith(".tmp")]
    return unfinished + [name for name, round in held.items() if round not in of_older]


def _prune_rows(home: Path, names: list[str]) -> None:
    """Removes files of rows that no checkpoint knows, where there are several."""
    if len(names) > 1:
        told = "".join(map(_told_by, home.glob("round-*")))
        for name in names:
            if name not in told:
                (home / name).unlink()


def _told_by(path: Path) -> str:
    """What a file of a checkpoint tells of others; of one that is damaged, all that it has."""
    if ".json" in path.suffixes:
        return path.read_text(errors="replace")
    try:
        return str(sealed.read_texts(path))
    except Exception:
        return path.read_bytes().decode(errors="replace")


def _offer(damaged: Path) -> str:
    if not _COMPLETE.fullmatch(damaged.name):
        return "A checkpoint is called round-00000120.safetensors."
    before = [path for path in all_of(damaged.parent) if _age(path) < _age(damaged)]
    return f"The one before it is {before[-1]}: resume from that." if before else "There is none before it."
