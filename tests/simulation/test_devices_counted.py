"""Executor 'device' on a device that is not the CPU (``tests/pretend.py``): what a round copies and waits for.

Triton cannot run there, so kernels are left out (``bench.device.stubbed``) and what they would find is made up;
everything that torch and the host do is real. Nothing mixes devices, and copies grow neither with clients nor with
their steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

pytest.importorskip("triton", reason="Triton is not installed")

import fastfed as ff
from fastfed import methods
from fastfed.bench.device.stubbed import stubbed_card
from fastfed.kernels.triton.launch import Launch, recorded
from fastfed.train.device import chunk, lanes
from fastfed.train.device.chunk import Chunk
from fastfed.train.device.client import ClientChunk
from fastfed.train.device.fused import FusedChunk
from fastfed.train.device.kept import KeptChunk
from tests.pretend import NAME, Counts, MixedDevices, Traffic, counted

__all__ = ["counted"]  # a fixture


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(36, 4)
    )


def pictures(sizes: Sequence[int]) -> ff.data.Federated:
    """Bytes of 8 by 8 pixels in 4 classes, so many of each client."""
    generator, examples = torch.Generator().manual_seed(6), sum(sizes)
    images = torch.randint(256, (examples, 1, 8, 8), generator=generator).to(torch.uint8)
    labels = torch.randint(4, (examples,), generator=generator)
    offsets = torch.tensor([0, *sizes]).cumsum(0)
    store = ff.data.Examples(ff.data.Pixels(images, (0.4,), (0.3,)), labels)
    return ff.data.Federated("pictures", store, torch.arange(examples), offsets)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "softmax": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 4)),
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 4)),
    "cnn": cnn,
}
SGD = ff.clients.SGD(lr=0.1)
FUSED: dict[str, ff.clients.Client] = {"SGD": SGD, "Adam": ff.clients.Adam(lr=0.01), "SM3": ff.clients.SM3(lr=0.01)}
KEPT: dict[str, ff.clients.Client] = {
    "clipped": ff.clients.SGD(lr=0.1, clip=0.5),
    "Delta-SGD": ff.clients.DeltaSGD(lr=0.1),
    "SM3-I": ff.clients.SM3(lr=0.01, cover="I"),
}
CLIENTS = FUSED | KEPT
EVEN = [8] * 20  # examples of each client
COHORTS = ((3, 1), (20, 1), (3, 4), (20, 4))  # clients and epochs of two steps


@dataclass
class Crossed:
    """The second round of a run: what was copied and waited for by room, and the kinds of chunks that trained."""

    rooms: dict[str, Counts]
    kinds: set[type[Chunk]]


@pytest.fixture
def round_of(counted: Traffic, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Crossed]:
    kinds: set[type[Chunk]] = set()
    begin = Chunk.__init__

    def noting(chunk: Chunk, *arguments: Any) -> None:
        kinds.add(type(chunk))
        begin(chunk, *arguments)

    monkeypatch.setattr(Chunk, "__init__", noting)

    def run(model: str = "mlp", sizes: Sequence[int] = EVEN, cohort: int = 3, epochs: int = 1, **given: Any) -> Crossed:
        kinds.clear()
        settings = {"client": SGD, "cohort": cohort, "epochs": epochs, "batch_size": 4} | given
        with stubbed_card(NAME), recorded() as launches:
            sim = ff.Simulation(MODELS[model](), pictures(sizes), executor="device", device=NAME, **settings)
            sim.step()
            counted.clear()
            row = sim.step()
        assert row["changed"]
        assert row["counted"] == row["clients"] == cohort
        assert_all_there(launches)
        return Crossed({room: replace(counts) for room, counts in counted.rooms.items()}, set(kinds))

    return run


def assert_all_there(launches: Sequence[Launch]) -> None:
    """Kernels, which are left out here, would follow addresses of the host, too: all they get must be on the device."""
    assert launches
    for item in launches:
        for leaf in tree_leaves(item.args):
            if isinstance(leaf, Tensor) and leaf.device.type != NAME:
                raise MixedDevices(f"{item.kernel.__name__}: got {tuple(leaf.shape)} on {leaf.device}")


def kind_of(model: str, rule: str) -> type[Chunk]:
    if rule in KEPT:
        return KeptChunk
    return ClientChunk if model == "softmax" and rule != "SM3" else FusedChunk


# The plan of a round: rows of the examples, their owners' ids, counts and steps, the numbers of steps and round, the
# lengths of batches, where shuffled orders begin and end and what they are made of, coefficients, weights.
UPLOADS = {ClientChunk: 12, FusedChunk: 11, KeptChunk: 10}


@pytest.mark.parametrize("rule", CLIENTS)
@pytest.mark.parametrize("model", MODELS)
def test_a_round_uploads_its_plan_and_fetches_its_numbers(
    model: str, rule: str, round_of: Callable[..., Crossed]
) -> None:
    kind = kind_of(model, rule)
    for cohort, epochs in COHORTS:
        found = round_of(model, client=CLIENTS[rule], cohort=cohort, epochs=epochs)
        assert found.kinds == {kind}
        assert found.rooms == {"train": Counts(uploads=UPLOADS[kind], downloads=1)}, (cohort, epochs)


BLEND = ff.clients.Blend([ff.clients.Part(each) for each in FUSED.values()])
METHODS: dict[str, tuple[dict[str, Any], dict[str, Counts]]] = {
    "FedProx": (methods.fedprox(0.1, 0.1), {"train": Counts(uploads=11, downloads=1)}),
    "FedYogi": ({"server": ff.servers.FedYogi(lr=0.1)}, {"train": Counts(uploads=11, downloads=1)}),
    "across epochs": ({"across_epochs": True}, {"train": Counts(uploads=11, downloads=1)}),
    "clipped deltas": ({"delta_clip": 0.1, "divide_by_steps": True}, {"train": Counts(uploads=11, downloads=1)}),
    "SCAFFOLD": (methods.scaffold(), {"train": Counts(uploads=15, downloads=1), "tune": Counts(uploads=6)}),
    "MOON": (methods.moon(0.1), {"train": Counts(uploads=15, downloads=1), "tune": Counts(uploads=2)}),
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_copy_no_more_for_more_clients_or_steps(name: str, round_of: Callable[..., Crossed]) -> None:
    settings, wanted = METHODS[name]
    for cohort, epochs in COHORTS:
        assert round_of(cohort=cohort, epochs=epochs, **settings).rooms == wanted, (cohort, epochs)


def test_every_optimizer_of_a_blend_has_a_plan_of_its_own(round_of: Callable[..., Crossed]) -> None:
    of_weights = 1
    each = UPLOADS[FusedChunk] - of_weights
    found = round_of(client=BLEND, cohort=20)
    assert found.rooms == {"train": Counts(uploads=len(FUSED) * each + of_weights, downloads=1)}


def test_clients_of_like_size_share_a_table_of_orders(round_of: Callable[..., Crossed]) -> None:
    """One upload for every number of bits that the clients' sizes have, not for every client."""
    sizes = [1, 2, 3, 5, 40]
    found = [round_of(sizes=sizes * times, cohort=5 * times).rooms for times in (1, 4)]
    assert found[0] == found[1] == {"train": Counts(uploads=UPLOADS[FusedChunk] + 3, downloads=1)}


@pytest.mark.parametrize("module", [chunk, lanes])
def test_a_tensor_that_stays_behind_is_noticed(
    module: Any, round_of: Callable[..., Crossed], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "upload", lambda tensor, device: tensor)
    with pytest.raises(MixedDevices):
        round_of()


def test_a_number_that_is_read_inside_a_round_is_noticed(
    round_of: Callable[..., Crossed], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = FusedChunk.step

    def reading(chunk: FusedChunk, number: int) -> None:
        assert chunk.lengths[number].max() > 0
        step(chunk, number)

    monkeypatch.setattr(FusedChunk, "step", reading)
    assert round_of(epochs=1).rooms == {"train": Counts(uploads=11, downloads=1, waits=2)}
