"""The table of results for other programs: LaTeX for a paper, CSV for a spreadsheet."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from typing import Any

from .entries import MISSING
from .grid import Cell, Grid
from .statistics import Estimate
from .summary import Summary

_SIGNS = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", MISSING: "--", "±": r"$\pm$", "ε": r"$\varepsilon$",
    "δ": r"$\delta$",
}  # fmt: skip
_SIGN = re.compile("|".join(map(re.escape, _SIGNS)))


def as_latex(grid: Grid) -> str:
    """A tabular in the style of booktabs; the best are bold."""
    sides = "".join("r" if grid.is_numeric(place) else "l" for place in range(len(grid.heads)))
    lines = [
        "% \\usepackage{booktabs}",
        f"\\begin{{tabular}}{{{sides}}}",
        "\\toprule",
        f"{' & '.join(map(escaped, grid.heads))} \\\\",
        "\\midrule",
        *(f"{' & '.join(map(_cell, row))} \\\\" for row in grid.rows),
        "\\bottomrule",
        "\\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Text as LaTeX sets it."""
    return _SIGN.sub(lambda found: _SIGNS[found[0]], text)


def _cell(cell: Cell) -> str:
    return f"\\textbf{{{escaped(cell.text)}}}" if cell.best else escaped(cell.text)


def as_csv(summaries: Sequence[Summary]) -> str:
    """A row per group, its numbers in full, each mean with the half width of its 95% interval."""
    text = io.StringIO()
    rows = [_row(one) for one in summaries]
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _row(one: Summary) -> dict[str, Any]:
    estimates = {
        "final": one.final, "best": one.best, "rounds_to_target": one.rounds_to,
        "bytes_to_target": one.bytes_to_target, "gradients_to_target": one.gradients_to_target, "bytes": one.bytes,
        "seconds": one.seconds,
    }  # fmt: skip
    numbers = {key: value for name, found in estimates.items() for key, value in _numbers(name, found).items()}
    return {
        "run": one.group.label,
        "seeds": len(one.group.entries),
        "rounds": max(one.rounds),
        **numbers,
        "status": one.status,
    }


def _numbers(name: str, found: Estimate | None) -> dict[str, float | None]:
    mean, half = (None, None) if found is None else (found.mean, found.half)
    return {name: mean, f"{name}_half_width_95": half}
