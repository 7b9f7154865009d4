"""MOON's term by itself, its part in a step, and what of it is refused. That executors agree on it stands in
test_agreement.py, that whole rounds are right in tests/simulation/test_moon.py."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastfed as ff
from fastfed import clients
from fastfed.purposes import Purpose
from fastfed.train import Contrast, RoundWork
from fastfed.train.contrast import contrastive_losses
from fastfed.train.executors import make
from fastfed.train.split import head_of

from .agreement import executors, kept
from .support import normal, round_of, vectors

every_executor = executors("eager", "batched", "native")

# ---- the term -------------------------------------------------------------------------------------------------------


def test_it_is_what_the_paper_writes() -> None:
    z, of_start, of_previous = (normal(seed, 7, 5, dtype=torch.float64) for seed in range(3))
    near, far = (torch.exp(F.cosine_similarity(z, other) / 0.4) for other in (of_start, of_previous))
    torch.testing.assert_close(contrastive_losses(z, of_start, of_previous, 0.4), -torch.log(near / (near + far)))


def test_low_temperatures_do_not_overflow() -> None:
    z = torch.eye(2)[:1]
    losses = contrastive_losses(torch.cat([z, z]), torch.cat([-z, z]), torch.cat([z, -z]), 1e-4)
    assert losses.tolist() == [2e4, 0.0]


def test_a_zero_vector_has_cosine_0_and_no_gradient() -> None:
    z = torch.zeros(1, 3, requires_grad=True)
    loss = contrastive_losses(z, torch.ones(1, 3), -torch.ones(1, 3), 0.5)
    loss.sum().backward()
    assert loss.detach().tolist() == [math.log(2)]
    assert z.grad is not None
    assert z.grad.tolist() == [[0, 0, 0]]
    z = torch.ones(1, 3, requires_grad=True)
    loss = contrastive_losses(z, torch.zeros(1, 3), torch.tensor([[1.0, 0.0, 0.0]]), 1.0)
    assert float(loss.detach()) == pytest.approx(math.log1p(math.exp(1 / math.sqrt(3))))
    loss.sum().backward()
    assert bool(z.grad.isfinite().all())


# ---- in a step ------------------------------------------------------------------------------------------------------


def dropped() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 3))


def one_step(client: clients.Client, **given: Any) -> RoundWork:
    """Of one client with four examples, seen before."""
    module = dropped()
    packing = ff.Packing.of(module)
    previous = packing.pack(module) + 0.3 * normal(9, packing.size)
    contrast = Contrast(2.0, 0.5, None, previous[None])
    return round_of(module, (4,), steps=torch.tensor([1]), optimizers=(client,), seed=3, contrast=contrast, **given)


@every_executor
def test_only_the_local_model_has_dropout(executor: str) -> None:
    work, module = one_step(clients.SGD(lr=0.1)), dropped().double()
    order = ff.kernels.permutation(4, ff.kernels.Stream(3, Purpose.SHUFFLE, 0, int(work.ids[0]), 0))
    inputs, targets = vectors().batch(order, torch.float64)
    uniforms = ff.kernels.uniform(32, ff.kernels.Stream(3, Purpose.DROPOUT, 0, int(work.ids[0]), 0)).view(4, 8)
    start = torch.tanh(module[0](inputs))
    packing = ff.Packing.of(dropped())
    assert work.contrast is not None
    other = packing.views(work.contrast.previous[0])
    previous = torch.tanh(F.linear(inputs, other["0.weight"].double(), other["0.bias"].double()))
    features = start * (uniforms >= 0.5) * 2
    loss = F.cross_entropy(module[3](features), targets)
    loss = loss + 2.0 * contrastive_losses(features, start.detach(), previous, 0.5).mean()
    loss.backward()
    outcome = make(executor, dropped(), "cross_entropy", vectors()).run(work)
    assert float(outcome.scalars["first_loss"]) == pytest.approx(float(loss.detach()), rel=1e-5)
    found = packing.views(kept(outcome)[0])
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(found[name].double(), -0.1 * parameter.grad, rtol=1e-4, atol=1e-6)


@every_executor
def test_a_client_seen_for_the_first_time_trains_as_without(executor: str) -> None:
    work = one_step(clients.SGD(lr=0.1))
    assert work.contrast is not None
    unseen = replace(work, contrast=replace(work.contrast, row=torch.tensor([-1])))
    made = make(executor, dropped(), "cross_entropy", vectors())
    plain, contrasted, other = (made.run(w) for w in (replace(work, contrast=None), unseen, work))
    assert torch.equal(plain.delta, contrasted.delta)
    for name in ("first_loss", "last_loss", "mean_loss"):
        more = contrasted.scalars[name] - plain.scalars[name]
        assert float(more) == pytest.approx(2 * math.log(2), rel=1e-6)
    assert not torch.equal(plain.delta, other.delta)


@every_executor
def test_the_work_is_not_written_to(executor: str) -> None:
    work = one_step(clients.SGD(lr=0.1))
    assert work.contrast is not None
    start, previous = work.start.clone(), work.contrast.previous.clone()
    make(executor, dropped(), "cross_entropy", vectors()).run(work)
    assert torch.equal(work.start, start)
    assert torch.equal(work.contrast.previous, previous)


# ---- heads ----------------------------------------------------------------------------------------------------------


def test_the_head_is_the_last_linear_layer_or_the_one_named() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Tanh())
    assert head_of(module, None) == "1.0"
    assert head_of(module, "1") == "1"
    assert head_of(nn.Linear(2, 2), None) == ""
    module.append(module[0])
    assert head_of(module, "3") == "0"
    with pytest.raises(ValueError, match=r"head: the model has no nn\.Linear"):
        head_of(nn.Tanh(), None)


class Called(nn.Module):
    """Its head is called in another way."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.body, self.head = way, nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.body(x))
        if self.way == "by name":
            return self.head(input=x)
        if self.way == "in place":
            return self.head(x).relu_()
        if self.way == "mixed":
            return self.head(x[None])[0]
        return F.linear(x, self.head.weight, self.head.bias)


@pytest.mark.parametrize("executor", ["eager", "batched"])
@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("by name", "layer 'head' must be called with one tensor"),
        ("in place", "outputs are not those of layer 'head'"),
        ("mixed", r"the input of layer 'head' must have the 2 examples of a batch in front, got shape \(1, 2, 4\)"),
        ("not at all", "layer 'head' must be used once in a forward pass, not 0 times"),
    ],
)
def test_heads_whose_input_cannot_be_found(executor: str, way: str, words: str) -> None:
    module = Called(way)
    work = round_of(module, contrast=Contrast(1.0, 0.5, None, ff.Packing.of(module).zeros(3)))
    with pytest.raises(ValueError, match=f"^head: .*{words}"):
        make(executor, module, "cross_entropy", vectors()).run(work)


class Reshaped(nn.Module):
    """What the loss sees is a view of what the head made."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x))).view(-1, 3)


@every_executor
def test_a_view_of_the_heads_output_will_do(executor: str) -> None:
    module = Reshaped()
    work = round_of(module, contrast=Contrast(1.0, 0.5, None, ff.Packing.of(module).zeros(3) + 0.1))
    outcome = make(executor, module, "cross_entropy", vectors()).run(work)
    assert not bool(outcome.refused.any())


# ---- refusals -------------------------------------------------------------------------------------------------------

D = 8


@pytest.mark.parametrize(
    "given",
    [
        {"previous": torch.zeros(D)},
        {"previous": torch.zeros(3, D - 1)},
        {"previous": torch.zeros(3, D).double()},
        {"previous": torch.zeros(D, 3).T},
        {"previous": None},
        {"previous": torch.zeros(2, D)},
        {"row": [0, 1, 2]},
        {"row": torch.tensor([0, 1])},
        {"row": torch.tensor([0, 1, 3])},
        {"row": torch.tensor([0, -2, 1])},
    ],
    ids=str,
)
def test_bad_contrasts_are_named(given: dict[str, Any]) -> None:
    contrast = Contrast(**{"mu": 1.0, "temperature": 0.5, "head": None, "previous": torch.zeros(3, D), **given})
    with pytest.raises((ValueError, TypeError), match=r"^contrast: "):
        round_of(torch.zeros(D), contrast=contrast)


def test_what_is_no_contrast_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^contrast: must be a Contrast"):
        round_of(torch.zeros(D), contrast=0.1)
    for name, given in (("mu", (0.0, 0.5, None)), ("mu", (-1.0, 0.5, None)), ("temperature", (1.0, 0.0, None))):
        with pytest.raises(ValueError, match=f"^{name}: "):
            Contrast(*given, torch.zeros(3, D))
    with pytest.raises(TypeError, match=r"^head: "):
        Contrast(1.0, 0.5, 3, torch.zeros(3, D))  # type: ignore[arg-type]
