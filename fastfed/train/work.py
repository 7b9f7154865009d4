"""What the train room is given (`RoundWork`) and what it hands on (`Outcome`): the same for every executor."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from ..clients import Algorithm, Client
from ..data.store import Examples
from ..kernels.table import CLIENT_RULES
from .contrast import Contrast
from .ids import check_ids, stream_ids
from .peers import ALONE, Alone, Dealt
from .total import Total


@dataclass(frozen=True)
class DeltaPolicy:
    """How the deltas ``D_i = x_i - start`` become one sum.

    `weights`: "examples" (n_i), "uniform", or a (clients,) tensor.
    `normalised`: they are made to sum to 1 over the clients that count (default: if named; given ones are taken as they
    are). `divide_by_steps` makes D_i an average move per local step; then `clip` scales it down to that norm. `scale`
    (clients,) then multiplies deltas, without a change in what they count. A client with a non-finite delta, without
    examples, or without steps has weight 0.
    """

    weights: Literal["examples", "uniform"] | Tensor = "examples"
    clip: float | None = None
    divide_by_steps: bool = False
    normalised: bool | None = None
    scale: Tensor | None = None

    def of(self, counts: Tensor) -> DeltaPolicy:
        """The same in numbers, for clients with these numbers of examples (clients,)."""
        weights, named = self.weights, not isinstance(self.weights, Tensor)
        if not isinstance(weights, Tensor):
            weights = counts if weights == "examples" else torch.ones_like(counts)
        normalised = named if self.normalised is None else self.normalised
        scale = None if self.scale is None else self.scale.to("cpu", torch.float64)
        return replace(self, weights=weights.to("cpu", torch.float64), normalised=normalised, scale=scale)


@dataclass(frozen=True)
class RoundWork:
    """One round's local training, one row per client of the cohort.

    `start` (d,), or (models, d) with `start_index` (clients,) choosing a row. Client i owns the example rows
    ``rows[offsets[i]:offsets[i + 1]]`` and takes `steps[i]` local steps on batches of `batch_size`: every epoch visits
    its rows in a new order and keeps the last short batch. With `seen` (clients,), batches run on across epoch
    borders until that many examples have been seen, and only the very last may be short. With `drawn`, which takes
    `seen`, every example of a batch is drawn from all of the client's, with replacement.

    Start models and what else is of their size are on one device, any; all that counts or chooses is on the CPU.

    `optimizer_index` (clients,) chooses one of the `optimizers` each (default: the first for all), `lr` (clients,)
    replaces their learning rates. `ids` (clients,) of 64 bits and `seed`, `round` key all randomness. `corrections`
    (clients, d) are added to gradients (SCAFFOLD's c - c_i); `preconditioner` (d,) starts second moments (a server's
    v); `contrast` adds MOON's term to the loss, in everything that is said of losses and gradients. What algorithms in
    Python begin with: `kept` (clients, d), a vector of each client's own, and `common` (d,), one for all.
    `statistics` (s,) or (clients, s) are what running statistics of batch norms start from (fastfed/norms.py); `own`
    (n,) int64 are places of the model that stay with the clients, whose deltas are no part of the sum.
    `examples` is a store of this round's own, in the form of the executor's, for data that is made when visited.
    `keep_deltas` also returns every D_i; `measure_cosine` fills the scalar `min_cosine`, the least cosine of a local
    step's gradient with the sum of those before it, itself included where `cosine_includes_step`.

    `dealt`: which rank trains whom, where several do. Of clients that are others', rows, corrections, start models and
    statistics are not here: what stands in their places says nothing.
    """

    start: Tensor
    rows: Tensor
    offsets: Tensor
    ids: Tensor
    steps: Tensor
    batch_size: int
    optimizers: tuple[Client, ...]
    seed: int = 0
    round: int = 0
    start_index: Tensor | None = None
    optimizer_index: Tensor | None = None
    lr: Tensor | None = None
    seen: Tensor | None = None
    drawn: bool = False
    corrections: Tensor | None = None
    preconditioner: Tensor | None = None
    contrast: Contrast | None = None
    kept: Tensor | None = None
    common: Tensor | None = None
    policy: DeltaPolicy = field(default_factory=DeltaPolicy)
    keep_deltas: bool = False
    measure_cosine: bool = False
    cosine_includes_step: bool = False
    examples: Examples | None = None
    statistics: Tensor | None = None
    own: Tensor | None = None
    dealt: Dealt | None = None

    def __post_init__(self) -> None:
        _check_work(self)

    def __len__(self) -> int:
        return self.ids.numel()

    @property
    def counts(self) -> Tensor:
        """How many examples each client has: (clients,) int64."""
        return self.offsets[1:] - self.offsets[:-1]

    @cached_property
    def stream_ids(self) -> Tensor:
        """What keys the clients' randomness: (clients,) int64, below 2**32 (``fastfed.train.ids``)."""
        return stream_ids(self.ids)

    @cached_property
    def weighing(self) -> DeltaPolicy:
        """The policy in numbers."""
        return self.policy.of(self.counts)

    def start_of(self, client: int) -> Tensor:
        """The start model (d,) of the client at this position."""
        if self.start.dim() == 1:
            return self.start
        return self.start[0 if self.start_index is None else int(self.start_index[client])]

    def starts_of(self, clients: Tensor) -> Tensor:
        """A copy of the start models of the clients at these positions: (len(clients), d)."""
        if self.start.dim() == 1:
            return self.start.repeat(len(clients), 1)
        return self.start[torch.zeros_like(clients) if self.start_index is None else self.start_index[clients]]

    def options_of(self, optimizer: Client) -> dict[str, Any]:
        """The options of ``kernels.client_step`` with which an optimizer steps in this round."""
        return optimizer.options_in(self.round, self.preconditioner is not None)

    def optimizer_of(self, client: int) -> Client:
        """The optimizer of the client at this position."""
        return self.optimizers[0 if self.optimizer_index is None else int(self.optimizer_index[client])]


@dataclass(frozen=True)
class Outcome:
    """`total`: the weighted sum, `delta` (d,), on the executor's device. `scalars`: float64 (clients,) each, on the
    CPU, NaN where a client has none:

    examples, steps, first_loss, last_loss, mean_loss (of its batches), delta_norm (of D_i itself), step_size (the last
    one), grown_steps and measured_steps (of Delta-SGD: how many steps had a size bound by its growth, by what was
    measured), min_cosine (FATHOM's: min over local steps K >= 1 of cos(sum_{k<K} g_k, g_K)). `refused` (clients,) bool:
    the delta was not finite; on the CPU. `deltas` (clients, d): every D_i before the policy, where kept, beside
    `delta`. A client that takes no step has D_i = 0. `statistics` (clients, s): what became of those that clients
    started from. `own` (clients, n): their moves at the work's own places, where D_i is 0 then. `besides`: what
    algorithms in Python end with besides the model, "kept" and "sent" (clients, d).

    Where a round is dealt to several ranks, these last four are of the clients that were trained here, and `peers`
    says which (`here`) and asks the others.
    """

    total: Total
    scalars: dict[str, Tensor]
    refused: Tensor
    deltas: Tensor | None = None
    statistics: Tensor | None = None
    own: Tensor | None = None
    besides: Mapping[str, Tensor] | None = None
    peers: Alone = ALONE

    @property
    def delta(self) -> Tensor:
        """The weighted sum (d,)."""
        return self.total.delta

    @property
    def here(self) -> Tensor:
        """The positions of the clients whose deltas are here: (m,) int64, rising."""
        return self.peers.here(len(self.refused))

    @classmethod
    def of_nobody(cls, x: Tensor) -> Outcome:
        """Of a round without clients, for a model like `x` (d,)."""
        refused = torch.zeros(0, dtype=torch.bool)
        return cls(Total(torch.zeros_like(x), 0.0), empty_scalars(0), refused, x.new_zeros(0, x.numel()))


SCALARS = (
    "examples", "steps", "first_loss", "last_loss", "mean_loss", "delta_norm", "step_size", "grown_steps",
    "measured_steps", "min_cosine",
)  # fmt: skip


def empty_scalars(clients: int) -> dict[str, Tensor]:
    """The scalars of clients that have none."""
    return {name: torch.full((clients,), torch.nan, dtype=torch.float64) for name in SCALARS}


def _check_work(work: RoundWork) -> None:
    clients = check_ids(work.ids).numel()
    _whole("batch_size", work.batch_size, 1, 1 << 31)
    _whole("seed", work.seed, 0, 1 << 64)
    _whole("round", work.round, 0, 1 << 32)
    _check_examples(work, clients)
    _check_models(work, clients)
    _check_contrast(work, clients)
    _check_optimizers(work, clients)
    _check_policy(work.policy, clients)


def _whole(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value < high:
        raise ValueError(f"{name}: must be a whole number in [{low}, {high}), got {value!r}")


def _int64(name: str, value: object, length: int | None) -> None:
    if not isinstance(value, Tensor) or value.dtype is not torch.int64 or value.dim() != 1 or not value.is_cpu:
        raise TypeError(f"{name}: must be a one-dimensional int64 tensor on the CPU, got {_kind(value)}")
    if length is not None and value.numel() != length:
        raise ValueError(f"{name}: must have {length} entries, got {value.numel()}")


def _kind(value: object) -> str:
    """What an argument was, for errors."""
    if not isinstance(value, Tensor):
        return repr(value)
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)} on {value.device}"


def _choices(name: str, value: Tensor | None, clients: int, count: int) -> None:
    """`value`, if given, is (clients,) and chooses among `count` things."""
    if value is not None:
        _int64(name, value, clients)
        if not 0 <= int(value.min()) <= int(value.max()) < count:
            raise ValueError(f"{name}: must lie in [0, {count}), got {int(value.min())} to {int(value.max())}")


def _check_examples(work: RoundWork, clients: int) -> None:
    _int64("rows", work.rows, None)
    _int64("offsets", work.offsets, clients + 1)
    _int64("steps", work.steps, clients)
    if bool((work.offsets[1:] < work.offsets[:-1]).any()) or work.offsets[0] != 0:
        raise ValueError("offsets: must start at 0 and not fall")
    if int(work.offsets[-1]) != work.rows.numel():
        raise ValueError(f"offsets: must end at the number of rows, {work.rows.numel()}, got {int(work.offsets[-1])}")
    if work.rows.numel() and int(work.rows.min()) < 0:
        raise ValueError(f"rows: must be >= 0, got {int(work.rows.min())}")
    if bool((work.steps < 0).any()):
        raise ValueError("steps: must be >= 0")
    if work.seen is not None:
        _int64("seen", work.seen, clients)
        if bool((work.seen < 0).any()):
            raise ValueError("seen: must be >= 0")
    elif work.drawn:
        raise ValueError("drawn: examples that are drawn have no epochs that end; give seen, how many each client sees")


def _check_models(work: RoundWork, clients: int) -> None:
    start = work.start
    if not isinstance(start, Tensor) or start.dtype not in (torch.float32, torch.float64) or start.dim() not in (1, 2):
        raise TypeError(f"start: must be float32 or float64 of shape (d,) or (models, d), got {_kind(start)}")
    if start.numel() == 0 or start.requires_grad or not start.is_contiguous():
        raise ValueError("start: must hold something, be contiguous and outside autograd's graph")
    models = start.shape[0] if start.dim() == 2 else 1
    _choices("start_index", work.start_index, clients, models)
    if work.start_index is None and models > 1:
        raise ValueError(f"start_index: must choose one of the {models} start models for every client")
    each, one = (clients, start.shape[-1]), (start.shape[-1],)
    for name, shape in (("corrections", each), ("preconditioner", one), ("kept", each), ("common", one)):
        value = getattr(work, name)
        if value is None:
            continue
        if not isinstance(value, Tensor) or tuple(value.shape) != shape or value.dtype is not start.dtype:
            raise ValueError(f"{name}: must have shape {shape} and start's {start.dtype}, got {_kind(value)}")
        if value.device != start.device:
            raise ValueError(f"{name}: must be on {start.device} like start, got {_kind(value)}")
        if not value.is_contiguous():
            raise ValueError(f"{name}: must be contiguous, got strides {value.stride()}")


def _check_contrast(work: RoundWork, clients: int) -> None:
    contrast, d = work.contrast, work.start.shape[-1]
    if contrast is None:
        return
    if not isinstance(contrast, Contrast):
        raise TypeError(f"contrast: must be a Contrast, got {contrast!r}")
    previous, row = contrast.previous, contrast.row
    fits = isinstance(previous, Tensor) and previous.dim() == 2 and previous.shape[1] == d
    if not fits or previous.dtype is not work.start.dtype or not previous.is_contiguous():
        wanted = f"(n, {d}), contiguous and start's {work.start.dtype}"
        raise ValueError(f"contrast: previous must be {wanted}, got {_kind(previous)}")
    if previous.device != work.start.device:
        raise ValueError(f"contrast: previous must be on {work.start.device} like start, got {_kind(previous)}")
    if row is None and len(previous) != clients:
        raise ValueError(f"contrast: previous must have {clients} rows where none are chosen, got {len(previous)}")
    if row is not None:
        _int64("contrast: row", row, clients)
        if not -1 <= int(row.min()) <= int(row.max()) < len(previous):
            raise ValueError(f"contrast: row must lie in [-1, {len(previous)}), got {row.tolist()}")


def _check_optimizers(work: RoundWork, clients: int) -> None:
    if not isinstance(work.optimizers, tuple) or not work.optimizers:
        raise TypeError("optimizers: must be a tuple of those from fastfed.clients, and not empty")
    for client in work.optimizers:
        if not isinstance(client, Client):
            raise TypeError(f"optimizers: must be those from fastfed.clients, got {client!r}")
    _choices("optimizer_index", work.optimizer_index, clients, len(work.optimizers))
    for client in work.optimizers:
        if isinstance(client, Algorithm):
            _check_algorithm(client, work)
    rules_of = [client for client in work.optimizers if not isinstance(client, Algorithm)]
    if work.preconditioner is not None and not any(CLIENT_RULES[c.rule].has_second_moment for c in rules_of):
        rules = ", ".join(repr(client.rule) for client in work.optimizers)
        raise ValueError(f"preconditioner: no second moment to start in client rule {rules}")
    if work.lr is not None:
        _check_learning_rates(work.lr, work.optimizers, clients)


def _check_algorithm(client: Algorithm, work: RoundWork) -> None:
    for name, there, wanted in (("kept", work.kept, client.keeps), ("common", work.common, client.sends)):
        if (there is not None) != bool(wanted):
            problem = "needs it" if wanted else "has no use for it"
            raise ValueError(f"{name}: {client.rule} {problem}, by what its `keeps` and `sends` say")


def _check_learning_rates(lr: Tensor, optimizers: tuple[Client, ...], clients: int) -> None:
    if not isinstance(lr, Tensor) or lr.shape != (clients,) or lr.dtype is not torch.float64 or not lr.is_cpu:
        raise ValueError(f"lr: must be a ({clients},) float64 tensor on the CPU, got {_kind(lr)}")
    if not bool((torch.isfinite(lr) & (lr >= 0)).all()):
        raise ValueError("lr: must be finite and >= 0 for every client")
    for client in optimizers:
        if not client.takes_lr:
            raise ValueError(f"lr: client rule {client.rule!r} finds it itself")
        if not client.admits_lr(float(lr.min())):
            raise ValueError(f"lr: client rule {client.rule!r} starts from it, so it must be > 0 for every client")


def _check_policy(policy: DeltaPolicy, clients: int) -> None:
    if not isinstance(policy, DeltaPolicy):
        raise TypeError(f"policy: must be a DeltaPolicy, got {policy!r}")
    weights, clip = policy.weights, policy.clip
    if not isinstance(weights, Tensor) and weights not in ("examples", "uniform"):
        raise ValueError(f"weights: must be 'examples', 'uniform' or a tensor, got {weights!r}")
    for name, numbers_ in (("weights", weights), ("scale", policy.scale)):
        if isinstance(numbers_, Tensor):
            if numbers_.shape != (clients,) or not numbers_.is_floating_point():
                raise ValueError(f"{name}: must be ({clients},) floats, got {_kind(numbers_)}")
            if not bool(torch.isfinite(numbers_).all()):
                raise ValueError(f"{name}: must be finite")
            if not math.isfinite(float(numbers_.double().sum())):
                raise ValueError(f"{name}: their sum must be finite, the largest is {float(numbers_.max()):g}")
    if clip is not None and (not isinstance(clip, numbers.Real) or not 0 < clip < math.inf):
        raise ValueError(f"clip: must be a finite number > 0, or None, got {clip!r}")
