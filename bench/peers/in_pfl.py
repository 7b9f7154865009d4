"""pfl in `bench peers`: its FederatedAveraging on its SimulatedBackend, in one process or `chunk` of one core each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDatasetBase
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from . import torch_tasks
from .serving import Task, serve


class _Losing(nn.Module):
    """A module with what pfl asks of one."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.module, self.measured = torch_tasks.module(task), torch_tasks.loss(task)

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return self.measured(self.module(inputs), targets)

    def metrics(self, inputs: Tensor, targets: Tensor) -> dict[str, Any]:
        return {}  # nothing is evaluated


class _Cohort(FederatedDatasetBase):
    """Every client once; of several processes, each has its share of them."""

    def __init__(self, task: Task, steps: int | None) -> None:
        super().__init__()
        self.task, self.steps = task, steps

    def get_cohort(self, cohort_size: int) -> Iterator[tuple[Dataset, int]]:
        processes = pytorch_ops.distributed
        for client in range(processes.global_rank, cohort_size, processes.world_size):
            yield self._user(client), client

    def __next__(self) -> tuple[Dataset, int]:
        return self._user(0), 0

    def _user(self, client: int) -> Dataset:
        return Dataset(torch_tasks.visited(self.task, client, self.steps), user_id=str(client))


class InPfl:
    """An SGD step of 1 along the mean is averaging. Clients are weighted alike: they have as many examples."""

    def __init__(self, task: Task) -> None:
        torch.set_num_threads(max(1, task.threads // task.chunk))
        self.task = task

    def begin(self, steps: int | None) -> None:
        self.losing = _Losing(self.task)
        central = torch.optim.SGD(torch_tasks.trained(self.losing.module), lr=1.0)
        self.state = PyTorchModel(self.losing, torch.optim.SGD, central)
        cohort = _Cohort(self.task, steps)
        self.backend = SimulatedBackend(training_data=cohort, val_data=cohort)

    def run(self, rounds: int) -> None:
        told = self.task.told
        algorithm: Any = FederatedAveraging()
        algorithm.run(
            NNAlgorithmParams(
                central_num_iterations=rounds,
                evaluation_frequency=rounds + 1,
                train_cohort_size=self.task.clients,
                val_cohort_size=0,
            ),
            self.backend,
            self.state,
            NNTrainHyperParams(
                local_num_epochs=1, local_learning_rate=told["lr"], local_batch_size=int(told["batch"])
            ),
            send_metrics_to_platform=False,
        )  # fmt: skip

    def model(self) -> Sequence[np.ndarray]:
        return torch_tasks.taken(self.losing.module)


if __name__ == "__main__":
    serve(InPfl, {"pfl": version("pfl"), "torch": torch.__version__})
