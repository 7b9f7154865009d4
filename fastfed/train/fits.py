"""Whether a model fits the data: two examples through it before anything is trained, so that a layer that cannot take
what it is given is named when the simulation is made."""

from __future__ import annotations

from contextlib import ExitStack

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..data.store import Examples
from ..losses import Loss, find_loss


def check_fits(module: nn.Module, loss: Loss, examples: Examples) -> None:
    """Refuses a module with a layer of torch's that does not fit what the examples make of its inputs, or whose outputs
    the loss cannot compare with their targets. The module is left as it is; what goes wrong in a module of the user's
    own, or in a loss of theirs, is left to its own words."""
    if not len(examples):
        return
    inputs, targets = examples.batch(torch.tensor([0, min(1, len(examples) - 1)]), _precision(module))
    entered: list[tuple[nn.Module, tuple[object, ...]]] = []

    def enter(layer: nn.Module, given: tuple[object, ...]) -> None:
        entered.append((layer, given))

    def leave(*_: object) -> None:
        entered.pop()

    with ExitStack() as hooks, torch.no_grad(), torch.random.fork_rng(devices=[]):
        for layer in module.modules():
            hooks.enter_context(layer.register_forward_pre_hook(enter))
            hooks.enter_context(layer.register_forward_hook(leave))
        try:
            buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}  # batch norms write to theirs
            outputs = functional_call(module, buffers, (inputs.to(next(module.parameters()).device),))
        except Exception as error:
            if entered:
                _refuse(module, *entered[-1], error)
            return
    if isinstance(loss, str) and isinstance(outputs, Tensor):
        _check_labels(outputs, loss, examples)
        check_outputs(outputs.cpu(), targets, loss)


def _check_labels(outputs: Tensor, loss: str, examples: Examples) -> None:
    labels = examples.targets
    if loss == "cross_entropy" and isinstance(labels, Tensor) and labels.dtype is torch.int64 and outputs.dim() > 1:
        largest = int(labels.max())
        if largest >= outputs.shape[-1]:
            raise ValueError(f"model: has {outputs.shape[-1]} outputs, and the data has labels up to {largest}")


def check_outputs(outputs: Tensor, targets: Tensor, loss: Loss) -> None:
    """Refuses outputs (n, ...) that the loss cannot compare with targets (n, ...)."""
    try:
        find_loss(loss)(outputs, targets)
    except Exception as error:
        given, wanted = (f"({', '.join(['n', *map(str, of.shape[1:])])})" for of in (outputs, targets))
        raise ValueError(
            f"model: its outputs {given} cannot be compared with the targets {wanted} by {loss!r} ({error})"
        ) from error


def _precision(module: nn.Module) -> torch.dtype:
    return next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)


def _refuse(module: nn.Module, layer: nn.Module, given: tuple[object, ...], error: Exception) -> None:
    wanted = _expected(layer)
    if wanted is None or len(given) != 1 or not isinstance(given[0], Tensor):
        return
    name = next(name for name, one in module.named_modules() if one is layer)
    shape = ", ".join(["n", *map(str, given[0].shape[1:])])
    kind = "" if given[0].is_floating_point() == (not isinstance(layer, nn.Embedding)) else f" {given[0].dtype}"
    raise ValueError(
        f"model: does not fit the data: layer {name!r} ({type(layer).__name__}) is given{kind} ({shape}) and expects "
        f"{wanted}"
    ) from error


def _expected(layer: nn.Module) -> str | None:
    """What the layer takes, in words; None for layers that take many things."""
    if isinstance(layer, nn.Linear):
        return f"(n, ..., {layer.in_features})"
    if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        sizes = ("length",) if isinstance(layer, nn.Conv1d) else ("height", "width")
        sizes = ("depth", *sizes) if isinstance(layer, nn.Conv3d) else sizes
        least = ", ".join(map(str, layer.kernel_size))
        return f"(n, {layer.in_channels}, {', '.join(sizes)}), with its padding at least the kernel's {least}"
    if isinstance(layer, nn.Embedding):
        return f"whole numbers below {layer.num_embeddings}, such as tokens (n, length)"
    if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
        return f"(n, {layer.num_features}, ...), as many axes as the name says"
    if isinstance(layer, nn.GroupNorm):
        return f"(n, {layer.num_channels}, ...)"
    if isinstance(layer, nn.LayerNorm):
        return f"(n, ..., {', '.join(map(str, layer.normalized_shape))})"
    if isinstance(layer, nn.LSTM | nn.GRU | nn.RNN):
        return f"(n, length, {layer.input_size})" if layer.batch_first else f"(length, n, {layer.input_size})"
    return None
