"""pfl on a whole task: its FederatedAveraging on its SimulatedBackend, users weighted by their examples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDatasetBase
from pfl.hyperparam import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from .whole import Visit, WholeTask, reach
from .whole_plain import accuracy, mlp, sides


class _Losing(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.module(inputs), targets)

    def metrics(self, inputs: Tensor, targets: Tensor) -> dict[str, Any]:
        return {}


class _User(Dataset):
    """A user whose batches are given."""

    def __init__(self, inputs: Tensor, targets: Tensor, visit: Visit) -> None:
        super().__init__((inputs, targets))
        self.visit = visit

    def __len__(self) -> int:
        return self.visit.examples

    def iter(self, batch_size: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        for rows in map(torch.from_numpy, self.visit.batches):
            yield self.raw_data[0][rows], self.raw_data[1][rows]


class _Cohort(FederatedDatasetBase):
    """The visits of the round at hand."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        super().__init__()
        self.sides = inputs, targets
        self.visits: list[Visit] = []

    def get_cohort(self, cohort_size: int) -> Iterator[tuple[Dataset, int]]:
        for place, visit in enumerate(self.visits):
            yield _User(*self.sides, visit), place

    def __next__(self) -> tuple[Dataset, int]:
        return _User(*self.sides, self.visits[0]), 0


class PflLearner:
    """A run of one central iteration per round; an SGD step of 1 along the mean is averaging."""

    def __init__(self, task: WholeTask) -> None:
        torch.set_num_threads(task.threads)
        self.told, self.module, self.test = task.told, mlp(task), sides(task, "test_")
        self.cohort = _Cohort(*sides(task))
        central = torch.optim.SGD(self.module.parameters(), lr=1.0)
        self.model = PyTorchModel(_Losing(self.module), torch.optim.SGD, central)
        weighting: Any = WeightByDatapoints()
        self.backend = SimulatedBackend(self.cohort, self.cohort, postprocessors=[weighting])

    def learn(self, visits: Sequence[Visit]) -> None:
        self.cohort.visits = list(visits)
        algorithm: Any = FederatedAveraging()
        once = NNAlgorithmParams(
            central_num_iterations=1, evaluation_frequency=2, train_cohort_size=len(visits), val_cohort_size=0
        )  # fmt: skip
        local = NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=self.told["lr"], local_batch_size=int(self.told["batch"])
        )  # fmt: skip
        algorithm.run(once, self.backend, self.model, local, send_metrics_to_platform=False)

    def accuracy(self) -> float:
        return accuracy(self.module, self.test)


if __name__ == "__main__":
    reach(PflLearner)
