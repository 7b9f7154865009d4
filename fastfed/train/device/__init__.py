"""The executor `device`: local training of many clients as Triton kernels, on one device or several."""

from .engine import Device
from .several import SeveralDevices

__all__ = ["Device", "SeveralDevices"]
