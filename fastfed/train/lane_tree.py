"""The tree in which `native` folds its lanes (csrc/engine/lanes.h), for those who have a part of it each.

A node of the tree is the run of lanes below it. Two neighbours are folded at a time, level by level; the last of an odd
number goes up as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from torch import Tensor

Node = tuple[int, int]  # lanes [first, end)


def cuts(lanes: int, ranks: int) -> list[range]:
    """Neighbouring lanes for each rank: none has more than it must, and beyond that subtrees stay together, so that few
    sums have to travel. Ranks beyond the lanes have none."""
    grain = 1  # lanes that stay together
    while 2 * grain * _ceil(_ceil(lanes, 2 * grain), ranks) <= _ceil(lanes, ranks):
        grain *= 2
    borders = [min(lanes, grain * (_ceil(lanes, grain) * rank // ranks)) for rank in range(ranks + 1)]
    return [range(first, end) for first, end in pairwise(borders)]


def _ceil(number: int, by: int) -> int:
    return -(-number // by)


def roots(lanes: int, here: range) -> list[Node]:
    """The largest subtrees of a tree over so many lanes whose lanes are all `here`, from left to right."""
    found: list[Node] = []

    def look(first: int, width: int) -> None:
        end = min(lanes, first + width)
        if first >= here.stop or end <= here.start or first >= lanes:
            return
        if here.start <= first and end <= here.stop:
            found.append((first, end))
            return
        look(first, width // 2)
        look(first + width // 2, width // 2)

    look(0, _width(lanes))
    return found


def folded(lanes: int, sums: Mapping[Node, Tensor]) -> Tensor:
    """The sum over all lanes, from those of subtrees that have every lane once between them."""

    def sum_of(first: int, width: int) -> Tensor:
        node = (first, min(lanes, first + width))
        if node in sums:
            return sums[node]
        middle = first + width // 2
        left = sum_of(first, width // 2)
        return left if middle >= lanes else left + sum_of(middle, width // 2)

    return sum_of(0, _width(lanes))


def _width(lanes: int) -> int:
    """Of the tree: the next power of two."""
    return 1 << (lanes - 1).bit_length()
