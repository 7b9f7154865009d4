"""Which tests of optimizers belong to a proof."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On numba they wait half a minute for its compiler, and tests/kernels has the rules there anyhow: they are run by
    `make device-proof`."""
    for item in items:
        chosen = item.callspec.params if hasattr(item, "callspec") else {}
        if Path(__file__).parent in item.path.parents and chosen.get("backend") == "numba":
            item.add_marker("exhaustive")
