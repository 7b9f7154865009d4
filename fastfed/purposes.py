"""What random streams are for: a stream is keyed by (seed, purpose, round, client, step), so no two purposes meet."""

from __future__ import annotations

from enum import IntEnum


class Purpose(IntEnum):
    """The purposes of FastFed's own streams. Dropout layer i of a model uses ``DROPOUT + i``.

    Dealing data to clients (`PARTITION`), making it up (`SYNTHETIC`), their devices (`FLEET`) and how often they take
    part (`SHARES`) belong to no round: there the stream's word `round` says what the numbers are for. `IDS` is no
    randomness: it makes words of ids that are longer.
    """

    SHUFFLE = 1
    COHORT = 2
    NOISE = 3
    PARTITION = 4
    SYNTHETIC = 5
    MIXTURE = 6
    STALENESS = 7
    EPOCHS = 8
    EVENTS = 9
    FLEET = 10
    COMPRESSION = 11
    AUGMENT = 12
    DRAW = 13
    SHARES = 14
    AVAILABILITY = 15
    IDS = 16
    DROPOUT = 1 << 16
