"""Tables before they are drawn: the same cells become HTML in a page and a table on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Literal

from .entries import MISSING

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Cell:
    """`value` is what a column is sorted by; `best` cells stand out; `style` numbers a group's colour, in front of its
    name; `code` is set as a program's text."""

    text: str
    value: float | None = None
    best: bool = False
    style: int | None = None
    code: bool = False


@dataclass(frozen=True)
class Grid:
    """Rows of cells, each as long as the heads; the first cell names its row. Columns of text are set to the left."""

    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    kind: Literal["sortable", "plain", "text"] = "plain"
    name: str = "table"

    def is_numeric(self, place: int) -> bool:
        """Whether a column has numbers."""
        return any(row[place].value is not None for row in self.rows)

    def marked(self, columns: Mapping[str, bool]) -> Grid:
        """With the best cells of these columns marked, where there is anything to compare; True: the highest is."""
        rows = [list(row) for row in self.rows]
        for place, head in enumerate(self.heads):
            values = [row[place].value for row in rows]
            known = [value for value in values if value is not None]
            if head not in columns or len(known) < 2:
                continue
            top = (max if columns[head] else min)(known)
            for row, value in zip(rows, values, strict=True):
                row[place] = replace(row[place], best=value == top)
        return replace(self, rows=rows)


# ---- a page ---------------------------------------------------------------------------------------------------------


def as_html(grid: Grid) -> str:
    """The table, which scrolls within itself where the page is narrow."""
    words = [not grid.is_numeric(place) for place in range(len(grid.heads))]
    head = "".join(
        f'<th scope="col"{_left(text)}>{escape(name)}</th>' for name, text in zip(grid.heads, words, strict=True)
    )
    body = "".join(
        f"<tr>{_heading(row[0])}{''.join(map(_data, row[1:], words[1:]))}</tr>" for row in grid.rows
    )  # fmt: skip
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(grid.name)}"><table class="{grid.kind}">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _heading(cell: Cell) -> str:
    swatch = "" if cell.style is None else f'<span class="swatch" data-style="{cell.style}"></span>'
    text = f"<code>{escape(cell.text)}</code>" if cell.code else escape(cell.text)
    return f'<th scope="row">{swatch}{text}</th>'


def _left(text: bool) -> str:
    return ' class="t"' if text else ""


def _data(cell: Cell, text: bool) -> str:
    sort = "" if cell.value is None else f' data-value="{cell.value!r}"'
    kinds = " ".join([*(["t"] if text else []), *(["none"] if cell.text == MISSING else ["best"] if cell.best else [])])
    kind = f' class="{kinds}"' if kinds else ""
    return f"<td{kind}{sort}>{escape(cell.text)}</td>"


# ---- a terminal -----------------------------------------------------------------------------------------------------


def as_rich(grid: Grid, title: str = "") -> Table:
    """The table for a console of rich."""
    from rich.markup import escape as plain
    from rich.table import Table

    table = Table(title=plain(title) or None)
    for place, head in enumerate(grid.heads):
        table.add_column(plain(head), justify="right" if grid.is_numeric(place) else "left", overflow="fold")
    for row in grid.rows:
        table.add_row(*(f"[bold]{plain(cell.text)}[/]" if cell.best else plain(cell.text) for cell in row))
    return table
