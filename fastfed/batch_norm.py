"""Batch norm: what of it is learnt by looking at batches, not by gradients, and where that lives during a run.

A layer's running mean and variance are no parameters. No optimizer and no server rule sees them: clients take them
along, every local step updates them as torch does, and after a round they are the clients' weighted mean ("average"),
or stay with each client together with the layer's weight and bias ("local", FedBN), or never change ("frozen").
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from .exchange.client_store import ClientStore
from .norms import PackedModel, Statistics
from .packing import Packing, batch_norm_layers
from .past import PastModels
from .train import Outcome, RoundWork

Mode = Literal["average", "local", "frozen"]
MODES: tuple[Mode, ...] = get_args(Mode)


def check_mode(mode: object, module: nn.Module) -> None:
    """Refuses a word that is none, and one that a model without batch norm would ignore."""
    if mode not in MODES:
        raise ValueError(f"batch_norm: must be one of {', '.join(MODES)}, got {mode!r}")
    if mode != "average" and not batch_norm_layers(module):
        raise ValueError(f"batch_norm: the model has no batch norm that {mode!r} could be said of; leave it out")


@dataclass(frozen=True)
class Extra:
    """Bytes besides the model's: sent down to a client, up from it, and kept by it. Those of tensors that stay at home
    are negative."""

    down: int = 0
    up: int = 0
    kept: int = 0


class NoStatistics:
    """Of a model without batch norm, or with a frozen one."""

    extra = Extra()
    stores: tuple[ClientStore, ...] = ()

    def vector(self) -> Tensor | None:
        """The global model's statistics (s,); None if it has none."""
        return None

    def named(self) -> dict[str, Tensor]:
        return {}

    def own_models(self, x: Tensor, clients: Tensor) -> Callable[[int], PackedModel] | None:
        """The models of the clients at these positions of `clients` (n,), where they differ from the global one `x`
        (d,); None if they do not."""
        return None

    def fields(self, work: Mapping[str, Any], age: Tensor | None) -> dict[str, Any]:
        return {}

    def remember(self, version: int) -> None: ...

    def keep(self, versions: Collection[int]) -> None: ...

    def absorb(self, work: RoundWork, outcome: Outcome, shares: Tensor) -> None: ...

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def load(self, tensors: dict[str, Tensor]) -> None: ...


class Averaged(NoStatistics):
    """The statistics of the global model: after a round, the mean of those clients' that are in the aggregate, by what
    they count there. No server rule is applied."""

    def __init__(self, layout: Statistics, module: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
        self.layout, self.now = layout, layout.pack(module, dtype).to(device)
        self.past = PastModels(self.now)
        self.extra = Extra(down=self._bytes, up=self._bytes)

    @property
    def _bytes(self) -> int:
        return self.layout.size * self.now.element_size()

    def vector(self) -> Tensor:
        return self.now

    def named(self) -> dict[str, Tensor]:
        """By the names of the module's buffers."""
        return self.layout.views(self.now)

    def fields(self, work: Mapping[str, Any], age: Tensor | None) -> dict[str, Any]:
        """Of the round's work: what clients start from, those of old models from what these had."""
        if age is None or not bool(age.any()):
            return {"statistics": self.now}
        version = work["round"]
        return {"statistics": torch.stack([self.now if a == 0 else self.past.get(version - a) for a in age.tolist()])}

    def remember(self, version: int) -> None:
        self.past.put(version, self.now)

    def keep(self, versions: Collection[int]) -> None:
        self.past.keep(versions)

    def absorb(self, work: RoundWork, outcome: Outcome, shares: Tensor) -> None:
        assert outcome.statistics is not None
        found = outcome.peers.whole(outcome.statistics.to(self.now.device)).double()
        counts = torch.where(torch.isfinite(found).all(dim=1).cpu(), shares.double(), 0.0)
        if bool(counts.sum() > 0):
            weights = (counts / counts.sum()).to(self.now.device)
            mean = (found[weights > 0] * weights[weights > 0][:, None]).sum(0)
            self.now = mean.to(self.now.dtype)

    def tensors(self) -> dict[str, Tensor]:
        return {"now": self.now, **{f"past.{name}": tensor for name, tensor in self.past.tensors().items()}}

    def load(self, tensors: dict[str, Tensor]) -> None:
        self.now = tensors["now"].to(self.now.device, copy=True)
        self.past.load({name: tensors[f"past.{name}"] for name in ("versions", "models")})


class Local(NoStatistics):
    """FedBN: every client keeps weight, bias and statistics of its batch norms. The global model's stay as they were at
    first: clients that are new begin with them, and evaluations of the global model see them. Evaluations per client
    see each client's own."""

    def __init__(self, layout: Statistics, module: nn.Module, packing: Packing, device: torch.device) -> None:
        self.layout, self.first = layout, layout.pack(module, packing.dtype).to(device)
        self.own = own_places(module, packing).to(device)
        weights = packing.pack(module).to(device)[self.own]
        self._first = torch.cat([weights, self.first])
        self.store = ClientStore(len(self._first), packing.dtype, device)
        moved, kept = len(self.own) * packing.dtype.itemsize, len(self._first) * packing.dtype.itemsize
        self.extra = Extra(down=-moved, up=-moved, kept=kept)

    def vector(self) -> Tensor:
        return self.first

    def named(self) -> dict[str, Tensor]:
        return self.layout.views(self.first)

    def own_models(self, x: Tensor, clients: Tensor) -> Callable[[int], PackedModel]:
        kept = self.store.everywhere(clients, self._first)

        def model(position: int) -> PackedModel:
            weights, statistics = self._split(kept(position))
            own = x.clone()
            own[self.own] = weights
            return PackedModel(own, statistics)

        return model

    def _split(self, kept: Tensor) -> tuple[Tensor, Tensor]:
        """Of what clients keep, (n,) or (clients, n): weights and biases, and statistics."""
        return kept[..., : len(self.own)], kept[..., len(self.own) :].contiguous()

    def fields(self, work: Mapping[str, Any], age: Tensor | None) -> dict[str, Any]:
        """Of the round's work: every client starts from the global model with its own batch norms in it."""
        ids, start, index = work["ids"], work["start"], work["start_index"]
        kept = self.store.get(ids, self._first)
        rows = torch.zeros(len(ids), dtype=torch.int64) if index is None else index
        starts = start.reshape(-1, start.shape[-1])[rows]
        weights, statistics = self._split(kept)
        starts[:, self.own] = weights
        return {
            "start": starts,
            "start_index": torch.arange(len(ids)),
            "statistics": statistics,
            "own": self.own,
        }

    def absorb(self, work: RoundWork, outcome: Outcome, shares: Tensor) -> None:
        assert outcome.statistics is not None
        assert outcome.own is not None
        trained = ((outcome.scalars["steps"] > 0) & ~outcome.refused)[outcome.here]
        ids = work.ids[outcome.here]
        before = self.store.get(ids, self._first)
        weights = self._split(before)[0] + outcome.own.to(before.device)
        after = torch.cat([weights, outcome.statistics.to(before.device)], dim=1)[trained]
        finite = torch.isfinite(after).all(dim=1).cpu()
        self.store.put(ids[trained][finite], after[finite])

    @property
    def stores(self) -> tuple[ClientStore, ...]:  # type: ignore[override]
        return (self.store,)

    def tensors(self) -> dict[str, Tensor]:
        return self.store.tensors()

    def load(self, tensors: dict[str, Tensor]) -> None:
        self.store.load(tensors)


def own_places(module: nn.Module, packing: Packing) -> Tensor:
    """Where the weights and biases of batch norms lie in the packed vector: (n,) int64."""
    names = {f"{layer}.{part}".removeprefix(".") for layer in batch_norm_layers(module) for part in ("weight", "bias")}
    spans: Iterable[slice] = (slot.span for slot in packing.slots if slot.name in names)
    return torch.cat([torch.arange(span.start, span.stop) for span in spans] or [torch.empty(0, dtype=torch.int64)])


def make_statistics(mode: Mode, module: nn.Module, packing: Packing, device: torch.device) -> NoStatistics:
    """Where a run keeps what batches have shown to the model's batch norms."""
    layout = Statistics.of(module)
    if layout is None or mode == "frozen":
        return NoStatistics()
    if mode == "local":
        return Local(layout, module, packing, device)
    return Averaged(layout, module, packing.dtype, device)
