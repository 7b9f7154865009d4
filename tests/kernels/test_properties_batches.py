"""A batch is its clients one by one, and those that have finished are untouched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from fastfed import kernels

from .support import (
    SLOW,
    Snapshot,
    assert_same_bits,
    makes_nan,
    normal,
    packed_normal,
    packing_for,
    same_bits,
    snapshot,
)

BATCHED: dict[str, dict[str, Any]] = {
    "sgd": {},
    "momentum": {"momentum": 0.7},
    "adagrad": {"eps": 1e-3, "floor": 3.0},
    "adam": {"eps": 1e-3, "delay": 2, "floor": 3.0},
    "sm3": {"eps": 1e-3, "floor": 3.0},
    "sm3_1": {"eps": 1e-3, "delay": 2},
    "sm3_adam": {"eps": 1e-3, "floor": 3.0},
    "sm3_1_adam": {"eps": 1e-3},
    "delta_sgd": {"gamma": 1.5},
    "sps": {"lr_max": 0.5},
}
CLIENTS, STEPS = 5, (2 if SLOW else 4)


class Batch:
    """Inputs of a batch of clients, every client with its own numbers, learning rate, loss and moment of finishing."""

    def __init__(self, rule: str, d: int = 1031) -> None:
        self.rule, self.packing = rule, packing_for(rule)
        self.d = d if self.packing is None else self.packing.size
        self.made = {} if self.packing is None else {"packing": self.packing}
        self.options = {**BATCHED[rule], "clip": 20.0, "prox": 0.2, "weight_decay": 0.05}
        self.anchor = self.vectors(99)
        self.lr = torch.tensor([0.1, 0.2, 0.05, 0.3, 0.01], dtype=torch.float64)
        self.loss = torch.tensor([3.0, 900.0, 50.0, 0.5, 100.0], dtype=torch.float64)
        self.scale = torch.tensor([1.0, 3.0, 1e-3, 0.5, 1.0])[:, None]

    def vectors(self, seed: int, *lead: int) -> Tensor:
        return normal(seed, *lead, self.d) if self.packing is None else packed_normal(self.packing, seed, *lead)

    def grad(self, step: int) -> Tensor:
        return self.vectors(10 + step, CLIENTS) * self.scale

    def correction(self, step: int) -> Tensor:
        return self.vectors(30 + step, CLIENTS) * 0.1 * self.scale

    def finished(self, step: int) -> Tensor:
        """Client 1 is done after step 1, client 4 before it began."""
        return torch.tensor([False, step >= 1, False, False, True])

    def per_client(self, pick: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        given = {} if self.rule == "sps" else {"lr": pick(self.lr)}
        return {**given, "loss": pick(self.loss)} if self.rule == "sps" else given

    def run(self, backend: str) -> Iterator[Snapshot]:
        x = self.vectors(0, CLIENTS)
        state = kernels.client_state(self.rule, x, **self.made)
        yield snapshot(x, state)
        for step in range(STEPS):
            kernels.client_step(
                self.rule,
                x,
                self.grad(step),
                state,
                anchor=self.anchor,
                correction=self.correction(step),
                finished=self.finished(step),
                backend=backend,
                **self.per_client(lambda t: t),
                **self.options,
            )
            yield snapshot(x, state)


@pytest.mark.parametrize("rule", BATCHED)
def test_a_batch_is_its_clients_one_by_one(backend: str, rule: str) -> None:
    batch = Batch(rule)
    *_, together = batch.run(backend)
    for client in range(CLIENTS):
        x = batch.vectors(0, CLIENTS)[client].clone()
        state = kernels.client_state(rule, x, **batch.made)
        for step in range(STEPS):
            if batch.finished(step)[client]:
                continue
            kernels.client_step(
                rule,
                x,
                batch.grad(step)[client].clone(),
                state,
                anchor=batch.anchor,
                correction=batch.correction(step)[client].clone(),
                backend=backend,
                **batch.per_client(lambda t, client=client: t[client].clone()),
                **batch.options,
            )
        row = {name: t if name == "cover" else t[client] for name, t in together.items()}
        assert_same_bits(row, snapshot(x, state), f"client {client}:")


@pytest.mark.parametrize("rule", BATCHED)
def test_finished_clients_are_untouched(backend: str, rule: str) -> None:
    batch = Batch(rule)
    before: Snapshot | None = None
    for step, after in enumerate(batch.run(backend), start=-1):
        if before is not None:
            finished = batch.finished(step)
            for name in after.keys() - {"cover"}:
                assert same_bits(after[name][finished], before[name][finished]), f"{name} of a finished client"
            assert not same_bits(after["x"][~finished], before["x"][~finished])
        before = after


def test_one_client_may_have_finished(backend: str) -> None:
    x = normal(0, 77)
    state = kernels.client_state("adam", x)
    before = snapshot(x, state)
    kernels.client_step("adam", x, normal(1, 77), state, lr=0.1, finished=torch.tensor(True), backend=backend)
    assert_same_bits(snapshot(x, state), before)


@makes_nan
def test_a_finished_client_may_hold_rubbish(backend: str) -> None:
    """Nothing is read into its neighbours, and it keeps its own bits, NaNs included."""
    finished = torch.tensor([False, True, False])
    x, grad = normal(0, 3, 331), normal(1, 3, 331)
    x[1], grad[1] = torch.nan, torch.inf
    for rule, options in (("adam", {"lr": 0.1, "clip": 1.0, "floor": 0.1}), ("delta_sgd", {"clip": 1.0})):
        y = x.clone()
        state = kernels.client_state(rule, y)
        for _ in range(2):
            kernels.client_step(rule, y, grad, state, finished=finished, backend=backend, **options)
        assert same_bits(y[1], x[1])
        assert y[~finished].isfinite().all()
        for name, tensor in state.items():
            assert tensor.isfinite().all(), f"{rule}: {name}"
