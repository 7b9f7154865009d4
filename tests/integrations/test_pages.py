"""The pages on hosts: their examples run inside the real packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ..pages import blocks, run_page
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


@pytest.mark.timeout(300)
@pytest.mark.parametrize("package", ["flwr", "pfl", "fedjax"])
def test_what_others_write_runs_there(package: str, tmp_path: Path) -> None:
    """docs/coming_from.md shows their programs: each runs where its framework is."""
    pytest.importorskip(package, reason=f"{package} not found: make integrations-proof, or make bench-peers, has it")
    theirs = [block.text for block in blocks((DOCS / "coming_from.md").read_text()) if block.language == "py"]
    [program] = [text for text in theirs if f"from {package}." in text or f"import {package}\n" in text]
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
