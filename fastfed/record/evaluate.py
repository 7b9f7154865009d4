"""What a model is worth on examples: its loss, and the metric that goes with the loss."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..data import Examples, Federation, Visit
from ..losses import IGNORED, Loss, LossReduction, find_loss
from ..metrics import Metrics, measured
from ..norms import PackedModel
from ..ranks import Ranks
from ..train.executors import Predict
from ..train.predict import TorchOutputs
from ..train.threads import check_threads, in_order, one_thread_per_operation

_CHUNK = 128  # examples per forward pass: enough for the arithmetic, few enough for the cache
_NATIVE_CHUNK = 1024  # enough for all threads, few enough for the outputs of a large vocabulary
_DEVICE_CHUNK = 1024  # a device has no use for a few
_DEVICE_LOAD = 4096  # examples that go to a device together, of however many clients: every copy has its price


Model = Callable[[], PackedModel]  # made when it is needed: all clients' own ones would be too many at once


class Tally(NamedTuple):
    """Sums over examples: `weight` is what the mean loss is over, hits of `possible` make the metric; `numbers` are the
    losses behind it, one for every label, tag or pixel, of so many `examples`."""

    loss: float = 0.0
    weight: float = 0.0
    hits: float = 0.0
    possible: float = 0.0
    numbers: float = 0.0
    examples: float = 0.0

    def plus(self, other: Tally) -> Tally:
        return Tally(*(a + b for a, b in zip(self, other, strict=True)))


class _Chunk(NamedTuple):
    """Rows (n,) of examples that are evaluated in one go, and with what."""

    model: Model
    rows: Tensor


class _Measured(NamedTuple):
    """Of chunks, one after the other: the numbers of their tallies (chunks, 6) float64; and, if there are metrics of
    the user's own, outputs and targets of all their rows, on the host."""

    numbers: Tensor
    outputs: Tensor | None = None
    targets: Tensor | None = None


# outputs, targets, uncounted labels -> weight, hits, possible
Count = Callable[[Tensor, Tensor, Sequence[int]], tuple[Tensor, Tensor, Tensor]]


def _count_labels(outputs: Tensor, targets: Tensor, uncounted: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Accuracy: over the labels that are not ignored and count. The loss is over all that are not ignored."""
    learnt = targets != IGNORED
    counts = learnt
    for label in uncounted:
        counts = counts & (targets != label)
    right = (outputs.argmax(-1) == targets) & counts
    return learnt.sum(), right.sum(), counts.sum()


def _count_recall(outputs: Tensor, targets: Tensor, uncounted: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Recall@5: of all tags that apply, how many are among an example's five likeliest."""
    likeliest = outputs.topk(min(5, outputs.shape[-1]), dim=-1).indices
    return outputs.new_full((), len(targets)), targets.gather(-1, likeliest).sum(), targets.sum()


def _count_examples(outputs: Tensor, targets: Tensor, uncounted: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """No metric but the loss."""
    nothing = outputs.new_zeros(())
    return outputs.new_full((), len(targets)), nothing, nothing


_METRICS: dict[str, tuple[str | None, Count]] = {
    "cross_entropy": ("accuracy", _count_labels),
    "binary_cross_entropy": ("recall_at_5", _count_recall),
    "mse": ("mse", _count_examples),
}


def metric_of(loss: Loss, of_labels: bool = False) -> str:
    """The name of the metric that goes with a loss, or with a loss of the user's own that is `of_labels`; "loss" where
    there is none."""
    return (_METRICS[named][0] if (named := _counted_as(loss, of_labels)) in _METRICS else None) or "loss"


def _counted_as(loss: Loss, of_labels: bool) -> str | None:
    """The built-in loss whose metric it has."""
    if isinstance(loss, str):
        return loss
    return "cross_entropy" if of_labels else None


_LOWER = {"loss", "error", "err", "mse", "rmse", "mae", "mape", "perplexity", "nll", "brier", "ece"}


def higher_is_better(metric: str) -> bool:
    """Whether more of a metric, with or without a prefix such as "test_", is better: by the words of its name."""
    return "loss" not in metric and _LOWER.isdisjoint(metric.lower().split("_"))


class Evaluator:
    """Evaluates a module in evaluation mode. `threads` (default: torch's number) changes no bit of the result.

    `predict` computes the outputs on threads of its own, as the native engine does; by default torch computes them, on
    `device`, from which an evaluation is fetched as a whole. Accuracy leaves out `uncounted` labels, the loss does not.
    An evaluation has no batches: by the `reduction` "batch", the loss is what `batch_size` examples lose on average.
    `statistics` tells the running statistics (s,) of now that batch norms of the global model have, None without any.
    `metrics` are the user's own, of the outputs of a set as a whole; a loss of the user's own has accuracy if it is
    `of_labels`.
    Several `ranks` evaluate a part each, and have all.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        *,
        reduction: LossReduction = "mean",
        batch_size: int = 1,
        predict: Predict | None = None,
        threads: int | None = None,
        device: torch.device | str = "cpu",
        uncounted: Sequence[int] = (),
        statistics: Callable[[], Tensor | None] = lambda: None,
        ranks: Ranks | None = None,
        metrics: Metrics | None = None,
        of_labels: bool = False,
    ) -> None:
        check_threads(threads)
        self._uncounted, self._reduction, self._batch_size = tuple(uncounted), reduction, batch_size
        self.loss, self.metric = find_loss(loss), metric_of(loss, of_labels)
        counted_as = _counted_as(loss, of_labels)
        self._count = _count_examples if counted_as is None else _METRICS[counted_as][1]
        self._own = dict(metrics or {})
        self._predict, self.device, self._statistics = predict, torch.device(device), statistics
        self._ranks = ranks
        on_host = self.device.type == "cpu"
        self._load = 1 if on_host else _DEVICE_LOAD
        self._threads, self._chunk = 1, _NATIVE_CHUNK if on_host else _DEVICE_CHUNK
        if predict is None:
            if on_host:
                self._threads, self._chunk = torch.get_num_threads() if threads is None else threads, _CHUNK
            self._outputs = TorchOutputs(module, self._threads, self.device)

    def evaluate(self, x: Tensor, examples: Examples, rows: Tensor | None = None) -> dict[str, float]:
        """`loss` and the metric of the packed model `x` (d,) over all examples, or over these `rows` (n,) of them."""
        rows = torch.arange(len(examples)) if rows is None else rows
        (found,) = self._found(examples, [_Chunk(self._global(x), rows)])
        return found

    def per_client(self, x: Tensor, visit: Visit, own: Callable[[int], PackedModel] | None = None) -> dict[str, float]:
        """The metrics over the clients of a visit that have something to measure: mean, 10th and 90th percentile.

        `own`: the models of clients by their position in the visit, where they do not have the global one, `x` (d,).
        """
        shared = self._global(x)
        groups = [
            _Chunk(shared if own is None else partial(own, position), visit.rows[begin:end])
            for position, (begin, end) in enumerate(itertools.pairwise(visit.offsets.tolist()))
            if end > begin
        ]
        every = list(self._found(visit.examples, groups))
        found: dict[str, float] = {}
        for metric in (self.metric, *self._own):
            values = [of_client[metric] for of_client in every if not math.isnan(of_client[metric])]
            found |= _spread(metric, torch.tensor(values, dtype=torch.float64))
        return found

    def _global(self, x: Tensor) -> Model:
        model = PackedModel(x.to(self.device), self._statistics())
        return lambda: model

    def _found(self, examples: Examples, groups: Sequence[_Chunk]) -> Iterator[dict[str, float]]:
        """Loss and metrics of every group of rows, in order."""
        chunks = [[_Chunk(model, some) for some in rows.split(self._chunk)] for model, rows in groups]
        loads = _loads(itertools.chain.from_iterable(chunks), self._load)
        with one_thread_per_operation(), torch.no_grad():
            all_measured = self._measured(examples, list(loads))
        fetched = iter(all_measured.numbers.tolist())
        for group, own in zip(chunks, self._own_metrics(all_measured, [len(rows) for _, rows in groups]), strict=True):
            tally = Tally()
            for _ in group:
                tally = tally.plus(Tally(*next(fetched)))
            yield self._metrics(tally) | own

    def _own_metrics(self, all_measured: _Measured, sizes: Sequence[int]) -> Iterator[dict[str, float]]:
        """The user's own metrics of groups of so many rows; NaN of nobody."""
        if all_measured.outputs is None or all_measured.targets is None:
            yield from ({} for _ in sizes)
            return
        outputs, targets = (held.split(list(sizes)) for held in (all_measured.outputs, all_measured.targets))
        for pair in zip(outputs, targets, strict=True):
            yield measured(self._own, *pair) if len(pair[0]) else dict.fromkeys(self._own, float("nan"))

    def _measured(self, examples: Examples, loads: Sequence[Sequence[_Chunk]]) -> _Measured:
        """All chunks of all loads."""
        count = 1 if self._ranks is None else self._ranks.count
        borders = [len(loads) * rank // count for rank in range(count + 1)]
        parts = [loads[first:end] for first, end in itertools.pairwise(borders)]
        mine = parts[0 if self._ranks is None else self._ranks.rank]

        def measure() -> _Measured:
            found = list(in_order(lambda load: self._measure(examples, load), mine, self._threads))
            return _joined(found) if found else _Measured(torch.empty(0, 6, dtype=torch.float64))

        if self._ranks is None:
            return measure()
        return self._shared(self._ranks, self._ranks.heard(measure), parts)

    def _shared(self, ranks: Ranks, mine: _Measured, parts: Sequence[Sequence[Sequence[_Chunk]]]) -> _Measured:
        """What every rank has measured of its part, with all of them."""
        chunks = [[chunk for load in part for chunk in load] for part in parts]
        numbers = torch.cat(ranks.gathered(mine.numbers.cpu(), [len(of_rank) for of_rank in chunks]))
        if not self._own:
            return _Measured(numbers)
        rows = [sum(len(chunk.rows) for chunk in of_rank) for of_rank in chunks]
        return _Measured(numbers, *(_gathered(ranks, held, rows) for held in (mine.outputs, mine.targets)))

    @torch.no_grad()
    def _measure(self, examples: Examples, load: Sequence[_Chunk]) -> _Measured:
        """The chunks of a load."""
        model, chunks = load[0].model(), [chunk.rows for chunk in load]
        x = model.x
        if self._predict is not None:
            outputs = [self._predict(x, examples, rows, model.statistics) for rows in chunks]
            targets = [examples.targets_of(rows, x.dtype) for rows in chunks]
        else:
            dense = examples.batch(torch.cat(chunks), x.dtype)
            inputs, targets = (list(tensor.to(self.device).split([len(rows) for rows in chunks])) for tensor in dense)
            outputs = self._outputs(model, inputs)
        numbers = torch.stack([self._numbers(*pair) for pair in zip(outputs, targets, strict=True)])
        if not self._own:
            return _Measured(numbers)
        return _Measured(numbers, torch.cat(outputs).cpu(), torch.cat(targets).cpu())

    def _numbers(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """A chunk's tally, (6,) float64, where the outputs are."""
        weight, hits, possible = (number.double() for number in self._count(outputs, targets, self._uncounted))
        numbers = weight if self.metric == "accuracy" else weight.new_full((), outputs.numel())
        examples = weight.new_full((), len(outputs))
        loss = self.loss(outputs, targets).double() * weight
        return torch.stack([loss, weight, hits, possible, numbers, examples])

    def _metrics(self, tally: Tally) -> dict[str, float]:
        mean = tally.loss / tally.weight if tally.weight else float("nan")
        metrics = {"loss": self._reduced(mean, tally)}
        if self.metric == "mse":
            metrics["mse"] = mean
        elif self.metric != "loss":
            metrics[self.metric] = tally.hits / tally.possible if tally.possible else float("nan")
        return metrics

    def _reduced(self, mean: float, tally: Tally) -> float:
        """The loss by the reduction, from the mean over all numbers."""
        if self._reduction == "outputs":
            return mean * tally.numbers / tally.examples if tally.examples else mean
        return mean * self._batch_size if self._reduction == "batch" else mean


def _spread(metric: str, values: Tensor) -> dict[str, float]:
    """Mean, 10th and 90th percentile of the values of clients (n,)."""
    if len(values) == 0:
        raise ValueError(f"per_client: no client has examples that {metric} could be measured on")
    low, high = torch.quantile(values, torch.tensor([0.1, 0.9], dtype=torch.float64)).tolist()
    return {f"{metric}_mean": float(values.mean()), f"{metric}_p10": low, f"{metric}_p90": high}


def _joined(parts: Sequence[_Measured]) -> _Measured:
    """Parts one after the other."""
    return _Measured(*(None if held[0] is None else torch.cat(held) for held in zip(*parts, strict=True)))  # type: ignore[arg-type]


def _gathered(ranks: Ranks, mine: Tensor | None, rows: Sequence[int]) -> Tensor:
    """Rows that ranks have, of which each has so many; one that has none does not know their shape."""
    known = ranks.told(None if mine is None else (str(mine.dtype).removeprefix("torch."), tuple(mine.shape[1:])))
    dtype, shape = next(one for one in known if one is not None)
    own = torch.empty(0, *shape, dtype=getattr(torch, dtype)) if mine is None else mine
    return torch.cat(ranks.gathered(own, rows))


def _loads(chunks: Iterable[_Chunk], most: int) -> Iterator[list[_Chunk]]:
    """Chunks of one model, as many together as hold at most that many rows, at least one."""
    load: list[_Chunk] = []
    for chunk in chunks:
        is_full = sum(len(each.rows) for each in (*load, chunk)) > most
        if load and (is_full or chunk.model is not load[0].model):
            yield load
            load = []
        load.append(chunk)
    if load:
        yield load


_MOST_CLIENTS = 1000


def evaluated_clients(fed: Federation) -> Tensor:
    """The clients that an evaluation per client asks: (n,) int64."""
    return torch.arange(len(fed))[:: -(-len(fed) // _MOST_CLIENTS)]


def evaluation_visit(fed: Federation, clients: Tensor) -> Visit:
    """These clients (n,) with their test examples, else their training examples."""
    tests = getattr(fed, "visit_tests", None)
    found: Visit | None = None if tests is None else tests(clients)
    return fed.visit(clients) if found is None else found


def validation_rows(fed: Federation) -> Tensor | None:
    """The rows of the clients' store that are held out to choose settings by; None where there are none."""
    rows: Tensor | None = getattr(fed, "validation_rows", None)
    return rows


def training_rows(fed: Federation) -> Tensor:
    """The rows of the clients' store that some client has, each once."""
    rows = getattr(fed, "rows", None)
    if rows is None:
        raise ValueError(f"evaluate_training: {fed.name} makes its examples when they are asked for; there is no set")
    return torch.as_tensor(rows).unique()


def prior_metric(fed: Federation, loss: Loss, of_labels: bool = False) -> float | None:
    """The test metric of who learns nothing but how often each class is there: always the most frequent one, or always
    the five most frequent tags, of the clients' examples. What a method is worth is what it has beyond that.

    None where there is no test set, the metric is not of classes, or clients' examples are made when visited.
    """
    rows = getattr(fed, "rows", None)
    counted_as = _counted_as(loss, of_labels)
    if fed.test is None or rows is None or counted_as is None:
        return None
    known, asked = _targets(fed.examples, torch.as_tensor(rows)), _targets(fed.test, torch.arange(len(fed.test)))
    if counted_as == "binary_cross_entropy":
        return _prior_recall(known, asked)
    if counted_as == "cross_entropy" and not fed.examples.targets_of(rows[:1]).is_floating_point():
        return _prior_accuracy(known, asked, fed.uncounted)
    return None


def _targets(examples: Examples, rows: Tensor) -> Iterator[Tensor]:
    """The targets of these rows (n,), a chunk at a time: a data set may be larger than the memory."""
    return (examples.targets_of(chunk) for chunk in rows.split(_NATIVE_CHUNK))


def _prior_recall(known: Iterable[Tensor], asked: Iterable[Tensor]) -> float | None:
    """Of the five tags that are most frequent in the `known` targets (n, tags)."""
    counts = sum((targets.double().sum(0) for targets in known), torch.zeros(()).double())
    five = counts.topk(min(5, len(counts))).indices
    found = [(float(targets[:, five].sum()), float(targets.sum())) for targets in asked]
    hits, possible = map(sum, zip(*found, strict=True))
    return hits / possible if possible else None


def _prior_accuracy(known: Iterable[Tensor], asked: Iterable[Tensor], uncounted: Sequence[int]) -> float | None:
    """Of the label that is most frequent among those that count."""
    left_out = torch.tensor([IGNORED, *uncounted])
    counts: Counter[int] = Counter()
    for targets in known:
        labels, times = targets[~torch.isin(targets, left_out)].unique(return_counts=True)
        counts.update(dict(zip(labels.tolist(), times.tolist(), strict=True)))
    first = min(counts, key=lambda label: (-counts[label], label), default=IGNORED)
    hits = possible = 0
    for targets in asked:
        counted = targets[~torch.isin(targets, left_out)]
        hits, possible = hits + int((counted == first).sum()), possible + counted.numel()
    return hits / possible if possible else None
