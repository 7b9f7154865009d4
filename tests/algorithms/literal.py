"""Algorithms in Python as their papers' listings read: slow NumPy loops that know nothing of FastFed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..simulation.literal import Array, Federation, Snapshot

Local = Callable[[Array, Array, Callable[[Array], Array], int], Array]  # start, x, gradient of the batch, step -> x


def weights(fed: Federation, cohort: Sequence[int], uniform: bool) -> dict[int, float]:
    """p_i of those who have examples."""
    sizes = {i: 1 if uniform else len(fed.clients[i][1]) for i in cohort if len(fed.clients[i][1])}
    whole = sum(sizes.values())
    return {i: n / whole for i, n in sizes.items()}


def gradients(fed: Federation, t: int, i: int) -> list[Callable[[Array], Array]]:
    """A gradient for each local step."""
    features, labels = fed.clients[i]

    def of(rows: Array) -> Callable[[Array], Array]:
        return lambda x: fed.network.loss_and_gradient(x, features[rows].astype(x.dtype), labels[rows])[1]

    return [of(rows) for _, rows in fed.batches(t, i)]


def sgd(fed: Federation, t: int, i: int, start: Array, lr: float, momentum: float = 0.0) -> Array:
    x, u = start, np.zeros_like(start)
    for g in gradients(fed, t, i):
        u = momentum * u + g(x)
        x = x - lr * u
    return x


def fedexp(fed: Federation, x: Array, cohorts: Any, *, lr: float, eps: float) -> list[Snapshot]:
    found = []
    for t, cohort in enumerate(cohorts):
        p = weights(fed, cohort, uniform=False)
        deltas = {i: x - sgd(fed, t, i, x, lr) for i in p}
        mean = sum(p[i] * deltas[i] for i in p)
        squares = sum(p[i] * float(np.sum(deltas[i] ** 2)) for i in p)
        eta = max(1.0, squares / (2 * (float(np.sum(mean**2)) + eps)))
        x = x - eta * mean
        found.append({"x": x, "eta": np.array(eta)})
    return found


def fednova(fed: Federation, x: Array, cohorts: Any, *, lr: float, server_lr: float, momentum: float) -> list[Snapshot]:
    found = []
    for t, cohort in enumerate(cohorts):
        p = weights(fed, cohort, uniform=False)
        direction, tau_eff = np.zeros_like(x), 0.0
        for i in p:
            tau = len(fed.batches(t, i))
            # How often the gradient of step k is in the delta: by itself, and through the momentum of those after it.
            a = [sum(momentum**j for j in range(tau - k)) for k in range(tau)]
            direction = direction + p[i] * (x - sgd(fed, t, i, x, lr, momentum)) / sum(a)
            tau_eff += p[i] * sum(a)
        x = x - server_lr * tau_eff * direction
        found.append({"x": x})
    return found


def feddyn(fed: Federation, x: Array, cohorts: Any, *, lr: float, alpha: float) -> list[Snapshot]:
    """h_i are the paper's local gradients, h its server's state."""
    h, own, found = np.zeros_like(x), dict[int, Array](), list[Snapshot]()
    for t, cohort in enumerate(cohorts):
        locals_ = {}
        for i in weights(fed, cohort, uniform=True):
            h_i, theta = own.get(i, np.zeros_like(x)), x
            for g in gradients(fed, t, i):
                theta = theta - lr * (g(theta) - h_i + alpha * (theta - x))
            own[i] = h_i - alpha * (theta - x)
            locals_[i] = theta
        h = h - alpha / len(fed.clients) * sum(theta - x for theta in locals_.values())
        x = sum(locals_.values()) / len(locals_) - h / alpha
        found.append({"x": x, "s": -h / alpha, **{f"kept{i}": v for i, v in own.items()}})
    return found


def fedlion(
    fed: Federation, x: Array, cohorts: Any, *, lr: float, server_lr: float, beta1: float, beta2: float
) -> list[Snapshot]:
    shared, found = np.zeros_like(x), list[Snapshot]()
    for t, cohort in enumerate(cohorts):
        moves, momenta = [], []
        for i in weights(fed, cohort, uniform=True):
            theta, m = x, shared
            for g in gradients(fed, t, i):
                gradient = g(theta)
                theta = theta - lr * np.sign(beta1 * m + (1 - beta1) * gradient)
                m = beta2 * m + (1 - beta2) * gradient
            moves.append(theta - x)
            momenta.append(m)
        x = x + server_lr * sum(moves) / len(moves)
        shared = sum(momenta) / len(momenta)
        found.append({"x": x, "common": shared})
    return found


def kept_momentum(fed: Federation, x: Array, cohorts: Any, *, lr: float, momentum: float) -> list[Snapshot]:
    own, found = dict[int, Array](), list[Snapshot]()
    for t, cohort in enumerate(cohorts):
        p, moved = weights(fed, cohort, uniform=False), np.zeros_like(x)
        for i in p:
            u, w = own.get(i, np.zeros_like(x)), x
            for g in gradients(fed, t, i):
                u = momentum * u + g(w)
                w = w - lr * u
            own[i] = u
            moved = moved + p[i] * (w - x)
        x = x + moved
        found.append({"x": x, **{f"kept{i}": v for i, v in own.items()}})
    return found


def ditto(fed: Federation, x: Array, cohorts: Any, *, lr: float, lam: float) -> list[Snapshot]:
    own, found = dict[int, Array](), list[Snapshot]()
    for t, cohort in enumerate(cohorts):
        p, moved = weights(fed, cohort, uniform=False), np.zeros_like(x)
        for i in p:
            v, w = own.get(i, x), x
            for g in gradients(fed, t, i):
                v, w = v - lr * (g(v) + lam * (v - x)), w - lr * g(w)
            own[i] = v
            moved = moved + p[i] * (w - x)
        x = x + moved
        found.append({"x": x, **{f"kept{i}": v for i, v in own.items()}})
    return found


def lion(fed: Federation, x: Array, cohorts: Any, *, lr: float, server_lr: float) -> list[Snapshot]:
    """Lion on the server, of whose model the mean move of the clients is a negative gradient: beta1 0.9, beta2 0.99."""
    m, found = np.zeros_like(x), list[Snapshot]()
    for t, cohort in enumerate(cohorts):
        p = weights(fed, cohort, uniform=False)
        g = sum(p[i] * (x - sgd(fed, t, i, x, lr)) for i in p)
        x = x - server_lr * np.sign(0.9 * m + 0.1 * g)
        m = 0.99 * m + 0.01 * g
        found.append({"x": x, "m": m})
    return found
