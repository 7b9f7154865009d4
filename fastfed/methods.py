"""Named methods: keyword arguments for ``ff.Simulation``, as in ``Simulation(model, fed, cohort=10, **scaffold())``.

Papers, as in the documentation: AFO = "Adaptive Federated Optimization", FedAda2 = "Efficient Adaptive Federated
Optimization", DSGD = "Adaptive Federated Learning with Auto-Tuned Clients", FATHOM = "Federated Hypergradient Descent",
CC = "Client-Centric Federated Adaptive Optimization". FedExP, FedNova, FedDyn, FedLion and Ditto are papers of these
names, whose algorithms are in Python (``ff.algorithms``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from torch import nn

from . import algorithms, clients, compression, exchange, servers, timing, tune
from .clients import BiasCorrection, Client
from .fleet import Fleet
from .packing import Packing
from .plan.availability import Availability
from .plan.shares import Shares
from .record import costs
from .servers import Server

Settings = dict[str, Any]


@dataclass(frozen=True)
class Of:
    """What an argument of a method becomes: a field of the `setting` that the method makes, `field` if it has another
    name there. Of the setting "run" it becomes an argument of the simulation itself.

    A file gives the argument in that setting's table. `client_lr`, `server_lr` and the rules `client` and `server` need
    none of this: their names say it. What has no `Of` is the method's own.
    """

    setting: Literal["client", "server", "exchange", "tuner", "timing", "run"]
    field: str | None = None


Tau = Annotated[float, Of("server")]


def fedavg(client_lr: float, server_lr: float = 1.0) -> Settings:
    """AFO's FedAvg: SGD on clients, the model moves along the mean delta."""
    return {"client": clients.SGD(lr=client_lr), "server": servers.FedAvg(lr=server_lr)}


def fedavgm(client_lr: float, server_lr: float = 1.0, momentum: Annotated[float, Of("server")] = 0.9) -> Settings:
    """AFO's FedAvgM: momentum on the server."""
    return {"client": clients.SGD(lr=client_lr), "server": servers.FedAvgM(lr=server_lr, momentum=momentum)}


def fedadagrad(client_lr: float, server_lr: float, tau: Tau = 1e-3) -> Settings:
    """AFO's FedAdagrad: AdaGrad on the server, without a first moment."""
    return {"client": clients.SGD(lr=client_lr), "server": servers.FedAdagrad(lr=server_lr, tau=tau)}


def fedadam(client_lr: float, server_lr: float, tau: Tau = 1e-3) -> Settings:
    """AFO's FedAdam: Adam on the server."""
    return {"client": clients.SGD(lr=client_lr), "server": servers.FedAdam(lr=server_lr, tau=tau)}


def fedyogi(client_lr: float, server_lr: float, tau: Tau = 1e-3) -> Settings:
    """AFO's FedYogi: Yogi on the server."""
    return {"client": clients.SGD(lr=client_lr), "server": servers.FedYogi(lr=server_lr, tau=tau)}


def fedams(client_lr: float, server_lr: float, tau: Tau = 1e-3) -> Settings:
    """FedAMS: Adam on the server over the largest second moment so far."""
    return {"client": clients.SGD(lr=client_lr), "server": servers.FedAMS(lr=server_lr, tau=tau)}


def fedprox(client_lr: float, mu: Annotated[float, Of("client", "prox")], server: Server | None = None) -> Settings:
    """FedProx: clients are pulled towards the model they started from, by `mu`."""
    return {"client": clients.SGD(lr=client_lr, prox=mu), "server": server or servers.FedAvg()}


def moon(
    client_lr: float,
    mu: Annotated[float, Of("exchange")] = 1.0,
    temperature: Annotated[float, Of("exchange")] = 0.5,
    head: Annotated[str | None, Of("exchange")] = None,
    server: Server | None = None,
) -> Settings:
    """MOON: a term of weight `mu` in the loss draws a client's features, which go into the layer `head` (None: the last
    nn.Linear), to those of the model it started from and away from those of its own last one."""
    kept = exchange.PreviousModels(mu, temperature, head)
    return {"client": clients.SGD(lr=client_lr), "server": server or servers.FedAvg(), "exchange": kept}


def scaffold(client_lr: float = 0.1, server_lr: float = 1.0) -> Settings:
    """SCAFFOLD, option II: control variates correct the clients' drift."""
    client, server = clients.SGD(lr=client_lr), servers.FedAvg(lr=server_lr)
    return {"client": client, "server": server, "exchange": exchange.ControlVariates()}


def delta_sgd(same_batch: Annotated[bool, Of("client")] = False, server: Server | None = None) -> Settings:
    """DSGD's Delta-SGD: clients find their step sizes; `same_batch` is the authors' code."""
    return {
        "client": clients.DeltaSGD(same_batch=same_batch),
        "server": server or servers.FedAvg(),
        "weights": "uniform",
    }


_JOINT_SERVERS: dict[str, Callable[..., Server]] = {
    "adagrad": servers.FedAdagrad,
    "adam": partial(servers.FedAdam, beta2=0.999),
}
_JOINT_CLIENTS = ("adagrad", "adam")


def fedada2(
    server: str = "adagrad",
    client: str = "adagrad",
    sm3: bool = True,
    transmit: bool = False,
    *,
    client_lr: float,
    server_lr: float,
    eps: Annotated[float, Of("client")] = 1e-8,
    tau: Tau = 1e-3,
    delay: Annotated[int, Of("client")] = 1,
    beta1: Annotated[float | None, Of("server")] = None,
    bias_correction: Annotated[BiasCorrection, Of("client")] = None,
) -> Settings:
    """FedAda2 and its relatives: `server` and `client` each "adagrad" or "adam", the client's second moments per
    coordinate or compressed (`sm3`), starting at zero or from the server's (`transmit`, direct joint adaptivity).

    Statistics are refreshed every `delay` local steps. The server squares the raw mean delta, clients count alike.
    Adam has beta2 0.999 on both sides; `beta1` is the server's, by default 0.9 of Adam and 0 of AdaGrad.
    `bias_correction` is that of clients with Adam (`ff.clients.Adam`): by default none where second moments are
    transmitted, as in the authors' code; the paper's own correction (its appendix E) would remove them.
    """
    for name, value, known in (("server", server, _JOINT_SERVERS), ("client", client, _JOINT_CLIENTS)):
        if value not in known:
            raise ValueError(f"{name}: must be {' or '.join(map(repr, known))}, got {value!r}")
    for name, flag in (("sm3", sm3), ("transmit", transmit)):
        if not isinstance(flag, bool):
            raise ValueError(f"{name}: must be True or False, got {flag!r}")
    if bias_correction is not None and client != "adam":
        raise ValueError(f"bias_correction: only client 'adam' has moments to correct, got {client!r}")
    local: Client
    if sm3:
        local = clients.SM3(lr=client_lr, eps=eps, delay=delay, form=client, bias_correction=bias_correction)
    elif client == "adam":
        local = clients.Adam(lr=client_lr, eps=eps, delay=delay, bias_correction=bias_correction)
    else:
        local = clients.AdaGrad(lr=client_lr, eps=eps, delay=delay)
    own = {} if beta1 is None else {"beta1": beta1}
    return {
        "client": local,
        "server": _JOINT_SERVERS[server](lr=server_lr, tau=tau, second_moment_of="delta", **own),
        "exchange": exchange.Preconditioner() if transmit else None,
        "weights": "uniform",
    }


def fathom(
    client_lr: float,
    epochs: Annotated[float, Of("run")] = 1,
    batch_size: Annotated[int, Of("run")] = 20,
    gamma_lr: Annotated[float, Of("tuner")] = 0.01,
    gamma_epochs: Annotated[float, Of("tuner")] = 0.01,
    gamma_batch: Annotated[float, Of("tuner")] = 0.1,
    alpha: Annotated[float, Of("tuner")] = 0.5,
    counting: Annotated[Literal["floor", "ceil"] | None, Of("tuner")] = None,
    max_lr: Annotated[float | None, Of("tuner")] = None,
    max_epochs: Annotated[float | None, Of("tuner")] = None,
    max_batch: Annotated[float | None, Of("tuner")] = None,
    cosine: Annotated[Literal["before", "after"] | None, Of("tuner")] = None,
    form: Annotated[Literal["authors", "paper"], Of("tuner")] = "authors",
) -> Settings:
    """FATHOM: FedAvg whose learning rate, epochs and batch size start here and follow hypergradients.

    By default as the authors' code, from which the published table comes; `form` "paper" is the listing of the paper
    to the letter. `counting` (steps rounded "ceil" or "floor") and `cosine` (taken "after" the step or "before" it)
    are the form's if they are None. The authors have bounds, too: 0.5 (EMNIST) or 1.0 (Stack Overflow), 10 and 5096.
    """
    bounds = (max_lr, max_epochs, max_batch)
    tuner = tune.Fathom(gamma_lr, gamma_epochs, gamma_batch, alpha, counting, *bounds, cosine, form)
    return {**fedavg(client_lr), "epochs": epochs, "batch_size": batch_size, "tuner": tuner}


_CENTRIC_SERVERS: dict[str, Callable[..., Server]] = {
    "sgd": servers.FedAvg,
    "adagrad": partial(servers.FedAdagrad, beta1=0.9, second_moment_of="delta"),
    "adam": partial(servers.FedAdam, second_moment_of="delta"),
    "ams": servers.FedAMS,
}


def client_centric(
    server: Server | str = "ams",
    *,
    client_lr: float,
    server_lr: float | None = None,
    buffer: Annotated[int, Of("timing")] = 5,
    max_delay: Annotated[int, Of("timing")] = 5,
    epochs: Annotated[float | None, Of("timing")] = 3,
    randomness: Annotated[float | None, Of("timing")] = 2,
    epochs_per: Annotated[Literal["client", "round"], Of("timing")] = "client",
    shares: Annotated[Shares, Of("timing")] = None,
    availability: Annotated[Availability, Of("timing")] = None,
    replacement: Annotated[bool, Of("timing")] = False,
    divide_by_epochs: Annotated[bool, Of("run")] = False,
) -> Settings:
    """CC: normalised deltas of clients that started from one of the newest `max_delay` + 1 models and trained for 1 to
    `epochs` * `randomness` epochs (``ff.timing.ClientCentric``); the server steps after every `buffer` of them.

    Deltas are divided by the clients' steps, as in the paper's listing, or with `divide_by_epochs` by their epochs.

    `server` is "sgd" (CC-FedSGD; with `server_lr` 1 CC-FedAvg), "adagrad", "adam" or "ams", with the paper's betas 0.9
    and 0.99 and the learning rate `server_lr`; or an optimizer of ``ff.servers`` as it is.
    """
    if isinstance(server, str):
        if server not in _CENTRIC_SERVERS:
            raise ValueError(f"server: must be one of {', '.join(_CENTRIC_SERVERS)}, or a Server, got {server!r}")
        if server_lr is None:
            raise ValueError(f"server_lr: must be given with server {server!r}")
        server = _CENTRIC_SERVERS[server](lr=server_lr)
    elif server_lr is not None:
        raise ValueError(f"server_lr: would be ignored, as {type(server).__name__} has its own")
    return {
        "client": clients.SGD(lr=client_lr),
        "server": server,
        "weights": "uniform",
        "divide_by_steps": not divide_by_epochs,
        "divide_by_epochs": divide_by_epochs,
        "timing": timing.ClientCentric(
            buffer, max_delay, epochs, randomness, epochs_per, shares, availability, replacement
        ),
    }


def fedbuff(
    client_lr: float,
    concurrency: Annotated[int, Of("timing")],
    buffer: Annotated[int, Of("timing")] = 10,
    server: Server | None = None,
    staleness: Annotated[float, Of("timing")] = 0.0,
    max_age: Annotated[int | None, Of("timing")] = None,
    fleet: Annotated[Fleet | None, Of("timing")] = None,
    epochs: Annotated[float | None, Of("timing")] = None,
    randomness: Annotated[float | None, Of("timing")] = None,
) -> Settings:
    """FedBuff: `concurrency` clients train at any time, the server steps after every `buffer` updates. An update counts
    (1 + age) ** -`staleness`; one older than `max_age` is refused. `fleet`: how long clients take; with `epochs` and
    `randomness` each draws how many epochs it trains, 1 to their product."""
    return {
        "client": clients.SGD(lr=client_lr),
        "server": server or servers.FedAvg(),
        "weights": "uniform",
        "timing": timing.EventDriven(
            concurrency, buffer, staleness, max_age, fleet or Fleet(), epochs=epochs, randomness=randomness
        ),
    }


def fedasync(
    client_lr: float,
    concurrency: Annotated[int, Of("timing")],
    server: Server | None = None,
    staleness: Annotated[float, Of("timing")] = 0.0,
    max_age: Annotated[int | None, Of("timing")] = None,
    fleet: Annotated[Fleet | None, Of("timing")] = None,
    epochs: Annotated[float | None, Of("timing")] = None,
    randomness: Annotated[float | None, Of("timing")] = None,
) -> Settings:
    """FedAsync: FedBuff with a buffer of one. The server moves along the client's own delta, by its learning rate."""
    return fedbuff(client_lr, concurrency, 1, server, staleness, max_age, fleet, epochs, randomness)


def fedexp(client_lr: float, eps: Annotated[float, Of("server")] = 1e-3) -> Settings:
    """FedExP: the server steps further where the clients' deltas cancel each other."""
    return {"client": clients.SGD(lr=client_lr), "server": algorithms.FedExP(eps=eps)}


def fednova(client_lr: float, server_lr: float = 1.0, momentum: Annotated[float, Of("client")] = 0.0) -> Settings:
    """FedNova: deltas are divided by how many gradients are in them, and the mean multiplied by the mean of that."""
    client = clients.Momentum(lr=client_lr, momentum=momentum)
    return {"client": client, "server": algorithms.FedNova(lr=server_lr)}


def feddyn(client_lr: float, alpha: Annotated[float, Of("client")] = 0.1) -> Settings:
    """FedDyn: clients keep a linear term of their loss, of weight `alpha`, which makes their minima agree."""
    client, server = algorithms.FedDyn(lr=client_lr, alpha=alpha), algorithms.FedDynServer()
    return {"client": client, "server": server, "weights": "uniform"}


def fedlion(
    client_lr: float,
    server_lr: float = 1.0,
    beta1: Annotated[float, Of("client")] = 0.9,
    beta2: Annotated[float, Of("client")] = 0.99,
) -> Settings:
    """FedLion: Lion on clients, which begin with the mean of the momenta that the last ones sent."""
    client = algorithms.FedLion(lr=client_lr, beta1=beta1, beta2=beta2)
    return {"client": client, "server": servers.FedAvg(lr=server_lr), "weights": "uniform"}


def ditto(client_lr: float, lam: Annotated[float, Of("client")] = 0.1, server: Server | None = None) -> Settings:
    """Ditto: every client keeps a model of its own, drawn to the global one by `lam`; the global one is FedAvg's."""
    return {"client": algorithms.Ditto(lr=client_lr, lam=lam), "server": server or servers.FedAvg()}


# ---- what they cost -------------------------------------------------------------------------------------------------


def _examples() -> dict[str, Settings]:
    """Every method by its name; the learning rates here cost nothing."""
    lr = 0.1
    joint = partial(fedada2, client_lr=lr, server_lr=lr)
    return {
        "FedAvg": fedavg(lr),
        "FedAvgM": fedavgm(lr),
        "FedAdagrad": fedadagrad(lr, lr),
        "FedAdam": fedadam(lr, lr),
        "FedYogi": fedyogi(lr, lr),
        "FedAMS": fedams(lr, lr),
        "FedProx": fedprox(lr, 0.01),
        "MOON": moon(lr),
        "SCAFFOLD": scaffold(),
        "Delta-SGD": delta_sgd(),
        "FATHOM": fathom(lr),
        "CC-FedAvg": client_centric("sgd", client_lr=lr, server_lr=1.0),
        "CC-FedSGD": client_centric("sgd", client_lr=lr, server_lr=lr),
        "CC-FedAdagrad": client_centric("adagrad", client_lr=lr, server_lr=lr),
        "CC-FedAdam": client_centric("adam", client_lr=lr, server_lr=lr),
        "CC-FedAMS": client_centric("ams", client_lr=lr, server_lr=lr),
        "FedBuff": fedbuff(lr, 10),
        "FedAsync": fedasync(lr, 10),
        "FedExP": fedexp(lr),
        "FedNova": fednova(lr),
        "FedDyn": feddyn(lr),
        "FedLion": fedlion(lr),
        "Ditto": ditto(lr),
        "joint AdaGrad, nothing transmitted": joint(sm3=False),
        "joint Adam, nothing transmitted": joint("adam", "adam", sm3=False),
        "DJA, AdaGrad": joint(sm3=False, transmit=True),
        "DJA, Adam": joint("adam", "adam", sm3=False, transmit=True),
        "FedAda2, SM3-AdaGrad": joint(),
        "FedAda2, SM3-Adam": joint("adam", "adam"),
        "DJA, SM3-AdaGrad": joint(transmit=True),
        "DJA, SM3-Adam": joint("adam", "adam", transmit=True),
        "FedAvg, top 1% of the delta": {**fedavg(lr), "compression": compression.TopK(fraction=0.01)},
        "FedAvg, signs": {**fedavg(lr), "compression": compression.Sign()},
        "FedAvg, 8 bits": {**fedavg(lr), "compression": compression.Int8()},
    }


def table(model: nn.Module) -> costs.CostTable:
    """What a round of every method costs a client of this model, as FedAda2's Table 2: bytes down and up, and the
    memory of its optimizer beyond model and gradient. Printed, a table, in which each is also told in vectors of the
    model's size d."""
    packing = Packing.of(model)
    return costs.CostTable((costs.of(name, settings, packing) for name, settings in _examples().items()), packing)
