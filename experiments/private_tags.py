"""Tags of Stack Exchange questions under differential privacy: FedAda2 and its relatives, by round and by bits.

A tenth of the posters a round (Poisson sampling), noise multiplier 1, deltas clipped to norm 0.5, delta = 0.0025, 500
rounds, as in FedAda2's experiments: epsilon 13.12. The 2,000 most frequent words and 100 most frequent tags (the noise
grows with the parameters, and there are few posters), three local epochs, batches of 100.

    python experiments/private_tags.py ../shared/data/stackexchange
"""

from __future__ import annotations

from typing import Any

from common import Setting, experiment

import fastfed as ff

RATE = 0.1
PRIVACY = ff.privacy.Privacy(clip=0.5, noise=1.0, delta=0.0025)


def private(settings: dict[str, Any]) -> dict[str, Any]:
    """A method under differential privacy."""
    return {**settings, "weights": "uniform", "privacy": PRIVACY}


# The best of client rates 0.3 and 3 (1,000 for SGD), server rates 0.3 to 10, tau 0.001 and 0.1, 40 rounds each.
JOINT = {"client_lr": 0.3, "server_lr": 3.0, "eps": 1e-5, "tau": 0.1}
METHODS = {
    "FedAvg": private(ff.methods.fedavg(1e3)),
    "FedAdagrad": private(ff.methods.fedadagrad(1e3, 1.0, tau=0.1)),
    "DJA": private(ff.methods.fedada2(sm3=False, transmit=True, **(JOINT | {"client_lr": 3.0}))),
    "joint, nothing transmitted": private(ff.methods.fedada2(sm3=False, **JOINT)),
    "FedAda2": private(ff.methods.fedada2(**JOINT)),
}


def make(root: str) -> Setting:
    """The questions of every site in a directory."""
    data = ff.data.stack_exchange(root, words=2000, tags=100)
    model = lambda: ff.models.stack_overflow_lr(2000, 100)  # noqa: E731
    return Setting(ff.data.natural(data), model, ff.plan.Poisson(RATE), 3, 100, "binary_cross_entropy")


if __name__ == "__main__":
    experiment(__doc__, make, METHODS, rounds=500, metric="test_recall_at_5", by=("round", "bits"))
