"""Numbers of things, in words."""

from __future__ import annotations


def counted(number: int, thing: str, things: str = "") -> str:
    """1 as "1 run", 1200 as "1,200 runs"; `things` where more of them are not called by an s."""
    return f"{number:,} {thing if number == 1 else things or f'{thing}s'}"
