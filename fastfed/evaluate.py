"""What a model is worth on examples: its loss, and the metric that goes with the loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .data import Examples, Visit
from .losses import IGNORED, Loss, find_loss
from .train.model import LocalModel
from .train.threads import check_threads, in_order, one_thread_per_operation

_CHUNK = 128  # examples per forward pass: enough for the arithmetic, few enough for the cache


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


class Evaluator:
    """Evaluates a module in evaluation mode. `threads` (default: torch's number) changes no bit of the result."""

    def __init__(
        self, module: nn.Module, loss: Loss, *, threads: int | None = None, device: torch.device | str = "cpu"
    ) -> None:
        check_threads(threads)
        self.loss, self.device = find_loss(loss), torch.device(device)
        self.metric = metric_of(loss)
        self._count = _METRICS[loss][1] if isinstance(loss, str) else _count_examples
        self.threads = torch.get_num_threads() if threads is None else threads
        self._models: SimpleQueue[LocalModel] = SimpleQueue()
        for _ in range(self.threads):
            model = LocalModel(module, self.device)
            model.module.eval()
            self._models.put(model)

    def evaluate(self, x: Tensor, examples: Examples) -> dict[str, float]:
        """`loss` and the metric of the packed model `x` (d,) over all examples."""
        rows = torch.arange(len(examples))
        total = Tally()
        for tally in self._tallies(x, examples, list(rows.split(_CHUNK))):
            total = total.plus(tally)
        return self._metrics(total)

    def per_client(self, x: Tensor, visit: Visit) -> dict[str, float]:
        """The metric of every client of a visit that has examples: its mean, 10th and 90th percentile."""
        begins, ends = visit.offsets[:-1].tolist(), visit.offsets[1:].tolist()
        rows = [visit.rows[b:e] for b, e in zip(begins, ends, strict=True) if e > b]
        values = [self._metrics(tally)[self.metric] for tally in self._tallies(x, visit.examples, rows)]
        spread = torch.tensor(values, dtype=torch.float64)
        low, high = torch.quantile(spread, torch.tensor([0.1, 0.9], dtype=torch.float64)).tolist()
        return {f"{self.metric}_mean": float(spread.mean()), f"{self.metric}_p10": low, f"{self.metric}_p90": high}

    def _tallies(self, x: Tensor, examples: Examples, groups: list[Tensor]) -> Iterator[Tally]:
        """The tally of every group of rows, in order."""
        with one_thread_per_operation(), torch.no_grad():
            yield from in_order(lambda rows: self._tally(x, examples, rows), groups, self.threads)

    @torch.no_grad()
    def _tally(self, x: Tensor, examples: Examples, group: Tensor) -> Tally:
        model = self._models.get()
        try:
            tensors = {**model.constants(x.dtype), **model.packing_as(x.dtype).views(x.to(self.device))}
            total = Tally()
            for rows in group.split(_CHUNK):
                inputs, targets = (t.to(self.device) for t in examples.batch(rows, x.dtype))
                outputs = model(tensors, inputs)
                weight, hits, possible = self._count(outputs, targets)
                total = total.plus(Tally(float(self.loss(outputs, targets)) * weight, weight, hits, possible))
            return total
        finally:
            self._models.put(model)

    def _metrics(self, tally: Tally) -> dict[str, float]:
        loss = tally.loss / tally.weight if tally.weight else float("nan")
        metrics = {"loss": loss}
        if self.metric == "mse":
            metrics["mse"] = loss
        elif self.metric != "loss":
            metrics[self.metric] = tally.hits / tally.possible if tally.possible else float("nan")
        return metrics
