"""The grid of clients that FastFed trains: rounds of a simulation, whatever the nodes are called."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from .support import host, local_training, module, simulated

host("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict  # noqa: E402
from flwr.serverapp import strategy as flower  # noqa: E402

import fastfed as ff  # noqa: E402
from fastfed.integrations import flower as ours  # noqa: E402

CLIENTS = 10
WIDE = [2**64 - 1, 2**63, 2**32, 2**32 + 1, 7, 0, 2**63 - 1, 11400714819323198485, 2**48 + 7, 7 + 2**32]


def record() -> ArrayRecord:
    return ArrayRecord(module().state_dict())


def start(strategy: Any, grid: Any, rounds: int = 3, **given: Any) -> Any:
    return strategy.start(grid, record(), num_rounds=rounds, **given)


def packed(arrays: Any) -> torch.Tensor:
    named = {name: torch.from_numpy(array.numpy().copy()) for name, array in arrays.items()}
    return ff.Packing.of(named).pack(named)


def everybody(kind: Any, **given: Any) -> Any:
    return kind(min_train_nodes=CLIENTS, min_evaluate_nodes=CLIENTS, min_available_nodes=CLIENTS, **given)


@pytest.mark.parametrize("replies", ["each", "mean"])
@pytest.mark.parametrize("node_ids", [None, WIDE])
def test_a_run_is_that_of_a_simulation(replies: Any, node_ids: list[int] | None) -> None:
    """Flower's loop and our strategy, grid and engine, beside `ff.Simulation`; Flower samples nodes in any order."""
    grid = ours.NativeGrid(local_training(), node_ids=node_ids, replies=replies)
    server = ff.servers.FedYogi(lr=0.05)
    found = start(everybody(ours.ServerStrategy, server=server), grid)
    wanted = simulated(server, 3).params
    torch.testing.assert_close(packed(found.arrays), wanted, rtol=1e-5, atol=1e-6)
    assert list(found.train_metrics_clientapp) == [1, 2, 3]


def test_the_cohort_is_trained_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    training = local_training()
    works, run = [], training.executor.run
    monkeypatch.setattr(training.executor, "run", lambda work: works.append(work) or run(work))
    start(everybody(flower.FedAvg), ours.NativeGrid(training), rounds=2)
    assert training.executor.name == "native"
    assert [len(work) for work in works] == [CLIENTS, CLIENTS]
    assert [work.round for work in works] == [0, 1]


def test_flowers_own_strategies_take_the_grid() -> None:
    """FedAvg's mean and ours, and FedProx, whose mu goes to the clients' optimizer."""
    plain = start(everybody(flower.FedAvg), ours.NativeGrid(local_training())).arrays
    torch.testing.assert_close(packed(plain), simulated(ff.servers.FedAvg(), 3).params, rtol=1e-5, atol=1e-6)
    pulled = start(everybody(flower.FedProx, proximal_mu=0.7), ours.NativeGrid(local_training())).arrays
    wanted = simulated(ff.servers.FedAvg(), 3, client=ff.clients.SGD(lr=0.1, prox=0.7)).params
    torch.testing.assert_close(packed(pulled), wanted, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(packed(plain), packed(pulled), rtol=1e-3)


def test_the_configuration_reaches_the_clients() -> None:
    told = ConfigRecord({"lr": 0.02, "epochs": 2, "batch-size": 7})
    found = start(everybody(flower.FedAvg), ours.NativeGrid(local_training()), train_config=told).arrays
    wanted = simulated(ff.servers.FedAvg(), 3, client=ff.clients.SGD(lr=0.02), epochs=2, batch_size=7).params
    torch.testing.assert_close(packed(found), wanted, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="config: 'momentum' is nothing that FastFed's local training knows"):
        start(everybody(flower.FedAvg), ours.NativeGrid(local_training()), train_config=ConfigRecord({"momentum": 0.9}))


def test_evaluation_on_the_nodes() -> None:
    training = local_training()
    found = start(everybody(flower.FedAvg), ours.NativeGrid(training), rounds=1)
    values = training.evaluate(packed(found.arrays), torch.arange(CLIENTS))
    total = sum(each["examples"] for each in values)
    measured = found.evaluate_metrics_clientapp[1]
    for name in ("loss", "accuracy"):
        wanted = sum(each[name] * each["examples"] for each in values) / total
        assert measured[f"eval_{name}"] == pytest.approx(wanted, rel=1e-9)


def test_some_nodes_and_different_models() -> None:
    """Each message its own model: every node trains from the one that it was sent."""
    training = local_training()
    grid = ours.NativeGrid(training, node_ids=WIDE)
    models = [module(seed) for seed in (1, 2)]
    sent = [
        Message(RecordDict({"arrays": ArrayRecord(model.state_dict())}), node, MessageType.TRAIN)
        for model, node in zip(models, (WIDE[8], WIDE[0]), strict=True)
    ]
    replies = list(grid.send_and_receive(sent))
    assert [reply.metadata.src_node_id for reply in replies] == [WIDE[8], WIDE[0]]
    for model, place, reply in zip(models, (8, 0), replies, strict=True):
        begin = training.packing.pack(model)
        alone = training.train(begin, torch.tensor([place]))
        assert torch.equal(packed(reply.content["arrays"]), begin + alone.delta)
        assert reply.content["metrics"]["num-examples"] == int(training.fed.sizes[place])
        assert reply.content["metrics"]["train_loss"] == float(alone.scalars["mean_loss"][0])


def test_messages_may_be_pushed_and_pulled() -> None:
    grid = ours.NativeGrid(local_training())
    content = RecordDict({"arrays": record()})
    sent = [grid.create_message(content, MessageType.TRAIN, node, "1") for node in (3, 9)]
    ids = list(grid.push_messages(sent))
    assert [reply.metadata.src_node_id for reply in grid.pull_messages(ids[::-1])] == [9, 3]
    assert list(grid.pull_messages(ids)) == []


def test_a_client_that_is_not_finite_replies_with_an_error() -> None:
    grid = ours.NativeGrid(local_training(client=ff.clients.SGD(lr=1e38)))
    content = RecordDict({"arrays": record()})
    (reply,) = grid.send_and_receive([Message(content, 4, MessageType.TRAIN)])
    assert reply.has_error()
    assert reply.error.reason == "node 4: the trained model is not finite"


def test_what_is_not_trained_stays_as_it_came() -> None:
    model = module()
    model[1].bias.requires_grad_(False)
    training = ff.integrations.LocalTraining(model, local_training().fed, client=ff.clients.SGD(lr=0.1))
    content = RecordDict({"arrays": record()})
    (reply,) = ours.NativeGrid(training).send_and_receive([Message(content, 4, MessageType.TRAIN)])
    found = reply.content["arrays"]
    assert list(found) == list(record())
    assert found["1.bias"].data == record()["1.bias"].data
    assert found["1.weight"].data != record()["1.weight"].data


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"node_ids": [1, 2]}, "node_ids: must name 10 nodes"),
        (
            {"node_ids": [2**64, *range(9)]},
            r"node_ids: must be whole numbers in \[0, 2\*\*64\), got 18446744073709551616",
        ),
        ({"node_ids": [-1, *range(9)]}, "node_ids: must be whole numbers"),
        ({"node_ids": [3] * 10}, "node_ids: each must be there once"),
        ({"replies": "all"}, "replies: must be 'each' or 'mean'"),
    ],
)
def test_bad_arguments_are_named(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        ours.NativeGrid(local_training(), **given)


@pytest.mark.parametrize(
    ("content", "node", "kind", "sentence"),
    [
        ({}, 1, MessageType.TRAIN, "must carry one record of arrays"),
        ({"arrays": {}}, 1, MessageType.TRAIN, "arrays: lack the parameter '1.weight'"),
        ({"arrays": None}, 99, MessageType.TRAIN, "there is no node 99"),
        ({"arrays": None}, 1, MessageType.QUERY, "nodes can train and evaluate, got 'query'"),
    ],
)
def test_messages_that_do_not_fit_are_refused(content: dict[str, Any], node: int, kind: str, sentence: str) -> None:
    held = {key: record() if value is None else ArrayRecord(value) for key, value in content.items()}
    with pytest.raises(ValueError, match=sentence):
        ours.NativeGrid(local_training()).send_and_receive([Message(RecordDict(held), node, kind)])
