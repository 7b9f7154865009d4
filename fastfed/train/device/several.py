"""The executor `device` on several devices: a cohort's lanes are dealt to them, and come together on the first.

Every device has a thread of its own. Nothing in a round waits for a device, but a device takes only so many launches in
advance, and a store that does not fit is copied in portions: whoever must wait for one device leaves Python to the
threads of the others. Which device trains a lane changes no bit of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

from ...data import Examples
from ...kernels.registry import interpreting
from ...losses import Loss, LossReduction
from ..split import Split
from ..work import Outcome, RoundWork
from .engine import Device, terms_of
from .lanes import LaneSum, outcome


class SeveralDevices:
    """Runs rounds as `Device` does, on several `devices` at once, with the same bits; each has the examples.

    `memory`: as of `Device`, on every one of them.
    """

    name = Device.name
    predicts_itself = False

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        examples: Examples,
        *,
        devices: Sequence[torch.device | str],
        threads: int | None = None,
        memory: int | None = None,
        split: Split | None = None,
        reduction: LossReduction = "mean",
    ) -> None:
        if not devices:
            raise ValueError("devices: must name at least one device, got none")
        self.engines = [
            Device(
                module,
                loss,
                examples,
                threads=threads,
                device=device,
                memory=memory,
                split=split,
                reduction=reduction,
            )
            for device in devices
        ]
        self.predict = self.engines[0].predict
        self.why = f"{self.engines[0].why}; every cohort is dealt to {', '.join(map(str, devices))}"

    @property
    def examples(self) -> Examples:
        return self.engines[0].examples

    def run(self, work: RoundWork) -> Outcome:
        """The round's weighted sum of deltas, and its scalars."""
        home = self.engines[0]
        home.check(work)
        terms = terms_of(work)
        dealt = terms.lanes.dealt(terms.steps[terms.order], len(self.engines))
        pairs = list(zip(self.engines, dealt, strict=True))
        parts = [engine.lane_sum(terms, lanes, home=engine is home) for engine, lanes in pairs]
        tasks = [_training(engine, part) for engine, part in zip(self.engines, parts, strict=True)]
        (_in_turn if interpreting() else _side_by_side)(tasks)
        return outcome(parts)


def _training(engine: Device, part: LaneSum) -> Callable[[], None]:
    """What trains the part, in any thread: there, too, on the stream that is the caller's now."""
    if engine.device.type != "cuda":
        return lambda: engine.train(part)
    stream = torch.cuda.current_stream(engine.device)

    def train() -> None:
        with torch.cuda.stream(stream):
            engine.train(part)

    return train


def _in_turn(tasks: Sequence[Callable[[], None]]) -> None:
    """For Triton's interpreter, which cannot run two kernels at once."""
    for task in tasks:
        task()


def _side_by_side(tasks: Sequence[Callable[[], None]]) -> None:
    """Each in a thread; the first error of one of them, once all have ended."""
    with ThreadPoolExecutor(len(tasks)) as pool:
        for running in [pool.submit(task) for task in tasks]:
            running.result()
