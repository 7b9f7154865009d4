"""A sweep's page: heat maps and sensitivity beside the runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fastfed.app import runs, sweep
from fastfed.app.report import write
from fastfed.app.report.sweeps import pictures_of
from fastfed.app.sweep import again, charts

from ..sweep.support import write as write_file
from .chromium import Visit, browser


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("swept")
    plan = sweep.plan(write_file(folder), ["client.lr=0.01,0.1,1", "server.lr=0.1,1"], ["run.rounds=2"], seeds=2)
    swept = sweep.carry_out(plan, folder / "out", jobs=1, threads=1)
    assert again.outcomes_of(folder / "out") == [
        type(one)(**{**vars(one), "point": found.point})
        for one, found in zip(swept.outcomes, again.outcomes_of(folder / "out"), strict=True)
    ]
    return folder / "out"


def test_the_pictures_are_those_of_the_sweep(home: Path) -> None:
    maps, lines = pictures_of([home])
    drawn = [one for one in charts.of_outcomes(again.outcomes_of(home)) if isinstance(one, charts.HeatMap)]
    assert [one.picture for one in maps] == drawn
    assert maps[0].panels[0]["values"] == drawn[0].panels[0].values
    assert (maps[0].x, maps[0].y, maps[0].format) == ("client learning rate", "server learning rate", "percent")
    keys = [one.key for chart in lines for one in chart.series]
    assert len(keys) == len(set(keys))
    assert {"sensitivity_client_lr", "sensitivity_server_lr"} <= {chart.id for chart in lines}


def test_a_damaged_sweep_is_named(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(runs.DamagedRun, match=r"sweep.json: is damaged"):
        pictures_of([tmp_path])


def test_the_page_draws_them_and_offers_files(home: Path, tmp_path: Path) -> None:
    page = write([home], tmp_path / "report", suffixes=["pdf"])
    for name in ("heat_map_server_lr_client_lr.pdf", "sensitivity_client_lr.pdf", "results.csv"):
        assert (page.parent / "figures" / name).is_file()
    with browser() as started:
        visit = Visit(started, page)
        visit.check()
        cells = visit.count("#chart-heat_map_server_lr_client_lr svg.plot rect")
        assert cells == 6 + 1 + 24  # the cells, the frame, the key
        assert visit.count("#chart-sensitivity_client_lr path.line") >= 1
        assert visit.page.locator("#sensitivity .legend").count() == visit.page.locator("#sensitivity .chart").count()
        visit.page.set_viewport_size({"width": 390, "height": 800})
        assert visit.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert json.loads(visit.page.evaluate("document.getElementById('report-data').textContent"))["figures"][
            "results"
        ]
