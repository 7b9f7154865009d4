"""Writing a report: what is beside the page, and what is never overwritten."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fastfed.app.report import Entry, NotOurs, gather, write
from fastfed.app.report import files as module
from fastfed.app.runs import DamagedRun
from fastfed.record.history import History


def entry(**columns: object) -> Entry:
    """A run of few charts: they take their time."""
    return Entry("fedavg", History([{"round": i, "train_loss": 1 / i, **columns} for i in (1, 2)]))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


TABLES = ("results.csv", "results.tex")


def test_every_chart_is_a_figure_too(real_runs: Path, tmp_path: Path) -> None:
    page = write([real_runs], tmp_path / "new" / "report", suffixes=["svg"])
    assert page == tmp_path / "new" / "report" / "index.html"
    assert names(page.parent) == {"index.html", "figures"}
    text = page.read_text()
    data = json.loads(text.partition('id="report-data">')[2].partition("</script>")[0])
    assert data["figures"].pop("results") == ["figures/results.csv", "figures/results.tex"]
    assert set(data["figures"]) == set(data["charts"])
    assert len(data["charts"]) >= 16
    for links in data["figures"].values():
        (link,) = links
        assert ElementTree.parse(page.parent / link).getroot().tag.endswith("svg")


def test_figures_are_png_and_svg_unless_asked_otherwise(tmp_path: Path) -> None:
    write([entry()], tmp_path)
    assert names(tmp_path / "figures") == {"train_loss_by_round.png", "train_loss_by_round.svg", *TABLES}
    head = (tmp_path / "figures" / "train_loss_by_round.png").read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    assert struct.unpack(">II", head[16:24]) == (1012, 704)  # a column of a paper at 220 dots per inch


def test_the_same_figure_is_the_same_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write([entry()], tmp_path / name, suffixes=["png", "svg", "pdf"])
    for path in (tmp_path / "a" / "figures").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / "figures" / path.name).read_bytes(), path.name


def test_a_report_is_replaced_with_its_figures(tmp_path: Path) -> None:
    write([entry(epsilon=1.0)], tmp_path)
    assert "epsilon_by_round.png" in names(tmp_path / "figures")
    (tmp_path / "figures" / "mine.png").write_text("kept")
    write([entry()], tmp_path)
    assert "epsilon_by_round.png" not in names(tmp_path / "figures")
    assert (tmp_path / "figures" / "mine.png").read_text() == "kept"
    write([entry()], tmp_path, suffixes=())
    assert names(tmp_path / "figures") == {"mine.png"}


def test_formats_can_be_chosen(tmp_path: Path) -> None:
    write([entry()], tmp_path / "a", suffixes=["pdf"])
    assert {path.suffix for path in (tmp_path / "a" / "figures").iterdir()} == {".pdf", ".csv", ".tex"}
    page = write([entry()], tmp_path / "b", suffixes=())
    assert names(page.parent) == {"index.html"}


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("index.html", "is not a FastFed report and will not be overwritten"),
        ("figures/a.png", "holds files that no report wrote"),
        ("", "is a file, not a directory for a report"),
    ],
)
def test_what_is_not_a_report_is_left_as_it_is(tmp_path: Path, place: str, words: str) -> None:
    theirs = tmp_path / "out" / place
    theirs.parent.mkdir(parents=True, exist_ok=True)
    theirs.write_text("<html>mine</html>")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(NotOurs, match=words):
        write([entry()], tmp_path / "out")
    assert theirs.read_text() == "<html>mine</html>"
    assert sorted(tmp_path.rglob("*")) == before


def test_a_figure_of_somebody_else_beside_our_page_is_not_overwritten(tmp_path: Path) -> None:
    page = write([entry()], tmp_path, suffixes=["svg"])
    before = page.read_text()
    (tmp_path / "figures" / "train_loss_by_round.png").write_text("mine")
    with pytest.raises(NotOurs, match=r"train_loss_by_round\.png: was written by no report"):
        write([entry()], tmp_path, title="second")
    assert (tmp_path / "figures" / "train_loss_by_round.png").read_text() == "mine"
    assert page.read_text() == before


def test_a_failure_leaves_the_report_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = write([entry()], tmp_path, suffixes=["svg"])
    before = page.read_text()

    def fail(*_: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "render", fail)
    with pytest.raises(OSError, match="No space"):
        write([entry()], tmp_path, title="second", suffixes=["svg"])
    assert page.read_text() == before
    assert names(tmp_path) == {"index.html", "figures"}


def test_nothing_is_written_where_no_run_is(tmp_path: Path) -> None:
    with pytest.raises(DamagedRun, match="no such directory"):
        write([tmp_path / "none"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_report_among_its_runs_is_no_run(real_runs: Path, tmp_path: Path) -> None:
    before = len(gather([real_runs]))
    write([real_runs], real_runs / "report", suffixes=())
    assert len(gather([real_runs])) == before
