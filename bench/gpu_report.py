"""`python -m fastfed.bench.gpu_report`: what `make gpu` measured on a card, beside what was calculated for it.

Reads what the commands before have left in one folder: ``doctor.json``, ``tests.xml``, ``kernels.json``,
``rounds.json`` and ``predictions.json``; what is not there is named in the report.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any
from xml.etree import ElementTree

import typer

from .kernels.table import seconds
from .rounds.rows import BATCHED, CHUNKED, FASTFED, PLAIN, VMAP

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

RULE = "SGD"  # of the clients of `fastfed bench rounds`
FILES = ("doctor.json", "tests.xml", "kernels.json", "rounds.json", "predictions.json")
_NONE = "-"

Json = dict[str, Any]


def _read(file: Path) -> Any:
    """What the file holds; None if there is none."""
    return json.loads(file.read_text()) if file.is_file() else None


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(headings)} |",
        f"|{'---|' * len(headings)}",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
    ]


def _time(value: float | None) -> str:
    return _NONE if value is None else seconds(value)


def _ratio(a: float | None, b: float | None) -> str:
    return _NONE if not a or not b else f"{a / b:.2f}x"


# ---- the machine and the tests --------------------------------------------------------------------------------------


def _about(doctor: Json | None) -> list[str]:
    if doctor is None:
        return ["What `fastfed doctor` says is not here (doctor.json).", ""]
    lines = [
        f"- cuda:{one['card']['index']} {one['card']['name']}, compute capability {one['card']['capability']}, driver "
        f"{one['card']['driver']}; self-test {one['self_test']}"
        for one in doctor["cards"]
    ]
    versions = ", ".join(f"{name} {version}" for name, version in doctor["versions"].items())
    return [*lines, f"- {versions}", ""]


def failed_tests(file: Path) -> list[str] | None:
    """The names of tests that failed; None if none were run."""
    if not file.is_file():
        return None
    cases = ElementTree.parse(file).getroot().iter("testcase")
    return [f"{one.get('name')}" for one in cases if one.find("failure") is not None or one.find("error") is not None]


def _about_tests(folder: Path) -> list[str]:
    failed = failed_tests(folder / "tests.xml")
    if failed is None:
        return ["No test was run on the card (tests.xml).", ""]
    if not failed:
        return ["Every test that a card can run passed.", ""]
    warning = f"{len(failed)} tests failed, so trust no figure below before they are explained:"
    return [warning, "", *(f"- {name}" for name in failed), ""]


# ---- rounds ---------------------------------------------------------------------------------------------------------


def card_of(device: str, predictions: Sequence[Json]) -> str | None:
    """The card among those calculated for that a device is, by its name."""
    known = {card for row in predictions for card in row["seconds_calculated"]}
    return next((card for card in sorted(known) if card.lower() in device.lower()), None)


def _rounds(rounds: Json | None, predictions: Sequence[Json] | None) -> list[str]:
    title = ["## Whole rounds", ""]
    if rounds is None:
        return [*title, "Not measured (rounds.json).", ""]
    by_workload: dict[str, dict[str, Json]] = {}
    for row in rounds["rows"]:
        by_workload.setdefault(row["workload"], {})[row["contender"]] = row
    device = rounds["rows"][0]["device"]
    card = card_of(device, predictions or ())
    calculated = {row["workload"]: row for row in predictions or () if row["rule"] == RULE}
    headings = ["workload", "clients", "measured", "p20 to p80", "calculated", "measured / calculated", "bound"]
    headings += ["launches a step", "launches a round", *(f"times {name}" for name in (BATCHED, PLAIN, VMAP, CHUNKED))]
    lines = [_round(of, calculated.get(name), card) for name, of in by_workload.items()]
    return [*title, _about_predictions(device, card, predictions), "", *_table(headings, lines)]


def _about_predictions(device: str, card: str | None, predictions: Sequence[Json] | None) -> str:
    if predictions is None:
        return "Nothing was calculated (predictions.json): `python -m fastfed.bench.device_costs --json` does that."
    if card is None:
        return f"Nothing was calculated for {device}: times and bounds are those of other cards, and left out."
    return (
        f"Calculated for {card} from launches, bytes and products, with images as bytes; `bound` is what no engine can "
        "go below on an A100."
    )


def _round(of: dict[str, Json], calculated: Json | None, card: str | None) -> list[str]:
    ours = of[FASTFED]
    found = None if calculated is None or card is None else calculated["seconds_calculated"][card]
    bound = calculated["bound_seconds"] if calculated is not None and card == "A100" else None
    launches = ["launches_per_step", "launches_per_round"]
    return [
        ours["workload"],
        f"{ours['timed']:,}",
        _time(ours["median"]),
        f"{_time(ours['p20'])} to {_time(ours['p80'])}",
        _time(found),
        _ratio(ours["median"], found),
        _time(bound),
        *(_NONE if calculated is None else str(calculated[name]) for name in launches),
        *(
            _ratio(ours["updates_per_second"], of.get(name, {}).get("updates_per_second"))
            for name in (BATCHED, PLAIN, VMAP, CHUNKED)
        ),
    ]


# ---- kernels --------------------------------------------------------------------------------------------------------


def _kernels(rows: Sequence[Json] | None) -> list[str]:
    title = ["## Kernels", ""]
    if not rows:
        return [*title, "Not measured (kernels.json).", ""]
    size = max(row["size"] for row in rows)
    ours = [row for row in rows if row["kind"] == "fastfed" and row["size"] == size]
    lines = [
        [
            row["op"],
            f"{row['d']:,}",
            _time(row["median"]),
            f"{row['gigabytes_per_second']:.0f}",
            _NONE if row["of_bound"] is None else f"{row['of_bound']:.0%}",
            _NONE if row["best"] is None else f"{row['ratio']:.2f}x {row['best']}",
        ]
        for row in ours
    ]
    about = f"Backend {ours[0]['backend']}; the bound is torch's update of as many bytes in place, in the same turns."
    return [*title, about, "", *_table(["op", "d", "median", "GB/s", "of the bound", "to the best alternative"], lines)]


# ---- the page -------------------------------------------------------------------------------------------------------


def report(folder: Path) -> str:
    """The whole page, in Markdown."""
    rounds, kernels = _read(folder / "rounds.json"), _read(folder / "kernels.json")
    rows = (rounds["rows"] if rounds is not None else kernels) or [{}]
    lines = [f"# FastFed on {rows[0].get('device', 'a card that was not measured')}", ""]
    lines += _about(_read(folder / "doctor.json"))
    lines += _about_tests(folder)
    lines += _rounds(rounds, _read(folder / "predictions.json"))
    lines += _kernels(kernels)
    return "\n".join(lines)


@app.command()
def main(
    folder: Annotated[Path, typer.Option(help="Where the commands of `make gpu` left what they found.")] = Path(
        "out/gpu"
    ),
) -> None:
    """Write report.md beside what was measured; exit code 1 if a test failed on the card, or something is missing."""
    if not folder.is_dir():
        raise typer.BadParameter(f"must be a folder, got {str(folder)!r}", param_hint="--folder")
    page = folder / "report.md"
    page.write_text(report(folder))
    print(f"Report: {page}")
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        print(f"Missing: {', '.join(missing)}")
    if missing or failed_tests(folder / "tests.xml"):
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
