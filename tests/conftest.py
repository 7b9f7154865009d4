"""Which backends a session tests.

Triton's interpreter and the CUDA host launcher are chosen by environment before the start, so each has a session of its
own: ``TRITON_INTERPRET=1 pytest -m backend``, ``FASTFED_CUDA_HOST=1 pytest -m backend``. `make test` runs all three.
"""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator

import pytest
import torch

from fastfed import kernels
from fastfed.kernels import registry


def backends_of_session() -> list[str]:
    if registry.interpreting():
        return ["triton"]
    if registry.on_host():
        return ["cuda"]
    return [name for name, usable in kernels.backends().items() if usable is True]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "backend: runs once for every backend of the session")
    config.addinivalue_line("markers", "device: runs device kernels in Triton's interpreter")
    config.addinivalue_line("markers", "exhaustive: belongs to a proof (`make device-proof` ...), not to `make test`")
    torch.set_num_threads(2)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # of a job in the background, and inherited
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" in metafunc.fixturenames:
        metafunc.parametrize("backend", backends_of_session())


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    """A test leaves torch's threads as it found them: those after it in its process count on them."""
    before = torch.get_num_threads()
    yield
    assert torch.get_num_threads() == before


def shared_fixtures(item: pytest.Item) -> list[str]:
    """Where the fixtures are defined that the test shares with others: a module, or the folder of a conftest.py."""
    found = getattr(item, "_fixtureinfo", None)
    made = [definitions[-1] for definitions in found.name2fixturedefs.values()] if found else []
    return [one.baseid for one in made if one.scope != "function" and one.baseid.startswith("tests/")]


def group_of(item: pytest.Item) -> str | None:
    """What is made once and serves several tests is made by one worker: they belong together."""
    chosen = item.callspec.params if hasattr(item, "callspec") else {}
    if chosen.get("backend") == "numba":
        return "numba"  # compiles for seconds
    if isinstance(chosen.get("name"), str) and "1000003" in chosen["name"]:
        return str(chosen["name"])  # the oracle of a large case
    return min(shared_fixtures(item), key=len, default=None)


@pytest.hookimpl(tryfirst=True)  # before xdist looks for the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "backend" in getattr(item, "fixturenames", ()):
            item.add_marker("backend")
        if group := group_of(item):
            item.add_marker(pytest.mark.xdist_group(group))


def pytest_collection_finish(session: pytest.Session) -> None:
    """What was imported and collected stays until the end: the garbage collector need not look at it any more."""
    gc.collect()
    gc.freeze()
