"""The tables of a report, and how they are drawn."""

from __future__ import annotations

from io import StringIO
from typing import Any

from rich.console import Console

from fastfed.app.report import Entry, Group, tables
from fastfed.app.report.grid import Cell, Grid, as_html, as_rich
from fastfed.app.report.summary import summarise
from fastfed.record.history import History
from tests.app.report.support import rows

MISSING = "\N{EN DASH}"


def of(label: str, *accuracies: list[float | None], style: int = 0, columns: Any = None, **known: Any) -> Group:
    entries = [Entry(label, History(rows(one, **(columns or {}))), **known) for one in accuracies]
    return Group(label, style, tuple(entries))


def texts(grid: Grid | None) -> list[list[str]]:
    assert grid is not None
    return [list(grid.heads), *([cell.text for cell in row] for row in grid.rows)]


def results(*groups: Group, target: float | None = 0.8) -> Grid:
    return tables.results(summarise(groups, "test_accuracy", target), "test_accuracy", target)


def test_metrics_of_ones_own_have_a_column_each() -> None:
    told = {"metrics": ["f1", "odd_error"]}
    columns = {"test_f1": 0.25, "validation_odd_error": 2.0}
    grid = results(of("A", [0.5, 0.7], info=told, columns=columns), of("B", [0.4]), target=None)
    assert texts(grid)[0][:5] == ["run", "final test accuracy", "best test accuracy", "final test f1",
                                  "final validation odd error"]  # fmt: skip
    assert [row[3:5] for row in texts(grid)[1:]] == [["25.0%", "2"], [MISSING, MISSING]]


def test_results_have_the_best_first_and_marked() -> None:
    grid = results(of("B", [0.5, 0.7]), of("A", [0.85, 0.9]))
    assert texts(grid) == [
        ["run", "final test accuracy", "best test accuracy", "rounds to 80%", "MB to 80%",
         "rounds", "MB sent", "seconds", "status"],
        ["A", "90.0%", "90.0%", "1", "1.50", "2", "3.00", "0.420", "done"],
        ["B", "70.0%", "70.0%", MISSING, MISSING, "2", "3.00", "0.420", "done"],
    ]  # fmt: skip
    assert [cell.best for cell in grid.rows[0]][1:3] == [True, True]
    assert not any(cell.best for cell in grid.rows[1])


def test_results_over_seeds_have_intervals_and_say_how_many() -> None:
    _, row = texts(results(of("A", [0.90], [0.92]), target=None))
    assert row[:3] == ["A", "2", "91.0 ± 12.7%"]


def test_results_do_not_pass_over_lost_runs() -> None:
    grid = results(of("A", [0.9, 0.9], [0.9, None]), target=None)
    assert texts(grid)[1][2] == "90.0% (1 of 2)"
    assert grid.rows[0][2].value is None  # so that sorting does not put it first


def test_costs_in_bytes_and_in_models() -> None:
    cost = {"bytes_down": 8000, "bytes_up": 4000, "optimizer_bytes": 400}
    grid = tables.costs([of("A", [0.5], costs=cost, info={"parameters": 1000}), of("B", [0.5])])
    assert texts(grid)[1] == ["A", "8.00 kB (2.00 d)", "4.00 kB (1.00 d)", "12.0 kB (3.00 d)", "400 B (0.100 d)"]
    assert tables.costs([of("B", [0.5])]) is None


def test_centralised_runs_send_nothing() -> None:
    """They have no clients: neither what a client pays nor what was sent is told of them."""
    cost = {"bytes_down": 8000, "bytes_up": 4000, "optimizer_bytes": 400}
    alone = of("alone", [0.9], costs=cost, config={"data": {"pooled": True}})
    with_clients = of("with clients", [0.8], costs=cost)
    assert [row[0] for row in texts(tables.costs([alone, with_clients]))[1:]] == ["with clients"]
    assert tables.costs([alone]) is None
    heads, first, second = texts(results(alone, with_clients, target=0.5))
    for head in ("MB sent", "MB to 50%"):
        assert first[heads.index(head)] == MISSING
        assert second[heads.index(head)] == "1.50"


def test_the_privacy_budget() -> None:
    told = {"clip": 0.5, "noise": 0.6, "delta": 1e-3, "target_epsilon": "none", "accountant": "rdp", "adaptive": "none"}
    private = of("P", [0.5, 0.6], columns={"epsilon": 7.25, "clip": 0.5}, config={"privacy": told})
    grid = tables.privacy([of("A", [0.5]), private])
    assert texts(grid) == [
        ["run", "ε spent", "ε allowed", "δ", "noise multiplier", "clip", "accountant"],
        ["P", "7.25", MISSING, "0.001", "0.6", "0.5", "rdp"],
    ]
    assert tables.privacy([of("A", [0.5])]) is None


def test_the_privacy_of_no_noise_and_of_adaptive_clipping() -> None:
    bare = of("Bare", [0.5], config={"privacy": {"noise": 0.0, "clip": 1.0, "delta": 1e-5, "target_epsilon": 8.0}})
    adaptive = {"privacy": {"clip": 1.0, "adaptive": {"quantile": 0.5}}}
    moving = of("Moving", [0.5], columns={"clip": 0.125, "epsilon": 3.0}, config=adaptive)
    _, first, second = texts(tables.privacy([bare, moving]))
    assert first[1:3] == ["without bound", "8"]
    assert second[5] == "0.125 (adaptive)"


def test_fates_count_running_totals_once() -> None:
    lossy = of("A", [0.1, 0.2], columns={"dropped": 4, "skipped": 1})
    assert texts(tables.fates([lossy, of("B", [0.1], style=1)])) == [
        ["run", "updates", "refused (not finite)", "dropped out"],
        ["A", "20", "2", "4"],
        ["B", "10", "0", "0"],
    ]
    assert tables.fates([of("B", [0.1])]) is None


def test_differences_leave_out_seeds_names_and_what_is_shared() -> None:
    one = {"name": "x", "run": {"seed": 0, "rounds": 5}, "server": {"lr": 0.1}}
    two = {"name": "y", "run": {"seed": 1, "rounds": 5}, "server": {"lr": 1.0, "tau": 1e-3}}
    groups = [of("A", [0.5], config=one), of("B", [0.5], config=two)]
    assert texts(tables.differences(groups)) == [
        ["setting", "A", "B"],
        ["server.lr", "0.1", "1"],
        ["server.tau", MISSING, "0.001"],
    ]
    assert tables.differences([groups[0], of("C", [0.5], config=one)]) is None


def test_whole_configurations_list_every_seed() -> None:
    entries = tuple(Entry("A", History(rows([0.5])), config={"run": {"seed": seed, "rounds": 5}}) for seed in (3, 4))
    folded = tables.configurations([Group("A", 0, entries)])
    assert "<details><summary>A</summary>" in folded
    assert ">3, 4</td>" in folded
    assert ">5</td>" in folded


def test_machines_are_told_once_each() -> None:
    here = {"executor": "native", "threads": 2, "machine": {"processor": "P", "memory_bytes": 25_300_000_000}}
    groups = [of("A", [0.5], info=here), of("B", [0.5], info=here), of("C", [0.5], info={**here, "threads": 4})]
    assert texts(tables.machines(groups)) == [
        ["runs", "executor", "threads", "processor", "memory"],
        ["A, B", "native", "2", "P", "25.3 GB"],
        ["C", "native", "4", "P", "25.3 GB"],
    ]


# ---- drawing --------------------------------------------------------------------------------------------------------

GRID = Grid(["run", "a<b", "why"], [[Cell("[x]", style=3), Cell("1.5", 1.5, best=True), Cell("<i>")]], "sortable", "t")


def test_html_escapes_sorts_and_aligns() -> None:
    drawn = as_html(GRID)
    assert '<th scope="col">a&lt;b</th>' in drawn
    assert '<td class="best" data-value="1.5">1.5</td>' in drawn
    assert '<td class="t">&lt;i&gt;</td>' in drawn
    assert '<th scope="row"><span class="swatch" data-style="3"></span>[x]</th>' in drawn


def test_a_terminal_gets_the_same_cells_and_no_markup() -> None:
    out = StringIO()
    Console(file=out, width=100).print(as_rich(GRID, "[bold]"))
    assert all(word in out.getvalue() for word in ("[x]", "a<b", "1.5", "<i>", "[bold]"))


def test_marking_needs_something_to_compare() -> None:
    alone = Grid(["run", "x"], [[Cell("a"), Cell("1", 1.0)], [Cell("b"), Cell(MISSING)]]).marked({"x": True})
    assert not any(cell.best for row in alone.rows for cell in row)
    low = Grid(["run", "x"], [[Cell("a"), Cell("1", 1.0)], [Cell("b"), Cell("2", 2.0)]]).marked({"x": False})
    assert [row[1].best for row in low.rows] == [True, False]
