"""The fused step of dense layers on the session's GPU backend: Triton in its interpreter, or CUDA on the host."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor

from fastfed.kernels import registry
from fastfed.kernels.layers import GELU

from .agreement import assert_close
from .dense_cases import CASES, UNTOUCHED, Call, Case, alone, call_of, in_torch
from .support import makes_nan, same_bits

if not (registry.interpreting() or registry.on_host()):
    pytest.skip("dense steps run in TRITON_INTERPRET=1 and FASTFED_CUDA_HOST=1 sessions", allow_module_level=True)

pytestmark = [pytest.mark.backend, makes_nan]  # beyond edges a rule may make anything of nothing
only_cuda = pytest.mark.skipif(not registry.on_host(), reason="what CUDA alone promises (FASTFED_CUDA_HOST=1)")


def _triton(case: Case, call: Call) -> None:
    from fastfed.kernels.triton.compiled import rules
    from fastfed.kernels.triton.engine import products
    from fastfed.kernels.triton.engine.rule import Rule

    rule = Rule(getattr(rules, f"direction_{case.formula}"))
    products.update_forward(case.layer, case.batch, *_tensors(call), call.sink, rule)


def _cuda(case: Case, call: Call) -> None:
    from fastfed.kernels.cuda import dense_step

    dense_step.update_forward(case.layer, case.batch, *_tensors(call), call.sink, case.formula)


def _tensors(call: Call) -> tuple[Tensor, ...]:
    return call.x, call.value, call.before, call.d_out, call.out, call.lengths, call.lengths_before


step: Callable[[Case, Call], None] = _triton if registry.interpreting() else _cuda


@cache
def stepped(case: Case) -> Call:
    """The case's tensors after the step; to be read only."""
    call = call_of(case)
    step(case, call)
    return call


every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def _places(case: Case) -> Tensor:
    """(d,) bool: the layer's own numbers."""
    layer, own = case.layer, torch.zeros(case.size, dtype=torch.bool)
    own[layer.weight.offset :][: case.outputs * case.inputs] = True
    if layer.bias is not None:
        own[layer.bias.offset :][: case.outputs] = True
    return own


@every_case
def test_step_agrees_with_float64(case: Case) -> None:
    call = stepped(case)
    plain, exact = (in_torch(case, dtype) for dtype in (torch.float32, torch.float64))
    got = call.results()
    assert got.keys() == exact.keys()
    for name in got:
        assert_close(got[name], plain[name], exact[name], name)


@every_case
def test_nothing_else_is_written(case: Case) -> None:
    call, start = stepped(case), call_of(case)
    others, rested = ~_places(case), torch.tensor(case.lengths_before) == 0
    for name in ("x", *call.moments):
        got, was = call.results()[name], start.results()[name]
        assert same_bits(got[:, others], was[:, others]), name
        assert same_bits(got[rested], was[rested]), name
    for client, examples in enumerate(case.lengths):
        assert (call.out[client, examples * case.rows :] == UNTOUCHED).all()
    assert (call.out[:, :, case.outputs :] == UNTOUCHED).all()


@pytest.mark.parametrize("name", ["adam-corrected", "sgd-shared-anchor", "adam-many-rows"])
def test_bits_do_not_depend_on_other_clients(name: str) -> None:
    (case,) = (case for case in CASES if case.name == name)
    together = stepped(case)
    for client in range(len(case.lengths)):
        smaller, call = alone(case, client)
        step(smaller, call)
        for what, tensor in call.results().items():
            assert same_bits(tensor[0], together.results()[what][client]), (client, what)


def _off_the_border(call: Call) -> Call:
    """The same numbers, of which none starts on a border of 16 bytes."""

    def moved(tensor: Tensor) -> Tensor:
        return torch.cat([tensor.new_zeros(1), tensor.flatten()])[1:].view(tensor.shape)

    x, moments = moved(call.x), {name: moved(tensor) for name, tensor in call.moments.items()}
    value, before, d_out = (moved(tensor) for tensor in (call.value, call.before, call.d_out))
    sink = call.sink._replace(x=x, **moments)
    return Call(x, moments, value, before, d_out, call.out, call.lengths, call.lengths_before, sink)


@only_cuda
@pytest.mark.parametrize("name", ["adam-corrected", "momentum-relu", "momentum-many-rows"])
def test_wide_accesses_change_no_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastfed.kernels.cuda import dense_step

    kernels: list[str] = []
    run = dense_step.run
    monkeypatch.setattr(dense_step, "run", lambda *args: (kernels.append(args[1]), run(*args)))
    (case,) = (case for case in CASES if case.name == name)
    wide, narrow = call_of(case), _off_the_border(call_of(case))
    step(case, wide)
    step(case, narrow)
    assert kernels == [f"{kernels[1]}_wide", kernels[1]]
    for what, tensor in wide.results().items():
        assert same_bits(tensor, narrow.results()[what]), what


@only_cuda
@pytest.mark.parametrize(
    ("options", "sink", "complaint"),
    [
        ({"batch": 65}, {}, "batch: 65 examples of 1 rows are more than the 64 of a dense step"),
        ({"rows": 4}, {}, "batch: 20 examples of 4 rows"),
        ({"curve": GELU}, {}, "m: curve 5 is not one that is fused"),
        ({}, {"x": torch.zeros(1)}, "sink: a dense step moves the models x that it reads"),
        ({}, {"coef": None}, "sink: a dense step moves the models x that it reads, by coefficients"),
        ({}, {"mu": torch.zeros(1)}, r"sink: the rule keeps \[\] in a dense step, the sink has \['mu'\]"),
        ({}, {"grad": torch.zeros(1)}, r"sink: .* the sink has \['grad'\]"),
    ],
)
def test_what_it_does_not_do_is_refused(
    options: dict[str, int], sink: dict[str, Tensor | None], complaint: str
) -> None:
    case = Case("refused", **options)  # type: ignore[arg-type]
    call = call_of(case)
    call.sink = call.sink._replace(**sink)
    with pytest.raises(ValueError, match=complaint):
        step(case, call)


@only_cuda
def test_unknown_formula_is_refused() -> None:
    from fastfed.kernels.cuda import dense_step

    case = CASES[0]
    call = call_of(case)
    with pytest.raises(ValueError, match="formula: 'sm3' has no dense step in CUDA, which are sgd, momentum"):
        dense_step.update_forward(case.layer, case.batch, *_tensors(call), call.sink, "sm3")


@only_cuda
@pytest.mark.parametrize("name", ["lengths", "lengths_before"])
def test_wide_lengths_are_refused(name: str) -> None:
    """Read as 32-bit numbers, every other client would have none."""
    call = call_of(CASES[0])
    setattr(call, name, getattr(call, name).long())
    with pytest.raises(ValueError, match=f"{name}: dtype torch.int64, the dense step reads torch.int32"):
        step(CASES[0], call)
