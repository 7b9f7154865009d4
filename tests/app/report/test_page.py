"""The page as a file: what it holds, and that it needs nothing else."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from fastfed.app import report
from fastfed.app.report import Entry, gather, page
from fastfed.app.report.page import compose, embed
from fastfed.record.history import History
from tests.app.report.support import rows


class Parsed(HTMLParser):
    """Elements and their attributes, and what every element's end was."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)

    def ids(self, tag: str) -> list[str]:
        return [str(attributes["id"]) for name, attributes in self.found if name == tag and "id" in attributes]


def data_of(text: str) -> Any:
    return json.loads(Parsed(text).scripts[0])


def one(name: str = "fedavg", accuracies: tuple[float | None, ...] = (0.5, 0.9), **known: Any) -> Entry:
    return Entry(name, History(rows(list(accuracies))), **known)


def test_every_section_of_every_kind_of_run(real_runs: Path) -> None:
    text = page(gather([real_runs]))
    parsed = Parsed(text)
    assert parsed.open == []
    assert parsed.ids("section") == [
        "results", "progress", "steps", "tuning", "asynchrony", "privacy", "refused", "data", "time", "costs",
        "configuration", "machine",
    ]  # fmt: skip
    drawn = [attributes["data-chart"] for tag, attributes in parsed.found if tag == "figure"]
    assert drawn == list(data_of(text)["charts"])
    assert len(set(drawn)) == len(drawn)
    assert "<title>Delta-SGD, FATHOM, FedAda2 and 4 others on digits</title>" in text


def test_nothing_is_fetched_from_anywhere(real_runs: Path) -> None:
    text = page(gather([real_runs]))
    assert not re.findall(r"(?i)\b(?:https?|wss?|ftp):|//[a-z0-9-]+\.[a-z]{2,}|@import", text)
    assert not re.findall(r"\burl\((?!#)", text)
    for tag, attributes in Parsed(text).found:
        assert "src" not in attributes
        assert tag not in ("link", "img", "iframe", "object", "embed")
        assert str(attributes.get("href", "#")).startswith("#")
    assert "default-src 'none'" in text  # and the browser is told to refuse it


def test_one_run_is_enough_and_has_no_comparison() -> None:
    text = page([one(config={"method": "fedavg"}, info={"method": "fedavg", "clients": 30})])
    assert "<h1>FedAvg reaches 90.0% test accuracy after 2 rounds (one seed).</h1>" in text
    assert Parsed(text).ids("section") == ["results", "progress", "time", "configuration"]
    assert "1 run · 1 seed · 30 clients" in text
    assert "differ" not in text.partition("<main>")[2].partition("</main>")[0]


def test_many_runs_have_styles_of_their_own() -> None:
    entries = [one(f"run {i}") for i in range(40)]
    series = data_of(page(entries))["charts"]["test_accuracy_by_round"]["series"]
    assert [s["style"] for s in series] == list(range(40))
    assert len({s["key"] for s in series}) == 40


def test_a_run_without_rounds_and_one_that_diverged_do_not_break_it() -> None:
    text = page([Entry("empty", History()), one("lost", (0.5, None)), one("good")])
    assert "No run" not in text.partition("<h1>")[2].partition("</h1>")[0]
    assert "diverged at round 2" in text
    assert "no rounds" in text
    assert data_of(text)["charts"]["test_accuracy_by_round"]["series"][0]["y"] == [0.5, None]
    assert "No run has been evaluated yet." in page([Entry("empty", History())])


def test_names_cannot_break_out() -> None:
    evil = "</script><script>alert(1)</script><!--DATA--> \u2028 & \"'"
    text = page([one(evil, config={"name": evil, "method": evil})], title=evil)
    parsed = Parsed(text)
    assert parsed.open == []
    assert [tag for tag, _ in parsed.found].count("script") == 2
    assert "<script>alert" not in text
    assert data_of(text)["charts"]["test_accuracy_by_round"]["series"][0]["label"] == evil


def test_embedded_data_is_json_without_line_breaks_of_scripts() -> None:
    assert json.loads(embed({"a": "</script>\u2028"})) == {"a": "</script>\u2028"}
    assert "<" not in embed("</script>")
    assert "\u2028" not in embed("\u2028")


def test_the_target_is_the_users() -> None:
    assert "rounds to 55%" in page([one()], target=0.55)
    assert "rounds to 85%" in page([one()])


def test_the_title_names_the_data_if_all_share_it() -> None:
    told = {"name": "digits", "sizes": [1]}
    other = {"name": "letters", "sizes": [1]}
    assert compose([one("a", clients=told), one("b", clients=told)]).title == "a and b on digits"
    assert compose([one("a", clients=told), one("b", clients=other)]).title == "a and b"
    assert compose([one("a")], title="Mine").title == "Mine"


def test_seeds_are_told() -> None:
    entries = [one(config={"method": "fedavg", "seed": seed}) for seed in range(3)]
    assert compose(entries).facts == "3 runs · 3 seeds each"
    assert compose([*entries, one("other")]).facts == "4 runs · 1 to 3 seeds each"


def test_no_run_is_an_error() -> None:
    with pytest.raises(ValueError, match="entries: must be at least one run"):
        page([])


def test_results_alone_are_those_of_the_page(real_runs: Path) -> None:
    entries = gather([real_runs])
    grid = report.results(entries, 0.5)
    text = page(entries, target=0.5)
    assert grid.heads[4] == "rounds to 50%"
    for row in grid.rows:
        assert all(f">{cell.text}<" in text for cell in row[1:])
