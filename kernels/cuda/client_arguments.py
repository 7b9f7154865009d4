"""A client call as the kernels take it: shared by client_step.py and sm3_step.py."""

from __future__ import annotations

import ctypes

from torch import Tensor

from ..client_call import ClientCall
from .launch import address, is_wide


class ClientVectors(ctypes.Structure):
    """``ClientVectors`` of csrc/cuda/client.h."""

    _fields_ = [
        ("x", ctypes.c_void_p),
        ("grad", ctypes.c_void_p),
        ("anchor", ctypes.c_void_p),
        ("correction", ctypes.c_void_p),
        ("before", ctypes.c_void_p),
        ("m", ctypes.c_void_p),
        ("v", ctypes.c_void_p),
        ("kept", ctypes.c_void_p),
        ("coefficients", ctypes.c_void_p),
        ("clients", ctypes.c_longlong),
        ("d", ctypes.c_longlong),
        ("anchor_stride", ctypes.c_longlong),
        ("correction_stride", ctypes.c_longlong),
    ]


class ClientNumbers(ctypes.Structure):
    """``ClientNumbers`` of csrc/cuda/client.h."""

    _fields_ = [
        ("weight_decay", ctypes.c_float),
        ("prox", ctypes.c_float),
        ("beta1", ctypes.c_float),
        ("gain1", ctypes.c_float),
        ("beta2", ctypes.c_float),
        ("gain2", ctypes.c_float),
        ("eps", ctypes.c_float),
        ("root_eps", ctypes.c_float),
    ]


def vectors(call: ClientCall, coef: Tensor, *, writes: bool) -> tuple[ClientVectors, bool]:
    """The call's rows, and whether they allow wide accesses. `coef` must stay alive until the launch.

    A pass that writes nothing reads x only where the gradient depends on it.
    """
    d, state = call.x.shape[1], call.state
    reads_x = writes or call.numbers.weight_decay > 0 or call.anchor is not None
    before = call.gradient_before if call.rule.step_size == "delta_sgd" else None
    rows = (
        call.x if reads_x else None,
        call.grad,
        call.anchor,
        call.correction,
        before,
        state.get("m"),
        state.get("nu" if call.rule.cover else "v"),
        state.get("grad_prev"),
    )
    strides = (_stride(call.anchor), _stride(call.correction))
    pointers = (address(t) for t in (*rows, coef))
    return ClientVectors(*pointers, call.clients, d, *strides), is_wide(d, *rows)


def _stride(rows: Tensor | None) -> int:
    """From client to client: 0 where all clients share one row."""
    return 0 if rows is None or rows.shape[0] == 1 else rows.shape[1]


def numbers(call: ClientCall) -> ClientNumbers:
    n = call.numbers
    return ClientNumbers(n.weight_decay, n.prox, n.beta1, n.gain1, n.beta2, n.gain2, n.eps, n.root_eps)
