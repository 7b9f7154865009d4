"""Checkpoints on disk: tensors as safetensors, the rest as JSON; complete or absent, never half-written.

A directory holds ``round-00000120.json`` and the file of tensors that it names, with its SHA-256. The JSON is written
last and put in place by renaming, so a checkpoint exists exactly when its JSON does. The rows of the run are beside it,
in a file that all checkpoints share (``rows.py``), so that a checkpoint does not grow with the run.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from . import rows

FORMAT = 2
_READABLE = (1, FORMAT)  # in format 1 the rows are in the JSON itself


class DamagedCheckpoint(ValueError):
    """A checkpoint cannot be read: the message names it, says why, and offers the one before it."""


def write(directory: str | Path, round: int, tensors: Mapping[str, Tensor], manifest: Mapping[str, Any]) -> Path:
    """Writes the checkpoint of a round; the path of its JSON."""
    home = Path(directory)
    home.mkdir(parents=True, exist_ok=True)
    scratch = home / f".round-{round:08d}.{os.getpid()}.tmp"
    _save(tensors, scratch)
    digest = _digest(scratch)
    held = home / f"round-{round:08d}-{digest[:12]}.safetensors"
    _put(scratch, held)
    target = home / f"round-{round:08d}.json"
    content = {"format": FORMAT, "round": round, "tensors": held.name, "sha256": digest, **manifest}
    scratch.write_text(_sealed(content))
    _put(scratch, target)
    for other in home.glob(f"round-{round:08d}-*.safetensors"):  # of an earlier checkpoint of the same round
        if other != held:
            other.unlink()
    return target


def _save(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Writes them, from any device; where the system refuses, such as a full disk, its own error: safetensors hides it
    in a text."""
    try:
        save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, path)
    except SafetensorError as error:
        refused = re.search(r"os error (\d+)", str(error))
        if refused is None:
            raise
        number = int(refused[1])
        raise OSError(number, os.strerror(number), str(path)) from error


def read(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The manifest and the tensors, on the CPU, of a checkpoint: a JSON file, or a directory, whose newest is taken."""
    target = newest(path)
    try:
        manifest = _opened(target.read_text())
        if manifest["format"] not in _READABLE:
            raise ValueError(f"it has format {manifest['format']!r}, this FastFed reads {FORMAT}")
        if manifest["format"] == FORMAT:
            manifest |= {"beginning": manifest["history"], "history": rows.read(target.parent, manifest["history"])}
        held = target.parent / manifest["tensors"]
        if _digest(held) != manifest["sha256"]:
            raise ValueError(f"{held.name} does not hold what was written")
        return manifest, load_file(held)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise DamagedCheckpoint(f"{target}: damaged ({error or type(error).__name__}). {_offer(target)}") from error


def _sealed(manifest: Mapping[str, Any]) -> str:
    """The manifest as JSON, with a digest of its own."""
    text = json.dumps(manifest, allow_nan=False)
    return json.dumps({"seal": hashlib.sha256(text.encode()).hexdigest(), "manifest": manifest}, allow_nan=False)


def _opened(text: str) -> dict[str, Any]:
    """The manifest that `_sealed` wrote, unchanged since."""
    content = json.loads(text)
    manifest: dict[str, Any] = content["manifest"]
    if hashlib.sha256(json.dumps(manifest).encode()).hexdigest() != content["seal"]:
        raise ValueError("its contents are not what was written")
    return manifest


def claim(directory: str | Path, run: str, round: int, resumed: bool) -> None:
    """Makes sure that a directory holds no checkpoint that a run at this round would mix with.

    Checkpoints of another run are refused, and so are later ones of this run unless it was `resumed` from an earlier
    one: then they are set aside, out of the way of "the newest".
    """
    later = [path for path in all_of(directory) if int(path.stem.removeprefix("round-")) > round]
    for path in all_of(directory):
        if _run_of(path) not in (run, None):
            raise ValueError(f"checkpoint: {directory} holds {path.name} of another run; name another directory")
    if later and not resumed:
        raise ValueError(
            f"checkpoint: {directory} holds {later[-1].name}, and this run is at round {round}; go on from there with "
            f"Simulation.resume, or name another directory"
        )
    for path in later:
        path.replace(path.with_name(f"{path.name}.set-aside"))


def _run_of(path: Path) -> str | None:
    """Which run a checkpoint belongs to; None if it cannot be read."""
    try:
        return str(_opened(path.read_text())["run"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def newest(path: str | Path) -> Path:
    """The newest checkpoint of a directory; a file is its own."""
    place = Path(path)
    if place.is_file():
        return place
    found = all_of(place)
    if not found:
        raise FileNotFoundError(f"{place}: holds no checkpoint (round-*.json)")
    return found[-1]


def all_of(directory: str | Path) -> list[Path]:
    """The checkpoints of a directory, the oldest first."""
    return sorted(Path(directory).glob("round-*.json"))


def rounds_of(directory: str | Path) -> set[int]:
    """The rounds that a directory has checkpoints of."""
    return {int(path.stem.removeprefix("round-")) for path in all_of(directory)}


def prune(directory: str | Path, keep: int, spare: Iterable[int] = ()) -> None:
    """Removes all but the last `keep` checkpoints and those of the rounds to `spare`."""
    home, names = Path(directory), sorted(os.listdir(directory))  # looked at once: it is done after every checkpoint
    spared = {f"round-{round:08d}" for round in spare}
    complete = [name[: -len(".json")] for name in names if name.startswith("round-") and name.endswith(".json")]
    gone = {stem for stem in complete[:-keep] if stem not in spared}
    for stem in gone:
        (home / f"{stem}.json").unlink()
    left = set(complete) - gone
    for name in names:
        is_held = name.startswith("round-") and name.endswith(".safetensors")
        is_left_over = name.startswith(".round-") and name.endswith(".tmp")  # of a run that was killed while it wrote
        if is_left_over or (is_held and name.removesuffix(".safetensors").rpartition("-")[0] not in left):
            (home / name).unlink()
    _prune_rows(home, [home / name for name in names if name.startswith(rows.NAME) and name.endswith(".jsonl")])


def _prune_rows(home: Path, files: list[Path]) -> None:
    """Removes files of rows that no checkpoint knows, where there are several."""
    if len(files) > 1:
        told = "".join(path.read_text() for path in home.glob("round-*.json*"))
        for file in files:
            if f'"{file.name}"' not in told:
                file.unlink()


def _offer(damaged: Path) -> str:
    older = [path for path in all_of(damaged.parent) if path < damaged]
    return f"The one before it is {older[-1]}: resume from that." if older else "There is none before it."


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _put(scratch: Path, target: Path) -> None:
    """Renames once the contents have reached the disk."""
    with scratch.open("rb") as file:
        os.fsync(file.fileno())
    scratch.replace(target)
