"""Sweeps: many runs of one configuration, over a grid of settings, named variants and seeds.

`plan` says which runs a file and its grid come to; `carry_out` runs them, several at once, each into a run directory of
its own; `results`, `tables` and `charts` tell what came out. ``fastfed sweep`` is all of this as one command.
"""

from .grid import GridAxis, parse_axis
from .outcome import PointOutcome
from .points import Plan, Point, plan
from .runner import SweepOutcome, carry_out, holds_sweep
from .shard import Shard
from .spec import Spec, Variant, Window

__all__ = [
    "GridAxis",
    "Plan",
    "Point",
    "PointOutcome",
    "Shard",
    "Spec",
    "SweepOutcome",
    "Variant",
    "Window",
    "carry_out",
    "holds_sweep",
    "parse_axis",
    "plan",
]
