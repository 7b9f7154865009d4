"""Bad input is refused at the door: backends that are not there, or cannot do it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from fastfed import kernels
from fastfed.kernels import registry

from .bad_input import (
    D,
    client,
    refuses,
    server,
    vector,
)


def unavailable() -> list[str]:
    return [name for name, usable in kernels.backends().items() if usable is not True]


def test_unknown_backends_suggest_the_nearest() -> None:
    refuses("backend", kernels.server_step, *server(), lr=0.1, backend="nunba", says="Did you mean 'numba'?")
    refuses("backend", kernels.client_step, *client(), lr=0.1, backend="gpu", says="reference, cpp, numba")
    refuses("backend", kernels.norms, vector(), backend="gpu")


def test_a_backend_that_cannot_run_here_says_why() -> None:
    missing = unavailable()
    if not missing:
        pytest.skip("every backend runs here")
    for name in missing:
        reason = kernels.backends()[name]
        assert isinstance(reason, str)
        assert reason
        refuses("backend", kernels.server_step, *server(), lr=0.1, backend=name, says=reason)
        refuses("backend", kernels.client_step, *client(), lr=0.1, backend=name, says=reason)


def test_float32_backends_refuse_float64(backend: str) -> None:
    if torch.float64 in kernels.registry.BACKENDS[backend].dtypes:
        pytest.skip(f"{backend} computes in float64")
    x = vector(dtype=torch.float64)
    state = kernels.server_state("adam", x)
    refuses("backend", kernels.server_step, "adam", x, x * 0.1, state, lr=0.1, backend=backend, says="float64")
    refuses("backend", kernels.norms, x, backend=backend, says="'reference' and 'cpp'")


def test_explicit_covers_run_on_the_reference_only() -> None:
    x = vector()
    state = kernels.client_state("sm3", x, cover=[list(range(D))])
    refuses("backend", kernels.client_step, "sm3", x, x * 0.1, state, lr=0.1, backend="cpp", says="'reference' only")


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the backends that calls reach, in place of their kernels."""
    reached: list[str] = []

    class Recorder:
        def __init__(self, name: str) -> None:
            self.name = name

        def norms(self, x: Tensor, out: Tensor) -> None:
            reached.append(self.name)

    monkeypatch.setattr(kernels.registry.Backend, "load", lambda backend: Recorder(backend.name))
    for cached in (kernels.registry._asked, kernels.registry._fastest):
        cached.cache_clear()
    yield reached
    monkeypatch.undo()
    for cached in (kernels.registry._asked, kernels.registry._fastest):
        cached.cache_clear()


def test_the_environment_picks_and_the_argument_overrides(called: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "default", None)
    kernels.norms(vector(), backend="reference")
    monkeypatch.setattr(registry, "default", "numba")
    kernels.norms(vector())
    kernels.norms(vector(), backend="reference")
    monkeypatch.setattr(registry, "default", "")  # as good as unset
    kernels.norms(vector())
    fastest = next(name for name in ("cpp", "numba", "reference") if kernels.backends()[name] is True)
    assert called == ["reference", "numba", "reference", fastest]


def test_without_a_wish_float64_gets_a_backend_that_can(called: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "default", None)
    kernels.norms(vector(dtype=torch.float64))
    assert called == ["cpp" if kernels.backends()["cpp"] is True else "reference"]


def test_a_bad_wish_in_the_environment_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "default", "fastest")
    refuses("backend", kernels.norms, vector(), says="'fastest'")


def test_the_environment_is_read_at_import() -> None:
    code = "import torch; from fastfed import kernels; kernels.norms(torch.ones(3))"
    environment = {**os.environ, "FASTFED_BACKEND": "fastest"}
    failed = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert "backend: 'fastest' (FASTFED_BACKEND says so) is not one of" in failed.stderr


def test_backends_are_listed_with_true_or_a_reason() -> None:
    listed = kernels.backends()
    assert list(listed) == ["reference", "cpp", "numba", "triton", "cuda"]
    assert listed["reference"] is True
    assert all(usable is True or (isinstance(usable, str) and len(usable) > 10) for usable in listed.values())
