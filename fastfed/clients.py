"""The client optimizers by name: frozen settings, no loops. Their formulas live in ``fastfed.kernels``.

What is no rule of theirs is a client algorithm of one's own (`OwnClient`), in Python.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, cast

from torch import Tensor

from .checks import WEIGHT, missing
from .kernels.table import CLIENT_RULES, NON_NEGATIVE, resolve_options

_OWN_METHODS = ("client_init", "client_step", "client_final")
_NOT_STEP_OPTIONS = ("warmup", "from_first", "v0", "delay_mode", "delay_unit", "same_batch", "form", "cover",
                     "bias_correction")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Client:
    """What every client optimizer has: gradient corrections and a local warm-up.

    `weight_decay` and `prox` (FedProx's mu, pulling towards the start model) are added to the gradient, which is then
    scaled down to norm `clip`. The learning rate grows linearly over the first `warmup` local steps (0: none), from 0
    on as in FedAda2: the factors are 0, 1/w, 2/w, ...; with `from_first`, 1/w, 2/w, ..., so that the first step moves.
    """

    weight_decay: float = 0.0
    prox: float = 0.0
    clip: float | None = None
    warmup: int = 0
    from_first: bool = False

    finds_step_size: ClassVar[bool] = False  # whether the rule chooses its own learning rate

    def __post_init__(self) -> None:
        if isinstance(self.warmup, bool) or not isinstance(self.warmup, int) or self.warmup < 0:
            raise ValueError(f"warmup: must be a whole number >= 0, got {self.warmup!r}")
        if not isinstance(self.from_first, bool):
            raise ValueError(f"from_first: must be True or False, got {self.from_first!r}")
        self._check_steps()
        if self.warmup and self.finds_step_size:
            raise ValueError(f"warmup: client rule {self.rule!r} finds its step size itself")
        resolve_options(f"client rule {self.rule!r}", CLIENT_RULES[self.rule].options, self.step_options())

    def _check_steps(self) -> None:
        """A subclass names a rule of the kernels, and has no step of its own, which nobody would call."""
        for name in ("step", *_OWN_METHODS):
            if hasattr(self, name):
                raise TypeError(
                    f"client: {type(self).__name__} has a method {name}, which no executor calls: an optimizer of "
                    "fastfed.clients only names a rule; a client algorithm of your own is a class without this base, "
                    f"with {', '.join(_OWN_METHODS)} (docs/own.md)"
                )

    @property
    def rule(self) -> str:
        """The name of the rule in ``fastfed.kernels``."""
        raise NotImplementedError

    def step_options(self) -> dict[str, Any]:
        """The options of ``kernels.client_step``, learning rate included where the rule has one."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in named.items() if name not in _NOT_STEP_OPTIONS}

    def options_in(self, round: int, v0_is_given: bool) -> dict[str, Any]:
        """The `step_options` of a round (from 0); `v0_is_given`: second moments start at a server's v."""
        return self.step_options()

    def state_options(self) -> dict[str, Any]:
        """The options of ``kernels.client_state``, packing aside."""
        named = ("v0", "delay_mode", "same_batch")
        options = {name: getattr(self, name) for name in named if hasattr(self, name)}
        return {name: value for name, value in options.items() if value is not None}

    @property
    def takes_lr(self) -> bool:
        """Whether the rule starts from a learning rate that is given to it."""
        return "lr" in CLIENT_RULES[self.rule].options

    def admits_lr(self, lr: float) -> bool:
        """Whether that may be the learning rate of the rule."""
        return self.takes_lr and CLIENT_RULES[self.rule].options["lr"].domain.admits(lr)

    def learning_rate(self, lr: float, step: int) -> float:
        """The learning rate of local step `step` (counted from 1) under the warm-up."""
        return lr * min(1.0, (step - 1 + self.from_first) / self.warmup) if self.warmup else lr


@dataclass(frozen=True)
class SGD(Client):
    """x -= lr * g."""

    lr: float
    rule: ClassVar[str] = "sgd"


@dataclass(frozen=True)
class Momentum(Client):
    """u = momentum * u + g; x -= lr * u. The state starts at 0 every round."""

    lr: float
    momentum: float = 0.9
    rule: ClassVar[str] = "momentum"


@dataclass(frozen=True)
class Adaptive(Client):
    """What optimizers with a second moment share.

    `delay` z refreshes it every z-th local step, or epoch with `delay_unit` "epoch"; `floor` is FedAda2's eps_s; `v0`
    starts it at a constant (a server's v comes with the round's work instead).
    """

    lr: float
    eps: float = 1e-8
    delay: int = 1
    delay_unit: str = "step"
    floor: float = 0.0
    v0: float | None = None

    def __post_init__(self) -> None:
        if self.delay_unit not in ("step", "epoch"):
            raise ValueError(f"delay_unit: must be 'step' or 'epoch', got {self.delay_unit!r}")
        if self.v0 is not None and not NON_NEGATIVE.admits(self.v0):
            raise ValueError(f"v0: must be {NON_NEGATIVE.words}, got {self.v0!r}")
        super().__post_init__()


@dataclass(frozen=True)
class AdaGrad(Adaptive):
    """v += g^2; x -= lr * g / (sqrt(v) + eps)."""

    rule: ClassVar[str] = "adagrad"


BiasCorrection = bool | Literal["server_round"] | None


@dataclass(frozen=True)
class Adam(Adaptive):
    """Adam, its state starting afresh every round.

    `bias_correction` makes up for moments that start at 0: True divides them by 1 - beta^k at local step k, False does
    not, "server_round" counts k from the round's number on. None (default): as long as the second moment does start at
    0, else not: one that starts at a server's v, or at `v0`, would be inflated a thousand times at the first step.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    bias_correction: BiasCorrection = None
    rule: ClassVar[str] = "adam"

    def __post_init__(self) -> None:
        _check_bias_correction(self.bias_correction)
        super().__post_init__()

    def options_in(self, round: int, v0_is_given: bool) -> dict[str, Any]:
        return {**self.step_options(), "bias_from": _bias_from(self.bias_correction, round, self.v0, v0_is_given)}


def _check_bias_correction(value: BiasCorrection) -> None:
    if value is not None and value != "server_round" and not isinstance(value, bool):
        raise ValueError(f"bias_correction: must be True, False, 'server_round' or None, got {value!r}")


def _bias_from(correction: BiasCorrection, round: int, v0: float | None, v0_is_given: bool) -> float:
    """How many steps bias corrections count before the first; infinite: none is made."""
    if correction is None:
        correction = not (v0_is_given or v0)
    if correction == "server_round":
        return float(round)
    return 0.0 if correction else math.inf


@dataclass(frozen=True)
class SM3(Adaptive):
    """Second moments per row and column instead of per coordinate.

    `form` "adagrad" (sums) or "adam" (moving averages, first moment `beta1`, default 0.9 there and 0 elsewhere);
    `cover` "II" (default) or "I". Between refreshes, `delay_mode` "exact" keeps nu, a vector, as the paper has it;
    "compact" goes by the rows and columns. None (default): exact where cover II is delayed. `bias_correction` is that
    of `Adam`, for the form "adam".
    """

    form: str = "adagrad"
    cover: str = "II"
    delay_mode: str | None = None
    beta1: float | None = None
    beta2: float | None = None
    root_eps: float | None = None
    bias_correction: BiasCorrection = None

    def __post_init__(self) -> None:
        _check_bias_correction(self.bias_correction)
        if self.bias_correction is not None and self.form != "adam":
            raise ValueError(f"bias_correction: only the form 'adam' has moments to correct, got {self.form!r}")
        super().__post_init__()

    @property
    def rule(self) -> str:
        rules = {
            ("adagrad", "II"): "sm3",
            ("adagrad", "I"): "sm3_1",
            ("adam", "II"): "sm3_adam",
            ("adam", "I"): "sm3_1_adam",
        }
        if (self.form, self.cover) not in rules:
            raise ValueError(
                f"form: must be 'adagrad' or 'adam' and cover 'II' or 'I', got {self.form!r}, {self.cover!r}"
            )
        return rules[self.form, self.cover]

    def step_options(self) -> dict[str, Any]:
        return {name: value for name, value in super().step_options().items() if value is not None or name == "clip"}

    def options_in(self, round: int, v0_is_given: bool) -> dict[str, Any]:
        options = self.step_options()
        if self.form == "adam":
            options["bias_from"] = _bias_from(self.bias_correction, round, self.v0, v0_is_given)
        return options

    def state_options(self) -> dict[str, Any]:
        options = super().state_options()
        if self.delay_mode is None and self.delay > 1 and self.cover == "II":
            options["delay_mode"] = "exact"
        if self.form == "adagrad" and self.beta1:
            options["beta1"] = self.beta1
        return options


@dataclass(frozen=True)
class DeltaSGD(Client):
    """A step size per client from its last two gradients. `lr` is the first step's.

    `same_batch` evaluates the previous gradient again, at the previous model on the current batch.
    """

    lr: float = 0.2
    gamma: float = 2.0
    delta: float = 0.1
    theta: float = 1.0
    grow_first: bool = False
    lr_eps: float = 0.0
    same_batch: bool = False
    rule: ClassVar[str] = "delta_sgd"
    finds_step_size: ClassVar[bool] = True


@dataclass(frozen=True)
class SPS(Client):
    """Stochastic Polyak step sizes: lr = min((loss - f_star) / (c * |g|^2 + eps), lr_max); no bound by default, as in
    the authors' code. With `prox`, the loss has the proximal term that the gradient has."""

    c: float = 0.5
    f_star: float = 0.0
    lr_max: float | None = None
    eps: float = 1e-8
    rule: ClassVar[str] = "sps"
    finds_step_size: ClassVar[bool] = True


# ---- algorithms of one's own ----------------------------------------------------------------------------------------

State = dict[str, Tensor]


class ClientRound(NamedTuple):
    """What a round brings to a client besides the model, as tensors: its learning rate `lr` () under schedule and
    tuner, None if the algorithm has none; how many local `steps` () it takes; the vector (d,) that it has `kept`; the
    mean (d,) of what clients sent in the round before, which is `common` to all."""

    lr: Tensor
    steps: Tensor
    kept: Tensor
    common: Tensor


class OwnClient(Protocol):
    """A client algorithm in Python, on packed vectors. The object itself does not change: several clients train side by
    side with it. It draws no random numbers.

    More attributes are asked for if they are there. `lr`: its learning rate, which a schedule multiplies. `keeps`:
    clients keep a vector between their rounds, which is "zeros" or the global model, "start", at a client's first
    (default None: they keep nothing). `sends`: clients send a second vector (default False). `vectorised`: its methods
    are torch operations that ``torch.vmap`` can do, so that executor "batched" runs it, too (default False).
    `gradient_anywhere`: `gradient` is a function of a model (d,), which gives the gradient of the batch there (default
    False: the gradient (d,) at `params`).
    """

    def client_init(self, start: Tensor, round: ClientRound) -> State:
        """What a client has in mind at first, tensors by name, when it begins at the model `start` (d,)."""

    def client_step(self, state: State, params: Tensor, gradient: Any, step: int) -> tuple[State, Tensor]:
        """Local step `step` (from 1): the next state, of the same names, and the next model (d,)."""

    def client_final(self, state: State, params: Tensor) -> Tensor | dict[str, Tensor]:
        """The model (d,) from which the delta is taken; where the client keeps or sends something, a dict of "params",
        "kept" and "sent"."""


@dataclass(frozen=True)
class Algorithm(Client):
    """An algorithm of one's `own` as an optimizer, in the works of executors. Simulations make it themselves."""

    own: Any

    def __post_init__(self) -> None:
        lacks = missing(self.own, OwnClient)
        if lacks or isinstance(self.own, type):
            hint = "give an object" if isinstance(self.own, type) else f"it has no {', '.join(lacks)}"
            raise TypeError(
                "client: must be an optimizer of fastfed.clients, or have client_init, client_step and client_final "
                f"(docs/own.md), got {self.own!r}: {hint}"
            )
        if self.keeps not in (None, "zeros", "start"):
            raise ValueError(f"keeps: of {self.rule} must be None, 'zeros' or 'start', got {self.keeps!r}")
        if self.vectorised and self.gradient_anywhere:
            raise ValueError(f"vectorised: {self.rule} asks for gradients anywhere, which only clients one by one have")
        if self.lr is not None and not NON_NEGATIVE.admits(self.lr):
            raise ValueError(f"lr: must be {NON_NEGATIVE.words}, got {self.lr!r}")

    @property
    def rule(self) -> str:
        return type(self.own).__name__

    @property
    def lr(self) -> float | None:
        return getattr(self.own, "lr", None)

    @property
    def keeps(self) -> str | None:
        return getattr(self.own, "keeps", None)

    @property
    def sends(self) -> bool:
        return bool(getattr(self.own, "sends", False))

    @property
    def vectorised(self) -> bool:
        return bool(getattr(self.own, "vectorised", False))

    @property
    def gradient_anywhere(self) -> bool:
        return bool(getattr(self.own, "gradient_anywhere", False))

    @property
    def takes_lr(self) -> bool:
        return self.lr is not None

    def admits_lr(self, lr: float) -> bool:
        return self.takes_lr and NON_NEGATIVE.admits(lr)


def algorithm_of(client: Any) -> Algorithm | None:
    """The algorithm of one's own that a setting `client` is; None if it is one of ours, or a blend of them."""
    if isinstance(client, Algorithm):
        return client
    return None if isinstance(client, (Client, Blend)) else Algorithm(client)


def refuse_algorithms(clients: Sequence[Client], executor: str) -> None:
    """Those engines run rules, and no Python."""
    for client in clients:
        if isinstance(client, Algorithm):
            raise TypeError(f"optimizers: executor {executor!r} runs no Python, as {client.rule} is; take 'eager'")


# ---- clients that differ --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Resources:
    """What functions of a blend may go by: the client's id, its number of examples, what `Blend.resources` holds for it
    (None without), and the round, counted from 0."""

    client: int
    examples: int
    own: Any
    round: int = 0


@dataclass(frozen=True)
class Part:
    """One way to train in a `Blend`: an optimizer (its `delay` included), drawn with probability proportional to
    `share`; `steps` or `epochs` where it trains longer or shorter than the simulation says; `weight` multiplies its
    delta before deltas are averaged. Steps and weight may be functions of the client's `Resources` in the round."""

    client: Client
    share: float = 1.0
    steps: int | Callable[[Resources], int] | None = None
    epochs: float | None = None
    weight: float | Callable[[Resources], float] = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.client, Client) or isinstance(self.client, Algorithm):
            raise TypeError(
                f"client: must be an optimizer of fastfed.clients in a part of a blend, got {self.client!r}"
            )
        if not WEIGHT.admits(self.share):
            raise ValueError(f"share: must be {WEIGHT.words}, got {self.share!r}")
        if not callable(self.weight):
            check_weight(self.weight)
        if self.steps is not None and self.epochs is not None:
            raise ValueError(f"epochs: give either epochs or steps, got {self.epochs!r} and {self.steps!r}")
        if self.steps is not None and not callable(self.steps):
            check_steps(self.steps)
        if self.epochs is not None and not 0 < self.epochs < math.inf:
            raise ValueError(f"epochs: must be > 0, got {self.epochs!r}")

    @property
    def has_functions(self) -> bool:
        """Whether its steps or its weight depend on the client and the round."""
        return callable(self.steps) or callable(self.weight)


def check_steps(steps: object, whose: str = "") -> int:
    """A number of local steps, if it is one."""
    if isinstance(steps, bool) or not isinstance(steps, numbers.Integral) or steps < 1:
        raise ValueError(f"steps: must be a whole number >= 1, got {steps!r}{whose}")
    return int(steps)


def check_weight(weight: object, whose: str = "") -> float:
    """What a delta is multiplied by, if it is a number for that."""
    if not WEIGHT.admits(weight):
        raise ValueError(f"weight: must be {WEIGHT.words}, got {weight!r}{whose}")
    return float(weight)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Blend:
    """FedAda2's blended optimisation: every client of a round takes one of the `parts`.

    Which one is drawn anew in every round by the parts' shares, unless `choose`, a function of the client's
    `Resources` in the round, gives its number. `resources`, one entry per client of the federation, is handed to it,
    and to the parts' own functions.
    """

    parts: Sequence[Part]
    choose: Callable[[Resources], int] | None = None
    resources: Sequence[Any] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(self.parts))
        if not self.parts or not all(isinstance(part, Part) for part in self.parts):
            raise TypeError(f"parts: must be one or more fastfed.clients.Part, got {self.parts!r}")
        if self.choose is None and self.resources is not None and not any(part.has_functions for part in self.parts):
            raise ValueError("resources: are for `choose` and for functions of parts, and there are none")
        if self.choose is None and not any(part.share > 0 for part in self.parts):
            raise ValueError("share: must be > 0 for one part at least")
        if self.choose is not None and any(part.share != 1 for part in self.parts):
            raise ValueError("share: would be ignored, as `choose` decides")


def optimizers(client: Client | Blend | OwnClient) -> tuple[Client, ...]:
    """The optimizers that clients may use."""
    if isinstance(client, Blend):
        return tuple(part.client for part in client.parts)
    return (algorithm_of(client) or cast(Client, client),)
