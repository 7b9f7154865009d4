"""What happens to files: bytes that flip, vanish, come twice, or say that something is huge."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

Damage = Callable[[random.Random, bytearray], bytearray]

_HUGE = [2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1]
_WORDS = [
    b"1e39",
    b"Infinity",
    b"NaN",
    b"-1",
    b"1e19",
    b"99999999999999999999",
    b"null",
    b"\xff\xfe",
    b"\x00",
    b"[[[[",
    b"<a ",
]


def _place(rng: random.Random, content: bytearray) -> tuple[int, int]:
    """A stretch of it, mostly short, and rather near its beginning, where headers are."""
    begin = rng.randrange(len(content)) if rng.random() < 0.6 else rng.randrange(min(len(content), 256))
    return begin, min(len(content), begin + rng.choice([1, 2, 4, 8, 16, 64, 512, 4096]))


def _flip(rng: random.Random, content: bytearray) -> bytearray:
    for _ in range(rng.choice([1, 1, 2, 4, 16])):
        content[_place(rng, content)[0]] ^= 1 << rng.randrange(8)
    return content


def _fill(rng: random.Random, content: bytearray) -> bytearray:
    begin, end = _place(rng, content)
    content[begin:end] = rng.choice([b"\x00", b"\xff", b"9", b" "]) * (end - begin)
    return content


def _scramble(rng: random.Random, content: bytearray) -> bytearray:
    begin, end = _place(rng, content)
    content[begin:end] = rng.randbytes(end - begin)
    return content


def _cut(rng: random.Random, content: bytearray) -> bytearray:
    return content[: rng.randrange(len(content))]


def _leave_out(rng: random.Random, content: bytearray) -> bytearray:
    begin, end = _place(rng, content)
    del content[begin:end]
    return content


def _repeat(rng: random.Random, content: bytearray) -> bytearray:
    begin, end = _place(rng, content)
    content[begin:begin] = content[begin:end] * rng.choice([1, 2, 50])
    return content


def _move(rng: random.Random, content: bytearray) -> bytearray:
    begin, end = _place(rng, content)
    part = content[begin:end]
    del content[begin:end]
    to = rng.randrange(len(content) + 1)
    content[to:to] = part
    return content


def _say_huge(rng: random.Random, content: bytearray) -> bytearray:
    begin, number = _place(rng, content)[0], rng.choice(_HUGE)
    number_bytes = struct.pack(rng.choice("<>") + "Q", number)
    written = number_bytes if rng.random() < 0.5 else number_bytes[-4:]
    content[begin : begin + len(written)] = written
    return content


def _say_odd(rng: random.Random, content: bytearray) -> bytearray:
    begin, end = _place(rng, content)
    content[begin : min(end, begin + 8)] = rng.choice(_WORDS)
    return content


KINDS: tuple[Damage, ...] = (_flip, _fill, _scramble, _cut, _leave_out, _repeat, _move, _say_huge, _say_odd)


def damage(rng: random.Random, root: Path) -> list[str]:
    """Damages one or two of the files below `root`; what was done, in words."""
    files = sorted(path for path in root.rglob("*") if path.is_file() and path.stat().st_size)
    done = []
    for path in rng.sample(files, min(len(files), rng.choice([1, 1, 1, 2]))):
        content = bytearray(path.read_bytes())
        if rng.random() < 0.05:  # another file in its place
            content = bytearray(rng.choice(files).read_bytes())
            done.append(f"{path.name}: another file")
        for kind in rng.choices(KINDS, k=rng.choice([1, 1, 1, 2, 3])):
            if content:
                content = kind(rng, content)
                done.append(f"{path.name}: {kind.__name__.strip('_')}")
        path.write_bytes(content)
    return done
