"""Where programs in C and C++ find FastFed's kernels: a header and a small shared library (``docs/cpp.md``)."""

from __future__ import annotations

from pathlib import Path

_HOME = Path(__file__).absolute().parent


def get_include() -> str:
    """The directory to give the compiler, for ``#include <fastfed.h>``."""
    return str((_HOME / "csrc" / "abi").resolve())


def get_library() -> str:
    """The shared library to link with."""
    library = _HOME / "libfastfed.so"
    if not library.is_file():
        raise FileNotFoundError(f"{library}: was not built; install a C++17 compiler and reinstall FastFed")
    return str(library)
