"""The record room: a row per round, kept in memory and written as JSON lines or TensorBoard events."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ..aggregate import Aggregate
from ..checks import nearest
from ..clients import DeltaSGD
from ..extras import needed
from ..plan import RoundPlan
from ..shown import Shown
from ..train import Outcome
from ..train.batches import examples_seen
from .evaluate import higher_is_better

Row = dict[str, Any]
_OF_THOSE_WHO_COUNT = ("train_loss", "delta_norm", "delta_norm_std", "step_size", "step_size_min", "step_size_max")
ROOMS = ("plan", "train", "aggregate", "step", "tune", "record")


@dataclass(repr=False)
class History(Shown):
    """The rows of a run, one per round, in order: dictionaries that JSON can hold.

    Every row has round (counted from 1), clients, examples (that they have), steps, gradients (examples in the batches
    of their steps: one counts as often as it is looked at), train_loss, delta_norm (its mean over clients) and
    delta_norm_std, step_size and its _min and _max, counted (clients that are in the mean), skipped (clients refused),
    idle (clients without a step), changed (whether the model moved), bytes_down and bytes_up (of the whole round; on a
    simulated clock of all that was sent since the round before, in vain or not), client_optimizer_bytes, server_lr and
    seconds_<room>. Delta-SGD adds step_size_grown and step_size_measured: the shares of local steps whose size was
    bound by its growth, and by what was measured of the gradients; first steps are bound by neither. Tuned runs add
    client_lr, epochs and batch_size as used in the round; private ones clip, noise_std and the epsilon spent so far;
    asynchronous ones age_mean, age_max and ages ([age, number of updates] each); a simulated clock adds clock (its
    seconds), and how many updates in all so far were dropped, lost (a window closed), stale (older than max_age) and
    discarded (later than a wave wanted). Rows of evaluated rounds have test_loss and test_accuracy, test_recall_at_5 or
    test_mse besides, metrics of your own, and what was asked for per client. None stands for what is not a finite
    number, or not there because no client counted.
    """

    rounds: list[Row] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rounds)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rounds)

    def _facts(self) -> dict[str, object]:
        last = {name: self.values(name)[-1] for name in self.names if _is_worth_a_look(name) and self.values(name)}
        return {"rounds": len(self), **last}

    @property
    def names(self) -> list[str]:
        """The columns that there are, in the order in which rounds first had them."""
        return list(dict.fromkeys(name for row in self.rounds for name in row))

    def column(self, name: str) -> list[Any]:
        """A column's values, of the rounds that have one: the test set is not evaluated in every round. Two columns of
        equal length are `columns`. A name that no round has is refused with those that there are."""
        self._check(name)
        return self.values(name)

    def columns(self, *names: str) -> dict[str, list[Any]]:
        """Columns of equal length, by name: of the rounds that have a value in each of them."""
        for name in names:
            self._check(name)
        rows = [row for row in self.rounds if all(row.get(name) is not None for name in names)]
        return {name: [row[name] for row in rows] for name in names}

    def values(self, name: str) -> list[Any]:
        """As `column`; none of a column that is not there, perhaps not yet."""
        return [row[name] for row in self.rounds if row.get(name) is not None]

    def _check(self, name: str) -> None:
        if self.rounds and not any(name in row for row in self.rounds):
            raise KeyError(f"{name}: no round has it; {self._told}.{nearest(name, tuple(self.names))}")

    @property
    def _told(self) -> str:
        return f"there are {', '.join(self.names)}" if self.rounds else "no round has been run"

    def to_pandas(self) -> Any:
        """A pandas DataFrame with a line per round, its number the index, and nothing (NaN) where a round has none."""
        pandas = needed("pandas", extra="notebook", by="a table of the history")
        return pandas.DataFrame(self.rounds, columns=self.names or ["round"]).set_index("round")

    def plot(self, *names: str, by: str = "round", ax: Any = None) -> Any:
        """Draws columns by another one, "round" or "clock" say, into matplotlib's `ax` or a new figure's; the axes.
        Without names, the metric of the test set, or the training loss where none was evaluated."""
        pyplot = needed("matplotlib.pyplot", extra="plots", by="a picture of the history", package="matplotlib")
        chosen = names or (next((name for name in self.names if _is_metric(name)), "train_loss"),)
        found = {name: self.columns(by, name) for name in chosen}
        axes = pyplot.subplots(figsize=(5, 3), layout="constrained")[1] if ax is None else ax
        for name, columns in found.items():
            values = columns[name]
            axes.plot(
                columns[by], values, label=_in_words(name), marker="o" if len(values) < _FEW else None, markersize=3
            )
        axes.set_xlabel(_in_words(by))
        if len(chosen) == 1:
            axes.set_ylabel(_in_words(chosen[0]))
        else:
            axes.legend()
        axes.grid(alpha=0.3)
        return axes

    def last(self, name: str) -> Any:
        """The newest value of a column."""
        values = self.column(name)
        if not values:
            raise KeyError(f"{name}: no round has a value; {self._told}")
        return values[-1]

    def best(self, name: str) -> float:
        """The best finite value of a metric."""
        if not self.column(name):
            raise KeyError(f"{name}: no round has a value; {self._told}")
        return float((max if higher_is_better(name) else min)(self.values(name)))

    def rounds_to(self, name: str, target: float) -> int | None:
        """The first round (counted from 1) whose metric is at least as good as `target`; None if there is none."""
        self._check(name)
        for row in self.rounds:
            if reaches(name, row.get(name), target):
                return int(row["round"])
        return None

    def gradients_to(self, name: str, target: float) -> int | None:
        """As `rounds_to`, the gradients of examples that all clients have computed by then."""
        last = self.rounds_to(name, target)
        counts = [row["gradients"] for row in self.rounds[: last or 0] if "gradients" in row]
        return sum(counts) if last is not None and len(counts) == last else None

    def without_seconds(self) -> list[Row]:
        """The rows without their timings: what two equal runs share."""
        return [{k: v for k, v in row.items() if not k.startswith("seconds")} for row in self.rounds]


_FEW = 30  # values of a line whose points are marked


def _is_metric(name: str) -> bool:
    return name.startswith("test_") and name != "test_loss"


def _is_worth_a_look(name: str) -> bool:
    return name == "train_loss" or name.startswith(("test_", "validation_"))


def _in_words(name: str) -> str:
    return name.replace("_", " ")


def reaches(name: str, value: float | None, target: float) -> bool:
    """Whether a metric's value is at least as good as the target."""
    if value is None:
        return False
    return value >= target if higher_is_better(name) else value <= target


def training_columns(plan: RoundPlan, outcome: Outcome, aggregate: Aggregate) -> Row:
    """What the clients' scalars say of a round; the loss is the mean over clients that count, by examples."""
    row: Row = {"counted": aggregate.counted, "skipped": aggregate.refused, "idle": aggregate.idle}
    scalars = outcome.scalars
    examples, steps = scalars["examples"], scalars["steps"]
    row |= {"clients": len(examples), "examples": int(examples.sum()), "steps": int(steps.sum())}
    row["gradients"] = int(examples_seen(steps.long(), examples.long(), plan.batch_size, plan.seen).sum())
    counts = (steps > 0) & ~outcome.refused
    if aggregate.counted == 0:
        return row | dict.fromkeys(_OF_THOSE_WHO_COUNT) | _bounds(plan, scalars, counts)
    all_count = bool(counts.all())  # as usual: then nothing need be picked out

    def of_those(values: Tensor) -> Tensor:
        return values if all_count else values[counts]

    row["train_loss"] = _weighted_mean(of_those(scalars["mean_loss"]), of_those(examples))
    norms = of_those(scalars["delta_norm"])
    row |= {"delta_norm": float(norms.mean()), "delta_norm_std": float(norms.std(correction=0))}
    sizes = of_those(scalars["step_size"])
    row |= {"step_size": float(sizes.mean()), "step_size_min": float(sizes.min()), "step_size_max": float(sizes.max())}
    return row | _bounds(plan, scalars, counts)


def _bounds(plan: RoundPlan, scalars: Mapping[str, Tensor], counts: Tensor) -> Row:
    """Where clients run Delta-SGD, in which share of the local steps of those that `counts` (n,) has each of its two
    conditions bound the step size; None if nobody counted."""
    if not any(isinstance(client, DeltaSGD) for client in plan.optimizers):
        return {}
    told = counts & ~scalars["grown_steps"].isnan()
    steps = float(scalars["steps"][told].sum())
    columns = {"step_size_grown": "grown_steps", "step_size_measured": "measured_steps"}
    return {name: float(scalars[of][told].sum()) / steps if steps else None for name, of in columns.items()}


def finite(row: Mapping[str, Any]) -> Row:
    """The row with None for every number that is not finite: JSON has no other."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}


def _weighted_mean(values: Tensor, weights: Tensor) -> float:
    return float((values * weights).sum() / weights.sum())
