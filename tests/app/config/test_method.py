"""What a method says of its arguments is what becomes of them."""

from __future__ import annotations

from typing import Any

import pytest

from fastfed.app.config import kinds
from fastfed.app.config import method as methods
from fastfed.app.config.options import Argument, arguments_of
from fastfed.fleet import Fleet
from fastfed.plan.availability import Cyclic
from fastfed.plan.shares import LogNormal


def fields_of(method: str) -> dict[str, str]:
    """The dotted key of the field that an argument becomes, of those that become one."""
    other_names = {source: key for key, source in methods.decided(method).items()}
    keys = {**methods.homes(method), **other_names}
    return {name: key for name, key in keys.items() if not key.endswith(".rule") and "method_options" not in key}


BECOMING = [(method, name, key) for method in kinds.METHODS for name, key in fields_of(method).items()]


def made(method: str, **given: Any) -> dict[str, Any]:
    """The settings of a method. `beta1` and `bias_correction` are for Adam, on both sides; random epochs have both an
    `epochs` and a `randomness`."""
    adam = {"server": "adam", "client": "adam"} if method == "fedada2" else {}
    must = {name: 1 if name == "concurrency" else 0.1 for name in methods.needed(method)}
    if method == "client_centric":
        must["server_lr"] = 0.1
    if method in ("fedbuff", "fedasync"):
        must |= {"epochs": 2, "randomness": 3}
    settings: dict[str, Any] = kinds.METHODS[method](**{**must, **adam, **given})
    return settings


def field(settings: dict[str, Any], dotted: str) -> Any:
    setting, _, name = dotted.partition(".")
    return settings[name] if setting == "run" else getattr(settings[setting], name)


def other(argument: Argument) -> Any:
    """A value that no method has by default."""
    special = {
        "fleet": Fleet(network_seconds=0.5),
        "head": "last",
        "epochs": 4,  # client-centric ones times their randomness are a whole number
        "randomness": 5,
        "epochs_per": "round",
        "shares": LogNormal(0.5),
        "availability": Cyclic(4, 2),
        "counting": "floor",
        "cosine": "before",
        "form": "paper",
        "bias_correction": "server_round",
    }
    if argument.name in special:
        return special[argument.name]
    if argument.type is bool:
        return not argument.default
    return 7 if argument.type is int or "whole" in argument.words else 0.375


@pytest.mark.parametrize(("method", "name", "key"), BECOMING, ids=lambda word: word)
def test_an_argument_becomes_the_field_that_its_key_names(method: str, name: str, key: str) -> None:
    value = other(arguments_of(kinds.METHODS[method])[name])
    assert field(made(method), key) != value
    assert field(made(method, **{name: value}), key) == value


@pytest.mark.parametrize("method", kinds.METHODS)
def test_an_argument_with_the_name_of_a_field_says_so(method: str) -> None:
    """Else it would have a place of its own beside the field's, and a file could give both."""
    own = methods.own_options(method)
    fields = {name for setting in made(method).values() for name in getattr(setting, "__dataclass_fields__", ())}
    assert not fields.intersection(own)
