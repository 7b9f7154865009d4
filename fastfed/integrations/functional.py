"""A federated algorithm as two functions of its state: nothing is kept between two calls of `step`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn

from ..kernels import server_state, server_step
from ..packing import Arrays
from ..servers import Server
from .local import LocalTraining, RoundSettings


class FunctionalState(NamedTuple):
    """What a round starts from: the packed model `x` (d,), the server's `moments` by name, and its number, from 0."""

    x: Tensor
    moments: dict[str, Tensor]
    round: int


Init = Callable[[nn.Module | Arrays], FunctionalState]
Step = Callable[[FunctionalState, Tensor], tuple[FunctionalState, dict[str, Tensor]]]


def functional(training: LocalTraining, server: Server) -> tuple[Init, Step]:
    """``init, step = functional(training, server)``: ``init(module)`` is the state that the parameters of a module, or
    arrays by their names, start from; ``step(state, cohort)`` trains the clients at these places (n,) int64 and gives
    the state after the server's step with the round's scalars, (n,) each (``ff.train.Outcome``). No state is changed:
    one may be kept, and gone on from more than once."""
    if not isinstance(training, LocalTraining):
        raise TypeError(f"training: must be a fastfed.integrations.LocalTraining, got {training!r}")
    if not isinstance(server, Server):
        raise TypeError(f"server: must be one of fastfed.servers, got {server!r}")

    def init(params: nn.Module | Arrays) -> FunctionalState:
        x = training.packing.pack(params)
        return FunctionalState(x, server_state(server.rule, x, **server.state_options()), 0)

    def step(state: FunctionalState, cohort: Tensor) -> tuple[FunctionalState, dict[str, Tensor]]:
        outcome = training.train(state.x, cohort, RoundSettings(state.round))
        x, moments = state.x.clone(), {name: moment.clone() for name, moment in state.moments.items()}
        server_step(server.rule, x, outcome.delta, moments, **server.step_options())
        return FunctionalState(x, moments, state.round + 1), outcome.scalars

    return init, step
