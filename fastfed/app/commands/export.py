"""`fastfed export`: a run's model as a file that torch reads without FastFed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .terminal import CommandError, say

if TYPE_CHECKING:
    from torch import nn

    from ..runs import Run


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's directory, or one of its checkpoints.")],
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="Where it goes: model.pt or model.safetensors.")],
    number: Annotated[
        int | None, typer.Option("--round", help="Of this round, whose checkpoint must be there. Default: the newest.")
    ] = None,
    best: Annotated[bool, typer.Option("--best", help="Of the best round that has a checkpoint.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there already.")] = False,
) -> None:
    """Write a run's model as a plain state_dict.

    Neither the data nor FastFed is needed to use it: model.load_state_dict(torch.load("model.pt")), or load_file of
    safetensors.torch. A run keeps checkpoints of its last rounds and of the best.

    Example: fastfed export runs/digits --to model.pt
    """
    from ...saved.export import FORMATS, write_state

    if to.suffix not in FORMATS:
        raise typer.BadParameter(f"must end in {' or '.join(FORMATS)}, got {str(to)!r}", param_hint="--to")
    if to.exists() and not force:
        raise typer.BadParameter(f"{to} is there already; --force replaces it", param_hint="--to")
    checkpoint = _checkpoint(run, number, best)
    write_state(_model(run, checkpoint), to)
    say(f"Model: {to.resolve()}, of {checkpoint}")


def _checkpoint(run: Path, number: int | None, best: bool) -> Path:
    from ...saved import checkpoint as checkpoints
    from .. import runs

    try:
        newest = checkpoints.newest(run)
    except FileNotFoundError as error:
        raise CommandError(str(error)) from error
    if number is None and not best:
        return newest
    if run.is_file() or (number is not None and best):
        raise typer.BadParameter("choose one checkpoint: a file, a round, or the best", param_hint="--round")
    there = {checkpoints.round_of(path): path for path in checkpoints.all_of(newest.parent)}
    if best:
        told = runs.read(run)
        number = max(
            (row["round"] for row in told.history if row["round"] in there and row.get(told.metric) is not None),
            key=lambda round: _goodness(told, round),
            default=None,
        )
        if number is None:
            raise CommandError(f"{run}: no round with a checkpoint was evaluated")
    if number not in there:
        rounds = ", ".join(map(str, sorted(there)))
        raise typer.BadParameter(f"there is no checkpoint of round {number}, only of {rounds}", param_hint="--round")
    return there[number]


def _goodness(run: Run, round: int) -> float:
    from ...record.evaluate import higher_is_better

    value = float(run.history.rounds[round - 1][run.metric])
    return value if higher_is_better(run.metric) else -value


def _model(run: Path, checkpoint: Path) -> nn.Module:
    """A run in a directory knows how to make a model of its user's own, too."""
    from ...saved.export import trained_model
    from .. import runs
    from ..config import ConfigError, parse

    try:
        own = parse(runs.read(run).config).make_model() if runs.holds_run(run) else None
        return trained_model(checkpoint, own)
    except ConfigError:
        raise
    except ValueError as error:
        raise CommandError(f"{run}: {error}") from error
