"""What a backend supplies: the ops, each from its file in the backend's folder.

The front door (``ops/``) has checked all arguments. Rows of deltas and vectors are as its docstrings say; `n` are the
numbers of the step, `out` is room for the result.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache

from torch import Tensor

from .client_call import ClientCall
from .streams import StreamWords
from .table import ServerNumbers, ServerRule

Moment = Tensor | None  # (d,), None where the rule does without
Draw = Callable[[Tensor, StreamWords, Tensor | int], None]  # out, stream, one client or (clients,) of them


@dataclass(slots=True)
class BackendOps:
    """The ops of one backend, by the names that the front door calls."""

    name: str
    server_step: Callable[[ServerRule, Tensor, Tensor, Moment, Moment, Moment, ServerNumbers], None]
    aggregate_step: Callable[[ServerRule, Tensor, Tensor, Tensor, Moment, Moment, Moment, ServerNumbers], None]
    client_step: Callable[[ClientCall], None]
    weighted_sum: Callable[[Tensor, Tensor, Tensor], None]  # deltas, weights, out
    trimmed_mean: Callable[[Tensor, int, Tensor], None]  # deltas, trim, out
    norms: Callable[[Tensor, Tensor], None]  # x, out
    clip: Callable[[Tensor, float, Tensor], None]  # x, limit, out
    uniform: Draw
    normal: Draw
    permutation: Draw
    shuffles: Callable[[Tensor, StreamWords, Tensor, Tensor, Tensor], None]  # out, stream, clients, steps, counts


# An op has a file of its own name, but for these.
_FILES = {"clip": "norms", "uniform": "philox", "normal": "philox", "permutation": "philox", "shuffles": "philox"}


@cache
def load(backend: str) -> BackendOps:
    """The ops of the folder `backend`, or its ImportError."""
    ops = [field.name for field in fields(BackendOps) if field.name != "name"]
    files = {op: importlib.import_module(f".{backend}.{_FILES.get(op, op)}", __package__) for op in ops}
    return BackendOps(backend, **{op: getattr(file, op) for op, file in files.items()})
