"""Installing on a machine without a compiler, and beside another checkout: what is built and imported,
and what is said."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LEFT_OUT = shutil.ignore_patterns(".*", "build", "dist", "out", "tests", "*.egg-info", "*.so", "__pycache__")


def python(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if k not in ("FASTFED_REQUIRE_EXTENSION", "FASTFED_BACKEND")}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=cwd, env={**inherited, **environment}, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("checkout") / "fastfed"
    shutil.copytree(ROOT, copy, ignore=LEFT_OUT, symlinks=True)
    return copy


@pytest.fixture(scope="module")
def build(checkout: Path) -> subprocess.CompletedProcess[str]:
    """A wheel built where CC and CXX lead nowhere."""
    command = ("-m", "pip", "wheel", "-v", "--no-build-isolation", "--no-deps", "--wheel-dir", "wheels", ".")
    return python(*command, cwd=checkout, CC="/no/such/cc", CXX="/no/such/c++")


@pytest.fixture(scope="module")
def installed(
    checkout: Path, build: subprocess.CompletedProcess[str], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    assert build.returncode == 0, build.stdout + build.stderr
    (wheel,) = (checkout / "wheels").glob("fastfed-*.whl")
    place = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    return place


def test_a_wheel_without_a_compiler_says_so(build: subprocess.CompletedProcess[str]) -> None:
    said = build.stdout + build.stderr
    assert build.returncode == 0, said
    assert "the C++ extension was NOT built" in said
    assert "/no/such/" in said  # and it says which compiler it looked for
    assert "numba backend" in said


def test_a_required_extension_stops_the_build(checkout: Path) -> None:
    command = ("setup.py", "build_ext", "--build-lib", "lib", "--build-temp", "temp")
    said = python(*command, cwd=checkout, CC="/no/such/cc", CXX="/no/such/c++", FASTFED_REQUIRE_EXTENSION="1")
    assert said.returncode != 0


def test_the_wheel_holds_every_package_and_the_cuda_sources(installed: Path) -> None:
    for source, place in (("fastfed", ""), ("kernels", "kernels"), ("bench", "bench")):
        for path in (ROOT / source).rglob("*.py"):
            inside = installed / "fastfed" / place / path.relative_to(ROOT / source)
            assert inside.is_file(), inside
    for path in [*(ROOT / "csrc").rglob("*.h"), *(ROOT / "csrc" / "cuda").glob("*.*")]:
        assert (installed / "fastfed" / "csrc" / path.relative_to(ROOT / "csrc")).is_file(), path
    for path in (ROOT / "fastfed" / "data" / "embedded").iterdir():
        assert (installed / "fastfed" / "data" / "embedded" / path.name).is_file(), path
    for path in (ROOT / "fastfed" / "report").glob("page.*"):
        assert (installed / "fastfed" / "report" / path.name).is_file(), path
    assert not list(installed.rglob("*.so"))
    assert (installed / "fastfed" / "py.typed").is_file()
    (metadata,) = installed.glob("*.dist-info")
    assert "Apache License" in (metadata / "licenses" / "LICENSE").read_text()


def test_a_source_distribution_holds_all_that_a_build_needs(checkout: Path) -> None:
    program = "from setuptools import build_meta; print('made', build_meta.build_sdist('sdist'))"
    said = python("-c", program, cwd=checkout)
    assert said.returncode == 0, said.stderr
    name = re.findall(r"^made (.*)\.tar\.gz$", said.stdout, re.MULTILINE)[0]
    with tarfile.open(checkout / "sdist" / f"{name}.tar.gz") as archive:
        inside = {member.name.removeprefix(f"{name}/") for member in archive if member.isfile()}
    wanted = {"setup.py", "pyproject.toml", "README.md", "LICENSE"}
    for place in ("fastfed", "kernels", "bench", "csrc"):
        home = "fastfed" if place == "fastfed" else f"fastfed/{place}"
        suffixes = (".py",) if place != "csrc" else (".h", ".cu")
        found = [path for path in (ROOT / place).rglob("*") if path.suffix in suffixes]
        wanted |= {f"{home}/{path.relative_to(ROOT / place)}" for path in found}
    compiled = [
        file for place in ("bind", "engine", "kernels", "simd") for file in (ROOT / "csrc" / place).rglob("*.*")
    ]
    wanted |= {str(path.relative_to(ROOT)) for path in compiled}
    assert not wanted - inside


def test_the_bindings_that_are_compiled_as_one_are_all_there_are() -> None:
    """One that is left out would be found only when somebody calls it."""
    together = ROOT / "csrc" / "bind" / "all.cpp"
    included = re.findall(r'^#include "bind/(.*)"$', together.read_text(), re.MULTILINE)
    assert included == sorted(path.name for path in together.parent.glob("*.cpp") if path != together)


def test_a_checkout_imports_its_own_kernels_beside_an_installed_one(checkout: Path) -> None:
    """This session's FastFed is the installed one. What the other lacks, the compiled extension, it says in a
    sentence."""
    program = """
import json, fastfed, fastfed.kernels.rows, fastfed.bench.kernels.cases
from fastfed.kernels.cuda import sources
modules = (fastfed, fastfed.kernels, fastfed.kernels.rows, fastfed.bench.kernels.cases)
found = {"files": [module.__file__ for module in modules] + [str(sources.csrc())]}
try:
    fed = fastfed.data.iid(fastfed.data.digits(), clients=2)
    fastfed.Simulation(fastfed.models.mlp(64, 10), fed, cohort=1, executor="native", **fastfed.methods.fedavg(0.1))
except fastfed.program.Unsupported as error:
    found["native"] = str(error)
print(json.dumps({**found, "why": fastfed.kernels.backends()["cpp"]}))
"""
    said = python("-c", program, cwd=checkout)
    assert said.returncode == 0, said.stderr
    report = json.loads(said.stdout)
    assert all(file.startswith(str(checkout)) for file in report["files"]), report["files"]
    assert report["why"].startswith("the compiled extension fastfed._core did not load (No module named")
    assert f"{checkout} is a checkout: 'pip install -e .' builds it there" in report["why"]
    assert report["native"] == report["why"]


@pytest.mark.exhaustive
def test_without_the_extension_it_runs_on_numba_and_doctor_says_so(installed: Path) -> None:
    """One process: a step on the backend that is picked, then the doctor's report."""
    program = """
import json, sys
sys.path.insert(0, sys.argv[1])
import torch, fastfed as ff
from fastfed.app import doctor
x, delta = torch.zeros(100), torch.ones(100)
ff.kernels.server_step("sgd", x, delta, {}, lr=0.5)
found = {"file": ff.__file__, "x": x.tolist(), "why": ff.kernels.backends()["cpp"]}
print(json.dumps({**found, **doctor.examine().as_dict()}))
"""
    said = python("-c", program, str(installed), cwd=installed)
    assert said.returncode == 0, said.stderr
    report = json.loads(said.stdout)
    assert report["file"].startswith(str(installed))
    assert report["x"] == [0.5] * 100
    assert "fastfed._core did not load" in report["why"]
    assert (report["chosen"], report["fast"]) == ("numba", True)
    rows = {row["backend"]: row for row in report["backends"]}
    assert not rows["cpp"]["usable"]
    assert "install a C++17 compiler" in rows["cpp"]["why_not"]
    assert rows["numba"]["usable"], rows["numba"]["why_not"]


def test_setup_without_pybind11_says_what_to_do(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "pybind11.py").write_text("raise ModuleNotFoundError('No module named pybind11', name='pybind11')\n")
    said = python("setup.py", "--version", cwd=checkout, PYTHONPATH=str(tmp_path))
    assert said.returncode == 1
    assert "pip install 'pybind11>=" in said.stderr
    assert "Traceback" not in said.stderr


def test_a_build_does_not_ask_for_torch(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('No module named torch', name='torch')\n")
    said = python("setup.py", "--version", cwd=checkout, PYTHONPATH=str(tmp_path))
    assert said.returncode == 0, said.stderr


@pytest.mark.skipif(not shutil.which("readelf"), reason="readelf is not on PATH")
def test_the_extension_needs_no_library_of_torch() -> None:
    (file,) = (ROOT / "fastfed").glob("_core*.so")
    said = subprocess.run(["readelf", "-d", str(file)], capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.*?)\]", said)
    assert needed
    assert not [name for name in needed if "torch" in name or "c10" in name]


def test_one_version_of_torch_is_named_everywhere() -> None:
    files = ("Makefile", "README.md")
    named = {name: set(re.findall(r"torch==([\d.]+\d)", (ROOT / name).read_text())) for name in files}
    assert set.union(*named.values()) == {"2.13.0"}
    assert all(named.values()), named
