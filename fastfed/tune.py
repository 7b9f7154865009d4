"""The tune room: what the next plan changes because of what this round has shown.

Settings are frozen; what they remember during a run lives in a `Tuner`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from .aggregate import Aggregate
from .clients import SGD, Client
from .plan.round import Counting, RoundPlan, Tuning
from .train import Outcome


class Tuner(Protocol):
    """Adjusts the next plan. `measures_cosine`: it goes by the clients' `min_cosine`, to whose sums the step's own
    gradient belongs where `cosine_includes_step`. `tensors` and `load` carry what it remembers through a checkpoint.

    One more attribute is asked for if it is there. `reads_delta`: it looks at every aggregate's delta, which then is
    made before the server's step and not once more behind it (default False: it may look all the same)."""

    measures_cosine: bool
    cosine_includes_step: bool

    @property
    def tuning(self) -> Tuning:
        """What the next round is planned with."""

    def tune(self, plan: RoundPlan, outcome: Outcome, aggregate: Aggregate) -> None:
        """Learns from a round in which clients trained and the model moved."""

    def tensors(self) -> dict[str, Tensor]: ...

    def load(self, tensors: dict[str, Tensor]) -> None: ...


class TunerSettings(Protocol):
    """Settings of a tuner. `counting`: how fractions of epochs become steps (None: as without a tuner)."""

    @property
    def counting(self) -> Counting | None: ...

    def check(self, client: Any) -> None:
        """Refuses optimizers that it cannot tune."""

    def begin(self, x: Tensor, lr: float, epochs: float, batch_size: int) -> Tuner:
        """The tuner of a run of a model like `x` (d,) that begins with these settings."""


class Untuned:
    """Leaves every setting as it is."""

    measures_cosine = False
    cosine_includes_step = False
    tuning = Tuning()

    def tune(self, plan: RoundPlan, outcome: Outcome, aggregate: Aggregate) -> None:
        """Nothing to learn."""

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Nothing to take over."""


_FORMS = {
    "authors": {"counting": "ceil", "cosine": "after"},
    "paper": {"counting": "floor", "cosine": "before"},
}


@dataclass(frozen=True)
class Fathom:
    """FATHOM: the clients' learning rate, epochs E and batch size B follow hypergradients.

    With a factor `alpha` of memory in the smoothed delta, lr moves by exp(-gamma_lr * H), E by exp(-gamma_epochs *
    (H + G)) and B by exp(gamma_batch * G): H is how far the round's delta opposes the smoothed one before it, G how far
    the clients' gradients oppose their own moves, the least cosine of all local steps, averaged over the clients.

    `form` "authors" (default) is what the published table was made with. A gradient is compared with the client's whole
    move, its own step included, so that the first cosine is 1: while clients take one step, B shrinks. "paper" is the
    listing to the letter: a gradient is compared with those before it (a client of one step has 0), and G is
    multiplied by lr. `cosine` ("after" the step or "before" it) and `counting` (clients take max(1, n * E / B) steps,
    rounded up, "ceil", or down, "floor") are by default the form's: after and up, before and down.

    `max_lr`, `max_epochs` and `max_batch` bound what rounds use, not what is remembered; none by default (the authors:
    0.5 for EMNIST or 1.0 for Stack Overflow, 10 and 5096).
    """

    gamma_lr: float = 0.01
    gamma_epochs: float = 0.01
    gamma_batch: float = 0.1
    alpha: float = 0.5
    counting: Counting | None = None
    max_lr: float | None = None
    max_epochs: float | None = None
    max_batch: float | None = None
    cosine: Literal["before", "after"] | None = None
    form: Literal["authors", "paper"] = "authors"

    def __post_init__(self) -> None:
        for name in ("gamma_lr", "gamma_epochs", "gamma_batch"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ValueError(f"{name}: must be a finite number >= 0, got {value!r}")
        if not 0 <= self.alpha < 1:
            raise ValueError(f"alpha: must be in [0, 1), got {self.alpha!r}")
        if self.form not in _FORMS:
            raise ValueError(f"form: must be 'authors' or 'paper', got {self.form!r}")
        for name, usual in _FORMS[self.form].items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, usual)
        if self.counting not in ("floor", "ceil"):
            raise ValueError(f"counting: must be 'floor' or 'ceil', got {self.counting!r}")
        if self.cosine not in ("before", "after"):
            raise ValueError(f"cosine: must be 'before' or 'after', got {self.cosine!r}")
        for name in ("max_lr", "max_epochs", "max_batch"):
            bound = getattr(self, name)
            if bound is not None and not 0 < bound < math.inf:
                raise ValueError(f"{name}: must be a finite number > 0, or None, got {bound!r}")

    def check(self, client: Any) -> None:
        """Hypergradients are those of SGD."""
        if not isinstance(client, SGD):
            kind = f"client rule {client.rule!r}" if isinstance(client, Client) else type(client).__name__
            raise ValueError(f"tuner: FATHOM tunes clients that run SGD; {kind} will not do")

    def begin(self, x: Tensor, lr: float, epochs: float, batch_size: int) -> Tuner:
        """Its memory for a run of a model like `x` (d,) that starts with these settings."""
        return _Hypergradients(self, torch.zeros_like(x), (lr, epochs, float(batch_size)))


class _Hypergradients:
    measures_cosine = True
    reads_delta = True

    def __init__(self, settings: Fathom, smoothed: Tensor, start: tuple[float, float, float]) -> None:
        self.settings, self.smoothed, self.current = settings, smoothed, start
        self.cosine_includes_step = settings.cosine == "after"

    @property
    def tuning(self) -> Tuning:
        (lr, epochs, batch_size), by = self.current, self.settings
        return Tuning(_bounded(lr, by.max_lr), _bounded(epochs, by.max_epochs), _bounded(batch_size, by.max_batch))

    def tune(self, plan: RoundPlan, outcome: Outcome, aggregate: Aggregate) -> None:
        (lr, epochs, batch_size), by = self.current, self.settings
        opposes = -_cosine(aggregate.delta, self.smoothed)
        drifts = -self._mean_cosine(outcome, aggregate)
        if by.form == "paper":
            drifts *= _bounded(lr, by.max_lr)
        self.smoothed.mul_(by.alpha).add_(aggregate.delta, alpha=1 - by.alpha)
        self.current = (
            lr * math.exp(-by.gamma_lr * opposes),
            epochs * math.exp(-by.gamma_epochs * (opposes + drifts)),
            batch_size * math.exp(by.gamma_batch * drifts),
        )

    def _mean_cosine(self, outcome: Outcome, aggregate: Aggregate) -> float:
        """The clients' least cosines, each counting as its delta does. That of a client of one step, where nothing was
        measured, is 1 if the step belongs to the move that it is compared with, and 0 if nothing does."""
        of_one_step = 1.0 if self.cosine_includes_step else 0.0
        return float((aggregate.shares * outcome.scalars["min_cosine"].nan_to_num(of_one_step)).sum())

    def tensors(self) -> dict[str, Tensor]:
        return {"smoothed": self.smoothed, "lr_epochs_batch": torch.tensor(self.current, dtype=torch.float64)}

    def load(self, tensors: dict[str, Tensor]) -> None:
        self.smoothed.copy_(tensors["smoothed"])
        lr, epochs, batch_size = tensors["lr_epochs_batch"].tolist()
        self.current = (lr, epochs, batch_size)


def _bounded(value: float, most: float | None) -> float:
    return value if most is None else min(value, most)


def _cosine(a: Tensor, b: Tensor) -> float:
    """Of two vectors; 0 if one is zero."""
    runs = torch.stack([_runs(a, a), _runs(b, b), _runs(a, b)]).tolist()  # all at once: a device is asked only once
    of_a, of_b, of_both = map(math.fsum, runs)
    product = math.sqrt(of_a * of_b)
    return of_both / product if product > 0 else 0.0


_RUN = 4096


def _runs(a: Tensor, b: Tensor) -> Tensor:
    """The scalar product in parts, (runs,) float64: each is one thread's, so that no sum depends on their number."""
    products = torch.nn.functional.pad(a.double() * b.double(), (0, -len(a) % _RUN))
    return products.view(-1, _RUN).sum(1)
