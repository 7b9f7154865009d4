"""Every method, five rounds on a small problem, against its pseudo-code in NumPy: the model, the server's moments and
the clients' control variates after every round.

In float64, where both sides round at 1e-16, they may differ by 1e-10 of the vector's norm: the rest is room for the
order of sums. In float32, FastFed may be as far from the float64 truth as the pseudo-code itself run in float32, times
16: both are rounded at every operation, but not at the same ones, and either may be lucky.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fastfed as ff
from fastfed.purposes import Purpose
from fastfed.train.threads import one_thread_per_operation

from . import literal
from .literal import Array, Method, Network, Rule, Server, Snapshot, Start

NETWORK = Network(features=4, hidden=5, classes=3)
SIZES = (7, 3, 5, 0, 4)
STEPS = (3, 2, 4, 2, 5)
COHORTS = ((0, 2), (1, 3, 4), (0, 1, 2, 3, 4), (2, 4, 1), (3, 0, 1))  # nobody comes alone: weights must tell
SEED = 4


def problem(poisoned: int | None = None) -> ff.data.Federated:
    """Five clients, one of them without examples; all features of client `poisoned` are infinite."""
    generator = torch.Generator().manual_seed(8)
    n = sum(SIZES)
    inputs = torch.randn(n, NETWORK.features, generator=generator)
    labels = torch.randint(NETWORK.classes, (n,), generator=generator)
    offsets = torch.tensor([0, *torch.tensor(SIZES).cumsum(0).tolist()])
    rows = torch.randperm(n, generator=generator)
    if poisoned is not None:
        inputs[rows[offsets[poisoned] : offsets[poisoned + 1]]] = torch.inf
    return ff.data.Federated("five clients", ff.data.Examples(inputs, labels), rows, offsets)


def network(dtype: torch.dtype) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        made = nn.Sequential(
            nn.Linear(NETWORK.features, NETWORK.hidden), nn.Tanh(), nn.Linear(NETWORK.hidden, NETWORK.classes)
        )
    return made.to(dtype)


def flat(packing: ff.Packing, packed: Tensor) -> Array:
    """A packed vector without its gaps, in float64."""
    return np.concatenate([packed[slot.span].double().numpy() for slot in packing.slots])


# ---- the table ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """`settings` of ff.Simulation, and the same method for the pseudo-code. Full batches unless `batch_size` says
    otherwise, then two epochs of them."""

    settings: dict[str, Any]
    method: Callable[[], Method]
    cohorts: Sequence[Sequence[int]] = COHORTS
    batch_size: int | None = None
    poisoned: int | None = None

    def local_work(self) -> dict[str, Any]:
        if self.batch_size is None:
            return {"steps": STEPS, "batch_size": max(SIZES)}
        return {"epochs": 2, "batch_size": self.batch_size}


SGD = ff.clients.SGD(lr=0.3)
sgd = partial(literal.SGD, lr=0.3)


def on_clients(
    client: ff.clients.Client, rule: Callable[[Start], Rule], cohorts: Any = COHORTS, batch_size: int | None = None
) -> Case:
    """A client rule under plain averaging."""
    return Case({"client": client}, lambda: Method(rule, Server()), cohorts, batch_size)


def on_server(server: ff.servers.Server, **twin: Any) -> Case:
    """A server rule over plain SGD."""
    return Case({"client": SGD, "server": server}, lambda: Method(sgd, Server(**twin)))


def method(settings: dict[str, Any], *, server: dict[str, Any] | None = None, **twin: Any) -> Case:
    """A method of ff.methods, or corrections over SGD."""
    return Case(settings, lambda: Method(**{"client": sgd, "server": Server(**(server or {})), **twin}))


SERVERS = {
    "FedAvg": on_server(ff.servers.FedAvg()),
    "FedAvg lr 0.7": on_server(ff.servers.FedAvg(lr=0.7), lr=0.7),
    "FedAvgM": on_server(ff.servers.FedAvgM(lr=0.6), rule="momentum", lr=0.6),
    "FedAvgM 0.5": on_server(ff.servers.FedAvgM(momentum=0.5), rule="momentum", momentum=0.5),
    "FedAdagrad": on_server(ff.servers.FedAdagrad(lr=0.1), rule="adagrad", lr=0.1, beta1=0.0),
    "FedAdagrad b1 0.8": on_server(
        ff.servers.FedAdagrad(lr=0.1, beta1=0.8, tau=0.05), rule="adagrad", lr=0.1, beta1=0.8, tau=0.05
    ),
    "FedAdam": on_server(ff.servers.FedAdam(lr=0.05), rule="adam", lr=0.05),
    "FedAdam of delta": on_server(
        ff.servers.FedAdam(lr=0.05, beta1=0.7, beta2=0.9, tau=0.02, second_moment_of="delta", v0=0.3),
        **{"rule": "adam", "lr": 0.05, "beta1": 0.7, "beta2": 0.9, "tau": 0.02, "of": "delta", "v0": 0.3},
    ),
    "FedAdam of the authors": on_server(
        ff.servers.FedAdam(lr=0.05, v0=0.0, bias_correction=True), rule="adam", lr=0.05, v0=0.0, bias_correction=True
    ),
    "FedAdam of torch": on_server(
        ff.servers.FedAdam(lr=0.05, bias_correction=True, eps="torch"),
        **{"rule": "adam", "lr": 0.05, "of": "delta", "v0": 0.0, "bias_correction": True, "corrects_first": True},
    ),
    "FedYogi": on_server(ff.servers.FedYogi(lr=0.05), rule="yogi", lr=0.05),
    "FedYogi from above": on_server(ff.servers.FedYogi(lr=0.05, v0=0.5), rule="yogi", lr=0.05, v0=0.5),
    "FedYogi of the authors": on_server(
        ff.servers.FedYogi(lr=0.05, v0=0.0, bias_correction=True), rule="yogi", lr=0.05, v0=0.0, bias_correction=True
    ),
    "FedAMS": on_server(ff.servers.FedAMS(lr=0.05, beta2=0.6), rule="ams", lr=0.05, beta2=0.6, of="delta"),
    "FedAMS of the authors": on_server(
        ff.servers.FedAMS(lr=0.05, beta2=0.6, v0=0.0, vmax0=1e-3, bias_correction=True),
        **{"rule": "ams", "lr": 0.05, "beta2": 0.6, "of": "delta", "v0": 0.0, "vmax0": 1e-3, "bias_correction": True},
    ),
}

EVERYONE = (tuple(range(len(SIZES))),) * 5

CLIENTS = {
    "SGD, everyone": on_clients(SGD, sgd, cohorts=EVERYONE),
    "SGD, batches": on_clients(SGD, sgd, batch_size=2),
    "Momentum": on_clients(ff.clients.Momentum(lr=0.1, momentum=0.8), partial(literal.Momentum, lr=0.1, momentum=0.8)),
    "AdaGrad": on_clients(ff.clients.AdaGrad(lr=0.1), partial(literal.AdaGrad, lr=0.1)),
    "AdaGrad, v0": on_clients(
        ff.clients.AdaGrad(lr=0.1, eps=0.01, v0=0.04), partial(literal.AdaGrad, lr=0.1, eps=0.01, v0=0.04)
    ),
    "AdaGrad, delay 2": on_clients(
        ff.clients.AdaGrad(lr=0.1, delay=2, eps=0.01), partial(literal.AdaGrad, lr=0.1, delay=2, eps=0.01)
    ),
    "AdaGrad, delay 3": on_clients(
        ff.clients.AdaGrad(lr=0.1, delay=3, eps=0.01), partial(literal.AdaGrad, lr=0.1, delay=3, eps=0.01)
    ),
    "AdaGrad, delay 2 epochs": on_clients(
        ff.clients.AdaGrad(lr=0.1, eps=0.01, delay=2, delay_unit="epoch"),
        partial(literal.AdaGrad, lr=0.1, eps=0.01, delay=2, delay_unit="epoch"),
        batch_size=2,
    ),
    "AdaGrad, floor": on_clients(  # the first step of every client has norm sqrt(d) = 6.6, later ones are smaller
        ff.clients.AdaGrad(lr=0.1, floor=4.0), partial(literal.AdaGrad, lr=0.1, floor=4.0)
    ),
    "Adam": on_clients(ff.clients.Adam(lr=0.05), partial(literal.Adam, lr=0.05)),
    "Adam, delay 2": on_clients(
        ff.clients.Adam(lr=0.05, beta1=0.7, beta2=0.9, delay=2, eps=0.01),
        partial(literal.Adam, lr=0.05, beta1=0.7, beta2=0.9, delay=2, eps=0.01),
    ),
    **{
        f"Adam, v0, corrected: {correction}": on_clients(
            ff.clients.Adam(lr=0.05, beta2=0.99, eps=0.01, v0=0.02, delay=2, bias_correction=correction),
            partial(literal.Adam, lr=0.05, beta2=0.99, eps=0.01, v0=0.02, delay=2, correction=correction),
        )
        for correction in (None, True, False, "server_round")
    },
    "Adam, uncorrected": on_clients(
        ff.clients.Adam(lr=0.05, eps=0.01, bias_correction=False),
        partial(literal.Adam, lr=0.05, eps=0.01, correction=False),
    ),
    "SM3-Adam, v0": on_clients(
        ff.clients.SM3(lr=0.05, form="adam", eps=0.01, v0=0.02),
        partial(literal.SM3, lr=0.05, eps=0.01, betas=(0.9, 0.999), v0=0.02),
    ),
    "SM3-Adam, server round": on_clients(
        ff.clients.SM3(lr=0.05, form="adam", cover="I", eps=0.01, bias_correction="server_round"),
        partial(literal.SM3, lr=0.05, eps=0.01, form="I", betas=(0.9, 0.999), correction="server_round"),
    ),
    "SM3-II": on_clients(ff.clients.SM3(lr=0.1), partial(literal.SM3, lr=0.1)),
    "SM3-I": on_clients(ff.clients.SM3(lr=0.1, cover="I"), partial(literal.SM3, lr=0.1, form="I")),
    "SM3-II, delay 2": on_clients(
        ff.clients.SM3(lr=0.1, delay=2, eps=0.01), partial(literal.SM3, lr=0.1, delay=2, eps=0.01)
    ),
    "SM3-II, delay 2, compact": on_clients(
        ff.clients.SM3(lr=0.1, delay=2, delay_mode="compact", eps=0.01),
        partial(literal.SM3, lr=0.1, delay=2, exact=False, eps=0.01),
    ),
    "SM3-II, delay 2, exact": on_clients(
        ff.clients.SM3(lr=0.1, delay=2, delay_mode="exact", eps=0.01),
        partial(literal.SM3, lr=0.1, delay=2, exact=True, eps=0.01),
    ),
    "SM3-I, delay 2": on_clients(
        ff.clients.SM3(lr=0.1, cover="I", delay=2, eps=0.01), partial(literal.SM3, lr=0.1, form="I", delay=2, eps=0.01)
    ),
    "SM3-II, v0": on_clients(ff.clients.SM3(lr=0.1, v0=0.01), partial(literal.SM3, lr=0.1, v0=0.01)),
    "SM3-Adam": on_clients(ff.clients.SM3(lr=0.05, form="adam"), partial(literal.SM3, lr=0.05, betas=(0.9, 0.999))),
    "SM3-Adam, delay 2": on_clients(
        ff.clients.SM3(lr=0.05, form="adam", beta1=0.6, beta2=0.9, delay=2, eps=0.01),
        partial(literal.SM3, lr=0.05, betas=(0.6, 0.9), delay=2, eps=0.01),
    ),
    "SM3-I-Adam": on_clients(
        ff.clients.SM3(lr=0.05, form="adam", cover="I", beta2=0.9),
        partial(literal.SM3, lr=0.05, form="I", betas=(0.9, 0.9)),
    ),
    "Delta-SGD": on_clients(ff.clients.DeltaSGD(lr=2.0), partial(literal.DeltaSGD, lr=2.0)),
    "Delta-SGD, batches": on_clients(ff.clients.DeltaSGD(lr=2.0), partial(literal.DeltaSGD, lr=2.0), batch_size=2),
    "Delta-SGD, same batch": on_clients(
        ff.clients.DeltaSGD(lr=2.0, same_batch=True), partial(literal.DeltaSGD, lr=2.0, same_batch=True), batch_size=2
    ),
    "Delta-SGD of the authors": on_clients(
        ff.clients.DeltaSGD(same_batch=True, grow_first=True, lr_eps=1e-3),  # 1e-8 would not show
        partial(literal.DeltaSGD, same_batch=True, grow_first=True, lr_eps=1e-3),
        batch_size=2,
    ),
    "SPS, unbounded": on_clients(ff.clients.SPS(c=0.9), partial(literal.SPS, c=0.9)),
    "SPS with a proximal term": method(
        {"client": ff.clients.SPS(c=0.9, prox=2.0)}, client=partial(literal.SPS, c=0.9), prox=2.0
    ),
    "SPS": on_clients(ff.clients.SPS(lr_max=3.0), partial(literal.SPS, lr_max=3.0)),
    "SPS, f_star": on_clients(
        ff.clients.SPS(c=0.8, f_star=0.1, lr_max=0.9), partial(literal.SPS, c=0.8, f_star=0.1, lr_max=0.9)
    ),
}

halving = ff.schedules.Staircase(factor=0.5, every=2)

METHODS = {
    "ff.methods.fedavg": method(ff.methods.fedavg(0.3, 0.8), server={"lr": 0.8}),
    "ff.methods.fedavgm": method(ff.methods.fedavgm(0.3, 0.8), server={"rule": "momentum", "lr": 0.8}),
    "ff.methods.fedadagrad": method(
        ff.methods.fedadagrad(0.3, 0.1), server={"rule": "adagrad", "lr": 0.1, "beta1": 0.0}
    ),
    "ff.methods.fedadam": method(ff.methods.fedadam(0.3, 0.1, tau=0.1), server={"rule": "adam", "lr": 0.1, "tau": 0.1}),
    "ff.methods.fedyogi": method(ff.methods.fedyogi(0.3, 0.1, tau=0.1), server={"rule": "yogi", "lr": 0.1, "tau": 0.1}),
    "ff.methods.fedams": method(
        ff.methods.fedams(0.3, 0.1, tau=0.1), server={"rule": "ams", "lr": 0.1, "tau": 0.1, "of": "delta"}
    ),
    "FedProx": method(ff.methods.fedprox(0.3, mu=0.9), prox=0.9),
    "FedProx, batches": Case(ff.methods.fedprox(0.3, mu=0.9), lambda: Method(sgd, Server(), prox=0.9), batch_size=2),
    "SCAFFOLD": method(ff.methods.scaffold(0.3), control=True, client_lr=0.3),
    "SCAFFOLD, server lr": method(ff.methods.scaffold(0.3, 0.7), server={"lr": 0.7}, control=True, client_lr=0.3),
    "SCAFFOLD, uniform": method(
        {**ff.methods.scaffold(0.3), "weights": "uniform"}, weights="uniform", control=True, client_lr=0.3
    ),
    "SCAFFOLD, schedule": method(
        {**ff.methods.scaffold(0.3), "client_schedule": halving},
        control=True,
        client_lr=0.3,
        client_factor=lambda round: 0.5 ** (round // 2),
    ),
    "SCAFFOLD, batches": Case(
        ff.methods.scaffold(0.3), lambda: Method(sgd, Server(), control=True, client_lr=0.3), batch_size=2
    ),
    "ff.methods.delta_sgd": method(ff.methods.delta_sgd(), client=literal.DeltaSGD, weights="uniform"),
    "uniform weights": method({"client": SGD, "weights": "uniform"}, weights="uniform"),
    "weight decay": method({"client": ff.clients.SGD(lr=0.3, weight_decay=0.1)}, weight_decay=0.1),
    "clipped gradients": method({"client": ff.clients.SGD(lr=0.3, clip=0.4)}, clip=0.4),
    "all corrections, AdaGrad": method(
        {"client": ff.clients.AdaGrad(lr=0.1, eps=0.1, weight_decay=0.1, prox=0.5, clip=0.6)},
        client=partial(literal.AdaGrad, lr=0.1, eps=0.1),
        weight_decay=0.1,
        prox=0.5,
        clip=0.6,
    ),
    "warm-up": method({"client": ff.clients.SGD(lr=0.3, warmup=3)}, warmup=3),
    "warm-up from the first step on": method(
        {"client": ff.clients.SGD(lr=0.3, warmup=3, from_first=True)}, warmup=3, from_first=True
    ),
    "deltas by steps": method({"client": SGD, "divide_by_steps": True}, divide_by_steps=True),
    "clipped deltas": method(
        {"client": SGD, "divide_by_steps": True, "delta_clip": 0.1}, divide_by_steps=True, delta_clip=0.1
    ),
    "schedules": method(
        {
            "client": ff.clients.AdaGrad(lr=0.1),
            "server": ff.servers.FedAdam(lr=0.1, tau=0.1),
            "client_schedule": ff.schedules.Drops(5),
            "server_schedule": lambda round: 1 / (1 + round),
        },
        client=partial(literal.AdaGrad, lr=0.1),
        server={"rule": "adam", "lr": 0.1, "tau": 0.1},
        client_factor=(1.0, 1.0, 1.0, 0.1, 0.01).__getitem__,  # after 2.5 and 3.75 rounds
        server_factor=lambda round: 1 / (1 + round),
    ),
    "ff.methods.delta_sgd, schedule": method(
        {**ff.methods.delta_sgd(), "client_schedule": halving},
        client=literal.DeltaSGD,
        weights="uniform",
        client_factor=lambda round: 0.5 ** (round // 2),
    ),
    "rounds without anyone": Case(
        {"client": SGD, "server": ff.servers.FedAdam(lr=0.05, bias_correction=True)},
        lambda: Method(sgd, Server(rule="adam", lr=0.05, bias_correction=True)),
        cohorts=((0, 2), (), (3,), (1, 4), (0, 1)),
    ),
    "a poisoned client": Case(
        {"client": SGD, "server": ff.servers.FedAdam(lr=0.05)},
        lambda: Method(sgd, Server(rule="adam", lr=0.05)),
        poisoned=1,
    ),
    "a poisoned client, SCAFFOLD": Case(
        ff.methods.scaffold(0.3), lambda: Method(sgd, Server(), control=True, client_lr=0.3), poisoned=1
    ),
}


def fedada2_cases() -> Iterator[tuple[str, Case]]:
    """FedAda2's joint methods: two servers, two clients, compressed or not, transmitted or not; with a delay too."""
    rules: dict[tuple[str, bool], Callable[..., Rule]] = {
        ("adagrad", False): literal.AdaGrad,
        ("adam", False): literal.Adam,
        ("adagrad", True): literal.SM3,
        ("adam", True): partial(literal.SM3, betas=(0.9, 0.999)),
    }
    for server in ("adagrad", "adam"):
        for (client, sm3), rule in rules.items():
            for transmit in (False, True):
                for delay in (1, 2) if server == "adagrad" else (2,):
                    twin = partial(rule, lr=0.05, eps=0.02, delay=delay)
                    of_server = {"rule": server, "lr": 0.05, "tau": 0.01, "of": "delta"}
                    of_server |= {"beta1": 0.0} if server == "adagrad" else {"beta2": 0.999}
                    name = f"{client}{'+SM3' if sm3 else ''} under {server}{', transmitted' if transmit else ''}"
                    settings = ff.methods.fedada2(
                        *(server, client, sm3, transmit),
                        client_lr=0.05,
                        server_lr=0.05,
                        eps=0.02,
                        tau=0.01,
                        delay=delay,
                    )
                    same = {"client": twin, "weights": "uniform", "transmit": transmit}
                    yield f"{name}, delay {delay}", method(settings, server=of_server, **same)
    for correction in (True, "server_round"):
        settings = ff.methods.fedada2(
            *("adam", "adam", False, True), client_lr=0.05, server_lr=0.05, eps=0.02, tau=0.01, beta1=0.7,
            bias_correction=correction,
        )  # fmt: skip
        of_server = {"rule": "adam", "lr": 0.05, "tau": 0.01, "of": "delta", "beta1": 0.7, "beta2": 0.999}
        twin = partial(literal.Adam, lr=0.05, eps=0.02, correction=correction)
        same = {"client": twin, "weights": "uniform", "transmit": True}
        yield f"transmitted, corrected: {correction}", method(settings, server=of_server, **same)


CASES: dict[str, Case] = {**SERVERS, **CLIENTS, **METHODS, **dict(fedada2_cases())}


# ---- both sides -----------------------------------------------------------------------------------------------------


def simulate(case: Case, dtype: torch.dtype, executor: str) -> Iterator[ff.Simulation]:
    """The simulation after every round."""
    settings = {
        **case.settings,
        **case.local_work(),
        "cohort": case.cohorts,
        "seed": SEED,
        "executor": executor,
        "threads": None if executor == "batched" else 1,
    }
    sim = ff.Simulation(network(dtype), problem(case.poisoned), **settings)
    for _ in case.cohorts:
        sim.step()
        yield sim


def start_model(dtype: str) -> Array:
    parameters = [p.detach().numpy().reshape(-1) for p in network(torch.float32).parameters()]
    return np.concatenate(parameters).astype(dtype)


@cache
def run_literally(name: str, dtype: str) -> list[Snapshot]:
    case = CASES[name]
    fed, x = problem(case.poisoned), start_model(dtype)
    clients = []
    for i in range(len(fed)):
        inputs, labels = fed.examples.batch(fed.rows_of(i))
        clients.append((inputs.numpy(), labels.numpy()))
    with np.errstate(invalid="ignore"):  # the poisoned client's
        return literal.run(literal.Federation(NETWORK, clients, partial(batches, case)), case.method(), x, case.cohorts)


def batches(case: Case, round: int, client: int) -> list[literal.Batch]:
    """A client's local steps: its number of full batches, or two epochs of shuffled ones, the last one short."""
    n = SIZES[client]
    if case.batch_size is None:
        return [(k + 1, np.arange(n)) for k in range(STEPS[client])]
    found = []
    for epoch in range(2):
        stream = ff.kernels.Stream(SEED, Purpose.SHUFFLE, round, client, epoch)
        order = ff.kernels.permutation(n, stream).numpy()
        found += [(epoch + 1, order[begin : begin + case.batch_size]) for begin in range(0, n, case.batch_size)]
    return found


def kept(sim: ff.Simulation) -> Snapshot:
    """What a simulation keeps, under the names of the pseudo-code."""
    vectors = {"x": sim.params, **{name: tensor for name, tensor in sim.server.state.items() if tensor.dim() == 1}}
    if held := sim.exchanger.tensors():
        own = zip(held["ids"].tolist(), held["vectors"], strict=True)
        vectors |= {"c": held["common"], **{f"c{client}": vector for client, vector in own}}
    return {name: flat(sim.packing, vector) for name, vector in vectors.items()}


def distance(found: Array, wanted: Array) -> float:
    return literal.norm(found - wanted)


# ---- the tests ------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Over tensors this small, threads only wait for each other."""
    with one_thread_per_operation():
        yield


@pytest.mark.parametrize("name", CASES)
def test_a_method_is_its_pseudo_code(name: str) -> None:
    truth = run_literally(name, "float64")
    for t, sim in enumerate(simulate(CASES[name], torch.float64, "eager")):
        found = kept(sim)
        is_delta = {"m"} if getattr(sim.settings.server, "beta1", None) == 0 else set()  # nothing to keep
        assert set(found) == set(truth[t]) - is_delta
        for what, vector in found.items():
            wanted = truth[t][what]
            assert distance(vector, wanted) <= 1e-10 * literal.norm(wanted), f"{what} after round {t + 1}"
    assert torch.equal(sim.packing.pack(sim.trained_model()), sim.params), "gaps of the packed model are not 0 any more"


@pytest.mark.parametrize("name", CASES)
def test_the_native_engine_is_as_near_to_it_as_float32_can_be(name: str) -> None:
    truth, rounded = run_literally(name, "float64"), run_literally(name, "float32")
    for t, sim in enumerate(simulate(CASES[name], torch.float32, "native")):
        for what, vector in kept(sim).items():
            wanted = truth[t][what]
            by_rounding = distance(rounded[t][what], wanted)
            last_bit = float(np.finfo(np.float32).eps) * literal.norm(wanted)
            assert distance(vector, wanted) <= 16 * (by_rounding + last_bit), f"{what} after round {t + 1}"
            assert distance(vector, wanted) <= 1e-4 * literal.norm(wanted), f"{what} after round {t + 1}"


def test_gradients_by_hand_are_slopes() -> None:
    """The pseudo-code's own gradient, against differences of its loss."""
    fed, x = problem(), start_model("float64")
    inputs, labels = (part.numpy() for part in fed.examples.batch(torch.arange(9), torch.float64))
    _, gradient = NETWORK.loss_and_gradient(x, inputs, labels)
    slopes = np.empty_like(x)
    for j in range(len(x)):
        step = 1e-5 * np.eye(len(x))[j]
        up, down = (NETWORK.loss_and_gradient(x + side * step, inputs, labels)[0] for side in (1, -1))
        slopes[j] = (up - down) / 2e-5
    assert distance(slopes, gradient) < 1e-9 * literal.norm(gradient) * 10


def test_every_case_leads_elsewhere() -> None:
    """An option that a case sets must show in where it ends: only cases that say the same may end alike."""
    ends = {name: run_literally(name, "float64")[-1]["x"] for name in CASES}
    start = start_model("float64")
    assert [name for name, x in ends.items() if not distance(x, start) > 0.01] == []
    alike = {(a, b) for a in ends for b in ends if a < b and distance(ends[a], ends[b]) < 1e-6}
    assert alike == {
        ("FedAdagrad", "ff.methods.fedadagrad"),
        ("SM3-II, delay 2", "SM3-II, delay 2, exact"),
        ("Adam, v0, corrected: False", "Adam, v0, corrected: None"),
    }
