"""Differential privacy of whole clients: how much noise a round takes, and how much privacy a run has spent.

Every delta is clipped to a norm, the clipped deltas are added up, Gaussian noise is added and the sum is divided by the
expected size of the cohort, which is drawn by Poisson sampling. Accounting is the field's own library, dp-accounting;
neighbouring federations differ by adding or removing one client.
"""

from __future__ import annotations

import logging
import math
import numbers
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from .extras import needed
from .kernels.table import COUNT, FINITE, NON_NEGATIVE, POSITIVE, POSITIVE_OR_NONE, Domain

_OPEN_UNIT = Domain("a number between 0 and 1, without both", lambda v: FINITE.admits(v) and 0 < v < 1)
_RATE = Domain("a number in (0, 1]", lambda v: FINITE.admits(v) and 0 < v <= 1)
_NON_NEGATIVE_OR_NONE = Domain("a finite number >= 0, or None", lambda v: v is None or NON_NEGATIVE.admits(v))
_ACCOUNTANT = Domain("'rdp' or 'pld'", lambda v: isinstance(v, str) and v in ("rdp", "pld"))
_ROUNDS = Domain(
    "a whole number >= 0", lambda v: isinstance(v, numbers.Integral) and not isinstance(v, bool) and int(v) >= 0
)

# Beyond these the accountants overflow. What lies outside is accounted as if it cost more: never as if it cost less.
_LEAST_NOISE, _MOST_NOISE = 1e-6, 1e6  # less than the least is no noise at all
_LEAST_RATE = 1e-12
_LEAST_RDP = 1e-15  # of a round: a smaller one is the rounding of the library's logarithms
_MOST_ROUNDS = 10**9

_FINEST_GRID = 1e-4  # of privacy losses: the library's default
_FINE_RANGE, _WIDEST_RANGE = 25.0, 1e5  # a wider range of losses gets a coarser grid: time and memory stay bounded
_MOST_COMPOSED = 10**6  # rounds that "pld" composes
_RELATIVE_TOLERANCE = 2e-5  # of `noise_for`


def _refuse_unless(domain: Domain, name: str, value: object) -> None:
    if not domain.admits(value):
        raise ValueError(f"{name}: must be {domain.words}, got {value!r}")


# ---- settings -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Quantile:
    """Adaptive clipping: the bound follows the `quantile` of the clients' norms, by factors exp(-lr * error).

    `count_noise` is the standard deviation of the noise on the count of clients below the bound (None: a twentieth of
    the expected cohort). Andrew, Thakkar, McMahan, Ramaswamy: Differentially Private Learning with Adaptive Clipping.
    """

    quantile: float = 0.5
    lr: float = 0.2
    count_noise: float | None = None

    def __post_init__(self) -> None:
        _refuse_unless(_OPEN_UNIT, "quantile", self.quantile)
        _refuse_unless(POSITIVE, "lr", self.lr)
        _refuse_unless(_NON_NEGATIVE_OR_NONE, "count_noise", self.count_noise)

    def count_std(self, expected: float) -> float:
        """The standard deviation of the noise on the count, in clients, for `expected` clients a round."""
        _refuse_unless(POSITIVE, "expected", expected)
        return expected / 20 if self.count_noise is None else float(self.count_noise)


@dataclass(frozen=True)
class Privacy:
    """Differential privacy of a run: deltas clipped to the norm `clip`, noise of `noise` times that norm on their sum.

    `noise` 0 means none: then epsilon is infinite, and `clip` may be None for no clipping. The guarantee is
    (epsilon, `delta`); the run stops before the round that would take epsilon past `target_epsilon` (None: it goes on).
    `accountant` "rdp" (Renyi, quick) or "pld" (privacy loss distribution, tighter, a second or so per question).
    `adaptive` moves the bound from round to round, from `clip` on; `noise` covers both of its releases.

    The guarantee is about the models (and bounds) of all rounds, not about a history's other columns: losses, norms and
    numbers of clients are what the simulation itself sees.
    """

    clip: float | None
    noise: float
    delta: float
    target_epsilon: float | None = None
    accountant: Literal["rdp", "pld"] = "rdp"
    adaptive: Quantile | None = None

    def __post_init__(self) -> None:
        _refuse_unless(POSITIVE_OR_NONE, "clip", self.clip)
        _refuse_unless(NON_NEGATIVE, "noise", self.noise)
        _refuse_unless(_OPEN_UNIT, "delta", self.delta)
        _refuse_unless(POSITIVE_OR_NONE, "target_epsilon", self.target_epsilon)
        _refuse_unless(_ACCOUNTANT, "accountant", self.accountant)
        if self.adaptive is not None and not isinstance(self.adaptive, Quantile):
            raise TypeError(f"adaptive: must be fastfed.privacy.Quantile(...) or None, got {self.adaptive!r}")
        if self.clip is None and self.noise > 0:
            raise ValueError(
                f"clip: must be a finite number > 0 where there is noise, got None with noise={self.noise}"
            )
        if self.clip is None and self.adaptive is not None:
            raise ValueError("clip: must be a finite number > 0 for adaptive clipping to start from, got None")
        if self.target_epsilon is not None and self.noise == 0:
            raise ValueError(
                f"target_epsilon: must be None where noise is 0 and epsilon infinite, got {self.target_epsilon!r}"
            )
        if self.adaptive is not None and self.adaptive.count_noise is not None:
            _delta_noise(self.noise, self.adaptive.count_noise)


# ---- noise and clipping of a round ----------------------------------------------------------------------------------


def noise_std(privacy: Privacy, clip: float | None, expected: float) -> float:
    """The standard deviation of the noise on every coordinate of the mean delta, in a round with bound `clip`.

    That is ``sigma * clip / expected`` for `expected` clients a round; sigma is ``privacy.noise``, more with adaptive
    clipping, which spends a part of the privacy on its count. 0 where ``privacy.noise`` is 0.
    """
    _refuse_unless(POSITIVE, "expected", expected)
    _refuse_unless(POSITIVE_OR_NONE, "clip", clip)
    if privacy.noise == 0:
        return 0.0
    if clip is None:
        raise ValueError(f"clip: must be a finite number > 0 where there is noise, got None with noise={privacy.noise}")
    sigma = float(privacy.noise)
    if privacy.adaptive is not None:
        sigma = _delta_noise(sigma, privacy.adaptive.count_std(expected))
    return sigma * clip / expected


def _delta_noise(noise: float, count_std: float) -> float:
    """The noise multiplier of the deltas that, beside a count with `count_std`, costs as much as `noise` alone.

    A client moves the count by at most 1/2, so the count's own multiplier is ``2 * count_std``.
    """
    if noise == 0:
        return 0.0
    if 2 * count_std <= noise:
        raise ValueError(
            f"count_noise: must be more than half the noise multiplier, {noise / 2}, got {count_std} (by default a "
            "twentieth of the expected cohort); the count alone would cost more privacy than the whole round may"
        )
    return noise / math.sqrt(1 - (noise / (2 * count_std)) ** 2)  # (noise^-2 - (2 count_std)^-2)^(-1/2)


def next_clip(quantile: Quantile, clip: float, norms: Tensor | np.ndarray, expected: float, noise: float) -> float:
    """The clipping bound of the next round, from the `norms` (n,) of this round's deltas before clipping.

    `expected` clients a round, `noise` one standard normal number (0.0 where no privacy is wanted). Of the clients that
    took part, leave those out that gave no delta; none at all is fine.
    """
    _refuse_unless(POSITIVE, "clip", clip)
    _refuse_unless(POSITIVE, "expected", expected)
    _refuse_unless(FINITE, "noise", noise)
    given = torch.as_tensor(norms, dtype=torch.float64)
    if given.dim() != 1:
        raise ValueError(f"norms: must have shape (n,), got {tuple(given.shape)}")
    if not bool((given >= 0).all()):
        raise ValueError(f"norms: must be >= 0 and not NaN, got {given[~(given >= 0)][0].item()}")
    below = int((given <= clip).sum())
    released = below - len(given) / 2 + quantile.count_std(expected) * noise
    exponent = -quantile.lr * (released / expected + 0.5 - quantile.quantile)
    bound = clip * math.exp(exponent) if exponent < 700 else math.inf
    if not POSITIVE.admits(bound):
        raise ValueError(
            f"clip: a step of exp({exponent:.4g}) takes it from {clip!r} out of all bounds; lower quantile.lr"
        )
    return bound


# ---- the privacy spent ----------------------------------------------------------------------------------------------


class Ledger:
    """The privacy that a run spends: every round a Gaussian mechanism on a Poisson sample of the clients."""

    def __init__(self, privacy: Privacy, rate: float) -> None:
        """`rate`: the probability that a client takes part in a round, in (0, 1]."""
        if not isinstance(privacy, Privacy):
            raise TypeError(f"privacy: must be fastfed.privacy.Privacy(...), got {privacy!r}")
        _refuse_unless(_RATE, "rate", rate)
        self.privacy, self.rate = privacy, float(rate)
        self._tight: dict[int, float] = {}  # "pld": epsilon by rounds
        if privacy.noise > 0:
            _library()  # a run should not find out after its first round

    def epsilon(self, rounds: int) -> float:
        """Epsilon after that many rounds; infinite without noise, 0.0 after none."""
        _refuse_unless(_ROUNDS, "rounds", rounds)
        if self.privacy.accountant == "rdp":
            return self._renyi(rounds)[0]
        if rounds not in self._tight:
            loose = self._renyi(rounds)[0]
            self._tight[rounds] = loose if rounds == 0 or loose == math.inf else self._by_losses(rounds, loose)
        return self._tight[rounds]

    def allow(self, rounds: int) -> None:
        """Refuses to go as far as that many rounds if it would take epsilon past the `target_epsilon`."""
        target = self.privacy.target_epsilon
        if target is not None and self.epsilon(rounds) > target:
            raise RuntimeError(f"target_epsilon: {rounds} rounds would take epsilon past {target}")

    def columns(self, rounds: int) -> dict[str, float]:
        """What the row of the last of that many rounds tells."""
        return {"epsilon": self.epsilon(rounds)}

    def most_rounds(self) -> int | None:
        """The most rounds within the `target_epsilon`; None without one."""
        target = self.privacy.target_epsilon
        return None if target is None else self.rounds_within(target)

    def order(self, rounds: int) -> float | None:
        """The Renyi order that `epsilon` is found at; None for "pld", without noise, and after no round."""
        _refuse_unless(_ROUNDS, "rounds", rounds)
        return self._renyi(rounds)[1] if self.privacy.accountant == "rdp" else None

    def rounds_within(self, epsilon: float) -> int:
        """The most rounds whose epsilon is at most this; 0 if not even one is, and never more than 10**9."""
        _refuse_unless(POSITIVE, "epsilon", epsilon)
        most = _most(lambda rounds: self._renyi(rounds)[0] <= epsilon, 0)
        if self.privacy.accountant == "rdp":
            return most
        return _most(lambda rounds: self.epsilon(rounds) <= epsilon, most)  # the tighter accountant allows more

    def _renyi(self, rounds: int) -> tuple[float, float | None]:
        """Epsilon after that many rounds, and its order."""
        if rounds == 0:
            return 0.0, None
        if self.privacy.noise < _LEAST_NOISE:
            return math.inf, None
        orders, rdp = _rdp_of_round(float(self.privacy.noise), self.rate)
        with _quiet():
            epsilon, order = _library().rdp.compute_epsilon(orders, int(rounds) * rdp, self.privacy.delta)
        return float(epsilon), float(order)

    def _by_losses(self, rounds: int, loose: float) -> float:
        """Epsilon by the privacy loss distribution, where Renyi's is `loose`: both are bounds, the lower one counts."""
        noise, times = min(float(self.privacy.noise), _MOST_NOISE), int(rounds)
        if self.rate == 1:
            noise, times = noise / math.sqrt(times), 1  # Gaussians without sampling compose into one
        widest = max(loose, 0.5 / noise**2 + 10 / noise)
        if widest > _WIDEST_RANGE or times > _MOST_COMPOSED:
            return loose  # no privacy to speak of, or nothing to gain
        grid = _FINEST_GRID * 2.0 ** math.ceil(max(0.0, math.log2(widest / _FINE_RANGE)))
        with _quiet():
            one = _losses_of_round(noise, self.rate, grid)
            losses = one.self_compose(times) if times > 1 else one
            return min(loose, float(losses.get_epsilon_for_delta(self.privacy.delta)))


class NoLedger:
    """Of a run without privacy: nothing is spent, and any number of rounds is allowed."""

    def allow(self, rounds: int) -> None:
        """Always."""

    def columns(self, rounds: int) -> dict[str, float]:
        return {}

    def most_rounds(self) -> int | None:
        return None


@lru_cache(maxsize=64)
def _rdp_of_round(noise: float, rate: float) -> tuple[np.ndarray, np.ndarray]:
    """The library's default orders and the Renyi divergence of one round at each, (orders,) float64."""
    library = _library()
    event = library.PoissonSampledDpEvent(max(rate, _LEAST_RATE), library.GaussianDpEvent(min(noise, _MOST_NOISE)))
    accountant = library.rdp.RdpAccountant(neighboring_relation=library.NeighboringRelation.ADD_OR_REMOVE_ONE)
    with _quiet():
        accountant.compose(event)
    rdp = accountant.rdp
    return accountant.orders, np.where(np.isnan(rdp), np.inf, np.maximum(rdp, _LEAST_RDP))


@lru_cache(maxsize=4)
def _losses_of_round(noise: float, rate: float, grid: float) -> Any:
    """The privacy loss distribution of one round on a grid of losses; rounded up, as everything here."""
    library = _library()
    return library.pld.privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=noise,
        sampling_prob=max(rate, _LEAST_RATE),
        value_discretization_interval=grid,
        neighboring_relation=library.NeighboringRelation.ADD_OR_REMOVE_ONE,
    )


def _most(fits: Callable[[int], bool], guess: int) -> int:
    """The largest number of rounds that fits, found from a guess near it: longer and longer strides, then halving."""
    low, stride = (guess if guess == 0 or fits(guess) else 0), max(1, guess // 8)
    high = low + stride
    while high < _MOST_ROUNDS and fits(high):
        low, stride = high, 2 * stride
        high = low + stride
    if high >= _MOST_ROUNDS:
        if fits(_MOST_ROUNDS):
            return _MOST_ROUNDS
        high = _MOST_ROUNDS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


# ---- the noise that a budget asks for -------------------------------------------------------------------------------


def noise_for(
    epsilon: float, delta: float, rounds: int, rate: float, accountant: Literal["rdp", "pld"] = "rdp"
) -> float:
    """The least noise multiplier with which `rounds` rounds at this `rate` cost at most (`epsilon`, `delta`).

    It is at most 0.002 percent above the least, and never below: a `Ledger` of it stays within epsilon. "pld" finds
    less noise than "rdp" and takes some seconds.
    """
    _refuse_unless(POSITIVE, "epsilon", epsilon)
    _refuse_unless(_OPEN_UNIT, "delta", delta)
    _refuse_unless(COUNT, "rounds", rounds)
    _refuse_unless(_RATE, "rate", rate)
    _refuse_unless(_ACCOUNTANT, "accountant", accountant)

    def excess(log_noise: float) -> float:
        """From -1 to 1: below 0 with epsilon to spare."""
        spent = Ledger(Privacy(1.0, math.exp(log_noise), delta, accountant=accountant), rate).epsilon(rounds)
        return (spent - epsilon) / (spent + epsilon) if spent < math.inf else 1.0

    start, stride = 0.0, math.log(2)
    if accountant == "pld":
        with suppress(_OutOfReach):  # of "rdp" only, perhaps
            start, stride = math.log(noise_for(epsilon, delta, rounds, rate)), math.log(1.1)
    return math.exp(_crossing(excess, *_bracket(excess, start, stride, epsilon), _RELATIVE_TOLERANCE))


class _OutOfReach(ValueError):
    """No amount of noise is enough."""


def _bracket(
    excess: Callable[[float], float], start: float, stride: float, epsilon: float
) -> tuple[float, float, float, float]:
    """Two logarithms of noise, the first too little and the second enough, and the excess at each."""
    low = high = start
    at_low = at_high = excess(start)
    while at_low <= 0:
        high, at_high = low, at_low
        low, stride = low - stride, 2 * stride
        at_low = excess(low)
    while at_high > 0:
        if high >= math.log(_MOST_NOISE):
            least = epsilon * (1 + at_high) / (1 - at_high)
            raise _OutOfReach(
                f"epsilon: must be at least {least:.4g}, as low as this accountant gets with any noise for this delta, "
                f"rate and number of rounds, got {epsilon!r}"
            )
        low, at_low = high, at_high
        high, stride = min(high + stride, math.log(_MOST_NOISE)), 2 * stride
        at_high = excess(high)
    return low, high, at_low, at_high


def _crossing(
    f: Callable[[float], float], low: float, high: float, at_low: float, at_high: float, tolerance: float
) -> float:
    """Where `f` falls to 0: from above, so that f is at most 0 there, and within `tolerance`.

    Each turn looks on both sides of the straight line's zero, close enough to end the search if it is right, and
    halves the interval if it is not: a few turns where f is smooth, and f need not be.
    """
    while high - low > tolerance:
        zero = low + (high - low) * at_low / (at_low - at_high)
        for x in (zero + tolerance / 3, zero - tolerance / 3, (low + high) / 2):
            if not low < x < high:
                continue
            y = f(x)
            if y > 0:
                low, at_low = x, y
            else:
                high, at_high = x, y
    return high


# ---- the library ----------------------------------------------------------------------------------------------------


def _library() -> ModuleType:
    return needed("dp_accounting", extra="privacy", by="accounting for privacy", package="dp-accounting")


@contextmanager
def _quiet() -> Iterator[None]:
    """Drops what the library logs in this thread (orders that do not converge are simply not used), and keeps its
    logging from giving the root logger a handler, which it does where there is none. All else is logged as ever."""
    here, root, library = threading.get_ident(), logging.getLogger(), logging.getLogger("absl")

    def from_elsewhere(record: logging.LogRecord) -> bool:
        return record.thread != here

    stand_in = None if root.handlers else logging.NullHandler()
    library.addFilter(from_elsewhere)
    if stand_in is not None:
        root.addHandler(stand_in)
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        library.removeFilter(from_elsewhere)
        if stand_in is not None:
            root.removeHandler(stand_in)
