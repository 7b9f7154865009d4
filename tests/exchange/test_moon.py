"""MOON, five rounds on a small problem, against its formula in NumPy: the model, the server's moments and the models
that clients keep, after every round. What "near" means is said in test_methods.py, from which the problem comes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fastfed as ff
from fastfed.exchange import PreviousModels
from fastfed.program import Unsupported
from fastfed.train.threads import one_thread_per_operation

from ..simulation import literal
from ..simulation.literal import Array, Method, Network, Server, Snapshot, Start, Step
from ..simulation.support import simulation, small_federation
from ..simulation.test_methods import (
    EVERYONE,
    NETWORK,
    Case,
    batches,
    distance,
    flat,
    network,
    problem,
    simulate,
    start_model,
)

# ---- the formula ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moon:
    """The loss of a batch with MOON's term, example by example; `mu` and the temperature `t` as in its paper."""

    mu: float
    t: float

    def loss_and_gradient(
        self, network: Network, x: Array, start: Array, previous: Array, features: Array, labels: Array
    ) -> tuple[float, Array]:
        loss, gradient = network.loss_and_gradient(x, features, labels)
        n = len(labels)
        of_hidden = np.zeros((n, network.hidden), x.dtype)
        for i, f in enumerate(features):
            z, z_glob, z_prev = (hidden(network, model, f) for model in (x, start, previous))
            near, far = math.exp(cosine(z, z_glob) / self.t), math.exp(cosine(z, z_prev) / self.t)
            loss += self.mu / n * -math.log(near / (near + far))
            slope = far / (near + far) / self.t  # of the term: down with the one cosine, up with the other
            of_z = slope * (cosine_slope(z, z_prev) - cosine_slope(z, z_glob))
            of_hidden[i] = self.mu / n * of_z * (1 - z * z)
        parts = [part.copy() for part in literal.split(gradient, network.shapes)]
        parts[0] += of_hidden.T @ features
        parts[1] += of_hidden.sum(axis=0)
        return loss, np.concatenate([part.reshape(-1) for part in parts])


def hidden(network: Network, x: Array, f: Array) -> Array:
    w1, b1, _, _ = literal.split(x, network.shapes)
    return np.tanh(w1 @ f + b1)


def cosine(a: Array, b: Array) -> float:
    return float(a @ b) / (literal.norm(a) * literal.norm(b))


def cosine_slope(a: Array, b: Array) -> Array:
    return b / (literal.norm(a) * literal.norm(b)) - cosine(a, b) * a / literal.norm(a) ** 2


def run_moon(fed: literal.Federation, method: Method, moon: Moon, x: Array, cohorts: Any) -> list[Snapshot]:
    """x, the server's moments and "p<client>", the model at the end of a client's last round, after every round."""
    method.server.begin(x)
    last: dict[int, Array] = {}
    snapshots = []
    for t, cohort in enumerate(cohorts):
        ended = {}
        for i in cohort:
            local, steps = train(fed, method, moon, x, last.get(i, x), t, i)
            if steps > 0 and math.isfinite(literal.norm(local)):
                ended[i] = local
        if ended:
            sizes = {i: len(fed.clients[i][1]) for i in ended}
            p = {
                i: 1 / len(ended) if method.weights == "uniform" else n / sum(sizes.values()) for i, n in sizes.items()
            }
            aggregate = np.sum([p[i] * (ended[i] - x) for i in ended], axis=0, dtype=x.dtype)
            x = method.server.step(x, aggregate, 1.0)
            last |= ended
        snapshots.append({"x": x, **method.server.state, **{f"p{i}": model for i, model in last.items()}})
    return snapshots


def train(
    fed: literal.Federation, method: Method, moon: Moon, x: Array, previous: Array, t: int, i: int
) -> tuple[Array, int]:
    """Where client i ends, and after how many steps."""
    rule = method.client(Start(x, 1.0, None, fed.network.shapes))
    features, labels = fed.clients[i]
    local, k = x, 0
    for k, (epoch, rows) in enumerate(fed.batches(t, i) if len(labels) else [], start=1):

        def gradient(there: Array, rows: Array = rows) -> tuple[float, Array]:
            own = features[rows].astype(x.dtype)
            loss, g = moon.loss_and_gradient(fed.network, there, x, previous, own, labels[rows])
            return loss, g + method.prox * (there - x)

        loss, g = gradient(local)
        local = rule.step(Step(k, epoch, local, g, loss, gradient, 1.0))
    return local, k


# ---- the table ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MoonCase:
    """`settings` of ff.Simulation and the same for the formula; the rest as in `Case`."""

    settings: dict[str, Any]
    moon: Moon = Moon(1.0, 0.5)
    twin: dict[str, Any] = field(default_factory=dict)
    rest: dict[str, Any] = field(default_factory=dict)

    @property
    def case(self) -> Case:
        return Case(self.settings, self.method, **self.rest)

    def method(self) -> Method:
        return Method(**{"client": partial(literal.SGD, lr=0.3), "server": Server(), **self.twin})


def with_client(own: ff.clients.Client, **twin: Any) -> MoonCase:
    settings = {"client": own, "exchange": PreviousModels(2.0, 0.7)}
    return MoonCase(settings, Moon(2.0, 0.7), twin, {"batch_size": 2})


CASES = {
    "ff.methods.moon": MoonCase(ff.methods.moon(0.3)),
    "its settings": MoonCase(ff.methods.moon(0.3, mu=5.0, temperature=0.2, head="2"), Moon(5.0, 0.2)),
    "everyone": MoonCase(ff.methods.moon(0.3), rest={"cohorts": EVERYONE}),
    "batches": MoonCase(ff.methods.moon(0.3), rest={"batch_size": 2}),
    "uniform": MoonCase({**ff.methods.moon(0.3), "weights": "uniform"}, twin={"weights": "uniform"}),
    "FedAdam": MoonCase(
        ff.methods.moon(0.3, server=ff.servers.FedAdam(lr=0.05)),
        twin={"server": Server(rule="adam", lr=0.05)},
    ),
    "with FedProx": with_client(ff.clients.SGD(lr=0.3, prox=0.9), prox=0.9),
    "Adam": with_client(ff.clients.Adam(lr=0.05), client=partial(literal.Adam, lr=0.05)),
    "Delta-SGD": with_client(ff.clients.DeltaSGD(lr=2.0), client=partial(literal.DeltaSGD, lr=2.0)),
    "Delta-SGD, same batch": with_client(
        ff.clients.DeltaSGD(lr=2.0, same_batch=True), client=partial(literal.DeltaSGD, lr=2.0, same_batch=True)
    ),
    "SPS": with_client(ff.clients.SPS(lr_max=0.9), client=partial(literal.SPS, lr_max=0.9)),
    "a poisoned client": MoonCase(ff.methods.moon(0.3), rest={"poisoned": 1}),
}


@cache
def run_literally(name: str, dtype: str) -> list[Snapshot]:
    case = CASES[name].case
    fed = problem(case.poisoned)
    clients = [tuple(part.numpy() for part in fed.examples.batch(fed.rows_of(i))) for i in range(len(fed))]
    spelt = literal.Federation(NETWORK, clients, partial(batches, case))  # type: ignore[arg-type]
    with np.errstate(invalid="ignore"):  # the poisoned client's
        return run_moon(spelt, case.method(), CASES[name].moon, start_model(dtype), case.cohorts)


def kept(sim: ff.Simulation) -> Snapshot:
    """What a simulation keeps, under the names of the formula."""
    vectors = {"x": sim.params, **{name: tensor for name, tensor in sim.server.state.items() if tensor.dim() == 1}}
    held = sim.exchanger.tensors()
    vectors |= {f"p{i}": vector for i, vector in zip(held["ids"].tolist(), held["vectors"], strict=True)}
    return {name: flat(sim.packing, vector) for name, vector in vectors.items()}


# ---- the tests ------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Over tensors this small, threads only wait for each other."""
    with one_thread_per_operation():
        yield


@pytest.mark.parametrize("name", CASES)
def test_moon_is_its_formula(name: str) -> None:
    truth = run_literally(name, "float64")
    for t, sim in enumerate(simulate(CASES[name].case, torch.float64, "eager")):
        found = kept(sim)
        assert set(found) == set(truth[t])
        for what, vector in found.items():
            assert distance(vector, truth[t][what]) <= 1e-10 * literal.norm(truth[t][what]), f"{what}, round {t + 1}"


@pytest.mark.parametrize("executor", ["batched", "native"])
@pytest.mark.parametrize("name", CASES)
def test_the_other_executors_are_as_near_to_it_as_float32_can_be(name: str, executor: str) -> None:
    truth, rounded = run_literally(name, "float64"), run_literally(name, "float32")
    case = CASES[name].case
    for t, sim in enumerate(simulate(case, torch.float32, executor)):
        for what, vector in kept(sim).items():
            wanted = truth[t][what]
            by_rounding = distance(rounded[t][what], wanted)
            last_bit = float(np.finfo(np.float32).eps) * literal.norm(wanted)
            assert distance(vector, wanted) <= 16 * (by_rounding + last_bit), f"{what} after round {t + 1}"
            assert distance(vector, wanted) <= 1e-4 * literal.norm(wanted), f"{what} after round {t + 1}"


def test_gradients_by_hand_are_slopes() -> None:
    x = start_model("float64")
    start, previous = x + 0.1 * np.sin(np.arange(len(x))), x - 0.2 * np.cos(np.arange(len(x)))
    inputs, labels = (part.numpy() for part in problem().examples.batch(torch.arange(9), torch.float64))

    def at(there: Array) -> tuple[float, Array]:
        return Moon(2.0, 0.5).loss_and_gradient(NETWORK, there, start, previous, inputs, labels)

    steps = 1e-5 * np.eye(len(x))
    slopes = np.array([(at(x + step)[0] - at(x - step)[0]) / 2e-5 for step in steps])
    assert distance(slopes, at(x)[1]) < 1e-8 * literal.norm(slopes)


def test_every_case_leads_elsewhere() -> None:
    ends = {name: run_literally(name, "float64")[-1]["x"] for name in CASES}
    *_, plain = simulate(Case(ff.methods.fedavg(0.3), CASES["ff.methods.moon"].method), torch.float64, "eager")
    ends["FedAvg"] = flat(plain.packing, plain.params)
    assert {(a, b) for a in ends for b in ends if a < b and distance(ends[a], ends[b]) < 1e-6} == set()


EXECUTORS = ["eager", "batched", "native"]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_without_weight_it_is_fedavg(executor: str) -> None:
    plain, moon = (
        simulation(executor=executor, **{**ff.methods.fedavg(0.1), **given})
        for given in ({}, {"exchange": PreviousModels(0.0)})
    )
    for sim in (plain, moon):
        sim.run(rounds=3, evaluate_every=0, progress=False)
    assert torch.equal(plain.params, moon.params)
    assert plain.history.column("train_loss") == moon.history.column("train_loss")


@pytest.mark.parametrize("executor", EXECUTORS)
def test_clients_met_for_the_first_time_have_a_constant_more_of_loss(executor: str) -> None:
    plain, moon = (
        simulation(executor=executor, **settings) for settings in (ff.methods.fedavg(0.1), ff.methods.moon(0.1, mu=3.0))
    )
    rows = [sim.step() for sim in (plain, moon)]
    assert torch.equal(plain.params, moon.params)
    assert rows[1]["train_loss"] - rows[0]["train_loss"] == pytest.approx(3.0 * math.log(2), abs=1e-5)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_client_keeps_the_model_it_ended_with(executor: str) -> None:
    sim = simulation(cohort=[[3], [5]], executor=executor, **ff.methods.moon(0.1))
    sim.step()  # of one client under FedAvg: the model is its model
    held = sim.exchanger.tensors()
    assert held["ids"].tolist() == [3]
    torch.testing.assert_close(held["vectors"][0], sim.params, rtol=1e-6, atol=1e-7)
    before = held["vectors"].clone()
    sim.step()
    assert torch.equal(sim.exchanger.tensors()["vectors"][:1], before)


def test_nobody_who_trains_leaves_nothing_behind() -> None:
    sim = ff.Simulation(network(torch.float32), problem(), cohort=[[3]], **ff.methods.moon(0.1))  # without examples
    sim.step()
    assert len(sim.exchanger.tensors()["ids"]) == 0


def test_what_it_costs() -> None:
    sims = [simulation(**settings) for settings in (ff.methods.fedavg(0.1), ff.methods.moon(0.1))]
    plain, moon = (sim.step() for sim in sims)
    for column in ("bytes_down", "bytes_up"):
        assert moon[column] == plain[column]
    vector = 4 * sims[0].packing.parameters
    assert moon["client_optimizer_bytes"] - plain["client_optimizer_bytes"] == vector


class Reused(nn.Module):
    """Its last layer is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.last(self.first(x))))


class Elsewhere(nn.Module):
    """The layer that is defined last does not make the outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.body = nn.Linear(5, 4), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x)))


@pytest.mark.parametrize("executor", ["eager", "batched", "native", "auto"])
@pytest.mark.parametrize(
    ("model", "head", "words"),
    [
        (nn.Linear(6, 4), None, "nothing that is trained comes before"),
        (nn.Sequential(nn.Tanh(), nn.Linear(6, 4)), None, "nothing that is trained comes before"),
        (nn.Sequential(nn.Linear(6, 4), nn.Tanh()), None, "head: .*outputs are not those of layer '0'"),
        (nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4)), "0", "head: .*outputs are not those of layer '0'"),
        (nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4)), "2", "head: the model has no layer '2'; it has: 0, 1"),
        (Reused(), None, "head: layer 'last' must be used once in a forward pass, not 2 times"),
        (Elsewhere(), None, "head: .*outputs are not those of layer 'body'"),
    ],
    ids=["linear", "no features", "tanh last", "not the last", "unknown", "used twice", "elsewhere"],
)
def test_a_model_without_such_a_split_is_refused(model: nn.Module, head: str | None, words: str, executor: str) -> None:
    with pytest.raises(ValueError, match=words):
        ff.Simulation(model, small_federation(), cohort=3, executor=executor, **ff.methods.moon(0.1, head=head))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_head_can_be_named(executor: str) -> None:
    sim = ff.Simulation(
        Elsewhere(), small_federation(), cohort=4, seed=1, executor=executor, **ff.methods.moon(0.1, head="head")
    )
    sim.run(rounds=3, evaluate_every=0, progress=False)
    assert not sim.history.rounds[-1]["skipped"]


@pytest.mark.parametrize(
    ("name", "given"),
    [
        *(("mu", {"mu": mu}) for mu in (-1.0, math.inf, math.nan, "1", True, None)),
        *(("temperature", {"mu": 1.0, "temperature": t}) for t in (0.0, -0.5, math.inf, math.nan, None)),
        ("head", {"mu": 1.0, "head": 3}),
    ],
)
def test_bad_settings_are_named(name: str, given: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError), match=f"^{name}: "):
        PreviousModels(**given)
    with pytest.raises((ValueError, TypeError), match=f"^{name}: "):
        ff.methods.moon(0.1, **given)


def test_auto_takes_another_executor_where_the_engine_cannot_split() -> None:
    class Headed(nn.Module):
        """The head is more than one layer."""

        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(6, 5)
            self.head = nn.Sequential(nn.Tanh(), nn.Linear(5, 4))

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x))

    moon = {"cohort": 4, **ff.methods.moon(0.1, head="head")}
    with pytest.raises(Unsupported, match="head 'head' is not one layer"):
        ff.Simulation(Headed(), small_federation(), executor="native", **moon)
    sim = ff.Simulation(Headed(), small_federation(), executor="auto", **moon)
    assert sim.executor.name == "eager"
    assert "head 'head' is not one layer" in sim.executor.why
    sim.run(rounds=2, evaluate_every=0, progress=False)
