"""The report of `make gpu`: what was measured beside what was calculated, and what is missing by name."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fastfed.bench import device_costs, gpu_report
from fastfed.bench.device import rounds as device_rounds
from tests.bench.test_kernels import row as kernel_row
from tests.bench.test_rounds import row as round_row

CARD = "NVIDIA A100-SXM4-40GB"
PREDICTION: dict[str, Any] = {
    "workload": "W1", "rule": "SGD", "launches_per_step": 0, "launches_per_round": 3, "bound_seconds": 0.06e-3,
    "seconds_calculated": {"A100": 1e-3, "H100": 0.5e-3},
}  # fmt: skip
TESTS = """<testsuites><testsuite>
<testcase name="test_right"/><testcase name="test_skipped"><skipped/></testcase>
<testcase name="test_wrong"><failure message="no"/></testcase><testcase name="test_broken"><error/></testcase>
</testsuite></testsuites>"""


def written(folder: Path, **files: Any) -> Path:
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def measured() -> dict[str, Any]:
    rows = [
        round_row(device=CARD, median=2e-3, p20=1.9e-3, p80=2.2e-3),
        round_row(device=CARD, contender="batched", median=8e-3),
        round_row(device=CARD, contender="plain", median=None, skipped="too slow"),
        round_row(device=CARD, workload="W2", median=0.5),
    ]
    return {"rows": [one.as_dict() for one in rows]}


def cells(page: str, first: str) -> list[str]:
    """The cells of the line that begins with this one."""
    line = next(line for line in page.splitlines() if line.startswith(f"| {first} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_measured_stands_beside_calculated(tmp_path: Path) -> None:
    adam = {**PREDICTION, "rule": "Adam", "seconds_calculated": {"A100": 9.0}}
    page = gpu_report.report(written(tmp_path, rounds=measured(), predictions=[PREDICTION, adam]))
    assert page.startswith(f"# FastFed on {CARD}\n")
    assert cells(page, "W1") == [
        "W1", "1,000", "2 ms", "1.9 ms to 2.2 ms", "1 ms", "2.00x", "60 us", "0", "3", "4.00x", "-", "-", "-",
    ]  # fmt: skip
    assert cells(page, "W2")[2:8] == ["500 ms", "18 ms to 25 ms", "-", "-", "-", "-"]  # nothing was calculated


def test_predictions_are_of_the_card_that_is_there(tmp_path: Path) -> None:
    rounds = json.loads(json.dumps(measured()).replace(CARD, "NVIDIA H100 PCIe"))
    page = gpu_report.report(written(tmp_path, rounds=rounds, predictions=[PREDICTION]))
    assert cells(page, "W1")[4:7] == ["500 us", "4.00x", "-"]  # the bound is an A100's
    rounds = json.loads(json.dumps(measured()).replace(CARD, "Made-up 9000"))
    page = gpu_report.report(written(tmp_path, rounds=rounds, predictions=[PREDICTION]))
    assert cells(page, "W1")[4:7] == ["-", "-", "-"]
    assert "Nothing was calculated for Made-up 9000" in page


def test_predictions_have_what_is_read_of_them() -> None:
    source = inspect.getsource(device_costs.row)
    assert all(f'"{key}"' in source for key in PREDICTION)
    assert gpu_report.RULE in device_rounds.RULES


def test_kernels_at_the_largest_size(tmp_path: Path) -> None:
    rows = [kernel_row(device=CARD), kernel_row(device=CARD, op="norms", size=1000), kernel_row(kind="peer", op="x")]
    page = gpu_report.report(written(tmp_path, kernels=[one.as_dict() for one in rows]))
    assert page.startswith(f"# FastFed on {CARD}\n")
    assert cells(page, "server_adam") == ["server_adam", "25,000,000", "1 s", "1", "95%", "1.50x torch fused"]
    assert "| norms |" not in page
    assert "| x |" not in page


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    page = gpu_report.report(tmp_path)
    for file in ("doctor.json", "tests.xml", "rounds.json", "kernels.json"):
        assert f"({file})" in page
    assert "(predictions.json)" in gpu_report.report(written(tmp_path, rounds=measured()))


def test_the_card_and_its_self_test(tmp_path: Path) -> None:
    card = {"index": 0, "name": CARD, "capability": "8.0", "driver": "570.1", "memory_free": 1, "memory_total": 2}
    doctor = {"cards": [{"card": card, "passed": True, "self_test": "passed"}], "versions": {"torch": "2.13.0"}}
    page = gpu_report.report(written(tmp_path, doctor=doctor))
    assert f"- cuda:0 {CARD}, compute capability 8.0, driver 570.1; self-test passed\n- torch 2.13.0\n" in page


@pytest.mark.parametrize("fails", [True, False])
def test_a_failed_test_comes_first_and_is_a_failure(tmp_path: Path, fails: bool) -> None:
    text = TESTS if fails else '<testsuite><testcase name="test_right"/></testsuite>'
    kernels = [kernel_row(device=CARD).as_dict()]
    doctor = {"cards": [], "versions": {}}
    written(tmp_path, rounds=measured(), kernels=kernels, predictions=[PREDICTION], doctor=doctor)
    (tmp_path / "tests.xml").write_text(text)
    said = CliRunner().invoke(gpu_report.app, ["--folder", str(tmp_path)])
    page = (tmp_path / "report.md").read_text()
    assert said.exit_code == int(fails), said.output
    assert ("2 tests failed" in page) is fails
    assert ("- test_wrong\n- test_broken\n" in page) is fails
    assert ("Every test that a card can run passed." in page) is not fails


def test_what_is_missing_is_a_failure(tmp_path: Path) -> None:
    said = CliRunner().invoke(gpu_report.app, ["--folder", str(written(tmp_path, rounds=measured()))])
    assert said.exit_code == 1
    assert "Missing: doctor.json, tests.xml, kernels.json, predictions.json\n" in said.stdout
    assert (tmp_path / "report.md").is_file()


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    said = CliRunner().invoke(gpu_report.app, ["--folder", str(tmp_path / "none")])
    assert said.exit_code == 2
    assert "must be a folder" in said.stderr


def test_the_makefile_leaves_what_the_report_reads() -> None:
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    recipe = makefile[makefile.index("\ngpu: $(VENV)") :].split("\n\n")[0]
    first = recipe.splitlines()[2]
    assert first.split() == ["$(BIN)/fastfed", "doctor", "--self-test"]  # stops where there is no card
    for file in gpu_report.FILES:
        assert f"out/gpu/{file}" in recipe
