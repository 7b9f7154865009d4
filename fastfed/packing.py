"""The trainable parameters of an nn.Module, or any arrays by name, in one vector: every tensor on a 64-byte border,
reachable by name without copies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from .kernels import covers, hosts

Arrays = (
    Mapping[str, Any] | Sequence[Any]
)  # tensors or arrays of other libraries; those of a list are named "0", "1", ...

_BORDER = 64  # bytes: a cache line, and the widest SIMD register


@dataclass(frozen=True)
class Slot:
    """One tensor's place: `offset` and `numel` in elements of the packed vector."""

    name: str
    offset: int
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def span(self) -> slice:
        return slice(self.offset, self.offset + self.numel)


@dataclass(frozen=True)
class Packing:
    """Where each parameter of a module, or each array of a mapping or list, lies in its packed vector of `size` numbers
    of `dtype`.

    `aliases` maps the further names of a tied parameter to the one it is packed under. `frozen` (requires_grad False)
    and `buffers` list, by name and shape, the tensors of the module that the vector does not hold. Gaps between tensors
    are zeros.
    """

    slots: tuple[Slot, ...]
    size: int
    dtype: torch.dtype = torch.float32
    aliases: Mapping[str, str] = field(default_factory=dict)
    frozen: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    buffers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, module: nn.Module | Arrays, *, batch_norm: bool = False) -> Packing:
        """The packing of `module`'s trainable parameters, in their order, tied ones once; or of the arrays of a mapping
        or list.

        float16 and bfloat16 parameters are held as float32; float64 ones make the whole vector float64. Layers with
        running statistics are refused, as the vector does not hold them; `batch_norm`: batch norms are not, as the
        caller sees to their statistics.
        """
        if not isinstance(module, nn.Module):
            arrays = _named_arrays(module)
            return cls.from_shapes({name: tuple(a.shape) for name, a in arrays.items()}, dtype=_widest(arrays))
        _refuse_running_statistics(module, batch_norm)
        named = dict(module.named_parameters())
        trainable = {name: p for name, p in named.items() if p.requires_grad}
        if not trainable:
            raise ValueError("module: has no trainable parameter to pack")
        for name, p in trainable.items():
            if not p.is_floating_point():
                raise TypeError(
                    f"module: parameter {name!r} is {p.dtype}; only floating-point parameters can be packed"
                )
            if isinstance(p, nn.UninitializedParameter):
                raise ValueError(
                    f"module: parameter {name!r} has no shape yet; run one batch through the lazy module first"
                )
        return cls.from_shapes(
            {name: tuple(p.shape) for name, p in trainable.items()},
            dtype=_widest(trainable),
            aliases=_aliases(module, named),
            frozen={name: tuple(p.shape) for name, p in named.items() if not p.requires_grad},
            buffers={name: tuple(b.shape) for name, b in module.named_buffers()},
        )

    @classmethod
    def from_shapes(
        cls,
        shapes: Mapping[str, tuple[int, ...]],
        *,
        dtype: torch.dtype = torch.float32,
        aliases: Mapping[str, str] | None = None,
        frozen: Mapping[str, tuple[int, ...]] | None = None,
        buffers: Mapping[str, tuple[int, ...]] | None = None,
    ) -> Packing:
        """The packing of tensors with these names and shapes, without a module."""
        border = _BORDER // dtype.itemsize
        slots, end = [], 0
        for name, shape in shapes.items():
            slot = Slot(name, end, tuple(shape))
            slots.append(slot)
            end = -(-(slot.offset + slot.numel) // border) * border
        return cls(tuple(slots), end, dtype, aliases or {}, frozen or {}, buffers or {})

    @cached_property
    def _by_name(self) -> dict[str, Slot]:
        return {slot.name: slot for slot in self.slots}

    @property
    def parameters(self) -> int:
        """How many numbers the tensors hold, gaps not counted."""
        return sum(slot.numel for slot in self.slots)

    def zeros(self, clients: int | None = None, device: torch.device | str = "cpu") -> Tensor:
        """A vector (size,) of zeros, or a batch (clients, size)."""
        shape = (self.size,) if clients is None else (clients, self.size)
        return torch.zeros(shape, dtype=self.dtype, device=device)

    def clear_gaps(self, x: Tensor) -> None:
        """Zeros, in place, for what of `x` (size,) or (clients, size) belongs to no tensor."""
        ends = [slot.offset for slot in self.slots[1:]] + [self.size]
        for slot, end in zip(self.slots, ends, strict=True):
            if slot.span.stop < end:
                x[..., slot.span.stop : end] = 0

    def views(self, x: Tensor) -> dict[str, Tensor]:
        """Every tensor by name as a view of `x` (size,), shaped as in the module; of a batch (clients, size), with the
        clients in front. Tied names share one view."""
        self._check(x)
        views = {slot.name: x[..., slot.span].unflatten(-1, slot.shape or (1,)) for slot in self.slots}
        for slot in self.slots:
            if not slot.shape:
                views[slot.name] = views[slot.name].squeeze(-1)
        return views | {alias: views[name] for alias, name in self.aliases.items() if name in views}

    def pack(self, module: nn.Module | Arrays, out: Tensor | None = None) -> Tensor:
        """The parameters of `module`, or the arrays, as one vector (size,) on their device, into `out` if given."""
        parameters = self._parameters(module)
        if out is None:
            out = self.zeros(device=next(iter(parameters.values())).device)
        self._fill(out, {name: p.detach() for name, p in parameters.items()})
        return out

    def pack_grad(self, module: nn.Module, out: Tensor | None = None) -> Tensor:
        """The gradients of `module` as one vector (size,), zeros where a parameter has none."""
        parameters = self._parameters(module)
        if out is None:
            out = self.zeros(device=next(iter(parameters.values())).device)
        grads = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in parameters.items()}
        self._fill(out, grads)
        return out

    def unpack(self, x: Tensor, module: nn.Module | Arrays) -> None:
        """Writes the vector `x` (size,) into the parameters of `module`, or into the arrays."""
        self._check(x, one=True)
        with torch.no_grad():
            for name, p in self._parameters(module, written=True).items():
                p.copy_(x[self._by_name[name].span].view(p.shape))

    def cover(self) -> Tensor:
        """The SM3 cover of the packed tensors (``kernels.covers``), as an SM3 state carries it."""
        return covers.encode(self.size, [slot.offset for slot in self.slots], [slot.shape for slot in self.slots])

    def _fill(self, out: Tensor, tensors: Mapping[str, Tensor]) -> None:
        self._check(out, one=True)
        out.zero_()  # the gaps: every norm would count what lies there
        for name, tensor in tensors.items():
            out[self._by_name[name].span] = tensor.reshape(-1)

    def _refuse_others(self, named: Mapping[str, Tensor]) -> None:
        others = [name for name in named if name not in self._by_name]
        if others:
            raise ValueError(f"module: array {others[0]!r} has no place in this packing")

    def _check(self, x: Tensor, one: bool = False) -> None:
        if not isinstance(x, Tensor):
            raise TypeError(f"x: must be a torch.Tensor, got {type(x).__name__}")
        if x.dtype is not self.dtype:
            raise TypeError(f"x: must be {self.dtype}, got {x.dtype}")
        if x.shape[-1:] != (self.size,) or x.dim() > (1 if one else 2):
            wanted = f"({self.size},)" if one else f"({self.size},) or (clients, {self.size})"
            raise ValueError(f"x: must have shape {wanted}, got {tuple(x.shape)}")

    def _parameters(self, module: nn.Module | Arrays, *, written: bool = False) -> dict[str, Tensor]:
        """The module's parameters, or the arrays, by slot name; an error if they are not shaped like those packed, or
        are constant and shall be `written`."""
        named: Mapping[str, Tensor]
        if isinstance(module, nn.Module):
            named = dict(module.named_parameters(remove_duplicate=False))
        else:
            named = _named_arrays(module, written=written)
            self._refuse_others(named)
        for slot in self.slots:
            if slot.name not in named or tuple(named[slot.name].shape) != slot.shape:
                found = tuple(named[slot.name].shape) if slot.name in named else "no such parameter"
                raise ValueError(f"module: parameter {slot.name!r} should have shape {slot.shape}, found {found}")
        return {slot.name: named[slot.name] for slot in self.slots}


def _named_arrays(arrays: Arrays, *, written: bool = False) -> dict[str, Tensor]:
    """The arrays as tensors on their memory, by name."""
    if isinstance(arrays, Mapping):
        named = dict(arrays)
    elif isinstance(arrays, Sequence) and not isinstance(arrays, str):
        named = {str(i): array for i, array in enumerate(arrays)}
    else:
        raise TypeError(f"module: must be an nn.Module, a mapping or a list of arrays, got {type(arrays).__name__}")
    if not named:
        raise ValueError("module: has no array to pack")
    take = hosts.written if written else hosts.read
    found = {name: take(f"array {name!r}", array) for name, array in named.items()}
    for name, tensor in found.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"array {name!r}: must be a tensor or an array, got {type(tensor).__name__}")
        if not tensor.is_floating_point():
            raise TypeError(f"array {name!r} is {tensor.dtype}; only floating-point arrays can be packed")
    return found


def _widest(tensors: Mapping[str, Tensor]) -> torch.dtype:
    return torch.float64 if any(each.dtype is torch.float64 for each in tensors.values()) else torch.float32


def batch_norm_layers(module: nn.Module) -> dict[str, _BatchNorm]:
    """The layers by name that are batch norms with running statistics, which no packed vector holds."""
    return {
        name: layer
        for name, layer in module.named_modules()
        if isinstance(layer, _BatchNorm) and layer.running_mean is not None
    }


def _refuse_running_statistics(module: nn.Module, batch_norm: bool) -> None:
    """Running statistics are not parameters: averaged over clients they would silently go stale."""
    for name, layer in module.named_modules():
        if batch_norm and isinstance(layer, _BatchNorm):
            continue
        if isinstance(layer, _NormBase) and layer.running_mean is not None:
            raise ValueError(
                f"module: layer {name or type(module).__name__!r} ({type(layer).__name__}) keeps running statistics, "
                "which federated averaging cannot train; use nn.GroupNorm (or track_running_stats=False) instead"
            )


def _aliases(module: nn.Module, named: Mapping[str, nn.Parameter]) -> dict[str, str]:
    first = {id(p): name for name, p in named.items()}
    every = module.named_parameters(remove_duplicate=False)
    return {name: first[id(p)] for name, p in every if name not in named}
