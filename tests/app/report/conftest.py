"""Short real runs of every kind of method, once for all tests of reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.app.report.support import METHODS, simulate


@pytest.fixture(scope="session")
def real_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with runs of every method of `METHODS`, three seeds of the first three."""
    home = tmp_path_factory.mktemp("runs")
    for place, method in enumerate(METHODS):
        for seed in range(3 if place < 3 else 1):
            simulate(home / f"{method}-{seed}", method, seed, 8)
    return home
