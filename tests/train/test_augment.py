"""Augmented images: every executor sees the same views, which a literal version says, and evaluation the middle."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import fastfed as ff
from fastfed.clients import SGD, DeltaSGD
from fastfed.data import Augment, Examples, Pixels
from fastfed.data.resident import Copied
from fastfed.kernels import Stream, permutation, registry, uniform
from fastfed.kernels.ops.random import words
from fastfed.purposes import Purpose
from fastfed.train import Outcome, RoundWork
from fastfed.train.batches import views_at

from . import literal_augment as literal
from .agreement import Case, executors, kept, run
from .support import DEVICE, make

SEED, ROUND, LR = 77 << 33, 5, 4.0
IDS, SIZES = (12, 3_999_999_999, 0), (6, 1, 4)
ROWS, CHANNELS, SIDES, CROP = sum(SIZES), 2, (9, 7), 4
NUMBERS = CHANNELS * CROP * CROP
INTERPRETED = registry.interpreting() or DEVICE != "cpu"
EVERY = ("device",) if INTERPRETED else ("native", "eager", "batched")
pytestmark = [pytest.mark.device] if INTERPRETED else []


def images() -> Tensor:
    g = torch.Generator().manual_seed(8)
    made = torch.randint(256, (ROWS, CHANNELS, *SIDES), generator=g, dtype=torch.uint8)
    made[2] = 77  # of no deviation
    made[3:8] = 90
    made[3:8, 0, 1::5, 1::4] = 91  # so far apart that no crop has two of them: of almost no deviation
    return made


def probe(augment: Augment) -> Examples:
    """Targets that tell examples apart: under them, the gradient of a linear model of zeros shows every example."""
    return Examples(Pixels(images(), augment=augment), torch.eye(ROWS))


def linear() -> nn.Module:
    module = nn.Sequential(nn.Flatten(), nn.Linear(NUMBERS, ROWS, bias=False))
    nn.init.zeros_(module[1].weight)
    return module


def work_of(**given: Any) -> RoundWork:
    plain = {"steps": torch.tensor([5, 3, 2]), "batch_size": 3, "optimizers": (SGD(lr=LR),)}
    return RoundWork(
        start=torch.zeros(ff.Packing.of(linear()).size),
        rows=torch.arange(ROWS).flip(0),
        offsets=torch.tensor([0, *np.cumsum(SIZES)]),
        ids=torch.tensor(IDS),
        seed=SEED,
        round=ROUND,
        keep_deltas=True,
        **{**plain, **given},
    )


def literal_batches(work: RoundWork, client: int) -> list[list[tuple[int, int]]]:
    """The (row, stream position) pairs of every batch of a client."""
    n, size = SIZES[client], work.batch_size
    mine = work.rows[work.offsets[client] : work.offsets[client + 1]]
    most = int(work.seen[client]) if work.seen is not None else n * 10
    orders = [permutation(n, Stream(SEED, Purpose.SHUFFLE, ROUND, IDS[client], epoch)) for epoch in range(10)]
    stream = [(int(mine[int(orders[p // n][p % n])]), p) for p in range(most)]
    if work.seen is not None:
        return [stream[begin : begin + size] for begin in range(0, most, size)]
    epochs = [stream[begin : begin + n] for begin in range(0, most, n)]
    return [epoch[begin : begin + size] for epoch in epochs for begin in range(0, n, size)]


def literal_deltas(work: RoundWork, augment: Augment) -> NDArray[np.float64]:
    """Plain SGD on the mean squared error: what all clients move by, (clients, ROWS, NUMBERS)."""
    assert augment.crop is not None
    stored, targets = images().numpy(), np.eye(ROWS)
    found = np.zeros((len(IDS), ROWS, NUMBERS))
    for client, weight in enumerate(found):
        for batch in literal_batches(work, client)[: int(work.steps[client])]:
            gradient = np.zeros_like(weight)
            for row, position in batch:
                view = literal.view(SEED, ROUND, IDS[client], position, SIDES, CROP, augment.flip)
                x = literal.seen(stored[row], *view, CROP, augment.standardise).reshape(-1)
                gradient += np.outer(2 * (weight @ x - targets[row]), x) / (len(batch) * ROWS)
            weight -= LR * gradient
    return found


def weights(outcome: Outcome) -> NDArray[np.float64]:
    packing = ff.Packing.of(linear())
    views = [packing.views(delta)["1.weight"] for delta in kept(outcome)]
    return torch.stack(views).double().numpy()


KINDS = {
    "all": Augment(crop=CROP, flip=True, standardise=True),
    "crop": Augment(crop=CROP),
    "crop and flip": Augment(crop=CROP, flip=True),
}


@executors(*EVERY)
@pytest.mark.parametrize("seen", [None, torch.tensor([11, 5, 6])], ids=["epochs", "across epochs"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_executors_see_is_what_the_paper_says(executor: str, kind: str, seen: Tensor | None) -> None:
    work, augment = work_of(seen=seen), KINDS[kind]
    got = weights(make(executor, linear(), "mse", probe(augment)).run(work))
    exact = literal_deltas(work, augment)
    np.testing.assert_allclose(got, exact, atol=2e-6 * abs(exact).max(), rtol=0)


@executors(*EVERY)
def test_a_second_look_at_a_batch_sees_the_same_views(executor: str) -> None:
    """Delta-SGD's step sizes come of two gradients on one batch: seen anew, they would be others."""
    steps = torch.tensor([2, 2, 2])
    rule = DeltaSGD(lr=0.5, gamma=1.0, delta=0.1, same_batch=True)
    probe_ = probe(KINDS["all"])
    work = work_of(optimizers=(rule,), steps=steps)
    size = make(executor, linear(), "mse", probe_).run(work).scalars["step_size"]
    exact = make("eager", linear(), "mse", probe_).run(replace(work, start=work.start.double())).scalars["step_size"]
    torch.testing.assert_close(size, exact, rtol=1e-5, atol=0)


# ---- the views themselves -------------------------------------------------------------------------------------------


def test_views_are_those_of_the_literal_version() -> None:
    """Bit by bit, far into a stream, too."""
    pixels = Pixels(images(), augment=KINDS["all"])
    positions = torch.tensor([0, 1, 2, 999, (1 << 32) - 1, 1 << 32, (5 << 32) + 7])
    ids = torch.tensor(IDS)[:, None]
    top, left, flipped = (each.view(3, 7) for each in views_at(work_of(), pixels, ids, positions))
    for i, client in enumerate(IDS):
        for j, position in enumerate(positions.tolist()):
            wanted = literal.view(SEED, ROUND, client, position, SIDES, CROP, True)
            assert (int(top[i, j]), int(left[i, j]), bool(flipped[i, j])) == wanted


def test_every_view_is_as_likely_as_any_other() -> None:
    pixels = Pixels(images(), augment=KINDS["all"])
    n = 60_000
    top, left, flipped = views_at(work_of(), pixels, torch.tensor(4), torch.arange(n))
    counts = torch.bincount((top * 4 + left) * 2 + flipped, minlength=48).double()
    assert len(counts) == 6 * 4 * 2
    chi = float(((counts - n / 48) ** 2 / (n / 48)).sum())
    assert 20 < chi < 90  # 47 degrees of freedom: 1 in 10,000 beyond either


def test_words_are_those_behind_uniform_numbers() -> None:
    stream = Stream(SEED, 9, 4)
    found = torch.stack(words(torch.arange(25), stream, clients=torch.tensor(6)), 1).flatten()
    assert torch.equal((found >> 8).float() * 2.0**-24, uniform(100, Stream(SEED, 9, 4, 6)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_the_transform_is_that_of_the_literal_version(kind: str, dtype: torch.dtype) -> None:
    augment, stored = KINDS[kind], images()
    pixels = Pixels(stored, augment=augment)
    rows = torch.tensor([4, 2, 0, 10])
    views = views_at(work_of(), pixels, torch.tensor(1), torch.arange(4))
    got = pixels.dense(rows, dtype, views)
    assert got.dtype is dtype
    assert got.shape == (4, *pixels.shape)
    for i, row in enumerate(rows.tolist()):
        view = literal.view(SEED, ROUND, 1, i, SIDES, CROP, augment.flip)
        exact = literal.seen(stored[row].numpy(), *view, CROP, augment.standardise)
        np.testing.assert_allclose(got[i].double(), exact, rtol=3 * torch.finfo(dtype).eps, atol=1e-15)
    there = Copied(Examples(pixels, torch.zeros(ROWS)), None, torch.device("cpu"))
    assert torch.equal(there.gather(rows, dtype, views)[0], got)


def test_the_middle_is_seen_where_nobody_trains() -> None:
    """As tf.image.resize_with_crop_or_pad has it: of an odd rest, the smaller half is above and to the left."""
    stored = images()
    examples = probe(KINDS["all"])
    got, _ = examples.batch(torch.arange(ROWS), torch.float64)
    for row in range(ROWS):
        exact = literal.seen(stored[row].numpy(), 2, 1, False, CROP, True)
        np.testing.assert_allclose(got[row], exact, rtol=1e-12, atol=1e-15)


def test_a_picture_that_all_but_lacks_deviation() -> None:
    """One byte that is one off: its deviation is below TensorFlow's bound, 1 / sqrt(pixels)."""
    stored = torch.full((1, 1, 4, 4), 9, dtype=torch.uint8)
    stored[0, 0, 1, 2] = 10
    got = Pixels(stored, augment=Augment(standardise=True)).dense(torch.tensor([0]), torch.float64)
    exact = (stored.double() - stored.double().mean()) / (1 / 4)
    torch.testing.assert_close(got, exact, rtol=1e-14, atol=0)


# ---- evaluation, bits, simulations ----------------------------------------------------------------------------------


def test_native_predictions_see_the_middle() -> None:
    module, examples = linear(), probe(KINDS["all"])
    nn.init.normal_(module[1].weight)
    x = ff.Packing.of(module).pack(module)
    native = make("native", module, "mse", examples)
    rows = torch.arange(ROWS)
    with torch.no_grad():
        wanted = module.double()(examples.batch(rows, torch.float64)[0])
    torch.testing.assert_close(native.predict(x, examples, rows).double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("executor", ["native", "eager"])
def test_same_bits_for_any_number_of_threads(executor: str) -> None:
    one, three = (make(executor, linear(), "mse", probe(KINDS["all"]), threads=n).run(work_of()) for n in (1, 3))
    assert torch.equal(kept(one), kept(three))
    assert torch.equal(one.delta, three.delta)


@pytest.mark.skipif(not INTERPRETED, reason="device kernels run in Triton's interpreter here (TRITON_INTERPRET=1)")
@pytest.mark.exhaustive
@pytest.mark.parametrize("case", [Case("augmented", ("sgd",)), Case("mirrored", ("sgd",))], ids=lambda case: case.id)
def test_same_bits_for_any_chunk(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastfed.train.device import Device

    for measured in (True, False):
        whole = run(case, "device", measure_cosine=measured)
        for clients in (1, 3):
            monkeypatch.setattr(Device, "_clients_at_once", lambda *_, n=clients: n)
            part = run(case, "device", measure_cosine=measured)
            assert torch.equal(kept(part), kept(whole))
            monkeypatch.undo()


def simulation(executor: str, **given: Any) -> ff.Simulation:
    asked = {"crop": 5, "flip": True, "standardise": True, **given}
    fed = ff.data.synthetic_images(12, 4, (2, 8, 8), examples=9, test_examples=40, **asked)
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 4))
    return ff.Simulation(model, fed, client=SGD(lr=0.1), cohort=5, batch_size=4, executor=executor, seed=6)


@executors("native", "eager", "batched")
def test_runs_agree_and_go_on_to_the_same_bits(executor: str, tmp_path: Path) -> None:
    whole, halved = simulation(executor), simulation(executor)
    history = whole.run(rounds=4, evaluate_every=2)
    halved.run(rounds=2, evaluate_every=2)
    halved.save(tmp_path / "half")
    again = ff.Simulation.resume(tmp_path / "half", model=simulation(executor).trained_model())
    again.run(rounds=2, evaluate_every=2)
    assert torch.equal(again.params, whole.params)
    exact = simulation("eager")
    rows = exact.run(rounds=4, evaluate_every=2).rounds
    torch.testing.assert_close(whole.params, exact.params, rtol=1e-4, atol=1e-5)
    assert history.rounds[-1]["test_loss"] == pytest.approx(rows[-1]["test_loss"], rel=1e-4)


def test_each_option_makes_another_run() -> None:
    params = []
    for asked in ({}, {"flip": False}, {"standardise": False}):
        sim = simulation("native", **asked)
        sim.run(rounds=1)
        params.append(sim.params.clone())
    assert not torch.equal(params[0], params[1])
    assert not torch.equal(params[0], params[2])
    assert simulation("native").fed.fingerprint() != simulation("native", flip=False).fed.fingerprint()
