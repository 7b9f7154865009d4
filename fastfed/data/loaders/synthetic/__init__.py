"""Made-up tasks in the shapes of the papers' ones, for any number of clients, with something in them to be learnt.

Each `synthetic_*` gives clients that differ: in how many examples they have (log-normal, between 1 and ten times the
mean), in what these are about, and in style. Everything is made when it is visited, from whole numbers or with `exact`
arithmetic: the same bits on every machine.
"""

from .images import synthetic_autoencoder, synthetic_images
from .regression import synthetic_regression
from .tags import synthetic_tags
from .tails import synthetic_heavy_tails
from .text import synthetic_text
from .topics import synthetic_topics

__all__ = [
    "synthetic_autoencoder",
    "synthetic_heavy_tails",
    "synthetic_images",
    "synthetic_regression",
    "synthetic_tags",
    "synthetic_text",
    "synthetic_topics",
]
