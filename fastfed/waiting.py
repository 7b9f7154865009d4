"""What threads of OpenMP do while they wait for work: they sleep, where FastFed may choose.

By default they spin for some milliseconds after every call, which is quickest on a machine of one's own; where others
want the processor it costs a small round many times its work (docs/embed.md has figures). OpenMP reads its settings
when it is loaded, and torch loads it: so the choice is made before torch is, and not at all where a host has imported
torch already or has set one of `VARIABLES`. A process that FastFed starts inherits it.
"""

from __future__ import annotations

import os
import sys

VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def choose() -> str:
    """Has threads sleep, unless somebody else has chosen; says who has, and what."""
    for name in VARIABLES:
        if name in os.environ:
            return f"{name}={os.environ[name]}, as the environment says"
    if "torch" in sys.modules:
        return "as OpenMP has it: torch was imported before FastFed"
    os.environ["OMP_WAIT_POLICY"] = "passive"
    return "passive, by FastFed"


CHOSEN = choose()
