"""What the experiments share: run every method from the same start, and end with a table, a picture and the rows."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import nn

import fastfed as ff
from fastfed.pictures import curves
from fastfed.record import reaches


@dataclass(frozen=True)
class Setting:
    """What all methods of an experiment have in common."""

    fed: ff.data.Federation
    model: Callable[[], nn.Module]
    cohort: int
    epochs: float
    batch_size: int
    loss: str = "cross_entropy"


@dataclass(frozen=True)
class Result:
    """A method's history, and its wall-clock seconds."""

    history: ff.History
    seconds: float


def experiment(
    about: str | None, make: Callable[..., Setting], methods: Mapping[str, Any], rounds: int, metric: str
) -> None:
    """The command line of an experiment: directories of data, then options."""

    def command(
        data: Annotated[list[Path], typer.Argument(help="Directories of the data, as in the example.")],
        rounds: Annotated[int, typer.Option(min=1, help="Federated rounds per method.")] = rounds,
        only: Annotated[str | None, typer.Option(help="Methods to run, separated by commas.")] = None,
        evaluate_every: Annotated[int, typer.Option(min=1, help="Rounds between evaluations.")] = 10,
        seed: Annotated[int, typer.Option(min=0, help="Of cohorts, batches and initial weights.")] = 0,
        out: Annotated[Path, typer.Option(help="Where the rows and the picture go.")] = Path("out"),
    ) -> None:
        chosen = _chosen(methods, only)
        setting = make(*map(str, data))
        results = {}
        for name, settings in chosen.items():
            results[name] = _run(name, setting, settings, rounds, evaluate_every, seed)
        stem = Path(sys.argv[0]).stem
        _save(results, out / f"{stem}.json")
        console = Console(width=None if sys.stdout.isatty() else 130)
        console.print(_table(results, metric, f"{setting.fed.name}: {len(setting.fed)} clients, {rounds} rounds"))
        histories = {name: result.history for name, result in results.items()}
        console.print(f"Picture: {curves(histories, metric, out / f'{stem}.png', setting.fed.name)}", highlight=False)

    command.__doc__ = about
    typer.run(command)


def _chosen(methods: Mapping[str, Any], only: str | None) -> dict[str, Any]:
    names = [name.strip() for name in only.split(",")] if only else list(methods)
    unknown = [name for name in names if name not in methods]
    if unknown:
        raise typer.BadParameter(f"--only: {', '.join(unknown)} is not among {', '.join(methods)}")
    return {name: methods[name] for name in names}


def _run(
    name: str, setting: Setting, settings: Mapping[str, Any], rounds: int, evaluate_every: int, seed: int
) -> Result:
    torch.manual_seed(seed)
    sim = ff.Simulation(
        setting.model(),
        setting.fed,
        cohort=setting.cohort,
        epochs=setting.epochs,
        batch_size=setting.batch_size,
        loss=setting.loss,  # type: ignore[arg-type]
        seed=seed,
        **settings,
    )
    print(f"{name}: {sim.executor.name}, because {sim.executor.why}", file=sys.stderr)
    began = time.perf_counter()
    history = sim.run(rounds=rounds, evaluate_every=evaluate_every)
    return Result(history, time.perf_counter() - began)


def _save(results: Mapping[str, Result], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = {name: {"seconds": one.seconds, "rounds": one.history.rounds} for name, one in results.items()}
    path.write_text(json.dumps(rows))


def _table(results: Mapping[str, Result], metric: str, title: str) -> Table:
    """The metric at the end, at its best and over the last five evaluations; skipped clients; time."""
    shown = Table(title=title)
    shown.add_column("method")
    name = metric.removeprefix("test_").replace("_", " ")
    for heading in (
        f"{name}, last",
        "mean of last 5",
        "best",
        "at round",
        "train loss",
        "skipped",
        "s/round",
        "seconds",
    ):
        shown.add_column(heading, justify="right")
    for method, one in results.items():
        shown.add_row(method, *_cells(one, metric))
    return shown


def _cells(one: Result, metric: str) -> list[str]:
    history = one.history
    values, best = history.column(metric), history.best(metric)
    at = next(row["round"] for row in history if metric in row and reaches(metric, row[metric], best))
    scale, unit = (1, "") if "loss" in metric or "mse" in metric else (100, "%")
    numbers = (values[-1], sum(values[-5:]) / len(values[-5:]), best)
    return [
        *(f"{scale * number:.4g}{unit}" for number in numbers),
        str(at),
        f"{history.last('train_loss'):.4g}",  # of the last round that trained anybody
        str(sum(history.column("skipped"))),
        f"{one.seconds / len(history):.3f}",
        f"{one.seconds:.1f}",
    ]
