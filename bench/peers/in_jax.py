"""JAX alone in `bench peers`: jax.vmap over `chunk` clients at once, their steps a scan, all under one jit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .jax_models import from_torch, loss_of, pictures, to_torch
from .serving import Task, serve


class InJax:
    """Chunks of clients, whose mean change is added up; the last chunk may be smaller."""

    def __init__(self, task: Task) -> None:
        self.task, self.start = task, from_torch(task.start)
        self.inputs, self.targets = jnp.asarray(pictures(task.inputs)), jnp.asarray(task.targets)
        gradient, lr = jax.grad(loss_of(task.told)), task.told["lr"]

        def trained(start: Any, batches: Any, inputs: Any, targets: Any) -> Any:
            def step(parameters: Any, rows: Any) -> tuple[Any, None]:
                gradients = gradient(parameters, inputs[rows], targets[rows])
                return [p - lr * g for p, g in zip(parameters, gradients, strict=True)], None

            return jax.lax.scan(step, start, batches)[0]

        @partial(jax.jit, donate_argnums=1)
        def chunk(start: Any, total: Any, batches: Any, inputs: Any, targets: Any) -> Any:
            ends = jax.vmap(trained, in_axes=(None, 0, None, None))(start, batches, inputs, targets)
            return [t + (end - s).sum(0) for t, end, s in zip(total, ends, start, strict=True)]

        self.chunk = chunk
        self.step = jax.jit(lambda x, total: [p + t / task.clients for p, t in zip(x, total, strict=True)])

    def begin(self, steps: int | None) -> None:
        batches = self.task.batches[:, : self.task.steps(steps)].astype(np.int32)
        size = self.task.chunk
        self.chunks = [jnp.asarray(batches[first : first + size]) for first in range(0, len(batches), size)]
        self.x = self.start

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            total = [jnp.zeros_like(p) for p in self.x]
            for batches in self.chunks:
                total = self.chunk(self.x, total, batches, self.inputs, self.targets)
            self.x = self.step(self.x, total)
        jax.block_until_ready(self.x)

    def model(self) -> Sequence[np.ndarray]:
        return to_torch(self.x)


if __name__ == "__main__":
    serve(InJax, {"jax": jax.__version__})
