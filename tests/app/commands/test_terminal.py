"""What commands share: tables on narrow terminals, numbers in words."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table

from fastfed.app.commands import terminal
from fastfed.app.counting import counted


def shown(width: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """A table with a long name and four numbers, on a terminal of so many columns."""
    table = Table(title="Runs", caption="and 3 more")
    for name in ("method", "test accuracy", "rounds", "megabytes", "status"):
        table.add_column(name, overflow="fold")
    table.add_row("FedYogi", "93.2 ± 1.1%", "100", "12.5", "")
    text = io.StringIO()
    monkeypatch.setattr(
        terminal, "console", lambda stderr: Console(file=text, force_terminal=True, width=width, color_system=None)
    )
    terminal.show_table(table)
    return text.getvalue()


def test_a_table_that_fits_stays_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "│" in shown(80, monkeypatch)


def test_where_words_do_not_fit_every_row_becomes_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [" ".join(line.split()) for line in shown(30, monkeypatch).splitlines()]
    assert lines == [
        "Runs", "FedYogi", "test accuracy 93.2 ± 1.1%", "rounds 100", "megabytes 12.5", "and 3 more",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        (counted(1, "round"), "1 round"),
        (counted(0, "round"), "0 rounds"),
        (counted(1200, "run"), "1,200 runs"),
        (counted(2, "class", "classes"), "2 classes"),
    ],
)
def test_numbers_of_things(said: str, wanted: str) -> None:
    assert said == wanted
