"""The native engine's Gram form of first layers: it agrees as the layer itself does, and is taken where it pays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastfed as ff
from fastfed.clients import Adam, Blend, Client, Momentum, Part
from fastfed.data import Augment, Examples, Pixels
from fastfed.train import Contrast, DeltaPolicy, Outcome, RoundWork

from .agreement import EPSILON, assert_close
from .support import make

native = pytest.importorskip("fastfed.train.native", reason="the compiled extension is missing")

SIZES = (23, 0, 41, 1, 12, 9)


def vectors() -> tuple[nn.Module, Examples]:
    g = torch.Generator().manual_seed(1)
    module = nn.Sequential(nn.Linear(37, 19), nn.ReLU(), nn.Dropout(0.2), nn.Linear(19, 5))
    return module, Examples(torch.randn(100, 37, generator=g), torch.randint(5, (100,), generator=g))


def pictures() -> tuple[nn.Module, Examples]:
    """Of several channels, which the engine holds otherwise than torch; the layer has no bias."""
    g = torch.Generator().manual_seed(2)
    images = torch.randint(256, (100, 3, 5, 4), generator=g, dtype=torch.uint8)
    module = nn.Sequential(nn.Flatten(), nn.Linear(60, 7, bias=False), nn.Tanh(), nn.Linear(7, 4))
    return module, Examples(Pixels(images, (0.4,) * 3, (0.3,) * 3), torch.randint(4, (100,), generator=g))


def softmax() -> tuple[nn.Module, Examples]:
    """Large pictures, which go through layers one by one; the layer is the last one, too."""
    g = torch.Generator().manual_seed(3)
    examples = Examples(torch.rand(100, 1, 11, 13, generator=g), torch.randint(6, (100,), generator=g))
    return nn.Sequential(nn.Flatten(), nn.Linear(143, 6)), examples


TASKS = {"vectors": vectors, "pictures": pictures, "softmax": softmax}
RULES: dict[str, Client] = {
    "sgd": ff.clients.SGD(lr=0.1),
    "warm-up": ff.clients.SGD(lr=0.1, warmup=3, from_first=True),
    "decay": ff.clients.SGD(lr=0.1, weight_decay=0.2),
    "prox": ff.clients.SGD(lr=0.1, weight_decay=0.05, prox=0.7),
    "momentum": Momentum(lr=0.05, momentum=0.8),
    "momentum with all": Momentum(lr=0.05, momentum=0.7, weight_decay=0.1, prox=0.4, warmup=2),
}
ASKS: dict[str, dict[str, Any]] = {
    "plain": {},
    "seen": {"seen": torch.tensor([70, 0, 99, 3, 30, 2])},
    "drawn": {"seen": torch.tensor([60, 9, 120, 4, 20, 18]), "drawn": True},
    "rates": {"lr": torch.tensor([0.1, 0.2, 0.03, 0.05, 0.07, 0.0], dtype=torch.float64)},
    "clipped": {"policy": DeltaPolicy("uniform", 0.05, True)},
    "two": {"optimizers": (ff.clients.SGD(lr=0.1), Adam(lr=0.01)), "optimizer_index": torch.arange(6) % 2},
}


def made(task: str, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Examples]:
    torch.manual_seed(5)
    module, examples = TASKS[task]()
    return module.to(dtype), examples


def work_of(module: nn.Module, client: Client, epochs: int = 4, **asks: Any) -> RoundWork:
    counts = torch.tensor(SIZES)
    asks.setdefault("optimizers", (client,))
    return RoundWork(
        start=ff.Packing.of(module).pack(module),
        rows=torch.randperm(100, generator=torch.Generator().manual_seed(4))[: sum(SIZES)],
        offsets=torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]),
        ids=torch.tensor([5, 1, 9, 3, 70, 2]),
        steps=epochs * -(-counts // 7),
        batch_size=7,
        seed=3,
        round=2,
        keep_deltas=True,
        **asks,
    )


def numbers(module: nn.Module, vector: Tensor) -> Tensor:
    """The parameters of packed vectors (d,) or (n, d), without the room between them, which depends on the dtype."""
    views = ff.Packing.of(module).views(vector)
    return torch.cat([view.reshape(*vector.shape[:-1], -1).double() for view in views.values()], -1)


def trained(module: nn.Module, examples: Examples, work: RoundWork, use: bool | None, threads: int = 2) -> Outcome:
    engine = native.Native(module, "cross_entropy", examples, threads=threads)
    engine.gram = use
    return engine.run(work)


def both_ways(module: nn.Module, examples: Examples, work: RoundWork) -> list[Outcome]:
    """In Gram form wherever it can be, and without it."""
    return [trained(module, examples, work, use) for use in (True, False)]


def gram(task: str, work: RoundWork, use: bool | None = True, threads: int = 2) -> Outcome:
    return trained(*made(task), work, use, threads)


@pytest.mark.parametrize("asks", ASKS)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("task", TASKS)
def test_it_agrees_with_autograd_as_well_as_the_layer_does(task: str, rule: str, asks: str) -> None:
    outcomes = {}
    for dtype in (torch.float32, torch.float64):
        module, examples = made(task, dtype)
        eager = make("eager", module, "cross_entropy", examples)
        outcomes[dtype] = eager.run(work_of(module, RULES[rule], **ASKS[asks]))
    plain, exact = outcomes[torch.float32], outcomes[torch.float64]
    module, _ = made(task)
    got = gram(task, work_of(module, RULES[rule], **ASKS[asks]))
    assert torch.equal(got.refused, exact.refused)
    wide = made(task, torch.float64)[0]
    for name in ("delta", "deltas"):
        found = numbers(module, getattr(got, name)), numbers(module, getattr(plain, name))
        assert_close(name, *found, numbers(wide, getattr(exact, name)))
    error = 2 * float((numbers(module, plain.deltas) - numbers(wide, exact.deltas)).norm())
    for name, values in got.scalars.items():
        wanted, measured = exact.scalars[name].nan_to_num(), plain.scalars[name].nan_to_num()
        assert torch.equal(values.isnan(), exact.scalars[name].isnan()), name
        # A loss is a mean over batches, each with a rounding of its own.
        room = error if name == "delta_norm" else 8 * EPSILON * float(wanted.norm())
        assert_close(name, values.nan_to_num(), measured, wanted, room)


@pytest.mark.parametrize("rule", ["sgd", "momentum with all"])
def test_same_bits_for_any_number_of_threads_and_after_other_work(rule: str) -> None:
    module, examples = made("vectors")
    work = work_of(module, RULES[rule])
    engine = native.Native(module, "cross_entropy", examples, threads=1)
    engine.gram = True
    engine.run(work_of(module, RULES["momentum"], epochs=9))  # what it leaves in memory is not seen again
    engine.gram = False
    engine.run(work_of(module, Adam(lr=0.1)))
    engine.gram = True
    one = engine.run(work)
    for threads in (2, 7):
        other = gram("vectors", work, threads=threads)
        assert torch.equal(one.delta, other.delta)
        assert torch.equal(one.deltas, other.deltas)
        assert torch.equal(one.scalars["mean_loss"].nan_to_num(), other.scalars["mean_loss"].nan_to_num())


@pytest.mark.parametrize("change", ["nothing", "one number", "two swapped", "another order", "a sign"])
def test_products_that_are_kept_are_those_of_the_examples_as_they_are_now(change: str) -> None:
    """A second round finds the products of the first: the same bits, and others where somebody changed the data."""
    module, examples = made("softmax")
    examples.inputs.round_()  # zeros and ones, of which swaps are hard to see
    work = work_of(module, RULES["sgd"])
    engine = native.Native(module, "cross_entropy", examples, threads=2)
    engine.gram = True
    before = engine.run(work)
    rows = work.rows[:23]  # of the first client
    client = examples.inputs[rows].flatten(1)
    if change == "one number":
        client[7, 100] += 0.5
    if change == "two swapped":
        zero, one = (int((client[7] == value).nonzero()[3]) for value in (0, 1))
        client[7, [zero, one]] = client[7, [one, zero]]
    if change == "another order":
        client[[3, 4]] = client[[4, 3]]
    if change == "a sign":
        client[-1, client[-1].argmax()] *= -1
    examples.inputs[rows] = client.view(23, *examples.inputs.shape[1:])
    again = engine.run(work)
    assert torch.equal(again.delta, trained(module, examples, work, use=True).delta)
    assert torch.equal(again.delta, before.delta) == (change == "nothing")


def same(task: str, work: RoundWork) -> bool:
    """Whether a work is done as it would be without the Gram form, to the bit."""
    return torch.equal(gram(task, work).delta, gram(task, work, use=False).delta)


def test_only_where_steps_are_linear_in_the_gradients() -> None:
    module, _ = made("vectors")
    assert not same("vectors", work_of(module, RULES["sgd"]))
    previous = Contrast(1.0, 0.5, None, torch.randn(6, len(work_of(module, RULES["sgd"]).start)), torch.arange(6))
    others = [
        work_of(module, Adam(lr=0.01)),
        work_of(module, ff.clients.SGD(lr=0.1, clip=0.1)),
        work_of(module, ff.clients.DeltaSGD()),
        work_of(module, ff.clients.SPS(lr_max=0.1)),
        work_of(module, RULES["sgd"], measure_cosine=True),
        work_of(module, RULES["sgd"], corrections=torch.zeros(6, previous.previous.shape[1])),
        work_of(module, RULES["sgd"], contrast=previous),
    ]
    for number, work in enumerate(others):
        assert same("vectors", work), number


def test_only_of_inputs_that_stay_as_they_are() -> None:
    g = torch.Generator().manual_seed(2)
    images = torch.randint(256, (100, 3, 6, 5), generator=g, dtype=torch.uint8)
    drawn = Examples(Pixels(images, augment=Augment(crop=4, flip=True)), torch.randint(4, (100,), generator=g))
    torch.manual_seed(5)
    module = nn.Sequential(nn.Flatten(), nn.Linear(48, 4))
    assert torch.equal(*(one.delta for one in both_ways(module, drawn, work_of(module, RULES["sgd"]))))


class Skipping(nn.Module):
    """The input goes into two layers: neither is the only one that reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(37, 5), nn.Linear(37, 5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.first(x)) + self.second(x)


def frozen(*names: str) -> nn.Module:
    module, _ = vectors()
    for name in names:
        module.get_parameter(name).requires_grad_(False)
    return module


def test_models_without_such_a_layer_are_trained_as_ever() -> None:
    _, examples = vectors()
    for make_module in (
        Skipping,
        lambda: nn.Sequential(nn.Dropout(0.1), nn.Linear(37, 5)),
        lambda: frozen("0.weight"),
        lambda: frozen("0.bias"),
    ):
        torch.manual_seed(5)
        module = make_module()
        assert torch.equal(*(one.delta for one in both_ways(module, examples, work_of(module, RULES["sgd"]))))


def test_it_is_taken_for_many_epochs_of_wide_inputs_alone() -> None:
    """By itself: with one epoch, and where there is little to be saved, the layer is called as ever."""
    torch.manual_seed(0)
    module = ff.models.mlp(784, 100, 10)
    g = torch.Generator().manual_seed(1)
    examples = Examples(torch.rand(80, 784, generator=g), torch.randint(10, (80,), generator=g))
    engine = native.Native(module, "cross_entropy", examples, threads=1)
    packing = ff.Packing.of(module)

    def delta(steps: int, use: bool | None) -> Tensor:
        engine.gram = use
        work = RoundWork(
            start=packing.pack(module),
            rows=torch.arange(80),
            offsets=torch.tensor([0, 40, 80]),
            ids=torch.arange(2),
            steps=torch.tensor([steps, steps]),
            batch_size=20,
            optimizers=(RULES["sgd"],),
        )
        return engine.run(work).delta

    assert torch.equal(delta(2, None), delta(2, False))
    assert not torch.equal(delta(10, True), delta(10, False))
    assert torch.equal(delta(10, None), delta(10, True))


def test_a_client_that_diverges_is_refused() -> None:
    module, _ = made("softmax")
    rates = torch.tensor([0.1, 0.1, 1e38, 0.1, 0.1, 0.1], dtype=torch.float64)
    work = work_of(module, RULES["sgd"], lr=rates)
    got, without = gram("softmax", work), gram("softmax", replace(work, lr=rates.clamp(max=0.0)))
    assert got.refused.tolist() == [False, False, True, False, False, False]
    assert torch.isfinite(got.delta).all()
    assert got.delta.norm() > 0 == without.delta.norm()


@pytest.mark.parametrize("worst", [torch.nan, 3e19])
def test_an_example_that_is_never_drawn_spoils_nothing(worst: float) -> None:
    """Products with it are no finite numbers: its client is trained as ever, the others in Gram form."""
    module, examples = made("softmax")
    work = work_of(module, RULES["sgd"], seen=torch.tensor([5, 0, 99, 3, 30, 2]))
    inputs = examples.inputs.clone()
    inputs[work.rows[22]] = worst  # of the first client
    found = both_ways(module, Examples(inputs, examples.targets), work)
    assert torch.isfinite(found[1].deltas[0]).all()
    assert torch.equal(found[0].deltas[0], found[1].deltas[0])
    assert not torch.equal(found[0].deltas[2], found[1].deltas[2])


def test_a_simulation_in_gram_form_goes_on_as_ever() -> None:
    """Blends, sampling and an adaptive server around it; a blend's parts each take their own way."""
    fed = ff.data.dirichlet(ff.data.digits(), clients=12, alpha=0.5, seed=0)
    parts = [Part(ff.clients.SGD(lr=0.1)), Part(Momentum(lr=0.05)), Part(Adam(lr=0.01))]
    found = []
    for use in (True, False):
        torch.manual_seed(0)
        sim = ff.Simulation(
            ff.models.mlp(64, 30, 10),
            fed,
            client=Blend(parts),
            server=ff.servers.FedAdam(lr=0.01),
            cohort=5,
            epochs=3,
            batch_size=10,
            executor="native",
        )
        sim.executor.gram = use  # type: ignore[attr-defined]
        sim.run(rounds=4, evaluate_every=0, progress=False)
        found.append(sim.params)
    assert not torch.equal(*found)
    assert (found[0] - found[1]).norm() < 1e-4 * found[1].norm()
