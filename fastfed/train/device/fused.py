"""Clients whose rule is applied where gradients are made."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...data.resident import upload
from ...kernels import CLIENT_RULES, client_state
from ...kernels.client_call import ClientCall
from ...kernels.layers import Dense
from .chunk import Chunk
from .coefficients import coefficients, learning_rates, numbers_of

if TYPE_CHECKING:
    from ...kernels.triton.engine.rule import Rule, Sink


class FusedChunk(Chunk):
    """The kernels that make gradients apply the rule: no gradient reaches memory.

    A dense first layer is updated a step later, where its weights are read anyway: two passes over them a step instead
    of three. Models are not copied from the start model: until a parameter's first update it is read there.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        optimizer, work = self.optimizer, self.work
        entry = CLIENT_RULES[optimizer.rule]
        self.coef = self.arena.put("coefficients", coefficients(work, optimizer, self.clients, self.longest))
        made = optimizer.state_options()
        if entry.cover is not None:
            made["packing"] = self.engine.packing
        if self.preconditioner is not None and entry.has_second_moment:
            made["v0"] = self.preconditioner
        self.state = self._states(client_state(optimizer.rule, self.x[:1], **made))
        self.cover = _Cover(self) if entry.cover is not None else None
        self.rule = self._rule(entry.formula)
        self.nobody = self.arena.room("nobody", (len(self.clients),), torch.int32).zero_()

    def _models(self) -> Tensor:
        """Room for the clients' models; what lies between their tensors, which nothing else writes, as at the start."""
        x = self.arena.room("x", (len(self.clients), self.start.shape[-1]))
        slots = self.engine.packing.slots
        for slot, end in zip(slots, [*(slot.offset for slot in slots[1:]), x.shape[1]], strict=True):
            first = slot.offset + slot.numel
            if first < end:
                x[:, first:end] = self.start[..., first:end]
        return x

    def _states(self, of_one: dict[str, Tensor]) -> dict[str, Tensor]:
        """The state of all clients at the start of the round, from that of one."""
        clients = len(self.clients)
        alike = {name: t.expand(clients, *t.shape[1:]) for name, t in of_one.items() if name != "cover"}
        return of_one | {name: self.arena.put(f"state {name}", tensor) for name, tensor in alike.items()}

    def read(self, step: int) -> Tensor:
        """The models that a step reads, where the first one (0) is that from which clients start: (chunk, d)."""
        return self.start.expand(len(self.clients), -1) if step <= 0 else self.x

    @staticmethod
    def _rule(formula: str) -> Rule:
        from ...kernels.triton.compiled import rules
        from ...kernels.triton.engine.rule import Rule

        return Rule(getattr(rules, f"direction_{formula}"))

    @cached_property
    def inputs(self) -> list[Tensor]:
        """The buffers of inputs that steps take in turns: two, if a step also reads those of the step before."""
        first = self.layers.values[0]
        return [first] if self.lazy is None else [first, self.arena.room("other inputs", first.shape, first.dtype)]

    @cached_property
    def lazy(self) -> Dense | None:
        """The first layer, if its update can wait for the next step: SM3's would raise maxima that belong to another
        step."""
        from ...kernels.triton.engine import products

        first = self.engine.network.steps[0]
        if not isinstance(first.layer, Dense) or first.inputs != (0,) or self.cover is not None:
            return None
        return first.layer if products.one_tile(first.layer, self.batch) else None

    def train(self) -> dict[str, Tensor]:
        if self._knows_all_rows():
            self.arena.run(self._kind(), self._train)
        else:
            self._train()
        return self.scalars()

    def _knows_all_rows(self) -> bool:
        """Whether the rows of all steps could be put where the next chunk's will be."""
        if self.stays:
            self.known, rows = self.batches.table(0)
            if self.known.stop == self.longest:
                self.rows = self.arena.put("rows", rows)
                return True
            self.rows = rows
        return False

    def _kind(self) -> Hashable:
        """All that its launches are made of besides what is in the arena."""
        numbers = numbers_of(self.optimizer, self.work)._replace(lr=None, bias_from=0.0)  # which coefficients hold
        vectors = (self.start.dim(), self.correction is None, tuple(self.state))
        keys = (self._keys, None if self._look is None else self._look.key)
        return (self.optimizer.rule, numbers, len(self.clients), self.batch, self.longest, vectors, keys)

    def sink(self, step: int) -> Sink:
        """Where the gradients of a step go."""
        from ...kernels.triton.engine.rule import Sink

        n, state, d = numbers_of(self.optimizer, self.work), self.state, self.x.shape[1]
        anchor = self.start if self.optimizer.prox > 0 else None
        return Sink(
            size=d,
            x=self.x,
            m=state.get("m"),
            v=state.get("v"),
            nu=state.get("nu"),
            coef=self.coef[step],
            anchor=anchor,
            anchor_stride=d if anchor is not None and anchor.dim() == 2 else 0,
            correction=self.correction,
            correction_stride=0 if self.correction is None else d,
            weight_decay=n.weight_decay,
            prox=n.prox,
            beta1=n.beta1,
            gain1=n.gain1,
            beta2=n.beta2,
            gain2=n.gain2,
            eps=n.eps,
            root_eps=n.root_eps,
            **({} if self.cover is None else self.cover.parts()),
        )

    def step(self, step: int) -> None:
        layers, lengths, draws, sink = self.layers, self.lengths[step], self.draws(step), self.sink(step)
        layers.values[0] = self.inputs[step % len(self.inputs)]
        self.load(step, layers.values[0])
        skip = int(self.lazy is not None)
        if self.lazy is not None:
            self._first_layer(self.lazy, step, sink)
        layers.forward(self.read(step), lengths, draws, skip=skip)
        layers.loss(self.targets, self.counts, lengths, self.tally(step))
        layers.backward(self.read(step), lengths, draws, sink, self.rule, until=skip)
        if self.cover is not None:
            self.cover.close(self.coef[step])

    def _first_layer(self, layer: Dense, step: int, sink: Sink) -> None:
        """The first layer's update by the step before, and its forward pass of this one."""
        from ...kernels.triton.engine import products

        layers, output = self.layers, self.engine.network.steps[0].output
        before = self.inputs[(step + 1) % 2]
        last_lengths, last_sink = (self.lengths[step - 1], self.sink(step - 1)) if step else (self.nobody, sink)
        args = (self.read(step - 1), layers.values[0], before, layers.grads[output], layers.values[output])
        products.update_forward(layer, self.batch, *args, self.lengths[step], last_lengths, last_sink, self.rule)

    def finish(self) -> None:
        from ...kernels.triton.engine import products

        last = self.longest - 1
        if self.lazy is not None:
            d_made = self.layers.grads[self.engine.network.steps[0].output]
            args = (self.read(last), self.inputs[last % 2], d_made, self.lengths[last], self.sink(last), self.rule)
            products.update(self.lazy, self.batch, *args)

    def scalars(self) -> dict[str, Tensor]:
        rates = learning_rates(self.work, self.optimizer, self.clients, self.longest)
        taken = upload(rates.gather(0, (self.steps - 1)[None])[0], self.device)
        return {**super().scalars(), "step_size": taken}


class _Cover:
    """SM3's second moments at work: the maxima that a step raises, and which become mu at its end."""

    def __init__(self, chunk: FusedChunk) -> None:
        from ...kernels.triton import cover_step

        rule = CLIENT_RULES[chunk.optimizer.rule]
        self.call = ClientCall(rule, numbers_of(chunk.optimizer, chunk.work), chunk.x, chunk.x, chunk.state)
        mu = chunk.state["mu"]
        maxima = chunk.arena.room("maxima", mu.shape, torch.int32).zero_()
        self.cover = cover_step.Cover(cover_step.tables_of(chunk.state["cover"], mu.device), maxima)

    def close(self, coef: Tensor) -> None:
        self.cover.settle(self.call, coef, resets=True)

    def parts(self) -> dict[str, Any]:
        """Of a sink."""
        tables = self.cover.tables
        return {
            "mu": self.call.state["mu"],
            "maxima": self.cover.maxima,
            "axes": tables.axes,
            "mu_size": tables.mu_size,
        }
