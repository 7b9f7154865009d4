"""Asynchronous, tuned, blended, private and compressed rounds that are others in disguise: the same bits where the
arithmetic is the same, else to rounding. Every equivalence is followed by the case where it ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import fastfed as ff
from fastfed.train.threads import one_thread_per_operation

from .support import CLIENTS, small_federation, small_model

SGD = ff.clients.SGD(lr=0.1)
YOGI = ff.servers.FedYogi(lr=0.05, tau=1e-2)
UNEQUAL = ff.fleet.Fleet(step_seconds=1.0, spread=0.8)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with one_thread_per_operation():
        yield


def ran(rounds: int = 5, **settings: Any) -> ff.Simulation:
    """A simulation after some rounds; `settings` over SGD, Yogi, batches of 7."""
    usual: dict[str, Any] = {"client": SGD, "server": YOGI, "batch_size": 7, "seed": 11, "threads": 1}
    sim = ff.Simulation(small_model(), small_federation(), **(usual | settings))
    for _ in range(rounds):
        sim.step()
    return sim


def same_bits(a: ff.Simulation, b: ff.Simulation) -> bool:
    return torch.equal(a.params, b.params) and all(torch.equal(a.server.state[n], b.server.state[n]) for n in "mv")


def gap(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


# ---- client-centric -------------------------------------------------------------------------------------------------

NORMALISED = {"weights": "uniform", "divide_by_steps": True}


def centric(**settings: Any) -> dict[str, Any]:
    return {"timing": ff.timing.ClientCentric(**{"epochs": None, "randomness": None, **settings}), **NORMALISED}


@pytest.mark.parametrize("work", [{"steps": 3}, {"epochs": 2}], ids=str)
def test_without_delay_client_centric_is_synchronous_on_normalised_deltas(work: dict[str, Any]) -> None:
    synchronous = ran(cohort=4, **NORMALISED, **work)
    assert same_bits(synchronous, ran(**centric(buffer=4, max_delay=0), **work))
    assert not same_bits(synchronous, ran(**centric(buffer=4, max_delay=1), **work))
    assert not same_bits(synchronous, ran(cohort=4, weights="uniform", **work))


def test_one_epoch_is_the_only_one_to_draw_when_randomness_is_one_over_epochs() -> None:
    one_epoch = ran(**centric(buffer=4, max_delay=3), epochs=1)
    assert same_bits(one_epoch, ran(**centric(buffer=4, max_delay=3, epochs=3, randomness=1 / 3)))
    assert not same_bits(one_epoch, ran(**centric(buffer=4, max_delay=3, epochs=3, randomness=2 / 3)))


def test_the_named_method_is_its_parts() -> None:
    named = ff.methods.client_centric("adam", client_lr=0.1, server_lr=0.05, buffer=4)
    server = ff.servers.FedAdam(lr=0.05, second_moment_of="delta")
    timing = ff.timing.ClientCentric(buffer=4, max_delay=5, epochs=3, randomness=2)
    assert same_bits(ran(**named), ran(server=server, timing=timing, **NORMALISED))
    assert not same_bits(ran(**named), ran(**(named | {"server": ff.servers.FedAdam(lr=0.05)})))


# ---- a simulated clock ----------------------------------------------------------------------------------------------


def buffered(**settings: Any) -> dict[str, Any]:
    return {"timing": ff.timing.EventDriven(**settings), "weights": "uniform"}


def test_equal_speeds_and_a_buffer_for_all_who_train_are_synchronous_rounds() -> None:
    """Everybody takes part, so that nothing is drawn; clients train equally long whatever they have."""
    synchronous = ran(cohort=CLIENTS, weights="uniform", steps=3)
    assert same_bits(synchronous, ran(**buffered(concurrency=CLIENTS, buffer=CLIENTS), steps=3))
    assert not same_bits(synchronous, ran(**buffered(concurrency=CLIENTS, buffer=CLIENTS - 1), steps=3))
    unequal = buffered(concurrency=CLIENTS, buffer=CLIENTS - 1, fleet=UNEQUAL)
    assert not same_bits(synchronous, ran(**unequal, steps=3))


def test_equal_speeds_and_a_smaller_fleet_are_synchronous_rounds_of_those_who_were_drawn() -> None:
    timed = ran(**buffered(concurrency=4, buffer=4), steps=3)
    cohorts = cohorts_of(**buffered(concurrency=4, buffer=4), steps=3)
    assert len({tuple(cohort) for cohort in cohorts}) > 1
    assert same_bits(timed, ran(cohort=cohorts, weights="uniform", steps=3))


def cohorts_of(rounds: int = 5, **settings: Any) -> list[list[int]]:
    """Who takes part in the rounds of a run."""
    sim = ran(0, **settings)
    cohorts = []
    for _ in range(rounds):
        plan = sim.planner.plan(sim.round, sim.tuner.tuning)
        assert plan is not None
        cohorts.append(plan.cohort.tolist())
        sim.step()
    return cohorts


def test_waves_are_synchronous_rounds_whatever_the_speeds() -> None:
    waves = {"timing": ff.timing.Waves(4, fleet=UNEQUAL), "weights": "uniform", "epochs": 2}
    cohorts = cohorts_of(**waves)
    assert same_bits(ran(**waves), ran(cohort=cohorts, weights="uniform", epochs=2))
    first = {"timing": ff.timing.Waves(4, wanted=3, fleet=UNEQUAL), "weights": "uniform", "epochs": 2}
    assert not same_bits(ran(**first), ran(cohort=cohorts, weights="uniform", epochs=2))


def test_a_wave_lasts_as_long_as_its_slowest_client() -> None:
    seconds = [float(3 + i) for i in range(CLIENTS)]
    fleet = ff.fleet.Fleet(step_seconds=seconds, network_seconds=0.5)
    waves = {"timing": ff.timing.Waves(4, fleet=fleet), "steps": 2}
    slowest = [max(2 * seconds[i] + 0.5 for i in cohort) for cohort in cohorts_of(**waves)]
    clocks = ran(**waves).history.column("clock")
    assert clocks == pytest.approx(torch.tensor(slowest, dtype=torch.float64).cumsum(0).tolist(), rel=1e-12)


def test_fedasync_is_fedbuff_with_a_buffer_of_one() -> None:
    options: dict[str, Any] = {"concurrency": 5, "staleness": 0.5, "max_age": 3, "fleet": UNEQUAL}
    asynchronous = ran(12, **ff.methods.fedasync(0.1, **options))
    assert same_bits_of_models(asynchronous, ran(12, **ff.methods.fedbuff(0.1, buffer=1, **options)))
    assert not same_bits_of_models(asynchronous, ran(12, **ff.methods.fedbuff(0.1, buffer=2, **options)))
    fresh = ff.methods.fedasync(0.1, **(options | {"staleness": 0.0}))
    assert not same_bits_of_models(asynchronous, ran(12, **fresh))


def same_bits_of_models(a: ff.Simulation, b: ff.Simulation) -> bool:
    return torch.equal(a.params, b.params)


def test_one_client_at_a_time_is_never_stale() -> None:
    alone = {"concurrency": 1, "buffer": 1, "fleet": UNEQUAL}
    assert ran(8, **buffered(**alone)).history.column("age_max") == [0] * 8
    assert same_bits(ran(8, **buffered(**alone)), ran(8, **buffered(staleness=1.0, max_age=0, **alone)))


# ---- tuned ----------------------------------------------------------------------------------------------------------


def fathom(**gammas: float) -> dict[str, Any]:
    still = {"gamma_lr": 0.0, "gamma_epochs": 0.0, "gamma_batch": 0.0}
    return {"tuner": ff.tune.Fathom(**(still | gammas)), "cohort": 4}


@pytest.mark.parametrize("gamma", [{"gamma_lr": 0.5}, {"gamma_epochs": 0.5}, {"gamma_batch": 20.0}], ids=str)
def test_fathom_without_gammas_is_averaging(gamma: dict[str, float]) -> None:
    """Batches of 3 divide everybody's examples, so that n E / B is whole."""
    averaging = ran(cohort=4, epochs=2, batch_size=3)
    assert same_bits(averaging, ran(epochs=2, batch_size=3, **fathom()))
    assert not same_bits(averaging, ran(epochs=2, batch_size=3, **fathom(**gamma)))


def test_fathom_rounds_steps_down_and_its_authors_up() -> None:
    sizes = small_federation().sizes.tolist()
    down, up = [max(1, int(1.5 * n / 7)) for n in sizes], [max(1, -(-3 * n // 14)) for n in sizes]
    for counting, steps in (("floor", down), ("ceil", up)):
        tuner = ff.tune.Fathom(0.0, 0.0, 0.0, counting=counting)
        assert same_bits(ran(cohort=4, epochs=1.5, tuner=tuner), ran(cohort=4, steps=steps))
    assert down != up


# ---- blended --------------------------------------------------------------------------------------------------------

Part = ff.clients.Part


@pytest.mark.parametrize("client", [SGD, ff.clients.Adam(lr=0.02), ff.clients.DeltaSGD(), ff.clients.SM3(lr=0.1)])
def test_a_blend_of_one_rule_is_that_rule(client: ff.clients.Client) -> None:
    alone = ran(client=client, cohort=5, epochs=2)
    assert same_bits(alone, ran(client=ff.clients.Blend([Part(client)]), cohort=5, epochs=2))
    assert same_bits(alone, ran(client=ff.clients.Blend([Part(client, share=2), Part(client)]), cohort=5, epochs=2))
    other = ff.clients.Blend([Part(client), Part(ff.clients.AdaGrad(lr=0.3))])
    assert not same_bits(alone, ran(client=other, cohort=5, epochs=2))


def test_a_parts_own_steps_are_those_of_a_run_with_as_many() -> None:
    own = ran(client=ff.clients.Blend([Part(SGD, steps=3)]), cohort=5)
    assert same_bits(own, ran(cohort=5, steps=3))
    assert same_bits(ran(client=ff.clients.Blend([Part(SGD, epochs=1.5)]), cohort=5), ran(cohort=5, epochs=1.5))
    assert not same_bits(own, ran(cohort=5, steps=2))


def test_a_weight_for_all_is_a_learning_rate_of_the_server() -> None:
    half = ran(client=ff.clients.Blend([Part(SGD, weight=0.5)]), cohort=5, server=ff.servers.FedAvg())
    assert gap(half.params, ran(cohort=5, server=ff.servers.FedAvg(lr=0.5)).params) < 1e-6
    assert gap(half.params, ran(cohort=5, server=ff.servers.FedAvg()).params) > 1e-2


def test_a_function_of_resources_chooses() -> None:
    adam = ff.clients.Adam(lr=0.02)
    by_memory = ff.clients.Blend([Part(SGD), Part(adam)], lambda of: int(of.own >= 6), resources=range(CLIENTS))
    by_size = ff.clients.Blend([Part(SGD), Part(adam)], lambda of: int(of.examples > 18))
    by_id = ff.clients.Blend([Part(SGD), Part(adam)], lambda of: int(of.client >= 6))
    runs = [ran(client=blend, cohort=5) for blend in (by_memory, by_size, by_id)]
    assert same_bits(runs[0], runs[1])
    assert same_bits(runs[0], runs[2])
    assert not same_bits(runs[0], ran(cohort=5))


# ---- private --------------------------------------------------------------------------------------------------------

EVERYONE = ff.plan.Poisson(1.0)


def test_no_noise_and_no_clip_is_the_plain_mean() -> None:
    private = ran(cohort=EVERYONE, weights="uniform", privacy=ff.privacy.Privacy(clip=None, noise=0.0, delta=1e-3))
    assert gap(private.params, ran(cohort=EVERYONE, weights="uniform").params) < 1e-6
    clipped = ff.privacy.Privacy(clip=0.3, noise=0.0, delta=1e-3)
    same = ran(cohort=EVERYONE, weights="uniform", delta_clip=0.3).params
    assert gap(ran(cohort=EVERYONE, weights="uniform", privacy=clipped).params, same) < 1e-6
    noisy = ff.privacy.Privacy(clip=0.3, noise=0.1, delta=1e-3)
    assert gap(ran(cohort=EVERYONE, weights="uniform", privacy=noisy).params, same) > 1e-3


# ---- compressed -----------------------------------------------------------------------------------------------------


def test_all_of_the_delta_is_the_delta() -> None:
    plain = ran(cohort=5)
    whole = ran(cohort=5, compression=ff.compression.TopK(fraction=1.0))
    assert gap(whole.params, plain.params) < 1e-6
    assert gap(ran(cohort=5, compression=ff.compression.TopK(fraction=0.5)).params, plain.params) > 1e-3
    assert gap(ran(cohort=5, compression=ff.compression.Int8()).params, plain.params) < 0.05
