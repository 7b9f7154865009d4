"""A page of the documentation that runs: its blocks of Python print what it shows."""

from __future__ import annotations

import contextlib
import io
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

RunCommand = Callable[[str, str], str]  # a line of a shell block, and where it stands -> what it printed


class Block(NamedTuple):
    """A fenced block: its language, its text, and the line of the page that it begins on."""

    language: str
    text: str
    line: int


def blocks(text: str) -> list[Block]:
    found = re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [Block(match[1], match[2], text[: match.start()].count("\n") + 2) for match in found]


def run_page(page: str, text: str, run_command: RunCommand | None = None) -> None:
    """Runs the page's Python blocks in one namespace and, by `run_command`, if given, its commands, in the working
    directory.

    A block of text right after one of Python is what it printed; after one of commands, lines of what they printed. A
    configuration or a module whose first line is a comment with a file's name is written to that file.
    """
    names: dict[str, Any] = {"__name__": page}
    printed: str | None = None
    whole = True
    for block in blocks(text):
        where = f"{page}:{block.line}"
        if block.language == "text":
            assert printed is not None, f"{where}: shows an output that no block printed"
            (_assert_alike if whole else _assert_among)(printed, block.text, where)
        printed = None
        if block.language in ("toml", "python") and (file := file_of(block)):
            Path(file).write_text(block.text)
        elif block.language == "python":
            code = compile("\n" * (block.line - 1) + block.text, page, "exec", dont_inherit=True)
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(code, names)
            printed, whole = out.getvalue(), True
        elif block.language == "sh" and run_command is not None:
            printed, whole = "".join(run_command(line, where) for line in block.text.splitlines()), False


def file_of(block: Block) -> str | None:
    """The name of the file that a configuration or a module stands in: its first line, a comment."""
    named = re.match(r"# ([\w.-]+\.(?:toml|py))\n", block.text)
    return None if named is None else named[1]


def _assert_alike(printed: str, shown: str, where: str) -> None:
    """The same words, and numbers that are as near as another machine's rounding after some rounds leaves them."""
    assert _are_alike(printed, shown), f"{where}: shows\n{shown}\nbut it printed\n{printed}"


def _are_alike(printed: str, shown: str) -> bool:
    pieces, wanted = (re.split(r"(-?\d+\.\d+)", text.strip()) for text in (printed, shown))
    return len(pieces) == len(wanted) and all(
        math.isclose(float(a), float(b), rel_tol=0.1, abs_tol=0.05) if place % 2 else a.split() == b.split()
        for place, (a, b) in enumerate(zip(pieces, wanted, strict=True))
    )


def _assert_among(printed: str, shown: str, where: str) -> None:
    """Every line that is shown is one that was printed, in this order, up to spaces, frames of tables and rounding."""
    lines = iter(printed.splitlines())
    for wanted in filter(None, map(_plain, shown.splitlines())):
        found = any(_are_alike(_plain(line), wanted) for line in lines)
        assert found, f"{where}: shows the line\n{wanted}\nwhich is not where it should be in\n{printed}"


def _plain(line: str) -> str:
    return " ".join(re.sub(r"[│┃|]", " ", line).split())
