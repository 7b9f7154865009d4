"""`fastfed doctor`: what it reports, and that it notices what is broken."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from fastfed import cli, doctor
from fastfed.kernels import registry


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
    registry._cpp_why_not.cache_clear()
    try:
        row = row_of("cpp")
    finally:
        registry._cpp_why_not.cache_clear()
    assert not row.usable
    assert "C++17 compiler" in row.why_not
    assert "pip install --no-build-isolation ." in row.why_not


@pytest.mark.parametrize("wrong", ["raises", "differs"])
def test_a_backend_that_loads_but_does_not_work_is_not_usable(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    from fastfed.kernels import numba

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
