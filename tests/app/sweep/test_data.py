"""What the points of a sweep share: data that is loaded once, and test examples that nobody copies."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fastfed.app import sweep
from fastfed.app.config import parse
from fastfed.app.sweep.host import ENVIRONMENT, DataStore

from .support import write
from .test_runner import Listener


def tasks_of(folder: Path, *grid: str) -> list[dict[str, Any]]:
    plan = sweep.plan(write(folder), list(grid))
    return [{"task": point.name, "tables": point.tables} for point in plan.points]


def test_data_is_loaded_once_for_all_points(tmp_path: Path) -> None:
    heard = Listener()
    plan = sweep.plan(write(tmp_path), ["client.lr=0.1,0.2", "server.lr=0.5,1.0"])
    report = sweep.carry_out(plan, tmp_path / "out", jobs=2, threads=1, tell=heard)
    assert [one.status for one in report.outcomes] == ["done"] * 4
    assert heard.texts("loading") == ["digits"]


def test_points_of_the_same_data_are_given_the_same_clients(tmp_path: Path) -> None:
    store, told = DataStore(), list[str]()
    feds = [
        store.get(task, parse(task["tables"]).data, told.append) for task in tasks_of(tmp_path, "client.lr=0.1,0.2")
    ]
    assert feds[0] is feds[1]
    assert told == ["digits"]


def test_points_that_deal_the_data_anew_share_its_examples(tmp_path: Path) -> None:
    """Those of the clients, and those that every point is evaluated on."""
    store = DataStore()
    some, others = (
        store.get(task, parse(task["tables"]).data, lambda name: None)
        for task in tasks_of(tmp_path, "data.alpha=0.5,5.0")
    )
    assert some is not others
    assert some.test is not None
    assert others.test is not None
    for one, other in ((some.examples, others.examples), (some.test, others.test)):
        assert one is other or one.inputs is other.inputs


EVALUATED = """
import os, re
import torch
import fastfed as ff

megabytes = 100
held = ff.data.Examples(torch.rand(64, 784), torch.zeros(64, dtype=torch.int64))
count = megabytes * (1 << 20) // (784 * 4)
test = ff.data.Examples(torch.rand(count, 784), torch.zeros(count, dtype=torch.int64))
fed = ff.data.Federated("f", held, torch.arange(64), torch.arange(0, 65, 16), test=test)

def own():
    return int(re.search(r"Private_Dirty: +(\\d+)", open("/proc/self/smaps_rollup").read())[1]) >> 10

if os.fork() == 0:
    sim = ff.Simulation(ff.models.mlp(784, 8, 10), fed, client=ff.clients.SGD(lr=0.1), cohort=2, executor="native")
    sim.step()
    before = own()
    sim.evaluate()
    print(own() - before, flush=True)
    os._exit(0)
os.wait()
"""


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="the system does not tell what is shared")
def test_an_evaluation_of_a_point_copies_no_test_examples() -> None:
    """What a forked process has for itself grows by some batches, not by the test set."""
    pytest.importorskip("fastfed._core", reason="the compiled extension is missing")
    said = subprocess.run(
        [sys.executable, "-c", EVALUATED], capture_output=True, text=True, check=True, env=os.environ | ENVIRONMENT
    )
    assert int(said.stdout) < 20, said.stdout
