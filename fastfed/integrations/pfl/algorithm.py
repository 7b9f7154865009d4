"""pfl's federated averaging with the local training of FastFed's executors."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ...clients import SGD, Client
from ...data import Examples
from ...losses import Loss
from ...packing import Packing
from ...train import DeltaPolicy, Outcome, RoundWork
from ...train.executors import Executor, make
from .host import FederatedAveraging, MappedVectorStatistics, MetricName, Metrics, Weighted


class NativeAveraging(FederatedAveraging):
    """``pfl.algorithm.FederatedAveraging`` whose users train in FastFed's engine.

    A user's data are (inputs, targets), arrays or tensors, in a form of ``ff.data.Examples``; `loss` is what the model
    has as its method `loss`: a name of FastFed's, or a function of outputs and targets, which runs on `eager`. `client`
    is an optimizer of ``ff.clients`` (default: SGD), whose learning rate and clipping are those of pfl's
    ``NNTrainHyperParams``, as are epochs, steps and batch size. `executor`, `threads`: as of ``ff.Simulation``. `seed`
    and a user's id key the order of its examples, which is another one in every epoch, where pfl's own is as stored.
    """

    def __init__(
        self,
        *,
        loss: Loss = "cross_entropy",
        client: Client | None = None,
        executor: str = "auto",
        threads: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self._client = SGD(lr=0.1) if client is None else client
        if not isinstance(self._client, Client) or not self._client.takes_lr:
            raise ValueError(f"client: must be an optimizer of fastfed.clients with a learning rate, got {client!r}")
        self._loss, self._name, self._threads, self._seed = loss, executor, threads, seed
        self._made: tuple[nn.Module, Executor, Packing] | None = None

    def train_one_user(
        self, initial_model_state: Any, model: Any, user_dataset: Any, central_context: Any
    ) -> tuple[Any, Any]:
        """Trains one user: what the model changed by, and the loss on the way. The model becomes the user's own, as
        pfl has it, where it is going to be evaluated."""
        examples = _examples(user_dataset)
        executor, packing = self._executor(model.pytorch_model, examples)
        params, round = central_context.model_train_params, central_context.current_central_iteration
        start = packing.pack({slot.name: initial_model_state[slot.name] for slot in packing.slots})
        outcome = executor.run(self._work(start, examples, _id_of(user_dataset), params, round))
        moved = packing.views(outcome.delta)
        if central_context.do_evaluation:
            packing.unpack(start + outcome.delta, model.pytorch_model)
        statistics = MappedVectorStatistics({slot.name: moved[slot.name] for slot in packing.slots})
        return statistics, _metrics(outcome, central_context.population)

    def _executor(self, module: nn.Module, examples: Examples) -> tuple[Executor, Packing]:
        """The executor of a module, made when its first user comes."""
        if self._made is None or self._made[0] is not module:
            executor = make(self._name, module, self._loss, examples, threads=self._threads)
            self._made = (module, executor, Packing.of(module))
        return self._made[1], self._made[2]

    def _work(self, start: Tensor, examples: Examples, id: int, params: Any, round: int) -> RoundWork:
        n = len(examples)
        batch_size = params.get("local_batch_size") or max(n, 1)
        batches, asked = -(-n // batch_size), params.get("local_num_steps")
        steps = min(asked, batches) if asked is not None else params.get("local_num_epochs") * batches
        client = replace(self._client, clip=params.get("local_max_grad_norm"))
        return RoundWork(
            start=start,
            rows=torch.arange(n),
            offsets=torch.tensor([0, n]),
            ids=torch.tensor([id]),
            steps=torch.tensor([steps]),
            batch_size=batch_size,
            optimizers=(client,),
            seed=self._seed,
            round=round,
            lr=torch.tensor([params.get("local_learning_rate")], dtype=torch.float64),
            policy=DeltaPolicy(torch.ones(1, dtype=torch.float64)),
            examples=examples,
        )


def _metrics(outcome: Outcome, population: Any) -> Any:
    """The loss of a user's batches, as pfl adds metrics up: over how many users."""
    loss, metrics = float(outcome.scalars["mean_loss"][0]), Metrics()
    if loss == loss:  # a user without examples has none
        metrics[MetricName("local training loss", population)] = Weighted(loss, 1.0)
    return metrics


def _examples(user_dataset: Any) -> Examples:
    data = user_dataset.raw_data
    if len(data) != 2:
        raise ValueError(f"user_dataset: must be (inputs, targets), got {len(data)} arrays")
    inputs, targets = (torch.as_tensor(each).contiguous() for each in data)
    return Examples(_known(inputs), _known(targets))


def _known(numbers: Tensor) -> Tensor:
    """In a type that stores of examples have."""
    return numbers.float() if numbers.is_floating_point() else numbers.long()


def _id_of(user_dataset: Any) -> int:
    """What keys a user's randomness: its id, if that is a number, else 63 bits of it."""
    id = user_dataset.user_id
    if isinstance(id, int) and 0 <= id < 1 << 63:
        return id
    digest = hashlib.blake2b(repr(id).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
