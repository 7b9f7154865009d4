"""The compiled extension ``fastfed._core``: why it cannot run here, and the numbers by which it knows formulas.

The two languages know a formula by its name. An extension that was built from other lists than these sources have would
compute another rule than the one that was asked for, so it is refused when FastFed is imported.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from types import ModuleType

from .table import DIRECTIONS, SERVER_FORMULAS

_HOME = Path(__file__).absolute().parents[2]  # of a checkout; of an installed package, where packages are


def load() -> ModuleType:
    """The extension, or an ImportError."""
    return importlib.import_module("fastfed._core")


@lru_cache(maxsize=1)
def why_not() -> str | None:
    """Why the extension cannot be used here; None if it can."""
    try:
        load()
    except ImportError as error:
        return f"the compiled extension fastfed._core did not load ({error}); {_how_to_build()}"
    return None


def _is_checkout() -> bool:
    return (_HOME / "setup.py").is_file()


def _how_to_build() -> str:
    if _is_checkout():
        return f"{_HOME} is a checkout: 'pip install --no-build-isolation -e .' builds it there, with a C++17 compiler"
    return "install a C++17 compiler and reinstall with 'pip install --no-build-isolation .' after torch"


def refuse_stale() -> None:
    """An extension that does not know the formulas of these sources, by their names, is an ImportError."""
    if why_not() is not None:
        return
    core = load()
    for list_name, wanted in (("server_formulas", SERVER_FORMULAS), ("directions", DIRECTIONS)):
        known: list[str] = getattr(core, list_name, list)()
        if set(known) != set(wanted):
            where = "-e ." if _is_checkout() else "--force-reinstall --no-deps ."
            raise ImportError(
                f"fastfed._core was built from other sources: its {list_name} are {_listed(known)}, those of "
                f"kernels/table.py {_listed(wanted)}; rebuild it with 'pip install --no-build-isolation {where}'"
            )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "not told"


def numbers(list_name: str) -> dict[str, int]:
    """The numbers of the extension's formulas by name; `list_name` is "server_formulas" or "directions"."""
    return {name: number for number, name in enumerate(getattr(load(), list_name)())}
