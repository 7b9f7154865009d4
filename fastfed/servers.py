"""The server optimizers by name: frozen settings, no loops. Their formulas live in ``fastfed.kernels``.

What is no rule of theirs is a server of one's own (`OwnServer`), in Python.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from torch import Tensor

from .checks import missing
from .kernels.table import NON_NEGATIVE, SERVER_RULES, resolve_options

if TYPE_CHECKING:
    from .aggregate import Aggregate

_STATE_ONLY = ("v0", "vmax0")


@dataclass(frozen=True)
class Server:
    """What every server optimizer has: a learning rate `lr`, and a `rule` in ``fastfed.kernels``."""

    lr: float

    rule: ClassVar[str]

    def __post_init__(self) -> None:
        if getattr(self, "second_moment_of", "") is None:  # said in full from here on: files and checkpoints hold it
            followed = "delta" if getattr(self, "eps", "authors") == "torch" else "momentum"
            object.__setattr__(self, "second_moment_of", followed)
        self._check_rule()
        resolve_options(f"server rule {self.rule!r}", SERVER_RULES[self.rule].options, self.step_options())
        for name in _STATE_ONLY:
            value = getattr(self, name, None)
            if value is not None and not NON_NEGATIVE.admits(value):
                raise ValueError(f"{name}: must be {NON_NEGATIVE.words}, got {value!r}")

    def _check_rule(self) -> None:
        """A subclass has a rule of the kernels, and no step of its own, which nobody would call."""
        rule, name = getattr(self, "rule", None), type(self).__name__
        if rule in SERVER_RULES and not hasattr(self, "step"):
            return
        problem = f"{name} has a step of its own" if rule in SERVER_RULES else f"{name} has no rule of fastfed.kernels"
        raise TypeError(
            f"server: {problem}, and a Server only names one of them ({', '.join(SERVER_RULES)}); a server of your own "
            "is a class without this base, with begin(x, clients) and step(state, x, aggregate, lr), or a function "
            "(docs/own.md)"
        )

    def step_options(self) -> dict[str, Any]:
        """The options of ``kernels.server_step``."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in named.items() if name not in _STATE_ONLY}

    def state_options(self) -> dict[str, Any]:
        """The options of ``kernels.server_state``."""
        named = {name: getattr(self, name, None) for name in ("beta1", "tau", "bias_correction", "eps", *_STATE_ONLY)}
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True)
class FedAvg(Server):
    """x += lr * D; lr 1 is plain averaging."""

    lr: float = 1.0
    rule: ClassVar[str] = "sgd"


@dataclass(frozen=True)
class FedAvgM(Server):
    """m = momentum * m + D; x += lr * m."""

    lr: float = 1.0
    momentum: float = 0.9
    rule: ClassVar[str] = "momentum"


@dataclass(frozen=True)
class FedAdagrad(Server):
    """v += q; x += lr * m / (sqrt(v) + tau), without a first moment by default.

    q is the square of m (`second_moment_of` "momentum", AFO, the default) or of the raw aggregate ("delta", FedAda2). v
    starts at `v0`, by default tau**2. With `eps` "torch", tau is what torch.optim calls eps: by default v starts at 0
    and q is of the raw aggregate. What q is of is settled when settings are made: those whose `eps` is changed
    afterwards keep theirs, unless `second_moment_of` is changed too, to "delta" (or None, to settle it anew).
    """

    beta1: float = 0.0
    tau: float = 1e-3
    second_moment_of: str | None = None
    v0: float | None = None
    eps: str = "authors"
    rule: ClassVar[str] = "adagrad"


@dataclass(frozen=True)
class FedAdam(Server):
    """m = beta1 m + (1 - beta1) D; v = beta2 v + (1 - beta2) q; x += lr * m / (sqrt(v) + tau).

    q, v0 and `eps` as in `FedAdagrad`; `bias_correction` is the AFO authors' code's, off as in the paper, in which tau
    joins the root before it is corrected. With `eps` "torch" it joins afterwards: with both, it is torch.optim.Adam.
    """

    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    second_moment_of: str | None = None
    v0: float | None = None
    bias_correction: bool = False
    eps: str = "authors"
    rule: ClassVar[str] = "adam"


@dataclass(frozen=True)
class FedYogi(FedAdam):
    """FedAdam with v -= (1 - beta2) q sign(v - q)."""

    rule: ClassVar[str] = "yogi"


@dataclass(frozen=True)
class FedAMS(FedAdam):
    """FedAdam over the largest v so far, which starts at `vmax0`, by default v0; q is the raw aggregate's square."""

    second_moment_of: str | None = "delta"
    vmax0: float | None = None
    rule: ClassVar[str] = "ams"


# ---- servers of one's own -------------------------------------------------------------------------------------------

State = dict[str, Tensor]
StepFunction = Callable[[State, Tensor, Any, float], tuple[State, Tensor]]


class OwnServer(Protocol):
    """A server in Python, on packed vectors: a state that lasts from round to round, and a step. It may do with `state`
    and `x` what it likes; both are taken from what it returns. It draws no random numbers, so that a run that is
    resumed, and each of several ranks, makes the same step.

    More attributes are asked for if they are there. `lr`: its learning rate, which a schedule multiplies (default 1).
    `check(client)`: refuses client optimizers that it has no use for. `multipliers(steps,
    client)`: what deltas of clients that take these local steps (n,) with this optimizer are multiplied by before they
    are averaged, (n,) float64.
    """

    def begin(self, x: Tensor, clients: int) -> State:
        """The state, tensors by name, of a run from the model `x` (d,) with this many clients."""

    def step(self, state: State, x: Tensor, aggregate: Aggregate, lr: float) -> tuple[State, Tensor]:
        """The next state and the next model (d,), for the round's aggregate: its vector is ``aggregate.delta``."""


@dataclass(frozen=True)
class ServerFunction:
    """A function as a server: its state is empty before the first step."""

    function: StepFunction

    def begin(self, x: Tensor, clients: int) -> State:
        return {}

    def step(self, state: State, x: Tensor, aggregate: Aggregate, lr: float) -> tuple[State, Tensor]:
        return self.function(state, x, aggregate, lr)


def own_server(server: Any) -> OwnServer | None:
    """What steps for a setting `server`, where that is no rule of ours; TypeError if it cannot step either."""
    if isinstance(server, Server):
        return None
    lacks = missing(server, OwnServer)
    if not isinstance(server, type):
        if not lacks:
            own: OwnServer = server
            return own
        if callable(server):
            return ServerFunction(server)
    hint = (
        f"; give an object, {server.__name__}(...)" if isinstance(server, type) else f", and has no {', '.join(lacks)}"
    )
    raise TypeError(
        "server: must be one of fastfed.servers, a function of (state, x, aggregate, lr), or have begin and step "
        f"(docs/own.md), got {server!r}{hint}"
    )


def server_name(server: Any) -> str:
    """What a server is called in sentences and reports."""
    named = server.function if isinstance(server, ServerFunction) else server
    return str(getattr(named, "__name__", type(named).__name__))


def server_lr(server: Any) -> float:
    """The learning rate of a server; 1 if it has none."""
    lr: float = getattr(server, "lr", 1.0)
    return lr
