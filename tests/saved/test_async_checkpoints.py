"""Asynchronous, tuned, private and compressed runs: cut in two anywhere they end at the same bits, and threads change
nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fastfed as ff

from ..simulation.support import CLIENTS, small_federation, small_model

FLEET = ff.fleet.Fleet(
    step_seconds=2.0,
    spread=0.7,
    network_seconds=0.3,
    bytes_per_second=1e4,
    dropout=0.1,
    windows=ff.fleet.Windows(period=400.0, length=250.0),
)
PRIVATE = ff.privacy.Privacy(clip=0.4, noise=0.7, delta=1e-3, adaptive=ff.privacy.Quantile(count_noise=2.0))

RUNS: dict[str, dict[str, Any]] = {
    "client-centric": ff.methods.client_centric("ams", client_lr=0.1, server_lr=0.05, buffer=3, max_delay=4),
    "FedBuff": ff.methods.fedbuff(0.1, 6, 4, staleness=0.5, max_age=3, fleet=FLEET),
    "FedBuff, any age": ff.methods.fedbuff(0.1, 7, 2, staleness=0.5, fleet=FLEET),
    "FedAsync": ff.methods.fedasync(0.1, 5, fleet=FLEET),
    "waves": {"client": ff.clients.SGD(lr=0.1), "timing": ff.timing.Waves(6, wanted=4, fleet=FLEET)},
    "client-centric, not always there, with replacement": ff.methods.client_centric(
        "ams",
        client_lr=0.1,
        server_lr=0.05,
        buffer=6,
        max_delay=2,
        shares=ff.plan.Dirichlet(0.5),
        availability=ff.plan.Sinusoidal(5, low=0.2),
        replacement=True,
        divide_by_epochs=True,
    ),
    "FedBuff, random epochs": ff.methods.fedbuff(0.1, 6, 4, fleet=FLEET, epochs=2, randomness=1.5),
    "with replacement": {
        "client": ff.clients.SGD(lr=0.1),
        "cohort": ff.plan.Sampled(9, [1.0 + i for i in range(CLIENTS)], ff.plan.Cyclic(5, 3), replacement=True),
    },
    "FATHOM": {**ff.methods.fathom(0.1, 2, 5, 0.3, 0.3, 3.0), "cohort": 5},
    "blend": {
        "client": ff.clients.Blend(
            [
                ff.clients.Part(ff.clients.SGD(lr=0.1), steps=4),
                ff.clients.Part(ff.clients.Adam(lr=0.02, delay=2), share=2.0, weight=0.5),
            ]
        ),
        "cohort": 5,
    },
    "private": {
        "client": ff.clients.SGD(lr=0.1),
        "cohort": ff.plan.Poisson(0.4),
        "weights": "uniform",
        "privacy": PRIVATE,
    },
    "top k": {"client": ff.clients.SGD(lr=0.1), "cohort": 5, "compression": ff.compression.TopK(fraction=0.2)},
    "FedBuff, blended, 8 bits": {
        **ff.methods.fedbuff(0.1, 6, 3, staleness=0.5, max_age=2, fleet=FLEET),
        "client": ff.clients.Blend(
            [ff.clients.Part(ff.clients.SGD(lr=0.1), weight=0.5), ff.clients.Part(ff.clients.SM3(lr=0.1, delay=2))]
        ),
        "compression": ff.compression.Int8(),
    },
    "FedBuff, MOON": {
        **ff.methods.fedbuff(0.1, 6, 4, max_age=3, fleet=FLEET),
        "exchange": ff.exchange.PreviousModels(mu=1.0),
    },
    "client-centric, signs": {
        **ff.methods.client_centric("adam", client_lr=0.1, server_lr=0.05, buffer=4),
        "compression": ff.compression.Sign(),
    },
    "8 bits, private": {
        "client": ff.clients.SGD(lr=0.1),
        "cohort": ff.plan.Poisson(0.4),
        "weights": "uniform",
        "compression": ff.compression.Int8(),
        "privacy": ff.privacy.Privacy(clip=0.4, noise=0.7, delta=1e-3),
    },
}

every_run = pytest.mark.parametrize("name", RUNS)


def simulation(name: str, **settings: Any) -> ff.Simulation:
    usual: dict[str, Any] = {"batch_size": 7, "seed": 11}
    return ff.Simulation(small_model(), small_federation(), **(usual | RUNS[name] | settings))


def assert_equal_ends(a: ff.Simulation, b: ff.Simulation) -> None:
    """Everything that a checkpoint holds is the same, bit for bit, and so is the history."""
    assert a.history.without_seconds() == b.history.without_seconds()
    first, second = a.tensors(), b.tensors()
    assert first.keys() == second.keys()
    for key in first:
        assert torch.equal(first[key], second[key]), key


@every_run
def test_a_run_resumed_after_any_round_ends_alike(name: str, tmp_path: Path) -> None:
    whole = simulation(name)
    whole.run(7, evaluate_every=0, progress=False)
    for cut in (1, 4):
        part = simulation(name)
        part.run(cut, evaluate_every=0, progress=False)
        part.save(tmp_path / str(cut))
        again = ff.Simulation.resume(tmp_path / str(cut), fed=small_federation())
        again.run(until=7, evaluate_every=0, progress=False)
        assert_equal_ends(again, whole)


@every_run
def test_threads_change_nothing(name: str) -> None:
    runs = [simulation(name, threads=threads) for threads in (1, 2, 5)]
    for sim in runs:
        sim.run(4, evaluate_every=0, progress=False)
    for other in runs[1:]:
        assert_equal_ends(other, runs[0])


@pytest.mark.parametrize(
    "name",
    ["FedBuff", "FedBuff, any age", "FedBuff, random epochs", "waves", "FedBuff, blended, 8 bits", "FedBuff, MOON"],
)
def test_a_checkpoint_between_two_events_of_a_round_resumes_to_the_same_bits(name: str, tmp_path: Path) -> None:
    """The clock stops now and then with the buffer half full; every stop is saved, and resumed from."""
    whole = simulation(name)
    whole.run(5, evaluate_every=0, progress=False)
    end, half_full = whole.history.last("clock"), 0
    sim = simulation(name)
    for cut in range(1, 12):
        sim.run(until_clock=end * cut / 12, evaluate_every=0, progress=False, checkpoint=tmp_path)
        half_full += len(sim.planner.queue.arrived[0]) > 0  # type: ignore[attr-defined]
        sim = ff.Simulation.resume(tmp_path, fed=small_federation())
    assert half_full >= 2
    sim.run(until=5, evaluate_every=0, progress=False)
    assert_equal_ends(sim, whole)


def test_a_half_full_buffer_can_be_flushed() -> None:
    sim = simulation("FedBuff, any age", timing=ff.timing.EventDriven(7, buffer=5, fleet=FLEET))
    sim.run(2, evaluate_every=0, progress=False)
    clock = sim.history.last("clock")
    while len(sim.planner.queue.arrived[0]) != 3:  # type: ignore[attr-defined]
        clock += 0.5
        sim.run(until_clock=clock, evaluate_every=0, progress=False)
        assert sim.round == 2
    before = sim.params.clone()
    row = sim.flush()
    assert row is not None
    assert row["clients"] == 3
    assert sim.round == 3
    assert not torch.equal(sim.params, before)
    assert sim.flush() is None
    sim.step()
    with pytest.raises(ValueError, match="only a simulated clock"):
        simulation("FATHOM").flush()


def test_an_interrupted_round_is_trained_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ctrl-C while clients train: their updates are in the buffer, and nothing else has happened."""
    whole = simulation("FedBuff")
    whole.run(5, evaluate_every=0, progress=False)
    sim = simulation("FedBuff")
    sim.run(2, evaluate_every=0, progress=False)

    def interrupted(work: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sim.executor, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sim.run(1, evaluate_every=0, progress=False, checkpoint=tmp_path)
    again = ff.Simulation.resume(tmp_path, fed=small_federation())
    for one in (sim, again):
        one.run(until=5, evaluate_every=0, progress=False)
        assert_equal_ends(one, whole)


def test_past_models_are_kept_while_somebody_needs_them() -> None:
    centric = simulation("client-centric")
    kept = []
    for _ in range(8):
        centric.step()
        kept.append(len(centric.server.past))
    assert kept == [1, 2, 3, 4, 4, 4, 4, 4]
    buffered = simulation("FedBuff, any age")
    for _ in range(20):
        buffered.step()
        assert len(buffered.server.past) <= 7  # those in flight cannot have started from more
    assert (
        len(ff.Simulation(small_model(), small_federation(), client=ff.clients.SGD(lr=0.1), cohort=3).server.past) == 0
    )


def test_a_private_run_stops_before_its_budget_is_spent(tmp_path: Path) -> None:
    budget = ff.privacy.Privacy(clip=0.4, noise=1.0, delta=1e-3, target_epsilon=6.0)
    sim = simulation("private", privacy=budget)
    history = sim.run(100, evaluate_every=0, progress=False, checkpoint=tmp_path)
    assert 1 < len(history) < 100
    assert history.last("epsilon") <= 6.0
    assert isinstance(sim.ledger, ff.privacy.Ledger)
    assert sim.ledger.epsilon(len(history) + 1) > 6.0
    again = ff.Simulation.resume(tmp_path, fed=small_federation())
    assert len(again.run(10, evaluate_every=0, progress=False)) == len(history)
    with pytest.raises(RuntimeError, match=f"target_epsilon: {len(history) + 1} rounds would take epsilon past 6.0"):
        again.step()
    assert len(again.history) == len(history)


def test_rows_tell_the_epsilon_spent_so_far() -> None:
    """Of the round itself included, whoever came."""
    sim = simulation("8 bits, private")
    history = sim.run(4, evaluate_every=0, progress=False)
    ledger = ff.privacy.Ledger(RUNS["8 bits, private"]["privacy"], 0.4)
    assert history.column("epsilon") == [ledger.epsilon(rounds) for rounds in (1, 2, 3, 4)]


def test_ages_and_clock_are_told() -> None:
    row = simulation("FedBuff").run(6, evaluate_every=0, progress=False).rounds[-1]
    assert row["clients"] == sum(number for _, number in row["ages"]) == 4
    assert row["age_max"] == max(age for age, _ in row["ages"]) > 0
    assert row["age_mean"] == pytest.approx(sum(age * number for age, number in row["ages"]) / 4)
    clocks = simulation("FedBuff").run(6, evaluate_every=0, progress=False).column("clock")
    assert clocks == sorted(clocks)
    assert clocks[0] > 0


def test_bytes_are_counted_as_sent() -> None:
    plain = {"client": ff.clients.SGD(lr=0.1), "cohort": CLIENTS}
    parameters = simulation("top k").packing.parameters
    tensors = len(simulation("top k").packing.slots)
    sent = {
        None: 4 * parameters,
        ff.compression.TopK(fraction=0.1): 8 * -(-parameters // 10),
        ff.compression.Sign(): -(-parameters // 8) + 4 * tensors,
        ff.compression.Int8(): parameters + 4 * tensors,
    }
    for compression, bytes_up in sent.items():
        row = simulation("top k", **plain, compression=compression).step()
        assert row["bytes_up"] == CLIENTS * bytes_up
        assert row["bytes_down"] == CLIENTS * 4 * parameters
