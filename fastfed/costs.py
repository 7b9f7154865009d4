"""What a round costs besides time: bytes sent down and up, and the memory of a client's optimizer."""

from __future__ import annotations

from .clients import Client
from .exchange import Exchange
from .kernels import CLIENT_RULES, client_state
from .packing import Packing


def vector_bytes(packing: Packing) -> int:
    """One vector of the model's size as it is sent: the gaps of the packed form stay at home."""
    return packing.parameters * packing.dtype.itemsize


def bytes_down(packing: Packing, exchange: Exchange | None) -> int:
    """To one client: the model, and what the exchange adds."""
    return vector_bytes(packing) * (1 + (exchange.down if exchange else 0))


def bytes_up(packing: Packing, exchange: Exchange | None) -> int:
    """From one client: its delta, and what the exchange adds."""
    return vector_bytes(packing) * (1 + (exchange.up if exchange else 0))


def optimizer_bytes(client: Client, packing: Packing, exchange: Exchange | None = None) -> int:
    """Of one client, beyond model and gradient: vectors of moments, SM3's numbers per axis, what an exchange keeps.

    Counters and step sizes, a few numbers, are left out.
    """
    options = client.state_options()
    if CLIENT_RULES[client.rule].cover is not None:
        options["packing"] = packing
    state = client_state(client.rule, packing.zeros(), **options)
    vectors = sum(tensor.shape == (packing.size,) for name, tensor in state.items() if name not in ("mu", "cover"))
    axes = state["mu"].numel() * packing.dtype.itemsize if "mu" in state else 0
    return (vectors + (exchange.kept if exchange else 0)) * vector_bytes(packing) + axes
