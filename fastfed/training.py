"""The room train: from a round's plan to the work of its clients, and from that to its outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from .data.generated import Generated
from .plan import RoundPlan
from .sharing import Sharing
from .train import Outcome, RoundWork
from .train.portions import PORTION_BYTES, Portions

if TYPE_CHECKING:
    from .simulation import Simulation
    from .train.native import Native


def train(sim: Simulation, plan: RoundPlan) -> tuple[RoundWork | None, Outcome]:
    """What the clients of `plan` were given, and what came of it; no work where nobody takes part."""
    if len(plan) == 0:  # a Poisson cohort may be empty
        return None, Outcome.of_nobody(sim.params)
    in_portions = _in_portions(sim, plan)
    if in_portions is not None:
        return in_portions.work, in_portions.run(lambda some: sim.fed.visit(plan.cohort[some]))
    work = work_of(sim, plan)
    return work, sim.executor.run(work)


def _in_portions(sim: Simulation, plan: RoundPlan) -> Portions | None:
    """The round in portions, where its examples are made for it and would be many; None: all at once. What is kept
    per client would have to be kept of all of them anyhow."""
    if not isinstance(sim.fed, Generated) or sim.ranks is not None or sim.executor.name != "native":
        return None
    numbers = _numbers(sim, plan)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sim.fed.sizes[plan.cohort].cumsum(0)])
    if int(offsets[-1]) * sim.fed.bytes_each <= PORTION_BYTES or numbers["keep_deltas"]:
        return None
    rows = torch.zeros(int(offsets[-1]), dtype=torch.int64)
    extras = sim.exchanger.extras(plan.cohort, sim.server.state)
    work = RoundWork(**{**numbers, **sim.batch_norm.fields(numbers, plan.age)}, rows=rows, offsets=offsets, **extras)
    if work.statistics is not None or work.own is not None:
        return None
    portions = Portions(cast("Native", sim.executor), work, sim.fed.bytes_each)
    return portions if len(portions.parts) > 1 else None


def work_of(sim: Simulation, plan: RoundPlan) -> RoundWork:
    """What the clients of `plan` are given, all at once; of several ranks, examples and vectors of those here."""
    if plan.keys is not None and not sim.settings.repeats_clients:
        raise ValueError("cohort: has a client twice; a participation that repeats clients has `replacement` True")
    numbers = _numbers(sim, plan)
    if sim.sharing is not None:
        return _shared_work(sim, sim.sharing, plan, numbers)
    visit = sim.fed.visit(plan.cohort)
    return RoundWork(
        **{**numbers, **sim.batch_norm.fields(numbers, plan.age)},
        rows=visit.rows,
        offsets=visit.offsets,
        examples=None if visit.examples is sim.fed.examples else visit.examples,
        **sim.exchanger.extras(plan.cohort, sim.server.state),
    )


def _numbers(sim: Simulation, plan: RoundPlan) -> dict[str, Any]:
    """Of the round's work what is known without a look at what clients have: the start models, and numbers."""
    start, start_index = sim.server.starts(plan.round, plan.age)
    exchanged = sim.exchanger.keeps_deltas
    return {
        "start": start.clone() if exchanged else start,  # deltas are absorbed after the server's step
        "start_index": start_index,
        "ids": plan.stream_ids,
        "round": plan.round,
        "steps": plan.steps,
        "seen": plan.seen,
        "drawn": sim.settings.batches == "drawn",
        "batch_size": plan.batch_size,
        "optimizers": plan.optimizers,
        "optimizer_index": plan.optimizer_index,
        "lr": plan.lr,
        "seed": sim.settings.seed,
        "policy": sim.aggregator.policy(plan, sim.fed.sizes[plan.cohort]),
        "keep_deltas": sim.aggregator.keeps_deltas or exchanged,
        "measure_cosine": sim.tuner.measures_cosine,
        "cosine_includes_step": sim.tuner.cosine_includes_step,
    }


def _shared_work(sim: Simulation, sharing: Sharing, plan: RoundPlan, numbers: dict[str, Any]) -> RoundWork:
    """With the examples and vectors of the clients that are trained here."""

    def vectors(of: Tensor) -> dict[str, Any]:
        index, age = (None if one is None else one[of] for one in (numbers["start_index"], plan.age))
        those = {**numbers, "ids": plan.stream_ids[of], "start_index": index}
        kept = {"start": numbers["start"], "start_index": index, **sim.batch_norm.fields(those, age)}
        return kept | sim.exchanger.extras(plan.cohort[of], sim.server.state)

    work = sharing.dealt(sim.fed, plan.cohort, numbers, vectors(torch.empty(0, dtype=torch.int64)))
    assert work.dealt is not None
    return sharing.filled(work, sim.fed, plan.cohort, vectors(work.dealt.to(sharing.ranks.rank)))
