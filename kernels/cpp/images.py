"""Examples of made-up clients."""

from fastfed._core import choose_rows, make_images

__all__ = ["choose_rows", "make_images"]
