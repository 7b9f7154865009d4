"""Packages that FastFed can do without: those of its extras, asked for when something needs one."""

from __future__ import annotations

import importlib
from types import ModuleType


def needed(module: str, *, extra: str, by: str, package: str | None = None) -> ModuleType:
    """The module, or an ImportError that says what needs it and which extra brings it. `package` is what to install
    where the module has another name."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = package or module.partition(".")[0]
        raise ImportError(f"{by} needs {missing}: pip install 'fastfed[{extra}]' ({error})") from error
