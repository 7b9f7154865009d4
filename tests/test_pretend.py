"""The pretend device itself: it computes what the CPU computes, refuses what a GPU refuses, and counts."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

from fastfed import kernels
from fastfed.kernels import registry

from .pretend import NAME, OUTSIDE, Counts, MixedDevices, PretendTensor, Traffic, counted, held, within_room

__all__ = ["counted"]  # a fixture


def numbers(*shape: int) -> Tensor:
    return torch.arange(1.0, 1.0 + torch.Size(shape).numel()).reshape(shape)


def there(*shape: int) -> Tensor:
    return numbers(*shape).to(NAME)


MAKERS: dict[str, Callable[[Any], Tensor]] = {
    "zeros": lambda device: torch.zeros(2, 3, device=device),
    "full": lambda device: torch.full((2,), 3.5, dtype=torch.float64, device=device),
    "arange": lambda device: torch.arange(2, 9, 3, device=device),
    "tensor": lambda device: torch.tensor([[1, 2], [3, 4]], device=device),
    "as_tensor": lambda device: torch.as_tensor(numbers(3), dtype=torch.float64, device=device),
    "to": lambda device: numbers(3).to(device),
    "new_zeros": lambda device: numbers(3).to(device).new_zeros(2),
    "zeros_like": lambda device: torch.zeros_like(numbers(3), device=device),
    "eye": lambda device: torch.eye(3, device=device),
}


@pytest.mark.parametrize("name", MAKERS)
def test_tensors_are_made_there(name: str) -> None:
    made, wanted = MAKERS[name](NAME), MAKERS[name]("cpu")
    assert made.device == torch.device(NAME, 0)
    assert not made.is_cpu
    assert made.dtype is wanted.dtype
    assert torch.equal(held(made), wanted)


def test_views_share_their_memory() -> None:
    x = there(3, 4)
    x[1:, ::2].mul_(10)
    wanted = numbers(3, 4)
    wanted[1:, ::2].mul_(10)
    assert torch.equal(held(x), wanted)


def test_what_is_written_to_stays_the_same_tensor() -> None:
    x, out = there(3), torch.zeros(3, device=NAME)
    assert torch.ops.aten.mul_.Tensor(x, x) is x
    assert torch.ops.aten.add.out(x, x, out=out) is out
    assert torch.equal(held(out), 2 * numbers(3).square())
    with torch.inference_mode():  # where autograd does not see to it
        made = torch.zeros(3, device=NAME)
        assert torch.ops.aten.add_.Tensor(made, made) is made


def test_autograd_runs_there() -> None:
    x, leaf = there(3, 4), there(4).requires_grad_()
    leaf.grad = kept = torch.zeros(4, device=NAME)
    (x @ leaf).square().sum().backward()
    plain = numbers(4).requires_grad_()
    (numbers(3, 4) @ plain).square().sum().backward()
    assert leaf.grad is kept
    assert plain.grad is not None
    assert torch.equal(held(kept), plain.grad)


def test_autograd_computes_with_one_thread_there() -> None:
    found = []
    leaf = there(4).requires_grad_()
    leaf.register_hook(lambda gradient: found.append(torch.get_num_threads()))
    leaf.sum().backward()
    assert found == [1]
    assert torch.get_num_threads() == 2  # as conftest.py says


def test_transforms_nest_there() -> None:
    def loss(weight: Tensor, x: Tensor) -> Tensor:
        first = torch.arange(2, device=x.device)
        return nn.functional.linear(x, weight)[:, first].square().sum()

    of_all = vmap(grad_and_value(loss))
    gradients, losses = of_all(there(5, 3, 4), there(5, 7, 4))
    wanted = of_all(numbers(5, 3, 4), numbers(5, 7, 4))
    assert gradients.device.type == losses.device.type == NAME
    assert torch.equal(held(gradients), wanted[0])
    assert torch.equal(held(losses), wanted[1])


def test_modules_move_and_are_copied_there() -> None:
    module = nn.Linear(3, 2)
    moved = copy.deepcopy(module).to(NAME)
    copied = copy.deepcopy(moved)
    with torch.no_grad():
        moved.weight.zero_()
    assert module.weight.is_cpu
    assert isinstance(copied.weight, nn.Parameter)
    assert copied.weight.requires_grad
    assert torch.equal(held(copied.weight), module.weight)


def test_kernels_without_a_backend_for_it_take_the_reference() -> None:
    x = there(8)
    assert registry.pick(None, x).name == "reference"
    state = kernels.client_state("adam", x)
    kernels.client_step("adam", x, there(8), state, lr=0.1)
    plain = numbers(8)
    kernels.client_step("adam", plain, numbers(8), kernels.client_state("adam", plain), lr=0.1, backend="reference")
    assert torch.equal(held(x), plain)


REFUSED: dict[str, Callable[[], Any]] = {
    "a sum": lambda: there(3, 4) + numbers(4),
    "in place": lambda: numbers(3).add_(there(3)),
    "a choice": lambda: torch.where(there(3) > 1, numbers(3), 0.0),
    "a list of tensors": lambda: torch.cat([there(3), numbers(3)]),
    "an index from there": lambda: numbers(3)[there(1).long()],
    "values from here": lambda: there(3).index_put_((torch.tensor([0, 1]),), numbers(2)),
    "out": lambda: torch.add(there(3), 1, out=numbers(3)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_two_devices_do_not_mix(name: str) -> None:
    with pytest.raises(MixedDevices, match="all tensors must be on one device"):
        REFUSED[name]()


def test_the_host_cannot_reach_its_memory() -> None:
    x = there(3)
    with pytest.raises(RuntimeError, match="numpy"):
        x.numpy()
    with pytest.raises(RuntimeError, match="storage"):
        x.untyped_storage().data_ptr()
    with pytest.raises(registry.BackendUnavailable, match="works on cpu tensors"):
        kernels.norms(x, backend="cpp")


def test_what_changes_its_shape_in_place_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="change their shape in place"):
        there(3, 4).t_()


SINGLE = torch.tensor(2.0)
TRAFFIC: dict[str, tuple[Callable[[Tensor], Any], Counts]] = {
    "arithmetic": (lambda x: (x * 2 + SINGLE).sum(), Counts()),
    "to the device": (lambda x: numbers(3).to(x.device), Counts(uploads=1)),
    "where it is": (lambda x: x.to(x.device), Counts()),
    "to another type": (lambda x: x.double(), Counts()),
    "made from a list": (lambda x: torch.tensor([1.0, 2.0], device=x.device), Counts(uploads=1)),
    "back": (lambda x: x.cpu(), Counts(downloads=1)),
    "into a tensor there": (lambda x: x.copy_(numbers(3, 4)), Counts(uploads=1)),
    "into a row there": (lambda x: x.__setitem__(1, numbers(4)), Counts(uploads=1)),
    "into a tensor here": (lambda x: numbers(3, 4).copy_(x), Counts(downloads=1)),
    "as a list": (lambda x: x.tolist(), Counts(downloads=1)),
    "a number": (lambda x: float(x[0, 0]), Counts(waits=1)),
    "a question": (lambda x: bool((x > 0).all()), Counts(waits=1)),
    "where": (lambda x: x.nonzero(), Counts(waits=1)),
    "distinct": (lambda x: x.unique(), Counts(waits=1)),
    "compared": (lambda x: torch.equal(x, x), Counts(waits=1)),
    "a mask from there": (lambda x: x[x > 2], Counts(waits=1)),
    "a number where a mask is": (lambda x: x.__setitem__(x > 2, 0.0), Counts()),
    "a mask from here": (lambda x: x[torch.tensor([True, False, True])], Counts(uploads=1)),
    "an index from here": (lambda x: x[torch.tensor([0, 2])], Counts(uploads=1)),
    "a list as index": (lambda x: x[[0, 2]], Counts(uploads=1)),
    "an index from there": (lambda x: x[torch.arange(2, device=x.device)], Counts()),
    "a slice": (lambda x: x[1:, ::2], Counts()),
}


@pytest.mark.parametrize("name", TRAFFIC)
def test_what_crosses_the_border_is_counted(name: str, counted: Traffic) -> None:
    x = there(3, 4)
    counted.clear()
    act, wanted = TRAFFIC[name]
    act(x)
    assert counted.total() == wanted


def test_traffic_belongs_to_rooms(counted: Traffic) -> None:
    x = there(3)
    with within_room("plan"):
        x.cpu()
        with within_room("train"):
            float(x[0])
        x.cpu()
    assert counted.rooms == {OUTSIDE: Counts(uploads=1), "plan": Counts(downloads=2), "train": Counts(waits=1)}
    assert counted.total("plan") == Counts(uploads=1, waits=1)
    assert isinstance(x, PretendTensor)
