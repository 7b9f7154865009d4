"""Errors of others, in the app's sentences."""

from __future__ import annotations


def first_line(error: BaseException) -> str:
    """What an error says first; "" where it says nothing. The rest is for a traceback."""
    return (str(error).splitlines() or [""])[0]
