"""Where the seconds of a round's threads go: layer by layer, and around the layers. Asked for by ``Native.profile``."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .. import program
from ..kernels import extension

DUTIES = {
    "deal": "clients are dealt to threads",
    "prepare": "threads begin",
    "begin": "a client begins: model and state",
    "read": "examples are read",
    "loss": "loss and its gradient",
    "rule": "the rule's update",
    "hand_over": "deltas join sums, models go back",
    "fold": "sums are folded",
    "wait": "waiting for the last thread",
    "write": "the sum is written",
}
"""What threads do besides the work of layers, in words, in the order of csrc/engine/laps.h."""

extension.require_names("duties", DUTIES, of="fastfed/train/profile.py", in_order=True)


@dataclass(frozen=True)
class LayerSeconds:
    """A layer of the program: `index` of its instruction, its name and shapes, and the seconds of its two directions.

    With plain SGD the update is the layer's own, and part of `backward`.
    """

    index: int
    name: str
    op: str
    shapes: str
    forward: float
    backward: float

    @property
    def seconds(self) -> float:
        return self.forward + self.backward


class Profile:
    """Seconds of threads, added up over all rounds that are run while it is an engine's `profile`.

    `rounds` is how many that were, `wall` the seconds that they took, which threads spend side by side. Where all
    threads share the work of one client after the other, only the first of them is told of.
    """

    def __init__(self, of: program.Program) -> None:
        self._program = of
        self.seconds = torch.zeros(2 * len(of.instructions) + len(DUTIES), dtype=torch.float64)
        self.rounds, self.wall = 0, 0.0

    def note_round(self, wall: float) -> None:
        """That a round has ended, which took so many seconds."""
        self.rounds += 1
        self.wall += wall

    @property
    def layers(self) -> list[LayerSeconds]:
        """In the order of the forward pass."""
        pairs = self.seconds[: -len(DUTIES)].view(-1, 2).tolist()
        steps = enumerate(zip(self._program.instructions, pairs, strict=True))
        return [
            LayerSeconds(index, step.name, step.op, program.shapes_of(self._program, step), forward, backward)
            for index, (step, (forward, backward)) in steps
        ]

    @property
    def duties(self) -> dict[str, float]:
        """By the names of `DUTIES`."""
        return dict(zip(DUTIES, self.seconds[-len(DUTIES) :].tolist(), strict=True))
