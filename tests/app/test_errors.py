"""Errors of others become one line."""

from __future__ import annotations

import pytest

from fastfed.app.errors import first_line


@pytest.mark.parametrize(
    ("error", "said"),
    [(ValueError("one\ntwo"), "one"), (RuntimeError("one"), "one"), (AssertionError(), ""), (OSError("\ntwo"), "")],
)
def test_the_first_line_of_an_error_is_told(error: Exception, said: str) -> None:
    assert first_line(error) == said
