"""Trainings of a chunk that are captured and replayed: the bits of training launched kernel by kernel.

In Triton's interpreter a graph is the list of its launches, made again to the letter: a number or a place that should
have changed from one round to the next shows as wrong bits. On a card it is a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch import nn

import fastfed as ff
from fastfed.clients import Client
from fastfed.data import Examples
from fastfed.kernels import registry
from fastfed.train import Outcome, RoundWork
from fastfed.train.device import Device, arena

from .support import DEVICE, labels, normal, round_of

pytest.importorskip("triton", reason="Triton is not installed")
if not registry.interpreting() and DEVICE == "cpu":
    pytest.skip("device kernels run in Triton's interpreter here (TRITON_INTERPRET=1)", allow_module_level=True)

pytestmark = pytest.mark.device

SIZES = (3, 6, 2)
BATCH = 4


def _model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(7, 6), nn.ReLU(), nn.Dropout(0.4), nn.Linear(6, 3))


EXAMPLES = Examples(normal(1, sum(SIZES), 7), labels(2, 3, sum(SIZES)))


def _rounds(client: Client, module: nn.Module) -> Iterator[RoundWork]:
    """Three rounds in which everything differs that may differ between two cohorts of as many clients and steps."""
    start = ff.Packing.of(module).pack(module)
    first = round_of(
        start, SIZES, batch_size=BATCH, steps=torch.tensor([2, 2, 1]), optimizers=(client,), keep_deltas=True
    )
    corrections = normal(11, len(SIZES), start.numel()) if client.rule == "sgd" else None
    for number in range(3):
        sizes = torch.tensor(SIZES).roll(number)
        yield replace(
            first,
            start=start + 0.1 * number,
            rows=first.rows.roll(number),
            offsets=torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)]),
            steps=first.steps.roll(number),
            ids=first.ids + 5 * number,
            round=first.round + number,
            corrections=None if corrections is None else corrections * (number + 1),
            lr=torch.linspace(0.1, 0.2, len(SIZES), dtype=torch.float64) * (number + 1),
        )


@contextmanager
def without_graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv(arena.VARIABLE, "off")
        yield


def assert_same_bits(one: Outcome, other: Outcome) -> None:
    assert one.deltas is not None
    assert other.deltas is not None
    assert torch.equal(one.delta, other.delta)
    assert torch.equal(one.deltas, other.deltas)
    for name, values in one.scalars.items():
        assert torch.equal(values.nan_to_num(-1), other.scalars[name].nan_to_num(-1)), name


RULES = {
    "sgd": ff.clients.SGD(lr=0.1, weight_decay=0.01, prox=0.1),
    "adam": ff.clients.Adam(lr=0.01, eps=1e-3, delay=2),
    "sm3": ff.clients.SM3(lr=0.05, eps=1e-3, v0=0.05, beta1=0.9),
}


@pytest.mark.parametrize("rule", ["sgd", "sm3", pytest.param("adam", marks=pytest.mark.exhaustive)])
def test_replayed_rounds_have_the_bits_of_launched_ones(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = _model()
    launched, replayed = (Device(module, "cross_entropy", EXAMPLES, device=DEVICE) for _ in range(2))
    works = list(_rounds(RULES[rule], module))
    with without_graphs(monkeypatch):
        wanted = [launched.run(work) for work in works]
    got = [replayed.run(work) for work in works]
    assert (launched.arena.replayed, replayed.arena.replayed) == (0, 1)  # the third round
    for one, other in zip(got, wanted, strict=True):
        assert_same_bits(one, other)
    assert not torch.equal(got[1].delta, got[2].delta)


def test_chunks_of_other_sizes_have_graphs_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clients, then one, in turns: each kind is replayed from its third time on."""
    module = _model()
    first = next(_rounds(RULES["sgd"], module))
    works = [replace(first, start=first.start * factor) for factor in (1.0, 1.1, 0.9)]
    engine = Device(module, "cross_entropy", EXAMPLES, device=DEVICE)
    wanted = [engine.run(work) for work in works]
    monkeypatch.setattr(Device, "_clients_at_once", lambda *_: 2)
    engine = Device(module, "cross_entropy", EXAMPLES, device=DEVICE)
    for work, whole in zip(works, wanted, strict=True):
        assert_same_bits(engine.run(work), whole)
    assert engine.arena.replayed == 2  # the chunks of the third round


def test_memory_that_moves_takes_its_graphs_along() -> None:
    module = _model()
    engine = Device(module, "cross_entropy", EXAMPLES, device=DEVICE)
    all_of_them = next(_rounds(RULES["adam"], module))
    assert all_of_them.lr is not None
    rows = slice(SIZES[0])
    one = replace(
        all_of_them,
        rows=all_of_them.rows[rows],
        offsets=all_of_them.offsets[:2],
        ids=all_of_them.ids[:1],
        steps=all_of_them.steps[:1],
        lr=all_of_them.lr[:1],
    )
    wanted, _, _ = (engine.run(one) for _ in range(3))
    assert engine.arena.replayed == 1
    engine.run(all_of_them)  # takes more room: everything is put elsewhere
    assert_same_bits(engine.run(one), wanted)
    assert engine.arena.replayed == 1


def test_training_on_examples_of_one_round_is_not_captured() -> None:
    """They lie elsewhere in the next."""
    module = _model()
    engine = Device(module, "cross_entropy", EXAMPLES, device=DEVICE)
    for work in _rounds(RULES["adam"], module):
        engine.run(replace(work, examples=Examples(EXAMPLES.inputs, EXAMPLES.targets)))
    assert engine.arena.replayed == 0


def test_only_so_many_graphs_are_kept() -> None:
    held = arena.Arena(torch.device("cpu"))
    done: list[int] = []
    for kind in [*range(arena.MOST_GRAPHS + 1), 0]:
        held.run(kind, lambda kind=kind: done.append(kind))  # type: ignore[misc]
    assert done == [*range(arena.MOST_GRAPHS + 1), 0]  # 0 was forgotten, so that it began again
    assert held.replayed == 0


def test_rooms_keep_their_places_until_they_grow() -> None:
    held = arena.Arena(torch.device("cpu"))
    first = held.put("x", torch.arange(6.0).view(2, 3))
    again = held.put("x", torch.arange(4, dtype=torch.int32).view(2, 2))
    assert first.data_ptr() == again.data_ptr()
    assert again.tolist() == [[0, 1], [2, 3]]
    assert held.room("y", (2, 3)).data_ptr() != first.data_ptr()
    assert held.room("x", (5, 5)).shape == (5, 5)
    assert held.room("none", (0, 4)).shape == (0, 4)


def test_sparse_inputs_are_replayed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of other examples, with other columns, into the same buffer."""
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(9, 5), nn.ReLU(), nn.Linear(5, 3))
    dense = torch.where(normal(5, sum(SIZES), 9) > 0.8, normal(6, sum(SIZES), 9), 0.0)
    examples = Examples(ff.data.Sparse.of(dense), labels(2, 3, sum(SIZES)))
    launched, replayed = (Device(module, "cross_entropy", examples, device=DEVICE) for _ in range(2))
    works = list(_rounds(ff.clients.SGD(lr=0.1), module))
    with without_graphs(monkeypatch):
        wanted = [launched.run(work) for work in works]
    for work, one in zip(works, wanted, strict=True):
        assert_same_bits(replayed.run(work), one)
    assert replayed.arena.replayed == 1
