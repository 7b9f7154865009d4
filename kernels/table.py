"""The table of rules: their names, their options with defaults and domains, and the state they keep.

Everything the front door knows of a rule stands here, once. A rule names the formula it runs (a function of
``rules.py`` and its twin in ``rules.h``) and what it keeps; adding a rule is adding a row.
"""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, TypeVar

_Rule = TypeVar("_Rule")

REQUIRED: Any = object()  # the default of an option that has none


@dataclass(frozen=True)
class Domain:
    """A set of admissible values and the words that an error uses for it."""

    words: str
    admits: Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def _choice(*values: str) -> Domain:
    return Domain("one of " + ", ".join(repr(v) for v in values), lambda v: isinstance(v, str) and v in values)


POSITIVE = Domain("a finite number > 0", lambda v: _is_number(v) and v > 0)
NON_NEGATIVE = Domain("a finite number >= 0", lambda v: _is_number(v) and v >= 0)
FINITE = Domain("a finite number", _is_number)
DECAY = Domain("a number in [0, 1)", lambda v: _is_number(v) and 0 <= v < 1)
COUNT = Domain(
    "a whole number >= 1", lambda v: isinstance(v, numbers.Integral) and not isinstance(v, bool) and int(v) >= 1
)
NON_NEGATIVE_OR_INFINITE = Domain("a number >= 0, or infinity", lambda v: NON_NEGATIVE.admits(v) or v == math.inf)
FLAG = Domain("True or False", lambda v: isinstance(v, bool))
POSITIVE_OR_NONE = Domain("a finite number > 0, or None", lambda v: v is None or POSITIVE.admits(v))
FOLLOWED = _choice("momentum", "delta")
CONVENTION = _choice("authors", "torch")


@dataclass(frozen=True)
class Option:
    """One hyperparameter: its default (`REQUIRED` if it has none) and what it may be."""

    default: Any
    domain: Domain


class ServerScalars(NamedTuple):
    """What a server formula reads beside its vectors; in ``csrc/rules.h`` it is ServerNumbers."""

    lr: float
    beta1: float
    gain1: float
    beta2: float
    gain2: float
    tau: float
    root_scale: float


class ServerNumbers(NamedTuple):
    """The numbers of one server step, as every backend takes them; `of_delta` picks a compiled variant."""

    lr: float
    beta1: float
    gain1: float
    beta2: float
    gain2: float
    tau: float
    root_scale: float
    of_delta: bool
    bias_correction: bool
    tau_joins_corrected: bool  # bias corrections: tau is added to the corrected root, not to the root as it is

    @property
    def scalars(self) -> ServerScalars:
        return ServerScalars(*self[: len(ServerScalars._fields)])


class DirectionScalars(NamedTuple):
    """What directions read, and second moments, of the numbers that all clients share."""

    beta1: float
    gain1: float
    beta2: float
    gain2: float
    eps: float
    root_eps: float


class ClientNumbers(NamedTuple):
    """The numbers of one client step that all clients share; None where the rule or the call does without."""

    lr: float | None  # None: given per client, or found by the rule
    beta1: float
    gain1: float
    beta2: float
    gain2: float
    eps: float
    root_eps: float
    delay: int
    floor: float
    weight_decay: float
    prox: float
    clip: float | None
    gamma: float
    delta: float
    theta: float
    grow_first: bool
    lr_eps: float
    c: float
    f_star: float
    lr_max: float
    bias_from: float  # the steps and refreshes that bias corrections count before the first; infinite: none is made

    @property
    def scalars(self) -> DirectionScalars:
        return DirectionScalars(self.beta1, self.gain1, self.beta2, self.gain2, self.eps, self.root_eps)


@dataclass(frozen=True)
class ServerRule:
    """A server rule: `formula` is its ``server_*`` function, `moments` the vectors it keeps."""

    name: str
    formula: str
    moments: tuple[str, ...]
    options: Mapping[str, Option]
    second_moment_sums: bool = False  # AdaGrad: the second moment is a sum, not a mean
    authors_correct_first: bool = False  # FedAMS: its authors add tau to the corrected root, as torch does


@dataclass(frozen=True)
class ClientRule:
    """A client rule: `formula` is its ``direction_*`` function.

    `second_moment` is None, "sum" (AdaGrad) or "mean", whose start at zero is corrected for, as that of m is.
    `cover` is None, "II" or "I": where the second moment lives (per coordinate, or per cover set in SM3's two forms).
    `step_size` is None, "delta_sgd" or "sps": who chooses the step size, if not the caller.
    """

    name: str
    formula: str
    vectors: tuple[str, ...]
    scalars: tuple[str, ...]
    options: Mapping[str, Option]
    second_moment: str | None = None
    cover: str | None = None
    step_size: str | None = None

    @property
    def corrects_bias(self) -> bool:
        return self.second_moment == "mean"

    @cached_property
    def kept(self) -> tuple[str, ...]:
        """Names that its state always holds."""
        return (*self.vectors, *self.scalars)

    @cached_property
    def optional(self) -> frozenset[str]:
        """Names that its state may hold besides vectors and scalars; "cover" and "sets" are layouts, never written."""
        if self.cover is not None:
            kept = {"II": {"nu"}, "I": set()}[self.cover] | ({"m"} if self.second_moment == "sum" else set())
            return frozenset({"mu", "cover", "sets"} | kept)
        return frozenset({"grad_prev"} if self.step_size == "delta_sgd" else ())

    @property
    def has_second_moment(self) -> bool:
        return self.second_moment is not None


_LR = {"lr": Option(REQUIRED, NON_NEGATIVE)}
_AVERAGING = {"lr": Option(1.0, NON_NEGATIVE)}
_TAU = {"tau": Option(1e-3, POSITIVE)}


def _adaptive(beta1: float, followed: str) -> dict[str, Option]:
    return {
        **_LR,
        "beta1": Option(beta1, DECAY),
        **_TAU,
        "second_moment_of": Option(followed, FOLLOWED),
        "eps": Option("authors", CONVENTION),
    }


def _adam_like(followed: str) -> dict[str, Option]:
    return {**_adaptive(0.9, followed), "beta2": Option(0.99, DECAY), "bias_correction": Option(False, FLAG)}


SERVER_RULES: dict[str, ServerRule] = {
    rule.name: rule
    for rule in (
        ServerRule("sgd", "sgd", (), _AVERAGING),
        ServerRule("momentum", "momentum", ("m",), {**_AVERAGING, "momentum": Option(0.9, DECAY)}),
        ServerRule("adagrad", "adam", ("m", "v"), _adaptive(0.0, "momentum"), second_moment_sums=True),
        ServerRule("adam", "adam", ("m", "v"), _adam_like("momentum")),
        ServerRule("yogi", "yogi", ("m", "v"), _adam_like("momentum")),
        ServerRule("ams", "ams", ("m", "v", "vmax"), _adam_like("delta"), authors_correct_first=True),
    )
}

_CORRECTIONS = {
    "weight_decay": Option(0.0, NON_NEGATIVE),
    "prox": Option(0.0, NON_NEGATIVE),
    "clip": Option(None, POSITIVE_OR_NONE),
}
_SECOND_MOMENT = {
    **_LR,
    **_CORRECTIONS,
    "eps": Option(1e-8, POSITIVE),
    "delay": Option(1, COUNT),
    "floor": Option(0.0, NON_NEGATIVE),
}
_ADAM = {
    **_SECOND_MOMENT,
    "beta1": Option(0.9, DECAY),
    "beta2": Option(0.999, DECAY),
    "bias_from": Option(0.0, NON_NEGATIVE_OR_INFINITE),
}
_SM3 = {
    **_SECOND_MOMENT,
    "eps": Option(1e-8, NON_NEGATIVE),
    "root_eps": Option(0.0, NON_NEGATIVE),
    "beta1": Option(0.0, DECAY),
}
_DELTA_SGD = {
    **_CORRECTIONS,
    "lr": Option(0.2, POSITIVE),
    "gamma": Option(2.0, POSITIVE),
    "delta": Option(0.1, NON_NEGATIVE),
    "theta": Option(1.0, POSITIVE),
    "grow_first": Option(False, FLAG),
    "lr_eps": Option(0.0, NON_NEGATIVE),
}
_SPS = {
    **_CORRECTIONS,
    "c": Option(0.5, POSITIVE),
    "f_star": Option(0.0, FINITE),
    "lr_max": Option(None, POSITIVE_OR_NONE),
    "eps": Option(1e-8, NON_NEGATIVE),
}
COUNTERS = ("step", "refreshes")

CLIENT_RULES: dict[str, ClientRule] = {
    rule.name: rule
    for rule in (
        ClientRule("sgd", "sgd", (), (), {**_LR, **_CORRECTIONS}),
        ClientRule("momentum", "momentum", ("m",), (), {**_LR, **_CORRECTIONS, "momentum": Option(0.9, DECAY)}),
        ClientRule("adagrad", "adagrad", ("v",), COUNTERS, _SECOND_MOMENT, "sum"),
        ClientRule("adam", "adam", ("m", "v"), COUNTERS, _ADAM, "mean"),
        ClientRule("sm3", "adagrad", (), COUNTERS, _SM3, "sum", cover="II"),
        ClientRule("sm3_1", "adagrad", (), COUNTERS, _SM3, "sum", cover="I"),
        ClientRule("sm3_adam", "adam", ("m",), COUNTERS, _ADAM, "mean", cover="II"),
        ClientRule("sm3_1_adam", "adam", ("m",), COUNTERS, _ADAM, "mean", cover="I"),
        ClientRule("delta_sgd", "sgd", (), ("step", "lr", "theta", "move"), _DELTA_SGD, step_size="delta_sgd"),
        ClientRule("sps", "sgd", (), ("lr",), _SPS, step_size="sps"),
    )
}

_Row = TypeVar("_Row", ServerRule, ClientRule)


def _by_formula(rules: Mapping[str, _Row]) -> dict[str, _Row]:
    """Every formula by its name, with the first rule that has it."""
    first: dict[str, _Row] = {}
    for rule in rules.values():
        first.setdefault(rule.formula, rule)
    return first


# csrc/rules.h and csrc/kernels/client_step.h have the same lists of names; extension.py compares them.
SERVER_FORMULAS = _by_formula(SERVER_RULES)
DIRECTIONS = _by_formula(CLIENT_RULES)
NO_COVER, GIVEN_STEP_SIZE = "none", "given"  # what a rule's None is called there
COVERS = {rule.cover or NO_COVER for rule in CLIENT_RULES.values()}
STEP_SIZES = {rule.step_size or GIVEN_STEP_SIZE for rule in CLIENT_RULES.values()}


def nearest(word: str, known: Mapping[str, Any] | tuple[str, ...]) -> str:
    """' Did you mean ...?' for a word close to a known one, else ''."""
    match = difflib.get_close_matches(word, list(known), n=1)
    return f" Did you mean {match[0]!r}?" if match else ""


def find_rule(rules: Mapping[str, _Rule], name: str) -> _Rule:
    """The rule of that name, or an error that lists the known ones."""
    rule = rules.get(name)
    if rule is None:
        raise ValueError(f"rule: {name!r} is not one of {', '.join(rules)}.{nearest(str(name), tuple(rules))}")
    return rule


def resolve_options(what: str, known: Mapping[str, Option], given: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults overlaid with `given`, each value inside its domain; `what` names the rule in errors."""
    for name, value in given.items():
        if name not in known:
            options = ", ".join(known) or "none"
            raise ValueError(f"{name}: {what} has no such option (it takes {options}).{nearest(name, known)}")
        if not known[name].domain.admits(value):
            raise ValueError(f"{name}: must be {known[name].domain.words}, got {value!r}")
    resolved = {name: option.default for name, option in known.items()} | dict(given)
    for name, value in resolved.items():
        if value is REQUIRED:
            raise ValueError(f"{name}: {what} needs it, {known[name].domain.words}")
    return resolved


@lru_cache(maxsize=512, typed=True)  # typed: 1, 1.0 and True are told apart
def server_numbers(rule_name: str, names: tuple[str, ...] = (), *values: Any) -> ServerNumbers:
    """The numbers of a server step from its options; cached, so that a training loop pays for checks once."""
    rule = find_rule(SERVER_RULES, rule_name)
    o = resolve_options(f"server rule {rule_name!r}", rule.options, dict(zip(names, values, strict=True)))
    is_sum = rule.second_moment_sums
    as_torch = o.get("eps") == "torch"
    # torch squares gradients: unless the caller says otherwise, so does a server with torch's convention
    followed = "delta" if as_torch and "second_moment_of" not in names else o.get("second_moment_of")
    beta1 = o["momentum"] if "momentum" in o else o.get("beta1", 0.0)
    beta2 = 1.0 if is_sum else o.get("beta2", 0.0)
    return ServerNumbers(
        lr=float(o["lr"]),
        beta1=float(beta1),
        gain1=1.0 if "momentum" in o else 1.0 - beta1,
        beta2=float(beta2),
        gain2=1.0 if is_sum else 1.0 - beta2,
        tau=float(o.get("tau", 0.0)),
        root_scale=1.0,
        of_delta=followed == "delta",
        bias_correction=o.get("bias_correction", False),
        tau_joins_corrected=as_torch or rule.authors_correct_first,
    )


@lru_cache(maxsize=512, typed=True)
def client_numbers(rule_name: str, lr_per_client: bool, names: tuple[str, ...] = (), *values: Any) -> ClientNumbers:
    """The numbers of a client step from its options (without `lr` when it comes per client); cached as above."""
    rule = find_rule(CLIENT_RULES, rule_name)
    known = rule.options
    if lr_per_client and "lr" in known:
        known = {name: option for name, option in known.items() if name != "lr"}
    o = resolve_options(f"client rule {rule_name!r}", known, dict(zip(names, values, strict=True)))
    if o.get("eps", 1.0) == 0 and o.get("root_eps", 1.0) == 0:
        raise ValueError("eps: must be > 0 unless root_eps is, got 0")
    is_sum = rule.second_moment == "sum"
    beta1 = o["momentum"] if "momentum" in o else o.get("beta1", 0.0)
    beta2 = 1.0 if is_sum else o.get("beta2", 0.0)
    return ClientNumbers(
        lr=None if o.get("lr") is None else float(o["lr"]),
        beta1=float(beta1),
        gain1=1.0 if "momentum" in o else 1.0 - beta1,
        beta2=float(beta2),
        gain2=1.0 if is_sum else 1.0 - beta2,
        eps=float(o.get("eps", 0.0)),
        root_eps=float(o.get("root_eps", 0.0)),
        delay=int(o.get("delay", 1)),
        floor=float(o.get("floor", 0.0)),
        weight_decay=float(o["weight_decay"]),
        prox=float(o["prox"]),
        clip=None if o["clip"] is None else float(o["clip"]),
        gamma=float(o.get("gamma", 0.0)),
        delta=float(o.get("delta", 0.0)),
        theta=float(o.get("theta", 1.0)),
        grow_first=o.get("grow_first", False),
        lr_eps=float(o.get("lr_eps", 0.0)),
        c=float(o.get("c", 0.0)),
        f_star=float(o.get("f_star", 0.0)),
        lr_max=math.inf if o.get("lr_max") is None else float(o["lr_max"]),
        bias_from=float(o.get("bias_from", 0.0)),
    )
