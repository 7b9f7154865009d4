"""Norms of rows, and rows scaled down to a norm."""

from fastfed._core import clip, norms

__all__ = ["clip", "norms"]
