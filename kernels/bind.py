"""Loads ``rules.py`` and ``philox.py`` anew with a backend's own primitives bound to the names they leave free."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any


def load(stem: str, backend: str, names: dict[str, Any], wrap: Callable[[Callable], Any] | None = None) -> ModuleType:
    """A fresh module of the file `stem`.py whose free names are `names`.

    `wrap` (``numba.njit``, ``triton.jit``) is applied to every function, so that they call each other's wrapped form.
    """
    path = Path(__file__).with_name(f"{stem}.py")
    spec = importlib.util.spec_from_file_location(f"fastfed.kernels._{stem}_{backend}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    module.__dict__.update(names)
    spec.loader.exec_module(module)
    if wrap is not None:
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == module.__name__:
                setattr(module, name, wrap(function))
    return module
