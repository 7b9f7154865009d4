"""Tags of Stack Exchange questions under differential privacy: FedAda2 and its relatives, by round and by bits.

A tenth of the posters a round (Poisson sampling), noise multiplier 1, deltas clipped to norm 0.5, delta = 0.0025, as in
FedAda2's experiments, 500 rounds: epsilon 13.12. One local epoch, batches of 100.

    python experiments/private_tags.py ../shared/data/stackexchange
"""

from __future__ import annotations

from typing import Any

import stack_exchange
from common import Setting, experiment

import fastfed as ff

RATE = 0.1
PRIVACY = ff.privacy.Privacy(clip=0.5, noise=1.0, delta=0.0025)


def private(settings: dict[str, Any]) -> dict[str, Any]:
    """A method under differential privacy."""
    return {**settings, "weights": "uniform", "privacy": PRIVACY}


METHODS = {
    "FedAvg": private(ff.methods.fedavg(1e3)),
    "FedAdagrad": private(ff.methods.fedadagrad(1e3, 0.1)),
    "DJA": private(ff.methods.fedada2(sm3=False, transmit=True, client_lr=0.1, server_lr=0.1)),
    "joint, nothing transmitted": private(ff.methods.fedada2(sm3=False, client_lr=0.1, server_lr=0.1)),
    "FedAda2": private(ff.methods.fedada2(client_lr=0.1, server_lr=0.1)),
}


def make(root: str) -> Setting:
    """The questions of every site in a directory."""
    plain = stack_exchange.make(root)
    return Setting(plain.fed, plain.model, ff.plan.Poisson(RATE), plain.epochs, plain.batch_size, plain.loss)


if __name__ == "__main__":
    experiment(__doc__, make, METHODS, rounds=500, metric="test_recall_at_5", by=("round", "bits"))
