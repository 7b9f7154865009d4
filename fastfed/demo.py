"""A small federated problem for the six server rules: softmax regression over clients that disagree.

Every client sees its own mix of classes and its own shift of the features, whose scales differ a hundredfold. Ten
clients a round take a few local steps of gradient descent; their deltas go through `kernels.aggregate_step`. All data
come from a fixed Philox stream: the curves are the same on every machine up to rounding.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

from . import kernels
from .packing import Packing
from .train.threads import one_thread_per_operation

CLIENTS, EXAMPLES, FEATURES, CLASSES = 50, 60, 20, 10
COHORT, LOCAL_STEPS, LOCAL_RATE = 10, 10, 0.1
RATES = {"sgd": 1.0, "momentum": 0.3, "adagrad": 0.1, "adam": 0.03, "yogi": 0.03, "ams": 0.03}
COLOURS = {
    "sgd": "#6c757d",
    "momentum": "#212529",
    "adagrad": "#e07a1f",
    "adam": "#2a6f97",
    "yogi": "#2a9d8f",
    "ams": "#b5179e",
}
_DATA, _COHORTS = 1, 2  # purposes of the random streams


@dataclass(frozen=True)
class Problem:
    """Examples (clients, examples, features), labels (clients, examples), and where the model's tensors lie."""

    x: Tensor
    y: Tensor
    packing: Packing

    def logits(self, model: Tensor, x: Tensor) -> Tensor:
        """Of one model (size,), or of one per client (clients, size)."""
        views = self.packing.views(model)
        return x @ views["weight"].mT + views["bias"].unsqueeze(-2)

    def loss(self, model: Tensor) -> Tensor:
        """The mean cross-entropy over all clients' examples."""
        return F.cross_entropy(self.logits(model, self.x).flatten(0, 1), self.y.flatten())

    def deltas(self, model: Tensor, cohort: Tensor) -> Tensor:
        """What a few local steps of gradient descent change, for every client of the cohort: (cohort, size)."""
        x, wanted = self.x[cohort], F.one_hot(self.y[cohort], CLASSES).float()
        local = model.repeat(len(cohort), 1)
        views = self.packing.views(local)
        for _ in range(LOCAL_STEPS):
            error = (self.logits(local, x).softmax(-1) - wanted) / EXAMPLES
            views["weight"] -= LOCAL_RATE * (error.mT @ x)
            views["bias"] -= LOCAL_RATE * error.sum(1)
        return local - model


@dataclass(frozen=True)
class Run:
    """One rule's descent: the loss before the first round and after each, and the seconds that it took."""

    rule: str
    losses: list[float]
    seconds: float
    server_seconds: float


@dataclass(frozen=True)
class Runs:
    """All six descents, and the best loss that any model can reach."""

    runs: list[Run]
    best_loss: float


def make_problem(seed: int = 0) -> Problem:
    """The clients' data."""

    def normal(step: int, *shape: int) -> Tensor:
        stream = kernels.Stream(seed, purpose=_DATA, step=step)
        return kernels.normal(torch.Size(shape).numel(), stream, backend="reference").view(shape)

    mixes = (2.0 * normal(0, CLIENTS, 1, CLASSES)).softmax(-1).cumsum(-1)
    dice = kernels.uniform(CLIENTS * EXAMPLES, kernels.Stream(seed, purpose=_DATA, step=1), backend="reference")
    y = (dice.view(CLIENTS, EXAMPLES, 1) > mixes).sum(-1).clamp_(max=CLASSES - 1)
    scales = torch.logspace(-1.5, 0.5, FEATURES)
    centres, shifts = normal(2, CLASSES, FEATURES), 0.5 * normal(3, CLIENTS, 1, FEATURES)
    x = (centres[y] + shifts + 1.5 * normal(4, CLIENTS, EXAMPLES, FEATURES)) * scales
    return Problem(x, y, Packing.from_shapes({"weight": (CLASSES, FEATURES), "bias": (CLASSES,)}))


def run(rounds: int) -> Runs:
    """Every server rule from the same start, with the same cohorts."""
    problem = make_problem()
    with one_thread_per_operation():  # so small that threads would spend their time waiting for each other
        for rule in RATES:
            _descend(problem, rule, 1)  # the first call of a kernel may compile it; that is not the rule's time
        return Runs([_descend(problem, rule, rounds) for rule in RATES], _best_loss(problem))


def _descend(problem: Problem, rule: str, rounds: int) -> Run:
    model = problem.packing.zeros()
    state = kernels.server_state(rule, model)
    weights = torch.full((COHORT,), 1 / COHORT)
    losses, server_seconds = [problem.loss(model).item()], 0.0
    start = time.perf_counter()
    for cohort in _cohorts(rounds):
        deltas = problem.deltas(model, cohort)
        before = time.perf_counter()
        kernels.aggregate_step(rule, model, deltas, weights, state, lr=RATES[rule])
        server_seconds += time.perf_counter() - before
        losses.append(problem.loss(model).item())
    return Run(rule, losses, time.perf_counter() - start, server_seconds)


def _cohorts(rounds: int, seed: int = 0) -> Iterator[Tensor]:
    for number in range(rounds):
        stream = kernels.Stream(seed, purpose=_COHORTS, round=number)
        yield kernels.permutation(CLIENTS, stream)[:COHORT].sort().values


def _best_loss(problem: Problem) -> float:
    model = problem.packing.zeros().requires_grad_()
    solver = torch.optim.LBFGS([model], max_iter=1000, line_search_fn="strong_wolfe", tolerance_grad=1e-6)

    def closure() -> Tensor:
        solver.zero_grad()
        loss = problem.loss(model)
        loss.backward()
        return loss

    solver.step(closure)
    return problem.loss(model).item()


def table(runs: Runs) -> Table:
    """The losses on the way, and the time."""
    rounds = len(runs.runs[0].losses) - 1
    stops = sorted({round(rounds * share) for share in (0, 0.1, 0.25, 0.5, 1)})
    shown = Table(
        title=f"Six server rules: {COHORT} of {CLIENTS} clients a round, softmax regression",
        caption=f"the best loss that any model reaches is {runs.best_loss:.4f}",
    )
    shown.add_column("rule")
    shown.add_column("server lr", justify="right")
    for stop in stops:
        shown.add_column(f"round {stop}", justify="right")
    shown.add_column("seconds", justify="right")
    shown.add_column("server us/round", justify="right")
    for one in runs.runs:
        losses = (f"{one.losses[stop]:.4f}" for stop in stops)
        each = f"{1e6 * one.server_seconds / rounds:.0f}"
        shown.add_row(one.rule, f"{RATES[one.rule]:g}", *losses, f"{one.seconds:.2f}", each)
    return shown


def picture(runs: Runs, path: Path) -> None:
    """Loss above the best possible, by round, one line per rule."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    figure, axes = plt.subplots(figsize=(9, 5.2), layout="constrained")
    for one in runs.runs:
        above = [loss - runs.best_loss for loss in one.losses]
        style = "--" if one.rule == "yogi" else "-"  # it runs close to adam
        label = f"{one.rule}  (lr {RATES[one.rule]:g})"
        axes.plot(above, style, color=COLOURS[one.rule], linewidth=1.8, label=label)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlim(0, len(runs.runs[0].losses) - 1)
    axes.set_xlabel("round")
    axes.set_ylabel("training loss above the best possible")
    axes.set_title(f"Six server rules on softmax regression, {COHORT} of {CLIENTS} clients a round", loc="left")
    axes.grid(alpha=0.3, which="major")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, title="server rule")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=140)
    plt.close(figure)
