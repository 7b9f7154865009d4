"""Sparse models under plain SGD: only the rows of words that a client has are moved, added up and written."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import fastfed as ff
from fastfed import clients
from fastfed.data import Examples, Sparse
from fastfed.train import DeltaPolicy, Outcome, RoundWork
from fastfed.train.eager import Eager

native = pytest.importorskip("fastfed.train.native", reason="the compiled extension is missing")
pytest.importorskip("fastfed._core", reason="the compiled extension is missing")

WORDS, TAGS, ROWS = 75, 19, 600  # no multiples of a cache line or of a block of rows
ANOTHER = clients.SGD(0.4, weight_decay=1e-3)  # moves every row: the general way


class TwoTables(nn.Module):
    """Two sparse layers on one input, of which one is tracked; dense parameters before, between and after."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(7, TAGS)
        self.deep = nn.Linear(WORDS, 7)
        self.wide = nn.Linear(WORDS, TAGS, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.wide(x) + self.head(torch.relu(self.deep(x)))


MODULES = {
    "one layer": lambda: nn.Linear(WORDS, TAGS),
    "no bias": lambda: nn.Linear(WORDS, TAGS, bias=False),
    "three layers": lambda: nn.Sequential(nn.Linear(WORDS, 33), nn.ReLU(), nn.Linear(33, TAGS)),
    "two tables": TwoTables,
}


def module_of(name: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return MODULES[name]()


def bags() -> Examples:
    """Few words each, some examples none; words 0 to 4 are everybody's, the last ten nobody's."""
    generator = torch.Generator().manual_seed(8)
    words = torch.rand(ROWS, WORDS, generator=generator) * (torch.rand(ROWS, WORDS, generator=generator) < 0.06)
    words[:, :5] += torch.rand(ROWS, 5, generator=generator)
    words[:, -10:] = 0
    words[::7] = 0
    tags = (torch.rand(ROWS, TAGS, generator=generator) < 0.2).float()
    return Examples(Sparse.of(words), Sparse.of(tags))


def work_of(module: nn.Module, count: int = 40, steps: int | None = None, **given) -> RoundWork:
    """Clients of 1 to 13 examples, one of none; batches of 4, two epochs or so many steps."""
    sizes = torch.tensor([(5 * i) % 13 + 1 for i in range(count)])
    sizes[count // 3] = 0
    usual = {
        "start": ff.Packing.of(module).pack(module),
        "rows": torch.randint(0, ROWS, (int(sizes.sum()),), generator=torch.Generator().manual_seed(1)),
        "offsets": torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)]),
        "ids": torch.arange(count) * 3 + 1,
        "steps": torch.full((count,), steps) if steps else -(-sizes // 4) * 2,
        "batch_size": 4,
        "optimizers": (clients.SGD(0.4),),
        "seed": 11,
        "round": 4,
    }
    return RoundWork(**(usual | given))


def run(module: nn.Module, work: RoundWork, examples: Examples | None = None, threads: int = 2) -> Outcome:
    engine = native.Native(module, "binary_cross_entropy", examples or bags(), threads=threads)
    return engine.run(work)


def eager(module: nn.Module, work: RoundWork, dtype: torch.dtype) -> Outcome:
    corrections = None if work.corrections is None else work.corrections.to(dtype)
    work = replace(work, start=work.start.to(dtype), corrections=corrections)
    return Eager(copy.deepcopy(module), "binary_cross_entropy", bags()).run(work)


def assert_same(one: Outcome, other: Outcome) -> None:
    assert torch.equal(one.delta, other.delta)
    assert torch.equal(one.refused, other.refused)
    for name, value in one.scalars.items():
        assert torch.equal(value.nan_to_num(-7), other.scalars[name].nan_to_num(-7)), name


def two_models(module: nn.Module, count: int = 40) -> dict[str, Tensor]:
    start = ff.Packing.of(module).pack(module)
    return {"start": torch.stack([start, -0.5 * start]), "start_index": (torch.arange(count) * 5 // 3) % 2}


# ---- what is computed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("models", [1, 2])
@pytest.mark.parametrize("steps", [1, None], ids=["one step", "two epochs"])
@pytest.mark.parametrize("name", MODULES)
def test_it_agrees_with_eager_in_float64(name: str, steps: int | None, models: int) -> None:
    module = module_of(name)
    work = work_of(module, steps=steps, **(two_models(module) if models == 2 else {}))
    got = run(module, work)
    exact, plain = eager(module, work, torch.float64), eager(module, work, torch.float32)
    for mine, theirs, truth in [
        (got.delta, plain.delta, exact.delta),
        (got.scalars["delta_norm"], plain.scalars["delta_norm"], exact.scalars["delta_norm"]),
        (got.scalars["mean_loss"], plain.scalars["mean_loss"], exact.scalars["mean_loss"]),
    ]:
        truth = truth.double().nan_to_num()
        room = 2 * (theirs.double().nan_to_num() - truth).norm() + 1e-7 * truth.norm()
        assert (mine.double().nan_to_num() - truth).norm() <= room


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 63, 64, 65, 130])
def test_the_sum_is_that_of_the_kept_deltas(count: int) -> None:
    module = module_of("three layers")
    work = work_of(module, count)
    kept = run(module, replace(work, keep_deltas=True))
    weights = work.counts.double() / max(1, int(work.counts.sum()))
    torch.testing.assert_close(kept.delta.double(), weights @ kept.deltas.double(), rtol=1e-5, atol=1e-8)
    norms = kept.deltas.double().norm(dim=1)
    torch.testing.assert_close(kept.scalars["delta_norm"], norms, rtol=1e-6, atol=0)
    assert_same(run(module, work), kept)


@pytest.mark.parametrize("name", MODULES)
def test_words_of_nobody_do_not_move(name: str) -> None:
    module = module_of(name)
    views = ff.Packing.of(module).views(run(module, work_of(module)).delta)
    tables = [view for view in views.values() if view.shape[-1] == WORDS]
    assert tables
    assert all((table[:, -10:] == 0).all() and (table[:, :5] != 0).any() for table in tables)


@pytest.mark.parametrize(
    "policy",
    [
        DeltaPolicy("uniform", clip=0.05),
        DeltaPolicy("examples", divide_by_steps=True),
        DeltaPolicy("uniform", 0.1, True),
    ],
    ids=["clip", "divide", "both"],
)
def test_clipped_and_divided(policy: DeltaPolicy) -> None:
    module = module_of("three layers")
    work = work_of(module, policy=policy)
    torch.testing.assert_close(
        run(module, work).delta.double(), eager(module, work, torch.float64).delta, rtol=1e-4, atol=1e-8
    )
    assert_same(run(module, work), run(module, replace(work, keep_deltas=True)))


def test_where_rows_may_all_move_they_do() -> None:
    module = module_of("two tables")
    work = work_of(module, optimizers=(clients.SGD(0.4), ANOTHER), optimizer_index=torch.arange(40) % 2)
    torch.testing.assert_close(
        run(module, work).delta.double(), eager(module, work, torch.float64).delta, rtol=1e-4, atol=1e-7
    )
    corrections = 0.01 * torch.randn(40, work.start.numel(), generator=torch.Generator().manual_seed(2))
    work = work_of(module, corrections=corrections)
    torch.testing.assert_close(
        run(module, work).delta.double(), eager(module, work, torch.float64).delta, rtol=1e-4, atol=1e-7
    )


# ---- the same bits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [6, 50, 150])
@pytest.mark.parametrize("name", ["one layer", "two tables"])
def test_the_number_of_threads_changes_nothing(name: str, count: int) -> None:
    module = module_of(name)
    for given in ({}, two_models(module, count)):
        one, *others = (run(module, work_of(module, count, **given), threads=n) for n in (1, 2, 5))
        for other in others:
            assert_same(one, other)


def test_a_round_finds_nothing_of_the_rounds_before() -> None:
    module = module_of("three layers")
    engine = native.Native(module, "binary_cross_entropy", bags(), threads=2)
    work = work_of(module)
    others = [
        work_of(module, 90, steps=1),
        work_of(module, optimizers=(ANOTHER,)),
        work_of(module, **two_models(module)),
    ]
    fresh = [run(module, one) for one in (work, *others)]
    for _ in range(2):
        for one, alone in zip((work, *others), fresh, strict=True):
            assert_same(engine.run(one), alone)


# ---- refused clients -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("bad", [float("inf"), float("nan"), 3e38], ids=["inf", "nan", "overflow"])
@pytest.mark.parametrize("name", MODULES)
def test_a_client_that_blows_up_leaves_no_trace(name: str, bad: float, steps: int) -> None:
    module, examples = module_of(name), bags()
    work = work_of(
        module, 20, steps, lr=torch.full((20,), 0.4, dtype=torch.float64).index_fill_(0, torch.tensor(4), 1e6)
    )
    work = replace(work, rows=torch.arange(len(work.rows)))  # nobody shares an example
    own = work.rows[int(work.offsets[4]) : int(work.offsets[5])].tolist()
    for row in own:
        examples.inputs.values[int(examples.inputs.starts[row]) : int(examples.inputs.starts[row + 1])] = bad
    got = run(module, work, examples)
    assert got.refused.tolist() == [i == 4 for i in range(20)]
    assert bool(got.delta.isfinite().all())
    without = replace(work, steps=work.steps.clone().index_fill_(0, torch.tensor(4), 0))
    torch.testing.assert_close(got.delta, run(module, without, examples).delta, rtol=1e-5, atol=1e-8)


def test_a_start_that_is_not_finite_refuses_everybody_who_moves() -> None:
    module = module_of("one layer")
    work = work_of(module)
    work.start[0] = float("inf")  # word 0 is everybody's
    got = run(module, work)
    assert got.refused[work.counts > 4].all()
    assert not got.refused[work.counts == 0].any()


def test_numbers_that_are_huge_but_finite_count() -> None:
    module = module_of("three layers")
    work = work_of(module)
    ff.Packing.of(module).views(work.start)["2.bias"].copy_(torch.full((TAGS,), 2e38))
    got, kept = run(module, work), run(module, replace(work, keep_deltas=True))
    assert not got.refused.any()
    assert_same(got, kept)
    torch.testing.assert_close(got.scalars["delta_norm"], kept.deltas.double().norm(dim=1), rtol=1e-6, atol=0)


@pytest.mark.parametrize("lr", [1e20, 3e20, 1e21, 3e21, 1e22, 1e23, 1e25])
@pytest.mark.parametrize("steps", [2, 3])
def test_dense_parameters_that_blow_up_beside_a_table_that_does_not(steps: int, lr: float) -> None:
    module = module_of("three layers")
    nothing = Examples(Sparse.of(torch.zeros(ROWS, WORDS)), bags().targets)
    work = work_of(
        module, 20, steps, lr=torch.full((20,), 0.4, dtype=torch.float64).index_fill_(0, torch.tensor(4), lr)
    )
    got = run(module, work, nothing)
    assert torch.equal(got.refused, Eager(module, "binary_cross_entropy", nothing).run(work).refused)
    assert bool(got.delta.isfinite().all())


# ---- many rows -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("words", "tags"), [(1, 1), (31, 16), (32, 17), (33, 64), (200, 3)])
def test_tables_of_every_shape_come_and_go_in_torchs_order(words: int, tags: int) -> None:
    torch.manual_seed(0)
    module = nn.Linear(words, tags)
    generator = torch.Generator().manual_seed(words)
    inputs = torch.rand(30, words, generator=generator)
    targets = (torch.rand(30, tags, generator=generator) < 0.5).float()
    work = replace(work_of(module, 3, steps=2), rows=torch.arange(19), offsets=torch.tensor([0, 9, 13, 19]))
    sparse = run(module, work, Examples(Sparse.of(inputs), targets))
    dense = run(module, work, Examples(inputs, targets))
    torch.testing.assert_close(sparse.delta, dense.delta, rtol=1e-4, atol=1e-7)
