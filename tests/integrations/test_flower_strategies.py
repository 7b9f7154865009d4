"""Our strategies inside Flower: its own to rounding, in both precisions, state and all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from .support import host

host("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict  # noqa: E402
from flwr.serverapp import strategy as flower  # noqa: E402
from flwr.serverapp.exception import AggregationError  # noqa: E402

import fastfed as ff  # noqa: E402
from fastfed.integrations import flower as ours  # noqa: E402
from fastfed.integrations.flower import arrays  # noqa: E402
from fastfed.integrations.flower.host import be_somebody  # noqa: E402

be_somebody()  # messages are made without a grid here

SHAPES = {"a.weight": (7, 13), "a.bias": (7,), "scale": (), "b.weight": (5, 3, 2, 1), "c": (1001,)}
COUNTS = (30, 1, 17, 5)
ROUNDS = 10
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}

STRATEGIES: dict[str, tuple[str, dict[str, Any]]] = {
    "FedAdam": ("FedAdam", {}),
    "FedAdam other": ("FedAdam", {"eta": 0.03, "beta_1": 0.7, "beta_2": 0.9, "tau": 0.02}),
    "FedAdam without momentum": ("FedAdam", {"beta_1": 0.0}),
    "FedYogi": ("FedYogi", {}),
    "FedYogi other": ("FedYogi", {"eta": 0.3, "eta_l": 0.5, "beta_1": 0.5, "beta_2": 0.8, "tau": 0.1}),
    "FedAdagrad": ("FedAdagrad", {}),
    "FedAdagrad other": ("FedAdagrad", {"eta": 0.01, "tau": 0.05}),
    "FedAvgM": ("FedAvgM", {"server_momentum": 0.9}),
    "FedAvgM other": ("FedAvgM", {"server_learning_rate": 0.3, "server_momentum": 0.5}),
    "FedAvgM without momentum": ("FedAvgM", {"server_learning_rate": 0.3}),
    "FedAvgM by default": ("FedAvgM", {}),
    "FedAvg": ("FedAvg", {}),
}


class Nodes:
    """As much of a grid as sampling asks for."""

    def get_node_ids(self) -> list[int]:
        return [2**64 - 1 - i for i in range(len(COUNTS))]


def numbers(seed: int, dtype: str) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {name: np.asarray(generator.standard_normal(shape), dtype=dtype) for name, shape in SHAPES.items()}


def record(held: dict[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in held.items()})


def reply(message: Any, held: ArrayRecord, count: float, **metrics: float) -> Message:
    content = {"arrays": held, "metrics": MetricRecord({"num-examples": count, **metrics})}
    return Message(RecordDict(content), reply_to=message)


def run(strategy: Any, dtype: str, rounds: int = ROUNDS, start: int = 0) -> tuple[ArrayRecord, list[MetricRecord]]:
    """Rounds of clients that go towards models of their own; the record after the last, and the metrics of all."""
    now, measured = record(numbers(0, dtype)), []
    for round in range(start + 1, start + rounds + 1):
        messages = list(strategy.configure_train(round, now, ConfigRecord(), Nodes()))
        replies = []
        for i, (message, count) in enumerate(zip(messages, COUNTS, strict=True)):
            aims = numbers(100 * round + i, dtype)
            moved = {name: (0.6 * held.numpy() + 0.4 * aims[name]).astype(dtype) for name, held in now.items()}
            replies.append(reply(message, record(moved), count, loss=float(i)))
        now, metrics = strategy.aggregate_train(round, replies)
        measured.append(metrics)
    return now, measured


def strategies(name: str) -> tuple[Any, Any]:
    kind, given = STRATEGIES[name]
    return getattr(flower, kind)(**given), getattr(ours, kind)(**given)


def assert_near(found: Any, wanted: Any, within: float, of: str) -> None:
    found, wanted = np.asarray(found, dtype=np.float64), np.asarray(wanted, dtype=np.float64)
    error = np.abs(found - wanted).max() / np.abs(wanted).max()
    assert error <= within, f"{of}: {error}"


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", STRATEGIES)
def test_the_weights_are_flowers_own(name: str, dtype: str) -> None:
    theirs, mine = strategies(name)
    wanted, wanted_metrics = run(theirs, dtype)
    found, found_metrics = run(mine, dtype)
    assert list(found) == list(SHAPES)
    for key in SHAPES:
        assert found[key].numpy().shape == SHAPES[key]
        assert found[key].dtype == dtype
        assert_near(found[key].numpy(), wanted[key].numpy(), TOLERANCE[dtype], key)
    assert found_metrics == wanted_metrics


MOMENTS = {"m": "m_t", "v": "v_t"}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", ["FedAdam other", "FedYogi other", "FedAdagrad other"])
def test_the_moments_are_flowers_own(name: str, dtype: str) -> None:
    theirs, mine = strategies(name)
    run(theirs, dtype)
    run(mine, dtype)
    held = mine.tensors()
    for moment in {key.partition(".")[0] for key in held}:
        for key in SHAPES:
            assert_near(held[f"{moment}.{key}"], getattr(theirs, MOMENTS[moment])[key], TOLERANCE[dtype], moment)
    assert {key.partition(".")[0] for key in held} == ({"v"} if "Adagrad" in name else {"m", "v"})


def test_a_preset_that_is_another_is_noticed() -> None:
    """The test above can fail: the paper's FedAdam is not Flower's."""
    wanted, _ = run(flower.FedAdam(eta=0.1), "float64")
    found, _ = run(ours.ServerStrategy(ff.servers.FedAdam(lr=0.1)), "float64")
    with pytest.raises(AssertionError):
        assert_near(found["c"].numpy(), wanted["c"].numpy(), 1e-2, "c")


@pytest.mark.parametrize(
    "server",
    [ff.servers.FedAMS(lr=0.1), ff.servers.FedAdam(lr=0.1, bias_correction=True), ff.servers.FedYogi(lr=0.2, tau=0.01)],
)
def test_any_server_is_a_strategy(server: Any) -> None:
    """As FastFed's own step on the packed vector has it."""
    start = numbers(0, "float64")
    packing = ff.Packing.of(start)
    x = packing.pack(start)
    state = ff.kernels.server_state(server.rule, x, **server.state_options())
    weights = torch.tensor(COUNTS, dtype=torch.float64) / sum(COUNTS)
    for round in range(1, 4):
        models = [packing.pack(numbers(100 * round + i, "float64")) for i in range(len(COUNTS))]
        deltas = torch.stack([0.4 * (model - x) for model in models])
        ff.kernels.aggregate_step(server.rule, x, deltas, weights, state, **server.step_options())
    found, _ = run(ours.ServerStrategy(server), "float64", rounds=3)
    for name, view in packing.views(x).items():
        assert_near(found[name].numpy(), view.numpy(), 1e-12, name)


def test_what_was_returned_does_not_change_in_the_next_round() -> None:
    strategy = ours.FedAdam()
    first, _ = run(strategy, "float32", rounds=1)
    before = {name: array.numpy().copy() for name, array in first.items()}
    run(strategy, "float32", rounds=2, start=1)
    assert all(np.array_equal(before[name], array.numpy()) for name, array in first.items())


def test_a_model_that_was_changed_between_rounds_is_the_one_that_steps() -> None:
    """As by a strategy of the user's own, around ours: a new record, or another array in the same one."""
    for in_place in (False, True):
        one, _ = run(strategy := ours.FedAvgM(server_momentum=0.9), "float64", rounds=1)
        moved = {name: np.asarray(array.numpy() + 1) for name, array in one.items()}
        sent = one if in_place else ArrayRecord()
        for name, array in moved.items():
            sent[name] = Array(array)
        messages = list(strategy.configure_train(2, sent, ConfigRecord(), Nodes()))
        found, _ = strategy.aggregate_train(2, [reply(message, record(moved), 1) for message in messages])
        momentum = strategy.tensors()
        for name, array in moved.items():  # nobody changed it: only what is left of the momentum moves it
            assert_near(found[name].numpy(), array + momentum[f"m.{name}"].numpy(), 1e-12, name)


def test_a_saved_strategy_goes_on() -> None:
    whole, _ = run(ours.FedYogi(), "float32", rounds=5)
    begun = ours.FedYogi()
    now, _ = run(begun, "float32", rounds=3)
    kept = {name: tensor.clone() for name, tensor in begun.tensors().items()}
    again = ours.FedYogi()
    assert again.tensors() == {}
    again.load(now, kept)
    for round in (4, 5):
        messages = list(again.configure_train(round, now, ConfigRecord(), Nodes()))
        moved = []
        for i, (message, count) in enumerate(zip(messages, COUNTS, strict=True)):
            aims = numbers(100 * round + i, "float32")
            model = {name: (0.6 * held.numpy() + 0.4 * aims[name]).astype("float32") for name, held in now.items()}
            moved.append(reply(message, record(model), count))
        now, _ = again.aggregate_train(round, moved)
    assert all(np.array_equal(whole[name].numpy(), now[name].numpy()) for name in SHAPES)
    with pytest.raises(ValueError, match="tensors: must be"):
        again.load(now, {"m.a": kept["m.c"]})


def test_models_of_two_precisions_and_counters() -> None:
    """Each array in its own precision, and integers as a mean that is rounded."""
    now = ArrayRecord({
        "half": Array(np.ones(3, np.float32)), "count": Array(np.array([4, 9])), "double": Array(np.ones(5)),
        "none": Array(np.zeros((0, 4), np.float32)),
    })  # fmt: skip
    strategy = ours.FedAdagrad(eta=0.5)
    messages = list(strategy.configure_train(1, now, ConfigRecord(), Nodes()))
    models = [
        {name: array.numpy() + (i + 1) for name, array in now.items()} for i in range(len(COUNTS))
    ]  # fmt: skip
    replies = [reply(m, record(held), count) for m, held, count in zip(messages, models, COUNTS, strict=True)]
    found, _ = strategy.aggregate_train(1, replies)
    delta = sum(count * (i + 1) for i, count in enumerate(COUNTS)) / sum(COUNTS)
    stepped = 1 + 0.5 * delta / (delta + 1e-3)
    assert [found[name].dtype for name in now] == ["float32", "int64", "float64", "float32"]
    np.testing.assert_allclose(found["half"].numpy(), stepped, rtol=1e-6)
    np.testing.assert_allclose(found["double"].numpy(), stepped, rtol=1e-13)
    assert found["count"].numpy().tolist() == np.rint(np.array([4, 9]) + delta).tolist()
    assert found["none"].numpy().shape == (0, 4)


# ---- what is refused ------------------------------------------------------------------------------------------------


def begun(dtype: str = "float32") -> tuple[Any, list[Any]]:
    strategy = ours.FedAdam()
    return strategy, list(strategy.configure_train(1, record(numbers(0, dtype)), ConfigRecord(), Nodes()))


def test_replies_that_do_not_fit_are_refused() -> None:
    good = numbers(1, "float32")
    lacking = {name: array for name, array in good.items() if name != "c"}
    for held, sentence in (
        (lacking, "lacks 'c'"),
        ({**good, "d": good["c"]}, "has 'd' besides"),
        ({**good, "c": good["c"][:7]}, r"'c' has shape \(7,\) in a reply and \(1001,\)"),
    ):
        strategy, messages = begun()
        with pytest.raises(AggregationError, match=sentence):
            strategy.aggregate_train(1, [reply(message, record(held), 3) for message in messages])


def test_weights_that_are_none_are_refused() -> None:
    strategy, messages = begun()
    with pytest.raises(AggregationError, match=r"'num-examples' must sum to a finite number > 0, got 0.0"):
        strategy.aggregate_train(1, [reply(message, record(numbers(1, "float32")), 0) for message in messages])


def test_arrays_of_other_types_are_refused() -> None:
    with pytest.raises(AggregationError, match="'a' is float16"):
        ours.FedAdam().configure_train(1, record({"a": np.ones(3, np.float16)}), ConfigRecord(), Nodes())


def test_nobody_replied() -> None:
    strategy, messages = begun()
    assert strategy.aggregate_train(1, []) == (None, None)
    with pytest.raises(AggregationError, match="configure_train has not been called"):
        ours.FedAdam().aggregate_train(1, [reply(messages[0], record(numbers(1, "float32")), 3)])


def test_a_server_that_is_none_is_refused() -> None:
    with pytest.raises(TypeError, match=r"server: must be one of fastfed.servers, got 'FedAdam'"):
        ours.ServerStrategy("FedAdam")


# ---- arrays ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 5), (4, 0, 2), (3, 2, 2)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "bool", "uint8"])
def test_arrays_go_back_and_forth(shape: tuple[int, ...], dtype: str) -> None:
    held = (np.random.default_rng(3).standard_normal(shape) * 100).astype(dtype)
    theirs, mine = Array(np.asarray(held)), arrays.write(np.asarray(held))
    assert (mine.dtype, mine.shape, mine.stype) == (theirs.dtype, theirs.shape, theirs.stype)
    for array in (theirs, mine):
        for found in (array.numpy(), arrays.read(array)):
            assert found.dtype == held.dtype
            assert found.shape == held.shape
            assert np.array_equal(found, held)


def test_reading_copies_nothing() -> None:
    array = Array(np.arange(1000, dtype=np.float32))
    found = arrays.read(array)
    assert not found.flags.writeable
    assert np.shares_memory(found, np.frombuffer(array.data, np.uint8))


@pytest.mark.parametrize("held", [np.asfortranarray(np.arange(12.0).reshape(3, 4)), np.arange(5, dtype=">f4")])
def test_other_layouts_are_read_too(held: np.ndarray) -> None:
    found = arrays.read(Array(held))
    assert found.flags.c_contiguous
    assert np.array_equal(found, held)


def test_arrays_of_others_are_refused() -> None:
    foreign = Array("float32", (3,), "pickle", b"x")
    with pytest.raises(TypeError, match=r"FastFed reads arrays that NumPy wrote \('numpy.ndarray'\), got 'pickle'"):
        arrays.read(foreign)


def test_messages_are_of_the_type_that_flower_sends() -> None:
    _, messages = begun()
    assert {message.metadata.message_type for message in messages} == {MessageType.TRAIN}
