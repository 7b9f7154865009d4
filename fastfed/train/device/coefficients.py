"""Client rules that the device engine applies where gradients are made: who fits, and the numbers of every step.

Such a rule looks at one element at a time (or, SM3, at rows and columns), so what it needs to know of each client is
known before the round: the coefficients of all steps are one table, made on the host and uploaded once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...clients import Client
from ...kernels import CLIENT_RULES, covers
from ...kernels.layers import Convolution, Network, Place
from ...kernels.passes import ACTIVE, COEFFICIENTS, REFRESH, ROOT_SCALE, STEP
from ...kernels.table import ClientNumbers, client_numbers
from ...kernels.torch_rules import rules as torch_rules
from ...packing import Packing
from ..batches import steps_taken
from ..work import RoundWork


def why_not_fused(optimizer: Client, work: RoundWork, network: Network, packing: Packing) -> str | None:
    """Why gradients must be kept in memory for this optimizer and work; None if they need not be."""
    rule = CLIENT_RULES[optimizer.rule]
    reasons = {
        "the rule finds its step size by norms of gradients": rule.step_size is not None,
        "SM3-I looks at the whole gradient before it moves": rule.cover == "I",
        "gradients are clipped by their norm": optimizer.clip is not None,
        "the update floor goes by a norm": getattr(optimizer, "floor", 0.0) > 0,
        "FATHOM compares gradients": work.measure_cosine,
        "a contrast adds to the gradient of the features": work.contrast is not None,
        "a parameter is used by several layers": any(step.shared for step in network.steps),
        "some parameter is used by no layer": not _covers_all(network, packing),
        "SM3's rows and columns of a convolution are not those of its product": rule.cover is not None
        and not _cover_fits(network, packing),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def places_of(network: Network) -> set[int]:
    """The offsets of all parameters that layers use."""
    return {place.offset for step in network.steps for place in _places(step.layer)}


def _places(layer: Any) -> list[Place]:
    own = [field for field in layer if isinstance(field, Place)]
    return own + (_places(layer.driven) if hasattr(layer, "driven") else [])


def _covers_all(network: Network, packing: Packing) -> bool:
    return places_of(network) == {slot.offset for slot in packing.slots if slot.numel}


def _cover_fits(network: Network, packing: Packing) -> bool:
    """Whether SM3 divides every convolution's weight into rows and columns as its product does."""
    columns = {matrix.offset: matrix.cols for matrix in covers.decode(packing.cover()).matrices}
    layers = [step.layer for step in network.steps if isinstance(step.layer, Convolution)]
    return all(columns[layer.weight.offset] == layer.outputs for layer in layers)


def epochs_of(work: RoundWork, clients: Tensor, steps: int) -> Tensor:
    """The epochs (counted from 0) in which batches begin: (steps, clients) int64."""
    counts = work.counts[clients].clamp(min=1)
    step = torch.arange(steps)[:, None]
    if work.seen is not None:
        return step * work.batch_size // counts
    return step // ((counts + work.batch_size - 1) // work.batch_size)


def batch_lengths(work: RoundWork, clients: Tensor, steps: int) -> Tensor:
    """How many examples the batches have, 0 for clients that have finished: (steps, clients) int64."""
    counts, taken = work.counts[clients].clamp(min=1), steps_taken(work)[clients]
    step = torch.arange(steps)[:, None]
    if work.seen is not None:
        left = work.seen[clients] - step * work.batch_size
    else:
        per_epoch = (counts + work.batch_size - 1) // work.batch_size
        left = counts - step % per_epoch * work.batch_size
    return torch.where(step < taken, left.clamp(max=work.batch_size), 0)


def batch_begins(work: RoundWork, clients: Tensor, steps: int) -> Tensor:
    """Where batches begin in their clients' streams of examples: (steps, clients) int64."""
    step = torch.arange(steps)[:, None]
    if work.seen is not None:
        return (step * work.batch_size).expand(-1, len(clients))
    counts = work.counts[clients].clamp(min=1)
    per_epoch = (counts + work.batch_size - 1) // work.batch_size
    return step // per_epoch * counts + step % per_epoch * work.batch_size


def learning_rates(work: RoundWork, optimizer: Client, clients: Tensor, steps: int) -> Tensor:
    """Under the warm-up: (steps, clients) float64."""
    own: float = optimizer.lr  # type: ignore[attr-defined]
    rates = torch.full((len(clients),), own, dtype=torch.float64) if work.lr is None else work.lr[clients]
    warm = optimizer.warmup or 1
    factors = ((torch.arange(steps, dtype=torch.float64) + optimizer.from_first) / warm).clamp(max=1.0)
    return rates * factors[:, None] if optimizer.warmup else rates.expand(steps, -1)


def coefficients(work: RoundWork, optimizer: Client, clients: Tensor, steps: int) -> Tensor:
    """What the rule needs to know of each client at each step: (steps, clients, COEFFICIENTS) float32, on the host.

    The same numbers as ``passes.client_step`` finds step by step.
    """
    rule, n = CLIENT_RULES[optimizer.rule], numbers_of(optimizer, work)
    table = torch.ones((steps, len(clients), COEFFICIENTS), dtype=torch.float64)
    step = torch.arange(steps)[:, None]
    table[..., ACTIVE] = (step < steps_taken(work)[clients]).double()
    table[..., STEP] = learning_rates(work, optimizer, clients, steps)
    if rule.has_second_moment:
        by_epoch = getattr(optimizer, "delay_unit", "step") == "epoch"
        clock = (epochs_of(work, clients, steps) if by_epoch else step.expand(-1, len(clients))) + 1
        refresh = torch_rules.refreshes_at(clock, n.delay)
        table[..., REFRESH] = refresh.double()
        if rule.corrects_bias:
            refreshes = refresh.cumsum(0).double()
            table[..., STEP] /= torch_rules.bias(n.beta1, (step + 1).double() + n.bias_from)
            table[..., ROOT_SCALE] = 1.0 / torch.sqrt(torch_rules.bias(n.beta2, refreshes + n.bias_from))
    return table.float()


def numbers_of(optimizer: Client, work: RoundWork) -> ClientNumbers:
    """The numbers of an optimizer that all clients share."""
    options = work.options_of(optimizer)
    numbers: ClientNumbers = client_numbers(optimizer.rule, False, tuple(options), *options.values())
    return numbers
