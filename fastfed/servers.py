"""The server optimizers by name: frozen settings, no loops. Their formulas live in ``fastfed.kernels``."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

from .kernels.table import NON_NEGATIVE, SERVER_RULES, resolve_options

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
        resolve_options(f"server rule {self.rule!r}", SERVER_RULES[self.rule].options, self.step_options())
        for name in _STATE_ONLY:
            value = getattr(self, name, None)
            if value is not None and not NON_NEGATIVE.admits(value):
                raise ValueError(f"{name}: must be {NON_NEGATIVE.words}, got {value!r}")

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
