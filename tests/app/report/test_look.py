"""Names, order, metric, sizes and tasks: what a report shows where somebody says how, or runs are of several tasks."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from fastfed.app import cli
from fastfed.app.report import Entry, Look, Unknown, figures, group
from fastfed.app.report.export import as_latex, escaped
from fastfed.app.report.grid import Cell, Grid
from fastfed.app.report.page import compose
from fastfed.record.history import History
from tests.app.report.support import rows, write_run

_DATA = re.compile(r'<script type="application/json" id="report-data">(.*?)</script>', re.DOTALL)


def entry(name: str | None, method: str, values: list[float | None], seed: int = 0, **tables: object) -> Entry:
    config = {"seed": seed, "method": method, **({} if name is None else {"name": name}), **tables}
    info = {"method": method, "metric": "test_accuracy", "seed": seed}
    return Entry(name or "somewhere", History(rows(values)), info, config)


def labels(*entries: Entry) -> list[str]:
    return [one.label for one in group(entries)]


def command(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, [str(one) for one in arguments])


@pytest.fixture
def two(tmp_path: Path) -> Path:
    write_run(tmp_path / "runs" / "a", rows([0.5, 0.9]), method="fedavg")
    write_run(tmp_path / "runs" / "b", rows([0.6, 0.8]), method="fedyogi")
    return tmp_path / "runs"


# ---- names ----------------------------------------------------------------------------------------------------------


def test_lines_have_the_names_that_files_and_variants_give() -> None:
    assert labels(entry("Mine", "fedavg", [0.5]), entry("Theirs", "fedavg", [0.6], lr=2)) == ["Mine", "Theirs"]
    assert labels(entry(None, "fedavg", [0.5]), entry("the file as it is", "fedyogi", [0.6])) == ["FedAvg", "FedYogi"]
    assert labels(entry("Mine", "fedavg", [0.5], lr=1), entry("Mine", "fedavg", [0.6], lr=2)) == [
        "Mine (lr 1)",
        "Mine (lr 2)",
    ]


def test_settings_that_a_sweep_adds_to_a_name_are_no_part_of_it() -> None:
    points = [entry(f"Ours, client.lr {lr}", "fedavg", [0.5], client={"lr": lr, "rule": "sgd"}) for lr in (0.1, 0.2)]
    assert labels(*points) == ["Ours (client.lr 0.1)", "Ours (client.lr 0.2)"]
    alone = entry("client.lr 0.1", "fedavg", [0.5])
    assert labels(alone, entry(None, "fedyogi", [0.5])) == ["FedAvg", "FedYogi"]


def test_labels_and_order_are_as_asked_for() -> None:
    entries = [entry(None, "fedavg", [0.5]), entry("Mine", "fedyogi", [0.9])]
    look = Look(labels={"FedAvg": "Baseline", "Mine": "Ours"}, order=["Ours"])
    report = compose(entries, look=look)
    assert [(one.label, one.style) for one in report.groups] == [("Ours", 0), ("Baseline", 1)]
    assert [row[0].text for row in compose(entries, look=Look(order=["FedAvg"])).table.rows] == ["FedAvg", "Mine"]
    for wrong in (Look(labels={"FedAvgg": "x"}), Look(order=["FedAvgg"])):
        with pytest.raises(Unknown, match="no run is called 'FedAvgg'; there are FedAvg, "):
            compose(entries, look=wrong)


# ---- figures --------------------------------------------------------------------------------------------------------


def test_axis_size_and_bands_are_as_asked_for() -> None:
    entries = [entry(None, "fedavg", [0.5, 0.6 + 0.1 * seed], seed) for seed in range(3)]
    plain, look = compose(entries), Look(size=(3.0, 2.0), ylim=(0.4, 0.9), bands=False)
    found = {chart.id: chart for chart in compose(entries, look=look).charts}
    before = {chart.id: chart for chart in plain.charts}
    chart = found["test_accuracy_by_round"]
    assert before[chart.id].series[0].low is not None  # type: ignore[union-attr]
    assert chart.series[0].low is None  # type: ignore[union-attr]
    drawn = figures.draw(chart)  # type: ignore[arg-type]
    assert tuple(drawn.get_size_inches()) == (3.0, 2.0)
    assert drawn.axes[0].get_ylim() == (0.4, 0.9)
    assert found["train_loss_by_round"].y.limits is None  # type: ignore[union-attr]


def test_fonts_in_a_pdf_are_true_type(tmp_path: Path) -> None:
    charts = [one for one in compose([entry(None, "fedavg", [0.5, 0.6])]).charts if one.id == "test_accuracy_by_round"]
    figures.save(charts, tmp_path, ["pdf"])  # type: ignore[arg-type]
    held = (tmp_path / "test_accuracy_by_round.pdf").read_bytes()
    assert b"/Type3" not in held
    assert b"/FontFile2" in held


def test_the_options_of_the_command_reach_the_page(two: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ("--label", "FedAvg=Baseline", "--order", "Baseline", "--ylim", "0.2:0.95", "--size", "3x2", "--no-bands")
    said = command("report", two, "--out", out, *options, "--metric", "test_accuracy", "--figures", "svg")
    assert said.exit_code == 0, said.output
    text = (out / "index.html").read_text()
    told = json.loads(_DATA.search(text)[1])  # type: ignore[index]
    chart = told["charts"]["test_accuracy_by_round"]
    assert [one["label"] for one in chart["series"]] == ["Baseline", "FedYogi"]
    assert chart["y"]["limits"] == [0.2, 0.95]
    assert '<a href="figures/results.csv">CSV</a>, <a href="figures/results.tex">LaTeX</a>' in text
    assert (out / "figures" / "results.tex").read_text().startswith("% \\usepackage{booktabs}")
    again = command("report", two, "--out", out, "--no-figures")
    assert again.exit_code == 0, again.output
    assert not (out / "figures").exists()


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--size", "3", "must be two numbers, as in 3.3x2.2, got '3'"),
        ("--size", "3x-1", "must be two numbers"),
        ("--ylim", "1:0.5", "must be two numbers, as in 0.8:1"),
        ("--label", "FedAvg", "must be a run and its name, as in FedAvg=Baseline"),
        ("--order", "Nobody", "no run is called 'Nobody'; there are FedAvg, FedYogi"),
        ("--metric", "nonsense", "no run has a column 'nonsense'"),
    ],
)
def test_what_makes_no_sense_is_refused(two: Path, option: str, value: str, words: str) -> None:
    said = command("report", two, option, value)
    assert said.exit_code == 2
    assert words in " ".join(re.sub(r"[│\n]", " ", said.stderr).split())


# ---- tables ---------------------------------------------------------------------------------------------------------


def test_a_table_in_latex_has_its_signs_and_its_best() -> None:
    grid = Grid(["run", "final"], [[Cell("a_b & c"), Cell("90.1 ± 0.2%", 0.9, best=True)]])
    assert as_latex(grid).splitlines()[1:] == [
        "\\begin{tabular}{lr}", "\\toprule", "run & final \\\\", "\\midrule",
        "a\\_b \\& c & \\textbf{90.1 $\\pm$ 0.2\\%} \\\\", "\\bottomrule", "\\end{tabular}",
    ]  # fmt: skip
    assert escaped("\\x{~}") == "\\textbackslash{}x\\{\\textasciitilde{}\\}"


def test_compare_prints_latex_and_csv(two: Path) -> None:
    said = command("compare", two, "--latex", "--label", "a=A_1")
    assert "A\\_1 & " in said.stdout
    table = list(csv.DictReader(io.StringIO(command("compare", two, "--csv", "--target", "0.6").stdout)))
    assert [(row["run"], float(row["final"]), row["seeds"]) for row in table] == [
        ("FedAvg", 0.9, "1"),
        ("FedYogi", 0.8, "1"),
    ]
    assert [float(row["rounds_to_target"]) for row in table] == [2.0, 1.0]
    assert command("compare", two, "--csv", "--latex").exit_code == 2


# ---- tasks, seeds, evaluations --------------------------------------------------------------------------------------


def test_runs_of_different_tasks_are_not_ranked_together() -> None:
    entries = [
        entry(None, method, [value], data={"name": data, "root": method})
        for data, of_data in (("mnist", {"fedavg": 0.9, "fedyogi": 0.95}), ("cifar10", {"fedavg": 0.6, "fedyogi": 0.5}))
        for method, value in of_data.items()
    ]
    report = compose(entries)
    assert report.table.heads[:2] == ["run", "task"]
    told = [(row[0].text, row[1].text, row[2].best) for row in report.table.rows]
    assert [(task, best) for _, task, best in told] == [
        ("mnist", True), ("mnist", False), ("cifar10", True), ("cifar10", False),
    ]  # fmt: skip
    assert report.headline.startswith("On mnist: FedYogi")
    assert " On cifar10: FedAvg" in report.headline


def test_one_seed_and_the_rounds_of_evaluations_are_said() -> None:
    values: list[float | None] = [0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.91]
    one, other = entry(None, "fedavg", values), entry(None, "fedyogi", values)
    for history in (one.history, other.history):
        for row in history.rounds:
            if row["round"] % 3 and row["round"] != 7:
                del row["test_accuracy"]
    report = compose([one, other], target=0.8)
    assert report.facts.startswith("2 runs · 1 seed each")
    assert report.notes == [
        "One seed each: how much of a difference is chance, nobody knows.",
        "Rounds to the target are counted at evaluations, every 3 rounds.",
    ]
    assert compose([one]).headline.endswith("(one seed).")
