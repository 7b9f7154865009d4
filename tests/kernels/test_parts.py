"""`aggregate_step` on models in parts: the bits of the packed step, on every backend, without a packed copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fastfed import kernels
from fastfed.kernels import SERVER_RULES

SHAPES = [(3, 5), (), (17,), (0, 4), (2, 3, 1, 7), (9001,)]
CLIENTS = 6


def drawn(seed: int, shapes: list[tuple[int, ...]] = SHAPES, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]


def packed(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([part.reshape(-1) for part in parts])


def steps(rule: str, dtype: torch.dtype, subtract: bool, backend: str, made: Any) -> None:
    options = {"lr": 0.3, "bias_correction": True} if "bias_correction" in SERVER_RULES[rule].options else {"lr": 0.3}
    corrected = {"bias_correction": True} if len(options) == 2 else {}
    x = [made(part) for part in drawn(0, dtype=dtype)]
    y = packed(drawn(0, dtype=dtype))
    held, state = kernels.server_state(rule, x, **corrected), kernels.server_state(rule, y, **corrected)
    for step in range(3):
        weights = torch.rand(CLIENTS, generator=torch.Generator().manual_seed(step), dtype=dtype)
        clients = [drawn(10 * step + client + 1, dtype=dtype) for client in range(CLIENTS)]
        rows = torch.stack([packed(client) for client in clients])
        arrays = [[made(part) for part in client] for client in clients]
        kernels.aggregate_step(rule, x, arrays, made(weights), held, subtract=subtract, backend=backend, **options)
        deltas = rows - y if subtract else rows
        kernels.aggregate_step(rule, y, deltas, weights, state, backend=backend, **options)
    tensors = [torch.as_tensor(part) for part in x]
    assert [tuple(part.shape) for part in tensors] == SHAPES
    assert torch.equal(packed(tensors), y)
    assert set(held) == set(state)
    for name in set(state) - {"step"}:
        assert torch.equal(packed(held[name]), state[name]), name
    assert not corrected or int(held["step"]) == 3


@pytest.mark.backend
@pytest.mark.parametrize("subtract", [False, True], ids=["deltas", "models"])
@pytest.mark.parametrize("rule", SERVER_RULES)
def test_same_bits_as_packed(rule: str, subtract: bool, backend: str) -> None:
    steps(rule, torch.float32, subtract, backend, lambda tensor: tensor)


@pytest.mark.parametrize("of", ["cpp", "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lists_of_numpy_arrays(dtype: torch.dtype, of: str) -> None:
    steps("adam", dtype, True, of, lambda tensor: tensor.clone().numpy())


def test_packed_models_are_subtracted_too() -> None:
    x, y = packed(drawn(0)), packed(drawn(0))
    rows = torch.stack([packed(drawn(client + 1)) for client in range(CLIENTS)])
    weights = torch.linspace(0.1, 0.6, CLIENTS)
    held, state = kernels.server_state("yogi", x), kernels.server_state("yogi", y)
    kernels.aggregate_step("yogi", x, rows, weights, held, subtract=True, lr=0.1)
    kernels.aggregate_step("yogi", y, rows - y, weights, state, lr=0.1)
    assert torch.equal(x, y)
    for name in state:
        assert torch.equal(held[name], state[name])


def test_any_number_of_threads() -> None:
    found = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        x = drawn(0, [(70_001,), (3,)])
        clients = [drawn(client + 1, [(70_001,), (3,)]) for client in range(CLIENTS)]
        kernels.aggregate_step("adagrad", x, clients, torch.ones(CLIENTS), kernels.server_state("adagrad", x), lr=0.1)
        found.append(packed(x))
    torch.set_num_threads(2)
    assert all(torch.equal(found[0], other) for other in found[1:])


def constant(array: np.ndarray) -> np.ndarray:
    array.setflags(write=False)
    return array


@pytest.mark.parametrize(
    ("spoil", "error", "words"),
    [
        (lambda x, c, w, s: (x, c[0], w, s), TypeError, r"deltas\[0\]: must be a list of arrays like x, got Tensor"),
        (lambda x, c, w, s: (x, [], w, s), ValueError, "deltas: must be a list of at least one client's list"),
        (lambda x, c, w, s: ([], c, w, s), ValueError, "x: must hold at least one array, got 0"),
        (lambda x, c, w, s: (x, [c[0], c[1][:2]], w, s), ValueError, r"deltas\[1\]: must hold 6 arrays like x, got 2"),
        (lambda x, c, w, s: (x, [c[0], [*c[1][:5], c[1][2]]], w, s), ValueError, r"deltas\[1\]\[5\]: must have shape"),
        (
            lambda x, c, w, s: ([x[0].double(), *x[1:]], c, w, s),
            TypeError,
            r"x\[1\]: must be torch.float64 like x\[0\]",
        ),
        (lambda x, c, w, s: ([x[0].int(), *x[1:]], c, w, s), TypeError, r"x\[0\]: must be float32 or float64"),
        (lambda x, c, w, s: (x, c, w[:1], s), ValueError, r"weights: must have shape \(2,\)"),
        (lambda x, c, w, s: (x, c, w, {"m": s["m"][:2], "v": s["v"]}), ValueError, r"state\['m'\]: must hold 6 arrays"),
        (lambda x, c, w, s: (x, c, w, {"m": s["m"]}), ValueError, "state: lacks v"),
        (lambda x, c, w, s: (x, c, w, {"m": x, "v": s["v"]}), ValueError, "overlaps"),
        (lambda x, c, w, s: (x, [c[0], x], w, s), ValueError, "overlaps"),
        (
            lambda x, c, w, s: ([constant(x[0].numpy()), *x[1:]], c, w, s),
            ValueError,
            r"x\[0\]: this numpy array is read",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(spoil: Any, error: type, words: str) -> None:
    x, clients, weights = drawn(0), [drawn(1), drawn(2)], torch.ones(2)
    given = spoil(x, clients, weights, kernels.server_state("adam", x))
    with pytest.raises(error, match=words):
        kernels.aggregate_step("adam", *given, lr=0.1)
    assert torch.equal(packed(x), packed(drawn(0)))
