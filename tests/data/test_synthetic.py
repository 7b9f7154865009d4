"""Made-up tasks: a client is the same in any cohort, there is something to learn, a million clients cost little."""

from __future__ import annotations

import pickle
import time
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from fastfed import kernels
from fastfed.data import Examples, Pixels, Sparse, sampling
from fastfed.data.generated import Generated, generate
from fastfed.data.loaders.synthetic import (
    common,
    regression,
    synthetic_autoencoder,
    synthetic_images,
    synthetic_regression,
    synthetic_tags,
    synthetic_text,
    synthetic_topics,
    tags,
)
from fastfed.losses import LOSSES

SIGNIFICANCE = 1e-3
TASKS: dict[str, Any] = {
    "images": lambda **more: synthetic_images(50, examples=12, **more),
    "autoencoder": lambda **more: synthetic_autoencoder(50, shape=(1, 8, 9), examples=12, **more),
    "text": lambda **more: synthetic_text(50, examples=12, **more),
    "tags": lambda **more: synthetic_tags(50, words=300, tags=20, examples=12, **more),
    "topics": lambda **more: synthetic_topics(50, vocabulary=300, examples=12, **more),
    "topics in bags": lambda **more: synthetic_topics(50, vocabulary=300, examples=12, bag=True, **more),
    "regression": lambda **more: synthetic_regression(50, examples=12, **more),
}


@pytest.fixture(params=TASKS)
def task(request: pytest.FixtureRequest) -> Any:
    return TASKS[request.param]


def examples_of(fed: Generated, *clients: int) -> list[tuple[Tensor, Tensor]]:
    """Inputs and targets of each of these clients, visited together."""
    visit = fed.visit(torch.tensor(clients))
    inputs, targets = visit.examples.batch(visit.rows)
    return [(inputs[a:b], targets[a:b]) for a, b in zip(visit.offsets[:-1], visit.offsets[1:], strict=True)]


def same(one: tuple[Tensor, Tensor], two: tuple[Tensor, Tensor]) -> bool:
    return torch.equal(one[0], two[0]) and torch.equal(one[1], two[1])


# ---- what all tasks share -------------------------------------------------------------------------------------------


def test_a_client_is_the_same_whoever_is_visited_with_it(task: Any) -> None:
    fed = task()
    together = examples_of(fed, 3, 49, 0, 3)
    for client, mine in zip((3, 49, 0, 3), together, strict=True):
        assert len(mine[0]) == len(mine[1]) == fed.sizes[client]
        assert same(mine, examples_of(fed, client)[0])
    assert not torch.equal(together[0][0][:1], together[1][0][:1])


def test_same_seed_same_bits(task: Any) -> None:
    first, again, other = task(), task(), task(seed=1)
    assert same(examples_of(first, 7)[0], examples_of(again, 7)[0])
    assert first.fingerprint() == again.fingerprint()
    assert torch.equal(first.sizes, again.sizes)
    assert not torch.equal(examples_of(first, 7)[0][0][:1], examples_of(other, 7)[0][0][:1])
    assert first.fingerprint() != other.fingerprint()
    assert not torch.equal(first.sizes, other.sizes)


def test_same_bits_on_another_backend(task: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    here = task(test_examples=20)

    def by_reference(n: int, stream: kernels.Stream, clients: Tensor | None = None) -> Tensor:
        return kernels.uniform(n, stream, clients=clients, backend="reference")

    monkeypatch.setattr(sampling, "uniform", by_reference)
    monkeypatch.setattr(common, "uniform", by_reference)
    monkeypatch.setattr(kernels, "backends", lambda: {"cpp": "as if it were missing"})
    there = task(test_examples=20)
    assert torch.equal(here.sizes, there.sizes)
    assert same(examples_of(here, 7)[0], examples_of(there, 7)[0])


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 2), (1, 5, 7), (3, 8, 9), (1, 28, 28)])
def test_images_are_the_same_without_the_extension(
    shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether they are made in one call or by NumPy, whatever is left over of thirds and portions."""
    if kernels.backends()["cpp"] is not True:
        pytest.skip("the compiled extension is missing")
    cohort = torch.tensor([999, 3, 500])
    fed = synthetic_images(1000, classes=7, shape=shape, examples=400, seed=5)
    here = fed.visit(cohort).examples.inputs
    monkeypatch.setattr(kernels, "backends", lambda: {"cpp": "as if it were missing"})
    there = fed.visit(cohort).examples.inputs
    assert isinstance(here, Pixels)
    assert isinstance(there, Pixels)
    assert torch.equal(here.bytes, there.bytes)
    assert len(here) > 600  # more than a portion


def test_more_clients_leave_the_first_as_they_are() -> None:
    few, many = synthetic_text(5), synthetic_text(5000)
    assert same(examples_of(few, 4)[0], examples_of(many, 4)[0])


def test_template_and_test_set_have_the_shapes_of_a_visit(task: Any) -> None:
    fed = task(test_examples=30)
    visit = fed.visit(torch.tensor([1, 2]))
    assert fed.test is not None
    assert len(fed.test) == 30
    for held in (fed.examples, fed.test):
        assert held.form == visit.examples.form
    assert task(test_examples=0).test is None


def test_an_empty_cohort_has_no_rows(task: Any) -> None:
    visit = task().visit(torch.empty(0, dtype=torch.int64))
    assert visit.rows.numel() == 0
    assert visit.offsets.tolist() == [0]


def test_test_examples_are_of_other_clients() -> None:
    fed = synthetic_images(50, examples=12)
    assert fed.test is not None
    assert isinstance(fed.test.inputs, Pixels)
    visit = fed.visit(torch.arange(50))
    assert isinstance(visit.examples.inputs, Pixels)
    seen = {image.numpy().tobytes() for image in visit.examples.inputs.bytes}
    assert not seen & {image.numpy().tobytes() for image in fed.test.inputs.bytes}


def test_sizes_are_log_normal() -> None:
    sizes = synthetic_regression(20_000, examples=200, spread=0.6).sizes.numpy()
    assert sizes.mean() == pytest.approx(200, rel=0.02)
    assert stats.kstest(np.log(sizes), "norm", args=(np.log(200) - 0.18, 0.6)).pvalue > SIGNIFICANCE
    skewed = synthetic_regression(20_000, examples=3, spread=2.0).sizes
    assert (int(skewed.min()), int(skewed.max())) == (1, 30)
    assert synthetic_regression(10, examples=7, spread=0).sizes.tolist() == [7] * 10


def test_can_be_sent_to_another_process(task: Any) -> None:
    fed = task(test_examples=20)
    again = pickle.loads(pickle.dumps(fed))
    assert same(examples_of(fed, 7)[0], examples_of(again, 7)[0])


def test_remembers_how_it_was_made() -> None:
    fed = synthetic_images(5, shape=(3, 8, 8), seed=3)
    assert fed.recipe is not None
    assert fed.recipe.function == "data.synthetic_images"
    assert fed.recipe.json()["arguments"] == {"clients": 5, "shape": [3, 8, 8], "seed": 3}


def test_a_million_clients_cost_their_sizes() -> None:
    tracemalloc.start()
    begin = time.perf_counter()
    fed = synthetic_images(1_000_000, classes=62, test_examples=100)
    seconds = time.perf_counter() - begin
    held, _ = tracemalloc.get_traced_memory()  # numpy's; torch's is counted below
    tracemalloc.stop()
    assert len(fed) == 1_000_000
    tensors = fed.offsets.nbytes + fed.sizes.nbytes
    assert tensors + held < 24e6
    assert seconds < 20  # about half a second, on a machine with nothing else to do
    (last,) = examples_of(fed, 999_999)
    assert len(last[0]) == fed.sizes[-1]


# ---- each task ------------------------------------------------------------------------------------------------------


def trained(fed: Generated, module: nn.Module, loss: str, steps: int, lr: float, clients: int = 50) -> nn.Module:
    """RMSProp on all examples of the clients together, in batches of 200."""
    visit = fed.visit(torch.arange(clients))
    parameters = list(module.parameters())
    squares = [torch.zeros_like(parameter) for parameter in parameters]
    order = torch.randperm(len(visit.rows), generator=torch.Generator().manual_seed(0))
    for step in range(steps):
        inputs, targets = visit.examples.batch(visit.rows[order.roll(-200 * step)[:200]])
        gradients = torch.autograd.grad(LOSSES[loss](module(inputs), targets), parameters)
        for parameter, gradient, square in zip(parameters, gradients, squares, strict=True):
            square.mul_(0.9).add_(0.1 * gradient**2)
            parameter.data -= lr * gradient / (square.sqrt() + 1e-8)
    return module


def on_the_tests(fed: Generated, module: nn.Module) -> tuple[Tensor, Tensor]:
    """Outputs and targets of the test set."""
    assert isinstance(fed.test, Examples)
    inputs, targets = fed.test.batch(torch.arange(len(fed.test)))
    with torch.no_grad():
        return module(inputs), targets


@pytest.fixture(autouse=True)
def _weights() -> Any:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        yield


def test_images_can_be_learnt() -> None:
    fed = synthetic_images(50, examples=40, test_examples=500)
    outputs, labels = on_the_tests(
        fed, trained(fed, nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), "cross_entropy", 60, 0.003)
    )
    accuracy = (outputs.argmax(1) == labels).float().mean()
    assert accuracy > 0.7
    few = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    outputs, labels = on_the_tests(fed, trained(fed, few, "cross_entropy", 2, 0.001, clients=1))
    assert (outputs.argmax(1) == labels).float().mean() < 0.5


def test_image_labels_are_the_clients_own() -> None:
    """With alpha, the count of a label is beta-binomial."""
    fed = synthetic_images(800, classes=4, shape=(1, 2, 2), examples=10, alpha=0.5, spread=0)
    visit = fed.visit(torch.arange(800))
    counts = (visit.examples.targets.view(800, 10) == 2).sum(1).numpy()  # type: ignore[union-attr]
    law = stats.betabinom(10, 0.5, 1.5).pmf(np.arange(11)) * 800
    assert stats.chisquare(np.bincount(counts, minlength=11), law).pvalue > SIGNIFICANCE


def test_image_bytes_use_their_range() -> None:
    fed = synthetic_images(20, shape=(3, 24, 24))
    pixels = fed.visit(torch.arange(20)).examples.inputs
    assert isinstance(pixels, Pixels)
    assert pixels.bytes.shape[1:] == (3, 24, 24)
    assert pixels.bytes.unique().numel() == 256
    means = torch.stack([image.float().mean() for image in pixels.bytes])
    assert means.std() > 5  # pictures and clients differ in brightness


def test_reconstructions_are_the_images() -> None:
    images = synthetic_images(20, classes=62).visit(torch.arange(3)).examples.inputs
    rows = synthetic_autoencoder(20).visit(torch.arange(3)).examples
    assert rows.targets is rows.inputs
    assert isinstance(images, Pixels)
    assert torch.equal(rows.inputs, images.dense(torch.arange(len(images))).flatten(1))  # type: ignore[arg-type]


def test_text_can_be_learnt_and_dialects_differ() -> None:
    fed = synthetic_text(400, vocabulary=30, length=40, examples=10)
    visit = fed.visit(torch.arange(400))
    tokens, following = visit.examples.batch(visit.rows)
    assert torch.equal(tokens[:, 1:], following[:, :-1])
    assert (int(tokens.min()), int(tokens.max()) < 30) == (0, True)
    outputs, targets = on_the_tests(fed, trained(fed, nn.Embedding(30, 30), "cross_entropy", 50, 0.1))
    accuracy = (outputs.argmax(2) == targets).float().mean()
    assert 0.25 < accuracy < 0.7
    most_frequent = (targets == following.flatten().mode().values).float().mean()
    assert accuracy > 1.5 * most_frequent
    strange = synthetic_text(400, vocabulary=30, length=40, examples=10, skew=1.0)
    outputs, targets = on_the_tests(strange, trained(strange, nn.Embedding(30, 30), "cross_entropy", 50, 0.1))
    assert (outputs.argmax(2) == targets).float().mean() < accuracy  # one table cannot serve sixteen dialects


def test_next_words_shape() -> None:
    visit = synthetic_text(3, vocabulary=10_004, length=20, test_examples=5).visit(torch.arange(3))
    tokens, following = visit.examples.batch(visit.rows)
    assert tokens.shape == following.shape == (len(visit.rows), 20)
    assert 1000 < int(tokens.max()) < 10_004


def test_one_tag_of_several_is_the_first_drawn() -> None:
    told: dict[str, Any] = {"words": 300, "tags": 20, "examples": 12}
    every, one = (synthetic_tags(9, **told, labels=labels).visit(torch.arange(9)).examples for labels in ("all", "one"))
    assert isinstance(every.inputs, Sparse)
    assert isinstance(one.inputs, Sparse)
    assert isinstance(every.targets, Sparse)
    assert torch.equal(every.inputs.columns, one.inputs.columns)
    assert isinstance(one.targets, torch.Tensor)
    assert one.targets.dtype is torch.int64
    among = every.targets.dense(torch.arange(len(one.targets)))
    assert bool((among[torch.arange(len(among)), one.targets] == 1).all())


def test_tags_can_be_learnt() -> None:
    fed = synthetic_tags(50, words=500, tags=30, examples=40, spread=0, test_examples=300)
    outputs, targets = on_the_tests(fed, trained(fed, nn.Linear(500, 30), "binary_cross_entropy", 80, 0.1))
    top = torch.zeros_like(targets).scatter_(1, outputs.topk(5).indices, 1)
    recall = ((top * targets).sum(1) / targets.sum(1)).mean()
    popular = torch.zeros_like(targets)
    popular[:, targets.sum(0).topk(5).indices] = 1
    assert recall > 0.75
    assert recall > 1.3 * ((popular * targets).sum(1) / targets.sum(1)).mean()


def test_bags_are_shares_of_a_text() -> None:
    visit = synthetic_tags(20).visit(torch.arange(20))
    words, tags = visit.examples.inputs, visit.examples.targets
    assert isinstance(words, Sparse)
    assert isinstance(tags, Sparse)
    assert (words.width, tags.width) == (10_000, 500)
    dense = words.dense(torch.arange(50))
    torch.testing.assert_close(dense.sum(1), torch.ones(50))
    assert 30 < words.values.numel() / len(words) < 60
    assert sorted(set(tags.starts.diff().tolist())) == [1, 2, 3]
    assert tags.values.unique().tolist() == [1]
    for row in range(50):
        columns = words.columns[words.starts[row] : words.starts[row + 1]]
        assert bool((columns.diff() > 0).all())  # each at most once


def test_bags_count_what_was_drawn() -> None:
    drawn = np.array([[3, 1, 3], [5, 5, 5], [2, 0, 5]], dtype=np.int32)  # 5, the width, stands for nothing
    bags = tags.bags(drawn, 5, 0.5)
    assert bags.dense(torch.arange(3)).tolist() == [[0, 0.5, 0, 1, 0], [0] * 5, [0.5, 0, 0.5, 0, 0]]
    told = tags.bags(drawn, 5, None)
    assert told.dense(torch.arange(3)).tolist() == [[0, 1, 0, 1, 0], [0] * 5, [1, 0, 1, 0, 0]]


def test_regression_has_the_clients_weights() -> None:
    fed = synthetic_regression(40, features=5, examples=400, skew=0.5, noise=0.1)
    found, residuals = [], []
    for inputs, targets in examples_of(fed, *range(40)):
        solution = torch.linalg.lstsq(inputs, targets).solution
        found.append(solution[:, 0])
        residuals.append((targets - inputs @ solution).std())
    assert float(torch.stack(residuals).mean()) == pytest.approx(0.1, rel=0.05)
    weights = torch.stack(found)
    assert float(weights.std(0).mean()) == pytest.approx(0.5 / 5**0.5, rel=0.25)
    assert isinstance(fed.maker, regression._Regression)
    common = torch.from_numpy(fed.maker.weights).float()
    assert (weights.mean(0) - common).abs().max() < 4 * 0.5 / 5**0.5 / 40**0.5


def test_regression_without_skew_is_one_line() -> None:
    fed = synthetic_regression(10, features=3, skew=0.0, noise=0.0)
    assert isinstance(fed.maker, regression._Regression)
    for inputs, targets in examples_of(fed, 0, 9):
        torch.testing.assert_close(targets[:, 0].double(), inputs.double() @ torch.from_numpy(fed.maker.weights))


# ---- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("clients", lambda: synthetic_images(0)),
        ("clients", lambda: synthetic_text(2.5)),  # type: ignore[arg-type]
        ("classes", lambda: synthetic_images(2, classes=1)),
        ("shape", lambda: synthetic_images(2, shape=(28, 28))),  # type: ignore[arg-type]
        ("shape", lambda: synthetic_images(2, shape=(1, 0, 28))),
        ("examples", lambda: synthetic_images(2, examples=0)),
        ("examples", lambda: synthetic_images(3_000_000, examples=1000)),
        ("examples", lambda: generate("many", synthetic_regression(2).maker, torch.tensor([1, 2**31]), 0, {})),
        ("alpha", lambda: synthetic_images(2, alpha=0)),
        ("spread", lambda: synthetic_images(2, spread=-1)),
        ("test_examples", lambda: synthetic_images(2, test_examples=-1)),
        ("seed", lambda: synthetic_images(2, seed=-1)),
        ("vocabulary", lambda: synthetic_text(2, vocabulary=1)),
        ("length", lambda: synthetic_text(2, length=0)),
        ("skew", lambda: synthetic_text(2, skew=1.5)),
        ("words", lambda: synthetic_tags(2, words=1)),
        ("tags", lambda: synthetic_tags(2, tags=1)),
        ("features", lambda: synthetic_regression(2, features=0)),
        ("noise", lambda: synthetic_regression(2, noise=float("nan"))),
        ("cohort", lambda: synthetic_regression(2).visit(torch.tensor([2]))),
        ("cohort", lambda: synthetic_regression(2).visit(torch.tensor([-1]))),
        ("cohort", lambda: synthetic_regression(2).visit(torch.tensor([0.0]))),
    ],
)
def test_bad_input_is_named(name: str, make: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{name}: "):
        make()


def test_topics_are_told_by_their_words_and_padded_with_zeros() -> None:
    fed = synthetic_topics(300, classes=3, vocabulary=200, length=20, examples=20, spread=0, alpha=0.5)
    examples = fed.visit(torch.arange(300)).examples
    tokens = examples.inputs
    assert isinstance(tokens, torch.Tensor)
    assert int(tokens.max()) <= 199
    lengths = (tokens > 0).sum(1)
    assert (int(lengths.min()), int(lengths.max())) == (10, 20)
    assert bool((tokens[:, 1:][tokens[:, :-1] == 0] == 0).all())  # padding is at the end
    counts = torch.stack([torch.bincount(tokens[examples.targets == k].flatten(), minlength=200) for k in range(3)])
    likely = (counts[:, 1:].double() + 1).log()
    likely -= likely.logsumexp(1, keepdim=True)
    bags = torch.stack([torch.bincount(row, minlength=200) for row in tokens])[:, 1:].double()
    guessed = (bags @ likely.T).argmax(1)
    assert (guessed == examples.targets).double().mean() > 0.8
    in_bags = synthetic_topics(300, classes=3, vocabulary=200, length=20, examples=20, spread=0, alpha=0.5, bag=True)
    dense, _ = in_bags.visit(torch.arange(300)).examples.batch(torch.arange(len(tokens)))
    torch.testing.assert_close(dense[:, 1:].double(), bags / 20)
