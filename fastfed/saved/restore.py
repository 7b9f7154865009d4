"""What a checkpoint holds of a simulation besides its tensors, and how it becomes a simulation again."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..devices import kind_of
from .recipe import NoRecipe, from_json, to_json

_GIVEN_AGAIN = "must be given again"
_FIELDS = "fields"  # of settings of the user's own, a dataclass: by these another one is told from it
# How it runs (threads change no bit, the others agree to rounding), and what is measured besides.
_CHANGEABLE = ("executor", "threads", "device", "metrics")
# Settings that runs of before do not have: where they say what was done then, a run is the same one.
_LATER = {"aggregation": None, "batch_norm": "average", "divide_by_epochs": False}
_LATER_ARGUMENTS: dict[str, dict[str, Any]] = {  # likewise, of what settings are made by
    "timing.ClientCentric": {"shares": None, "availability": None, "replacement": False},
    "timing.EventDriven": {"epochs": None, "randomness": None},
    **{f"servers.{name}": {"eps": "authors"} for name in ("FedAdagrad", "FedAdam", "FedYogi", "FedAMS")},
    "exchange.scaffold.ControlVariates": {"store": None},
    "exchange.moon.PreviousModels": {"store": None},
}
CONSTANT = "constant."  # what begins the names of tensors of the module that are not trained
_ANYWHERE = ("eager", "batched")  # the executors that know every device


def constants(model: nn.Module) -> dict[str, Tensor]:
    """What of a module is not trained, and so not in the packed vector."""
    frozen = {name: p.detach() for name, p in model.named_parameters() if not p.requires_grad}
    return {**frozen, **dict(model.named_buffers())}


def run_id(settings: Mapping[str, Any], x: Tensor) -> str:
    """Tells a run from another: by its settings, but for those that say how it runs, and the model it starts from."""
    left_out = [*_CHANGEABLE, *(name for name, then in _LATER.items() if settings[name] == then)]
    kept = {name: value for name, value in settings.items() if name not in left_out}
    named = {name: _as_before(setting_json(name, value)) for name, value in kept.items()}
    digest = hashlib.sha256(json.dumps(named, sort_keys=True).encode())
    digest.update(x.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def _as_before(value: Any) -> Any:
    """A setting's JSON without the arguments that it has got since, where they say what was done before."""
    if not isinstance(value, dict) or value.get("recipe") not in _LATER_ARGUMENTS:
        return value
    later = _LATER_ARGUMENTS[value["recipe"]]
    held = value["arguments"].items()
    return {**value, "arguments": {name: given for name, given in held if name not in later or later[name] != given}}


def describe(model: nn.Module) -> str:
    """The module's layers, and the shape of everything that they hold."""
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    kinds = (
        f"{name} {tensor.dtype} {tuple(tensor.shape)}{' frozen' * (name in frozen)}"
        for name, tensor in model.state_dict().items()
    )
    return f"{model}\nwith {', '.join(kinds)}"


def restore_model(model: nn.Module, manifest: Mapping[str, Any], held: Mapping[str, Tensor]) -> nn.Module:
    """A copy of the checkpoint's module with what was not trained (`held`) as it was; another module is refused."""
    if describe(model) != manifest["module"]:
        raise ValueError(
            f"model: is not the one of this checkpoint (give it as model=), which is\n{manifest['module']}"
        )
    model = copy.deepcopy(model)
    for name, tensor in constants(model).items():
        tensor.copy_(held[name])
    return model


def beginning_with(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with the prefix, by the rest of their names."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def setting_json(name: str, value: Any) -> Any:
    """A setting as JSON, or a note that it must be given again."""
    try:
        return to_json(name, value)
    except NoRecipe:
        return {_GIVEN_AGAIN: type(value).__name__, **_own_fields(value)}


def _own_fields(value: Any) -> dict[str, Any]:
    """What is known of settings of the user's own, if JSON holds all of it."""
    if not is_dataclass(value) or isinstance(value, type) or type(value).__module__.startswith("fastfed."):
        return {}
    try:
        return {_FIELDS: {field.name: to_json(field.name, getattr(value, field.name)) for field in fields(value)}}
    except NoRecipe:
        return {}


def moved(saved: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The given settings; with executor "auto", where the run goes on on another kind of device and its own executor,
    not given again, belongs to the kind that it leaves."""
    at_home = kind_of(given.get("device", saved["device"])) == kind_of(saved["device"])
    stays = at_home or "executor" in given or saved["executor"] in _ANYWHERE
    return dict(given) if stays else {**given, "executor": "auto"}


def restore_settings(saved: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a checkpoint: those that JSON holds, and the others as given."""
    settings = {}
    for name, value in saved.items():
        lost = isinstance(value, dict) and _GIVEN_AGAIN in value
        if lost and name in given and _FIELDS in value and setting_json(name, given[name]) != value:
            was = ", ".join(f"{field}={held!r}" for field, held in value[_FIELDS].items())
            raise ValueError(
                f"{name}: is not that of this checkpoint, {value[_GIVEN_AGAIN]}({was}), got {given[name]!r}"
            )
        if name in given and (lost or name in _CHANGEABLE):
            settings[name] = given[name]
        elif lost:
            raise ValueError(f"{name}: {_GIVEN_AGAIN}, as JSON could not hold it: {value[_GIVEN_AGAIN]}")
        else:
            settings[name] = from_json(value)
    for name in given:
        if name not in saved or settings[name] is not given[name]:
            raise ValueError(f"{name}: is a setting of the checkpoint; only {', '.join(_CHANGEABLE)} may be changed")
    return settings


def restored(name: str, recipe: Any, given: Any) -> Any:
    """The model or the data of a checkpoint: as given, or by its recipe."""
    if given is not None:
        return given
    if recipe is None:
        raise ValueError(f"{name}: {_GIVEN_AGAIN}: it was not made by a function of FastFed alone")
    with torch.random.fork_rng(devices=[]):  # a fresh model draws its weights, which the checkpoint replaces
        return from_json(recipe)
