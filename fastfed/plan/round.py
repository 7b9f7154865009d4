"""What a round is to do (`RoundPlan`), and who plans it."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from ..clients import Blend, Client, OwnClient, Part, Resources, check_steps, check_weight, optimizers
from ..kernels import Stream
from ..purposes import Purpose
from ..schedules import Schedule
from ..train.batches import batches_for, steps_for
from .participation import Participation, uniforms


@dataclass(frozen=True)
class RoundPlan:
    """One round, decided: row i of every tensor belongs to client ``cohort[i]`` (int64, ascending).

    `steps` (n,) int64 local steps on batches of `batch_size`; with `seen` (n,) int64, batches run on across epoch
    borders until that many examples have been seen. `optimizer_index` (n,) int64 chooses one of the `optimizers` each,
    `lr` (n,) float64 replaces their learning rates. `age` (n,) int64 counts the server steps since the model that a
    client starts from (None: the newest for all). `scale` (n,) float64 multiplies the clients' deltas before they are
    averaged (None: 1 for all). `server_lr` is the server's learning rate in this round. `downloads` counts the clients
    that were sent the model since the round before (None: those of the cohort), `late_uploads` the updates that came
    too late to count. `columns` are further entries of the round's row in the history. `keys` (n,) int64 key the
    clients' randomness where the cohort has a client more than once (None: its id does).
    """

    round: int
    cohort: Tensor
    steps: Tensor
    batch_size: int
    optimizers: tuple[Client, ...]
    server_lr: float
    seen: Tensor | None = None
    optimizer_index: Tensor | None = None
    lr: Tensor | None = None
    age: Tensor | None = None
    scale: Tensor | None = None
    downloads: int | None = None
    late_uploads: int = 0
    keys: Tensor | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.cohort.numel()

    @property
    def stream_ids(self) -> Tensor:
        """What keys the randomness of every participation: (n,) int64, each once."""
        return self.cohort if self.keys is None else self.keys


# ---- how long -------------------------------------------------------------------------------------------------------

Counting = Literal["epochs", "floor", "ceil"]


@dataclass(frozen=True)
class LocalWork:
    """How long a client trains: `epochs` over its examples (fractions too), or `steps`.

    `steps` is a number for all, or one per client of the federation (a sequence, or (clients,) int64). An epoch ends
    with a short batch where the examples run out, unless `across_epochs` (the AFO authors' code), where only the very
    last batch of a client may be short. `counting` says how many steps E epochs over n examples in batches of B are:
    "epochs" (default) as many as it takes to see every example in every epoch; "floor" and "ceil" round n*E/B, at
    least 1 (FATHOM). Batches that are `drawn` are all full: each of their examples is any of the client's.
    """

    epochs: float | None = None
    steps: int | Sequence[int] | Tensor | None = None
    batch_size: int = 20
    across_epochs: bool = False
    counting: Counting = "epochs"
    drawn: bool = False

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError(f"epochs: give either epochs or steps, got {self.epochs!r} and {self.steps!r}")
        if self.epochs is not None and not (isinstance(self.epochs, numbers.Real) and 0 < self.epochs < math.inf):
            raise ValueError(f"epochs: must be > 0, got {self.epochs!r}")
        if isinstance(self.batch_size, bool) or not isinstance(self.batch_size, int) or self.batch_size < 1:
            raise ValueError(f"batch_size: must be a whole number >= 1, got {self.batch_size!r}")
        if self.across_epochs and self.epochs is None:
            raise ValueError("across_epochs: batches follow one another until the epochs are over; it needs epochs")
        if self.across_epochs and self.drawn:
            raise ValueError("across_epochs: batches that are drawn have no epochs to cross; leave one of them out")
        if self.steps is not None and bool((torch.as_tensor(self.steps, device="cpu") < 1).any()):
            raise ValueError("steps: must be >= 1")

    def steps_of(self, cohort: Tensor, sizes: Tensor, epochs: float | Tensor | None, batch_size: int) -> Tensor:
        """Local steps of each client of a cohort with `sizes` (n,) examples: (n,) int64. `epochs` may be (n,)."""
        if self.steps is not None:
            given = torch.as_tensor(self.steps, dtype=torch.int64, device="cpu")
            return given.expand(len(cohort)).clone() if given.dim() == 0 else given[cohort]
        wanted = torch.as_tensor(epochs, dtype=torch.float64)
        if self.counting == "epochs":
            return steps_for(wanted, sizes, batch_size)
        if self.counting == "ceil":
            steps = batches_for(sizes * wanted, batch_size)
        else:
            steps = torch.floor(sizes * wanted / batch_size + 1e-6).long()
        return torch.where(sizes > 0, steps.clamp(min=1), 0)

    def seen_of(self, sizes: Tensor, epochs: float | Tensor | None) -> Tensor | None:
        """How many examples each client sees in all, where batches cross epoch borders; at least one if it has any."""
        if not self.across_epochs:
            return None
        seen = (sizes * torch.as_tensor(epochs or 0.0 if not isinstance(epochs, Tensor) else epochs)).round().long()
        return torch.where(sizes > 0, seen.clamp(min=1), 0)

    def check(self, clients: int) -> None:
        """Steps given per client are given for every client."""
        given = torch.as_tensor(self.steps if self.steps is not None else 1, device="cpu")
        if given.dim() > 1 or (given.dim() == 1 and given.numel() != clients) or given.is_floating_point():
            raise ValueError(f"steps: must be a whole number, or one for each of the {clients} clients")


# ---- what a cohort is told ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tuning:
    """What a tuner may change from round to round; None leaves the setting as it is."""

    lr: float | None = None
    epochs: float | None = None
    batch_size: float | None = None


@dataclass(frozen=True)
class PlanTemplate:
    """What the clients of a cohort are told: optimizer, learning rate, steps. The same for every planner.

    `sizes` (clients,) int64 counts the clients' examples. The schedules' factors multiply the learning rates.
    """

    sizes: Tensor
    local: LocalWork
    client: Client | Blend | OwnClient
    server_lr: float
    client_schedule: Schedule | None = None
    server_schedule: Schedule | None = None
    seed: int = 0

    def plan(
        self,
        round: int,
        cohort: Tensor,
        tuning: Tuning,
        *,
        epochs: Tensor | None = None,
        age: Tensor | None = None,
        scale: Tensor | None = None,
        columns: Mapping[str, Any] | None = None,
    ) -> RoundPlan:
        """The round of this cohort (n,). `epochs` (n,) replaces those of the local work; `age`, `scale` and `columns`
        are the plan's own."""
        sizes = self.sizes[cohort]
        batch_size = self.local.batch_size if tuning.batch_size is None else max(1, nearest_whole(tuning.batch_size))
        wanted: Any = epochs if epochs is not None else self.local.epochs if tuning.epochs is None else tuning.epochs
        seen = self.local.seen_of(sizes, wanted)
        steps = self.local.steps_of(cohort, sizes, wanted, batch_size)
        if seen is not None:
            steps = batches_for(seen, batch_size)
        part = None
        if isinstance(self.client, Blend):
            clients = _resources(self.client, cohort, sizes, round)
            part = parts_of(self.client, clients, round, self.seed)
            steps = _own_steps(self.client.parts, part, clients, steps, sizes, self.local)
            scale = _own_weights(self.client.parts, part, clients, scale)
        if self.local.drawn:
            seen = torch.where(sizes > 0, steps * batch_size, 0)
        return RoundPlan(
            round=round,
            cohort=cohort,
            steps=steps,
            seen=seen,
            batch_size=batch_size,
            optimizers=optimizers(self.client),
            optimizer_index=part,
            lr=self._learning_rates(round, tuning, torch.zeros_like(cohort) if part is None else part, age),
            server_lr=self.server_lr * factor("server_schedule", self.server_schedule, round),
            age=age,
            scale=scale,
            keys=_keys(cohort, self.sizes.numel()),
            columns=columns or {},
        )

    def _learning_rates(self, round: int, tuning: Tuning, index: Tensor, age: Tensor | None) -> Tensor | None:
        """Each client's, under the schedule of the round in which it started."""
        if self.client_schedule is None and tuning.lr is None:
            return None
        rates: list[float] = []
        for client in optimizers(self.client):
            rates.append(client.lr if tuning.lr is None else tuning.lr)  # type: ignore[attr-defined]
        started = torch.full_like(index, round) if age is None else round - age
        factors = torch.ones(len(index), dtype=torch.float64)
        for then in started.unique().tolist():
            factors[started == then] = factor("client_schedule", self.client_schedule, then)
        lr = torch.tensor(rates, dtype=torch.float64)[index] * factors
        for client in optimizers(self.client) if bool((lr == 0).any()) else ():
            if client.takes_lr and not client.admits_lr(0.0):
                raise ValueError(
                    f"client_schedule: client rule {client.rule!r} cannot start from 0, as in round {round}"
                )
        return lr


def _keys(cohort: Tensor, clients: int) -> Tensor | None:
    """A number of its own for every participation of a cohort (n,) in a federation of that many clients: the client's
    id at its first, beyond all ids at the others, so that these draw numbers of their own. None if all are first."""
    ascending, order = cohort.sort(stable=True)
    turn = torch.empty_like(cohort)
    turn[order] = torch.arange(len(cohort)) - torch.searchsorted(ascending, ascending)
    return cohort + turn * clients if bool(turn.any()) else None


def _resources(blend: Blend, cohort: Tensor, sizes: Tensor, round: int) -> list[Resources]:
    """What a blend's functions may know of each client of the cohort."""
    held = blend.resources
    pairs = zip(cohort.tolist(), sizes.tolist(), strict=True)
    return [Resources(client, examples, None if held is None else held[client], round) for client, examples in pairs]


def parts_of(blend: Blend, clients: Sequence[Resources], round: int, seed: int) -> Tensor:
    """Which part of the blend each client of the cohort takes in this round: (n,) int64, drawn by the parts' shares, or
    as the blend's own function chooses."""
    if blend.choose is None:
        shares = torch.tensor([part.share for part in blend.parts], dtype=torch.float64)
        borders = shares.cumsum(0) / shares.sum()
        draws = uniforms(len(clients), Stream(seed, Purpose.MIXTURE, round))
        return torch.searchsorted(borders[:-1].contiguous(), draws, right=True)
    chosen = []
    for one in clients:
        part = blend.choose(one)
        if isinstance(part, bool) or not isinstance(part, int) or not 0 <= part < len(blend.parts):
            last = len(blend.parts) - 1
            raise ValueError(f"choose: must give the number of a part, 0 to {last}, got {part!r}{_whose(one)}")
        chosen.append(part)
    return torch.tensor(chosen, dtype=torch.int64)


def _whose(one: Resources) -> str:
    return f" for client {one.client}"


def _own_steps(
    parts: Sequence[Part], index: Tensor, clients: Sequence[Resources], steps: Tensor, sizes: Tensor, local: LocalWork
) -> Tensor:
    """The steps of clients whose part says how long it trains; the others' as they were."""
    for number, part in enumerate(parts):
        mine = (index == number) & (sizes > 0)
        if callable(part.steps):
            steps = steps.clone()
            for place in mine.nonzero().flatten().tolist():
                steps[place] = check_steps(part.steps(clients[place]), _whose(clients[place]))
        elif part.epochs is not None or part.steps is not None:
            own = LocalWork(epochs=part.epochs, steps=part.steps, batch_size=local.batch_size)
            steps = torch.where(mine, own.steps_of(index, sizes, part.epochs, local.batch_size), steps)
    return steps


def _own_weights(
    parts: Sequence[Part], index: Tensor, clients: Sequence[Resources], scale: Tensor | None
) -> Tensor | None:
    if all(part.weight == 1 for part in parts):
        return scale
    own = [_weight(parts[part], one) for part, one in zip(index.tolist(), clients, strict=True)]
    weights = torch.tensor(own, dtype=torch.float64)
    return weights if scale is None else weights * scale


def _weight(part: Part, one: Resources) -> float:
    return check_weight(part.weight(one), _whose(one)) if callable(part.weight) else part.weight


# ---- planners -------------------------------------------------------------------------------------------------------


class Planner(Protocol):
    """Makes the plan of a round. `tensors` and `load` carry what it remembers through a checkpoint."""

    def plan(self, round: int, tuning: Tuning, until: float = math.inf) -> RoundPlan | None:
        """The round's plan; asked again before `commit`, the same. None if a simulated clock comes to `until` seconds
        before the round is complete."""

    def commit(self) -> None:
        """The server has stepped."""

    def versions(self) -> Sequence[int] | None:
        """The past models that clients may still start from or are training from, by the number of server steps
        before them; None if everybody starts from the newest."""

    def tensors(self) -> dict[str, Tensor]: ...

    def load(self, tensors: dict[str, Tensor]) -> None: ...


@runtime_checkable
class Clocked(Planner, Protocol):
    """A planner with a simulated clock, whose rounds a run may complete before their time."""

    def arrived(self, round: int, tuning: Tuning) -> RoundPlan:
        """The round of the updates that are in the buffer now."""


class Memoryless:
    """What planners share that decide every round anew, from the newest model."""

    def commit(self) -> None:
        """Nothing to remember."""

    def versions(self) -> Sequence[int] | None:
        return None

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Nothing to take over."""


@dataclass(frozen=True)
class SyncPlanner(Memoryless):
    """Synchronous rounds: a fresh cohort, all from the newest model."""

    template: PlanTemplate
    participation: Participation

    def plan(self, round: int, tuning: Tuning, until: float = math.inf) -> RoundPlan:
        cohort = self.participation.cohort(round, self.template.sizes.numel(), self.template.seed)
        return self.template.plan(round, cohort, tuning)


def age_columns(age: Tensor) -> dict[str, object]:
    """What the history tells of the ages (n,): mean, largest, and how many updates of each age, [age, number]."""
    ages, number = age.unique(return_counts=True)
    if len(age) == 0:
        return {"age_mean": None, "age_max": None, "ages": []}
    pairs = [list(pair) for pair in zip(ages.tolist(), number.tolist(), strict=True)]
    return {"age_mean": float(age.double().mean()), "age_max": int(age.max()), "ages": pairs}


def nearest_whole(value: float) -> int:
    """The nearest whole number to one >= 0; of two, the larger."""
    return int(value + 0.5)


def factor(name: str, schedule: Schedule | None, round: int) -> float:
    """A schedule's factor in this round, 1 without a schedule."""
    if schedule is None:
        return 1.0
    value = float(schedule(round))
    if not 0 <= value < math.inf:
        raise ValueError(f"{name}: must give a finite factor >= 0, got {value!r} in round {round}")
    return value
