"""A round of a run with several ranks: who trains whom is known before anybody's examples are looked at, what clients
keep goes to those who train them, and every rank visits its own clients alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .data import Federation
from .exchange.client_store import ClientStore
from .ranks import Ranks
from .train import RoundWork
from .train.peers import untouched_zeros
from .train.sharded import Sharded


class Sharing:
    """What a simulation does besides when it is one of several `ranks`. `rooms` by name are those in which clients keep
    something: each names its stores."""

    def __init__(self, ranks: Ranks, executor: Sharded, rooms: Mapping[str, Any]) -> None:
        self.ranks, self.executor = ranks, executor
        self.stores: list[ClientStore] = []
        for name, room in rooms.items():
            if not hasattr(room, "stores"):
                raise ValueError(
                    f"{name}: {type(room).__name__} cannot be dealt to several ranks: it has no `stores`, which would "
                    "say what its clients keep (fastfed.exchange.Exchanger)"
                )
            for store in room.stores:
                if type(store) is not ClientStore:  # a kind of it may keep its vectors elsewhere
                    raise ValueError(
                        f"store: {type(store).__name__} cannot be dealt to several ranks; leave it out there"
                    )
                self.stores.append(store)
        for store in self.stores:
            store.share(ranks)

    def dealt(
        self, fed: Federation, cohort: Tensor, numbers: Mapping[str, Any], nobody: Mapping[str, Any]
    ) -> RoundWork:
        """The work of a round as far as `numbers` tell it: without examples, and with who trains whom. What clients
        keep has been moved to those who train them. `nobody`: the fields that it will have besides, for no client at
        all; they show which there are. All ranks ask."""
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), fed.sizes[cohort].cumsum(0)])
        rows = torch.zeros(int(offsets[-1]), dtype=torch.int64)
        fields = {**numbers, **_spread(nobody, torch.empty(0, dtype=torch.int64), len(cohort), numbers["start"])}
        work = RoundWork(**fields, offsets=offsets, rows=rows)
        dealt = self.executor.deal(work)
        for store in self.stores:
            store.bring(cohort, dealt.rank_of)
        return replace(work, dealt=dealt)

    def filled(self, work: RoundWork, fed: Federation, cohort: Tensor, vectors: Mapping[str, Any]) -> RoundWork:
        """The work with the examples of the clients that are trained here, and with their `vectors`: fields of the
        work, of these clients alone."""
        assert work.dealt is not None
        here, n = work.dealt.to(self.ranks.rank), len(work)
        try:
            visit = fed.visit(cohort[here])
        except Exception as error:  # told with what comes of the round: asking all ranks here would cost every round
            return replace(work, dealt=replace(work.dealt, failure=error))
        held, is_here = work.rows.numpy().copy(), (work.dealt.rank_of == self.ranks.rank).numpy()
        held[np.repeat(is_here, work.counts.numpy())] = visit.rows.numpy()
        rows = torch.from_numpy(held)
        own_examples = None if visit.examples is fed.examples or not len(here) else visit.examples
        return replace(work, rows=rows, examples=own_examples, **_spread(vectors, here, n, work.start))


_PER_CLIENT = {
    "corrections": 0.0,
    "start_index": 0,
    "statistics": 0.0,
    "kept": 0.0,
}  # fields, and what stands for others' clients


def _spread(vectors: Mapping[str, Any], here: Tensor, n: int, start: Tensor) -> dict[str, Any]:
    """Fields with a row for each of `n` clients, from those that have one for each client `here` (m,). `start`: any
    model, for clients that each have their own, where nobody is here."""
    fields = dict(vectors)
    if not fields["start"].numel():
        fields["start"] = start.reshape(-1, start.shape[-1])[:1]
    for name, other in _PER_CLIENT.items():
        value = fields.get(name)
        if value is not None and not (name == "statistics" and value.dim() == 1):
            fields[name] = _scattered(value, here, n, other)
    contrast = fields.get("contrast")
    if contrast is not None and contrast.row is not None:
        fields["contrast"] = replace(contrast, row=_scattered(contrast.row, here, n, -1))
    return fields


def _scattered(values: Tensor, here: Tensor, n: int, other: float) -> Tensor:
    whole = untouched_zeros(values, n, *values.shape[1:])  # the zeros of others take no room
    if other:
        whole.fill_(other)
    whole[here.to(values.device)] = values
    return whole


def writes(ranks: Ranks | None) -> bool:
    """Whether this process is the one that writes and shows."""
    return ranks is None or ranks.is_first


def check_same_run(ranks: Ranks, run: str, fingerprint: str, settings: Sequence[str]) -> None:
    """Refuses ranks that would not run the same."""
    ranks.check_same("fed", fingerprint)
    ranks.check_same("settings and start model", run)
    ranks.check_same("executor", ", ".join(settings))
