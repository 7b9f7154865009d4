"""The rules once more, as literal NumPy loops straight from the papers' listings: slow, plain, and nobody's kernel.

Nothing here imports FastFed. Every function works in the dtype of `x` (norms in float64) and gives back x and all state
after every step; a client function keeps what the paper's listing keeps (x_prev, g_prev, nu), not what a kernel would.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Snapshots = list[dict[str, Array]]


def _norm(vector: Array) -> float:
    return float(np.sqrt(np.sum(vector.astype(np.float64) ** 2)))


# ---- server ---------------------------------------------------------------------------------------------------------


Step = Callable[[dict[str, Array], Array, int, Any], dict[str, Array]]  # (x and moments, delta, t, options) to the next


def _sgd(s: dict[str, Array], delta: Array, t: int, o: Any) -> dict[str, Array]:
    return {"x": s["x"] + o.lr * delta}


def _momentum(s: dict[str, Array], delta: Array, t: int, o: Any) -> dict[str, Array]:
    m = o.momentum * s["m"] + delta
    return {"x": s["x"] + o.lr * m, "m": m}


def _smoothed(s: dict[str, Array], delta: Array, o: Any) -> tuple[Array, Array]:
    """The first moment, and the squares that the second one follows."""
    m = o.beta1 * s["m"] + (1 - o.beta1) * delta
    return m, m * m if o.second_moment_of == "momentum" else delta * delta


def _adaptive(second_moment: Callable[[Array, Array, Any], Array]) -> Step:
    """AFO's adaptive servers, which differ in v; bias corrections as its authors code them, or as torch does."""

    def step(s: dict[str, Array], delta: Array, t: int, o: Any) -> dict[str, Array]:
        m, q = _smoothed(s, delta, o)
        v = second_moment(s["v"], q, o)
        bc1, bc2 = (1 - o.beta1**t, 1 - o.beta2**t) if o.bias_correction else (1.0, 1.0)
        if o.eps == "torch":
            x = s["x"] + o.lr / bc1 * m / (np.sqrt(v) / np.sqrt(bc2).item() + o.tau)
        else:
            x = s["x"] + o.lr * np.sqrt(bc2).item() / bc1 * m / (np.sqrt(v) + o.tau)
        return {"x": x, "m": m, "v": v}

    return step


def _ams(s: dict[str, Array], delta: Array, t: int, o: Any) -> dict[str, Array]:
    """Bias corrections as the authors of FedAMS code them, and torch."""
    m, q = _smoothed(s, delta, o)
    v = o.beta2 * s["v"] + (1 - o.beta2) * q
    vmax = np.maximum(s["vmax"], v)
    bc1, bc2 = (1 - o.beta1**t, 1 - o.beta2**t) if o.bias_correction else (1.0, 1.0)
    x = s["x"] + o.lr / bc1 * m / (np.sqrt(vmax) / np.sqrt(bc2).item() + o.tau)
    return {"x": x, "m": m, "v": v, "vmax": vmax}


SERVERS: dict[str, Step] = {
    "sgd": _sgd,
    "momentum": _momentum,
    "adagrad": _adaptive(lambda v, q, o: v + q),
    "adam": _adaptive(lambda v, q, o: o.beta2 * v + (1 - o.beta2) * q),
    "yogi": _adaptive(lambda v, q, o: v - (1 - o.beta2) * q * np.sign(v - q)),
    "ams": _ams,
}


def server(
    rule: str,
    x: Array,
    deltas: Sequence[Array],
    *,
    v0: float | None = None,
    vmax0: float | None = None,
    **options: Any,
) -> Snapshots:
    """The rule of that name in `SERVERS`; what is not among `options` is AFO's, or torch's with `eps` "torch"."""
    usual = {"momentum": 0.9, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3, "second_moment_of": "momentum"}
    if options.get("eps") == "torch":
        usual["second_moment_of"] = "delta"
    o = SimpleNamespace(**{"bias_correction": False, "eps": "authors", **usual, **options})
    first = 0.0 if o.eps == "torch" else o.tau**2
    start = first if v0 is None else v0
    state = {"x": x.copy(), "m": np.zeros_like(x), "v": np.full_like(x, start)}
    state["vmax"] = np.full_like(x, start if vmax0 is None else vmax0)
    snapshots = []
    for t, delta in enumerate(deltas, start=1):
        snapshots.append(SERVERS[rule](state, delta, t, o))
        state |= snapshots[-1]
    return snapshots


# ---- client ---------------------------------------------------------------------------------------------------------


def corrected(
    g: Array,
    x: Array,
    *,
    anchor: Array | None = None,
    correction: Array | None = None,
    weight_decay: float = 0.0,
    prox: float = 0.0,
    clip: float | None = None,
) -> Array:
    """FedProx, SCAFFOLD and weight decay added to the gradient; the sum is clipped last."""
    g = g + weight_decay * x
    if anchor is not None:
        g = g + prox * (x - anchor)
    if correction is not None:
        g = g + correction
    if clip is not None and _norm(g) > clip:
        g = g * (clip / _norm(g))
    return g


def sgd(x: Array, grads: Sequence[Array], *, lr: float, momentum: float | None = None, **around: Any) -> Snapshots:
    x, u, snapshots = x.copy(), np.zeros_like(x), []
    for k, raw in enumerate(grads):
        g = corrected(raw, x, **_at(around, k))
        if momentum is None:
            x = x - lr * g
            snapshots.append({"x": x})
        else:
            u = momentum * u + g
            x = x - lr * u
            snapshots.append({"x": x, "m": u})
    return snapshots


def agdu(
    x: Array,
    grads: Sequence[Array],
    *,
    lr: float,
    eps: float,
    delay: int = 1,
    floor: float = 0.0,
    v0: float = 0.0,
    **around: Any,
) -> Snapshots:
    """AdaGrad with delayed updates."""
    x, v, snapshots = x.copy(), np.full_like(x, v0), []
    for k, raw in enumerate(grads, start=1):
        g = corrected(raw, x, **_at(around, k - 1))
        if (k - 1) % delay == 0:
            v = v + g * g
        m = g
        if 0 < _norm(m / (np.sqrt(v) + eps)) < floor:
            m = np.zeros_like(m)
        x = x - lr * m / (np.sqrt(v) + eps)
        snapshots.append({"x": x, "v": v})
    return snapshots


def admu(
    x: Array,
    grads: Sequence[Array],
    *,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    delay: int = 1,
    floor: float = 0.0,
    v0: float = 0.0,
    epochs: Sequence[int] | None = None,
    counted_before: int | None = 0,
    **around: Any,
) -> Snapshots:
    """Adam with delayed updates; the second moment's bias correction counts refreshes, from `counted_before` on (None:
    there is no correction). With `epochs` (of every step, counted from 1) the delay counts those instead of steps."""
    x, m, v, snapshots = x.copy(), np.zeros_like(x), np.full_like(x, v0), []
    refreshes = 0
    for k, raw in enumerate(grads, start=1):
        g = corrected(raw, x, **_at(around, k - 1))
        m = beta1 * m + (1 - beta1) * g
        if ((k if epochs is None else epochs[k - 1]) - 1) % delay == 0:
            v = beta2 * v + (1 - beta2) * g * g
            refreshes += 1
        if epochs is None:
            assert refreshes == (k - 1) // delay + 1  # the exponent as ALGORITHMS.md writes it
        vhat, mhat = v, m
        if counted_before is not None:
            vhat = v / (1 - beta2 ** (counted_before + refreshes))
            mhat = m / (1 - beta1 ** (counted_before + k))
        if 0 < _norm(mhat / (np.sqrt(vhat) + eps)) < floor:
            m, mhat = np.zeros_like(m), np.zeros_like(m)
        x = x - lr * mhat / (np.sqrt(vhat) + eps)
        snapshots.append({"x": x, "m": m, "v": v})
    return snapshots


def sm3(
    x: Array,
    grads: Sequence[Array],
    sets: Sequence[Sequence[int]],
    *,
    lr: float,
    form: str = "II",
    eps: float = 0.0,
    root_eps: float = 0.0,
    momentum: float = 0.0,
    betas: tuple[float, float] | None = None,
    delay: int = 1,
    exact: bool = False,
    floor: float = 0.0,
    v0: float | Array = 0.0,
    **around: Any,
) -> Snapshots:
    """SM3 over any cover, set by set and coordinate by coordinate. `betas` make it SM3-Adam; `momentum` is that of its
    reference implementation, of the preconditioned gradient. Coordinates in no set stay as they are."""
    x, m, nu, snapshots = x.copy(), np.zeros_like(x), np.zeros_like(x), []
    start = np.broadcast_to(np.asarray(v0, x.dtype), x.shape)
    mu = np.array([max(start[j] for j in members) for members in sets], x.dtype)
    keep, gain = (1.0, 1.0) if betas is None else (betas[1], 1 - betas[1])
    around_j: list[list[int]] = [[] for _ in x]
    for r, members in enumerate(sets):
        for j in members:
            around_j[j].append(r)
    covered = np.array([bool(holders) for holders in around_j])
    refreshes = 0
    for k, raw in enumerate(grads, start=1):
        g = corrected(raw, x, **_at(around, k - 1))
        refresh = (k - 1) % delay == 0
        refreshes += refresh
        if refresh and form == "I":
            for r, members in enumerate(sets):
                mu[r] = keep * mu[r] + gain * max(g[j] * g[j] for j in members)
        if refresh and form == "II":
            for j, holders in enumerate(around_j):
                if holders:
                    nu[j] = keep * min(mu[r] for r in holders) + gain * (g[j] * g[j])
            for r, members in enumerate(sets):
                mu[r] = max(nu[j] for j in members)
        elif form == "I" or not exact:
            for j, holders in enumerate(around_j):
                if holders:
                    nu[j] = min(mu[r] for r in holders)
        if betas is None:
            step, root = g, np.sqrt(nu + root_eps)
        else:
            m = np.where(covered, betas[0] * m + (1 - betas[0]) * g, m)
            step, root = m / (1 - betas[0] ** k), np.sqrt(nu / (1 - betas[1] ** refreshes))
        direction = np.divide(step, root + eps, out=np.zeros_like(x), where=covered)
        if 0 < _norm(direction) < floor:
            m, direction = np.zeros_like(m), np.zeros_like(m)
        if momentum > 0:
            m = direction = np.where(covered, momentum * m + (1 - momentum) * direction, m)
        x = x - lr * direction
        snapshot = {"x": x, "mu": mu.copy()}
        if betas is not None or momentum > 0:
            snapshot["m"] = m
        if exact:
            snapshot["nu"] = nu.copy()
        snapshots.append(snapshot)
    return snapshots


def delta_sgd(
    x: Array,
    grads: Sequence[Array],
    *,
    lr: float,
    gamma: float = 2.0,
    delta: float = 0.1,
    theta: float = 1.0,
    grow_first: bool = False,
    lr_eps: float = 0.0,
    previous: Sequence[Array] | None = None,
    **around: Any,
) -> Snapshots:
    """DSGD's Algorithm 1 with x_prev and g_prev; "binds" tells which bound chose the step size: 0 the start, 1 the
    measured one, 2 growth. `previous`: the last step's gradient on the current batch (the authors' code)."""
    x, snapshots = x.copy(), []
    x_prev: Array | None = None
    g_prev: Array | None = None
    for k, raw in enumerate(grads, start=1):
        g = corrected(raw, x, **_at(around, k - 1))
        if previous is not None:
            g_prev = previous[k - 1]
        binds = 0
        if k > 1 or grow_first:
            grown = float(np.sqrt(1 + delta * theta)) * lr
            new, binds = grown, 2
            if x_prev is not None and g_prev is not None:
                move, change = _norm(x - x_prev), _norm(g - g_prev)
                if move > 0 and change > 0:
                    binds = 1 if gamma * move / (2 * change) < grown else 2
                    new = min(gamma * move / (2 * change), grown) + lr_eps
            theta, lr = new / lr, new
        x_prev, g_prev = x, g
        x = x - lr * g
        snapshots.append({"x": x, "lr": np.float64(lr), "theta": np.float64(theta), "binds": np.int64(binds)})
    return snapshots


def sps(
    x: Array,
    grads: Sequence[Array],
    losses: Sequence[float],
    *,
    c: float,
    f_star: float,
    lr_max: float = math.inf,
    eps: float = 1e-8,
    **around: Any,
) -> Snapshots:
    """Stochastic Polyak steps; "binds" is 1 where the Polyak quotient chose the step size, 2 where lr_max did."""
    x, snapshots = x.copy(), []
    for k, raw in enumerate(grads):
        g = corrected(raw, x, **_at(around, k))
        loss = losses[k]
        if around.get("prox"):
            loss = loss + around["prox"] / 2 * _norm(x - around["anchor"]) ** 2
        polyak = (loss - f_star) / (c * _norm(g) ** 2 + eps)
        lr = min(polyak, lr_max)
        x = x - lr * g
        snapshots.append({"x": x, "lr": np.float64(lr), "binds": np.int64(1 if polyak < lr_max else 2)})
    return snapshots


def _at(around: dict[str, Any], k: int) -> dict[str, Any]:
    """The options of `corrected` at step k: "corrections" holds one vector per step."""
    options = dict(around)
    corrections = options.pop("corrections", None)
    return options if corrections is None else {**options, "correction": corrections[k]}
