"""The weighted sum of a round's deltas in lanes: which clients, chunks or devices it comes from changes no bit of it.

The clients that train, in the order in which they do, are dealt to a fixed number of lanes, each a run of neighbours.
A lane is summed client after client, on one device; the lanes are added one after another: on the way of the server's
step, where the norms of the deltas show that no number of the sum can be too large to step along, else before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise
from typing import Any

import torch
from torch import Tensor

from ...data.resident import upload
from ...kernels import registry
from ...kernels.ops import lanes_step
from ..policy import divided, fetch, multipliers, policy_weights, rest
from ..total import Total, largest
from ..work import Outcome, RoundWork, empty_scalars

LANES = 8  # never another number: it is part of the result
_ROUNDING = torch.finfo(torch.float32).eps  # of one operation: twice what it can be
_SMALLEST = torch.finfo(torch.float32).smallest_normal  # where that is no longer true
MEASURED = (  # on the device
    "first_loss", "last_loss", "mean_loss", "step_size", "grown_steps", "measured_steps", "min_cosine", "delta_norm",
)  # fmt: skip


@dataclass(frozen=True)
class Lanes:
    """So many `clients` that train, dealt to lanes: `run` neighbours each, but for the last ones."""

    clients: int

    @property
    def run(self) -> int:
        return max(1, -(-self.clients // LANES))

    def places(self, lanes: range) -> range:
        """Which of the clients are in these lanes, as places in their order."""
        first, end = (min(self.clients, lane * self.run) for lane in (lanes.start, lanes.stop))
        return range(first, end)

    def dealt(self, steps: Tensor, devices: int) -> list[range]:
        """Lanes for each device, neighbours all, so that the most steps of one are as few as can be; `steps` (clients,)
        are those of the clients, in their order. Devices beyond the lanes get none."""
        work = [int(steps[slice(*self._ends(lane))].sum()) for lane in range(LANES)]
        busy = min(devices, LANES)

        def heaviest(cuts: Sequence[int]) -> int:
            return max(sum(work[a:b]) for a, b in pairwise((0, *cuts, LANES)))

        cuts = (0, *min(combinations(range(1, LANES), busy - 1), key=heaviest), LANES)
        return [range(a, b) for a, b in pairwise(cuts)] + [range(LANES, LANES)] * (devices - busy)

    def _ends(self, lane: int) -> tuple[int, int]:
        places = self.places(range(lane, lane + 1))
        return places.start, places.stop


@dataclass(frozen=True)
class Terms:
    """What the sum of a round's deltas is made of: `order` (n,) int64, the positions of the clients that train, one
    after another, and the `steps` (clients,) int64 that each client of the cohort really takes."""

    work: RoundWork
    steps: Tensor
    order: Tensor

    @property
    def lanes(self) -> Lanes:
        return Lanes(len(self.order))

    @cached_property
    def weights(self) -> Tensor:
        """What each client of the cohort counts if no delta is refused: (clients,) float64."""
        return policy_weights(self.work, self.steps)

    @cached_property
    def numbers(self) -> Tensor:
        """Of every client in the order, float64: what its delta is multiplied by, (1, n); and below it, if deltas are
        clipped, the norm that it is allowed before that, (2, n)."""
        policy, steps = self.work.policy, self.steps[self.order].double()
        factors = multipliers(self.work, self.weights)[self.order]
        rows = [factors / steps if policy.divide_by_steps else factors]
        if policy.clip is not None:
            rows.append(policy.clip * steps if policy.divide_by_steps else torch.full_like(factors, policy.clip))
        return torch.stack(rows)


@dataclass(frozen=True)
class Layout:
    """How an engine's vectors differ from packed ones: `packed` makes these of them; `places` (d,) int32, on the
    engine's device, says where their numbers are in these, None if at the same places."""

    packed: Callable[[Tensor], Tensor]
    places: Tensor | None


class LaneSum:
    """Some lanes of a round's sum on one device, in the layout of the engine there, and the numbers of its clients.

    Nothing waits for the device. `home`: the device where the round's lanes come together, and the deltas that are
    kept.
    """

    def __init__(
        self,
        terms: Terms,
        lanes: range,
        device: torch.device,
        layout: Layout,
        *,
        home: bool = True,
    ) -> None:
        self.terms, self.lanes, self.device, self.layout = terms, lanes, device, layout
        self.places = terms.lanes.places(lanes)
        n, d = len(self.places), terms.work.start.shape[-1]
        self.sums = torch.zeros((len(lanes), d), dtype=torch.float32, device=device)
        self.measured = torch.full((len(MEASURED), n), torch.nan, dtype=torch.float64, device=device)
        self._numbers = upload(terms.numbers[:, self.places.start : self.places.stop].contiguous(), device)
        self.order = terms.order[self.places.start : self.places.stop]
        self.deltas: Tensor | None = None
        if terms.work.keep_deltas:  # at home, where all of them will be
            self.deltas = torch.zeros((len(terms.work) if home else n, d), dtype=torch.float32, device=device)
        self._rows = self.order if home else torch.arange(n)

    def add(
        self, place: int, x: Tensor, start: Tensor, scalars: Mapping[str, Tensor], squares: Tensor | None = None
    ) -> None:
        """Adds clients that have trained, from this place in the order on: their models x (n, d), which started from
        `start` (d,) or (n, d), and their scalars (n,) float64 by name; the squares (n,) float64 of their moves' norms,
        if they are known."""
        from ...kernels.triton.engine import deltas

        here = slice(place - self.places.start, place - self.places.start + len(x))
        for name, values in scalars.items():
            self.measured[MEASURED.index(name), here] = values
        shares, *limits = self._numbers[:, here]
        norms = self.measured[MEASURED.index("delta_norm"), here]
        weights = deltas.weigh(x, start, shares, limits[0] if limits else None, norms, squares)
        deltas.fold(x, start, weights, self.sums, here.start, self.terms.lanes.run)
        if self.deltas is not None:
            self.deltas[upload(self._rows[here], self.device)] = self.layout.packed(x - start)


class LaneTotal(Total):
    """The sum of lanes `sums` (LANES, d), which are added up on the way of the server's step; or before, if somebody
    asks for `delta` or must look how large it is.

    `bound`: no magnitude in the sum is larger. `by`: what the sum must be divided by, if clients were refused.
    """

    def __init__(self, sums: Tensor, layout: Layout, bound: float, by: float | None = None) -> None:
        self.sums, self.layout, self.bound, self.by = sums, layout, bound, by

    @cached_property
    def _joined(self) -> tuple[Tensor, Tensor]:
        """The sum as the engine has it, and its largest magnitude, () on the device."""
        from ...kernels.triton.engine import deltas

        return deltas.join(self.sums)

    @cached_property
    def delta(self) -> Tensor:
        return self.layout.packed(divided(self._joined[0], self.by))

    @cached_property
    def largest(self) -> float:
        return float(fetch(self._joined[1])) if self.by is None else largest(self.delta)

    def is_below(self, limit: float) -> bool:
        return self.bound < limit or super().is_below(limit)

    def step(self, rule: str, x: Tensor, state: dict[str, Tensor], **options: Any) -> None:
        if self._is_to_be_joined_on_the_way(x):
            lanes_step(rule, x, self.sums, self.layout.places, state, **options)
        else:
            super().step(rule, x, state, **options)

    def _is_to_be_joined_on_the_way(self, x: Tensor) -> bool:
        """Unless it has been joined, or is to be divided; or another backend has been asked for."""
        here = x.device == self.sums.device and registry.default in (None, "triton")
        return here and self.by is None and "_joined" not in vars(self)


def outcome(parts: Sequence[LaneSum]) -> Outcome:
    """The result of the round whose lanes these are, in their order; it is on the device of the first, which all the
    numbers leave at once."""
    home, *others = parts
    terms = home.terms
    sums = torch.cat([part.sums.to(home.device) for part in parts]) if others else home.sums
    measured = torch.cat([part.measured.to(home.device) for part in parts], 1) if others else home.measured
    for part in others:
        if home.deltas is not None and part.deltas is not None:
            home.deltas[upload(part.order, home.device)] = part.deltas.to(home.device)
    numbers = fetch(measured)
    scalars = _scalars(terms, numbers)
    refused = ~torch.isfinite(scalars["delta_norm"])
    by = rest(terms.work, terms.weights, refused)
    bound = bound_of(terms, numbers[MEASURED.index("delta_norm")]) if by is None else math.inf
    return Outcome(LaneTotal(sums, home.layout, bound, by), scalars, refused, home.deltas)


def bound_of(terms: Terms, norms: Tensor) -> float:
    """What no magnitude in the sum of deltas with these norms (n,) float64 exceeds, in the order of the terms: none of
    a delta's numbers is larger than its norm. Rounding on the way is included, deltas that are not finite are not."""
    factors, *limits = terms.numbers
    counted = torch.isfinite(norms)
    factors, norms = factors[counted].float().double().abs(), norms[counted]  # infinite where float32 ends
    allowed = torch.minimum(norms, limits[0][counted]) if limits else norms
    most = float((factors * allowed + _SMALLEST * (norms + 1)).sum())
    return most * (1 + _ROUNDING) ** (len(norms) + 2 * LANES)


def _scalars(terms: Terms, measured: Tensor) -> dict[str, Tensor]:
    """Of the whole cohort, from those `MEASURED` of who trains: who takes no step has none, and does not move."""
    scalars = empty_scalars(len(terms.work))
    scalars |= {"examples": terms.work.counts.double(), "steps": terms.steps.double()}
    scalars["delta_norm"].zero_()
    for name, values in zip(MEASURED, measured, strict=True):
        scalars[name][terms.order] = values
    return scalars
