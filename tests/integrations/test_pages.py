"""The pages on hosts: their examples run inside the real packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..pages import run_page
from .support import host

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the hosts
@pytest.mark.parametrize(("page", "package"), [("flower.md", "flwr"), ("pfl.md", "pfl")])
def test_examples_run_and_print_what_is_shown(
    page: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host(package)
    monkeypatch.chdir(tmp_path)
    run_page(page, (DOCS / page).read_text())
