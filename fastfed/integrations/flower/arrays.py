"""Flower's arrays and NumPy's: a reply is read where it arrived, and a model is written once.

Flower's `Array` holds the bytes of a ``.npy`` file. Its own way back and forth goes through NumPy's file functions,
which copy; here the numbers behind the header are a view of the same bytes.
"""

from __future__ import annotations

import math
from io import BytesIO
from typing import Any

import numpy as np
from numpy.lib import format as npy

from .host import Array

_STYPE = "numpy.ndarray"  # how Flower names what NumPy wrote


def read(array: Any) -> np.ndarray:
    """The numbers of a Flower array, read-only: a view of its bytes where they are as this machine has them, in C's
    order and on a border of their size, else a copy."""
    if array.stype != _STYPE:
        raise TypeError(f"array: FastFed reads arrays that NumPy wrote ({_STYPE!r}), got {array.stype!r}")
    file = BytesIO(array.data)  # shares the bytes
    if npy.read_magic(file) != (1, 0):
        return _copied(array)
    shape, in_fortran_order, dtype = npy.read_array_header_1_0(file)
    as_here = dtype.isnative and not dtype.hasobject and not (in_fortran_order and len(shape) > 1)
    if not as_here:
        return _copied(array)
    found = np.frombuffer(array.data, dtype, math.prod(shape), file.tell()).reshape(shape)
    return found if found.flags.aligned else found.copy()


def _copied(array: Any) -> np.ndarray:
    found = array.numpy()
    return np.array(found, dtype=found.dtype.newbyteorder("="), order="C")


def write(numbers: np.ndarray) -> Any:
    """A Flower array with a copy of these numbers."""
    numbers = np.asarray(numbers, order="C")
    header = BytesIO()
    npy.write_array_header_1_0(header, npy.header_data_from_array_1_0(numbers))
    data = b"".join((header.getvalue(), numbers.reshape(-1).view(np.uint8).data))
    return Array(str(numbers.dtype), tuple(numbers.shape), _STYPE, data)
