"""The self-test of a card: that it passes where kernels are right, finds what is wrong, and is asked when it should be.

There is no card here: its rounds run in Triton's interpreter (``TRITON_INTERPRET=1 pytest -m device tests/train``), and
what is kept of verdicts is tested on a card that is made up.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fastfed.app.commands import terminal
from fastfed.cards import Card
from fastfed.kernels import registry
from fastfed.train.device import self_test
from fastfed.train.device.self_test import SelfTestFailed, Verdict

CARD = Card(0, "Made-up 9000", "9.0", 70 << 30, 80 << 30, "570.1")
CUDA = torch.device("cuda")
OF_ANOTHER = '{"key": {"card": "another"}, "verdict": {"device": "cuda", "failures": [], "seconds": 1.0}}'

# ---- rounds ---------------------------------------------------------------------------------------------------------

interpreted = pytest.mark.skipif(not registry.interpreting(), reason="needs Triton's interpreter (TRITON_INTERPRET=1)")
CASE = {case.name: case for case in self_test.CASES}


@pytest.mark.exhaustive
@pytest.mark.device
@interpreted
def test_right_kernels_pass_and_every_driver_is_among_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from fastfed.train.device import Device
    from fastfed.train.device.client import ClientChunk
    from fastfed.train.device.fused import FusedChunk
    from fastfed.train.device.kept import KeptChunk

    seen: set[type] = set()
    kind_of = Device._kind
    monkeypatch.setattr(Device, "_kind", lambda *given: (seen.add(kind := kind_of(*given)), kind)[1])
    verdict = self_test.run("cpu")
    assert verdict.passed, verdict.words
    assert (verdict.device, verdict.words) == ("cpu", "passed")
    assert seen == {KeptChunk, FusedChunk, ClientChunk}


def _wrong_sign(patch: pytest.MonkeyPatch) -> None:
    """The loss is right, its gradient points the other way."""
    from fastfed.kernels.triton.engine.layers import Layers

    right = Layers.loss

    def wrong(self: Layers, *given: Any) -> Any:
        found = right(self, *given)
        self.grads[self.network.steps[-1].output].neg_()
        return found

    patch.setattr(Layers, "loss", wrong)


def _operand_read_backwards(patch: pytest.MonkeyPatch) -> None:
    """The update of the first layer reads the features of the step before from the wrong end."""
    from fastfed.kernels.triton.engine import products

    right = products.update_forward

    def wrong(layer: Any, batch: int, x: Tensor, inputs: Tensor, before: Tensor, *given: Any) -> None:
        rows = before.clone().view(len(x), batch, -1)
        rows[..., : layer.inputs] = rows[..., : layer.inputs].flip(-1)
        right(layer, batch, x, inputs, rows.view(before.shape), *given)

    patch.setattr(products, "update_forward", wrong)


def _less_precise_products(patch: pytest.MonkeyPatch) -> None:
    """Inputs with the eleven bits that plain tf32 keeps, which is what a card does that forgets tf32x3."""
    from fastfed.train.device.inputs import Gathering

    right = Gathering.inputs_of

    def wrong(self: Gathering, rows: Tensor, lengths: Tensor, batch: int, into: Tensor) -> None:
        right(self, rows, lengths, batch, into)
        into.copy_((into.view(torch.int32) & ~0x1FFF).view(torch.float32))

    patch.setattr(Gathering, "inputs_of", wrong)


def _chunks_that_differ(patch: pytest.MonkeyPatch) -> None:
    """One rounding more where fewer clients train side by side."""
    from fastfed.train.device.fused import FusedChunk

    right = FusedChunk.train

    def wrong(self: FusedChunk) -> dict[str, Tensor]:
        found = right(self)
        if len(self.clients) <= self_test.FEW:
            self.x.mul_(1 + 2**-23)
        return found

    patch.setattr(FusedChunk, "train", wrong)


def _nothing_replayed(patch: pytest.MonkeyPatch) -> None:
    from fastfed.kernels.triton import graphs

    patch.setattr(graphs._Tape, "replay", lambda self: None)


def _a_lane_left_out_of_the_step(patch: pytest.MonkeyPatch) -> None:
    from fastfed.train.device import lanes

    right = lanes.lanes_step

    def wrong(rule: str, x: Tensor, sums: Tensor, *given: Any, **options: Any) -> None:
        right(rule, x, sums[:1], *given, **options)

    patch.setattr(lanes, "lanes_step", wrong)


def _stopping(patch: pytest.MonkeyPatch) -> None:
    def stops(*given: Any) -> None:
        raise RuntimeError("PassManager::run failed\nin some file")

    patch.setattr(self_test._Trial, "run", stops)


@pytest.mark.device
@interpreted
@pytest.mark.parametrize(
    ("case", "broken", "sentence"),
    [
        ("sparse inputs", _wrong_sign, "deltas differ from float64 by"),
        ("dense layers, SGD fused", _operand_read_backwards, "deltas differ from float64 by"),
        ("dense layers, SGD fused", _less_precise_products, "deltas differ from float64 by"),
        ("sparse inputs", _chunks_that_differ, "2 clients at once give other bits than 4"),
        ("dense layers, SGD fused", _nothing_replayed, "launches that are replayed give other bits"),
        ("sparse inputs", _a_lane_left_out_of_the_step, "lanes that are joined by the server's step give other bits"),
        ("sparse inputs", _stopping, "it stopped with RuntimeError: PassManager::run failed"),
    ],
)
def test_what_is_wrong_is_found(
    case: str, broken: Callable[[pytest.MonkeyPatch], None], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    verdict = self_test.run("cpu", [CASE[case]])
    (failure,) = verdict.failures
    assert failure.startswith(f"{case}: {sentence}")
    assert "\n" not in failure
    assert verdict.words == f"failed: {failure}"


# ---- verdicts that are kept -----------------------------------------------------------------------------------------


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Verdict]:
    """A machine with a card whose self-test passes, and an empty cache; the verdicts of tests that were run."""
    made: list[Verdict] = []

    def run(device: torch.device) -> Verdict:
        made.append(Verdict(str(device), (), 1.0))
        return made[-1]

    monkeypatch.setenv("FASTFED_CACHE", str(tmp_path))
    monkeypatch.delenv(self_test.VARIABLE, raising=False)
    monkeypatch.setattr(self_test, "card_of", lambda index: CARD)
    monkeypatch.setattr(self_test, "_triton_version", lambda: "3.6.0")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: CARD.name)
    monkeypatch.setattr(self_test, "run", run)
    monkeypatch.setattr(self_test, "_settled", set())
    return made


def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_test, "_settled", set())


def test_the_first_use_of_a_card_runs_it_once_and_says_so(
    runs: list[Verdict], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert self_test.kept(CUDA) is None
    self_test.require(CUDA)
    assert capsys.readouterr().err.startswith("fastfed: first use of Made-up 9000: testing the kernels")
    self_test.require(CUDA)
    new_process(monkeypatch)
    self_test.require(CUDA)
    assert (len(runs), capsys.readouterr().err) == (1, "")
    assert self_test.kept(CUDA) == runs[0]


@pytest.mark.parametrize("part", ["card", "capability", "driver", "torch", "triton", "fastfed", "kernels"])
def test_a_verdict_is_for_this_card_and_these_versions(
    part: str, runs: list[Verdict], monkeypatch: pytest.MonkeyPatch
) -> None:
    self_test.require(CUDA)
    before = self_test.key_of(CUDA)
    monkeypatch.setattr(self_test, "key_of", lambda device: {**before, part: "another"})
    assert set(before) >= {part}
    new_process(monkeypatch)
    self_test.require(CUDA)
    assert len(runs) == 2


def test_the_hash_is_of_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "triton" / "engine").mkdir(parents=True)
    monkeypatch.setattr(self_test.kernels, "__file__", str(tmp_path / "__init__.py"))
    found = set()
    for text in ("one", "two"):
        (tmp_path / "triton" / "engine" / "products.py").write_text(text)
        self_test.sources_hash.cache_clear()
        found.add(self_test.sources_hash())
    self_test.sources_hash.cache_clear()
    assert len(found) == 2


@pytest.mark.parametrize("text", ["", '{"key": {}}', "[]", OF_ANOTHER])
def test_a_damaged_file_is_no_verdict(text: str, runs: list[Verdict], monkeypatch: pytest.MonkeyPatch) -> None:
    self_test._file_of(self_test.key_of(CUDA)).write_text(text)
    self_test.require(CUDA)
    assert len(runs) == 1


def fail(runs: list[Verdict], monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the self-test fails."""

    def run(device: torch.device) -> Verdict:
        runs.append(Verdict(str(device), ("sparse inputs: deltas differ",), 1.0))
        return runs[-1]

    monkeypatch.setattr(self_test, "run", run)


def test_a_card_that_failed_is_refused_until_it_is_tested_again(
    runs: list[Verdict], monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(runs, monkeypatch)
    for _ in range(2):  # the second time by what was kept
        with pytest.raises(
            SelfTestFailed, match=r"^device: the kernels compute wrongly on cuda \(sparse inputs: "
        ) as e:
            self_test.require(CUDA)
    assert len(runs) == 1
    assert "FASTFED_SELF_TEST=again" in str(e.value)
    monkeypatch.setenv(self_test.VARIABLE, "off")
    self_test.require(CUDA)
    monkeypatch.setenv(self_test.VARIABLE, "again")
    monkeypatch.setattr(self_test, "run", lambda device: Verdict(str(device), (), 2.0))
    self_test.require(CUDA)
    verdict = self_test.kept(CUDA)
    assert verdict is not None
    assert verdict.passed


def test_again_means_once_in_a_process(runs: list[Verdict], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(self_test.VARIABLE, "again")
    for _ in range(2):
        self_test.require(CUDA)
    assert len(runs) == 1


def test_a_word_that_means_nothing_is_refused(runs: list[Verdict], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(self_test.VARIABLE, "no")
    with pytest.raises(ValueError, match=r"^FASTFED_SELF_TEST: must be 'off', 'again' or unset, got 'no'"):
        self_test.require(CUDA)


def test_what_is_kept_can_be_read(runs: list[Verdict]) -> None:
    self_test.require(CUDA)
    saved = json.loads(self_test._file_of(self_test.key_of(CUDA)).read_text())
    assert saved["key"]["card"] == "Made-up 9000"
    assert saved["verdict"] == {"device": "cuda", "failures": [], "seconds": 1.0}


def test_a_card_without_memory_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> None:
        raise torch.OutOfMemoryError("nothing left")

    monkeypatch.setattr(self_test, "problem_of", full)
    with pytest.raises(torch.OutOfMemoryError):
        self_test.run("cpu")


def test_commands_tell_it_in_a_sentence() -> None:
    assert terminal._told(SelfTestFailed("device: wrong")) == (terminal.FAILED, "device: wrong")


@pytest.mark.device
@interpreted
def test_the_executor_asks_on_a_card_and_not_in_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    from fastfed.train.device import Device

    asked: list[torch.device] = []
    monkeypatch.setattr(self_test, "require", asked.append)
    module, examples = self_test._made(CASE["sparse inputs"])
    made = Device(module, "binary_cross_entropy", examples, device="cpu")
    assert asked == []
    made.device = CUDA
    made._check_card()
    assert asked == [CUDA]
