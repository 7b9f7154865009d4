"""Tags of Stack Exchange questions by their posters: AFO's logistic regression over sparse bags of words.

10 posters a round, one local epoch, batches of 100.

    python experiments/stack_exchange.py ../shared/data/stackexchange
"""

from __future__ import annotations

from common import Setting, experiment

import fastfed as ff

# The best of client rates 1e2 to 1e5 with server rates 0.3, 1, 3 (AdaGrad) and 0.03, 0.1, 0.3 (Adam), 300 rounds each.
METHODS = {
    "FedAvg": ff.methods.fedavg(1e3),
    "FedAdagrad": ff.methods.fedadagrad(1e4, 3.0),
    "FedAdam": ff.methods.fedadam(1e4, 0.3),
}


def make(root: str) -> Setting:
    """The questions of every site in a directory."""
    data = ff.data.stack_exchange(root)
    words, tags = data.train.inputs.width, data.train.targets.width
    model = lambda: ff.models.stack_overflow_lr(words, tags)  # noqa: E731
    return Setting(ff.data.natural(data), model, cohort=10, epochs=1, batch_size=100, loss="binary_cross_entropy")


if __name__ == "__main__":
    experiment(__doc__, make, METHODS, rounds=500, metric="test_recall_at_5")
