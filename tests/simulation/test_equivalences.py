"""Methods that are special cases of one another: the same bits where the arithmetic is the same, else to rounding.

Every equivalence is followed by the case where it ends, so that none holds because an option does nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastfed as ff
from fastfed.train.threads import one_thread_per_operation

from .support import CLIENTS, small_federation, small_model

EVERYONE = list(range(CLIENTS))
ONCE = [[0, 5, 11], [1, 2], [3, 10, 4, 6], [7, 8, 9]]  # every client in one round of four


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Over tensors this small, threads only wait for each other."""
    with one_thread_per_operation():
        yield


def ran(rounds: int = 4, *, model: nn.Module | None = None, fed: Any = None, **settings: Any) -> ff.Simulation:
    """A simulation after some rounds of SGD under averaging on the native engine, unless told otherwise."""
    usual: dict[str, Any] = {"cohort": 5, "epochs": 2, "batch_size": 7, "seed": 11, "threads": 1}
    if "client" not in settings:
        usual["client"] = ff.clients.SGD(lr=0.1)
    fed = small_federation() if fed is None else fed
    sim = ff.Simulation(small_model() if model is None else model, fed, **(usual | settings))
    for _ in range(rounds):
        sim.step()
    return sim


def same_bits(a: ff.Simulation, b: ff.Simulation) -> bool:
    """Whether two runs ended at the same model and the same server state."""
    shared = a.server.state.keys() & b.server.state.keys()
    return torch.equal(a.params, b.params) and all(torch.equal(a.server.state[n], b.server.state[n]) for n in shared)


def same(executor: str, a: dict[str, Any], b: dict[str, Any], rounds: int = 4) -> bool:
    """Whether two settings end alike: to the bit on eager, where both are the same kernels over the same gradients; to
    rounding on native, which takes plain SGD steps inside the products that make the gradient."""
    first, second = (ran(rounds, executor=executor, **settings) for settings in (a, b))
    return same_bits(first, second) if executor == "eager" else gap(first.params, second.params) < 1e-6


def gap(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


# ---- servers --------------------------------------------------------------------------------------------------------


def test_averaging_is_the_default_server_and_a_step_of_one_along_the_mean_delta() -> None:
    plain = ran()
    assert same_bits(plain, ran(**ff.methods.fedavg(0.1)))
    assert same_bits(plain, ran(server=ff.servers.FedAvg(lr=1.0)))
    assert same_bits(plain, ran(server=ff.servers.FedAvgM(lr=1.0, momentum=0.0)))
    assert not same_bits(plain, ran(server=ff.servers.FedAvg(lr=0.9)))
    assert not same_bits(plain, ran(server=ff.servers.FedAvgM(lr=1.0, momentum=0.1)))


def test_averaging_averages_the_models_of_its_clients() -> None:
    """Each client alone ends where its model went; their mean, by examples, is the round's."""
    cohort, model = [2, 7, 10], small_model().double()
    alone = [ran(1, model=model, cohort=[[i]], executor="eager").params for i in cohort]
    shares = small_federation().sizes[cohort].double()
    mean = sum(share * x for share, x in zip(shares / shares.sum(), alone, strict=True))
    together = ran(1, model=model, cohort=[cohort], executor="eager").params
    assert gap(together, mean) < 1e-14


def test_equal_weights_are_uniform_and_sizes_are_examples() -> None:
    sizes = small_federation().sizes.tolist()
    uniform, examples = ran(weights="uniform").params, ran(weights="examples").params
    assert gap(ran(weights=[3.0] * CLIENTS).params, uniform) < 1e-6
    assert gap(ran(weights=[float(n) for n in sizes]).params, examples) < 1e-6
    assert gap(uniform, examples) > 1e-3


@pytest.mark.parametrize("other", [ff.servers.FedYogi, ff.servers.FedAMS])
def test_a_first_round_from_zero_is_one_of_adam(other: Any) -> None:
    """Until v falls: with beta2 = 0 it does at once."""
    options: dict[str, Any] = {"lr": 0.05, "v0": 0.0, "second_moment_of": "delta", "beta2": 0.0}
    adam, like = (ran(1, server=kind(**options)) for kind in (ff.servers.FedAdam, other))
    assert same_bits(adam, like)
    adam.step(), like.step()
    assert not same_bits(adam, like)


def test_without_a_first_moment_momentum_and_delta_are_the_same() -> None:
    of_momentum, of_delta = (
        ran(server=ff.servers.FedAdagrad(lr=0.05, second_moment_of=of)) for of in ("momentum", "delta")
    )
    assert same_bits(of_momentum, of_delta)
    with_first = (
        ran(server=ff.servers.FedAdagrad(lr=0.05, beta1=0.5, second_moment_of=of)) for of in ("momentum", "delta")
    )
    assert not same_bits(*with_first)


# ---- clients --------------------------------------------------------------------------------------------------------


both_executors = pytest.mark.parametrize("executor", ["native", "eager"])


@both_executors
def test_prox_zero_is_averaging(executor: str) -> None:
    averaging = ff.methods.fedavg(0.1)
    assert same_bits(*(ran(executor=executor, **settings) for settings in (ff.methods.fedprox(0.1, 0.0), averaging)))
    assert not same(executor, ff.methods.fedprox(0.1, mu=0.1), averaging)


@both_executors
def test_prox_does_nothing_to_a_single_local_step(executor: str) -> None:
    """The first step starts at the model it is pulled to."""
    for steps, equal in ((1, True), (2, False)):
        local: dict[str, Any] = {"epochs": None, "steps": steps}
        assert (
            same(executor, {**ff.methods.fedprox(0.1, mu=5.0), **local}, {**ff.methods.fedavg(0.1), **local}) is equal
        )


@both_executors
def test_momentum_zero_and_a_warm_up_of_one_step_are_sgd(executor: str) -> None:
    assert same(executor, {"client": ff.clients.Momentum(lr=0.1, momentum=0.0)}, {})
    assert not same(executor, {"client": ff.clients.Momentum(lr=0.1, momentum=0.1)}, {})
    assert same(executor, {"client": ff.clients.SGD(lr=0.1, warmup=1, from_first=True)}, {})
    assert not same(executor, {"client": ff.clients.SGD(lr=0.1, warmup=2)}, {})


@both_executors
def test_gradients_below_the_clip_are_left_alone(executor: str) -> None:
    assert same(executor, {"client": ff.clients.SGD(lr=0.1, clip=1e6)}, {})
    assert not same(executor, {"client": ff.clients.SGD(lr=0.1, clip=0.1)}, {})


@both_executors
def test_a_delta_sgd_that_may_neither_grow_nor_shrink_is_sgd(executor: str) -> None:
    """With delta = 0 the step size never grows, and with a huge gamma the other bound never binds."""
    assert same(executor, {"client": ff.clients.DeltaSGD(lr=0.1, delta=0.0, gamma=1e6)}, {})
    assert not same(executor, {"client": ff.clients.DeltaSGD(lr=0.1, delta=0.1, gamma=1e6)}, {})
    assert not same(executor, {"client": ff.clients.DeltaSGD(lr=0.1, delta=0.0, gamma=0.1)}, {})


@both_executors
def test_sps_under_a_small_bound_is_sgd(executor: str) -> None:
    for lr, equal in ((0.01, True), (10.0, False)):
        sps, sgd = ff.clients.SPS(lr_max=lr), ff.clients.SGD(lr=lr)
        assert same(executor, {"client": sps}, {"client": sgd}) is equal


class Scaled(nn.Module):
    """Four numbers to four classes with parameters of rank 1 only: SM3 has one set for each of them."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([0.5, -0.3, 0.8, 0.1]))
        self.shift = nn.Parameter(torch.tensor([0.1, 0.2, -0.1, 0.0]))

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :4] * self.scale + self.shift


@pytest.mark.parametrize("delay", [1, 3])
@pytest.mark.parametrize(
    ("form", "whole"), [("adagrad", ff.clients.AdaGrad), ("adam", ff.clients.Adam)], ids=["adagrad", "adam"]
)
def test_sm3_over_vectors_keeps_every_coordinate(form: str, whole: Any, delay: int) -> None:
    options: dict[str, Any] = {"lr": 0.1, "eps": 1e-3, "delay": delay}
    for cover in ("II", "I"):
        mode: dict[str, Any] = {"delay_mode": "exact"} if delay > 1 and cover == "II" else {}
        compressed = ff.clients.SM3(form=form, cover=cover, **options, **mode)
        vectors = (ran(model=Scaled(), executor="eager", client=each) for each in (whole(**options), compressed))
        assert same_bits(*vectors)
    matrices = ran(client=whole(**options)), ran(client=ff.clients.SM3(form=form, **options))
    assert not same_bits(*matrices)


# ---- exchanges ------------------------------------------------------------------------------------------------------


@both_executors
def test_scaffold_that_meets_everyone_once_is_averaging(executor: str) -> None:
    """A client met for the first time has c_i = c: nothing to correct."""
    for rounds, equal in ((4, True), (5, False)):  # in the fifth, the first cohort comes again
        scaffold = {"cohort": ONCE, **ff.methods.scaffold(0.1)}
        assert same(executor, scaffold, {"cohort": ONCE}, rounds) is equal


def test_a_round_without_a_learning_rate_teaches_scaffold_nothing() -> None:
    """Nobody moves in it, so no gradient can be read off anyone's move."""
    off_in_round_one: dict[str, Any] = {"cohort": [EVERYONE], "client_schedule": lambda round: float(round != 1)}
    scaffold, waits = ff.methods.scaffold(0.1), list[dict[str, Tensor]]()
    for rounds in (1, 2):
        sim = ran(rounds, **scaffold, **off_in_round_one)
        waits.append({"x": sim.params, **sim.exchanger.tensors()})
    assert all(torch.equal(waits[0][name], waits[1][name]) for name in waits[0])


def test_a_common_variate_is_the_mean_of_all_where_clients_count_alike() -> None:
    """c = sum c_i / N, with c_i = 0 for clients not met yet, as long as a first c_i starts at c = 0: in round one."""
    sim = ran(1, cohort=[[0, 4, 9]], **ff.methods.scaffold(0.1), weights="uniform")
    held = sim.exchanger.tensors()
    assert held["ids"].tolist() == [0, 4, 9]
    assert gap(held["common"], held["vectors"].sum(0) / CLIENTS) < 1e-6


@pytest.mark.parametrize("client", ["adagrad", "adam"])
@pytest.mark.parametrize("sm3", [False, True], ids=["whole", "sm3"])
def test_a_transmitted_zero_is_a_start_at_zero(client: str, sm3: bool) -> None:
    corrected = {"bias_correction": True} if client == "adam" else {}  # whatever is transmitted
    settings = ff.methods.fedada2("adam", client, sm3, client_lr=0.05, server_lr=0.05, eps=1e-3, **corrected)
    settings["server"] = ff.servers.FedAdam(lr=0.05, second_moment_of="delta", v0=0.0)
    transmitted = {**settings, "exchange": ff.exchange.Preconditioner()}
    zero, joint = ran(1, **settings), ran(1, **transmitted)
    assert same_bits(zero, joint)
    zero.step(), joint.step()  # now v is something
    assert not same_bits(zero, joint)


def test_a_transmitted_constant_is_v0() -> None:
    """Before the first server step v is tau**2 everywhere."""
    settings = ff.methods.fedada2("adagrad", "adagrad", client_lr=0.05, server_lr=0.05, tau=0.5)
    constant = {**settings, "client": ff.clients.SM3(lr=0.05, v0=0.25)}
    transmitted = {**settings, "exchange": ff.exchange.Preconditioner()}
    assert same_bits(ran(1, **constant), ran(1, **transmitted))
    assert not same_bits(ran(2, **constant), ran(2, **transmitted))


# ---- who, how long --------------------------------------------------------------------------------------------------


def test_everyone_by_any_name() -> None:
    everyone = ran(cohort=CLIENTS)
    for cohort in (
        ff.plan.Poisson(1.0),
        ff.plan.Uniform(CLIENTS),
        [EVERYONE],
        [EVERYONE[::-1]],
        lambda round: EVERYONE,
    ):
        assert same_bits(ran(cohort=cohort), everyone)
    assert not same_bits(ran(cohort=ff.plan.Poisson(0.9)), everyone)


def test_cohorts_given_are_the_cohorts_drawn() -> None:
    drawn = ff.plan.Uniform(5)
    given = [drawn.cohort(round, CLIENTS, seed=11).tolist() for round in range(4)]
    assert same_bits(ran(cohort=given), ran(cohort=5))
    assert not same_bits(ran(cohort=given[::-1]), ran(cohort=5))


@both_executors
def test_steps_are_epochs_where_they_coincide(executor: str) -> None:
    batches = [-(-int(n) // 7) for n in small_federation().sizes]
    epochs = ran(epochs=2, executor=executor)
    by_steps: dict[str, Any] = {"epochs": None, "executor": executor}
    assert same_bits(ran(steps=[2 * n for n in batches], **by_steps), epochs)
    assert same_bits(ran(steps=torch.tensor([2 * n for n in batches]), **by_steps), epochs)
    assert not same_bits(ran(steps=[2 * n + 1 for n in batches], **by_steps), epochs)
    assert same_bits(ran(epochs=None, executor=executor), ran(epochs=1.0, executor=executor))


@both_executors
def test_batches_that_fit_the_epochs_cross_no_border(executor: str) -> None:
    """All sizes are multiples of three."""
    for batch_size, equal in ((3, True), (7, False)):
        runs = [ran(across_epochs=across, batch_size=batch_size, executor=executor) for across in (False, True)]
        assert same_bits(*runs) is equal


def test_a_delta_per_step_is_the_delta_of_one_step() -> None:
    one: dict[str, Any] = {"epochs": None, "steps": 1}
    assert same_bits(ran(divide_by_steps=True, **one), ran(**one))
    four: dict[str, Any] = {"epochs": None, "steps": 4}
    assert same_bits(
        ran(divide_by_steps=True, server=ff.servers.FedAvg(lr=4.0), **four), ran(**four)
    )  # exact in binary
    assert not same_bits(ran(divide_by_steps=True, **four), ran(**four))


def test_deltas_below_the_clip_are_left_alone() -> None:
    assert same_bits(ran(delta_clip=1e6), ran())
    assert not same_bits(ran(delta_clip=0.1), ran())


# ---- schedules ------------------------------------------------------------------------------------------------------


def lonely_federation() -> ff.data.Federated:
    """Every client has one example, so that no order depends on the round and a run can be cut in two."""
    small = small_federation()
    return ff.data.Federated("lonely", small.examples, torch.arange(40), torch.arange(41))


def in_pieces(pieces: list[tuple[int, dict[str, Any]]]) -> ff.Simulation:
    """A run whose settings change: (rounds, settings) one after the other, each beginning where the last one ended."""
    sim: ff.Simulation | None = None
    for rounds, settings in pieces:
        before, sim = sim, ran(0, fed=lonely_federation(), cohort=[list(range(40))], **settings)
        if before is not None:
            sim.server.load(before.server.tensors())
        for _ in range(rounds):
            sim.step()
    assert sim is not None
    return sim


def with_client_lr(lr: float) -> dict[str, Any]:
    return {"client": ff.clients.Adam(lr=lr), "server": ff.servers.FedYogi(lr=0.05)}


def with_server_lr(lr: float) -> dict[str, Any]:
    return {"client": ff.clients.Adam(lr=0.01), "server": ff.servers.FedYogi(lr=lr)}


HALF = 0.5  # powers of it scale any learning rate without rounding
SCHEDULES: dict[str, tuple[Any, list[tuple[int, float]]]] = {  # (rounds, factor) pieces of eight rounds
    "constant": (ff.schedules.Constant(HALF), [(8, HALF)]),
    "staircase": (ff.schedules.Staircase(factor=HALF, every=3), [(3, 1.0), (3, HALF), (2, HALF**2)]),
    "drops": (ff.schedules.Drops(8, factor=HALF), [(4, 1.0), (2, HALF), (2, HALF**2)]),
    "callable": (lambda round: 4.0 if round == 5 else 1.0, [(5, 1.0), (1, 4.0), (2, 1.0)]),
    "off": (lambda round: float(round != 2), [(2, 1.0), (1, 0.0), (5, 1.0)]),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("side", ["client", "server"])
def test_a_schedule_is_a_run_whose_learning_rate_is_changed(name: str, side: str) -> None:
    schedule, pieces = SCHEDULES[name]
    settings = with_client_lr if side == "client" else with_server_lr
    scheduled = in_pieces([(8, {**settings(0.1), f"{side}_schedule": schedule})])
    assert same_bits(scheduled, in_pieces([(rounds, settings(0.1 * factor)) for rounds, factor in pieces]))
    assert not same_bits(scheduled, in_pieces([(8, settings(0.1))]))
    rates = [0.1 * factor for rounds, factor in pieces for _ in range(rounds)]
    assert scheduled.history.column("step_size" if side == "client" else "server_lr") == pytest.approx(rates)


def test_delta_sgd_is_scheduled_by_its_first_step_size() -> None:
    scheduled = ran(client=ff.clients.DeltaSGD(lr=0.4), client_schedule=ff.schedules.Constant(HALF))
    assert same_bits(scheduled, ran(client=ff.clients.DeltaSGD(lr=0.2)))
    assert not same_bits(scheduled, ran(client=ff.clients.DeltaSGD(lr=0.4)))
