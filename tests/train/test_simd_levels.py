"""The native engine agrees with `eager` at every SIMD level: this process has the machine's own, other levels run in
processes of theirs. A level that the processor lacks is skipped, and the summary names it."""

from __future__ import annotations

import pytest

from .agreement import BATCH_NORM_CASES, CASES, TRANSFORMER_CASES, assert_agrees, run
from .support import other_levels, printed_at

ALL = {case.id: case for case in (*CASES, *BATCH_NORM_CASES, *TRANSFORMER_CASES)}
# A case for each kind of layer and for each way in which a rule moves: what kernels have their own code for.
FEW = (
    "mlp-adagrad", "mlp-adam", "mlp-delta-sgd", "mlp-sps", "cnn-sgd corrected", "pyramid-sm3", "tagger-sm3", "tags-sgd",
    "normed pyramid-momentum",
)  # fmt: skip
PARTS = 12


def check(*names: str) -> None:
    """Says of each case whether it agrees."""
    for name in names:
        try:
            assert_agrees(ALL[name], run(ALL[name], "native"))
            print(f"{name}: agrees")
        except AssertionError as error:
            print(f"{name}: {str(error).splitlines()[0]}")


def assert_agree_at(level: str, names: tuple[str, ...]) -> None:
    say_level = "from fastfed import _core; print(_core.build_info()['simd'])"
    program = f"from {__name__} import check\n{say_level}\ncheck(*{names!r})"
    assert printed_at(level, program) == [level, *(f"{name}: agrees" for name in names)]


@pytest.mark.parametrize("level", other_levels())
def test_a_few_agree_at_every_level(level: str) -> None:
    assert_agree_at(level, FEW)


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("level", other_levels())
def test_all_agree_at_every_level(level: str, part: int) -> None:
    assert_agree_at(level, tuple(ALL)[part::PARTS])
