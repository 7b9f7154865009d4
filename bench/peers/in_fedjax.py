"""fedjax in `bench peers`: its `for_each_client` with the jit backend, its optimizers, batches ready in JAX."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import fedjax
import jax
import jax.numpy as jnp
import numpy as np

from .jax_models import from_torch, loss_of, pictures, to_torch
from .serving import Task, serve


class InFedjax:
    """Federated averaging as `fedjax.algorithms.fed_avg` has it: init, steps and difference of a client, all under jit;
    a running weighted sum; an SGD step of the server along the mean."""

    def __init__(self, task: Task) -> None:
        fedjax.set_for_each_client_backend("jit")
        self.task, self.start = task, from_torch(task.start)
        self.size = int(task.told["batch"])
        gradient = jax.grad(loss_of(task.told))
        optimizer = fedjax.optimizers.sgd(learning_rate=task.told["lr"])
        self.server = fedjax.optimizers.sgd(learning_rate=1.0)

        def init(start: Any, client: Any) -> Any:
            return {"params": start, "state": optimizer.init(start)}

        def step(state: Any, batch: Any) -> Any:
            gradients = gradient(state["params"], batch["x"], batch["y"])
            after, params = optimizer.apply(gradients, state["state"], state["params"])
            return {"params": params, "state": after}

        def final(start: Any, state: Any) -> Any:
            return jax.tree_util.tree_map(lambda a, b: a - b, start, state["params"])

        self.train = fedjax.for_each_client(init, step, final)

    def begin(self, steps: int | None) -> None:
        self.clients = [(client, self._batches(client, steps), client) for client in range(self.task.clients)]
        self.x, self.state = self.start, self.server.init(self.start)

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            total, weight = fedjax.tree_util.tree_zeros_like(self.x), 0.0
            for _client, change in self.train(self.x, self.clients):
                total = fedjax.tree_util.tree_add(total, fedjax.tree_util.tree_weight(change, self.examples))
                weight += self.examples
            mean = fedjax.tree_util.tree_inverse_weight(total, weight)
            self.state, self.x = self.server.apply(mean, self.state, self.x)
        jax.block_until_ready(self.x)

    def model(self) -> Sequence[np.ndarray]:
        return to_torch(self.x)

    def _batches(self, client: int, steps: int | None) -> list[dict[str, Any]]:
        inputs, targets = self.task.visit(client, steps)
        self.examples = float(len(inputs))  # of every client: the workloads' are all alike
        x, y = jnp.asarray(pictures(inputs)), jnp.asarray(targets)
        return [{"x": x[at : at + self.size], "y": y[at : at + self.size]} for at in range(0, len(inputs), self.size)]


if __name__ == "__main__":
    serve(InFedjax, {"fedjax": version("fedjax"), "jax": jax.__version__})
