"""With FASTFED_RACES=1 in Triton's interpreter every test of kernels also looks for races (`make device-proof`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from fastfed.kernels import registry

if TYPE_CHECKING:
    from fastfed.kernels.triton.races import Excuse

EXCUSES: tuple[Excuse, ...] = ()  # races that are known and harmless, each with its reason


WATCHING = os.environ.get("FASTFED_RACES") == "1" and registry.interpreting()


@pytest.fixture(autouse=WATCHING)
def _no_races() -> Iterator[None]:
    from fastfed.kernels.triton.races import watched

    with watched(EXCUSES) as verdict:
        yield
    verdict.check()
