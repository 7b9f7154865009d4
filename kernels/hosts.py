"""Arrays of other libraries as tensors on the same memory: NumPy's, and whatever speaks DLPack (CuPy, JAX, ...).

What an op writes must be writable: an array that its library holds to be constant is refused, not changed behind its
back. Nothing is copied.
"""

from __future__ import annotations

import ctypes
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

_VERSION = (1, 1)  # of DLPack, the first by which an array says that it is constant
_FLAGS = 24  # bytes before a managed tensor's flags: its version, its manager, its deleter
_READ_ONLY = 1


def is_array(value: object) -> bool:
    """Whether it is an array of a library that is not torch."""
    return not isinstance(value, Tensor) and hasattr(value, "__dlpack__")


def read(name: str, value: Any) -> Any:
    """The array as a tensor that will not be written. What is no array stays what it is, for the checks to look at."""
    return _tensor(name, value) if is_array(value) else value


def written(name: str, value: Any) -> Any:
    """The array as a tensor that may be written, or an error if it is constant."""
    if not is_array(value):
        return value
    if _is_constant(value):
        library = type(value).__module__.partition(".")[0]
        raise ValueError(f"{name}: this {library} array is read-only, and the op writes it in place; pass a copy")
    return _tensor(name, value)


def state(given: Any) -> Any:
    """A state whose arrays are tensors."""
    if not isinstance(given, dict):
        return given
    return {name: written(f"state[{name!r}]", value) for name, value in given.items()}


def like(given: Any, result: Tensor) -> Any:
    """The result of an op as its argument's library has arrays: of NumPy for NumPy's, of JAX for JAX's."""
    if not is_array(given):
        return result
    if isinstance(given, np.ndarray):
        return result.numpy()
    namespace = getattr(given, "__array_namespace__", None)
    return result if namespace is None else namespace().from_dlpack(result)


def _tensor(name: str, value: Any) -> Tensor:
    try:
        if not isinstance(value, np.ndarray):
            return torch.from_dlpack(value)
        if value.flags.writeable:
            return torch.from_numpy(value)
        with warnings.catch_warnings():  # torch warns of constant arrays; this one is only read
            warnings.simplefilter("ignore", UserWarning)
            return torch.from_numpy(value)
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        raise TypeError(f"{name}: torch cannot share this array's memory: {error}") from error


def _is_constant(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return not value.flags.writeable
    if type(value).__module__.partition(".")[0] in ("jax", "jaxlib"):
        return True  # all of JAX's are, whatever their flag says
    try:
        capsule = value.__dlpack__(max_version=_VERSION)
    except TypeError:
        return False  # of a library that speaks an older DLPack, in which nothing is constant
    except BufferError:
        return True
    held = ctypes.pythonapi.PyCapsule_GetPointer
    held.restype, held.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    try:
        address = held(capsule, b"dltensor_versioned")
    except ValueError:
        return False  # an unversioned one
    return bool(ctypes.c_uint64.from_address(address + _FLAGS).value & _READ_ONLY)
