"""One client step: all its passes inside one call."""

from __future__ import annotations

from fastfed import _core

from .. import extension
from ..client_call import ClientCall
from ..table import GIVEN_STEP_SIZE, NO_COVER

DIRECTIONS = extension.numbers("directions")
COVERS = {None if name == NO_COVER else name: number for name, number in extension.numbers("covers").items()}
STEP_SIZES = {
    None if name == GIVEN_STEP_SIZE else name: number for name, number in extension.numbers("step_sizes").items()
}


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
