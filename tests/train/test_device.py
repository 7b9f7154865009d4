"""`device`: kernels in Triton's interpreter, at the tile sizes that ship, against `eager`.

Needs a session of its own: ``TRITON_INTERPRET=1 pytest -m device tests/train``, or on a card
``FASTFED_DEVICE=cuda pytest -m device tests/train``. `make test` runs a chosen part of the table of cases, `make
device-proof` all of it, and under the race detector; `make gpu` all that a card can run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastfed as ff
from fastfed.data import Examples
from fastfed.kernels import registry
from fastfed.train import Outcome, RoundWork

from .agreement import CASES, Case, assert_agrees, assert_close, kept, run
from .support import DEVICE, TIMES, labels, make, normal, round_of

pytest.importorskip("triton", reason="Triton is not installed")
if not registry.interpreting() and DEVICE == "cpu":
    pytest.skip("device kernels run in Triton's interpreter here (TRITON_INTERPRET=1)", allow_module_level=True)

import triton.language as tl
from triton.runtime.errors import InterpreterError

from fastfed.kernels.triton import races
from fastfed.kernels.triton.engine import products
from fastfed.train.device import Device
from fastfed.train.device.fused import FusedChunk
from fastfed.train.device.kept import KeptChunk

pytestmark = pytest.mark.device

# Every kind of layer, data and rule at least once; the others are exhaustive.
CHOSEN = {
    "mlp-sgd corrected", "mlp-adam delayed by epochs", "mlp-sm3 delayed", "mlp-sm3-I", "mlp-sm3-adam", "mlp-sps",
    "mlp-delta-sgd same batch", "dropout-sgd", "cnn-sgd", "tagger-sgd", "tags-sm3", "autoencoder-sgd",
    "softmax-sgd-models", "softmax-sgd-seen", "softmax-sgd-clip-uniform", "mlp-sgd corrected-cosine after",
    "augmented-sgd", "mirrored-sgd", "augmented-delta-sgd same batch",
    "mlp-adam-contrast", "tags-adagrad+sm3-divide-preconditioner", "features of words-sgd",
}  # fmt: skip
assert {case.id for case in CASES} >= CHOSEN


def table(cases: list[Case], chosen: Collection[str] = CHOSEN) -> Any:
    """Parametrises a test by these cases; those beyond the chosen part are for `make device-proof`."""
    marks = [() if case.id in chosen else (pytest.mark.exhaustive,) for case in cases]
    given = [pytest.param(case, id=case.id, marks=mark) for case, mark in zip(cases, marks, strict=True)]
    return pytest.mark.parametrize("case", given)


# ---- the table of cases ---------------------------------------------------------------------------------------------


# With gradients kept; large models are chosen where rules are fused, as they ship.
@table(CASES, CHOSEN - {"cnn-sgd", "tagger-sgd", "mlp-adam-contrast", "augmented-delta-sgd same batch"})
def test_agrees_with_eager(case: Case) -> None:
    """Gradients are kept, because FATHOM's cosine is measured."""
    assert_agrees(case, run(case, "device"))


FUSED_RULES = {"sgd", "momentum", "adam delayed by epochs", "sm3", "sm3 delayed", "sm3 reference", "sm3-adam"}
# SM3 divides the small convolutions of these tasks into other rows and columns than their products have.
KEPT = {(task, rule) for task in ("cnn", "augmented", "pyramid") for rule in FUSED_RULES if rule.startswith("sm3")}
FUSED = [
    case
    for case in CASES
    if set(case.rules) & FUSED_RULES and "contrast" not in case.asks and not KEPT & {(case.task, r) for r in case.rules}
]


# Convolutions and sequences, which take the interpreter longest, are fused in `test_shapes_beyond_one_tile`, too.
@table(
    FUSED,
    CHOSEN
    - {"mlp-sm3-adam", "augmented-sgd", "tags-adagrad+sm3-divide-preconditioner", "softmax-sgd-models"}
    - {"cnn-sgd", "tagger-sgd"},
)
def test_agrees_with_eager_where_rules_are_fused(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing measures gradients, so they never reach memory where the rule allows it."""
    made: list[FusedChunk] = []
    begin = FusedChunk.__init__
    monkeypatch.setattr(FusedChunk, "__init__", lambda self, *given: (made.append(self), begin(self, *given))[1])
    got, plain, exact = (
        run(case, name, dtype, measure_cosine=False)
        for name, dtype in (("device", torch.float32), ("eager", torch.float32), ("eager", torch.float64))
    )
    assert len(made) == len(set(case.rules) & FUSED_RULES)
    assert_same_training(got, plain, exact)


def assert_same_training(got: Outcome, plain: Outcome, exact: Outcome) -> None:
    assert_close("delta", got.delta, plain.delta, exact.delta)
    assert_close("deltas", *(kept(outcome) for outcome in (got, plain, exact)))
    error = TIMES * float((kept(plain) - kept(exact)).norm())
    for name in ("first_loss", "last_loss", "mean_loss", "delta_norm", "step_size"):
        values = (outcome.scalars[name].nan_to_num() for outcome in (got, plain, exact))
        assert_close(name, *values, error if name == "delta_norm" else 1e-6)


# ---- bits -----------------------------------------------------------------------------------------------------------


def run_in_chunks(case: Case, clients: int, monkeypatch: pytest.MonkeyPatch, **otherwise: Any) -> Outcome:
    monkeypatch.setattr(Device, "_clients_at_once", lambda *_: clients)
    return run(case, "device", **otherwise)


HEAVY = ("cnn", "pyramid", "tagger")  # the interpreter takes half a minute
# Each runs three times: what keeps state, draws or goes by norms is chosen, one of a kind (crops: test_augment.py).
CHUNKED = {
    "mlp-sm3-adam", "tags-sm3", "softmax-sgd-clip-uniform",
}  # fmt: skip
assert CHUNKED <= CHOSEN


@table([case for case in CASES if case.id in CHOSEN and case.task not in HEAVY], CHUNKED)
def test_same_bits_for_any_chunk(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(case, "device")
    for clients in (1, 3):
        assert_same_bits(run_in_chunks(case, clients, monkeypatch), whole)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "case", [case for case in CASES if case.task in HEAVY or len(case.asks) >= 4], ids=lambda c: c.id
)
def test_same_bits_for_any_chunk_of_large_models(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(case, "device")
    for clients in (1, 3):
        assert_same_bits(run_in_chunks(case, clients, monkeypatch), whole)


@pytest.mark.parametrize(
    "rule", ["adam delayed by epochs", *(pytest.param(rule, marks=pytest.mark.exhaustive) for rule in ("sgd", "sm3"))]
)
def test_same_bits_for_any_chunk_where_rules_are_fused(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("mlp", (rule,))
    whole = run(case, "device", measure_cosine=False)
    for clients in (1, 3):
        assert_same_bits(run_in_chunks(case, clients, monkeypatch, measure_cosine=False), whole)


def assert_same_bits(got: Outcome, wanted: Outcome) -> None:
    assert torch.equal(kept(got), kept(wanted))
    assert torch.equal(got.delta, wanted.delta)
    for name, values in got.scalars.items():
        assert torch.equal(values.nan_to_num(), wanted.scalars[name].nan_to_num()), name


# ---- races ----------------------------------------------------------------------------------------------------------


interpreted = pytest.mark.skipif(not registry.interpreting(), reason="needs Triton's interpreter (TRITON_INTERPRET=1)")


# Convolutions and sequences are watched in `test_shapes_beyond_one_tile`.
@interpreted
@table(
    CASES,
    {
        "mlp-sm3 delayed",
        "mlp-sps",
        "mlp-sm3-adam",
        "dropout-sgd",
        "mirrored-sgd",
        "tags-sm3",
        "softmax-sgd-models",
    },
)
def test_no_races(case: Case) -> None:
    if case.id in CHOSEN and case.task not in ("mlp", "softmax"):
        steps = torch.tensor([2, 1, 2, 1, 0, 0, 0])
    else:
        steps = torch.tensor([2, 2, 1, 1, 2, 0, 0])
    for measured in (True, False):
        with races.watched() as verdict:
            run(case, "device", measure_cosine=measured, steps=steps)
        verdict.check()


def test_a_deleted_barrier_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tl, "debug_barrier", lambda: None)
    for case in (Case("softmax", ("sgd",)), Case("mlp", ("adam",))):  # driver 2 between steps, driver 1 in its biases
        with races.watched() as verdict:
            run(case, "device", measure_cosine=False)
        assert verdict.races, case.id


def test_a_swapped_operand_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Square tiles would go unnoticed by shapes alone."""
    monkeypatch.setattr(products, "_rows_first", products._columns_first)
    with pytest.raises((AssertionError, InterpreterError)):
        assert_agrees(Case("mlp", ("sgd",)), run(Case("mlp", ("sgd",)), "device"))


# ---- shapes beyond one tile -----------------------------------------------------------------------------------------


def _net(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers)


class Sequences(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(70, 9, padding_idx=3)
        self.norm = nn.LayerNorm(9)
        self.lstm = nn.LSTM(9, 37, batch_first=True)
        self.head = nn.Linear(37, 67)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.norm(self.embedding(tokens)))[0])


class LastOfSequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(6, 5, num_layers=2, batch_first=True, bias=False), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.sigmoid(self.lstm(x)[0][:, -1]))


class Shared(nn.Module):
    """One layer twice, and a residual sum through a curve."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(10, 10), nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.layer(x))
        return self.head(torch.tanh(x + torch.sigmoid(self.layer(x))))


class Spare(nn.Module):
    """A parameter that nobody uses still decays."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.spare = nn.Linear(6, 3), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "wide": (lambda: _net(nn.Linear(70, 131), nn.ReLU(), nn.Linear(131, 67), nn.SiLU(), nn.Linear(67, 66)), (70,), 66),
    "long batches": (lambda: _net(nn.Linear(6, 40), nn.Sigmoid(), nn.Linear(40, 3)), (6,), 3),
    "convolutions": (
        lambda: _net(
            nn.Conv2d(3, 20, 3, stride=2, padding=1), nn.Sigmoid(), nn.Conv2d(20, 34, (1, 2)), nn.MaxPool2d(3, 2, 1),
            nn.Tanh(), nn.Conv2d(34, 6, 2, bias=False), nn.AdaptiveMaxPool2d((2, 1)), nn.Flatten(), nn.Linear(12, 3),
        ),
        (3, 11, 9), 3,
    ),
    "pooled convolutions": (
        lambda: _net(
            nn.Conv2d(2, 5, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(5, 34, 2, padding=1), nn.MaxPool2d(2), nn.ReLU(),
            nn.Flatten(), nn.Linear(204, 3),
        ),
        (2, 9, 12), 3,
    ),
    "pools": (
        lambda: _net(
            nn.Conv2d(1, 3, 2), nn.AvgPool2d(3, 2, 1, count_include_pad=False), nn.GELU("tanh"), nn.GroupNorm(3, 3),
            nn.AdaptiveAvgPool2d((3, 2)), nn.Flatten(), nn.LayerNorm(18, elementwise_affine=False), nn.Linear(18, 3),
        ),
        (1, 9, 8), 3,
    ),
    "channels": (lambda: _net(nn.Flatten(), nn.Linear(24, 3)), (2, 3, 4), 3),
    "sequences": (Sequences, (5,), 67),
    "last of a sequence": (LastOfSequence, (4, 6), 3),
    "shared": (Shared, (10,), 3),
    "spare": (Spare, (6,), 3),
}  # fmt: skip

SIZES = (5, 70, 3)


def given_to(name: str) -> tuple[nn.Module, Examples, RoundWork]:
    make_module, shape, classes = MODELS[name]
    with torch.random.fork_rng():
        torch.manual_seed(3)
        module = make_module()
    rows = sum(SIZES)
    tokens = name == "sequences"
    inputs = labels(1, 70, rows, *shape) if tokens else normal(1, rows, *shape)
    targets = labels(2, classes, rows, *shape[: int(tokens)])
    rule = ff.clients.SGD(lr=0.5, weight_decay=0.1, prox=0.2)
    batch = 70 if name in ("long batches", "wide") else 4
    return module, Examples(inputs, targets), round_of(module, SIZES, batch_size=batch, steps=torch.tensor([2, 2, 1]),
                                                       optimizers=(rule,))  # fmt: skip


SLOW = ("sequences", "pooled convolutions")  # the interpreter takes a quarter of all models' time for one of them


@pytest.mark.parametrize("fused", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("name", [pytest.param(m, marks=pytest.mark.exhaustive if m in SLOW else ()) for m in MODELS])
def test_shapes_beyond_one_tile(name: str, fused: bool) -> None:
    module, examples, work = given_to(name)
    work = replace(work, measure_cosine=not fused)
    got, plain = (make(e, module, "cross_entropy", examples).run(work) for e in ("device", "eager"))
    exact = make("eager", module, "cross_entropy", examples).run(replace(work, start=work.start.double()))
    assert_same_training(got, plain, exact)
    if registry.interpreting():
        with races.watched() as verdict:
            make("device", module, "cross_entropy", examples).run(replace(work, steps=torch.tensor([1, 0, 1])))
        verdict.check()


# ---- clients that go wrong, and refusals ----------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # numpy, in the interpreter, warns of what is tested
@pytest.mark.parametrize("kind", [KeptChunk, FusedChunk])
def test_a_client_with_non_finite_data_is_refused_and_changes_nobody(kind: type) -> None:
    module, examples, work = given_to("spare")
    work = replace(work, measure_cosine=kind is KeptChunk)
    inputs = examples.inputs
    assert isinstance(inputs, Tensor)
    inputs[5:75] = float("nan")
    got, eager = (make(e, module, "cross_entropy", examples).run(work) for e in ("device", "eager"))
    assert got.refused.tolist() == eager.refused.tolist() == [False, True, False]
    torch.testing.assert_close(got.delta, eager.delta)
    assert bool(torch.isfinite(got.delta).all())


def device(module: nn.Module, loss: Any = "cross_entropy", **given: Any) -> Device:
    return Device(module, loss, Examples(normal(1, 4, 6), labels(2, 3, 4)), **{"device": DEVICE, **given})


@pytest.mark.parametrize(
    ("refused", "sentence"),
    [
        (lambda: device(nn.Linear(6, 3), device="meta"), r"^device: executor 'device' runs on .+, got meta"),
        (lambda: device(nn.Linear(6, 3), loss=lambda a, b: a.sum()), r"^loss: the device engine knows losses by name"),
        (lambda: device(nn.Linear(6, 3), threads=2), r"^threads: executor 'device' has no use for them, got 2"),
        (lambda: device(nn.Linear(6, 3), memory=0), r"^memory: must be a whole number of bytes >= 1, or None, got 0"),
        (lambda: device(nn.Linear(6, 3).double()), r"^module: the device engine computes in float32"),
        (lambda: device(nn.Sequential(nn.Linear(6, 3), nn.Softmax(1))), r"Softmax"),
    ],
)
def test_refusals(refused: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        refused()


def test_a_client_that_does_not_fit_is_refused_with_its_bytes() -> None:
    module, examples, work = given_to("spare")
    small = Device(module, "cross_entropy", examples, device=DEVICE, memory=1000)
    with pytest.raises(MemoryError, match=r"^memory: one client of this round takes about [\d,]{5,} bytes on \w+, and "
                       r"1,000 are there; smaller batches"):  # fmt: skip
        small.run(work)


def test_a_client_beyond_the_usual_share_trains_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default a chunk takes half of what is free; one client may take all of it."""
    module, examples, work = given_to("spare")
    one = Device(module, "cross_entropy", examples, device=DEVICE)
    monkeypatch.setattr(one, "memory", 1)
    assert one._clients_at_once(work, work.optimizers[0], 4, one.resident) == 1
    monkeypatch.setattr(one, "_limit", 1)
    with pytest.raises(MemoryError, match="and 1 are there"):
        one._clients_at_once(work, work.optimizers[0], 4, one.resident)
