"""Rounds of executor 'device' that are counted, compiled and timed without a card: inside ``stubbed.stubbed_card``, or
while launches are written down, or interpreting."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ... import models
from ...clients import SGD, SM3, Adam, Client, DeltaSGD
from ...data import Augment, Examples, Federated, Pixels
from ...packing import Packing
from ...server import ServerModel
from ...simulation import Simulation
from ...train.device.engine import Device
from ...train.work import Outcome, RoundWork
from ..rounds import synthetic
from ..rounds.workloads import WORKLOADS, Workload

RULES: dict[str, Client] = {"SGD": SGD(lr=0.1), "Adam": Adam(lr=0.01), "SM3": SM3(lr=0.01)}
KEEPING: dict[str, Client] = {"clipped": SGD(lr=0.1, clip=1.0), "Delta-SGD": DeltaSGD(lr=0.1)}  # gradients in memory
_OF_BYTES = ("W1", "W2", "W3")  # images of one channel, which a store holds as bytes
CASES = [(workload, rule) for workload in _OF_BYTES for rule in RULES]

_STORED = 10  # clients that have examples of their own; more share theirs
_UNLIMITED = 1 << 62  # bytes: all clients train side by side


# ---- layers that those workloads do not have ------------------------------------------------------------------------


class _Residual(nn.Module):
    """A block whose input is added to its output, with curves that are no part of a product."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm, self.convolution = nn.GroupNorm(4, channels), nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.gelu(self.convolution(F.silu(self.norm(x))))


def _images() -> nn.Module:
    """Windows that overlap, windows on a grid, adaptive ones; both norms, dropout, an addition."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.GroupNorm(8, 32), nn.ReLU(), nn.MaxPool2d(3, 2, 1), _Residual(32),
        nn.Dropout(0.1), nn.AvgPool2d(2), nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.Tanh(), nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.LayerNorm(256), nn.Dropout(0.5), nn.Linear(256, 10),
    )  # fmt: skip


def _tied() -> nn.Module:
    """A layer that is used twice, whose gradients are added up."""
    again = nn.Linear(64, 64)
    return nn.Sequential(nn.Linear(784, 64), nn.ReLU(), again, nn.ReLU(), again, nn.Sigmoid(), nn.Linear(64, 10))


class _NextCharacter(nn.Module):
    """What comes after the last of some characters."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.recurrence, self.head = nn.Embedding(90, 8), models.LSTM(8, 64), nn.Linear(64, 90)

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.head(self.recurrence(self.embedding(tokens))[:, -1])
        return found


def _next_characters(n: int) -> Examples:
    examples = synthetic.text(n, length=5, vocabulary=90)
    assert isinstance(examples.targets, Tensor)
    return Examples(examples.inputs, examples.targets[:, -1].contiguous())


def _crops(n: int, standardise: bool) -> Examples:
    g = torch.Generator().manual_seed(1)
    images = torch.randint(256, (n, 3, 32, 32), dtype=torch.uint8, generator=g)
    return Examples(Pixels(images, augment=Augment(24, True, standardise)), torch.randint(10, (n,), generator=g))


_of_crops = partial(models.softmax_regression, 3 * 24 * 24, 10)

LAYERS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload(
            "images", "convolutions, norms, pools, dropout", 100, 40, 20,
            _images, "cross_entropy", partial(synthetic.pictures, channels=3, side=24, classes=10),
        ),
        Workload(
            "text", "embedding and LSTM, 5 characters", 100, 40, 20,
            models.shakespeare_lstm, "cross_entropy", partial(synthetic.text, length=5, vocabulary=90),
        ),
        Workload(
            "next", "the last output of an LSTM", 100, 40, 20, _NextCharacter, "cross_entropy", _next_characters
        ),
        Workload(
            "crops", "images cut out and flipped", 100, 40, 20,
            _of_crops, "cross_entropy", partial(_crops, standardise=False),
        ),
        Workload(
            "standardised crops", "the same, less their means", 100, 40, 20,
            _of_crops, "cross_entropy", partial(_crops, standardise=True),
        ),
        Workload("tied", "a layer used twice", 100, 40, 20, _tied, "cross_entropy", synthetic.digits),
        WORKLOADS["AE"],
        WORKLOADS["SO-LR"],
    )
}  # fmt: skip

# ---- rounds ---------------------------------------------------------------------------------------------------------


def steps_of(name: str) -> int:
    """The local steps of a workload."""
    return -(-WORKLOADS[name].examples // WORKLOADS[name].batch)


def round_of(name: str, rule: str, clients: int, steps: int, device: str = "cpu") -> tuple[Device, RoundWork]:
    """The executor of a workload, or of some of `LAYERS`, and a round of it."""
    workload: Workload = (WORKLOADS | LAYERS)[name]
    module, stored = workload.make_module(), min(clients, _STORED)
    executor = Device(module, workload.loss, _store(workload, stored), device=device, memory=_UNLIMITED)
    start = Packing.of(module).pack(module).to(device)
    return executor, replace(workload.work(start, clients, stored, steps), optimizers=((RULES | KEEPING)[rule],))


def run_and_step(executor: Device, work: RoundWork) -> Outcome:
    """The round, and the server's step of FedAvg behind it: the model that it starts from moves."""
    outcome = executor.run(work)
    outcome.total.step("sgd", work.start, {})
    return outcome


def simulation_of(name: str, rule: str, clients: int, device: str = "cpu") -> Simulation:
    """A simulation of a workload with cohorts of so many clients, out of ten times as many, on a device that need not
    hold numbers."""
    workload, registered = WORKLOADS[name], 10 * clients
    examples = _store(workload, _STORED)
    rows = torch.arange(registered * workload.examples) % len(examples)
    offsets = torch.arange(registered + 1) * workload.examples
    sim = Simulation(
        workload.make_module(),
        Federated(name, examples, rows, offsets),
        client=RULES[rule],
        cohort=clients,
        batch_size=workload.batch,
        loss=workload.loss,
        executor="eager",
    )
    sim.executor = Device(sim.model, workload.loss, examples, device=device, memory=_UNLIMITED)
    sim.server = ServerModel(sim.server.server, sim.params.to(device))
    return sim


def _store(workload: Workload, clients: int) -> Examples:
    """The examples of so many clients, as a store holds them."""
    examples = workload.data(clients * workload.examples)
    if workload.name not in _OF_BYTES:
        return examples
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(256, (len(examples), 1, 28, 28), dtype=torch.uint8, generator=generator)
    return Examples(Pixels(images), examples.targets)
