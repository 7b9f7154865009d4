"""What a round costs besides time: bytes sent down and up, and the memory of a client's optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Any

from ..batch_norm import Extra
from ..clients import Algorithm, Blend, Client, OwnClient, optimizers
from ..compression import Compression
from ..exchange import Exchange
from ..exchange.own import exchange_of
from ..extras import needed
from ..kernels import CLIENT_RULES, client_state
from ..packing import Packing
from ..train.algorithm import vectors_of

if TYPE_CHECKING:
    from rich.table import Table


def vector_bytes(packing: Packing) -> int:
    """One vector of the model's size as it is sent: the gaps of the packed form stay at home."""
    return packing.parameters * packing.dtype.itemsize


def bytes_down(packing: Packing, exchange: Exchange | None) -> int:
    """To one client: the model, and what the exchange adds."""
    return vector_bytes(packing) * (1 + (exchange.down if exchange else 0))


def bytes_up(packing: Packing, exchange: Exchange | None, compression: Compression | None = None) -> int:
    """From one client: its delta, compressed or not, and what the exchange adds."""
    delta = vector_bytes(packing) if compression is None else compression.message_bytes(packing, packing.dtype)
    return delta + vector_bytes(packing) * (exchange.up if exchange else 0)


def optimizer_bytes(
    client: Client | Blend | OwnClient,
    packing: Packing,
    exchange: Exchange | None = None,
    compression: Compression | None = None,
) -> int:
    """Of one client, beyond model and gradient: vectors of moments, SM3's numbers per axis, what an exchange keeps and
    what compressed messages have left out. Of a blend, the client that needs most.

    Counters and step sizes, a few numbers, are left out.
    """
    kept = (exchange.kept if exchange else 0) + int(compression is not None and compression.feedback)
    return kept * vector_bytes(packing) + max(_state_bytes(one, packing) for one in optimizers(client))


def _state_bytes(client: Client, packing: Packing) -> int:
    if isinstance(client, Algorithm):
        return vectors_of(client, packing) * vector_bytes(packing)
    options = client.state_options()
    if CLIENT_RULES[client.rule].cover is not None:
        options["packing"] = packing
    state = client_state(client.rule, packing.zeros(), **options)
    vectors = sum(tensor.shape == (packing.size,) for name, tensor in state.items() if name not in ("mu", "cover"))
    axes = state["mu"].numel() * packing.dtype.itemsize if "mu" in state else 0
    return vectors * vector_bytes(packing) + axes


@dataclass(frozen=True)
class Costs:
    """Of one client and round of a method, in bytes: sent down, sent up, and its optimizer's memory beyond model and
    gradient."""

    method: str
    bytes_down: int
    bytes_up: int
    optimizer_bytes: int


def of(name: str, settings: Mapping[str, Any], packing: Packing, extra: Extra | None = None) -> Costs:
    """The costs of a method's settings for a model; `extra`: of its batch norms."""
    exchange, compression = exchange_of(settings["client"], settings.get("exchange")), settings.get("compression")
    memory = optimizer_bytes(settings["client"], packing, exchange, compression)
    down, up = bytes_down(packing, exchange), bytes_up(packing, exchange, compression)
    if extra is not None:
        down, up, memory = down + extra.down, up + extra.up, memory + extra.kept
    return Costs(name, down, up, memory)


class CostTable(list[Costs]):
    """Rows of costs for a model; printed, they are a table."""

    def __init__(self, rows: Iterable[Costs], packing: Packing) -> None:
        super().__init__(rows)
        self.packing = packing

    def __rich__(self) -> Table:
        from rich.table import Table

        d = vector_bytes(self.packing)
        shown = Table(title=f"per client and round, d = {self.packing.parameters:,} parameters ({d:,} bytes)")
        shown.add_column("method")
        for heading in ("down", "up", "down and up", "optimizer memory"):
            shown.add_column(heading, justify="right")
        for row in self:
            both = row.bytes_down + row.bytes_up
            cells = (row.bytes_down, row.bytes_up, both, row.optimizer_bytes)
            shown.add_row(row.method, *(f"{cell:,} ({cell / d:.3g} d)" for cell in cells))
        return shown

    def __str__(self) -> str:
        text = StringIO()
        needed("rich.console", extra="app", by="a printed table of costs").Console(file=text, width=_WIDTH).print(self)
        return text.getvalue()


_WIDTH = 140  # characters
