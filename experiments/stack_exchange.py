"""Tags of Stack Exchange questions by their posters: AFO's logistic regression over sparse bags of words.

10 posters a round, one local epoch, batches of 100.

    python experiments/stack_exchange.py ../shared/data/stackexchange
"""

from __future__ import annotations

from common import Setting, experiment

import fastfed as ff

METHODS = {
    "FedAvg": ff.methods.fedavg(100.0),
    "FedAdagrad": ff.methods.fedadagrad(100.0, 0.3),
    "FedAdam": ff.methods.fedadam(100.0, 0.03),
}


def make(root: str) -> Setting:
    """The questions of every site in a directory."""
    data = ff.data.stack_exchange(root)
    words, tags = data.train.inputs.width, data.train.targets.width
    model = lambda: ff.models.stack_overflow_lr(words, tags)  # noqa: E731
    return Setting(ff.data.natural(data), model, cohort=10, epochs=1, batch_size=100, loss="binary_cross_entropy")


if __name__ == "__main__":
    experiment(__doc__, make, METHODS, rounds=500, metric="test_recall_at_5")
