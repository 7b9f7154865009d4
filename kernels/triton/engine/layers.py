"""Driver 1: a network layer by layer, every layer a few launches over all clients of a chunk.

`Layers` owns the buffers: activations, their gradients, and what layers remember between the two passes. The number of
launches follows from the network alone, whatever the number of clients.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from ...layers import (
    NONE,
    Add,
    Convolution,
    Curve,
    Dense,
    Dropout,
    Embedding,
    Network,
    Norm,
    Recurrence,
    Reorder,
    Select,
    Step,
    Windows,
)
from . import convolution, elementwise, losses, norms, pooling, products, sequences
from .rule import Rule, Sink


@dataclass(frozen=True)
class Draws:
    """The random numbers of a step's dropouts: of clients `ids` (clients,) int64 at a `clock` (2,) int64, local step
    (counted from 0) and round, both on the device; a key per dropout. None of it (`keys` empty): nothing is dropped."""

    ids: Tensor
    clock: Tensor
    keys: tuple[tuple[int, int], ...]

    def masks(self, layer: Dropout) -> elementwise.Masks:
        return elementwise.Masks(self.ids, self.clock, *self.keys[layer.number], layer.p)


class Room(Protocol):
    """Where buffers come from: a tensor by name, with nothing in it yet; asked again, at the same place."""

    def __call__(self, name: str, shape: tuple[int, ...], dtype: torch.dtype = ...) -> Tensor: ...


@dataclass
class Layers:
    """The buffers of `clients` clients with batches of at most `batch` examples, and the passes over them."""

    network: Network
    clients: int
    batch: int
    room: Room
    reduction: str = "mean"  # of a batch's losses
    values: dict[int, Tensor] = field(default_factory=dict)
    grads: dict[int, Tensor] = field(default_factory=dict)
    kept: dict[int, dict[str, Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        used = {0, *(step.output for step in self.network.steps)}
        for number in used:
            dtype = torch.int32 if number == 0 and self.network.tokens else torch.float32
            numbers = self.network.buffers[number].numbers * self.batch
            self.values[number] = self._empty(f"value {number}", numbers, dtype)
        for step in self.network.steps:
            numbers = self.network.buffers[step.output].numbers * self.batch
            self.grads[step.output] = self._empty(f"gradient {step.output}", numbers)
        rows = self.network.shape.rows * self.batch
        self.row_losses = self._empty("losses of rows", rows)
        self.losses = self.room("losses of batches", (self.clients,), torch.float64).zero_()
        for number, step in enumerate(self.network.steps):
            self.kept[number] = self._memory_of(number, step)

    def _empty(self, name: str, numbers: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return self.room(name, (self.clients, numbers), dtype)

    def _memory_of(self, number: int, step: Step) -> dict[str, Tensor]:
        """What a layer keeps of its forward pass for the way back."""
        layer = step.layer

        def empty(name: str, numbers: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return self._empty(f"{name} {number}", numbers, dtype)

        if isinstance(layer, Windows):
            outputs = len(layer.y.begin) * len(layer.x.begin)
            kept = {"table": pooling.tables(layer, self.losses.device)}
            if layer.largest:
                kept["choice"] = empty("choice", self.batch * outputs * layer.channels, pooling.choice_dtype(layer))
            return kept
        if isinstance(layer, Convolution) and layer.pool:
            numbers = self.batch * layer.stored[0] * layer.stored[1] * layer.outputs
            return {"choice": empty("choice", numbers, torch.uint8)}
        if isinstance(layer, Norm):
            return {"stats": empty("stats", 2 * layer.units(self.batch))}
        if isinstance(layer, Recurrence):
            steps = self.batch * layer.length
            return {
                "gates": empty("gates", steps * layer.gate_stride),
                "d_gates": empty("d_gates", steps * layer.gate_stride),
                "cells": empty("cells", steps * layer.hidden),
                "previous": empty("previous", steps * layer.out_stride),
                "carry": empty("carry", self.batch * layer.hidden),
            }
        return {}

    # ---- forward ----------------------------------------------------------------------------------------------------

    def forward(self, x: Tensor, lengths: Tensor, draws: Draws, until: int | None = None, skip: int = 0) -> None:
        """All values of models `x` (clients, d), or with `until` those of the first steps; without the first `skip`."""
        for number, step in enumerate(self.network.steps[:until]):
            if number >= skip:
                self._forward(number, step, x, lengths, draws)

    def _forward(self, number: int, step: Step, x: Tensor, lengths: Tensor, draws: Draws) -> None:
        layer, kept, batch = step.layer, self.kept[number], self.batch
        given, made = self.values[step.inputs[0]], self.values[step.output]
        if isinstance(layer, Dense):
            products.forward(layer, batch, x, given, made, lengths)
        elif isinstance(layer, Convolution):
            convolution.forward(layer, batch, x, given, made, kept.get("choice"), lengths)
        elif isinstance(layer, Norm):
            norms.forward(layer, batch, x, given, made, kept["stats"], lengths)
        elif isinstance(layer, Embedding):
            sequences.embed(layer, batch, x, given, made, lengths)
        elif isinstance(layer, Recurrence):
            products.forward(layer.driven, batch, x, given, kept["gates"], lengths)
            sequences.recur(layer, batch, x, kept["gates"], kept["cells"], made, kept["previous"], lengths)
        elif isinstance(layer, Windows):
            pooling.forward(layer, batch, given, made, kept.get("choice"), kept["table"], lengths)
        elif isinstance(layer, Curve):
            elementwise.curve(layer.curve, layer.shape, batch, given, made, lengths)
        elif isinstance(layer, Add):
            elementwise.add(layer.curve, layer.shape, batch, given, self.values[step.inputs[1]], made, lengths)
        elif isinstance(layer, Dropout):
            self._drop(layer, given, made, lengths, draws)
        elif isinstance(layer, Reorder):
            back = not layer.to_vector
            elementwise.reorder(layer.shape, layer.flat_stride, layer.image, batch, given, made, lengths, back)
        else:
            elementwise.select(layer.shape, layer.out_stride, layer.row, batch, given, made, lengths, False)

    def _drop(self, layer: Dropout, given: Tensor, made: Tensor, lengths: Tensor, draws: Draws) -> None:
        if draws.keys:
            elementwise.dropout(layer.shape, layer.image, self.batch, draws.masks(layer), given, made, lengths)
        else:
            elementwise.curve(NONE, layer.shape, self.batch, given, made, lengths)

    # ---- loss -------------------------------------------------------------------------------------------------------

    def loss(
        self, targets: Tensor, counts: Tensor | None, lengths: Tensor, tally: losses.Tally | None = None
    ) -> Tensor:
        """The losses (clients,) float64 of the batches, and the gradient of the outputs. Labels are (clients,
        batch * rows) int32 of which `counts` (clients,) count, other targets (clients, batch * rows, channels)
        float32."""
        shape, out = self.network.shape, self.values[self.network.output]
        rows_of = out.view(self.clients, self.batch * shape.rows, shape.stride)
        d_out = self.grads[self.network.output]
        if self.network.loss == "cross_entropy":
            assert counts is not None
            args = (targets, counts, self.row_losses, lengths, self.losses, tally)
            losses.cross_entropy(self.batch, shape.rows, shape.channels, rows_of, d_out, *args)
        else:
            others = (targets, self.row_losses, lengths, self.losses, tally, self.reduction)
            squares = self.network.loss == "mse"
            losses.elementwise(squares, self.batch, shape.rows, shape.channels, rows_of, d_out, *others)
        return self.losses

    # ---- back -------------------------------------------------------------------------------------------------------

    def backward(
        self,
        x: Tensor,
        lengths: Tensor,
        draws: Draws,
        sink: Sink,
        rule: Rule,
        until: int = 0,
        network: Network | None = None,
    ) -> None:
        """From the outputs' gradient to the parameters', which go to the sink; steps before `until` are left out.

        `network`: one that differs in how gradients flow (``program.lower.with_contrast``).
        """
        steps = (network or self.network).steps
        for number in reversed(range(until, len(steps))):
            self._backward(number, steps[number], x, lengths, draws, sink, rule)

    def _backward(
        self, number: int, step: Step, x: Tensor, lengths: Tensor, draws: Draws, sink: Sink, rule: Rule
    ) -> None:
        layer, kept, batch, flow = step.layer, self.kept[number], self.batch, step.flows[0]
        given, d_made = self.values[step.inputs[0]], self.grads[step.output]
        d_given = self.grads[step.inputs[0]] if flow.wanted else d_made
        how: dict[str, Any] = {"gate": flow.gate, "add": flow.add}
        if isinstance(layer, Dense):
            self._dense_backward(layer, step, x, given, d_given, d_made, lengths, sink, rule)
        elif isinstance(layer, Convolution):
            if flow.wanted:
                convolution.input_gradient(layer, batch, x, given, d_given, d_made, kept.get("choice"), lengths, **how)
            convolution.update(layer, batch, x, given, d_made, kept.get("choice"), lengths, sink, rule, step.shared)
        elif isinstance(layer, Norm):
            if flow.wanted:
                norms.input_gradient(layer, batch, x, given, d_given, d_made, kept["stats"], lengths, **how)
            if layer.weight is not None or layer.bias is not None:
                norms.update(layer, batch, x, given, d_made, kept["stats"], lengths, sink, rule, step.shared)
        elif isinstance(layer, Embedding):
            sequences.update_table(layer, batch, x, given, d_made, lengths, sink, rule, step.shared)
        elif isinstance(layer, Recurrence):
            self._recurrence_backward(layer, step, kept, x, given, d_given, d_made, lengths, sink, rule)
        elif isinstance(layer, Add):
            for value, each in zip(step.inputs, step.flows, strict=True):
                if each.wanted:
                    self._pass_on(layer, self.values[value], self.grads[value], d_made, lengths, each.gate, each.add)
        elif not flow.wanted:
            return
        elif isinstance(layer, Windows):
            args = (given, d_given, d_made, kept.get("choice"), kept["table"], lengths)
            pooling.backward(layer, batch, *args, **how)
        elif isinstance(layer, Curve):
            elementwise.curve_gradient(layer.curve, layer.shape, batch, given, d_given, d_made, lengths, **how)
        elif isinstance(layer, Dropout):
            masks = draws.masks(layer)
            elementwise.dropout(layer.shape, layer.image, batch, masks, d_made, d_given, lengths, made=given, **how)
        elif isinstance(layer, Reorder):
            there = (layer.shape, layer.flat_stride, layer.image, batch)
            elementwise.reorder(*there, d_made, d_given, lengths, layer.to_vector, made=given, **how)
        else:
            assert isinstance(layer, Select)
            elementwise.select(
                layer.shape, layer.out_stride, layer.row, batch, d_made, d_given, lengths, True, made=given, **how
            )

    def _pass_on(
        self, layer: Add, value: Tensor, d_value: Tensor, d_made: Tensor, lengths: Tensor, gate: int, add: bool
    ) -> None:
        elementwise.curve_gradient(NONE, layer.shape, self.batch, value, d_value, d_made, lengths, gate, add)

    def _dense_backward(
        self, layer: Dense, step: Step, x: Tensor, given: Tensor, d_given: Tensor, d_made: Tensor, lengths: Tensor,
        sink: Sink, rule: Rule,
    ) -> None:  # fmt: skip
        flow, batch = step.flows[0], self.batch
        if flow.wanted and products.one_tile(layer, batch):
            args = (x, given, d_given, d_made, lengths, sink, rule, flow.gate, flow.add, step.shared)
            return products.backward(layer, batch, *args)
        if flow.wanted:
            products.input_gradient(layer, batch, x, given, d_given, d_made, lengths, flow.gate, flow.add)
        products.update(layer, batch, x, given, d_made, lengths, sink, rule, step.shared)

    def _recurrence_backward(
        self, layer: Recurrence, step: Step, kept: dict[str, Tensor], x: Tensor, given: Tensor, d_given: Tensor,
        d_made: Tensor, lengths: Tensor, sink: Sink, rule: Rule,
    ) -> None:  # fmt: skip
        flow, batch, d_gates = step.flows[0], self.batch, kept["d_gates"]
        sequences.recur_back(layer, batch, x, kept["gates"], d_gates, kept["cells"], kept["carry"], d_made, lengths)
        if flow.wanted:
            products.input_gradient(layer.driven, batch, x, given, d_given, d_gates, lengths, flow.gate, flow.add)
        products.update(layer.driven, batch, x, given, d_gates, lengths, sink, rule, step.shared)
        products.update(layer.hidden_side, batch, x, kept["previous"], d_gates, lengths, sink, rule, step.shared)
