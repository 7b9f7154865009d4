"""Where an engine's seconds go: every layer is named, nothing is lost, and who asks gets the bits of who does not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import fastfed as ff
from fastfed.clients import Client
from fastfed.data import Examples
from fastfed.models import resnet18_gn
from fastfed.train import RoundWork

native = pytest.importorskip("fastfed.train.native", reason="the compiled extension is missing")
profile = pytest.importorskip("fastfed.train.profile", reason="the compiled extension is missing")

SIZE, CLIENTS = 40, 24


def dense() -> nn.Module:
    """Its first layer is trained in Gram form where clients take several epochs."""
    return nn.Sequential(nn.Flatten(), nn.Linear(432, 64), nn.ReLU(), nn.Linear(64, 5))


def convolutions() -> nn.Module:
    """Large images, which go through layers one by one."""
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(800, 5))


MODELS = {"dense": dense, "convolutions": convolutions, "large": lambda: resnet18_gn(classes=5)}


def engine(model: str, threads: int) -> Any:
    g = torch.Generator().manual_seed(1)
    examples = Examples(torch.rand(CLIENTS * SIZE, 3, 12, 12, generator=g), torch.randint(5, (CLIENTS * SIZE,)))
    torch.manual_seed(2)
    module = MODELS[model]()
    made = native.Native(module, "cross_entropy", examples, threads=threads)
    return made, ff.Packing.of(module).pack(module)


def work(start: torch.Tensor, client: Client, clients: int = CLIENTS, steps: int = 2) -> RoundWork:
    return RoundWork(
        start=start,
        rows=torch.arange(clients * SIZE),
        offsets=torch.arange(clients + 1) * SIZE,
        ids=torch.arange(clients),
        steps=torch.full((clients,), steps),
        batch_size=10,
        optimizers=(client,),
    )


@pytest.mark.parametrize("client", [ff.clients.SGD(lr=0.1), ff.clients.Adam(lr=0.01)], ids=["sgd", "adam"])
@pytest.mark.parametrize(("model", "clients", "steps"), [("dense", 24, 20), ("convolutions", 24, 2), ("large", 1, 1)])
@pytest.mark.parametrize("threads", [1, 2])
def test_who_asks_gets_the_bits_of_who_does_not(
    model: str, clients: int, steps: int, threads: int, client: Client
) -> None:
    made, start = engine(model, threads)
    asked = work(start, client, clients, steps)
    before = made.run(asked)
    made.profile = profile.Profile(made.program)
    during = made.run(asked)
    made.profile = None
    after = made.run(asked)
    for outcome in (during, after):
        assert torch.equal(outcome.delta, before.delta)
        assert torch.equal(outcome.scalars["mean_loss"], before.scalars["mean_loss"])


@pytest.mark.parametrize("model", ["dense", "convolutions"])
@pytest.mark.parametrize("threads", [1, 2])
def test_nothing_is_lost_and_nothing_is_told_twice(model: str, threads: int) -> None:
    made, start = engine(model, threads)
    asked = work(start, ff.clients.SGD(lr=0.1), steps=8)
    made.run(asked)  # memory that stays
    made.profile = found = profile.Profile(made.program)
    made.run(asked)
    made.run(asked)
    seconds = sum(one.seconds for one in found.layers) + sum(found.duties.values())
    assert found.rounds == 2
    assert 0.5 * threads * found.wall < seconds <= threads * found.wall
    assert all(value >= 0 for value in found.duties.values())


def test_every_layer_is_named_and_timed() -> None:
    made, start = engine("convolutions", 1)
    made.profile = found = profile.Profile(made.program)
    made.run(work(start, ff.clients.SGD(lr=0.1)))
    assert [(one.name, one.op, one.shapes) for one in found.layers] == [
        ("0", "conv2d", "(3 x 12 x 12) -> (8 x 10 x 10)"),
        ("1", "relu", "(8 x 10 x 10) -> (8 x 10 x 10)"),
        ("2", "flatten", "(8 x 10 x 10) -> (800)"),
        ("3", "linear", "(800) -> (5)"),
    ]
    assert all(one.forward > 0 and one.backward > 0 for one in found.layers)
    images = found.layers[0]  # whose time must not be told as that of what comes next
    assert images.forward > max(found.duties["loss"], found.layers[2].forward)
    assert images.backward > max(found.duties["rule"], found.layers[2].backward)
    busy = {name for name, seconds in found.duties.items() if seconds > 0}
    assert busy >= {"deal", "prepare", "begin", "read", "loss", "rule", "hand_over", "fold", "write"}


def test_a_first_layer_in_gram_form_has_its_seconds() -> None:
    made, start = engine("dense", 1)
    made.gram = True
    made.profile = found = profile.Profile(made.program)
    made.run(work(start, ff.clients.SGD(lr=0.1), steps=8))
    first, relu = found.layers[1], found.layers[2]
    assert (first.op, relu.op) == ("linear", "relu")
    assert first.forward > relu.forward  # it has the products of all examples
    assert first.backward > relu.backward


def test_the_rule_of_an_adaptive_client_is_told_apart() -> None:
    plain, adaptive = (ff.clients.SGD(lr=0.1), ff.clients.Adam(lr=0.01))
    made, start = engine("dense", 1)
    shares = []
    for client in (plain, adaptive):
        made.profile = found = profile.Profile(made.program)
        made.run(work(start, client, steps=3))
        shares.append(found.duties["rule"] / found.wall)
    assert shares[1] > 5 * shares[0]
