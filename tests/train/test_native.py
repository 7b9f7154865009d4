"""The native engine: same bits for any number of threads, errors that name the client, and what only it does."""

from __future__ import annotations

import signal
import threading
from dataclasses import replace

import pytest
import torch
from torch import nn

import fastfed as ff
from fastfed import clients, models
from fastfed.data import Examples, Pixels, Sparse
from fastfed.train import Contrast, DeltaPolicy, RoundWork
from fastfed.train.eager import Eager

from .support import make, round_of, vectors

native = pytest.importorskip("fastfed.train.native", reason="the compiled extension is missing")
pytest.importorskip("fastfed._core", reason="the compiled extension is missing")


def make_work(module: nn.Module, sizes: list[int], client: clients.Client, batch_size: int = 4, **options) -> RoundWork:
    """Two epochs of every client; clients of the given sizes."""
    counts = torch.tensor(sizes)
    steps = -(-counts // batch_size) * 2
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    values = {
        "start": ff.Packing.of(module).pack(module),
        "rows": torch.randperm(int(counts.sum()), generator=torch.Generator().manual_seed(1)),
        "offsets": offsets,
        "ids": torch.arange(len(sizes)) * 3 + 1,
        "steps": steps,
        "batch_size": batch_size,
        "optimizers": (client,),
        "seed": 11,
        "round": 4,
    }
    return RoundWork(**(values | options))


def ragged(clients_: int, most: int = 13) -> list[int]:
    return [(7 * i) % most + 1 for i in range(clients_)]


def float_examples(n: int, shape: tuple[int, ...], classes: int) -> Examples:
    generator = torch.Generator().manual_seed(2)
    return Examples(torch.randn(n, *shape, generator=generator), torch.randint(0, classes, (n,), generator=generator))


def softmax_case():
    torch.manual_seed(0)
    return nn.Linear(19, 5), float_examples(1400, (19,), 5), "cross_entropy"


def mlp_case():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(33, 21), nn.ReLU(), nn.Dropout(0.3), nn.Linear(21, 7))
    return module, float_examples(1400, (33,), 7), "cross_entropy"


def cnn_case():
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(2, 5, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.2), nn.Flatten(), nn.Linear(80, 4)
    )
    return module, float_examples(1400, (2, 8, 8), 4), "cross_entropy"


class Characters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.lstm = models.LSTM(6, 9, layers=2)
        self.head = nn.Linear(9, 11)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embedding(x)))


def lstm_case():
    torch.manual_seed(0)
    tokens = torch.randint(0, 11, (1400, 8), generator=torch.Generator().manual_seed(3))
    return Characters(), Examples(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()), "cross_entropy"


def sparse_case():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(4)
    words = torch.rand(1400, 40, generator=generator) * (torch.rand(1400, 40, generator=generator) < 0.1)
    tags = (torch.rand(1400, 6, generator=generator) < 0.3).float()
    return nn.Linear(40, 6), Examples(Sparse.of(words), Sparse.of(tags)), "binary_cross_entropy"


CASES = {"softmax": softmax_case, "mlp": mlp_case, "cnn": cnn_case, "lstm": lstm_case, "sparse": sparse_case}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("client", [clients.SGD(0.1), clients.Adam(0.01, delay=2)], ids=["sgd", "adam"])
def test_same_bits_for_any_number_of_threads(case, client):
    module, examples, loss = CASES[case]()
    work = make_work(module, ragged(150), client, keep_deltas=True)  # more clients than lanes
    one, *others = (native.Native(module, loss, examples, threads=n).run(work) for n in (1, 2, 5))
    for other in others:
        assert torch.equal(one.delta, other.delta)
        assert torch.equal(one.deltas, other.deltas)
        for name, value in one.scalars.items():
            assert torch.equal(value.nan_to_num(-7), other.scalars[name].nan_to_num(-7)), name


def split_sparse_case():
    _, examples, loss = sparse_case()
    return nn.Sequential(nn.Linear(40, 9), nn.ReLU(), nn.Linear(9, 6)), examples, loss


def contrast_of(module: nn.Module, clients_: int, mu: float = 1.0) -> Contrast:
    """Every third client is met for the first time."""
    packing = ff.Packing.of(module)
    row = torch.arange(clients_) - torch.arange(clients_) // 3 - 1
    row[::3] = -1
    noise = torch.randn(int(row.max()) + 1, packing.size, generator=torch.Generator().manual_seed(6))
    return Contrast(mu, 0.5, None, packing.pack(module) + 0.1 * noise, row)


CONTRASTED = {"mlp": mlp_case, "cnn": cnn_case, "lstm": lstm_case, "sparse": split_sparse_case}


@pytest.mark.parametrize("case", CONTRASTED)
@pytest.mark.parametrize("client", [clients.SGD(0.1), clients.DeltaSGD(0.1, same_batch=True)], ids=["sgd", "delta_sgd"])
@pytest.mark.parametrize("keep_deltas", [True, False])
def test_same_bits_for_any_number_of_threads_with_a_contrast(case, client, keep_deltas):
    module, examples, loss = CONTRASTED[case]()
    work = make_work(module, ragged(150), client, keep_deltas=keep_deltas, contrast=contrast_of(module, 150))
    one, *others = (native.Native(module, loss, examples, threads=n).run(work) for n in (1, 2, 5))
    for other in others:
        assert torch.equal(one.delta, other.delta)
        for name, value in one.scalars.items():
            assert torch.equal(value.nan_to_num(-7), other.scalars[name].nan_to_num(-7)), name


@pytest.mark.parametrize("case", CONTRASTED)
def test_a_contrast_leaves_nothing_behind(case):
    module, examples, loss = CONTRASTED[case]()
    engine = native.Native(module, loss, examples, threads=2)
    plain = make_work(module, ragged(40), clients.SGD(0.1))
    contrasted = replace(plain, contrast=contrast_of(module, 40))
    wider = make_work(module, ragged(40, most=30), clients.SGD(0.1), batch_size=9, contrast=contrast_of(module, 40))
    first, other = engine.run(plain), engine.run(contrasted)
    engine.run(wider)  # in larger arrays
    assert torch.equal(first.delta, engine.run(plain).delta)
    assert torch.equal(other.delta, engine.run(contrasted).delta)
    assert not torch.equal(first.delta, other.delta)


@pytest.mark.parametrize("clients_", [1, 2, 3, 63, 64, 65, 129])
def test_the_lanes_add_up_for_every_number_of_clients(clients_):
    module, examples, loss = softmax_case()
    work = make_work(module, ragged(clients_), clients.SGD(0.1), keep_deltas=True)
    outcome = native.Native(module, loss, examples, threads=2).run(work)
    weights = work.counts.double() / work.counts.sum()
    torch.testing.assert_close(outcome.delta.double(), weights @ outcome.deltas.double(), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("policy", [DeltaPolicy("uniform", clip=0.05), DeltaPolicy("examples", divide_by_steps=True)])
def test_the_sparse_way_gives_what_the_dense_way_gives(policy):
    module, examples, loss = sparse_case()
    sizes = ragged(90)
    sizes[5] = sizes[6] = 0
    work = make_work(module, sizes, clients.SGD(0.3), policy=policy)
    dense = Examples(examples.inputs.dense(torch.arange(1400)), examples.targets.dense(torch.arange(1400)))
    sparse_way = native.Native(module, loss, examples).run(work)
    dense_way = native.Native(module, loss, dense).run(work)
    torch.testing.assert_close(sparse_way.delta, dense_way.delta, rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(sparse_way.scalars["delta_norm"], dense_way.scalars["delta_norm"], rtol=1e-5, atol=1e-8)
    untouched = (examples.inputs.dense(work.rows) == 0).all(0)
    weight = ff.Packing.of(module).views(sparse_way.delta)["weight"]
    assert (weight[:, untouched] == 0).all()


@pytest.mark.parametrize("case", CASES)
def test_a_norm_has_the_same_bits_whether_or_not_it_is_wanted_before_the_sum(case):
    """A limit that nobody reaches: norms come first then, and from other loops."""
    module, examples, loss = CASES[case]()
    engine = native.Native(module, loss, examples)
    plain, limited = (
        engine.run(make_work(module, ragged(20), clients.SGD(0.1), policy=DeltaPolicy("uniform", clip=clip)))
        for clip in (None, 1e6)
    )
    assert torch.equal(plain.scalars["delta_norm"], limited.scalars["delta_norm"])
    assert torch.equal(plain.delta, limited.delta)


def test_a_round_leaves_nothing_behind_for_the_next():
    module, examples, loss = sparse_case()
    engine = native.Native(module, loss, examples)
    work = make_work(module, ragged(40), clients.SGD(0.3))
    first = engine.run(work)
    engine.run(make_work(module, ragged(70), clients.Adam(0.1), batch_size=9))
    again = engine.run(work)
    assert torch.equal(first.delta, again.delta)


def test_the_work_is_not_written_to():
    module, examples, loss = cnn_case()
    work = make_work(module, ragged(9), clients.Momentum(0.1))
    before = work.start.clone()
    native.Native(module, loss, examples).run(work)
    assert torch.equal(work.start, before)


def test_a_client_that_blows_up_is_refused_and_the_others_count():
    module, examples, loss = softmax_case()
    examples.inputs[10] = float("inf")
    work = make_work(module, [8, 8, 8], clients.SGD(0.1), rows=torch.arange(24))
    outcome = native.Native(module, loss, examples).run(work)
    assert outcome.refused.tolist() == [False, True, False]
    clean = make_work(module, [8, 0, 8], clients.SGD(0.1), rows=torch.cat([torch.arange(8), torch.arange(16, 24)]))
    torch.testing.assert_close(outcome.delta, native.Native(module, loss, examples).run(clean).delta)


def test_nobody_counts():
    module, examples, loss = softmax_case()
    outcome = native.Native(module, loss, examples).run(make_work(module, [0, 0], clients.SGD(0.1)))
    assert torch.equal(outcome.delta, torch.zeros_like(outcome.delta))
    assert outcome.scalars["steps"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("case", "break_it", "words"),
    [
        (softmax_case, lambda e: e.targets.__setitem__(9, 5), r"client 4 \(position 1\).* label 5 .* 5 classes"),
        (
            lstm_case,
            lambda e: e.inputs.__setitem__((9, 0), 11),
            r"client 4 \(position 1\).* token 11 .* vocabulary of 11",
        ),
    ],
)
def test_an_error_names_the_client(case, break_it, words):
    module, examples, loss = case()
    break_it(examples)
    work = make_work(module, [8, 8, 8], clients.SGD(0.1), rows=torch.arange(24))
    with pytest.raises(RuntimeError, match=words):
        native.Native(module, loss, examples, threads=2).run(work)


def test_a_row_outside_the_store_is_refused():
    module, examples, loss = softmax_case()
    work = make_work(module, [3], clients.SGD(0.1), rows=torch.tensor([0, 1400, 1]))
    with pytest.raises((RuntimeError, ValueError), match="1400"):
        native.Native(module, loss, examples).run(work)


@pytest.mark.parametrize("case", ["mlp", "cnn", "sparse"])
def test_ctrl_c_stops_a_round_and_the_engine_lives_on(case):
    module, examples, loss = CASES[case]()
    engine = native.Native(module, loss, examples, threads=2)
    short = make_work(module, ragged(8), clients.SGD(0.1))
    endless = replace(short, steps=torch.full((8,), 1 << 40))
    before = engine.run(short)
    timer = threading.Timer(0.3, lambda: signal.raise_signal(signal.SIGINT))
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            engine.run(endless)
        timer.join()
    finally:
        signal.signal(signal.SIGINT, previous)
    assert torch.equal(before.delta, engine.run(short).delta)


def test_two_rounds_at_once_do_not_meet():
    module, examples, loss = mlp_case()
    engine = native.Native(module, loss, examples, threads=1)
    works = [make_work(module, ragged(60), clients.SGD(lr)) for lr in (0.1, 0.2)]
    alone = [engine.run(work).delta for work in works]
    together: list[torch.Tensor] = [torch.empty(0)] * 2
    threads = [
        threading.Thread(target=lambda i=i: together.__setitem__(i, engine.run(works[i]).delta)) for i in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


def test_pixels_are_read_as_the_other_executors_read_them():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))
    generator = torch.Generator().manual_seed(5)
    pixels = Pixels(
        torch.randint(0, 256, (30, 3, 6, 6), dtype=torch.uint8, generator=generator), (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    )
    labels = torch.randint(0, 5, (30,), generator=generator)
    work = make_work(module, [10, 10, 10], clients.SGD(0.05))
    floats = Examples(pixels.dense(torch.arange(30)), labels)
    from_bytes = native.Native(module, "cross_entropy", Examples(pixels, labels)).run(work)
    assert torch.equal(from_bytes.delta, native.Native(module, "cross_entropy", floats).run(work).delta)
    eager = Eager(module, "cross_entropy", Examples(pixels, labels)).run(work)
    torch.testing.assert_close(from_bytes.delta, eager.delta, rtol=1e-3, atol=1e-6)


def test_float64_and_callables_are_refused_with_a_sentence():
    module, examples, _ = softmax_case()
    with pytest.raises(ValueError, match="float32"):
        native.Native(module.double(), "cross_entropy", examples)
    with pytest.raises(ValueError, match="loss"):
        native.Native(module.float(), nn.functional.cross_entropy, examples)


def test_the_engine_refuses_names_that_it_does_not_know() -> None:
    from fastfed import _core

    def program(
        op: str = "linear", loss: str = "cross_entropy", kind: str = "vector", reduction: str = "mean"
    ) -> _core.Program:
        values = [(kind, 1, 4, 0, 0), ("vector", 1, 3, 0, 0)]
        return _core.Program(values, [(op, [0], 1, [0, -1], {})], 1, loss, reduction, 12, 0, torch.zeros(0))

    program()
    with pytest.raises(ValueError, match="program: has no layer 'bilinear'"):
        program(op="bilinear")
    with pytest.raises(ValueError, match="loss: must be a known one, not 'hinge'"):
        program(loss="hinge")
    with pytest.raises(ValueError, match="values: must be of a known kind, not 'matrix'"):
        program(kind="matrix")


def test_statistics_that_batch_norms_lack_are_refused() -> None:
    from fastfed import _core

    values = [("vector", 1, 4, 0, 0), ("vector", 1, 4, 0, 0)]
    settings = {"mean": 0.0, "variance": 4.0, "eps": 1e-5, "momentum": 0.1, "frozen": 0.0}
    made = [("batch_norm", [0], 1, [0, 4], settings)]
    _core.Program(values, made, 1, "mse", "mean", 8, 8, torch.zeros(0))
    with pytest.raises(ValueError, match="program: a running statistic lies outside their vector"):
        _core.Program(values, made, 1, "mse", "mean", 8, 7, torch.zeros(0))
    module = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))
    engine = make("native", module, "cross_entropy", vectors())
    x = ff.Packing.of(module, batch_norm=True).pack(module)
    with pytest.raises(ValueError, match="statistics: the module's batch norms have 6 of them, got none"):
        engine.run(round_of(x))
    with pytest.raises(ValueError, match=r"statistics: the module's batch norms have 6 of them, got \(5,\)"):
        engine.predict(x, vectors(), torch.arange(3), torch.ones(5))
