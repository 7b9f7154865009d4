"""One client step: all its passes inside one call."""

from __future__ import annotations

from fastfed import _core

from .. import extension
from ..phases import ClientCall

DIRECTIONS = extension.numbers("directions")
# csrc/kernels/client_step.h: CoverForm, StepSizeRule
COVERS = {None: 0, "II": 1, "I": 2}
STEP_SIZES = {None: 0, "delta_sgd": 1, "sps": 2}


def client_step(call: ClientCall) -> None:
    rule, state = call.rule, call.state.get
    _core.client_step(
        DIRECTIONS[rule.formula],
        COVERS[rule.cover],
        STEP_SIZES[rule.step_size],
        call.x,
        call.grad,
        state("m"),
        state("v"),
        state("nu"),
        state("mu"),
        state("cover"),
        state("grad_prev"),
        state("step"),
        state("refreshes"),
        state("lr"),
        state("theta"),
        state("move"),
        call.lr,
        call.loss,
        call.anchor,
        call.correction,
        call.previous_grad,
        call.epoch,
        call.finished,
        call.numbers,
    )
