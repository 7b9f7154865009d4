"""The named asynchronous and tuned methods: every setting and default, spelled out once more."""

from __future__ import annotations

from typing import Any

import pytest

import fastfed as ff

SGD = ff.clients.SGD(lr=0.2)
AVERAGING = ff.servers.FedAvg(lr=1.0)
FLEET = ff.fleet.Fleet(step_seconds=2.0)
CC_SERVERS = {
    "sgd": ff.servers.FedAvg(lr=0.3),
    "adagrad": ff.servers.FedAdagrad(lr=0.3, beta1=0.9, tau=1e-3, second_moment_of="delta"),
    "adam": ff.servers.FedAdam(lr=0.3, beta1=0.9, beta2=0.99, tau=1e-3, second_moment_of="delta"),
    "ams": ff.servers.FedAMS(lr=0.3, beta1=0.9, beta2=0.99, tau=1e-3, second_moment_of="delta"),
}
CENTRIC = ff.timing.ClientCentric(buffer=5, max_delay=5, epochs=3, randomness=2)


@pytest.mark.parametrize("server", CC_SERVERS)
def test_client_centric(server: str) -> None:
    common: dict[str, Any] = {"client": SGD, "weights": "uniform", "divide_by_steps": True, "divide_by_epochs": False}
    wanted = {**common, "server": CC_SERVERS[server], "timing": CENTRIC}
    assert ff.methods.client_centric(server, client_lr=0.2, server_lr=0.3) == wanted
    given = ff.methods.client_centric(
        CC_SERVERS[server], client_lr=0.2, buffer=3, max_delay=2, epochs=4, randomness=0.5
    )
    assert given == {**wanted, "timing": ff.timing.ClientCentric(buffer=3, max_delay=2, epochs=4, randomness=0.5)}


def test_the_default_of_client_centric_is_ams_by_the_papers_settings() -> None:
    assert ff.methods.client_centric(client_lr=0.2, server_lr=0.3)["server"] == CC_SERVERS["ams"]
    assert ff.timing.ClientCentric() == CENTRIC


def test_fedbuff() -> None:
    timing = ff.timing.EventDriven(concurrency=4, buffer=10, staleness=0.0, max_age=None, fleet=ff.fleet.Fleet())
    common = {"client": SGD, "server": AVERAGING, "weights": "uniform"}
    assert ff.methods.fedbuff(0.2, 4) == {**common, "timing": timing}
    adam = ff.servers.FedAdam(lr=0.1)
    told = ff.timing.EventDriven(concurrency=4, buffer=2, staleness=0.5, max_age=3, fleet=FLEET)
    assert ff.methods.fedbuff(0.2, 4, 2, adam, 0.5, 3, FLEET) == {**common, "server": adam, "timing": told}


def test_fedasync() -> None:
    timing = ff.timing.EventDriven(concurrency=4, buffer=1, staleness=0.0, max_age=None, fleet=ff.fleet.Fleet())
    common = {"client": SGD, "server": AVERAGING, "weights": "uniform"}
    assert ff.methods.fedasync(0.2, 4) == {**common, "timing": timing}
    told = ff.timing.EventDriven(concurrency=4, buffer=1, staleness=0.5, max_age=3, fleet=FLEET)
    half = ff.servers.FedAvg(lr=0.5)
    assert ff.methods.fedasync(0.2, 4, half, 0.5, 3, FLEET) == {**common, "server": half, "timing": told}


def test_fathom() -> None:
    authors = ff.tune.Fathom(
        gamma_lr=0.01,
        gamma_epochs=0.01,
        gamma_batch=0.1,
        alpha=0.5,
        counting="ceil",
        max_lr=None,
        max_epochs=None,
        max_batch=None,
        cosine="after",
        form="authors",
    )
    common = {"client": SGD, "server": AVERAGING, "epochs": 1, "batch_size": 20}
    assert ff.methods.fathom(0.2) == {**common, "tuner": authors}
    assert ff.tune.Fathom() == authors
    paper = ff.tune.Fathom(counting="floor", cosine="before", form="paper")
    assert ff.methods.fathom(0.2, form="paper") == {**common, "tuner": paper}
    told = {"gamma_lr": 0.1, "gamma_epochs": 0.2, "gamma_batch": 0.3, "alpha": 0.4}
    others: dict[str, Any] = {
        "counting": "ceil",
        "max_lr": 0.5,
        "max_epochs": 10.0,
        "max_batch": 5096.0,
        "cosine": "after",
        "form": "paper",
    }
    wanted = {**common, "epochs": 3, "batch_size": 7, "tuner": ff.tune.Fathom(**told, **others)}
    assert ff.methods.fathom(0.2, 3, 7, **told, **others) == wanted
    with pytest.raises(ValueError, match="form: must be 'authors' or 'paper', got 'ours'"):
        ff.methods.fathom(0.2, form="ours")  # type: ignore[arg-type]


def test_moon() -> None:
    kept = ff.exchange.PreviousModels(mu=1.0, temperature=0.5, head=None)
    assert ff.methods.moon(0.2) == {"client": SGD, "server": AVERAGING, "exchange": kept}
    told = ff.exchange.PreviousModels(mu=5.0, temperature=0.1, head="fc")
    adam = ff.servers.FedAdam(lr=0.1)
    assert ff.methods.moon(0.2, 5.0, 0.1, "fc", adam) == {"client": SGD, "server": adam, "exchange": told}
