"""What every executor promises alike: the delta policy, refusals, clients without work; and how one is chosen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fastfed import clients
from fastfed.kernels import extension, registry
from fastfed.program import Unsupported
from fastfed.train import DeltaPolicy, Outcome, RoundWork
from fastfed.train.executors import make

from .agreement import executors, kept
from .support import network, normal, round_of, train, vectors

every_executor = executors("eager", "batched", "native")


def weighted(outcome: Outcome, weights: list[float]) -> Tensor:
    return torch.tensor(weights, dtype=torch.float64) @ kept(outcome).double()


def assert_is(delta: Tensor, wanted: Tensor) -> None:
    assert delta.dtype is torch.float32
    torch.testing.assert_close(delta.double(), wanted, rtol=1e-5, atol=1e-6)


# ---- policy ---------------------------------------------------------------------------------------------------------


@every_executor
def test_weights_by_examples(executor: str) -> None:
    outcome = train(network(), round_of(network(), (9, 4, 6)), executor)
    assert_is(outcome.delta, weighted(outcome, [9 / 19, 4 / 19, 6 / 19]))


@every_executor
def test_uniform_weights(executor: str) -> None:
    outcome = train(network(), round_of(network(), policy=DeltaPolicy("uniform")), executor)
    assert_is(outcome.delta, weighted(outcome, [1 / 3, 1 / 3, 1 / 3]))


@every_executor
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_given_weights_are_taken_as_they_are(executor: str, dtype: torch.dtype) -> None:
    weights = torch.tensor([0.5, -2.0, 4.0], dtype=dtype)
    outcome = train(network(), round_of(network(), policy=DeltaPolicy(weights)), executor)
    assert_is(outcome.delta, weighted(outcome, weights.tolist()))


@every_executor
def test_clip_and_division(executor: str) -> None:
    steps = [1, 4, 8]
    plain = train(network(), round_of(network(), steps=torch.tensor(steps)), executor)
    per_step = (plain.scalars["delta_norm"] / torch.tensor(steps)).tolist()
    limit = sorted(per_step)[1]
    policy = DeltaPolicy("uniform", clip=limit, divide_by_steps=True)
    outcome = train(network(), round_of(network(), steps=torch.tensor(steps), policy=policy), executor)
    assert torch.equal(kept(outcome), kept(plain))  # D_i before the policy
    assert torch.equal(outcome.scalars["delta_norm"], plain.scalars["delta_norm"])
    scales = [min(1.0, limit / norm) / k / 3 for norm, k in zip(per_step, steps, strict=True)]
    assert_is(outcome.delta, weighted(plain, scales))


@every_executor
def test_deltas_are_kept_only_when_asked_for(executor: str) -> None:
    assert train(network(), round_of(network(), keep_deltas=False), executor).deltas is None


# ---- clients that do not count --------------------------------------------------------------------------------------


def idle_work(**given: Any) -> RoundWork:
    """Of five clients one has no examples, one no steps, one no positions."""
    return round_of(
        network(),
        (9, 0, 4, 6, 5),
        steps=torch.tensor([4, 4, 0, 4, 3]),
        seen=torch.tensor([11, 9, 9, 0, 8]),
        **given,
    )


@every_executor
@pytest.mark.parametrize("weights", ["examples", "uniform", "given"])
def test_clients_without_work_do_not_count(executor: str, weights: str) -> None:
    policies: dict[str, tuple[Any, list[float]]] = {
        "examples": ("examples", [9 / 14, 0, 0, 0, 5 / 14]),
        "uniform": ("uniform", [1 / 2, 0, 0, 0, 1 / 2]),
        "given": (torch.full((5,), 0.3), [0.3, 0, 0, 0, 0.3]),
    }
    given, expected = policies[weights]
    outcome = train(network(), idle_work(policy=DeltaPolicy(given), optimizers=(clients.SGD(lr=0.3),)), executor)
    assert_is(outcome.delta, weighted(outcome, expected))
    assert not bool(outcome.refused.any())
    assert not bool(kept(outcome)[1:4].any())
    scalars = outcome.scalars
    assert scalars["examples"].tolist() == [9, 0, 4, 6, 5]
    assert scalars["steps"].tolist() == [3, 0, 0, 0, 2]
    assert scalars["delta_norm"][1:4].tolist() == [0, 0, 0]
    assert scalars["step_size"][[0, 4]].tolist() == [0.3, 0.3]
    for name in ("first_loss", "last_loss", "mean_loss", "step_size"):
        assert scalars[name].isnan().tolist() == [False, True, True, True, False], name


@every_executor
def test_nobody_counts(executor: str) -> None:
    for sizes, steps in (((0, 0), [3, 3]), ((5, 5), [0, 0])):
        outcome = train(network(), round_of(network(), sizes, steps=torch.tensor(steps)), executor)
        assert not bool(outcome.delta.any())
        assert not bool(outcome.refused.any())


def blown_up(*positions: int, **given: Any) -> RoundWork:
    """Some clients get a correction that no model survives."""
    start = round_of(network()).start
    corrections = torch.zeros(3, len(start))
    corrections[list(positions), 0] = torch.inf
    return round_of(network(), corrections=corrections, **given)


@every_executor
@pytest.mark.parametrize("weights", ["examples", "uniform", "given"])
def test_a_client_that_is_not_finite_is_refused(executor: str, weights: str) -> None:
    policies: dict[str, tuple[Any, list[float]]] = {
        "examples": ("examples", [9 / 15, 0, 6 / 15]),
        "uniform": ("uniform", [1 / 2, 0, 1 / 2]),
        "given": (torch.full((3,), 0.3), [0.3, 0, 0.3]),
    }
    given, expected = policies[weights]
    plain = train(network(), round_of(network()), executor)
    policy = DeltaPolicy(given, clip=100.0, divide_by_steps=True)
    outcome = train(network(), blown_up(1, policy=policy), executor)
    assert outcome.refused.tolist() == [False, True, False]
    assert_is(outcome.delta, weighted(plain, [w / 4 for w in expected]))
    assert not bool(kept(outcome)[1].isfinite().all())
    torch.testing.assert_close(kept(outcome)[[0, 2]], kept(plain)[[0, 2]], rtol=1e-5, atol=1e-6)
    assert not bool(outcome.scalars["delta_norm"][1].isfinite())


@every_executor
def test_all_refused(executor: str) -> None:
    outcome = train(network(), blown_up(0, 1, 2), executor)
    assert outcome.refused.tolist() == [True, True, True]
    assert not bool(outcome.delta.any())


# ---- sameness -------------------------------------------------------------------------------------------------------


@every_executor
def test_runs_repeat_to_the_bit(executor: str) -> None:
    module = nn.Sequential(network(), nn.Dropout(0.3))
    work = round_of(module, optimizers=(clients.Adam(lr=0.1),))
    one, other = train(module, work, executor), train(module, work, executor)
    assert torch.equal(one.delta, other.delta)
    assert torch.equal(kept(one), kept(other))
    assert not torch.equal(
        one.delta, train(module, round_of(module, optimizers=(clients.Adam(lr=0.1),), seed=1), executor).delta
    )


@every_executor
def test_a_client_trains_alike_in_any_company(executor: str) -> None:
    work = round_of(network(), (9, 4, 6))
    alone = round_of(network(), (4,), rows=work.rows[9:13], ids=work.ids[1:2])
    together, single = train(network(), work, executor), train(network(), alone, executor)
    torch.testing.assert_close(kept(together)[1], kept(single)[0], rtol=1e-5, atol=1e-6)


@every_executor
def test_the_work_and_the_module_are_left_alone(executor: str) -> None:
    module = network()
    work = round_of(module, corrections=0.1 * normal(4, 3, round_of(module).start.numel()))
    copies = [tensor.clone() for tensor in (work.start, work.corrections, work.rows, *module.parameters())]  # type: ignore
    train(module, work, executor)
    now = (work.start, work.corrections, work.rows, *module.parameters())
    assert all(torch.equal(a, b) for a, b in zip(copies, now, strict=True))  # type: ignore[arg-type]


@every_executor
def test_work_that_does_not_fit_is_refused(executor: str) -> None:
    module = network()
    start = round_of(module).start
    with pytest.raises(ValueError, match=r"^start: "):
        train(module, round_of(start[:-16].clone()), executor)
    with pytest.raises(ValueError, match=r"^rows: "):
        train(module, round_of(start, rows=torch.arange(19) + 30), executor)


# ---- choice ---------------------------------------------------------------------------------------------------------


def test_executors_are_found_by_name() -> None:
    for name in ("eager", "batched"):
        executor = make(name, network(), "cross_entropy", vectors())
        assert executor.name == name
        assert executor.why
    with pytest.raises(ValueError, match=r"^executor: must be one of .*got 'eagre'. Did you mean 'eager'\?"):
        make("eagre", network(), "cross_entropy", vectors())
    with pytest.raises(ValueError, match=r"^loss: must be one of"):
        make("eager", network(), "hinge", vectors())  # type: ignore[arg-type]


def test_auto_falls_back_to_eager_and_says_why() -> None:
    executor = make("auto", network(), lambda outputs, targets: outputs.sum(), vectors())
    assert executor.name == "eager"
    assert "native" in executor.why
    assert executor.run(round_of(network())).delta.any()


def test_without_the_extension_native_is_a_sentence_and_auto_is_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extension, "why_not", lambda: "the compiled extension is not there; build it")
    with pytest.raises(Unsupported, match=r"^the compiled extension is not there; build it$"):
        make("native", network(), "cross_entropy", vectors())
    executor = make("auto", network(), "cross_entropy", vectors())
    assert executor.name == "eager"
    assert "the compiled extension is not there" in executor.why


@pytest.fixture
def no_card(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Neither a card nor Triton's interpreter."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    registry._triton_why_not.cache_clear()
    yield
    registry._triton_why_not.cache_clear()


@pytest.mark.usefixtures("no_card")
def test_device_without_a_card_or_without_triton_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    begins = r"^device: executor 'device' runs Triton kernels, which cannot run here: "
    with pytest.raises(Unsupported, match=f"{begins}no CUDA device"):
        make("device", network(), "cross_entropy", vectors(), device="cuda")
    registry._triton_why_not.cache_clear()
    monkeypatch.setattr(registry.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Unsupported, match=rf"{begins}the package 'triton' is not installed \(pip install "):
        make("device", network(), "cross_entropy", vectors(), device="cuda")


def test_device_on_the_cpu_of_a_machine_with_a_card_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    usable = registry.Backend("triton", lambda: None, lambda: ("cuda",))
    monkeypatch.setitem(registry.BACKENDS, "triton", usable)
    with pytest.raises(Unsupported, match=r"^device: executor 'device' runs on a CUDA device, got cpu$"):
        make("device", network(), "cross_entropy", vectors())


@executors("native")
def test_auto_prefers_native(executor: str) -> None:
    assert make("auto", network(), "cross_entropy", vectors()).name == executor
