"""Shakespeare by speaking role: AFO's character model (820,522 parameters) on natural clients.

10 roles a round, one local epoch, batches of 4 sequences of 80 characters.

    python experiments/shakespeare.py ../shared/data/shakespeare_roles
"""

from __future__ import annotations

from common import Setting, experiment

import fastfed as ff

METHODS = {
    "FedAvg": ff.methods.fedavg(1.0),
    "FedAdam": ff.methods.fedadam(1.0, 0.01),
}


def make(root: str) -> Setting:
    """The plays of a directory, roles with 50 lines or more."""
    fed = ff.data.natural(ff.data.shakespeare_plays(root))
    return Setting(fed, ff.models.shakespeare_lstm, cohort=10, epochs=1, batch_size=4)


if __name__ == "__main__":
    experiment(__doc__, make, METHODS, rounds=30, metric="test_loss")
