"""Threads that wait sleep, where FastFed may choose: OpenMP itself is asked what it was told."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from fastfed import waiting


def started(program: str, **environment: str) -> tuple[str, dict[str, str]]:
    """What a process says that FastFed has chosen, and what GNU's OpenMP says that it does."""
    kept = {name: value for name, value in os.environ.items() if name not in waiting.VARIABLES}
    said = subprocess.run(
        [
            sys.executable,
            "-c",
            f"{program}\nimport os; print(fastfed.waiting.CHOSEN, os.environ.get('OMP_WAIT_POLICY'))",
        ],
        env={**kept, "OMP_DISPLAY_ENV": "VERBOSE", **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return said.stdout.strip(), dict(re.findall(r"(\w+) = '(\w+)'", said.stderr))


def test_fastfed_first_sleeps() -> None:
    chosen, found = started("import fastfed, torch")
    assert chosen == "passive, by FastFed passive"
    if "GOMP_SPINCOUNT" in found:
        assert found["GOMP_SPINCOUNT"] == "0"


def test_a_host_that_has_torch_is_left_alone() -> None:
    chosen, found = started("import torch, fastfed")
    assert chosen == "as OpenMP has it: torch was imported before FastFed None"
    if "GOMP_SPINCOUNT" in found:
        assert int(found["GOMP_SPINCOUNT"]) > 0


@pytest.mark.parametrize(
    ("name", "value"),
    [("OMP_WAIT_POLICY", "active"), pytest.param("GOMP_SPINCOUNT", "77", marks=pytest.mark.exhaustive)],
)
def test_the_environment_decides(name: str, value: str) -> None:
    chosen, found = started("import fastfed", **{name: value})
    policy = value if name == "OMP_WAIT_POLICY" else None
    assert chosen == f"{name}={value}, as the environment says {policy}"
    if "GOMP_SPINCOUNT" in found:
        assert int(found["GOMP_SPINCOUNT"]) >= 77


@pytest.mark.parametrize(
    ("command", "is_one"),
    [
        ("python /somewhere/bin/fastfed bench rounds --scale 0.1", True),
        ("python -m fastfed bench kernels", True),
        ("python -m fastfed run bench", False),
        ("python -m pytest bench", False),
        ("fastfed", False),
    ],
)
def test_who_times_others_leaves_their_threads_alone(command: str, is_one: bool) -> None:
    assert waiting.is_benchmark(command.split()) == is_one


def test_benchmarks_wait_as_openmp_does_by_itself() -> None:
    program = "import sys; sys.orig_argv = ['python', '-m', 'fastfed', 'bench', 'rounds']; import fastfed"
    chosen, found = started(program)
    assert chosen == "as OpenMP has it: fastfed bench times others, too None"
    if "GOMP_SPINCOUNT" in found:
        assert int(found["GOMP_SPINCOUNT"]) > 0
