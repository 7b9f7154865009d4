"""What the experiments share: run every method from the same start, and end with a table, a picture and the rows."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import nn

import fastfed as ff
from fastfed.pictures import curves


@dataclass(frozen=True)
class Setting:
    """What all methods of an experiment have in common."""

    fed: ff.data.Federation
    model: Callable[[], nn.Module]
    cohort: Any
    epochs: float
    batch_size: int
    loss: str = "cross_entropy"

    def simulation(self, settings: Mapping[str, Any], seed: int) -> ff.Simulation:
        """A method's simulation from the start that all share; what the method sets itself comes first."""
        timing = settings.get("timing")
        common = {"cohort": self.cohort, "epochs": self.epochs, "batch_size": self.batch_size, "loss": self.loss}
        if timing is not None:
            del common["cohort"]
            if timing.sets_epochs:
                del common["epochs"]
        torch.manual_seed(seed)
        return ff.Simulation(self.model(), self.fed, seed=seed, **(common | dict(settings)))


@dataclass(frozen=True)
class Result:
    """A method's history, and its wall-clock seconds."""

    history: ff.History
    seconds: float


def experiment(
    about: str | None,
    make: Callable[..., Setting],
    methods: Mapping[str, Any],
    rounds: int,
    metric: str,
    *,
    target: float | None = None,
    by: Sequence[str] = ("round",),
) -> None:
    """The command line of an experiment: directories of data, then options. Runs end at the `target`, if there is one;
    the picture has a panel for each of `by`."""

    def command(
        data: Annotated[list[Path], typer.Argument(help="Directories of the data, as in the example.")],
        rounds: Annotated[int, typer.Option(min=1, help="Federated rounds per method.")] = rounds,
        only: Annotated[str | None, typer.Option(help="Methods to run, separated by commas.")] = None,
        evaluate_every: Annotated[int, typer.Option(min=1, help="Rounds between evaluations.")] = 10,
        seed: Annotated[int, typer.Option(min=0, help="Of cohorts, batches and initial weights.")] = 0,
        out: Annotated[Path, typer.Option(help="Where the rows and the picture go.")] = Path("out"),
    ) -> None:
        chosen = chosen_methods(methods, only)
        setting = make(*map(str, data))
        goal = None if target is None else {metric: target}
        results = {}
        for name, settings in chosen.items():
            results[name] = run(name, setting, settings, rounds, evaluate_every, seed, goal)
        title = f"{setting.fed.name}: {len(setting.fed)} clients, {rounds} rounds" + (" at most" if target else "")
        report(results, metric, title, out, target, by)

    command.__doc__ = about
    typer.run(command)


def report(
    results: Mapping[str, Result],
    metric: str,
    title: str,
    out: Path,
    target: float | None = None,
    by: Sequence[str] = ("round",),
) -> None:
    """Ends an experiment: rows as JSON and a picture in `out`, both named as the script, and a table."""
    stem = Path(sys.argv[0]).stem
    _save(results, out / f"{stem}.json")
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(_table(results, metric, title, target))
    histories = {name: result.history for name, result in results.items()}
    console.print(f"Picture: {curves(histories, metric, out / f'{stem}.png', title, by)}", highlight=False)


def chosen_methods(methods: Mapping[str, Any], only: str | None) -> dict[str, Any]:
    names = [name.strip() for name in only.split(",")] if only else list(methods)
    unknown = [name for name in names if name not in methods]
    if unknown:
        raise typer.BadParameter(f"--only: {', '.join(unknown)} is not among {', '.join(methods)}")
    return {name: methods[name] for name in names}


def run(
    name: str,
    setting: Setting,
    settings: Mapping[str, Any],
    rounds: int,
    evaluate_every: int,
    seed: int,
    target: Mapping[str, float] | None = None,
) -> Result:
    """One method, timed."""
    sim = setting.simulation(settings, seed)
    print(f"{name}: {sim.executor.name}, because {sim.executor.why}", file=sys.stderr)
    began = time.perf_counter()
    history = sim.run(rounds=rounds, evaluate_every=evaluate_every, target=target)
    return Result(history, time.perf_counter() - began)


def _save(results: Mapping[str, Result], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = {name: {"seconds": one.seconds, "rounds": one.history.rounds} for name, one in results.items()}
    path.write_text(json.dumps(rows))


Cell = Callable[[Result], str]


def _table(results: Mapping[str, Result], metric: str, title: str, target: float | None) -> Table:
    """One row per method; columns that no method has are left out."""
    shown = Table(title=title)
    shown.add_column("method")
    cells = _columns(results, metric, target)
    for heading in cells:
        shown.add_column(heading, justify="right")
    for method, one in results.items():
        shown.add_row(method, *(cell(one) for cell in cells.values()))
    return shown


def _columns(results: Mapping[str, Result], metric: str, target: float | None) -> dict[str, Cell]:
    """The metric at the end, at its best and over the last five evaluations; skipped clients; costs; time."""
    name = metric.removeprefix("test_").replace("_", " ")
    shows = partial(_shown, metric)
    columns: dict[str, Cell] = {
        f"{name}, last": lambda one: shows(one.history.last(metric)),
        "mean of last 5": lambda one: shows(_mean(one.history.column(metric)[-5:])),
        "best": lambda one: shows(one.history.best(metric)),
        "at round": lambda one: str(one.history.rounds_to(metric, one.history.best(metric))),
        "train loss": lambda one: f"{one.history.last('train_loss'):.4g}",  # of the last round that trained anybody
        "skipped": lambda one: str(sum(one.history.column("skipped"))),
        "GB moved": lambda one: f"{1e-9 * sum(one.history.column('bytes_down') + one.history.column('bytes_up')):.4g}",
    }
    if target is not None:
        columns[f"rounds to {shows(target)}"] = lambda one: str(one.history.rounds_to(metric, target) or "not reached")
    for column, heading in (("clock", "simulated s"), ("age_mean", "mean age"), ("epsilon", "epsilon")):
        if any(one.history.column(column) for one in results.values()):
            columns[heading] = partial(_last, column)
    if any(one.history.column("client_lr") for one in results.values()):
        columns["lr, epochs, batch at the end"] = _tuned
    columns["s/round"] = lambda one: f"{one.seconds / len(one.history):.3f}"
    columns["seconds"] = lambda one: f"{one.seconds:.1f}"
    return columns


def _shown(metric: str, value: float) -> str:
    return f"{value:.4g}" if "loss" in metric or "mse" in metric else f"{100 * value:.4g}%"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _last(column: str, one: Result) -> str:
    values = one.history.column(column)
    if not values:
        return ""
    return f"{_mean(values):.3g}" if column.endswith("mean") else f"{values[-1]:.6g}"


def _tuned(one: Result) -> str:
    if not one.history.column("client_lr"):
        return ""
    return ", ".join(f"{one.history.last(name):.3g}" for name in ("client_lr", "epochs", "batch_size"))
