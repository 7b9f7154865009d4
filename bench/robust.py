"""`python -m fastfed.bench.robust`: hostile clients against every reduction, as a table for docs/robust.md.

Federated averaging on the embedded digits, the same clients hostile in every round; what is told is the test set's
accuracy in the end, the mean over seeds. Nothing is timed.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn

from .. import data, models
from ..aggregate import GeometricMedian, Krum, Median, NormBounded, Reduction, TrimmedMean
from ..clients import SGD, Blend, Part
from ..compression import Encoded
from ..methods import Settings
from ..packing import Packing
from ..simulation import Simulation
from .common.choosing import choose

REDUCTIONS: Mapping[str, Callable[[float], Reduction | None]] = {
    "Mean": lambda hostile: None,
    "NormBounded": lambda hostile: NormBounded(),
    "TrimmedMean": lambda hostile: TrimmedMean(hostile),
    "Median": lambda hostile: Median(),
    "GeometricMedian": lambda hostile: GeometricMedian(),
    "Krum": lambda hostile: Krum(hostile),
    "Krum(keep=4)": lambda hostile: Krum(hostile, keep=4),
}
LR, OVERFLOWS = 0.1, 1e38

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

Spoil = Callable[[Tensor, Tensor], Tensor]  # deltas of the hostile and of the honest -> what the hostile send


@dataclass(frozen=True)
class Sends:
    """A compression that is none: what clients from number `honest` on send is another vector."""

    spoil: Spoil
    honest: int

    feedback = False

    def encode(self, vectors: Tensor, packing: Packing, ids: Tensor, seed: int, round: int) -> Encoded:
        hostile = (ids >= self.honest).to(vectors.device)
        if bool(hostile.any()):
            vectors = vectors.clone()
            vectors[hostile] = self.spoil(vectors[hostile], vectors[~hostile])
        return Encoded(vectors, self.message_bytes(packing))

    def message_bytes(self, packing: Packing, dtype: torch.dtype = torch.float32) -> int:
        return dtype.itemsize * packing.size


def _little(hostile: Tensor, honest: Tensor) -> Tensor:
    """Baruch et al. (2019): all of them the same vector, so near the others' mean that it hides among them."""
    spread, centre = torch.std_mean(honest, dim=0) if len(honest) > 1 else (honest[:1].sum(0) * 0, honest.sum(0))
    return (centre - 1.5 * spread).expand_as(hostile)


SENT: dict[str, Spoil] = {
    "flip": lambda hostile, _: -hostile,
    "flip10": lambda hostile, _: -10 * hostile,
    "scale": lambda hostile, _: 100 * hostile,
    "huge": lambda hostile, _: torch.full_like(hostile, 1e30),
    "little": _little,
}
ATTACKS = {
    "none": "nothing: nobody is hostile",
    "fail": "nothing finite: their training overflows, always",
    "flip": "their delta the other way",
    "flip10": "the same, 10 times as long",
    "scale": "their delta 100 times as long",
    "huge": "1e30 everywhere",
    "little": "the others' mean less 1.5 deviations",
}


@dataclass(frozen=True)
class RobustRow:
    """One attack against one reduction: accuracies of the test set, one a seed, and how many clients were refused."""

    attack: str
    reduction: str
    accuracies: list[float]
    refused: int

    @property
    def cell(self) -> str:
        mean = 100 * statistics.fmean(self.accuracies)
        return f"{mean:.1f}" if mean > 0 else "-"


def _settings(attack: str, honest: int) -> Settings:
    if attack == "fail":
        parts = (Part(SGD(lr=LR)), Part(SGD(lr=OVERFLOWS)))
        return {"client": Blend(parts, choose=lambda one: int(one.client >= honest))}
    spoils = {} if attack == "none" else {"compression": Sends(SENT[attack], honest)}
    return {"client": SGD(lr=LR), **spoils}


def measure(attack: str, reduction: str, clients: int, hostile: int, rounds: int, seeds: int) -> RobustRow:
    """The last `hostile` of the clients attack; all take part in every round."""
    accuracies, refused = list[float](), 0
    for seed in range(seeds):
        fed = data.dirichlet(data.digits(), clients=clients, alpha=1.0, seed=seed)
        sim = Simulation(
            _model(seed), fed, cohort=clients, weights="uniform", batch_size=20, seed=seed,
            aggregation=REDUCTIONS[reduction](hostile / clients), **_settings(attack, clients - hostile),
        )  # fmt: skip
        history = sim.run(rounds=rounds, evaluate_every=0, progress=False)
        refused += sum(row["skipped"] for row in history.rounds)
        accuracies.append(float(sim.evaluate()["test_accuracy"]))
    return RobustRow(attack, reduction, accuracies, refused)


def _model(seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return models.mlp(64, 64, 10)


def table(rows: list[RobustRow]) -> str:
    """Attacks down, reductions across, in Markdown."""
    across = list(dict.fromkeys(row.reduction for row in rows))
    cells = {(row.attack, row.reduction): row.cell for row in rows}
    return "\n".join(_lines(list(dict.fromkeys(row.attack for row in rows)), across, cells))


def _lines(down: list[str], across: list[str], cells: Mapping[tuple[str, str], Any]) -> Iterator[str]:
    yield f"| hostile clients send | {' | '.join(f'`{name}`' for name in across)} |"
    yield f"|---|{'---:|' * len(across)}"
    for attack in down:
        yield f"| {ATTACKS[attack]} | {' | '.join(str(cells[attack, name]) for name in across)} |"


@app.command()
def main(
    attacks: Annotated[str, typer.Option(help="Some of the attacks, separated by commas; patterns, too.")] = "*",
    reductions: Annotated[str, typer.Option(help="Some of the reductions, likewise.")] = "*",
    clients: Annotated[int, typer.Option(min=3, help="Clients, all of which take part in every round.")] = 20,
    hostile: Annotated[int, typer.Option(min=1, help="How many of them are hostile: less than half.")] = 4,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of a run.")] = 50,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of which the mean is told.")] = 3,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all accuracies as JSON rows.")] = None,
) -> None:
    """Run every attack against every reduction and print the table of accuracies."""
    if 2 * hostile >= clients:
        raise typer.BadParameter(f"--hostile: must be less than half of {clients} clients, got {hostile}")
    rows = [
        measure(attack, reduction, clients, hostile, rounds, seeds)
        for attack in choose(attacks.split(","), ATTACKS)
        for reduction in choose(reductions.split(","), REDUCTIONS)
    ]
    print(f"test accuracy, %: {hostile} of {clients} clients hostile, {rounds} rounds, mean of {seeds} seeds")
    print(table(rows))
    if json_file is not None:
        json_file.write_text(json.dumps([vars(row) for row in rows], indent=1))


if __name__ == "__main__":
    app()
