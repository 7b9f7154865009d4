"""A frozen model's features in place of the inputs: computed once, so that what is trained on them is a small model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from .dataset import Federated, Federation
from .store import Examples

Told = Callable[[int, int], object]  # is told how many of how many examples are done


def features(
    fed: Federation, model: nn.Module, head: str | None = None, *, batch_size: int = 64, told: Told | None = None
) -> Federated:
    """The same clients with what goes into the layer `head` of `model` (its name; None: the last nn.Linear) in place of
    their inputs: float32 (examples, r). Targets and who has what stay; the model is in evaluation mode and not changed.
    Images that are augmented are seen as in an evaluation.
    """
    from ..train.split import features_of, head_of, watched  # here: the train room reads data itself

    fed = held(fed)
    name = head_of(model, head)
    layer, was_training = model.get_submodule(name), model.training
    total, done = len(fed.examples) + len(fed.test or ()), 0

    def of(examples: Examples) -> Examples:
        nonlocal done
        found: list[Tensor] = []
        for rows in torch.arange(len(examples)).split(batch_size):
            with watched(layer) as calls:
                model(examples.batch(rows)[0])
            found.append(features_of(calls, name, len(rows)).float())
            done += len(rows)
            if told is not None:
                told(done, total)
        return Examples(torch.cat(found).contiguous(), examples.targets)

    model.eval()
    try:
        with torch.no_grad():
            test = None if fed.test is None else of(fed.test)
            return replace(fed, name=f"{fed.name}_features", examples=of(fed.examples), test=test, recipe=None)
    finally:
        model.train(was_training)


def held(fed: Federation) -> Federated:
    """The federation with all its examples made, where clients make them when they are visited."""
    if isinstance(fed, Federated):
        return fed
    visit = fed.visit(torch.arange(len(fed)))
    return Federated(fed.name, visit.examples, visit.rows, visit.offsets, test=fed.test)
