"""The simulation as a whole: it learns, it is a function of its settings and seed, and it says what it did."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn

import fastfed as ff
from fastfed.record.writers import read_json_lines

from .support import simulation, small_federation, small_model


def test_it_learns_and_records_every_round() -> None:
    sim = simulation()
    history = sim.run(rounds=30, evaluate_every=10, progress=False)
    assert [row["round"] for row in history] == list(range(1, 31))
    assert [row["round"] for row in history if "test_accuracy" in row] == [10, 20, 30]
    assert history.last("test_accuracy") > 0.85
    assert history.rounds[-1]["train_loss"] < history.rounds[0]["train_loss"] / 2
    assert all(math.isfinite(v) for row in history for v in row.values())


def test_the_model_given_is_not_touched() -> None:
    model = small_model()
    before = [p.clone() for p in model.parameters()]
    sim = ff.Simulation(model, small_federation(), client=ff.clients.SGD(lr=0.1), cohort=3)
    sim.run(rounds=2, progress=False)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    trained = sim.trained_model()
    assert torch.equal(sim.packing.pack(trained), sim.params)
    assert not torch.equal(sim.packing.pack(model), sim.params)


METHODS = {
    "fedyogi": ff.methods.fedyogi(0.1, 0.05),
    "scaffold": ff.methods.scaffold(0.1),
    "fedada2": ff.methods.fedada2("adam", "adam", transmit=True, client_lr=0.01, server_lr=0.01),
    "delta_sgd": ff.methods.delta_sgd(same_batch=True),
    "moon": ff.methods.moon(0.1),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("executor", ["native", "eager"])
def test_the_same_bits_for_any_number_of_threads(executor: str, method: str) -> None:
    runs = [simulation(cohort=12, executor=executor, threads=threads, **METHODS[method]) for threads in (1, 2, 5)]
    for sim in runs:
        sim.run(rounds=4, evaluate_every=2, progress=False)
    for sim in runs[1:]:
        tensors = sim.tensors()
        assert all(torch.equal(tensor, tensors[name]) for name, tensor in runs[0].tensors().items())
        assert runs[0].history.without_seconds() == sim.history.without_seconds()


def test_the_seed_decides() -> None:
    a, b, other = simulation(), simulation(), simulation(seed=12)
    for sim in (a, b, other):
        sim.run(rounds=3, progress=False)
    assert torch.equal(a.params, b.params)
    assert not torch.equal(a.params, other.params)


def test_executors_agree() -> None:
    runs = {name: simulation(executor=name) for name in ("native", "eager", "batched")}
    for sim in runs.values():
        sim.run(rounds=5, progress=False)
    for name in ("native", "batched"):
        torch.testing.assert_close(runs[name].params, runs["eager"].params, rtol=1e-4, atol=1e-5)


def test_rounds_are_counted_on_and_until_is_a_total() -> None:
    sim = simulation()
    sim.run(rounds=2, progress=False)
    assert len(sim.run(rounds=3, progress=False)) == 5
    assert len(sim.run(until=7, progress=False)) == 7
    assert len(sim.run(until=7, progress=False)) == 7
    whole = simulation()
    whole.run(rounds=7, progress=False)
    assert torch.equal(sim.params, whole.params)


def test_a_target_ends_the_run() -> None:
    sim = simulation()
    history = sim.run(rounds=100, evaluate_every=1, target={"test_accuracy": 0.8}, progress=False)
    assert len(history) < 100
    assert history.last("test_accuracy") >= 0.8
    assert all(value < 0.8 for value in history.column("test_accuracy")[:-1])
    assert history.rounds_to("test_accuracy", 0.8) == len(history)
    assert history.rounds_to("test_accuracy", 2.0) is None


def test_a_target_that_was_reached_stays_reached() -> None:
    sim = simulation()
    run = {"rounds": 100, "evaluate_every": 2, "target": {"test_accuracy": 0.6}, "progress": False}
    first = len(sim.run(**run))
    assert len(sim.run(**run)) == first


def test_what_is_not_a_number_is_none() -> None:
    """A learning rate that makes every client non-finite: there is no loss to speak of."""
    sim = simulation(client=ff.clients.SGD(lr=1e30), server=ff.servers.FedAvg())
    history = sim.run(rounds=3, evaluate_every=1, progress=False)
    assert history.rounds[-1]["train_loss"] is None
    assert history.rounds[-1]["skipped"] == 5
    assert all(row.keys() >= {"train_loss", "delta_norm", "step_size", "counted"} for row in history)
    json.dumps(history.rounds, allow_nan=False)


def test_bytes_and_memory_of_each_method() -> None:
    d = 6 * 5 + 5 + 5 * 4 + 4
    fed, model = small_federation(), small_model()

    def first_row(**settings: object) -> dict[str, object]:
        sim = ff.Simulation(model, fed, cohort=5, **settings)  # type: ignore[arg-type]
        return sim.run(rounds=1, evaluate_every=0, progress=False).rounds[0]

    plain = first_row(**ff.methods.fedavg(0.1))
    assert (plain["bytes_down"], plain["bytes_up"], plain["client_optimizer_bytes"]) == (20 * d, 20 * d, 0)
    control = first_row(**ff.methods.scaffold(0.1))
    assert (control["bytes_down"], control["bytes_up"], control["client_optimizer_bytes"]) == (40 * d, 40 * d, 4 * d)
    joint = first_row(**ff.methods.fedada2(sm3=False, transmit=True, client_lr=0.1, server_lr=0.1))
    assert (joint["bytes_down"], joint["bytes_up"], joint["client_optimizer_bytes"]) == (40 * d, 20 * d, 4 * d)
    small = first_row(**ff.methods.fedada2(sm3=True, client_lr=0.1, server_lr=0.1))
    axes = (6 + 5) + 5 + (5 + 4) + 4
    assert (small["bytes_down"], small["client_optimizer_bytes"]) == (20 * d, 4 * axes)


def test_step_sizes_are_recorded() -> None:
    row = simulation(client=ff.clients.DeltaSGD(), weights="uniform").run(rounds=1, progress=False).rounds[0]
    assert 0 < row["step_size_min"] < row["step_size"] < row["step_size_max"]


def test_clients_without_examples_and_empty_cohorts() -> None:
    fed = small_federation()
    empty = ff.data.Federated(
        "with empty clients", fed.examples, fed.rows, torch.cat([fed.offsets, fed.offsets[-1:]]), test=fed.test
    )
    sim = simulation(empty, cohort=[[12], [0, 12], []])
    history = sim.run(rounds=3, evaluate_every=0, progress=False)
    assert [row["idle"] for row in history] == [1, 1, 0]
    assert [row["changed"] for row in history] == [False, True, False]
    assert [row["clients"] for row in history] == [1, 2, 0]


def test_a_non_finite_client_is_counted_and_left_out() -> None:
    fed = small_federation()
    poisoned = fed.examples.inputs.clone()
    poisoned[fed.rows_of(4)] = torch.inf
    bad = ff.data.Federated("bad", ff.data.Examples(poisoned, fed.examples.targets), fed.rows, fed.offsets)
    cohorts = [[1, 4, 7], [2, 4]]
    sim = simulation(bad, cohort=cohorts)
    history = sim.run(rounds=2, evaluate_every=0, progress=False)
    assert [row["skipped"] for row in history] == [1, 1]
    without = simulation(fed, cohort=[[1, 7], [2]])
    without.run(rounds=2, evaluate_every=0, progress=False)
    torch.testing.assert_close(sim.params, without.params)


def test_given_weights_are_shared_out_among_those_that_count() -> None:
    fed = small_federation()
    poisoned = fed.examples.inputs.clone()
    poisoned[fed.rows_of(4)] = torch.inf
    bad = ff.data.Federated("bad", ff.data.Examples(poisoned, fed.examples.targets), fed.rows, fed.offsets)
    weights = torch.arange(1.0, 13.0)
    sim = simulation(bad, cohort=[[1, 4, 7]], weights=weights)
    without = simulation(fed, cohort=[[1, 7]], weights=weights)
    for one in (sim, without):
        one.run(rounds=2, evaluate_every=0, progress=False)
    torch.testing.assert_close(sim.params, without.params)


def test_a_cohort_of_weight_0_changes_nothing() -> None:
    weights = torch.ones(12)
    weights[[2, 3]] = 0
    sim = simulation(cohort=[[2, 3], [2, 4]], weights=weights)
    before = sim.params.clone()
    rows = sim.run(rounds=1, evaluate_every=0, progress=False).rounds
    assert (rows[0]["changed"], rows[0]["counted"]) == (False, 0)
    assert torch.equal(sim.params, before)
    assert sim.run(rounds=1, evaluate_every=0, progress=False).rounds[1]["counted"] == 1


@pytest.mark.parametrize(
    ("server", "number"),
    [
        (ff.servers.FedAdam(lr=0.1), torch.inf),
        (ff.servers.FedAdam(lr=0.1), torch.nan),
        (ff.servers.FedAdam(lr=0.1), -1e25),  # its square is more than a float32 holds
        (ff.servers.FedAvg(lr=100.0), 3e37),  # and so is a hundred times this
        (ff.servers.FedAvg(), -torch.inf),
    ],
)
def test_an_aggregate_that_nobody_can_step_along_changes_nothing(server: ff.servers.Server, number: float) -> None:
    sim = simulation(server=server)
    sim.run(rounds=1, evaluate_every=0, progress=False)
    params, state = sim.params.clone(), {name: t.clone() for name, t in sim.server.state.items()}
    usual = sim.executor.run

    def spoilt(work: object) -> object:
        outcome = usual(work)  # type: ignore[arg-type]
        outcome.delta[3] = number
        return outcome

    sim.executor.run = spoilt  # type: ignore[method-assign, assignment]
    row = sim.run(rounds=1, evaluate_every=0, progress=False).rounds[-1]
    assert row["changed"] is False
    assert torch.equal(sim.params, params)
    assert all(torch.equal(state[name], sim.server.state[name]) for name in state)


def test_a_large_aggregate_is_still_stepped_along() -> None:
    sim = simulation(server=ff.servers.FedAvg(), client=ff.clients.SGD(lr=1e3))
    before = sim.params.clone()
    assert sim.run(rounds=1, evaluate_every=0, progress=False).rounds[0]["changed"] is True
    assert float((sim.params - before).abs().max()) > 10


def test_delta_clip_bounds_the_move() -> None:
    sim = simulation(server=ff.servers.FedAvg(), delta_clip=0.01)
    before = sim.params.clone()
    sim.run(rounds=1, evaluate_every=0, progress=False)
    moved = float((sim.params - before).norm())
    assert 0.001 < moved <= 0.01 * (1 + 1e-5)


def test_evaluation_matches_plain_torch() -> None:
    sim = simulation()
    sim.run(rounds=3, evaluate_every=0, progress=False)
    fed = sim.fed
    assert fed.test is not None
    outputs = sim.trained_model()(fed.test.inputs).detach()
    found = sim.evaluate(per_client=True)
    loss = nn.functional.cross_entropy(outputs, fed.test.targets)
    assert found["test_loss"] == pytest.approx(float(loss), rel=1e-5)
    assert found["test_accuracy"] == pytest.approx(float((outputs.argmax(1) == fed.test.targets).double().mean()))
    accuracies = []
    for client in range(len(fed)):
        rows = fed.rows_of(client)  # type: ignore[attr-defined]
        right = sim.trained_model()(fed.examples.inputs[rows]).argmax(1) == fed.examples.targets[rows]
        accuracies.append(float(right.double().mean()))
    spread = torch.tensor(accuracies, dtype=torch.float64)
    assert found["client_accuracy_mean"] == pytest.approx(float(spread.mean()))
    assert found["client_accuracy_p10"] == pytest.approx(float(spread.quantile(0.1)))
    assert found["client_accuracy_p90"] == pytest.approx(float(spread.quantile(0.9)))


def test_clients_are_evaluated_on_their_own_tests() -> None:
    fed = small_federation()
    rows, offsets = torch.arange(24), torch.arange(0, 25, 2)
    tested = ff.data.Federated("t", fed.examples, fed.rows, fed.offsets, fed.test, rows, offsets)
    sim = simulation(tested)
    assert fed.test is not None
    right = sim.trained_model()(fed.test.inputs[:24]).argmax(1) == fed.test.targets[:24]
    assert sim.evaluate(per_client=True)["client_accuracy_mean"] == pytest.approx(float(right.double().mean()))


def test_dropout_is_off_in_evaluation() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.9))
    sim = ff.Simulation(model, small_federation(), client=ff.clients.SGD(lr=0.1), cohort=3)
    assert sim.evaluate() == sim.evaluate()


def test_json_lines_are_the_history(tmp_path: object) -> None:
    path = f"{tmp_path}/runs/log.jsonl"
    sim = simulation()
    sim.run(rounds=4, evaluate_every=2, log=path, progress=False)
    assert read_json_lines(path).rounds == sim.history.rounds
    with open(path, "a") as file:
        file.write('{"round": 5, "tr')  # a run killed while writing
    assert len(read_json_lines(path)) == 4
    sim.run(rounds=1, log=path, progress=False)
    with open(path) as file:
        assert [json.loads(line)["round"] for line in file] == [1, 2, 3, 4, 5]


def test_tensorboard_is_asked_for_by_name_where_it_is_missing(tmp_path: object, monkeypatch: object) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match=r"needs tensorboard: pip install 'fastfed\[tensorboard\]'"):
        simulation().run(rounds=1, tensorboard=f"{tmp_path}/events", progress=False)


def test_tensorboard_gets_every_number(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    import types

    written: list[tuple[str, float, int]] = []

    class SummaryWriter:
        """Stands for TensorBoard's own, which FastFed does not install."""

        def __init__(self, log_dir: str, purge_step: int | None) -> None:
            self.closed = False
            assert purge_step is None

        def add_scalar(self, tag: str, value: float, step: int) -> None:
            written.append((tag, value, step))

        def close(self) -> None:
            written.append(("closed", 0.0, 0))

    module = types.SimpleNamespace(SummaryWriter=SummaryWriter)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)  # type: ignore[arg-type]
    history = simulation().run(rounds=2, evaluate_every=2, tensorboard=f"{tmp_path}/events", progress=False)
    assert ("test_accuracy", history.last("test_accuracy"), 2) in written
    assert {step for tag, _, step in written if tag == "train_loss"} == {1, 2}
    assert written[-1][0] == "closed"


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"client": "sgd"}, TypeError, "client: must be an optimizer of fastfed.clients"),
        ({"server": 1.0}, TypeError, "server: must be one of fastfed.servers, a function"),
        ({"weights": [1.0, 2.0]}, ValueError, "weights: must be 'examples', 'uniform' or 12 finite numbers"),
        ({"weights": "sizes"}, ValueError, "weights: must be 'examples', 'uniform' or 12 finite numbers"),
        ({"steps": [1, 2], "epochs": None}, ValueError, "one for each of the 12 clients"),
        ({"cohort": 13}, ValueError, "cohort: must be at most the number of clients, 12"),
        ({"weights": None}, ValueError, "weights: must be 'examples', 'uniform' or 12 finite numbers"),
        ({"epochs": "1"}, ValueError, "epochs: must be > 0, got '1'"),
        ({"cohort": True}, TypeError, "cohort: must be a number of clients"),
        ({"server_schedule": 0.5}, TypeError, "server_schedule: must be a function of the round"),
        ({"exchange": "scaffold"}, TypeError, "exchange: must be like those of fastfed.exchange"),
        ({"delta_clip": -1.0}, ValueError, "delta_clip: must be a finite number > 0"),
        ({"executor": "fast"}, ValueError, "executor: must be one of"),
        (
            {"client_schedule": lambda r: 1.0, "client": ff.clients.SPS()},
            ValueError,
            "client_schedule: client rule 'sps'",
        ),
        (
            {
                "exchange": ff.exchange.Preconditioner(),
                "client": ff.clients.AdaGrad(lr=1.0),
                "server": ff.servers.FedAvg(),
            },
            ValueError,
            "exchange: server rule 'sgd' has no second moment",
        ),
        ({"exchange": ff.exchange.Preconditioner()}, ValueError, "exchange: client rule 'sgd' has no second moment"),
        (
            {"exchange": ff.exchange.ControlVariates(), "client": ff.clients.Adam(lr=1.0)},
            ValueError,
            "exchange: SCAFFOLD reads gradients off SGD's moves",
        ),
    ],
)
def test_bad_settings_are_refused_before_the_first_round(
    settings: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        simulation(**settings)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "rounds: give either rounds or until"),
        ({"rounds": 1, "until": 1}, "rounds: give either rounds or until"),
        ({"rounds": -1}, "rounds: must be a whole number >= 0"),
        ({"rounds": 1, "evaluate_every": -1}, "evaluate_every: must be a whole number >= 0"),
        ({"rounds": 1, "keep": 0}, "keep: must be a whole number >= 1"),
        ({"rounds": 1, "evaluate_every": 0, "target": {"test_accuracy": 1}}, "target: test_accuracy is never measured"),
        (
            {"rounds": 1, "target": {"accuracy": 0.5}},
            "target: this run does not measure 'accuracy'; it measures train_loss",
        ),
        ({"rounds": 1, "target": {"client_accuracy_mean": 0.5}}, "does not measure 'client_accuracy_mean'"),
    ],
)
def test_bad_runs_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        simulation().run(**arguments, progress=False)  # type: ignore[arg-type]


def test_without_a_test_set() -> None:
    sim = simulation(small_federation(test=False))
    history = sim.run(rounds=2, evaluate_every=1, progress=False)
    assert history.values("test_loss") == []
    with pytest.raises(ValueError, match="fed: small has no test set"):
        sim.evaluate()
    with pytest.raises(KeyError, match="test_loss: no round has it"):
        history.last("test_loss")


def test_lines_tell_the_progress_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastfed.record.progress._SECONDS_BETWEEN_LINES", 0.0)
    simulation().run(rounds=2, evaluate_every=2)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == ["1/2", "2/2"]
    assert "test accuracy" in lines[1]
    simulation().run(rounds=2, progress=False)
    assert capsys.readouterr().err == ""
