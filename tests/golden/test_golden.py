"""The bits of runs are those of the code before: models, rows, and whatever is taken up from an old file.

The hashes were written by ``python -m tests.golden`` on an earlier commit, and hold for one kind of machine; on another
kind these tests are skipped, and say so. Old checkpoints and runs are taken up everywhere.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import fastfed as ff
from fastfed.app import runs
from fastfed.kernels import registry
from fastfed.saved import checkpoint

from ..simulation.support import small_model
from .setups import (
    CHECKPOINTS,
    FEDERATIONS,
    HASHES,
    RESUMED,
    ROUNDS,
    RUN,
    RUN_OF_FORMAT_2,
    Hashes,
    configured,
    digests,
    finished,
    half_done,
    kind_of_machine,
    names,
    of_run,
)

in_this_session = [pytest.param(name, marks=[pytest.mark.device] * registry.interpreting()) for name in names()]
cpu_only = pytest.mark.skipif(registry.interpreting(), reason="belongs to the session of the CPU's executors")


@pytest.fixture(scope="module")
def kept() -> Hashes:
    kinds = json.loads(HASHES.read_text())
    here = kind_of_machine()
    if here not in kinds:
        pytest.skip(f"no hashes were kept on a machine of this kind ({here}); python -m tests.golden keeps them")
    found: Hashes = kinds[here]
    return found


@pytest.mark.parametrize("name", in_this_session)
def test_same_bits_as_before(name: str, kept: Hashes) -> None:
    sim = finished(half_done(name))
    assert sim.history.rounds[-1]["changed"], "nothing was trained"
    assert digests(sim.params, sim.history) == kept[name]


@cpu_only
def test_every_run_has_its_hashes(kept: Hashes) -> None:
    assert kept.keys() - {"run"} == set(names())


def taken_up(name: str) -> ff.Simulation:
    return ff.Simulation.resume(CHECKPOINTS / name, fed=FEDERATIONS["small"](), model=small_model())


@cpu_only
@pytest.mark.parametrize("name", RESUMED)
def test_an_old_checkpoint_is_taken_up(name: str) -> None:
    sim = taken_up(name)
    assert len(sim.history) == ROUNDS // 2
    assert len(finished(sim).history) == ROUNDS


@cpu_only
@pytest.mark.parametrize("name", RESUMED)
def test_an_old_checkpoint_goes_on_to_the_same_bits(name: str, kept: Hashes) -> None:
    sim = finished(taken_up(name))
    assert digests(sim.params, sim.history) == kept[f"{name}/native"]


@pytest.fixture(params=[RUN, RUN_OF_FORMAT_2], ids=["format 1", "format 2"])
def old_run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(request.param, tmp_path / "run"))


@cpu_only
def test_an_old_run_is_taken_up(old_run: Path) -> None:
    assert (runs.read(old_run).status, len(runs.read(old_run).history)) == ("done", ROUNDS // 2)
    run = runs.execute(configured(ROUNDS), old_run, resume=True, progress=False)
    assert (run.status, len(run.history)) == ("done", ROUNDS)
    kept = [path.name for path in checkpoint.all_of(old_run / runs.CHECKPOINT)]
    assert kept == ["round-00000002.json", "round-00000003.safetensors", "round-00000004.safetensors"]
    (tensors,) = (old_run / runs.CHECKPOINT).glob("round-*-*.safetensors")  # of the one that is old
    assert tensors.name.startswith("round-00000002-")


@cpu_only
def test_an_old_run_goes_on_to_the_same_bits(old_run: Path, kept: Hashes) -> None:
    runs.execute(configured(ROUNDS), old_run, resume=True, progress=False)
    assert of_run(old_run) == kept["run"]
