"""Philox4x32-10, once, as plain functions: counter-based random numbers, the same stream on every backend.

Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3 (SC 2011). Loaded like ``rules.py`` with
``wide_multiply(a, b) -> (high 32 bits, low 32 bits)``, ``to_float`` (word to float32), ``log``, ``sqrt``, ``cos``,
``sin`` and the float32 constants named in capitals bound per backend; words are 32-bit values in the backend's own
integer type. The C++ twin is ``csrc/philox.h``.

A stream is the key (k0, k1), made of seed and purpose by `subkey`, and the counter (block, step, client, round):
block b holds the elements 4b .. 4b+3 of a vector of numbers, or the elements 2b and 2b+1 of a permutation's sort keys.
"""

# ruff: noqa: F821
# mypy: ignore-errors


def philox_round(c0, c1, c2, c3, k0, k1):
    high0, low0 = wide_multiply(c0, 0xD2511F53)
    high1, low1 = wide_multiply(c2, 0xCD9E8D57)
    return high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0


def philox(c0, c1, c2, c3, k0, k1):
    """Four random words of the counter (c0, c1, c2, c3) under the key (k0, k1): ten rounds."""
    for _ in range(9):
        c0, c1, c2, c3 = philox_round(c0, c1, c2, c3, k0, k1)
        k0 = (k0 + 0x9E3779B9) & 0xFFFFFFFF
        k1 = (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return philox_round(c0, c1, c2, c3, k0, k1)


def subkey(purpose, k0, k1):
    """The key of one purpose under the seed (k0, k1)."""
    w0, w1, _, _ = philox(purpose, 0, 0, 0, k0, k1)
    return w0, w1


def uniform_of(word):
    """A multiple of 2^-24 in [0, 1)."""
    return to_float(word >> 8) * UNIT24


def normal_pair(word0, word1):
    """Two independent standard normal numbers (Box-Muller); the radius uses all 32 bits, so it reaches 6.7."""
    radius = sqrt(MINUS_TWO * log((to_float(word0) + HALF) * UNIT32))
    angle = TWO_PI * uniform_of(word1)
    return radius * cos(angle), radius * sin(angle)


def sort_key(high, low):
    """63 random bits, the order of a permutation: position i of it is the index of the i-th smallest key."""
    return (high << 31) | (low >> 1)
