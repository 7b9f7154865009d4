"""fedjax on a whole task: `for_each_client` with the jit backend; short batches are padded to one shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import fedjax
import jax
import jax.numpy as jnp
import numpy as np

from .jax_models import dense_layers, from_torch
from .whole import Visit, WholeTask, reach


class FedjaxLearner:
    """Federated averaging as `fedjax.algorithms.fed_avg` has it, with a mask over what pads a batch."""

    def __init__(self, task: WholeTask) -> None:
        fedjax.set_for_each_client_backend("jit")
        self.size, self.x = int(task.told["batch"]), from_torch(task.start)
        self.inputs, self.targets = task.array("inputs"), task.array("targets")
        test = jnp.asarray(task.array("test_inputs")), jnp.asarray(task.array("test_targets"))
        model = dense_layers(jax.nn.relu)
        optimizer = fedjax.optimizers.sgd(learning_rate=task.told["lr"])

        def loss(parameters: Any, batch: Any) -> Any:
            said = jax.nn.log_softmax(model(parameters, batch["x"]))
            chosen = jnp.take_along_axis(said, batch["y"][:, None], 1)[:, 0]
            return -(chosen * batch["mask"]).sum() / batch["mask"].sum()

        def step(state: Any, batch: Any) -> Any:
            gradients = jax.grad(loss)(state["params"], batch)
            after, params = optimizer.apply(gradients, state["state"], state["params"])
            return {"params": params, "state": after}

        self.train = fedjax.for_each_client(
            lambda start, client: {"params": start, "state": optimizer.init(start)},
            step,
            lambda start, state: [after - before for after, before in zip(state["params"], start, strict=True)],
        )
        self.right = jax.jit(lambda parameters: (model(parameters, test[0]).argmax(1) == test[1]).mean())

    def learn(self, visits: Sequence[Visit]) -> None:
        clients = [(place, [self._batch(rows) for rows in visit.batches], 0) for place, visit in enumerate(visits)]
        total, weight = fedjax.tree_util.tree_zeros_like(self.x), 0.0
        for place, change in self.train(self.x, clients):
            own = float(visits[place].examples)
            total = fedjax.tree_util.tree_add(total, fedjax.tree_util.tree_weight(change, own))
            weight += own
        self.x = fedjax.tree_util.tree_add(self.x, fedjax.tree_util.tree_inverse_weight(total, weight))

    def accuracy(self) -> float:
        return float(self.right(self.x))

    def _batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        padded = np.concatenate([rows, np.repeat(rows[:1], self.size - len(rows))])
        mask = (np.arange(self.size) < len(rows)).astype(np.float32)
        return {"x": self.inputs[padded], "y": self.targets[padded].astype(np.int32), "mask": mask}


if __name__ == "__main__":
    reach(FedjaxLearner)
