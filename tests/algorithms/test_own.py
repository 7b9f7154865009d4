"""Servers and client algorithms of a user's own: they step, last, and are refused in a sentence where they do not
fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastfed as ff
from fastfed.aggregate import Aggregate
from fastfed.program import Unsupported

from ..simulation import literal as common
from ..simulation import literal_compare as problem
from ..simulation.support import simulation, small_federation
from ..simulation.test_doors import Decayed
from . import literal

State = dict[str, Tensor]
LR, BATCH = 0.2, 3
PRIVATE = {
    "privacy": ff.privacy.Privacy(clip=1.0, noise=1.0, delta=1e-5),
    "cohort": ff.plan.Poisson(0.5),
    "weights": "uniform",
}
COHORTS = [[0, 2, 4, 7, 8], [1, 3, 5, 6], [0, 2, 3, 6]]


# ---- servers --------------------------------------------------------------------------------------------------------


def lion(state: State, x: Tensor, aggregate: Aggregate, lr: float) -> tuple[State, Tensor]:
    """Lion on the server; 0.03 is its learning rate."""
    g, m = -aggregate.delta, state.get("m", torch.zeros_like(x))
    return {"m": 0.99 * m + 0.01 * g}, x - 0.03 * lr * (0.9 * m + 0.1 * g).sign()


@dataclass(frozen=True)
class Heavy:
    """The house's momentum, once more, with a counter that has no dimensions."""

    lr: float = 0.5
    momentum: float = 0.8

    def begin(self, x: Tensor, clients: int) -> State:
        return {"m": torch.zeros_like(x), "t": torch.zeros((), dtype=torch.int64)}

    def step(self, state: State, x: Tensor, aggregate: Aggregate, lr: float) -> tuple[State, Tensor]:
        state["m"] *= self.momentum
        state["m"] += aggregate.delta
        x += lr * state["m"]
        return {**state, "t": state["t"] + 1}, x


def ran(rounds: int = 3, **settings: Any) -> ff.Simulation:
    sim = simulation(**settings)
    sim.run(rounds=rounds, evaluate_every=0, progress=False)
    return sim


@pytest.mark.parametrize("executor", ["eager", "native"])
def test_a_function_is_a_server(executor: str) -> None:
    def batches(t: int, i: int) -> list[common.Batch]:
        return problem.shuffled(t, i, BATCH, problem.batches_per_epoch(i, BATCH))

    fed = common.Federation(problem.NETWORK, problem.examples(), batches)
    truth = literal.lion(fed, problem.start_model("float64"), COHORTS, lr=LR, server_lr=0.03)
    dtype, limit = (torch.float64, 1e-10) if executor == "eager" else (torch.float32, 1e-5)
    settings = {"client": ff.clients.SGD(lr=LR), "server": lion, "cohort": COHORTS, "epochs": 1, "batch_size": BATCH}
    sim = problem.simulation(dtype, executor, settings)
    for wanted in truth:
        sim.step()
        for name, vector in {"x": sim.params, "m": sim.server.state["m"]}.items():
            away = common.norm(problem.flat(sim.packing, vector) - wanted[name])
            assert away <= limit * common.norm(wanted[name]), name


TIMINGS: dict[str, dict[str, Any]] = {
    "rounds": {},
    "schedule": {"server_schedule": lambda round: 0.5**round},
    "client-centric": {"timing": ff.timing.ClientCentric(4, 3), "epochs": None, "cohort": None},
    "clock": {"timing": ff.timing.EventDriven(6, 3, staleness=0.5), "cohort": None},
    "median": {"aggregation": ff.aggregate.Median(), "weights": "uniform"},
    "top-k": {"compression": ff.compression.TopK(0.2)},
    "scaffold": {"exchange": ff.exchange.ControlVariates()},
}


@pytest.mark.parametrize("settings", TIMINGS.values(), ids=TIMINGS)
def test_a_server_class_has_the_bits_of_the_rule_that_it_repeats(settings: dict[str, Any]) -> None:
    own = ran(server=Heavy(), **settings)
    rule = ran(server=ff.servers.FedAvgM(lr=0.5, momentum=0.8), **settings)
    torch.testing.assert_close(own.params, rule.params, rtol=1e-6, atol=1e-7)
    assert own.history.column("server_lr") == rule.history.column("server_lr")
    assert int(own.server.state["t"]) == 3


def test_of_an_infinite_model_nothing_is_taken() -> None:
    def broken(state: State, x: Tensor, aggregate: Aggregate, lr: float) -> tuple[State, Tensor]:
        state["seen"] = torch.ones(1)
        return state, x.mul_(torch.inf if not len(state) - 1 else 1)

    sim = simulation(server=broken)
    before = sim.params.clone()
    assert not sim.step()["changed"]
    assert torch.equal(sim.params, before)
    assert sim.server.state == {}


def test_gaps_between_tensors_stay_empty() -> None:
    sim = ran(1, server=lambda state, x, aggregate, lr: (state, x + 1))
    assert not problem.gaps(sim.packing, sim.params).any()
    sim = ran(1, client=Wrong(final=lambda x: x + 1), server=ff.servers.FedAvg())
    assert not problem.gaps(sim.packing, sim.params).any()


def test_what_a_server_keeps_to_itself_is_not_ours() -> None:
    """It has copies of all that lasts, and what it returns is copied."""
    seen: list[Tensor] = []

    def keeping(state: State, x: Tensor, aggregate: Aggregate, lr: float) -> tuple[State, Tensor]:
        seen.append(x)
        return {"x": x}, x

    sim = ran(1, server=keeping)
    before = sim.params.clone()
    seen[0].fill_(7)
    assert torch.equal(sim.params, before)
    assert torch.equal(sim.server.state["x"], before)


def test_the_aggregate_tells_of_each_client() -> None:
    told: list[Aggregate] = []

    def asking(state: State, x: Tensor, aggregate: Aggregate, lr: float) -> tuple[State, Tensor]:
        told.append(aggregate)
        return state, x

    cohort = [[0, 3, 11]]
    settings = {"cohort": cohort, "weights": "uniform", "batch_size": 9}
    ran(1, server=asking, delta_clip=0.06, divide_by_steps=True, **settings)
    ran(1, server=asking, aggregation=Kept(), **settings)
    clipped, free = told
    assert free.steps.tolist() == [2, 4, 8]
    torch.testing.assert_close(free.shares, torch.full((3,), 1 / 3, dtype=torch.float64))
    torch.testing.assert_close(free.norms, Kept.seen[-1].double().norm(dim=1), rtol=1e-6, atol=0)
    torch.testing.assert_close(clipped.norms, (free.norms / free.steps).clamp(max=0.06))
    assert 0 < int((clipped.norms == 0.06).sum()) < 3
    assert clipped.multipliers.tolist() == [1, 1, 1]


class Kept:
    """A mean that remembers what it has been given."""

    seen: list[Tensor] = []  # noqa: RUF012

    def reduce(self, deltas: Tensor, weights: Tensor) -> Tensor:
        self.seen.append(deltas.clone())
        return deltas.mean(0)


class Ranks:
    """Of a run of several: notes what all must have alike."""

    def __init__(self) -> None:
        self.alike: list[str] = []

    def heard(self, function: Callable[[], Any]) -> Any:
        return function()

    def check_same(self, what: str, value: str) -> None:
        assert what.startswith("server: ")
        self.alike.append(value)


def test_ranks_see_that_their_steps_are_the_same() -> None:
    """Two that step alike say the same, one that steps otherwise something else; rules of ours say nothing."""
    told = []
    for server in (Heavy(), Heavy(), Heavy(momentum=0.1), ff.servers.FedAvg()):
        sim, ranks = simulation(server=server), Ranks()
        sim.ranks = ranks  # type: ignore[assignment]
        for _ in range(2):
            sim.step()
        told.append(ranks.alike)
    assert told[0] == told[1]
    assert told[2][0] == told[0][0]  # the first step has no momentum yet
    assert told[2][1] != told[0][1]
    assert told[3] == []


@pytest.mark.parametrize("server", [lion, Heavy(momentum=0.7)], ids=["function", "class"])
def test_a_run_goes_on_to_the_same_bits(server: Any, tmp_path: Any) -> None:
    half = ran(2, server=server)
    path = half.save(tmp_path)
    with pytest.raises(ValueError, match="server: must be given again, as JSON could not hold it"):
        ff.Simulation.resume(path, fed=half.fed)
    resumed = ff.Simulation.resume(path, fed=half.fed, server=server)
    whole = ran(4, server=server)
    resumed.run(rounds=2, evaluate_every=0, progress=False)
    assert resumed.tensors().keys() == whole.tensors().keys()
    for name, tensor in whole.tensors().items():
        assert torch.equal(resumed.tensors()[name], tensor), name


def test_settings_of_ones_own_tell_runs_apart(tmp_path: Any) -> None:
    sim = ran(1, server=Heavy(momentum=0.7))
    path = sim.save(tmp_path)
    with pytest.raises(ValueError, match=r"server: is not that of this checkpoint, Heavy\(lr=0.5, momentum=0.7\)"):
        ff.Simulation.resume(path, fed=sim.fed, server=Heavy(momentum=0.6))
    with pytest.raises(ValueError, match=r"checkpoint: .* of another run"):
        simulation(server=Heavy(momentum=0.6)).run(rounds=1, checkpoint=tmp_path, progress=False)


class Plain(ff.servers.Server):
    """What was tried first, and ended in a KeyError."""


class Overridden(ff.servers.FedAvg):
    def step(self, *given: Any) -> None:
        """Nobody would call it."""


REFUSED_SERVERS: dict[str, tuple[Callable[[], Any], str]] = {
    "subclass": (lambda: Plain(lr=1.0), "server: Plain has no rule of fastfed.kernels.*docs/own.md"),
    "own step": (lambda: Overridden(), "server: Overridden has a step of its own.*docs/own.md"),
    "begin": (
        lambda: simulation(server=type("Late", (Heavy,), {"begin": lambda self, x, clients: x[9999]})()),
        "server: begin of Late raised IndexError",
    ),
    "no step": (lambda: simulation(server=object()), r"server: must be .*, and has no begin, step"),
    "a class": (lambda: simulation(server=Heavy), r"server: must be .*; give an object, Heavy\(\.\.\.\)"),
    "privacy": (
        lambda: simulation(
            server=Heavy(),
            privacy=ff.privacy.Privacy(clip=1.0, noise=1.0, delta=1e-5),
            cohort=ff.plan.Poisson(0.5),
            weights="uniform",
        ),
        "server: the accounting of privacy does not cover what Heavy may read",
    ),
    "preconditioner": (
        lambda: simulation(server=Heavy(), client=ff.clients.Adam(lr=0.1), exchange=ff.exchange.Preconditioner()),
        "exchange: only servers of fastfed.servers have a second moment",
    ),
    "nova with prox": (
        lambda: simulation(server=ff.algorithms.FedNova(), client=ff.clients.SGD(lr=0.1, prox=0.1)),
        "prox: FedNova counts the gradients",
    ),
    "nova with Adam": (
        lambda: simulation(server=ff.algorithms.FedNova(), client=ff.clients.Adam(lr=0.1)),
        "server: FedNova counts gradients in deltas of SGD",
    ),
    "nova divided": (
        lambda: simulation(server=ff.algorithms.FedNova(), divide_by_steps=True),
        "divide_by_steps: FedNova divides deltas itself",
    ),
    "dyn with SGD": (lambda: simulation(server=ff.algorithms.FedDynServer()), "server: FedDynServer belongs to"),
    "eps": (lambda: ff.methods.fedexp(0.1, eps=-1), "eps: must be a finite number >= 0"),
    "alpha": (lambda: ff.methods.feddyn(0.1, alpha=0), "alpha: must be a finite number > 0"),
    "lam": (lambda: ff.methods.ditto(0.1, lam=-1), "lam: must be a finite number >= 0"),
    "beta2": (lambda: ff.methods.fedlion(0.1, beta2=1), r"beta2: must be a number in \[0, 1\)"),
    "server lr": (lambda: ff.methods.fednova(0.1, server_lr=-1), "lr: must be a finite number >= 0"),
}


@pytest.mark.parametrize(("make", "says"), REFUSED_SERVERS.values(), ids=REFUSED_SERVERS)
def test_servers_that_do_not_fit_are_refused(make: Callable[[], Any], says: str) -> None:
    with pytest.raises((TypeError, ValueError, RuntimeError), match=says):
        make()


WRONG_STEPS: dict[str, tuple[Any, str]] = {
    "no pair": (lambda state, x, aggregate, lr: x, r"server: step of .* must give \(state, x\), got float32"),
    "short": (lambda state, x, aggregate, lr: (state, x[1:]), "server: step of .* must give an x like float32"),
    "wide": (lambda state, x, aggregate, lr: (state, x.double()), "server: step of .* must give an x like float32"),
    "numbers": (lambda state, x, aggregate, lr: ({"t": 1}, x), "server: step of .* a state of tensors by name"),
    "raises": (lambda state, x, aggregate, lr: state["m"], "server: step of .* raised KeyError: 'm'"),
}


@pytest.mark.parametrize(("server", "says"), WRONG_STEPS.values(), ids=WRONG_STEPS)
def test_what_a_step_must_give_is_said(server: Any, says: str) -> None:
    with pytest.raises((TypeError, RuntimeError), match=says):
        simulation(server=server).step()


# ---- client algorithms ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pulled:
    """SGD with weight decay and FedProx's pull, as the house has them."""

    lr: float = 0.1
    mu: float = 0.4
    vectorised: bool = True

    def client_init(self, start: Tensor, round: ff.clients.ClientRound) -> State:
        return {"start": start, "lr": round.lr, "left": round.steps}

    def client_step(self, state: State, params: Tensor, gradient: Tensor, step: int) -> tuple[State, Tensor]:
        pulled = gradient + self.mu * (params - state["start"]) + 0.01 * params
        return {**state, "left": state["left"] - 1}, params - state["lr"] * pulled

    def client_final(self, state: State, params: Tensor) -> Tensor:
        return params + 0 * state["left"]  # NaN would be noticed; that all steps were taken is seen elsewhere


RULE = ff.clients.SGD(lr=0.1, prox=0.4, weight_decay=0.01)
AROUND: dict[str, dict[str, Any]] = {
    "rounds": {},
    "schedule": {"client_schedule": lambda round: 0.5**round},
    "stale": {"timing": ff.timing.ClientCentric(4, 3), "epochs": None, "cohort": None},
    "clock": {"timing": ff.timing.EventDriven(6, 3), "cohort": None},
    "clipped": {"delta_clip": 0.1, "divide_by_steps": True},
    "top-k": {"compression": ff.compression.TopK(0.2)},
    "repeats": {"cohort": ff.plan.Sampled(20, replacement=True)},
    "corrections": {"exchange": Decayed()},
}


@pytest.mark.parametrize("executor", ["eager", "batched"])
@pytest.mark.parametrize("settings", AROUND.values(), ids=AROUND)
def test_an_algorithm_trains_as_the_rule_that_it_repeats(settings: dict[str, Any], executor: str) -> None:
    own, rule = (ran(client=client, executor=executor, **settings) for client in (Pulled(), RULE))
    torch.testing.assert_close(own.params, rule.params, rtol=1e-4, atol=1e-6)
    for name in ("train_loss", "step_size"):
        assert own.history.column(name) == pytest.approx(rule.history.column(name), rel=1e-4)


def test_what_an_algorithm_remembers_stays_as_it_was() -> None:
    seen: list[tuple[Tensor, Tensor]] = []

    class Remembering(Pulled):
        def client_step(self, state: State, params: Tensor, gradient: Tensor, step: int) -> tuple[State, Tensor]:
            seen.append((params, gradient))
            return super().client_step(state, params, gradient, step)

    ran(1, client=Remembering(), cohort=[[3]], threads=1)
    (x0, g0), (x1, g1) = seen[:2]
    assert not torch.equal(x0, x1)
    assert not torch.equal(g0, g1)
    torch.testing.assert_close(x1, x0 - 0.1 * (g0 + 0.01 * x0))


def test_auto_is_eager_and_says_why() -> None:
    sim = simulation(client=Pulled())
    assert sim.executor.name == "eager"
    assert "Pulled is an algorithm in Python, which the engines do not run" in sim.executor.why


@dataclass(frozen=True)
class Counting:
    """Keeps how often a client has taken part, and sends its number of steps: vectors of one number each."""

    keeps: str | None = "zeros"
    sends: bool = True
    vectorised: bool = True

    def client_init(self, start: Tensor, round: ff.clients.ClientRound) -> State:
        return {"times": round.kept + 1, "steps": torch.zeros_like(start), "common": round.common}

    def client_step(self, state: State, params: Tensor, gradient: Tensor, step: int) -> tuple[State, Tensor]:
        return {**state, "steps": state["steps"] + 1}, params - 0.1 * gradient

    def client_final(self, state: State, params: Tensor) -> dict[str, Tensor]:
        return {"params": params, "kept": state["times"], "sent": state["steps"] + state["common"] / 2}


@pytest.mark.parametrize("executor", ["eager", "batched"])
def test_clients_keep_and_send(executor: str) -> None:
    cohorts = [[0, 5], [5, 11], [0, 5, 7]]
    sim = simulation(client=Counting(), cohort=cohorts, epochs=None, steps=list(range(1, 13)), executor=executor)
    seen = []
    for _ in cohorts:
        sim.step()
        seen.append(float(sim.exchanger.tensors()["common"][0]))
    kept = sim.exchanger.tensors()
    times = {i: float(v[0]) for i, v in zip(kept["ids"].tolist(), kept["vectors"], strict=True)}
    assert times == {0: 2, 5: 3, 11: 1, 7: 1}
    shares = [(3 * 1 + 18 * 6) / 21, (18 * 6 + 36 * 12) / 54, (3 * 1 + 18 * 6 + 24 * 8) / 45]
    wanted, before = [], 0.0
    for share in shares:
        before = share + before / 2
        wanted.append(before)
    assert seen == pytest.approx(wanted)
    assert sim.history.column("bytes_up")[0] == 2 * 2 * 4 * sim.packing.parameters
    assert sim.history.column("bytes_down")[0] == 2 * 2 * 4 * sim.packing.parameters


def test_a_client_whose_vectors_are_not_finite_is_refused_whole() -> None:
    class Poisoned(Counting):
        def client_final(self, state: State, params: Tensor) -> dict[str, Tensor]:
            found = super().client_final(state, params)
            if float(state["steps"][0]) == 6:
                found["kept"] = found["kept"] / 0
            return found

    sim = simulation(client=Poisoned(), cohort=[[0, 5, 7]], epochs=None, steps=list(range(1, 13)), executor="eager")
    assert sim.step()["skipped"] == 1
    assert sorted(sim.exchanger.tensors()["ids"].tolist()) == [0, 7]


def test_ditto_leaves_the_global_model_as_it_is() -> None:
    own, plain = (ran(executor="eager", client=one) for one in (ff.algorithms.Ditto(0.1, 0.3), ff.clients.SGD(0.1)))
    assert torch.equal(own.params, plain.params)
    models = own.exchanger.tensors()["vectors"]
    assert len(models) > 5
    assert not any(torch.equal(model, own.params) for model in models)


def test_a_model_of_ones_own_that_is_never_pulled_goes_where_the_global_one_goes() -> None:
    """On the same batches; with numbers of its own where the model has dropouts."""
    sim = ran(1, executor="eager", client=ff.algorithms.Ditto(0.1, 0.0), server=ff.servers.FedAvg(), cohort=[[4]])
    torch.testing.assert_close(sim.exchanger.tensors()["vectors"][0], sim.params, rtol=1e-5, atol=1e-7)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        dropping = nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 4))
    settings: dict[str, Any] = {"client": ff.algorithms.Ditto(0.1, 0.0), "cohort": [[4]], "seed": 2}
    sim = ff.Simulation(dropping, small_federation(), executor="eager", **settings)
    sim.step()
    assert float((sim.exchanger.tensors()["vectors"][0] - sim.params).abs().max()) > 1e-3


class Stepping(ff.clients.SGD):
    def step(self, *given: Any) -> None:
        """Nobody would call it."""


@dataclass(frozen=True)
class Wrong(Pulled):
    """An algorithm with something in a place where it does not belong."""

    state: Any = None
    params: Any = None
    final: Any = None
    keeps: str | None = None

    def client_init(self, start: Tensor, round: ff.clients.ClientRound) -> Any:
        return self.state if self.state is not None else super().client_init(start, round)

    def client_step(self, state: State, params: Tensor, gradient: Tensor, step: int) -> Any:
        return self.params(state, params) if self.params else super().client_step(state, params, gradient, step)

    def client_final(self, state: State, params: Tensor) -> Any:
        return self.final(params) if self.final else params


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "own step": (lambda: Stepping(lr=0.1), "client: Stepping has a method step, which no executor calls.*docs/own.md"),
    "no methods": (lambda: simulation(client=object()), "client: must be .* it has no client_final, client_init"),
    "a class": (lambda: simulation(client=Pulled), "client: must be .* give an object"),
    "native": (lambda: simulation(client=Pulled(), executor="native"), "executor: 'native' runs no Python, as Pulled"),
    "not vectorised": (
        lambda: simulation(client=Pulled(vectorised=False), executor="batched"),
        "executor: 'batched' runs algorithms that say `vectorised = True`, and Pulled does not",
    ),
    "keeps": (lambda: simulation(client=Wrong(keeps="all")), "keeps: of Wrong must be None, 'zeros' or 'start'"),
    "lr": (lambda: simulation(client=Pulled(lr=-1.0)), "lr: must be a finite number >= 0"),
    "no lr to move": (
        lambda: simulation(client=Counting(), client_schedule=lambda round: 0.5),
        "client_schedule: client rule 'Counting' finds its step size itself",
    ),
    "exchange": (
        lambda: simulation(client=Counting(), exchange=ff.exchange.PreviousModels(1.0)),
        "exchange: Counting says itself what its clients keep and send; leave PreviousModels out",
    ),
    "scaffold": (
        lambda: simulation(client=Pulled(), exchange=ff.exchange.ControlVariates()),
        "exchange: SCAFFOLD reads gradients off SGD's moves; client rule 'Pulled' will not do",
    ),
    "preconditioner": (
        lambda: simulation(client=Pulled(), exchange=ff.exchange.Preconditioner()),
        "exchange: only rules of fastfed.clients start from",
    ),
    "repeats": (
        lambda: simulation(client=Counting(), cohort=ff.plan.Sampled(5, replacement=True)),
        "replacement: a client of Counting keeps a vector",
    ),
    "compression": (
        lambda: simulation(client=Counting(), compression=ff.compression.Sign()),
        "compression: is for deltas, and Counting sends another vector up",
    ),
    "privacy": (
        lambda: simulation(
            client=Counting(),
            privacy=ff.privacy.Privacy(clip=1.0, noise=1.0, delta=1e-5),
            cohort=ff.plan.Poisson(0.5),
            weights="uniform",
        ),
        "client: Counting sends more than the clipped delta",
    ),
    "tuner": (lambda: simulation(client=Pulled(), tuner=ff.tune.Fathom()), "tuner: FATHOM tunes clients that run SGD"),
    "blend": (
        lambda: ff.clients.Part(ff.clients.Algorithm(Pulled())),
        "client: must be an optimizer of fastfed.clients in a part of a blend",
    ),
    "state": (lambda: simulation(client=Wrong(state=3)).step(), "client: client_init of Wrong must give a state"),
    "no pair": (
        lambda: simulation(client=Wrong(params=lambda state, x: x)).step(),
        r"client 0.*local step 1: client: client_step of Wrong must give \(state, params\)",
    ),
    "short": (
        lambda: simulation(client=Wrong(params=lambda state, x: (state, x[1:])), cohort=[[0]]).step(),
        "client 0.*local step 1: client: client_step of Wrong must give params like those it gets",
    ),
    "raises": (
        lambda: simulation(client=Wrong(params=lambda state, x: state["u"]), cohort=[[0]]).step(),
        "client 0.*local step 1: client: client_step of Wrong raised KeyError: 'u'",
    ),
    "side by side": (
        lambda: simulation(
            client=Wrong(params=lambda state, x: (state, x if x[0] > 0 else -x)), executor="batched"
        ).step(),
        r"client: client_step of Wrong, run side by side \(vectorised\), raised",
    ),
    "forgets": (
        lambda: simulation(client=Wrong(params=lambda state, x: ({}, x)), executor="batched").step(),
        "client: client_step of Wrong must give back the names of its state, left, lr, start",
    ),
    "init": (
        lambda: simulation(client=Counting(keeps=None, sends=False)),
        "client: client_init of Counting raised TypeError",
    ),
    "final": (
        lambda: simulation(client=Wrong(final=lambda x: x[9999]), cohort=[[3]]).step(),
        r"client 3 \(position 0\): client: client_final of Wrong raised IndexError",
    ),
    "keeps nothing": (
        lambda: simulation(client=Wrong(keeps="zeros")).step(),
        "client: client_final of Wrong must give kept, params.*, got params",
    ),
}


@pytest.mark.parametrize(("make", "says"), REFUSED.values(), ids=REFUSED)
def test_algorithms_that_do_not_fit_are_refused(make: Callable[[], Any], says: str) -> None:
    with pytest.raises((TypeError, ValueError, RuntimeError, Unsupported), match=says):
        make()


@pytest.mark.parametrize("executor", ["native"])
def test_an_engine_refuses_a_work_of_python(executor: str) -> None:
    eager, engine = simulation(client=Pulled()), simulation(executor=executor)
    plan = eager.planner.plan(0, eager.tuner.tuning)
    assert plan is not None
    work = ff.training.work_of(eager, plan)  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=f"optimizers: executor '{executor}' runs no Python, as Pulled is"):
        engine.executor.run(work)
    with pytest.raises(ValueError, match="kept: Counting needs it"):
        replace(work, optimizers=(ff.clients.Algorithm(Counting()),))
