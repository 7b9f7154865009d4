"""Which tests belong together, on one worker."""

from __future__ import annotations

import pytest

from .conftest import group_of


@pytest.fixture(scope="module")
def shared() -> list[str]:
    return []


@pytest.mark.usefixtures("shared")
def test_those_that_share_a_fixture(request: pytest.FixtureRequest) -> None:
    assert group_of(request.node) == "tests/test_groups.py"


@pytest.mark.parametrize("name", ["adam-1000003-lr=0.1"])
def test_those_of_a_large_case(request: pytest.FixtureRequest, name: str) -> None:
    assert group_of(request.node) == name


def test_others_belong_to_nobody(request: pytest.FixtureRequest) -> None:
    assert group_of(request.node) is None
