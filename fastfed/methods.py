"""Named methods: keyword arguments for ``ff.Simulation``, as in ``Simulation(model, fed, cohort=10, **scaffold())``.

Papers, as in the documentation: AFO = "Adaptive Federated Optimization", FedAda2 = "Efficient Adaptive Federated
Optimization", DSGD = "Adaptive Federated Learning with Auto-Tuned Clients".
"""

from __future__ import annotations

from typing import Any

from . import clients, exchange, servers
from .clients import Client
from .servers import Server

Settings = dict[str, Any]


def fedavg(client_lr: float, server_lr: float = 1.0) -> Settings:
    """AFO's FedAvg: SGD on clients, the model moves along the mean delta."""
    return {"client": clients.SGD(lr=client_lr), "server": servers.FedAvg(lr=server_lr)}


def fedavgm(client_lr: float, server_lr: float = 1.0, momentum: float = 0.9) -> Settings:
    """AFO's FedAvgM: momentum on the server."""
    return {"client": clients.SGD(lr=client_lr), "server": servers.FedAvgM(lr=server_lr, momentum=momentum)}


def fedadagrad(client_lr: float, server_lr: float, tau: float = 1e-3) -> Settings:
    """AFO's FedAdagrad: AdaGrad on the server, without a first moment."""
    return {"client": clients.SGD(lr=client_lr), "server": servers.FedAdagrad(lr=server_lr, tau=tau)}


def fedadam(client_lr: float, server_lr: float, tau: float = 1e-3) -> Settings:
    """AFO's FedAdam: Adam on the server."""
    return {"client": clients.SGD(lr=client_lr), "server": servers.FedAdam(lr=server_lr, tau=tau)}


def fedyogi(client_lr: float, server_lr: float, tau: float = 1e-3) -> Settings:
    """AFO's FedYogi: Yogi on the server."""
    return {"client": clients.SGD(lr=client_lr), "server": servers.FedYogi(lr=server_lr, tau=tau)}


def fedams(client_lr: float, server_lr: float, tau: float = 1e-3) -> Settings:
    """FedAMS: Adam on the server over the largest second moment so far."""
    return {"client": clients.SGD(lr=client_lr), "server": servers.FedAMS(lr=server_lr, tau=tau)}


def fedprox(client_lr: float, mu: float, server: Server | None = None) -> Settings:
    """FedProx: clients are pulled towards the model they started from, by `mu`."""
    return {"client": clients.SGD(lr=client_lr, prox=mu), "server": server or servers.FedAvg()}


def moon(
    client_lr: float, mu: float = 1.0, temperature: float = 0.5, head: str | None = None, server: Server | None = None
) -> Settings:
    """MOON: a term of weight `mu` in the loss draws a client's features, which go into the layer `head` (None: the last
    nn.Linear), to those of the model it started from and away from those of its own last one."""
    kept = exchange.PreviousModels(mu, temperature, head)
    return {"client": clients.SGD(lr=client_lr), "server": server or servers.FedAvg(), "exchange": kept}


def scaffold(client_lr: float = 0.1, server_lr: float = 1.0) -> Settings:
    """SCAFFOLD, option II: control variates correct the clients' drift."""
    client, server = clients.SGD(lr=client_lr), servers.FedAvg(lr=server_lr)
    return {"client": client, "server": server, "exchange": exchange.ControlVariates()}


def delta_sgd(same_batch: bool = False, server: Server | None = None) -> Settings:
    """DSGD's Delta-SGD: clients find their step sizes; `same_batch` is the authors' code."""
    return {
        "client": clients.DeltaSGD(same_batch=same_batch),
        "server": server or servers.FedAvg(),
        "weights": "uniform",
    }


_JOINT_SERVERS = {"adagrad": servers.FedAdagrad, "adam": servers.FedAdam}
_JOINT_CLIENTS = {"adagrad": clients.AdaGrad, "adam": clients.Adam}


def fedada2(
    server: str = "adagrad",
    client: str = "adagrad",
    sm3: bool = True,
    transmit: bool = False,
    *,
    client_lr: float,
    server_lr: float,
    eps: float = 1e-8,
    tau: float = 1e-3,
    delay: int = 1,
) -> Settings:
    """FedAda2 and its relatives: `server` and `client` each "adagrad" or "adam", the client's second moments per
    coordinate or compressed (`sm3`), starting at zero or from the server's (`transmit`, direct joint adaptivity).

    Statistics are refreshed every `delay` local steps. The server squares the raw mean delta, clients count alike.
    """
    for name, value, known in (("server", server, _JOINT_SERVERS), ("client", client, _JOINT_CLIENTS)):
        if value not in known:
            raise ValueError(f"{name}: must be {' or '.join(map(repr, known))}, got {value!r}")
    for name, flag in (("sm3", sm3), ("transmit", transmit)):
        if not isinstance(flag, bool):
            raise ValueError(f"{name}: must be True or False, got {flag!r}")
    local: Client
    if sm3:
        local = clients.SM3(lr=client_lr, eps=eps, delay=delay, form=client)
    else:
        local = _JOINT_CLIENTS[client](lr=client_lr, eps=eps, delay=delay)
    return {
        "client": local,
        "server": _JOINT_SERVERS[server](lr=server_lr, tau=tau, second_moment_of="delta"),
        "exchange": exchange.Preconditioner() if transmit else None,
        "weights": "uniform",
    }
