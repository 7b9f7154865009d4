"""Executor `device` on several ranks, in Triton's interpreter: its eight lanes are dealt, to the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastfed.kernels import registry

from ..golden.setups import ON_DEVICE
from . import support
from .test_same_bits import compare

NAMES = [f"{name}/device" for name in ON_DEVICE]


@pytest.mark.device
@pytest.mark.exhaustive
@pytest.mark.timeout(3000)
@pytest.mark.skipif(not registry.interpreting(), reason="belongs to the session of Triton's interpreter")
@pytest.mark.parametrize("count", [2, 3])
def test_ranks_give_the_bits_of_one_device(count: int, tmp_path: Path) -> None:
    compare(support.job(tmp_path / "job", NAMES, count), NAMES)
