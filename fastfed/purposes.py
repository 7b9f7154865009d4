"""What random streams are for: a stream is keyed by (seed, purpose, round, client, step), so no two purposes meet."""

from __future__ import annotations

from enum import IntEnum


class Purpose(IntEnum):
    """The purposes of FastFed's own streams. Dropout layer i of a model uses ``DROPOUT + i``."""

    SHUFFLE = 1
    COHORT = 2
    NOISE = 3
    DROPOUT = 1 << 16
