"""What is said where a host is missing, and that FastFed alone imports none."""

from __future__ import annotations

import subprocess
import sys

import pytest

HOSTS = {"flower": ("flwr", "flwr.serverapp"), "pfl": ("pfl", "pfl.model")}


@pytest.mark.parametrize("name", HOSTS)
def test_a_missing_host_is_named_with_its_extra(name: str) -> None:
    package, _ = HOSTS[name]
    program = f"import sys; sys.modules[{package!r}] = None\nimport fastfed.integrations.{name}"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert said.returncode == 1
    sentence = f"ImportError: fastfed.integrations.{name} needs {package}: pip install 'fastfed[{name}]'"
    assert sentence in said.stderr


def test_fastfed_imports_no_host() -> None:
    program = (
        "import sys, fastfed, fastfed.integrations; print([m for m in ('flwr', 'pfl', 'ray') if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
