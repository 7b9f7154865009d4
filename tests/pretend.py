"""A device that is not the CPU, on a machine that has none: ``torch.device("pretend")``.

Its tensors hold CPU tensors and every operation on them is carried out for real, so that values and control flow are
those of a run; but an operation that mixes them with tensors of the CPU is refused as on a GPU, their memory cannot be
reached from the host, and `traffic` counts what crosses the border: uploads (host to device), downloads (device to
host) and waits (operations whose result the host must know before it can go on: numbers read, shapes that depend on
values). A download makes the host wait, too, and is not counted twice.

The device is there for the rest of the process once this module is imported, in all threads, under autograd and under
torch.func's transforms. It must be imported before anything is differentiated, as pytest does with every file of tests
before it runs the first: autograd gives every device a thread when it begins, and no other later.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

from fastfed import simulation

NAME = "pretend"
OUTSIDE = "outside"  # of every room


class MixedDevices(RuntimeError):
    """An operation on tensors of two devices."""


@dataclass
class Counts:
    """What crossed the border between host and device."""

    uploads: int = 0
    downloads: int = 0
    waits: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.uploads + other.uploads, self.downloads + other.downloads, self.waits + other.waits)

    def within(self, bound: Counts) -> bool:
        """Whether none of the three exceeds its bound."""
        return self.uploads <= bound.uploads and self.downloads <= bound.downloads and self.waits <= bound.waits


class Traffic:
    """Counts by room of a simulation: plan, train, aggregate, step, tune, record, and `OUTSIDE`."""

    def __init__(self) -> None:
        self.rooms: dict[str, Counts] = defaultdict(Counts)
        self.room = OUTSIDE
        self._lock = threading.Lock()  # clients may train in several threads, autograd has one of its own

    def count(self, kind: str) -> None:
        with self._lock:
            here = self.rooms[self.room]
            setattr(here, kind, getattr(here, kind) + 1)

    def clear(self) -> None:
        self.rooms.clear()

    def total(self, *without: str) -> Counts:
        """Of all rooms but these."""
        return sum((counts for room, counts in self.rooms.items() if room not in without), Counts())


traffic = Traffic()


@contextmanager
def within_room(room: str) -> Iterator[None]:
    """Counts what happens here as a room's of its own."""
    before, traffic.room = traffic.room, room
    try:
        yield
    finally:
        traffic.room = before


class _RoomClock(simulation._Clock):
    """Tells the traffic which room the simulation is in."""

    @contextmanager
    def __call__(self, room: str) -> Iterator[None]:
        with within_room(room), super().__call__(room):
            yield


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Traffic:
    """The traffic from here on, by room."""
    monkeypatch.setattr(simulation, "_Clock", _RoomClock)
    traffic.clear()
    return traffic


class PretendTensor(Tensor):
    """A tensor of the device: `held` is the CPU tensor with its numbers."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> PretendTensor:
        made: PretendTensor = Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device=torch.device(NAME, 0),
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _carry_out(func, args, kwargs or {})

    def tolist(self) -> Any:
        traffic.count("downloads")
        return self.held.tolist()

    def data_ptr(self) -> int:
        """An address to compare with others; the compiled kernels, which would follow it, do not come this way."""
        return self.held.data_ptr()

    def __deepcopy__(self, memo: dict[int, Any]) -> PretendTensor:
        """Torch's own would look for memory behind the address."""
        if id(self) not in memo:
            made = PretendTensor(self.held.clone()).requires_grad_(self.requires_grad)
            if isinstance(self, torch.nn.Parameter):
                made._is_param = True
            memo[id(self)] = made
        return memo[id(self)]

    def __repr__(self) -> str:  # type: ignore[override]
        return f"{self.held!r} on {NAME}"


def held(tensor: Tensor) -> Tensor:
    """A tensor's numbers, without counting it."""
    return tensor.held if isinstance(tensor, PretendTensor) else tensor


_aten = torch.ops.aten
_COPIES = (_aten.copy_.default, _aten._copy_from.default)
_INDEXED = (_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default, _aten._index_put_impl_.default)


def _carry_out(func: Any, args: Any, kwargs: Any) -> Any:
    """An operation with at least one tensor of the device, or one that makes a tensor there."""
    asked = kwargs.get("device")
    if asked is not None:
        kwargs = {**kwargs, "device": "cpu"}
    arrives = asked is None or torch.device(asked).type == NAME
    _observe(func, args, kwargs, arrives)
    owners = {id(leaf.held): leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, PretendTensor)}
    made = func(*tree_map(_open, args), **tree_map(_open, kwargs))
    _refuse_new_shapes(func, owners)

    def own(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not arrives:
            return leaf
        return owners[id(leaf)] if id(leaf) in owners else PretendTensor(leaf)

    return tree_map(own, made)


def _open(leaf: Any) -> Any:
    return leaf.held if isinstance(leaf, PretendTensor) else leaf


def _observe(func: Any, args: Any, kwargs: Any, arrives: bool) -> None:
    """Counts what an operation moves or waits for, and refuses what a GPU would."""
    if func in _COPIES:
        _count_copy(*(args[:2] if func is _aten.copy_.default else (args[1], args[0])))
        return
    if func is _aten._to_copy.default:
        _count_copy(None, args[0], arrives)
        return
    if func in _INDEXED:
        args = _observe_indices(args)
    elif torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags:
        traffic.count("waits")
    _refuse_mixing(func, args, kwargs)


def _count_copy(target: Tensor | None, source: Tensor, arrives: bool | None = None) -> None:
    goes_there = isinstance(target, PretendTensor) if arrives is None else arrives
    comes_from_there = isinstance(source, PretendTensor)
    if goes_there != comes_from_there:
        traffic.count("uploads" if goes_there else "downloads")


def _observe_indices(args: Any) -> Any:
    """The arguments of an indexing that must be on one device: indices of the host may go along, at the price of a
    copy; a mask makes the host wait for the number of its entries, unless a single number is put there."""
    target, indices, *rest = args
    puts_one_number = bool(rest) and rest[0].numel() == 1
    for index in indices:
        if index is not None and not isinstance(index, PretendTensor):
            if not isinstance(target, PretendTensor):
                continue
            traffic.count("uploads")
        elif index is not None and index.dtype in (torch.bool, torch.uint8) and not puts_one_number:
            traffic.count("waits")
    inside = [index for index in indices if isinstance(index, PretendTensor)]
    return target, inside, *rest


def _refuse_mixing(func: Any, args: Any, kwargs: Any) -> None:
    leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    strangers = [leaf for leaf in leaves if not isinstance(leaf, PretendTensor) and leaf.dim() > 0]
    if strangers and len(strangers) < len(leaves):
        shapes = ", ".join(f"{tuple(leaf.shape)} on {leaf.device}" for leaf in leaves)
        raise MixedDevices(f"{func}: all tensors must be on one device, got {shapes}")


def _refuse_new_shapes(func: Any, owners: dict[int, PretendTensor]) -> None:
    """A tensor of the device cannot follow one that is reshaped in place."""
    for owner in owners.values():
        if owner.shape != owner.held.shape or owner.stride() != owner.held.stride():
            raise NotImplementedError(f"{func}: the pretend device has no tensors that change their shape in place")


# Torch makes all other new tensors from these.
_MAKERS = ("empty.memory_format", "empty_strided", "arange", "arange.start", "arange.start_step", "eye", "eye.m")


def _maker(name: str) -> Any:
    """The operation of this name, which makes a tensor out of no other, for the device."""
    packet, _, overload = name.partition(".")
    func = getattr(getattr(_aten, packet), overload or "default")

    def make(*args: Any, **kwargs: Any) -> Tensor:
        return PretendTensor(func(*args, **{**kwargs, "device": "cpu", "pin_memory": None}))

    return make


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    _count_copy(target, source)
    held(target).copy_(held(source))
    return target


class _Module(_DummyBackendModule):
    """What torch asks of a device's module, ``torch.pretend``. Operations draw from the CPU's generator, not from this
    device's own."""

    def __init__(self) -> None:
        self.generator = torch.Generator()

    def get_rng_state(self, device: Any = None) -> Tensor:
        return self.generator.get_state()

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        self.generator.set_state(state)


def _install() -> torch.library.Library:
    _setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    kernels = torch.library.Library("aten", "IMPL")
    for name in _MAKERS:
        kernels.impl(name, _maker(name), "PrivateUse1")
    kernels.impl("_copy_from", _copy_from, "PrivateUse1")
    return kernels


def _begin_autograd() -> None:
    """Starts the device's thread of autograd, and lets it compute with one thread, as the host does when clients train:
    how operations share their work decides about the last bits."""
    threads = torch.get_num_threads()

    def take_one(gradient: Tensor) -> None:
        torch.get_num_threads()  # a thread forgets what was set before it first asked
        torch.set_num_threads(1)

    leaf = torch.ones(1, device=NAME).requires_grad_()
    leaf.register_hook(take_one)  # is called in that thread
    leaf.sum().backward()
    torch.set_num_threads(threads)


_kernels = _install()  # kept: they are there as long as it is
_begin_autograd()
