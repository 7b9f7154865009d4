"""The server's second moment, transmitted to clients (FedAda2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..clients import Algorithm, Client
from ..kernels.table import CLIENT_RULES, SERVER_RULES
from ..servers import Server
from .protocol import Exchanger, NoExchanger


@dataclass(frozen=True)
class Preconditioner:
    """Direct joint adaptivity (FedAda2): clients start their second moments from the server's v."""

    down = 1
    up = 0
    kept = 0
    any_timing = False
    split = None

    def check(self, client: Client, server: Server) -> None:
        if isinstance(client, Algorithm):
            raise ValueError(
                f"exchange: only rules of fastfed.clients start from the server's second moment, got {client.own!r}"
            )
        if not CLIENT_RULES[client.rule].has_second_moment:
            raise ValueError(f"exchange: client rule {client.rule!r} has no second moment to start from the server's")
        if not isinstance(server, Server):
            raise ValueError(
                f"exchange: only servers of fastfed.servers have a second moment to transmit, got {server!r}"
            )
        if "v" not in SERVER_RULES[server.rule].moments:
            raise ValueError(f"exchange: server rule {server.rule!r} has no second moment to transmit")
        if getattr(client, "v0", None) is not None:
            raise ValueError("exchange: the second moment starts from the server's v, so v0 would be ignored")

    def begin(self, x: Tensor, clients: int) -> Exchanger:
        return _Transmitting()


class _Transmitting(NoExchanger):
    """Nothing is kept or learnt: the server has what is sent."""

    def extras(self, cohort: Tensor, server_state: dict[str, Tensor]) -> dict[str, Any]:
        return {"preconditioner": server_state["v"]}
