"""Every case of the table on every backend, all state compared with the float64 reference after every step."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from fastfed import kernels

from .agreement import assert_runs_agree
from .cases import (
    CLIENT_CASES,
    CLIENT_OPTIONS,
    SERVER_CASES,
    SERVER_OPTIONS,
    ClientCase,
    Snapshot,
    run_client,
    run_server,
)

RUNS = {
    **{case.id: (run_server, case) for case in SERVER_CASES},
    **{f"client-{case.id}": (run_client, case) for case in CLIENT_CASES},
}


def test_case_ids_are_unique() -> None:
    assert len({case.id for case in SERVER_CASES}) == len(SERVER_CASES)
    assert len({case.id for case in CLIENT_CASES}) == len(CLIENT_CASES)


def test_every_rule_has_cases() -> None:
    assert SERVER_OPTIONS.keys() == kernels.SERVER_RULES.keys()
    assert CLIENT_OPTIONS.keys() == kernels.CLIENT_RULES.keys()
    assert {case.rule for case in SERVER_CASES} == kernels.SERVER_RULES.keys()
    assert {case.rule for case in CLIENT_CASES} == kernels.CLIENT_RULES.keys()


@pytest.mark.parametrize("case", [case for case in CLIENT_CASES if "floor" in case.options], ids=lambda case: case.id)
def test_cases_with_a_floor_have_steps_below_it_and_above(case: ClientCase) -> None:
    """Clients: now and then below, never, never with a gradient."""
    x = [shot["x"] for shot in run_client(case, "reference", torch.float64)]
    stood = torch.stack([(after == before).all(1) for before, after in pairwise(x)])
    assert stood[:, 0].tolist() == [True, False]
    assert not stood[:, 1].any()


@lru_cache(maxsize=4)
def oracle(name: str) -> tuple[list[Snapshot], list[Snapshot]]:
    """The case in plain torch, float32 and float64."""
    run, case = RUNS[name]
    return run(case, "reference", torch.float32), run(case, "reference", torch.float64)


@pytest.mark.parametrize("name", RUNS)
def test_case(name: str, backend: str, tmp_path: Path) -> None:
    run, case = RUNS[name]
    plain, exact = oracle(name)
    assert_runs_agree(run(case, backend, torch.float32, tmp_path), plain, exact)


@pytest.mark.skipif(kernels.backends()["cpp"] is not True, reason="the compiled extension is missing")
@pytest.mark.parametrize("name", RUNS)
def test_case_in_float64(name: str) -> None:
    """The other backends compute in float32 only."""
    run, case = RUNS[name]
    for got, exact in zip(run(case, "cpp", torch.float64), oracle(name)[1], strict=True):
        for tensor in exact:
            torch.testing.assert_close(got[tensor], exact[tensor], rtol=1e-11, atol=1e-12)
