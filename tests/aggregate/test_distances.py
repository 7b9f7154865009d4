"""Krum, the geometric median and the norm bound: against literal loops, scipy and what their papers promise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.optimize
import torch
from torch import Tensor

from fastfed.aggregate import GeometricMedian, Krum, NormBounded, Reduction, distances
from fastfed.app.config import parse

from ..app.config.support import tables


def drawn(clients: int, size: int, seed: int = 0) -> Tensor:
    return torch.randn(clients, size, generator=torch.Generator().manual_seed(seed))


def uniform(clients: int) -> Tensor:
    return torch.full((clients,), 1 / clients, dtype=torch.float64)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_products_by_blocks_are_those_of_numpy_to_the_same_bits(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    monkeypatch.setattr(distances, "BLOCK", 5 * 13)
    deltas = drawn(5, 201)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = distances.products(deltas)
    finally:
        torch.set_num_threads(before)
    np.testing.assert_allclose(found, deltas.double().numpy() @ deltas.double().numpy().T, rtol=1e-13, atol=1e-13)
    alone = sum((part.double() @ part.double().T for part in deltas.split(13, dim=1)), torch.zeros(5, 5).double())
    torch.testing.assert_close(found, alone, rtol=1e-15, atol=1e-15)
    assert torch.equal(found, distances.products(deltas))


def krum(deltas: np.ndarray, hostile: int, keep: int) -> np.ndarray:
    """Blanchard et al., by two loops."""
    clients, scores = len(deltas), []
    for i in range(clients):
        apart = sorted(float(((deltas[i] - deltas[j]) ** 2).sum()) for j in range(clients) if j != i)
        scores.append(sum(apart[: max(1, clients - hostile - 2)]))
    return np.mean([deltas[i] for i in sorted(range(clients), key=scores.__getitem__)[:keep]], axis=0)


@pytest.mark.parametrize("clients", [1, 2, 3, 7, 10])
@pytest.mark.parametrize(("hostile", "keep"), [(0.0, 1), (0.2, 1), (0.3, 4), (0.45, 30)])
def test_krum_is_that_of_two_loops(clients: int, hostile: float, keep: int) -> None:
    deltas = drawn(clients, 37, seed=clients)
    wanted = krum(deltas.double().numpy(), int(hostile * clients + 1e-9), keep)
    found = Krum(hostile, keep).reduce(deltas.clone(), uniform(clients))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-7)


def test_the_geometric_median_is_that_of_scipy() -> None:
    deltas, weights = drawn(7, 3, seed=2), torch.tensor([3.0, 1, 2, 1, 1, 4, 2], dtype=torch.float64) / 14
    points = deltas.double().numpy()

    def cost(z: np.ndarray) -> float:
        return float((weights.numpy() * np.linalg.norm(points - z, axis=1)).sum())

    best = scipy.optimize.minimize(cost, points.mean(0), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-14})
    found = GeometricMedian(iterations=1000).reduce(deltas, weights)
    np.testing.assert_allclose(found, best.x, atol=2e-6)
    apart = np.linalg.norm(found.numpy() - points.mean(0))
    assert apart > 0.01  # it is not the mean


@pytest.mark.parametrize("iterations", [1, 3])
@pytest.mark.parametrize("nearest", [1e-6, 2.5])
def test_so_many_iterations_are_weiszfelds(iterations: int, nearest: float) -> None:
    """Over the vectors themselves, as RFA is written."""
    deltas, weights = drawn(6, 11, seed=4), torch.tensor([1.0, 2, 1, 5, 1, 2], dtype=torch.float64) / 12
    points = deltas.double()
    z = weights @ points
    for _ in range(iterations):
        pull = weights / (points - z).norm(dim=1).clamp(min=nearest)
        z = (pull / pull.sum()) @ points
    found = GeometricMedian(iterations, nearest).reduce(deltas.clone(), weights)
    torch.testing.assert_close(found.double(), z, rtol=1e-5, atol=1e-6)


def test_a_client_of_more_than_half_the_weight_is_the_geometric_median() -> None:
    weights = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    deltas = drawn(3, 5)
    torch.testing.assert_close(GeometricMedian().reduce(deltas.clone(), weights), deltas[0], rtol=1e-4, atol=1e-4)


def test_norms_are_bounded_by_their_median() -> None:
    deltas = drawn(5, 9) * torch.tensor([1.0, 100, 2, 0.5, 30])[:, None]
    weights = torch.tensor([0.1, 0.2, 0.3, 0.3, 0.1], dtype=torch.float64)
    rows = deltas.double().numpy()
    norms = np.linalg.norm(rows, axis=1)
    bounded = rows * np.minimum(1, np.median(norms) / norms)[:, None]
    found = NormBounded().reduce(deltas.clone(), weights)
    np.testing.assert_allclose(found, weights.numpy() @ bounded, rtol=1e-5, atol=1e-7)


EACH = [Krum(0.3), Krum(0.3, keep=5), GeometricMedian(), NormBounded()]


@pytest.mark.parametrize("reduction", EACH, ids=str)
@pytest.mark.parametrize("size", [1e4, 1e30, 3e38])
def test_two_of_ten_cannot_move_it_far(reduction: Reduction, size: float) -> None:
    """Whatever they send, alike or apart: no further than honest clients are apart."""
    honest = drawn(8, 50, seed=1)
    hostile = torch.stack([torch.full((50,), size), -drawn(1, 50)[0].sign() * size])
    found = reduction.reduce(torch.cat([honest, hostile]), uniform(10))
    assert float(found.norm()) < 1.5 * float(honest.norm(dim=1).max())


@pytest.mark.parametrize("reduction", EACH, ids=str)
def test_deltas_that_are_zero_or_alike_or_alone_are_no_trouble(reduction: Reduction) -> None:
    assert torch.equal(reduction.reduce(torch.zeros(4, 6), uniform(4)), torch.zeros(6))
    row = drawn(1, 6)
    for clients in (1, 5):
        found = reduction.reduce(row.repeat(clients, 1), uniform(clients))
        torch.testing.assert_close(found, row[0], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Krum(0.5), r"^hostile: must be a number in \[0, 0.5\), got 0.5"),
        (lambda: Krum(True), r"^hostile: must be a number"),
        (lambda: Krum(0.1, keep=0), "^keep: must be a whole number >= 1, got 0"),
        (lambda: GeometricMedian(iterations=1.5), "^iterations: must be a whole number >= 1, got 1.5"),  # type: ignore[arg-type]
        (lambda: GeometricMedian(nearest=0.0), "^nearest: must be a finite number > 0, got 0.0"),
        (lambda: GeometricMedian(nearest=float("inf")), "^nearest: must be a finite number > 0, got inf"),
    ],
)
def test_options_that_mean_nothing_are_refused(make: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make()


@pytest.mark.parametrize(
    ("table", "wanted"),
    [
        ({"kind": "krum", "hostile": 0.3, "keep": 3}, Krum(0.3, 3)),
        ({"kind": "geometric_median", "iterations": 5}, GeometricMedian(5)),
        ({"kind": "norm_bounded"}, NormBounded()),
    ],
    ids=str,
)
def test_a_file_names_them(table: dict[str, Any], wanted: Reduction) -> None:
    config = parse(tables(run={"rounds": 1, "cohort": 3, "weights": "uniform"}, aggregation=table))
    assert config.settings["aggregation"] == wanted
    assert parse(config.resolved()).settings["aggregation"] == wanted
