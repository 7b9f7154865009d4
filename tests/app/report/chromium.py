"""The machine's Chromium, driven by playwright; tests that need it are skipped where it is not."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# No sandbox, because tests may run as root; nothing that calls home.
_ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
_PATIENCE = 120_000  # milliseconds: a busy machine is slow, not broken


@contextmanager
def browser() -> Iterator[Any]:
    """A headless browser with a profile of its own, which is thrown away."""
    driver = pytest.importorskip("playwright.sync_api", reason="playwright not found: pip install 'fastfed[test]'")
    program = next((found for name in _NAMES if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("chromium not found: apt-get install chromium")
    with driver.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=_ARGUMENTS, timeout=_PATIENCE)
        try:
            yield started
        finally:
            started.close()


class Visit:
    """A page that is open, with all that it complained of and asked the network for."""

    def __init__(self, started: Any, place: Path | str, **context: Any) -> None:
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page = started.new_context(**{"viewport": {"width": 1200, "height": 900}, **context}).new_page()
        self.page.set_default_timeout(_PATIENCE)
        self.page.on("console", lambda message: self.errors.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.address = place if isinstance(place, str) else place.resolve().as_uri()
        self.page.goto(self.address)

    def count(self, selector: str) -> int:
        """Elements that can be seen."""
        return int(self.page.locator(f"{selector} >> visible=true").count())

    def colour(self, selector: str, name: str) -> str:
        """A computed colour."""
        return str(self.page.locator(selector).first.evaluate(f"node => getComputedStyle(node)['{name}']"))

    def check(self) -> None:
        """Nothing was complained of, and nothing but the page itself was asked for."""
        assert self.errors == []
        assert [url for url in self.requests if not url.startswith("blob:")] == [self.address]
