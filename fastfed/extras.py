"""Packages that FastFed can do without: those of its extras, asked for when something needs one."""

from __future__ import annotations

import importlib
from types import ModuleType


def needed(module: str, *, extra: str, by: str) -> ModuleType:
    """The module, or an ImportError that says what needs it and which extra brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(f"{by} needs {package}: pip install 'fastfed[{extra}]' ({error})") from error
