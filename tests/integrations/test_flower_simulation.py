"""A real Flower simulation, its own engine on Ray: our strategy, our client app."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from .support import host, local_training, module, simulated

host("flwr")
host("ray")

from flwr.app import ArrayRecord, Context  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402
from flwr.simulation import run_simulation  # noqa: E402

import fastfed as ff  # noqa: E402
from fastfed.integrations import flower as ours  # noqa: E402
from fastfed.integrations.flower.app import _clients_of  # noqa: E402

ROUNDS = 3


def trained_by_flower(supernodes: int, strategy: Any, training: Any = local_training) -> Any:
    """The result of Flower's run, and the ids of its nodes."""
    results: dict[str, Any] = {}
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        results["result"] = strategy.start(grid, ArrayRecord(module().state_dict()), num_rounds=ROUNDS)
        results["nodes"] = list(grid.get_node_ids())

    backend = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": 1}}
    run_simulation(app, ours.client_app(training), supernodes, backend_config=backend)
    return results["result"], results["nodes"]


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")  # of Flower, Ray and their packages
def test_a_simulation_of_flowers_own_engine() -> None:
    """Three nodes with three or four clients each are the ten clients of FastFed's own run."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    server = ff.servers.FedAdam(lr=0.03)
    found, nodes = trained_by_flower(3, ours.ServerStrategy(server, min_available_nodes=3))
    sim = simulated(server, ROUNDS)
    assert len(nodes) == 3
    assert max(nodes) >= 1 << 32  # Flower's ids are of 64 bits
    named = {name: torch.from_numpy(array.numpy().copy()) for name, array in found.arrays.items()}
    packing = ff.Packing.of(named)
    torch.testing.assert_close(packing.pack(named), sim.params, rtol=1e-4, atol=1e-5)
    assert list(found.train_metrics_clientapp) == list(range(1, ROUNDS + 1))
    losses = [found.train_metrics_clientapp[round]["train_loss"] for round in range(1, ROUNDS + 1)]
    assert losses == pytest.approx(sim.history.column("train_loss"), rel=1e-3)
    assert found.evaluate_metrics_clientapp[ROUNDS]["eval_accuracy"] > 0.3


def test_which_clients_a_node_has() -> None:
    def config(place: int, nodes: int) -> Any:
        return Context(1, 1, {"partition-id": place, "num-partitions": nodes}, None, {})

    found = [_clients_of(config(place, 3), 10).tolist() for place in range(3)]
    assert found == [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]
    assert _clients_of(config(9, 10), 10).tolist() == [9]
    with pytest.raises(ValueError, match="node 10 of 12 has none of the 10 clients"):
        _clients_of(config(10, 12), 10)
    with pytest.raises(ValueError, match="lacks 'num-partitions'"):
        _clients_of(Context(1, 1, {"partition-id": 0}, None, {}), 10)


def test_what_makes_no_training_is_refused() -> None:
    with pytest.raises(TypeError, match="make: must be a function"):
        ours.client_app(local_training())
