"""`fastfed report`: runs as one page to look at, and as figures for a paper."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .compare import LabelOption, MetricOption, OrderOption, checked, labels_of, names_of
from .terminal import ASKED_WRONGLY, complain, console, exit_codes

if TYPE_CHECKING:
    from ..report import Entry

_FORMATS = ("png", "svg", "pdf")


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...|DIR", help="Runs, or directories that hold some.")],
    out: Annotated[
        Path | None, typer.Option(help="The report's directory. Default: report/ in what was named, or here.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="Above the page. Default: the methods and the data.")] = None,
    target: Annotated[
        float | None,
        typer.Option(
            help="Count rounds and bytes to this value of the metric. Default: one that half of the runs reach."
        ),
    ] = None,
    figures: Annotated[str, typer.Option(help="Formats of the figures: png, svg, pdf.")] = "png,svg",
    no_figures: Annotated[bool, typer.Option("--no-figures", help="Only the page.")] = False,
    metric: MetricOption = None,
    labels: LabelOption = None,
    order: OrderOption = None,
    size: Annotated[
        str | None, typer.Option(metavar="WIDTHxHEIGHT", help="Of the figures, in inches, as in 3.3x2.2.")
    ] = None,
    ylim: Annotated[
        str | None, typer.Option(metavar="LOW:HIGH", help="What the metric's axis shows, as in 0.8:1.")
    ] = None,
    no_bands: Annotated[bool, typer.Option("--no-bands", help="Lines without the bands of their seeds.")] = False,
) -> None:
    """Write a page about some runs, with figures beside it.

    The page is one file that needs nothing else, no network either: open it in a browser, or send it. Runs that differ
    only in their seed become one line with its 95% band. A report that is there already is replaced, nothing else is.
    Of a sweep's directory it has the heat maps and the sensitivity, too. Beside the figures is the table of the results
    as LaTeX and CSV.

    Example: fastfed report runs --target 0.9 --out report
    """
    from ..report import Look, NotOurs, Unknown, gather, write
    from ..report.files import sweeps_among

    formats = () if no_figures else _formats(figures)
    with exit_codes():
        entries = gather(runs)
        _check_target(target, entries)
        place = _default_place(runs) if out is None else out
        try:
            look = Look(
                labels_of(labels), names_of(order), checked(metric, entries), _pair(size, "x", "--size"),
                _pair(ylim, ":", "--ylim"), not no_bands,
            )  # fmt: skip
            page = write(entries, place, title, target, formats, look, sweeps_among(runs))
        except Unknown as error:
            raise typer.BadParameter(str(error)) from None
        except NotOurs as error:
            complain(str(error))
            raise typer.Exit(ASKED_WRONGLY) from None
    said = console()
    said.print(f"Report:  {page.resolve()}", highlight=False, soft_wrap=True, markup=False)
    if formats and any((place / "figures").glob("*")):
        said.print(f"Figures: {(place / 'figures').resolve()}", highlight=False, soft_wrap=True, markup=False)


def _pair(text: str | None, between: str, option: str) -> tuple[float, float] | None:
    """Two numbers, of which the first may be the larger only where they are sides of a figure."""
    if text is None:
        return None
    first, sign, second = text.partition(between)
    try:
        pair = float(first), float(second)
    except ValueError:
        pair = math.nan, math.nan
    fits = sign and all(map(math.isfinite, pair)) and (min(pair) > 0 if option == "--size" else pair[0] < pair[1])
    if not fits:
        example = "3.3x2.2" if option == "--size" else "0.8:1"
        raise typer.BadParameter(f"must be two numbers, as in {example}, got {text!r}", param_hint=option)
    return pair


def _default_place(places: list[Path]) -> Path:
    return places[0] / "report" if len(places) == 1 else Path("report")


def _formats(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip().lower() for part in text.split(",")))
    for name in names:
        if name not in _FORMATS:
            known = ", ".join(_FORMATS)
            raise typer.BadParameter(
                f"must be some of {known}, separated by commas, got {text!r}", param_hint="--figures"
            )
    return names


def _check_target(target: float | None, entries: list[Entry]) -> None:
    """A percentage in place of a share is a slip that would be found out only by an empty column."""
    from ..report import is_share, main_metric

    if target is None:
        return
    metric = main_metric(entries)
    if not math.isfinite(target):
        raise typer.BadParameter(f"must be a finite number, got {target}", param_hint="--target")
    if metric is not None and is_share(metric) and not 0 <= target <= 1:
        raise typer.BadParameter(f"must be between 0 and 1 for {metric}, got {target:g}", param_hint="--target")
