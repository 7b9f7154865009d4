"""`fastfed doctor`: what it reports, and that it notices what is broken."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from fastfed import cards
from fastfed.app import cli, doctor
from fastfed.kernels import extension, registry
from fastfed.train.device import self_test
from fastfed.train.device.self_test import Verdict


def row_of(name: str) -> doctor.Row:
    return next(row for row in doctor.examine().backends if row.backend == name)


def test_reports_every_backend_as_the_registry_does() -> None:
    rows = {row.backend: row for row in doctor.examine().backends}
    assert list(rows) == list(registry.BACKENDS)
    for name, backend in registry.BACKENDS.items():
        reason = backend.why_not()
        assert rows[name].usable == (reason is None), rows[name].why_not
        assert rows[name].why_not == (reason or "")


def test_threads_are_torchs() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert row_of("reference").threads == 1
    finally:
        torch.set_num_threads(before)


def test_knows_what_the_extension_says_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    info = {"compiler": "gcc 1.2.3", "simd": "avx2", "simd_compiled": ["scalar", "avx2"], "openmp": False}
    monkeypatch.setitem(sys.modules, "fastfed._core", SimpleNamespace(build_info=lambda: info))
    assert doctor._cpp() == ("gcc 1.2.3", "avx2 (also built: scalar)", 1)


def test_a_missing_extension_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastfed._core", None)
    extension.why_not.cache_clear()
    try:
        row = row_of("cpp")
    finally:
        extension.why_not.cache_clear()
    assert not row.usable
    assert "C++17 compiler" in row.why_not
    assert "pip install -e ." in row.why_not  # this is a checkout


@pytest.mark.parametrize("wrong", ["raises", "differs"])
def test_a_backend_that_loads_but_does_not_work_is_not_usable(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    numba = registry.BACKENDS["numba"].load()

    def raises(*arguments: object) -> None:
        raise RuntimeError("no such instruction\nat some address")

    def differs(rule: object, x: torch.Tensor, *arguments: object) -> None:
        x.add_(1)

    monkeypatch.setattr(numba, "server_step", {"raises": raises, "differs": differs}[wrong])
    row = row_of("numba")
    assert not row.usable
    assert {"raises": "RuntimeError: no such instruction", "differs": "wrong by"}[wrong] in row.why_not
    assert "\n" not in row.why_not


def test_json_is_the_report() -> None:
    said = CliRunner().invoke(cli.app, ["doctor", "--json"])
    assert said.exit_code == 0
    report = json.loads(said.stdout)
    assert {row["backend"] for row in report["backends"]} == set(registry.BACKENDS)
    assert report["versions"]["torch"] == torch.__version__
    assert report["machine"]["cores"] >= report["machine"]["usable_cores"] >= 1
    assert report["fast"] is True


def test_only_the_reference_left_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in set(registry.BACKENDS) - {"reference"}:
        broken = registry.Backend(name, lambda: "taken away", lambda: ("cpu",))
        monkeypatch.setitem(registry.BACKENDS, name, broken)
    said = CliRunner().invoke(cli.app, ["doctor"])
    assert said.exit_code == 1
    assert "taken away" in said.stdout
    assert said.stderr.startswith("fastfed: no fast backend")


# ---- cards ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def a_card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine with one card, of which torch says so, and no verdict about it."""
    said: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "get_device_name": lambda index=0: "Made-up 9000",
        "get_device_capability": lambda index: (9, 0),
        "mem_get_info": lambda index: (70_000_000_000, 80_000_000_000),
    }
    for name, answer in said.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    unusable = {"triton": None, "cuda": "the package 'cupy' is not installed"}
    for name, reason in unusable.items():
        answer = registry.Backend(name, lambda reason=reason: reason, lambda: ("cuda",))
        monkeypatch.setitem(registry.BACKENDS, name, answer)
    monkeypatch.setattr(doctor, "_fails", lambda name: None)
    monkeypatch.setattr(cards, "driver_version", lambda: "570.86.15")
    monkeypatch.setenv("FASTFED_CACHE", str(tmp_path))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(self_test, "_triton_version", lambda: "3.6.0")


def self_tests_find(monkeypatch: pytest.MonkeyPatch, *failures: str) -> list[torch.device]:
    """The devices on which self-tests were run, each of which finds these failures."""
    asked: list[torch.device] = []
    monkeypatch.setattr(self_test, "run", lambda device: (asked.append(device), Verdict(str(device), failures, 1.0))[1])
    return asked


def ask(*options: str) -> Any:
    return CliRunner().invoke(cli.app, ["doctor", *options])


@pytest.mark.usefixtures("a_card")
def test_a_card_is_described_and_its_verdict_told(monkeypatch: pytest.MonkeyPatch) -> None:
    tested = self_tests_find(monkeypatch)
    line = "cuda:0 Made-up 9000, compute capability 9.0, 70.0 of 80.0 GB free, driver 570.86.15; self-test "
    before, during, after = ask(), ask("--self-test"), ask()
    assert f"{line}not run yet (fastfed doctor --self-test runs it)" in before.stdout
    assert f"{line}passed" in during.stdout
    assert f"{line}passed" in after.stdout
    assert (before.exit_code, during.exit_code, after.exit_code) == (0, 0, 0)
    assert tested == [torch.device("cuda:0")]
    assert "no CUDA device" not in after.stdout


@pytest.mark.usefixtures("a_card")
def test_a_card_that_fails_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    self_tests_find(monkeypatch, "sparse inputs: deltas differ")
    said = ask("--self-test")
    assert said.exit_code == 1
    assert "failed: sparse inputs: deltas differ" in said.stdout
    assert said.stderr == "fastfed: the self-test failed on cuda:0: executor 'device' refuses to run there\n"
    assert ask().exit_code == 1  # by what was kept


@pytest.mark.usefixtures("a_card")
def test_a_card_without_triton_cannot_be_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = registry.Backend("triton", lambda: "the package 'triton' is not installed", lambda: ("cuda",))
    monkeypatch.setitem(registry.BACKENDS, "triton", missing)
    said = ask("--self-test")
    assert said.exit_code == 2
    assert said.stderr == "fastfed: the self-test cannot be run: the package 'triton' is not installed\n"


@pytest.mark.usefixtures("a_card")
def test_cards_are_in_the_json() -> None:
    (patient,) = json.loads(ask("--json").stdout)["cards"]
    assert patient["card"]["memory_free"] == 70_000_000_000
    assert patient["passed"] is None


@pytest.mark.parametrize(
    ("built_for", "driver", "sentence"),
    [
        (None, "unknown", "is built without CUDA, and no NVIDIA driver was found (nvidia-smi on PATH, /proc/driver/"),
        ("12.8", "570.1", "for CUDA 12.8 sees none, and NVIDIA driver 570.1 is loaded (nvidia-smi on PATH, "),
    ],
)
def test_without_a_card_it_says_what_was_looked_for(
    built_for: str | None, driver: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", built_for)
    monkeypatch.setattr(cards, "driver_version", lambda: driver)
    plain, tested = ask(), ask("--self-test")
    wanted = f"no CUDA device: torch {torch.__version__} {sentence}"
    assert wanted in " ".join(plain.stdout.split())
    assert plain.exit_code == 0
    assert tested.exit_code == 2
    assert tested.stderr.startswith(f"fastfed: {wanted}")


def test_the_driver_is_what_nvidia_smi_or_the_kernel_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def asked() -> str:
        cards.driver_version.cache_clear()
        return cards.driver_version()

    try:
        monkeypatch.setattr(cards.shutil, "which", lambda name: None)
        monkeypatch.setattr(cards, "_DRIVER_FILE", tmp_path / "version")
        assert asked() == "unknown"
        (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5\n")
        assert asked() == "550.54.15"
        smi = SimpleNamespace(returncode=0, stdout="570.86.15\n570.86.15\n")
        monkeypatch.setattr(cards.shutil, "which", lambda name: name)
        monkeypatch.setattr(cards.subprocess, "run", lambda *given, **further: smi)
        assert asked() == "570.86.15"
    finally:
        cards.driver_version.cache_clear()
