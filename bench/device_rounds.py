"""Rounds of executor 'device' that are counted, compiled and timed without a card: inside ``stubbed.stubbed_card``, or
while launches are written down, or interpreting."""

from __future__ import annotations

from dataclasses import replace

import torch

from ..clients import SGD, SM3, Adam, Client
from ..data import Examples, Federated, Pixels
from ..packing import Packing
from ..simulation import Simulation
from ..step import ServerModel
from ..train.device import Device
from ..train.work import RoundWork
from .workloads import WORKLOADS, Workload

RULES: dict[str, Client] = {"SGD": SGD(lr=0.1), "Adam": Adam(lr=0.01), "SM3": SM3(lr=0.01)}
CASES = [(workload, rule) for workload in ("W1", "W2", "W3") for rule in RULES]

_STORED = 10  # clients that have examples of their own; more share theirs
_UNLIMITED = 1 << 62  # bytes: all clients train side by side


def steps_of(name: str) -> int:
    """The local steps of a workload."""
    return -(-WORKLOADS[name].examples // WORKLOADS[name].batch)


def round_of(name: str, rule: str, clients: int, steps: int, device: str = "cpu") -> tuple[Device, RoundWork]:
    """The executor of a workload, and a round of it."""
    workload: Workload = WORKLOADS[name]
    module, stored = workload.make_module(), min(clients, _STORED)
    executor = Device(module, workload.loss, _store(workload, stored), device=device, memory=_UNLIMITED)
    start = Packing.of(module).pack(module).to(device)
    return executor, replace(workload.work(start, clients, stored, steps), clients=(RULES[rule],))


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
    """The examples of so many clients: the workload's labels, and images as a store holds them."""
    examples = workload.data(clients * workload.examples)
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(256, (len(examples), 1, 28, 28), dtype=torch.uint8, generator=generator)
    return Examples(Pixels(images), examples.targets)
