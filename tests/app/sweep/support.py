"""A small sweep on the embedded digits, and outcomes made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastfed.app.sweep import Point, PointOutcome
from fastfed.app.sweep.cells import GridCell

BASE = """
[data]
name = "digits"
partition = "dirichlet"
clients = 20
alpha = 0.5

[model]
name = "mlp"
sizes = [64, 10]

[client]
rule = "sgd"
lr = 0.1

[server]
rule = "sgd"

[run]
rounds = 4
cohort = 4
batch_size = 10
evaluate_every = 2
"""


def write(folder: Path, more: str = "", base: str = BASE) -> Path:
    """A configuration file with `more` tables at its end."""
    file = folder / "digits.toml"
    file.write_text(base + more)
    return file


def point(settings: Mapping[str, Any], variant: str | None = None, seed: int = 0) -> Point:
    return Point(f"{variant}{settings}{seed}", variant, dict(settings), seed, {})


def cell(
    settings: Mapping[str, Any],
    values: float | Sequence[float | None] | None,
    variant: str | None = None,
    metric: str = "test_accuracy",
    loss: float | None = None,
) -> GridCell:
    """A cell with a value for each seed; chosen by these, or by the training `loss` where it is given."""
    each = values if isinstance(values, Sequence) else [values]
    return GridCell(
        point(settings, variant),
        tuple(outcome(settings, value, variant, seed, metric, loss) for seed, value in enumerate(each)),
    )


def outcome(
    settings: Mapping[str, Any],
    value: float | None,
    variant: str | None = None,
    seed: int = 0,
    metric: str = "test_accuracy",
    loss: float | None = None,
) -> PointOutcome:
    """A run that is done, as `cell` has them."""
    select, choice = (metric, value) if loss is None else ("train_loss", loss)
    return PointOutcome(
        point(settings, variant, seed),
        "done",
        metric=metric,
        value=value,
        best=value,
        select=select,
        choice=choice,
        curve=[(1, value)],
    )
