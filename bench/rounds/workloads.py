"""The workloads of `fastfed bench rounds` and `bench peers`: model, loss, data, cohort, what peers are given of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor, nn

from ... import models
from ...clients import SGD
from ...data import Examples
from ...losses import LossName
from ...train import RoundWork
from . import synthetic
from .rows import BATCHED

LEARNING_RATE = 0.1  # of the clients' SGD
SEED = 7  # of weights and batches


@dataclass(frozen=True)
class Peer:
    """What a peer runs: at most `clients` of the cohort, so many of them side by side as one of `chunks` says.

    With several `chunks`, each is timed and the fastest counts: how many clients fit a cache differs between machines.
    `module` replaces the workload's where people would write another one. A peer with `skipped` set does not run, for
    that reason.
    """

    clients: int = 1
    chunks: tuple[int, ...] = (1,)
    module: Callable[[], nn.Module] | None = None
    skipped: str = ""


@dataclass(frozen=True)
class Workload:
    """`epochs` of SGD on each of `clients` clients with `examples` examples, in batches of `batch`.

    `data(n)` makes n examples. `peers` are "plain", "vmap" (the cohort at once, as one writes it) and, where smaller
    chunks suit vmap better, "chunked vmap" with the best of them.
    """

    name: str
    words: str
    clients: int
    examples: int
    batch: int
    module: Callable[[], nn.Module]
    loss: LossName
    data: Callable[[int], Examples]
    peers: Mapping[str, Peer] = field(default_factory=dict)
    epochs: int = 1

    def peers_on(self, card: bool) -> Mapping[str, Peer]:
        """On a card also FastFed's own "batched", and vmap over cohorts that a host would take too long for."""
        if not card:
            return self.peers
        whole = Peer(self.clients, chunks=(self.clients,))
        found = {name: whole if peer.skipped == _TOO_SLOW else peer for name, peer in self.peers.items()}
        return {BATCHED: Peer(self.clients), **found}

    def scaled(self, scale: float) -> int:
        """How many clients the cohort has at this scale: at least one."""
        return max(1, round(scale * self.clients))

    def make_module(self) -> nn.Module:
        """The model, its weights from a fixed seed; torch's own random numbers go on as if nothing had happened."""
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(SEED)
            return self.module()

    def work(self, start: Tensor, clients: int, stored: int, steps: int | None = None) -> RoundWork:
        """A round of the first `clients` clients from `start` (d,), with so many local steps (default: all epochs).

        The data are those of `stored` clients; when there are more clients, they share them.
        """
        rows = torch.arange(clients * self.examples) % (stored * self.examples)
        return RoundWork(
            start=start,
            rows=rows,
            offsets=torch.arange(clients + 1) * self.examples,
            ids=torch.arange(clients),
            steps=torch.full((clients,), steps or self.epochs * -(-self.examples // self.batch)),
            batch_size=self.batch,
            optimizers=(SGD(lr=LEARNING_RATE),),
            seed=SEED,
        )


class TorchLSTM(nn.LSTM):
    """torch's fused LSTM as a layer that returns its outputs; its second bias is zero and stays so.

    Its parameters have the order and the shapes of ``models.LSTM``, so the two share packed vectors.
    """

    def __init__(self, input: int, hidden: int, layers: int) -> None:
        super().__init__(input, hidden, layers, batch_first=True)
        for layer in range(layers):
            bias: nn.Parameter = getattr(self, f"bias_hh_l{layer}")
            nn.init.zeros_(bias).requires_grad_(False)

    def forward(self, input: Tensor) -> Tensor:  # type: ignore[override]
        outputs: Tensor = super().forward(input)[0]
        return outputs


def _torch_shakespeare(vocabulary: int = 90) -> nn.Sequential:
    """``models.shakespeare_lstm`` around torch's own LSTM."""
    return nn.Sequential(nn.Embedding(vocabulary, 8), TorchLSTM(8, 256, 2), nn.Linear(256, vocabulary))


_TOO_SLOW = "the cohort at once takes longer than anybody would wait"

WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload(
            "W1", "softmax regression 784-10", 1000, 40, 20,
            models.softmax_regression, "cross_entropy", synthetic.digits,
            {
                "plain": Peer(1000), "vmap": Peer(1000, chunks=(1000,)),
                "chunked vmap": Peer(1000, chunks=(100, 250, 500)),
            },
        ),
        Workload(
            "W2", "MLP 784-200-200-10", 1000, 100, 20,
            partial(models.mlp, 784, 200, 200, 10), "cross_entropy", synthetic.digits,
            {"plain": Peer(200), "vmap": Peer(1000, chunks=(1000,)), "chunked vmap": Peer(200, chunks=(25, 50, 100))},
        ),
        Workload(
            "W3", "EMNIST CNN without dropout", 100, 100, 20,
            partial(models.emnist_cnn, dropout=False, dense_relu=True), "cross_entropy",
            partial(synthetic.pictures, channels=1, side=28, classes=62),
            {"plain": Peer(20), "vmap": Peer(skipped=_TOO_SLOW), "chunked vmap": Peer(6, chunks=(2, 6))},
        ),
        Workload(
            "LSTM", "Shakespeare LSTM, 80 characters", 10, 16, 4,
            models.shakespeare_lstm, "cross_entropy", partial(synthetic.text, length=80, vocabulary=90),
            {"plain": Peer(10, module=_torch_shakespeare), "vmap": Peer(10, chunks=(10,))},
        ),
        Workload(
            "AE", "EMNIST autoencoder", 50, 40, 20,
            models.emnist_autoencoder, "mse", synthetic.reconstructions,
            {"plain": Peer(50), "vmap": Peer(50, chunks=(50,)), "chunked vmap": Peer(50, chunks=(5, 10, 25))},
        ),
        Workload(
            "SO-LR", "tags from 10,000 sparse words", 50, 100, 100,
            models.stack_overflow_lr, "binary_cross_entropy", partial(synthetic.bags, words=10_000, tags=500),
            {"plain": Peer(20), "vmap": Peer(skipped=_TOO_SLOW), "chunked vmap": Peer(10, chunks=(1, 5))},
        ),
        Workload(
            "ResNet", "ResNet-18 with group norm", 1, 20, 20,
            models.resnet18_gn, "cross_entropy", partial(synthetic.pictures, channels=3, side=24, classes=10),
            {"plain": Peer(1), "vmap": Peer(skipped="one client: nothing to batch")},
        ),
    )
}  # fmt: skip


def _named(model: str) -> nn.Module:
    """A model of ``fastfed.models`` by its name; an error in one sentence if there is none of that name."""
    make = getattr(models, model, None)
    if make is None:
        raise LookupError(f"fastfed.models has no {model!r}")
    module: nn.Module = make()
    return module


PEERED: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        WORKLOADS["W1"],
        WORKLOADS["W2"],
        replace(WORKLOADS["W2"], name="W2x5", words="MLP 784-200-200-10, 5 epochs", epochs=5),
        WORKLOADS["W3"],
        WORKLOADS["LSTM"],
        replace(
            WORKLOADS["ResNet"],
            name="ResNet10",
            words="ResNet-18 with group norm, 10 clients",
            clients=10,
            peers={"plain": Peer(10), "chunked vmap": Peer(2, chunks=(2,))},
        ),
        WORKLOADS["AE"],
        Workload(
            "ViT", "small vision transformer", 20, 40, 20,
            partial(_named, "small_vit"), "cross_entropy",
            partial(synthetic.pictures, channels=1, side=28, classes=10),
            {"plain": Peer(20), "chunked vmap": Peer(20, chunks=(2, 5, 10))},
        ),
    )
}  # fmt: skip
"""Those of `fastfed bench peers`: what the promises beside other frameworks are about."""
