"""`python -m fastfed.bench.flower`: Flower's FedAdam and ours on replies of a large model, in turns.

`aggregate_train` is all that a strategy does with replies: it reads them, averages, steps, and writes the new model.
The step is what is left of it where arrays need neither be read nor written: Flower's own code, on arrays that are
NumPy's already, beside one call of ``ff.kernels.aggregate_step``.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated, Any
from unittest.mock import patch

import numpy as np
import typer

from .common.neighbours import busy
from .common.timing import Call, Timing, take_turns

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
LAYERS = 10  # arrays that the parameters are split into
ROUND = 3


class Replies:
    """Replies with `replies` models of `parameters` numbers, and strategies that have sent them."""

    def __init__(self, parameters: int, replies: int) -> None:
        from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
        from flwr.serverapp.strategy import FedAdam

        from ..integrations import flower
        from ..integrations.flower.host import be_somebody

        be_somebody()
        generator = np.random.default_rng(0)

        def model() -> dict[str, np.ndarray]:
            parts = np.array_split(generator.standard_normal(parameters, dtype=np.float32), LAYERS)
            return {f"layer{i}": part.copy() for i, part in enumerate(parts)}

        def record(held: dict[str, np.ndarray]) -> Any:
            return ArrayRecord({name: Array(array) for name, array in held.items()})

        self.start, self.models = model(), [model() for _ in range(replies)]
        asked = Message(RecordDict(), 1, MessageType.TRAIN)
        self.messages = [
            Message(
                RecordDict({"arrays": record(held), "metrics": MetricRecord({"num-examples": 10 + i, "loss": 1.0})}),
                reply_to=asked,
            )
            for i, held in enumerate(self.models)
        ]
        self.flowers, self.ours = FedAdam(fraction_train=0.5), flower.FedAdam(fraction_train=0.5)
        first, nodes = record(self.start), _Nodes(replies)
        for strategy in (self.flowers, self.ours):
            list(strategy.configure_train(1, first, ConfigRecord(), nodes))
        self.weights = np.array([10.0 + i for i in range(replies)])

    def step_of_ours(self) -> Call:
        """One call of the kernel, on the model in parts."""
        from ..kernels import aggregate_step, server_state

        server = self.ours.server
        self.stepped = x = [array.copy() for array in self.start.values()]
        state = server_state(server.rule, x, **server.state_options())
        clients: list[Any] = [list(held.values()) for held in self.models]
        weights, options = self.weights / self.weights.sum(), self.ours.step_options(ROUND)
        return lambda: aggregate_step(server.rule, x, clients, weights, state, subtract=True, **options)

    def step_of_flower(self) -> Call:
        """Flower's `aggregate_train` where `Array` holds an array of NumPy's."""
        contents = [_Held(held, float(weight)) for held, weight in zip(self.models, self.weights, strict=True)]

        def step() -> object:
            with ExitStack() as patched:
                for module in ("fedadam", "strategy_utils"):
                    home = f"flwr.serverapp.strategy.{module}"
                    patched.enter_context(patch(f"{home}.Array", _HeldArray))
                    patched.enter_context(patch(f"{home}.ArrayRecord", dict))
                return self.flowers.aggregate_train(ROUND, contents)

        return step


class _Nodes:
    """As much of a grid as a strategy samples from."""

    def __init__(self, count: int) -> None:
        self._count = count

    def get_node_ids(self) -> list[int]:
        return list(range(1, 2 * self._count + 1))


class _HeldArray:
    """What stands for Flower's `Array` where nothing is read or written."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def numpy(self) -> np.ndarray:
        return self._array


class _Held:
    """What stands for a reply, and for its content, where arrays are NumPy's already."""

    def __init__(self, held: dict[str, np.ndarray], weight: float) -> None:
        self.array_records = {"arrays": {name: _HeldArray(array) for name, array in held.items()}}
        self.metric_records = {"metrics": {"num-examples": weight, "loss": 1.0}}

    @property
    def content(self) -> _Held:
        return self

    def has_error(self) -> bool:
        return False

    def get(self, key: str, default: Any = None) -> Any:
        return {**self.array_records, **self.metric_records}.get(key, default)

    def __getitem__(self, key: str) -> Any:
        return self.get(key)


def times_of(parameters: int, replies: int, rounds: int) -> dict[str, Timing]:
    """Seconds of both strategies' `aggregate_train` and of their steps, all in turns."""
    held = Replies(parameters, replies)
    return take_turns(
        {
            "aggregate_train, flower": lambda: held.flowers.aggregate_train(ROUND, held.messages),
            "aggregate_train, fastfed": lambda: held.ours.aggregate_train(ROUND, held.messages),
            "step, flower": held.step_of_flower(),
            "step, fastfed": held.step_of_ours(),
        },
        rounds,
    )


@app.command()
def main(
    parameters: Annotated[float, typer.Option(min=LAYERS, help="Of the model.")] = 25e6,
    replies: Annotated[int, typer.Option(min=1, help="Models that come back in a round.")] = 4,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of every contender.")] = 9,
) -> None:
    """Time Flower's FedAdam and FastFed's with the same formulas."""
    from flwr.common import logger

    logger.update_console_handler(level="ERROR")
    load = busy()
    times = times_of(int(parameters), replies, rounds)
    beside = "" if load is None else f", {load:.0%} of the machine in use by others"
    print(f"{int(parameters):,} parameters, {replies} replies, median of {rounds} turns{beside}")
    for name, time in times.items():
        print(f"{name:26} {1e3 * time.median:8.1f} ms ({1e3 * time.p20:.1f} to {1e3 * time.p80:.1f})")
    for what in ("aggregate_train", "step"):
        ratio = times[f"{what}, flower"].median / times[f"{what}, fastfed"].median
        print(f"{what}: {ratio:.1f}x Flower's")


if __name__ == "__main__":
    app()
