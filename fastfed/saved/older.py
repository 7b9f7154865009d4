"""Checkpoints of formats 1 and 2, which are read and no longer written: ``round-00000120.json`` under a seal of its
own, and the file of tensors that it names (``round-00000120-0123456789ab.safetensors``) with its SHA-256."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

FORMATS = (1, 2)  # in format 1 the rows are in the JSON itself


def read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What is told of a run, and its tensors; ValueError if a file does not hold what was written."""
    manifest = read_manifest(path)
    if manifest["format"] not in FORMATS:
        raise ValueError(f"it has format {manifest['format']!r}, and JSON files have 1 or 2")
    held = path.parent / manifest["tensors"]
    if hashlib.sha256(held.read_bytes()).hexdigest() != manifest["sha256"]:
        raise ValueError(f"{held.name} does not hold what was written")
    return manifest, load_file(held)


def read_manifest(path: Path) -> dict[str, Any]:
    """What is told of a run, unchanged since it was written."""
    content = json.loads(path.read_text())
    manifest: dict[str, Any] = content["manifest"]
    if hashlib.sha256(json.dumps(manifest).encode()).hexdigest() != content["seal"]:
        raise ValueError("its contents are not what was written")
    return manifest


def remove(home: Path, round: int) -> None:
    """Removes the checkpoint of a round, if there is one, with its tensors."""
    json_file = home / f"round-{round:08d}.json"
    if json_file.exists():
        json_file.unlink()
        for held in home.glob(f"round-{round:08d}-*.safetensors"):
            held.unlink()
