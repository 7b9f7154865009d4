"""Clients that train in one launch, each a program of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...clients import Client
from ...data import Inputs, Pixels, Sparse
from ...data.resident import upload
from ...kernels import CLIENT_RULES
from ...kernels.layers import Dense
from .fused import FusedChunk

if TYPE_CHECKING:
    from .engine import Device


def _channels(inputs: Inputs) -> int:
    """Of images; 1 of everything else."""
    numbers = inputs.bytes if isinstance(inputs, Pixels) else inputs
    return numbers.shape[1] if isinstance(numbers, Tensor) and numbers.dim() == 4 else 1


class ClientChunk(FusedChunk):
    """One client per program, all steps in one launch: for models of a single dense layer that fit."""

    @staticmethod
    def why_not(engine: Device, optimizer: Client, batch: int) -> str | None:
        """Why a model, optimizer and batch cannot be trained so; None if they can."""
        from ...kernels.triton.engine import client

        network, inputs = engine.network, engine.examples.inputs
        layer = network.steps[0].layer
        reasons = {
            "the model has more than one layer": len(network.steps) != 1,
            "its layer is not dense": not isinstance(layer, Dense),
            "its loss is not cross entropy": network.loss != "cross_entropy",
            "its loss is no mean": engine.reduction != "mean",
            "its inputs are sparse": isinstance(inputs, Sparse),
            "its images are augmented, which is done where batches are gathered": engine.images is not None,
            "its images have channels, which the store keeps in another order than the weights": _channels(inputs) > 1,
            "SM3 raises maxima between steps": CLIENT_RULES[optimizer.rule].cover is not None,
            "it has more classes, or a larger batch, than one tile": isinstance(layer, Dense)
            and not client.fits(layer, batch),
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    def train(self) -> dict[str, Tensor]:
        from ...kernels.triton.engine import client

        layer = self.engine.network.steps[0].layer
        assert isinstance(layer, Dense)
        known, rows = self.batches.table(0)
        if known.stop < self.longest:
            rows = torch.cat([rows, *self._later_rows(known.stop)])
        rounds = client.Rounds(rows, self.lengths, upload(self.steps, self.device), self.coef)
        inputs = self.gathering.inputs.numbers
        meaning = self.engine.meaning
        scale, shift = (None, None) if meaning is None else (meaning.scale, meaning.shift)
        store = client.Examples(inputs, scale, shift, self.gathering.targets.numbers)
        self.squares = torch.empty(len(self.clients), dtype=torch.float64, device=self.device)
        results = client.Results(self.losses, self.squares)
        pixels = inputs.shape[2] * inputs.shape[3] if inputs.dim() == 4 else layer.inputs
        sink = self.sink(0)
        client.train(layer, self.batch, pixels, self.x, self.start, store, rounds, results, sink, self.rule)
        return self.scalars()

    def _later_rows(self, step: int) -> Iterator[Tensor]:
        """Of the steps from `step` on, as many at once as are known at once."""
        while step < self.longest:
            known, rows = self.batches.table(step)
            yield rows
            step = known.stop
