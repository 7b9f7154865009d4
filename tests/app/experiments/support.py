"""The files of experiments/ by their names, and what their variants are set to."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fastfed.app.config import Config
from fastfed.app.config import document as documents
from fastfed.app.sweep import plan
from fastfed.app.sweep.spec import Spec, read_spec

ROOT = Path(__file__).parents[3]
HOME = ROOT / "experiments"
DATA = ROOT.parent / "shared" / "data"
BASE = HOME / "base"  # what files share: no experiments themselves
FILES = {
    str(path.relative_to(HOME).with_suffix("")): path
    for path in sorted(HOME.rglob("*.toml"))
    if BASE not in path.parents
}


@cache
def tables_of(file: str) -> dict[str, Any]:
    """What a file and its bases say; nobody changes it."""
    return documents.read(FILES[file])


def spec_of(file: str) -> Spec:
    return read_spec(tables_of(file).get("sweep", {}))


def head_of(file: str) -> str:
    """The comment that a file begins with, as one line."""
    lines = FILES[file].read_text().splitlines()
    return " ".join(line.lstrip("# ") for line in lines[: next(i for i, line in enumerate(lines) if not line)])


def pinned(file: str) -> list[str]:
    """Overrides that leave one value on the axes that all variants have."""
    spec = spec_of(file)
    axes = [axis for axis in spec.all_axes() if axis in spec.axes or axis.key.endswith(".lr")]
    return [f"{axis.key}={axis.values[0]}" for axis in axes]


def planned(file: str, *sets: str, data: Sequence[str] = ("somewhere",)) -> dict[str, Config]:
    """The configuration of each variant, with the first value on every axis."""
    made = plan(FILES[file], sets=[*pinned(file), *sets], data=data)
    found: dict[str, Config] = {}
    for point in made.points:
        found.setdefault(point.variant or "", made.configs[point.name])
    return found


@cache
def resolved(file: str) -> dict[str, dict[str, Any]]:
    """The whole configuration of each variant, the axes at their first values."""
    return {name: config.resolved() for name, config in planned(file).items()}


def values(file: str, *keys: str) -> dict[str, tuple[Any, ...]]:
    """What the variants of a file have at dotted keys; None where they have none."""

    def at(tables: Any, key: str) -> Any:
        for part in key.split("."):
            tables = tables.get(part) if isinstance(tables, dict) else None
        return tables

    return {name: tuple(at(tables, key) for key in keys) for name, tables in resolved(file).items()}


def grid(file: str) -> dict[str, list[Any]]:
    return {axis.key: list(axis.values) for axis in spec_of(file).axes}


def half_powers(low: float, high: float) -> Any:
    """10^low, 10^(low + 1/2), ..., 10^high."""
    return pytest.approx([10 ** (low + step / 2) for step in range(int(2 * (high - low)) + 1)], rel=1e-5)
