"""Images of made-up clients."""

from fastfed._core import make_images

__all__ = ["make_images"]
