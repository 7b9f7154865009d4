"""The compiled extension ``fastfed._core``: why it cannot run here, and the numbers by which it knows formulas.

The two languages know formulas, covers, step sizes and the numbers of a step by their names. An extension that was
built from other lists than these sources have would compute another rule than the one that was asked for, so it is
refused when FastFed is imported.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from types import ModuleType

import torch

from .table import COVERS, DIRECTIONS, SERVER_FORMULAS, STEP_SIZES, ClientNumbers, ServerNumbers

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
        return f"{_HOME} is a checkout: 'pip install -e .' builds it there, with a C++17 compiler"
    return "install a C++17 compiler and reinstall FastFed with 'pip install --force-reinstall --no-deps .'"


def prepare() -> None:
    """Tells the extension, which does not know torch, how many threads torch may use. An extension that does not know
    what ``kernels/table.py`` names, by the same names, is an ImportError."""
    if why_not() is not None:
        return
    require_names("server_formulas", SERVER_FORMULAS)
    require_names("directions", DIRECTIONS)
    require_names("covers", COVERS)
    require_names("step_sizes", STEP_SIZES)
    # read from left to right: here the order matters
    require_names("server_numbers", ServerNumbers._fields, in_order=True)
    require_names("client_numbers", ClientNumbers._fields, in_order=True)
    load().count_threads_by(torch.get_num_threads)


def require_names(
    list_name: str, wanted: Iterable[str], *, of: str = "kernels/table.py", in_order: bool = False
) -> None:
    """An ImportError unless the extension's list of that name has the names that the file `of` has, in any order or in
    the same one."""
    known: list[str] = getattr(load(), list_name, list)()
    ours, theirs = (list(wanted), known) if in_order else (sorted(wanted), sorted(known))
    if ours != theirs:
        where = "-e ." if _is_checkout() else "--force-reinstall --no-deps ."
        raise ImportError(
            f"fastfed._core was built from other sources: its {list_name} are {', '.join(theirs) or 'not told'}, those "
            f"of {of} {', '.join(ours)}; rebuild it with 'pip install {where}'"
        )


def numbers(list_name: str) -> dict[str, int]:
    """The numbers of what the extension lists, by name; `list_name` as in "server_formulas"."""
    return {name: number for number, name in enumerate(getattr(load(), list_name)())}
