"""Finds the CUDA sources, reads the sizes that stand in them, and keeps what was compiled from them."""

from __future__ import annotations

import getpass
import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

CACHE_VARIABLE = "FASTFED_CACHE"


@lru_cache(maxsize=1)
def csrc() -> Path:
    """The folder of C++ sources inside the package (in a checkout a link leads there)."""
    import fastfed

    place = Path(fastfed.__file__).parent / "csrc"
    if not (place / "cuda" / "grid.h").is_file():
        raise FileNotFoundError(f"FastFed's CUDA sources (cuda/grid.h) are not in {place}")
    return place


def kernel_files() -> list[Path]:
    """Every file of kernels; its stem names the op."""
    return sorted((csrc() / "cuda").glob("*.cu"))


@lru_cache(maxsize=1)
def _sizes() -> dict[str, int]:
    text = (csrc() / "cuda" / "grid.h").read_text()
    return {name: int(value) for name, value in re.findall(r"^constexpr int (\w+) = (\d+);", text, re.MULTILINE)}


def size(name: str) -> int:
    """A constant of grid.h: the one place of block and tile sizes."""
    return _sizes()[name]


@lru_cache(maxsize=1)
def _texts() -> bytes:
    """All sources a kernel may include, for the cache's key."""
    files = [*csrc().glob("*.h"), *(csrc() / "cuda").iterdir()]
    return b"\0".join(file.name.encode() + b"\0" + file.read_bytes() for file in sorted(files) if file.is_file())


def cache_folder() -> Path:
    """Where compiled kernels are kept: ``FASTFED_CACHE``, else ~/.cache/fastfed, else a temporary folder."""
    chosen = os.environ.get(CACHE_VARIABLE)
    folder = Path(chosen) if chosen else Path.home() / ".cache" / "fastfed"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    if chosen:
        raise OSError(f"{CACHE_VARIABLE}: cannot write to {folder}")
    folder = Path(tempfile.gettempdir()) / f"fastfed-{getpass.getuser()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if not _is_ours_alone(folder):
        raise OSError(f"{folder}: others can write to it, and what is in it is run; name a folder by {CACHE_VARIABLE}")
    return folder


def _is_ours_alone(folder: Path) -> bool:
    """In a directory that everybody writes to, anybody may have made it, or a link in its place."""
    found = folder.lstat()
    ours = not hasattr(os, "getuid") or found.st_uid == os.getuid()
    return stat.S_ISDIR(found.st_mode) and ours and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Lets one process at a time work on `path` where the system has file locks, so that none compiles in vain."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with open(path.with_suffix(".lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def compiled(name: str, suffix: str, key: Iterable[str], make: Callable[[Path], None]) -> Path:
    """The compiled file of this name for these sources and this `key` (compiler and options), made if missing.

    Made under another name and then renamed: whoever reads it, reads it whole.
    """
    digest = hashlib.sha256(_texts() + "\0".join(key).encode()).hexdigest()[:20]
    path = cache_folder() / f"{name}-{digest}{suffix}"
    if path.exists():
        return path
    with _alone(path), tempfile.TemporaryDirectory(dir=path.parent) as folder:
        if not path.exists():
            draft = Path(folder) / path.name
            make(draft)
            os.replace(draft, path)
    return path
