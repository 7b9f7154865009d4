"""What ranks must not change: the golden set-ups, and those in which a cohort has something more to divide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import fastfed as ff

from ..golden import setups as golden
from ..simulation.support import CLIENTS, simulation, small_federation, small_model


def normed_model() -> nn.Module:
    """The small model with a batch norm in the middle."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))


def many_clients(clients: int = 150) -> ff.data.Federated:
    """More clients than the native engine has lanes, of which every ninth has nothing and every seventh too much."""
    generator = torch.Generator().manual_seed(8)
    sizes = torch.randint(1, 12, (clients,), generator=generator)
    sizes[::9] = 0
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    n = int(offsets[-1])
    inputs = torch.randn(n + 50, 6, generator=generator)
    labels = torch.randint(0, 4, (n + 50,), generator=generator)
    owner = torch.arange(clients).repeat_interleave(sizes)
    inputs[:n][owner % 7 == 3] = 1e30  # a client that gives no finite delta
    test = ff.data.Examples(inputs[n:], labels[n:])
    return ff.data.Federated("many", ff.data.Examples(inputs[:n], labels[:n]), torch.arange(n), offsets, test=test)


def many_sparse_clients() -> ff.data.Federated:
    fed = many_clients()
    sparse = [
        ff.data.Examples(ff.data.Sparse.of(torch.where(held.inputs.abs() > 1, held.inputs, 0.0)), held.targets)
        for held in (fed.examples, fed.test)
        if held is not None
    ]
    return ff.data.Federated("many sparse", sparse[0], fed.rows, fed.offsets, test=sparse[1])


def _large_cohort(**settings: Any) -> ff.Simulation:
    return simulation(many_clients(), **{"cohort": 120, "weights": "examples", **settings})


class Nearest:
    """A reduction of somebody's own, which looks at whole deltas: the shortest is taken."""

    def reduce(self, deltas: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return deltas[int(ff.kernels.norms(deltas).argmin())]


def _in_laps(sim: ff.Simulation) -> ff.Simulation:
    """With room for a few deltas only, so that the sum goes round several times."""
    if sim.ranks is not None:
        sim.executor._way.waiting_bytes = 3 * 4 * sim.packing.size  # type: ignore[attr-defined]
    return sim


def _in_chunks(sim: ff.Simulation) -> ff.Simulation:
    """With room for few clients side by side, so that there is more than one chunk to deal."""
    executor: Any = sim.executor if sim.ranks is None else sim.executor.inner  # type: ignore[attr-defined]
    executor.memory = 100_000
    return sim


def _normed(**settings: Any) -> ff.Simulation:
    defaults: dict[str, Any] = {"client": ff.clients.SGD(lr=0.1), "cohort": 6, "epochs": 2, "batch_size": 9, "seed": 4}
    return ff.Simulation(normed_model(), _even_federation(), **(defaults | settings))


def _even_federation() -> ff.data.Federated:
    """Clients with 9 or 18 examples each, so that no batch has only one."""
    fed = small_federation()
    sizes = torch.tensor([9, 18] * (CLIENTS // 2))
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    return ff.data.Federated("even", fed.examples, fed.rows[: int(offsets[-1])], offsets, test=fed.test)


OWN: dict[str, Callable[[], ff.Simulation]] = {
    "many": lambda: _large_cohort(delta_clip=0.5, divide_by_steps=True),
    "many-weights": lambda: _large_cohort(weights=[1.0 + i % 5 for i in range(150)], batches="drawn"),
    "many-scaffold": lambda: _large_cohort(**ff.methods.scaffold(0.1)),
    "many-int8": lambda: _large_cohort(compression=ff.compression.Int8(), delta_clip=0.3),
    "many-median": lambda: _large_cohort(aggregation=ff.aggregate.Median(), weights="uniform"),
    "many-sparse": lambda: simulation(many_sparse_clients(), cohort=120, client=ff.clients.SGD(lr=0.3)),
    "many-own-reduction": lambda: _large_cohort(aggregation=Nearest()),
    "many-eager": lambda: _large_cohort(executor="eager", delta_clip=0.5, cohort=30),
    "many-fedexp": lambda: _large_cohort(**ff.methods.fedexp(0.1), delta_clip=0.5),
    "many-fednova": lambda: _large_cohort(**ff.methods.fednova(0.1, momentum=0.5)),
    "many-feddyn": lambda: _large_cohort(executor="eager", **{**ff.methods.feddyn(0.1), "cohort": 30}),
    "many-fedlion": lambda: _in_chunks(_large_cohort(executor="batched", **{**ff.methods.fedlion(0.01), "cohort": 90})),
    "many-ditto": lambda: _large_cohort(executor="eager", cohort=30, **ff.methods.ditto(0.1)),
    "many-laps": lambda: _in_laps(_large_cohort(executor="eager", cohort=30, **ff.methods.scaffold(0.1))),
    "many-chunks": lambda: _in_chunks(_large_cohort(executor="batched", cohort=90)),
    "poisson-drawn-empty": lambda: _large_cohort(cohort=ff.plan.Poisson(0.01)),
    "repeats": lambda: _large_cohort(cohort=ff.plan.Sampled(40, replacement=True)),
    "norm-average": lambda: _normed(),
    "norm-local": lambda: _normed(batch_norm="local"),
    "generated": lambda: ff.Simulation(
        _generated_model(), ff.data.synthetic_images(40, seed=2), client=ff.clients.SGD(lr=0.1), cohort=7, steps=2
    ),
}


def _generated_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return ff.models.softmax_regression(28 * 28, 10)


def names() -> list[str]:
    return [*golden.names(), *OWN]


def begun(name: str) -> ff.Simulation:
    """The run of that name before its first round."""
    return OWN[name]() if name in OWN else golden.begun(name)


def resumed(name: str, path: str) -> ff.Simulation:
    """The same run as a checkpoint has it."""
    made = begun(name)
    return ff.Simulation.resume(path, model=made.model, fed=made.fed)


__all__ = ["OWN", "begun", "names", "resumed", "small_model"]
