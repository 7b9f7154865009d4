"""A report as a reader meets it: opened in headless Chromium, clicked, and listened to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastfed.app.report import write
from tests.app.report.chromium import Visit, browser

CHART = "#chart-test_accuracy_by_round"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def report(real_runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of every kind of run, so that every kind of chart is drawn."""
    return write([real_runs], tmp_path_factory.mktemp("report"), suffixes=())


@pytest.fixture
def visit(chromium: Any, report: Path) -> Iterator[Visit]:
    opened = Visit(chromium, report)
    yield opened
    opened.check()
    opened.page.context.close()


def key_of(visit: Visit, label: str) -> str:
    found = visit.page.locator(".legend button", has_text=label).first.get_attribute("data-key")
    assert found
    return str(found)


def test_every_chart_is_drawn(visit: Visit) -> None:
    cards = visit.page.locator("figure.chart")
    assert cards.count() >= 16
    for i in range(cards.count()):
        card = cards.nth(i)
        name = card.get_attribute("data-chart")
        assert card.locator("svg.plot").count() == 1, name
        assert card.locator(".line, rect, circle").count() >= 1, name
        assert "NaN" not in card.inner_html(), name
    assert visit.page.locator("h1").inner_text().endswith(".")


def test_a_series_is_clicked_off_and_on(visit: Visit) -> None:
    key = key_of(visit, "FedYogi")
    line, band = f'{CHART} [data-key="{key}"] path.line', f'{CHART} [data-key="{key}"] path.band'
    lines = visit.count(f"{CHART} path.line")
    elsewhere = f'#chart-train_loss_by_round [data-key="{key}"] path.line'
    assert (visit.count(line), visit.count(band), visit.count(elsewhere)) == (1, 1, 1)
    drawn = visit.page.locator(line).get_attribute("d")

    button = visit.page.locator(".legend button", has_text="FedYogi").first
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert (visit.count(line), visit.count(band), visit.count(elsewhere)) == (0, 0, 0)
    assert visit.count(f"{CHART} path.line") == lines - 1

    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    assert (visit.count(line), visit.count(band), visit.count(elsewhere)) == (1, 1, 1)
    assert visit.page.locator(line).get_attribute("d") == drawn


def test_shift_and_a_click_show_a_series_alone(visit: Visit) -> None:
    button = visit.page.locator("#progress .legend button", has_text="Delta-SGD")
    all_lines = visit.count(f"{CHART} path.line")
    button.click(modifiers=["Shift"])
    assert visit.count(f"{CHART} path.line") == 1
    button.click(modifiers=["Shift"])
    assert visit.count(f"{CHART} path.line") == all_lines


def test_rooms_and_ages_are_switched_too(visit: Visit) -> None:
    train = '#chart-seconds_per_room [data-key="room-train"] rect'
    assert visit.count(train) >= 1
    visit.page.locator("#time .legend button", has_text="train").click()
    assert visit.count(train) == 0
    bars = visit.count("#chart-ages .series rect")
    visit.page.locator("#asynchrony .legend button", has_text="FedBuff").click()
    assert visit.count("#chart-ages .series rect") == 0
    visit.page.locator("#asynchrony .legend button", has_text="FedBuff").click()
    assert visit.count("#chart-ages .series rect") == bars


def test_the_pointer_and_the_keys_read_values(visit: Visit) -> None:
    plot = visit.page.locator(f"{CHART} svg.plot")
    plot.hover()
    assert visit.count("#tip") == 1
    assert "FedYogi" in visit.page.locator("#tip").inner_text()
    assert "%" in visit.page.locator("#tip").inner_text()
    plot.focus()
    plot.press("End")
    assert "round 8" in visit.page.locator("#tip .at").inner_text()
    plot.press("Escape")
    assert visit.count("#tip") == 0


def test_axes_turn_logarithmic_and_zoom(visit: Visit) -> None:
    card = visit.page.locator("#chart-test_loss_by_round")
    before = card.locator("path.line").first.get_attribute("d")
    for name in ("log y", "zoom"):
        button = card.locator(".tools button", has_text=name)
        button.click()
        assert button.get_attribute("aria-pressed") == "true"
        assert card.locator("path.line").first.get_attribute("d") != before, name
        button.click()
        assert card.locator("path.line").first.get_attribute("d") == before


def test_tables_sort(visit: Visit) -> None:
    def first() -> str:
        return str(visit.page.locator("#results tbody tr th").first.inner_text())

    names = sorted(visit.page.locator("#results tbody tr th").all_inner_texts(), key=str.lower)
    head = visit.page.locator("#results thead button", has_text="run").first
    head.click()
    assert first().strip() == names[0].strip()
    head.click()
    assert first().strip() == names[-1].strip()


def test_numbers_can_be_taken_away(visit: Visit) -> None:
    with visit.page.expect_download() as waiting:
        visit.page.locator(f"{CHART} .tools button", has_text="CSV").click()
    lines = Path(waiting.value.path()).read_text().splitlines()
    assert lines[0] == '"series","round","test accuracy","low","high"'
    assert sum(line.startswith('"FedYogi",') for line in lines) == 4  # evaluated in rounds 2, 4, 6, 8


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_follows_the_readers_scheme_and_the_button_changes_it(chromium: Any, report: Path, scheme: str) -> None:
    visit = Visit(chromium, report, color_scheme=scheme)
    colours = {"light": "rgb(253, 253, 252)", "dark": "rgb(20, 23, 26)"}
    other = "light" if scheme == "dark" else "dark"
    line = visit.colour(f"{CHART} path.line", "stroke")
    assert visit.colour("body", "backgroundColor") == colours[scheme]
    visit.page.locator("#theme").click()
    assert visit.colour("body", "backgroundColor") == colours[other]
    assert visit.colour(f"{CHART} path.line", "stroke") != line
    assert visit.page.locator("#theme").get_attribute("aria-pressed") == str(other == "dark").lower()
    visit.check()


@pytest.mark.parametrize("width", [380, 1600])
def test_it_fits_narrow_and_wide_windows(chromium: Any, report: Path, width: int) -> None:
    visit = Visit(chromium, report, viewport={"width": width, "height": 800})
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
    plots = visit.page.locator("svg.plot").evaluate_all("all => all.map(one => one.getBoundingClientRect().width)")
    assert all(250 <= plot <= width for plot in plots)
    visit.check()
