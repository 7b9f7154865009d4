"""Launches the fused step of dense layers: the CUDA twin of `update_forward` in ``triton/engine/products.py``."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from ..layers import FROM_OUTPUT, Dense
from ..sink import Sink
from ..table import DIRECTIONS
from . import sources
from .client_arguments import ClientNumbers, ClientVectors
from .launch import QUAD, address, is_wide, run, suffix

OUTPUTS, FEW_ROWS, MANY_ROWS = (sources.size(name) for name in ("DENSE_OUTPUTS", "FEW_ROWS", "MANY_ROWS"))


class DenseLayer(ctypes.Structure):
    """``DenseLayer`` of csrc/cuda/dense_step.cu."""

    _fields_ = [
        (name, ctypes.c_longlong)
        for name in (
            "weight", "bias", "outputs", "inputs", "in_stride", "out_stride", "rows", "capacity", "curve",
        )
    ]  # fmt: skip

    @staticmethod
    def of(m: Dense, batch: int) -> DenseLayer:
        """The layer at batches of so many examples."""
        bias = -1 if m.bias is None else m.bias.offset
        sizes = (m.outputs, m.inputs, m.in_stride, m.out_stride, m.rows, batch * m.rows)
        return DenseLayer(m.weight.offset, bias, *sizes, m.curve)


class DenseValues(ctypes.Structure):
    """``DenseValues`` of csrc/cuda/dense_step.cu."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("value", "before", "d_out", "out", "lengths", "lengths_before")]


def update_forward(
    m: Dense, batch: int, x: Tensor, value: Tensor, before: Tensor, d_out: Tensor, out: Tensor, lengths: Tensor,
    lengths_before: Tensor, sink: Sink, formula: str,
) -> None:  # fmt: skip
    """The last step's update by the rule, then `out` = curve(W value + bias) with the new W, in one pass over W.

    x: (clients, d) float32, which the sink writes; value, before: (clients, batch * rows, in_stride); d_out, out:
    (clients, batch * rows, out_stride), all float32; lengths, lengths_before: (clients,) int32 examples of this step's
    and the last step's batches (0: no forward pass, no update). `formula` is that of the table's client rules.
    """
    _check(m, batch, x, sink, formula)
    for name, counts in (("lengths", lengths), ("lengths_before", lengths_before)):
        if counts.dtype != torch.int32:
            raise ValueError(f"{name}: dtype {counts.dtype}, the dense step reads torch.int32")
    values = DenseValues(*(address(t) for t in (value, before, d_out, out, lengths, lengths_before)))
    size = "few" if batch * m.rows <= FEW_ROWS else "many"
    kernel = f"dense_step_{formula}_{size}_rows{suffix(_is_wide(m, x, sink, value, before, d_out))}"
    blocks = -(-m.outputs // OUTPUTS)
    args = (_vectors(x, sink), _numbers(sink), DenseLayer.of(m, batch), values)
    run("dense_step", kernel, x.device, blocks, len(x), *args)


def _check(m: Dense, batch: int, x: Tensor, sink: Sink, formula: str) -> None:
    if formula not in DIRECTIONS:
        raise ValueError(f"formula: {formula!r} has no dense step in CUDA, which are {', '.join(DIRECTIONS)}")
    if batch * m.rows > MANY_ROWS:
        raise ValueError(f"batch: {batch} examples of {m.rows} rows are more than the {MANY_ROWS} of a dense step")
    if m.curve not in FROM_OUTPUT:
        raise ValueError(f"m: curve {m.curve} is not one that is fused, which are {FROM_OUTPUT}")
    if sink.x is not x or sink.coef is None:
        raise ValueError("sink: a dense step moves the models x that it reads, by coefficients, the sink has others")
    kept = {name for name in ("m", "v", "mu", "nu", "grad") if getattr(sink, name) is not None}
    wanted = set(DIRECTIONS[formula].vectors)
    if kept != wanted:
        raise ValueError(f"sink: the rule keeps {sorted(wanted)} in a dense step, the sink has {sorted(kept)}")


def _vectors(x: Tensor, sink: Sink) -> ClientVectors:
    rows = (x, None, sink.anchor, sink.correction, None, sink.m, sink.v, None, sink.coef)
    return ClientVectors(*(address(t) for t in rows), len(x), sink.size, sink.anchor_stride, sink.correction_stride)


def _numbers(sink: Sink) -> ClientNumbers:
    return ClientNumbers(
        sink.weight_decay, sink.prox, sink.beta1, sink.gain1, sink.beta2, sink.gain2, sink.eps, sink.root_eps
    )


def _is_wide(m: Dense, x: Tensor, sink: Sink, *values: Tensor) -> bool:
    """Whether rows of the weight, of the values and of the clients all start at multiples of a quad."""
    sizes = (m.weight.offset, m.inputs, m.in_stride, m.out_stride)
    aligned = is_wide(sink.size, x, sink.m, sink.v, sink.anchor, sink.correction, *values)
    return aligned and all(size % QUAD == 0 for size in sizes)
