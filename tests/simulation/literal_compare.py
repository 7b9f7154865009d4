"""A federation of nine odd clients for the pseudo-code of `literal_async` and its neighbours, and how a simulation is
compared with it: in float64 to 1e-10 of a vector's norm, in float32 to 16 times what rounding does to the pseudo-code
itself (see `test_methods`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import fastfed as ff
from fastfed.purposes import Purpose

from . import literal
from .literal import Array, Batch, Network, Snapshot

NETWORK = Network(features=4, hidden=5, classes=3)
SIZES = (7, 3, 5, 0, 4, 1, 6, 2, 9)  # one has nothing to learn from, one a single example
SEED = 4


# ---- the same problem for both sides --------------------------------------------------------------------------------


@cache
def federation(poisoned: int | None = None) -> ff.data.Federated:
    """Nine clients of `SIZES` examples; all features of client `poisoned` are infinite."""
    generator = torch.Generator().manual_seed(9)
    n = sum(SIZES)
    inputs = torch.randn(n, NETWORK.features, generator=generator)
    labels = torch.randint(NETWORK.classes, (n,), generator=generator)
    offsets = torch.tensor([0, *torch.tensor(SIZES).cumsum(0).tolist()])
    rows = torch.randperm(n, generator=generator)
    if poisoned is not None:
        inputs[rows[offsets[poisoned] : offsets[poisoned + 1]]] = torch.inf
    return ff.data.Federated("nine clients", ff.data.Examples(inputs, labels), rows, offsets)


@cache
def examples(poisoned: int | None = None) -> list[tuple[Array, Array]]:
    """Every client's features (n, 4) and labels (n,)."""
    fed, found = federation(poisoned), []
    for client in range(len(fed)):
        inputs, labels = fed.examples.batch(fed.rows_of(client))
        found.append((inputs.numpy(), labels.numpy()))
    return found


@cache
def network(dtype: torch.dtype) -> nn.Module:
    """The module whose mathematics `NETWORK` is. Simulations do not touch it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        made = nn.Sequential(
            nn.Linear(NETWORK.features, NETWORK.hidden), nn.Tanh(), nn.Linear(NETWORK.hidden, NETWORK.classes)
        )
    return made.to(dtype)


def start_model(dtype: str) -> Array:
    parameters = [p.detach().numpy().reshape(-1) for p in network(torch.float32).parameters()]
    return np.concatenate(parameters).astype(dtype)


def simulation(dtype: torch.dtype, executor: str, settings: Mapping[str, Any]) -> ff.Simulation:
    """On the federation above unless `settings` bring a `fed`."""
    given = {"seed": SEED, "executor": executor, "threads": 1, **settings}
    fed = given.pop("fed", None)
    return ff.Simulation(network(dtype), federation() if fed is None else fed, **given)


def shuffled(round: int, client: int, batch_size: int, steps: int, seed: int = SEED) -> list[Batch]:
    """A client's first `steps` batches: shuffled epoch after epoch, the last batch of each short."""
    n, found = SIZES[client], []
    for epoch in range(steps if n else 0):
        order = ff.kernels.permutation(n, ff.kernels.Stream(seed, Purpose.SHUFFLE, round, client, epoch)).numpy()
        found += [(epoch + 1, order[begin : begin + batch_size]) for begin in range(0, n, batch_size)]
    return found[:steps]


def batches_per_epoch(client: int, batch_size: int) -> int:
    return -(-SIZES[client] // batch_size)


# ---- comparing ------------------------------------------------------------------------------------------------------


def flat(packing: ff.Packing, packed: Tensor) -> Array:
    """A packed vector without its gaps, in float64."""
    return np.concatenate([packed[slot.span].double().numpy() for slot in packing.slots])


def gaps(packing: ff.Packing, packed: Tensor) -> Tensor:
    """What a packed vector holds between the tensors: zeros, unless something went wrong."""
    kept = torch.ones(packing.size, dtype=torch.bool)
    for slot in packing.slots:
        kept[slot.span] = False
    return packed[..., kept]


def kept(sim: ff.Simulation) -> Snapshot:
    """Model, server's moments, past models as "past<version>", error memories as "e<client>", a tuner's "smoothed"
    delta with "lr", "E" and "B", privacy's "clip": whichever there are."""
    vectors = {"x": sim.params, **{name: tensor for name, tensor in sim.server.state.items() if tensor.dim() == 1}}
    past = sim.server.past.tensors()
    vectors |= {f"past{v}": m for v, m in zip(past["versions"].tolist(), past["models"], strict=True)}
    held = sim.aggregator.tensors()
    if "error.ids" in held:
        pairs = zip(held["error.ids"].tolist(), held["error.vectors"], strict=True)
        vectors |= {f"e{client}": vector for client, vector in pairs}
    if "smoothed" in (tuned := sim.tuner.tensors()):
        vectors["smoothed"] = tuned["smoothed"]
    for name, vector in vectors.items():
        is_clean = name in ("v", "vmax") or not gaps(sim.packing, vector).any()  # those start above 0, gaps included
        assert is_clean, f"{name}: its gaps are not 0 any more"
    found = {name: flat(sim.packing, vector) for name, vector in vectors.items()}
    if tuned:
        found |= dict(zip(("lr", "E", "B"), tuned["lr_epochs_batch"].numpy().reshape(3, 1), strict=True))
    return found | ({"clip": held["clip"].numpy()} if "clip" in held else {})


def steps(sim: ff.Simulation, rounds: int) -> Iterable[ff.Simulation]:
    """The simulation after every round."""
    for _ in range(rounds):
        sim.step()
        yield sim


def assert_equals(sims: Iterable[ff.Simulation], truth: list[Snapshot]) -> None:
    """In float64: all that is kept, after every round, to 1e-10."""
    rounds = 0
    for t, sim in enumerate(sims):
        found, wanted = kept(sim), truth[t]
        assert set(found) == set(wanted), f"after round {t + 1}"
        for name, vector in found.items():
            away, length = literal.norm(vector - wanted[name]), literal.norm(wanted[name])
            assert away <= 1e-10 * length, f"{name} after round {t + 1}: {away:.3g} away, norm {length:.3g}"
        rounds = t + 1
    assert rounds == len(truth)


def assert_as_near(sims: Iterable[ff.Simulation], truth: list[Snapshot], rounded: list[Snapshot]) -> None:
    """In float32: no farther from the truth than 16 times the pseudo-code in float32, nor than 1e-4.

    Errors of compression are small differences of large numbers: their rounding is measured by the model's norm.
    """
    rounds = 0
    last_bit = float(np.finfo(np.float32).eps)
    for t, sim in enumerate(sims):
        found = kept(sim)
        assert set(found) == set(truth[t]), f"after round {t + 1}"
        for name, vector in found.items():
            wanted = truth[t][name]
            away, length = literal.norm(vector - wanted), literal.norm(truth[t]["x"] if name[0] == "e" else wanted)
            by_rounding = literal.norm(rounded[t][name] - wanted)
            assert away <= 16 * (by_rounding + last_bit * length), f"{name} after round {t + 1}: {away:.3g} away"
            assert away <= 1e-4 * length, f"{name} after round {t + 1}: {away:.3g} away, norm {length:.3g}"
        rounds = t + 1
    assert rounds == len(truth)


def same_in_both(settings: Mapping[str, Any], truth: Callable[[str, ff.Packing], list[Snapshot]], rounds: int) -> None:
    """Both comparisons. `truth` runs the pseudo-code in a dtype, with random numbers as that packing lays them out."""
    eager = simulation(torch.float64, "eager", settings)
    assert_equals(steps(eager, rounds), truth("float64", eager.packing))
    native = simulation(torch.float32, "native", settings)
    exact, rounded = (truth(dtype, native.packing) for dtype in ("float64", "float32"))
    assert_as_near(steps(native, rounds), exact, rounded)
