"""The documentation as a site, built as `make docs` builds it and opened in a browser."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import fastfed as ff

from .app.report.chromium import Visit, browser

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.xdist_group("site")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site; what mkdocs warns of, as of a link that leads nowhere, is an error (`strict`)."""
    pytest.importorskip("mkdocs", reason="mkdocs not found: pip install 'fastfed[docs]'")
    home = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(home)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return home


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as started:
        yield started


def test_every_page_of_the_repository_is_in_it(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        assert (site / page.relative_to(ROOT / "docs").with_suffix(".html")).is_file(), page
    for page in ("readme", "experiments", "contributing", "security", "changelog"):
        assert (site / f"{page}.html").is_file(), page
    assert (site / "docs" / "demo.png").is_file() or (site / "demo.png").is_file()


def test_the_reference_has_every_public_name(site: Path) -> None:
    text = "".join(page.read_text() for page in (site / "api").glob("*.html"))
    told = {"fastfed." + name for name in ff.__all__ if name not in ("__version__", "get_include", "get_library")}
    for module in (ff.clients, ff.servers, ff.methods, ff.aggregate, ff.compression, ff.schedules, ff.data):
        names = getattr(module, "__all__", [])
        told |= {f"{module.__name__}.{name}" for name in names}
    missing = [name for name in sorted(told) if f">{name.rpartition('.')[2]}<" not in text and name not in text]
    assert not missing


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Where the site is served, on the loopback address."""
    handler = partial(Silent, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


class Silent(SimpleHTTPRequestHandler):
    """Serves files, and writes no log."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.mark.parametrize("width", [400, 1300])
def test_a_visitor_searches_and_reads(address: str, chromium: Any, width: int) -> None:
    visit = Visit(chromium, address + "index.html", viewport={"width": width, "height": 800})
    page = visit.page
    assert page.locator("h1").first.inner_text().startswith("FastFed")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    if width < 1000:
        page.locator("label.md-header__button[for=__search]").click()
    page.locator("input.md-search__input").click()
    page.keyboard.type("geometric median")
    found = page.locator("a.md-search-result__link >> visible=true")
    found.first.wait_for()
    targets = [one.get_attribute("href") for one in found.all()]
    assert any("robust.html" in str(target) for target in targets), targets
    page.goto(address + "api/simulation.html")
    assert page.locator("[id='fastfed.simulation.Simulation.run']").count() == 1
    others = [url for url in visit.requests if not url.startswith((address, "blob:", "data:"))]
    assert not others
    assert not [error for error in visit.errors if error.startswith("error")], visit.errors


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_follows_the_readers_scheme(address: str, chromium: Any, scheme: str) -> None:
    visit = Visit(chromium, address + "robust.html", color_scheme=scheme)
    visit.page.locator("h1").first.wait_for()
    red = int(re.findall(r"\d+", visit.colour("body", "backgroundColor"))[0])
    assert (red > 200) == (scheme == "light")
