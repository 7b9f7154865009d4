"""Arrays of other libraries in every op: NumPy's, JAX's, and one that only speaks DLPack. The same bits as tensors, in
place where they are writable, refused where they are constant."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fastfed import kernels
from fastfed.kernels.ops.common import State

jnp = pytest.importorskip("jax.numpy", reason="jax is not installed")

CLIENTS, D = 3, 37


class OnlyDLPack:
    """An array of a library that nobody knows; `constant` ones say so to whoever asks as the newer DLPack does."""

    def __init__(self, tensor: torch.Tensor, constant: bool = False, older: bool = False) -> None:
        self.array, self.older = tensor.numpy().copy(), older
        self.array.setflags(write=not constant)

    def __dlpack__(self, **options: Any) -> Any:
        if self.older and "max_version" in options:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) + 0.1


MUTABLE = {
    "numpy": lambda tensor: tensor.clone().numpy(),
    "DLPack": lambda tensor: OnlyDLPack(tensor.clone()),
    "older DLPack": lambda tensor: OnlyDLPack(tensor.clone(), older=True),
}
READABLE = MUTABLE | {
    "jax": lambda tensor: jnp.asarray(tensor.numpy()),
    "constant numpy": lambda tensor: OnlyDLPack(tensor.clone(), constant=True).array,
}
mutable = pytest.mark.parametrize("made", MUTABLE.values(), ids=MUTABLE)


def tensor(array: Any) -> torch.Tensor:
    return array if isinstance(array, torch.Tensor) else torch.from_numpy(np.array(getattr(array, "array", array)))


@mutable
@pytest.mark.parametrize("arrays_in_state", [False, True])
def test_server_steps(made: Any, arrays_in_state: bool) -> None:
    x, deltas, weights = numbers(D), numbers(CLIENTS, D, seed=1), numbers(CLIENTS, seed=2)
    ours: State = kernels.server_state("yogi", x, tau=1e-2, bias_correction=True)
    theirs: dict[str, Any] = kernels.server_state("yogi", made(x), tau=1e-2, bias_correction=True)
    if arrays_in_state:
        theirs = {name: made(value) for name, value in theirs.items()}
    array = made(x)
    options = {"lr": 0.1, "tau": 1e-2, "bias_correction": True}
    for _ in range(2):
        kernels.server_step("yogi", x, deltas[0], ours, **options)
        kernels.server_step("yogi", array, made(deltas[0]), theirs, **options)
        kernels.aggregate_step("yogi", x, deltas, weights, ours, **options)
        kernels.aggregate_step("yogi", array, made(deltas), made(weights), theirs, **options)
    assert torch.equal(tensor(array), x)
    assert int(ours["step"]) == 4
    for name in ours:
        assert torch.equal(tensor(theirs[name]), ours[name]), name


@mutable
@pytest.mark.parametrize("rule", ["adam", "sps", "delta_sgd"])
def test_client_steps(made: Any, rule: str) -> None:
    x, grad, anchor = numbers(CLIENTS, D), numbers(CLIENTS, D, seed=1), numbers(D, seed=2)
    array, held = made(x), kernels.client_state(rule, made(x))
    state = kernels.client_state(rule, x)
    lr, loss = numbers(CLIENTS, seed=4).double(), numbers(CLIENTS, seed=5).double()
    finished = torch.tensor([False, True, False])
    given = {"loss": loss} if rule == "sps" else {"lr": lr}
    for _ in range(3):
        kernels.client_step(rule, x, grad, state, anchor=anchor, prox=0.3, finished=finished, **given)
        arrays = {name: made(value) for name, value in given.items()}
        kernels.client_step(
            rule, array, made(grad), held, anchor=made(anchor), prox=0.3, finished=finished.numpy(), **arrays
        )
    assert torch.equal(tensor(array), x)
    for name in state:
        assert torch.equal(tensor(held[name]), state[name]), name


@pytest.mark.parametrize("made", READABLE.values(), ids=READABLE)
def test_sums(made: Any) -> None:
    deltas, weights = numbers(CLIENTS, D, seed=1), numbers(CLIENTS, seed=2)
    found = kernels.weighted_sum(made(deltas), made(weights))
    assert torch.equal(tensor(found), kernels.weighted_sum(deltas, weights))
    assert torch.equal(tensor(kernels.trimmed_mean(made(deltas), 1)), kernels.trimmed_mean(deltas, 1))
    lengths = tensor(kernels.norms(made(deltas)))
    torch.testing.assert_close(lengths.double(), kernels.norms(deltas), rtol=1e-6, atol=0)  # JAX's may be float32
    array = made(deltas)
    assert isinstance(found, type(array) if not isinstance(array, OnlyDLPack) else torch.Tensor)


@mutable
def test_results_go_where_they_shall(made: Any) -> None:
    deltas, weights = numbers(CLIENTS, D, seed=1), numbers(CLIENTS, seed=2)
    for op, arguments in ((kernels.weighted_sum, (weights,)), (kernels.trimmed_mean, (1,))):
        out = made(torch.zeros(D))
        arrays = [made(each) if isinstance(each, torch.Tensor) else each for each in arguments]
        assert op(made(deltas), *arrays, out) is out
        assert torch.equal(tensor(out), op(deltas, *arguments))
    clipped, rows = made(deltas), deltas.clone()
    before = tensor(kernels.clip(clipped, 0.5))
    assert torch.equal(before, kernels.clip(rows, 0.5))
    assert torch.equal(tensor(clipped), rows)


CONSTANT = {
    "numpy": lambda tensor: OnlyDLPack(tensor.clone(), constant=True).array,
    "jax": lambda tensor: jnp.asarray(tensor.numpy()),
    "DLPack": lambda tensor: OnlyDLPack(tensor.clone(), constant=True),
}


@pytest.mark.parametrize("library", CONSTANT)
def test_constant_arrays_are_refused_where_they_would_be_written(library: str) -> None:
    x, delta = numbers(D), numbers(D, seed=1)
    array = CONSTANT[library](x)
    state = kernels.server_state("adam", x)
    words = "this .* array is read-only, and the op writes it in place; pass a copy"
    with pytest.raises(ValueError, match=f"^x: {words}"):
        kernels.server_step("adam", array, delta.numpy(), state, lr=0.1)
    with pytest.raises(ValueError, match=f"^x: {words}"):
        kernels.client_step("sgd", array, delta.numpy(), {}, lr=0.1)
    with pytest.raises(ValueError, match=f"^x: {words}"):
        kernels.clip(array, 0.1)
    with pytest.raises(ValueError, match=f"^out: {words}"):
        kernels.weighted_sum(delta[None].numpy(), np.ones(1, np.float32), array)
    with pytest.raises(ValueError, match=rf"^state\['v'\]: {words}"):
        kernels.server_step("adam", x.clone().numpy(), delta.numpy(), {**state, "v": array}, lr=0.1)
    assert torch.equal(tensor(array), x)


def test_arrays_that_torch_cannot_share_are_refused() -> None:
    x = np.zeros(9, np.float32)
    with pytest.raises(TypeError, match="delta: torch cannot share this array's memory"):
        kernels.server_step("sgd", x, np.ones(9, np.float32)[::-1], {})
    with pytest.raises(TypeError, match="x: must be float32 or float64, got int32"):
        kernels.server_step("sgd", np.zeros(9, np.int32), np.ones(9, np.float32), {})
    with pytest.raises(ValueError, match="delta: must have shape"):
        kernels.server_step("sgd", x, np.ones(8, np.float32), {})
    with pytest.raises(TypeError, match=r"x: must be a torch.Tensor, got list"):
        kernels.server_step("sgd", [1.0, 2.0], x, {})
    with pytest.raises(TypeError, match=r"delta: must be a torch.Tensor, got ndarray"):
        kernels.server_step("sgd", torch.zeros(9), x, {})
