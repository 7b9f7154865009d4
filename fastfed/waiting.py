"""What threads of OpenMP do while they wait for work: they sleep, where FastFed may choose.

By default they spin for some milliseconds after every call, which is quickest on a machine of one's own; where others
want the processor it costs a small round many times its work (docs/embed.md has figures). OpenMP reads its settings
when it is loaded, and torch loads it: so the choice is made before torch is, and not at all where a host has imported
torch already or has set one of `VARIABLES`. A process that FastFed starts inherits it. `fastfed bench` times others in
the same process, whose threads are not ours to slow down: a plain loop takes three times as long when they sleep.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence
from pathlib import Path

VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def choose() -> str:
    """Has threads sleep, unless somebody else has chosen; says who has, and what."""
    for name in VARIABLES:
        if name in os.environ:
            return f"{name}={os.environ[name]}, as the environment says"
    if "torch" in sys.modules:
        return "as OpenMP has it: torch was imported before FastFed"
    if is_benchmark(sys.orig_argv):
        return "as OpenMP has it: fastfed bench times others, too"
    os.environ["OMP_WAIT_POLICY"] = "passive"
    return "passive, by FastFed"


def is_benchmark(command: Sequence[str]) -> bool:
    """Whether a command line is that of `fastfed bench`."""
    names = [Path(word).name for word in command]
    return any(pair == ("fastfed", "bench") for pair in itertools.pairwise(names))


CHOSEN = choose()
