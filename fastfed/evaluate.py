"""What a model is worth on examples: its loss, and the metric that goes with the loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .data import Examples, Federation, Visit
from .losses import IGNORED, Loss, find_loss
from .train.model import LocalModel
from .train.threads import check_threads, in_order, one_thread_per_operation

_CHUNK = 128  # examples per forward pass: enough for the arithmetic, few enough for the cache
_NATIVE_CHUNK = 1024  # enough for all threads, few enough for the outputs of a large vocabulary


class Tally(NamedTuple):
    """Sums over examples: `weight` is what the mean loss is over, hits of `possible` make the metric."""

    loss: float = 0.0
    weight: float = 0.0
    hits: float = 0.0
    possible: float = 0.0

    def plus(self, other: Tally) -> Tally:
        return Tally(*(a + b for a, b in zip(self, other, strict=True)))


Count = Callable[[Tensor, Tensor], tuple[float, float, float]]  # outputs, targets -> weight, hits, possible


def _count_labels(outputs: Tensor, targets: Tensor) -> tuple[float, float, float]:
    """Accuracy: over the labels that are not ignored."""
    counts = targets != IGNORED
    right = (outputs.argmax(-1) == targets) & counts
    possible = float(counts.sum())
    return possible, float(right.sum()), possible


def _count_recall(outputs: Tensor, targets: Tensor) -> tuple[float, float, float]:
    """Recall@5: of all tags that apply, how many are among an example's five likeliest."""
    likeliest = outputs.topk(min(5, outputs.shape[-1]), dim=-1).indices
    return float(len(targets)), float(targets.gather(-1, likeliest).sum()), float(targets.sum())


def _count_examples(outputs: Tensor, targets: Tensor) -> tuple[float, float, float]:
    """No metric but the loss."""
    return float(len(targets)), 0.0, 0.0


_METRICS: dict[str, tuple[str | None, Count]] = {
    "cross_entropy": ("accuracy", _count_labels),
    "binary_cross_entropy": ("recall_at_5", _count_recall),
    "mse": ("mse", _count_examples),
}


def metric_of(loss: Loss) -> str:
    """The name of the metric that goes with a loss; "loss" where there is none."""
    return (_METRICS[loss][0] if isinstance(loss, str) and loss in _METRICS else None) or "loss"


def higher_is_better(metric: str) -> bool:
    """Whether more of a metric, with or without a prefix such as "test_", is better."""
    return "loss" not in metric and "mse" not in metric


Predict = Callable[[Tensor, Examples, Tensor], Tensor]  # packed model (d,), examples, rows (n,) -> outputs (n, ...)


class TorchPredictions:
    """The outputs of a module in evaluation mode, in parts that several threads may ask for at once."""

    def __init__(self, module: nn.Module, threads: int, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self._models: SimpleQueue[LocalModel] = SimpleQueue()  # one per thread
        for _ in range(threads):
            model = LocalModel(module, self.device)
            model.module.eval()
            self._models.put(model)

    @torch.no_grad()
    def __call__(self, x: Tensor, examples: Examples, rows: Tensor) -> Tensor:
        model = self._models.get()
        try:
            tensors = {**model.constants(x.dtype), **model.packing_as(x.dtype).views(x.to(self.device))}
            inputs, _ = examples.batch(rows, x.dtype)
            return model(tensors, inputs.to(self.device)).cpu()
        finally:
            self._models.put(model)


class Evaluator:
    """Evaluates a module in evaluation mode. `threads` (default: torch's number) changes no bit of the result.

    `predict` computes the outputs on threads of its own, as the native engine does; by default torch computes them.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        *,
        predict: Predict | None = None,
        threads: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        check_threads(threads)
        self.loss, self.metric = find_loss(loss), metric_of(loss)
        self._count = _METRICS[loss][1] if isinstance(loss, str) else _count_examples
        threads = torch.get_num_threads() if threads is None else threads
        self._predict = TorchPredictions(module, threads, device) if predict is None else predict
        self._threads, self._chunk = (threads, _CHUNK) if predict is None else (1, _NATIVE_CHUNK)

    def evaluate(self, x: Tensor, examples: Examples) -> dict[str, float]:
        """`loss` and the metric of the packed model `x` (d,) over all examples."""
        rows = torch.arange(len(examples))
        total = Tally()
        for tally in self._tallies(x, examples, list(rows.split(self._chunk))):
            total = total.plus(tally)
        return self._metrics(total)

    def per_client(self, x: Tensor, visit: Visit) -> dict[str, float]:
        """The metric over the clients of a visit that have something to measure: mean, 10th and 90th percentile."""
        begins, ends = visit.offsets[:-1].tolist(), visit.offsets[1:].tolist()
        rows = [visit.rows[b:e] for b, e in zip(begins, ends, strict=True) if e > b]
        values = [self._metrics(tally)[self.metric] for tally in self._tallies(x, visit.examples, rows)]
        spread = torch.tensor([value for value in values if not math.isnan(value)], dtype=torch.float64)
        if len(spread) == 0:
            raise ValueError(f"per_client: no client has examples that {self.metric} could be measured on")
        low, high = torch.quantile(spread, torch.tensor([0.1, 0.9], dtype=torch.float64)).tolist()
        return {f"{self.metric}_mean": float(spread.mean()), f"{self.metric}_p10": low, f"{self.metric}_p90": high}

    def _tallies(self, x: Tensor, examples: Examples, groups: list[Tensor]) -> Iterator[Tally]:
        """The tally of every group of rows, in order."""
        with one_thread_per_operation(), torch.no_grad():
            yield from in_order(lambda rows: self._tally(x, examples, rows), groups, self._threads)

    @torch.no_grad()
    def _tally(self, x: Tensor, examples: Examples, group: Tensor) -> Tally:
        total = Tally()
        for rows in group.split(self._chunk):
            outputs, targets = self._predict(x, examples, rows), examples.targets_of(rows, x.dtype)
            weight, hits, possible = self._count(outputs, targets)
            total = total.plus(Tally(float(self.loss(outputs, targets)) * weight, weight, hits, possible))
        return total

    def _metrics(self, tally: Tally) -> dict[str, float]:
        loss = tally.loss / tally.weight if tally.weight else float("nan")
        metrics = {"loss": loss}
        if self.metric == "mse":
            metrics["mse"] = loss
        elif self.metric != "loss":
            metrics[self.metric] = tally.hits / tally.possible if tally.possible else float("nan")
        return metrics


_MOST_CLIENTS = 1000


def evaluation_visit(fed: Federation) -> Visit:
    """The clients that an evaluation per client asks, with their test examples, else their training examples."""
    some = torch.arange(len(fed))[:: -(-len(fed) // _MOST_CLIENTS)]
    tests = getattr(fed, "visit_tests", None)
    found: Visit | None = None if tests is None else tests(some)
    return fed.visit(some) if found is None else found
