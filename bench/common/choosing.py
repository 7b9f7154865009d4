"""Names chosen by patterns, as `--ops` and `--workloads` take them."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Sequence

from ...kernels.table import nearest


def choose(patterns: Sequence[str], names: Collection[str]) -> tuple[str, ...]:
    """The names that match any of the patterns (shell style, "server*"), in their own order."""
    chosen: set[str] = set()
    for pattern in patterns:
        found = fnmatch.filter(names, pattern)
        if not found:
            raise ValueError(f"{pattern!r} matches none of: {', '.join(names)}.{nearest(pattern, tuple(names))}")
        chosen.update(found)
    return tuple(name for name in names if name in chosen)
