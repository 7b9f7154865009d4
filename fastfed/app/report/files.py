"""Writing a report: figures and page aside first, then renamed into place, and never over somebody else's files."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from . import figures
from .entries import Entry, gather
from .export import as_csv, as_latex
from .look import PLAIN, Look
from .page import MARKER, Report, compose, render
from .sweeps import Shades

PAGE, FIGURES, SWEEP = "index.html", "figures", "sweep.json"
_DATA = re.compile(r'<script type="application/json" id="report-data">(.*?)</script>', re.DOTALL)
_OURS = re.compile(r"[a-z0-9_]+\.(png|svg|pdf|csv|tex)")


class NotOurs(ValueError):
    """The place for the report holds something that no report wrote."""


def write(
    runs: Sequence[Path | str | Entry],
    out: Path | str,
    title: str | None = None,
    target: float | None = None,
    suffixes: Sequence[str] = figures.SUFFIXES,
    look: Look = PLAIN,
    sweeps: Sequence[Path] = (),
) -> Path:
    """Writes the report of some runs (run directories, directories that hold some, or entries) into a directory: the
    page, whose path comes back, and every chart as a figure in files of these suffixes (none: the page alone). `look`
    says how; of directories of `sweeps` it has their pictures, too, also of those among the `runs`.

    A report that is there already is replaced; `NotOurs` if anything else is. ``fastfed.runs.DamagedRun`` where no run
    is, or one that cannot be read.
    """
    out = Path(out)
    check_place(out)
    places = [Path(one) for one in runs if not isinstance(one, Entry)]
    found = gather(places) if places else []
    entries = [*(one for one in runs if isinstance(one, Entry)), *found]
    report = compose(entries, title, target, look, [*sweeps, *sweeps_among(places)])
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".report-", dir=out) as folder:
        scratch = Path(folder)
        drawn = _drawn(report, scratch / FIGURES, suffixes)
        links = {chart: [f"{FIGURES}/{name}" for name in names] for chart, names in drawn.items()}
        (scratch / PAGE).write_text(render(report, links), encoding="utf-8")
        _put(scratch, out, {name for names in drawn.values() for name in names})
    return out / PAGE


def _drawn(report: Report, folder: Path, suffixes: Sequence[str]) -> dict[str, list[str]]:
    """Figures and tables for a paper: the names of the files by charts' ids, those of the results' table by its
    section's."""
    if not suffixes:
        return {}
    names = figures.save([one for one in report.charts if not isinstance(one, Shades)], folder, suffixes)
    names |= _shades([one for one in report.charts if isinstance(one, Shades)], folder, suffixes)
    texts = {"results.csv": as_csv(report.summaries), "results.tex": as_latex(report.table)}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return {**names, "results": list(texts)}


def _shades(maps: Sequence[Shades], folder: Path, suffixes: Sequence[str]) -> dict[str, list[str]]:
    from ..sweep import drawing

    return {one.id: drawing.save_as(one.picture, folder, one.id, suffixes) for one in maps}


def sweeps_among(places: Sequence[Path]) -> list[Path]:
    """Those of the places that are a sweep's directory."""
    return [place for place in places if (place / SWEEP).is_file()]


def check_place(out: Path) -> None:
    """Refuses a directory whose page or figures are not a report's."""
    if out.exists() and not out.is_dir():
        raise NotOurs(f"{out}: is a file, not a directory for a report")
    page = out / PAGE
    if page.exists():
        if not page.is_file() or MARKER not in page.read_text(encoding="utf-8", errors="replace")[:2000]:
            raise NotOurs(f"{page}: is not a FastFed report and will not be overwritten; choose another directory")
    elif (out / FIGURES).exists() and any((out / FIGURES).iterdir()):
        raise NotOurs(f"{out / FIGURES}: holds files that no report wrote; choose another directory")


def _put(scratch: Path, out: Path, names: set[str]) -> None:
    """The page last: whenever it is there, so is what it links to. Figures of the report before that are no longer
    drawn are removed."""
    before = _figures_of(out / PAGE)
    for name in sorted(names - before):
        if (out / FIGURES / name).exists():
            raise NotOurs(f"{out / FIGURES / name}: was written by no report; choose another directory")
    if names:
        (out / FIGURES).mkdir(exist_ok=True)
    for name in sorted(names):
        (scratch / FIGURES / name).replace(out / FIGURES / name)
    (scratch / PAGE).replace(out / PAGE)
    for name in before - names:
        (out / FIGURES / name).unlink(missing_ok=True)
    with suppress(OSError):  # not empty, or not there
        (out / FIGURES).rmdir()


def _figures_of(page: Path) -> set[str]:
    """The figures that an earlier page says are its own."""
    if not page.exists():
        return set()
    found = _DATA.search(page.read_text("utf-8"))
    try:
        links = json.loads(found[1])["figures"].values() if found else ()
    except (ValueError, KeyError, AttributeError):  # a page cut short, or of another version: leave its figures
        return set()
    names = {Path(link).name for group in links for link in group}
    return {name for name in names if _OURS.fullmatch(name)}
