"""Federated methods as their pseudo-code reads: slow NumPy loops that know nothing of FastFed.

Vectors are flat, tensor after tensor without gaps, and everything is computed in the dtype of the start model: float64
for the truth, float32 to see what rounding alone does to it. Norms are Python floats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Shapes = Sequence[tuple[int, ...]]
Gradient = Callable[[Array], tuple[float, Array]]  # a model -> the loss of a batch there, and its gradient


def norm(vector: Array) -> float:
    return math.sqrt(float(np.sum(vector.astype(np.float64) ** 2)))


# ---- a problem ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Network:
    """softmax(W2 tanh(W1 f + b1) + b2) under cross-entropy; a model is W1, b1, W2, b2, matrices row by row."""

    features: int
    hidden: int
    classes: int

    @property
    def shapes(self) -> Shapes:
        return [(self.hidden, self.features), (self.hidden,), (self.classes, self.hidden), (self.classes,)]

    def loss_and_gradient(self, x: Array, features: Array, labels: Array) -> tuple[float, Array]:
        """The mean loss of a batch (n, features), (n,) and its gradient, by the chain rule."""
        w1, b1, w2, b2 = split(x, self.shapes)
        n = len(labels)
        hidden = np.tanh(features @ w1.T + b1)
        logits = hidden @ w2.T + b2
        logits = logits - logits.max(axis=1, keepdims=True)
        logarithms = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        loss = -float(logarithms[np.arange(n), labels].mean())
        of_logits = np.exp(logarithms)
        of_logits[np.arange(n), labels] -= 1
        of_logits = of_logits / n
        of_hidden = (of_logits @ w2) * (1 - hidden * hidden)
        parts = (of_hidden.T @ features, of_hidden.sum(axis=0), of_logits.T @ hidden, of_logits.sum(axis=0))
        return loss, np.concatenate([part.reshape(-1) for part in parts])


def split(x: Array, shapes: Shapes) -> list[Array]:
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    return [part.reshape(shape) for part, shape in zip(np.split(x, ends[:-1]), shapes, strict=True)]


def cover_of(shapes: Shapes) -> list[list[int]]:
    """SM3's sets: every index of every axis of a tensor of rank >= 2, every coordinate of the others."""
    sets: list[list[int]] = []
    begin = 0
    for shape in shapes:
        places = np.arange(begin, begin + math.prod(shape)).reshape(shape)
        begin += math.prod(shape)
        if len(shape) < 2:
            sets += [[int(place)] for place in places.reshape(-1)]
            continue
        for axis, size in enumerate(shape):
            sets += [np.take(places, index, axis=axis).reshape(-1).tolist() for index in range(size)]
    return sets


# ---- client rules ---------------------------------------------------------------------------------------------------


@dataclass
class Step:
    """What a local step may know: its number k and its epoch (from 1), the model x, the corrected gradient g and the
    loss there, `gradient` of the same batch at any other model, and the warm-up's factor."""

    k: int
    epoch: int
    x: Array
    g: Array
    loss: float
    gradient: Gradient
    warm: float


class Rule:
    """A client's optimizer for one round: made anew for every client and round, from the model and the server's v."""

    def step(self, at: Step) -> Array:
        """The next model."""
        raise NotImplementedError


@dataclass
class Start:
    """Where a client's round starts: model, factor of the learning rate, server's v (None: not transmitted), shapes;
    the round's number (from 0)."""

    x: Array
    factor: float
    v: Array | None
    shapes: Shapes
    round: int = 0

    def second_moment(self, v0: float) -> Array:
        return np.full_like(self.x, v0) if self.v is None else self.v.copy()

    def unbiased(self, correction: object, v0: float) -> Callable[[Array, float, int], Array]:
        """A moment, its beta and how many gradients are in it: what Adam makes of it. Only moments that start at 0 are
        too small by 1 - beta^count; "server_round" counts on from the round's number."""
        if correction is None:
            correction = self.v is None and v0 == 0
        if correction is False:
            return lambda moment, beta, count: moment
        before = self.round if correction == "server_round" else 0
        return lambda moment, beta, count: moment / (1 - beta ** (before + count))


class SGD(Rule):
    def __init__(self, start: Start, *, lr: float) -> None:
        self.lr = lr * start.factor

    def step(self, at: Step) -> Array:
        return at.x - self.lr * at.warm * at.g


class Momentum(Rule):
    def __init__(self, start: Start, *, lr: float, momentum: float) -> None:
        self.lr, self.mu, self.u = lr * start.factor, momentum, np.zeros_like(start.x)

    def step(self, at: Step) -> Array:
        self.u = self.mu * self.u + at.g
        return at.x - self.lr * at.warm * self.u


class AdaGrad(Rule):
    """AGDU."""

    def __init__(
        self,
        start: Start,
        *,
        lr: float,
        eps: float = 1e-8,
        delay: int = 1,
        delay_unit: str = "step",
        floor: float = 0.0,
        v0: float = 0.0,
    ) -> None:
        self.lr, self.eps, self.z, self.unit, self.floor = lr * start.factor, eps, delay, delay_unit, floor
        self.v = start.second_moment(v0)

    def step(self, at: Step) -> Array:
        if ((at.k if self.unit == "step" else at.epoch) - 1) % self.z == 0:
            self.v = self.v + at.g**2
        m = at.g
        if 0 < norm(m / (np.sqrt(self.v) + self.eps)) < self.floor:
            m = np.zeros_like(m)
        return at.x - self.lr * at.warm * m / (np.sqrt(self.v) + self.eps)


class Adam(Rule):
    """ADMU."""

    def __init__(
        self,
        start: Start,
        *,
        lr: float,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        delay: int = 1,
        v0: float = 0.0,
        correction: object = None,
    ) -> None:
        self.lr, self.b1, self.b2, self.eps, self.z = lr * start.factor, beta1, beta2, eps, delay
        self.unbiased = start.unbiased(correction, v0)
        self.m, self.v = np.zeros_like(start.x), start.second_moment(v0)
        self.vhat = self.v

    def step(self, at: Step) -> Array:
        k, g = at.k, at.g
        self.m = self.b1 * self.m + (1 - self.b1) * g
        mhat = self.unbiased(self.m, self.b1, k)
        if (k - 1) % self.z == 0:
            self.v = self.b2 * self.v + (1 - self.b2) * g**2
            self.vhat = self.unbiased(self.v, self.b2, (k - 1) // self.z + 1)
        return at.x - self.lr * at.warm * mhat / (np.sqrt(self.vhat) + self.eps)


class SM3(Rule):
    """SM3-II, or with `form` "I" SM3-I; with `betas` their Adam versions. A transmitted v starts mu(r) at the largest v
    of its set: the smallest statistics that bound v as they bound nu.

    `exact` (SM3-II's default) reuses nu between refreshes, otherwise min mu stands in for it.
    """

    def __init__(
        self,
        start: Start,
        *,
        lr: float,
        eps: float = 1e-8,
        form: str = "II",
        betas: tuple[float, float] | None = None,
        delay: int = 1,
        exact: bool | None = None,
        v0: float = 0.0,
        correction: object = None,
    ) -> None:
        self.lr, self.eps, self.form, self.betas, self.z = lr * start.factor, eps, form, betas, delay
        self.exact = form == "II" if exact is None else exact
        self.unbiased = start.unbiased(correction, v0)
        self.sets = cover_of(start.shapes)
        self.holders = [[r for r, members in enumerate(self.sets) if j in members] for j in range(len(start.x))]
        before = start.second_moment(v0)
        self.mu = [max(before[j] for j in members) for members in self.sets]
        self.nu, self.m = np.zeros_like(start.x), np.zeros_like(start.x)

    def step(self, at: Step) -> Array:
        if (at.k - 1) % self.z == 0:
            self._refresh(at.g)
        elif not self.exact:
            self.nu = self._least()
        if self.betas is None:
            return at.x - self.lr * at.warm * at.g / (np.sqrt(self.nu) + self.eps)
        b1, b2 = self.betas
        self.m = b1 * self.m + (1 - b1) * at.g
        mhat = self.unbiased(self.m, b1, at.k)
        vhat = self.unbiased(self.nu, b2, (at.k - 1) // self.z + 1)
        return at.x - self.lr * at.warm * mhat / (np.sqrt(vhat) + self.eps)

    def _refresh(self, g: Array) -> None:
        old, new = (1.0, 1.0) if self.betas is None else (self.betas[1], 1 - self.betas[1])
        if self.form == "II":
            self.nu = old * self._least() + new * g**2
            self.mu = [max(self.nu[j] for j in members) for members in self.sets]
        else:
            self.mu = [old * m + new * max(g[j] ** 2 for j in s) for m, s in zip(self.mu, self.sets, strict=True)]
            self.nu = self._least()

    def _least(self) -> Array:
        return np.array([min(self.mu[r] for r in holders) for holders in self.holders], self.nu.dtype)


class DeltaSGD(Rule):
    """DSGD's Algorithm 1. `grow_first` and `lr_eps` are the authors' code's."""

    def __init__(
        self,
        start: Start,
        *,
        lr: float = 0.2,
        theta: float = 1.0,
        gamma: float = 2.0,
        delta: float = 0.1,
        same_batch: bool = False,
        grow_first: bool = False,
        lr_eps: float = 0.0,
    ) -> None:
        self.lr, self.theta, self.gamma, self.delta = lr * start.factor, theta, gamma, delta
        self.same_batch, self.grow_first, self.lr_eps = same_batch, grow_first, lr_eps
        self.x_before: Array | None = None
        self.g_before: Array | None = None

    def step(self, at: Step) -> Array:
        if at.k > 1 or self.grow_first:
            bounds = [math.sqrt(1 + self.delta * self.theta) * self.lr]
            if self.x_before is not None and self.g_before is not None:
                g_before = at.gradient(self.x_before)[1] if self.same_batch else self.g_before
                move, change = norm(at.x - self.x_before), norm(at.g - g_before)
                if move > 0 and change > 0:
                    bounds.append(self.gamma * move / (2 * change))
            lr = min(bounds) + (self.lr_eps if len(bounds) > 1 else 0.0)  # only where something was measured
            self.theta, self.lr = lr / self.lr, lr
        self.x_before, self.g_before = at.x, at.g
        return at.x - self.lr * at.g


class SPS(Rule):
    """`at.loss` has the proximal term."""

    def __init__(self, start: Start, *, c: float = 0.5, f_star: float = 0.0, lr_max: float = math.inf) -> None:
        self.c, self.f_star, self.lr_max = c, f_star, lr_max

    def step(self, at: Step) -> Array:
        assert at.loss >= self.f_star, "f_star is the least that the loss can be"
        lr = min((at.loss - self.f_star) / (self.c * norm(at.g) ** 2 + 1e-8), self.lr_max)
        return at.x - lr * at.g


# ---- server rules ---------------------------------------------------------------------------------------------------


@dataclass
class Server:
    """The table of server rules, by name; `state` holds the moments that the rule has."""

    rule: str = "sgd"
    lr: float = 1.0
    momentum: float = 0.9
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    of: str = "momentum"  # what q is the square of; "delta" is the raw aggregate
    v0: float | None = None
    vmax0: float | None = None
    bias_correction: bool = False
    corrects_first: bool = False  # before tau is added to the root, as torch does
    state: dict[str, Array] = field(default_factory=dict)
    t: int = 0

    def begin(self, x: Array) -> None:
        v0 = self.tau**2 if self.v0 is None else self.v0
        names = {"sgd": (), "momentum": ("m",), "ams": ("m", "v", "vmax")}.get(self.rule, ("m", "v"))
        starts = {"m": 0.0, "v": v0, "vmax": v0 if self.vmax0 is None else self.vmax0}
        self.state, self.t = {name: np.full_like(x, starts[name]) for name in names}, 0

    def step(self, x: Array, delta: Array, factor: float) -> Array:
        """The next model."""
        lr, s = self.lr * factor, self.state
        self.t += 1
        if self.rule == "sgd":
            return x + lr * delta
        if self.rule == "momentum":
            s["m"] = self.momentum * s["m"] + delta
            return x + lr * s["m"]
        s["m"] = self.beta1 * s["m"] + (1 - self.beta1) * delta
        q = s["m"] ** 2 if self.of == "momentum" else delta**2
        if self.rule == "adagrad":
            s["v"] = s["v"] + q
        elif self.rule == "yogi":
            s["v"] = s["v"] - (1 - self.beta2) * q * np.sign(s["v"] - q)
        else:
            s["v"] = self.beta2 * s["v"] + (1 - self.beta2) * q
        bc1 = 1 - self.beta1**self.t if self.bias_correction else 1.0
        bc2 = 1 - self.beta2**self.t if self.bias_correction else 1.0
        if self.rule == "ams":
            s["vmax"] = np.maximum(s["vmax"], s["v"])
            return x + (lr / bc1) * s["m"] / (np.sqrt(s["vmax"]) / math.sqrt(bc2) + self.tau)
        if self.corrects_first:
            return x + (lr / bc1) * s["m"] / (np.sqrt(s["v"] / bc2) + self.tau)
        return x + (lr * math.sqrt(bc2) / bc1) * s["m"] / (np.sqrt(s["v"]) + self.tau)


# ---- rounds ---------------------------------------------------------------------------------------------------------

Batch = tuple[int, Array]  # epoch (from 1), rows of the client's own examples


@dataclass
class Method:
    """A whole method: `client` makes a rule from a `Start`. `control` is SCAFFOLD option II in its batched form;
    `transmit` starts clients from the server's v. Factors of the learning rates are functions of the round (from 0)."""

    client: Callable[[Start], Rule]
    server: Server
    weights: str = "examples"
    control: bool = False
    transmit: bool = False
    client_lr: float = math.nan  # eta_l of SCAFFOLD's c_i
    prox: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None
    warmup: int = 0
    from_first: bool = False
    divide_by_steps: bool = False
    delta_clip: float | None = None
    client_factor: Callable[[int], float] = lambda round: 1.0
    server_factor: Callable[[int], float] = lambda round: 1.0


@dataclass
class Federation:
    """Every client's examples (n_i, features), (n_i,); `batches(round, client)` are the local steps."""

    network: Network
    clients: list[tuple[Array, Array]]
    batches: Callable[[int, int], list[Batch]]


Snapshot = dict[str, Array]


def run(fed: Federation, method: Method, x: Array, cohorts: Sequence[Sequence[int]]) -> list[Snapshot]:
    """x and all that server and clients keep, after every round; SCAFFOLD's as "c" and "c<client>"."""
    method.server.begin(x)
    common = np.zeros_like(x)
    own: dict[int, Array] = {}
    snapshots = []
    for t, cohort in enumerate(cohorts):
        deltas, steps = {}, {}
        for i in cohort:
            c_i = own.get(i, common)
            delta, k = _train(fed, method, x, t, i, common - c_i if method.control else None)
            if k > 0 and math.isfinite(norm(delta)):  # the others have weight 0
                deltas[i], steps[i] = delta, k
        if deltas:
            p = _weights(method.weights, {i: len(fed.clients[i][1]) for i in deltas})
            aggregate = np.sum([p[i] * _sent(method, deltas[i], steps[i]) for i in deltas], axis=0, dtype=x.dtype)
            if method.control:
                lr = method.client_lr * method.client_factor(t)
                before = {i: own.get(i, common) for i in deltas}
                after = {i: before[i] - common + (-deltas[i]) / (steps[i] * lr) for i in deltas}
                own |= after
                change = np.sum([p[i] * (after[i] - before[i]) for i in deltas], axis=0, dtype=x.dtype)
                common = common + len(deltas) / len(fed.clients) * change
            x = method.server.step(x, aggregate, method.server_factor(t))
        kept = {"c": common, **{f"c{i}": c for i, c in own.items()}} if method.control else {}
        snapshots.append({"x": x, **method.server.state, **kept})
    return snapshots


def _train(fed: Federation, method: Method, x: Array, t: int, i: int, correction: Array | None) -> tuple[Array, int]:
    """D_i and K_i."""
    v = method.server.state["v"] if method.transmit else None
    rule = method.client(Start(x, method.client_factor(t), v, fed.network.shapes, t))
    features, labels = fed.clients[i]
    local, k = x, 0
    for k, (epoch, rows) in enumerate(fed.batches(t, i) if len(labels) else [], start=1):

        def gradient(there: Array, rows: Array = rows) -> tuple[float, Array]:
            loss, g = fed.network.loss_and_gradient(there, features[rows].astype(x.dtype), labels[rows])
            return loss + method.prox / 2 * norm(there - x) ** 2, _corrected(method, g, there, x, correction)

        loss, g = gradient(local)
        warm = min(1.0, (k - 1 + method.from_first) / method.warmup) if method.warmup else 1.0
        local = rule.step(Step(k, epoch, local, g, loss, gradient, warm))
    return local - x, k


def _corrected(method: Method, g: Array, local: Array, x: Array, correction: Array | None) -> Array:
    g = g + method.prox * (local - x) + method.weight_decay * local
    if correction is not None:
        g = g + correction
    if method.clip is not None and norm(g) > method.clip:
        g = g * (method.clip / norm(g))
    return g


def _sent(method: Method, delta: Array, steps: int) -> Array:
    if method.divide_by_steps:
        delta = delta / steps
    if method.delta_clip is not None and norm(delta) > method.delta_clip:
        delta = delta * (method.delta_clip / norm(delta))
    return delta


def _weights(weights: str, sizes: dict[int, int]) -> dict[int, float]:
    if weights == "uniform":
        return {i: 1 / len(sizes) for i in sizes}
    return {i: n / sum(sizes.values()) for i, n in sizes.items()}
