"""The tree in which `native` folds its lanes (csrc/engine/lanes.h), for those who have a part of it each.

A node of the tree is the run of lanes below it. Two neighbours are folded at a time, level by level; the last of an odd
number goes up as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

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


def even_cuts(costs: Sequence[float], ranks: int, price: float) -> list[range]:
    """Neighbouring lanes for each rank, so that the one with the most to do has as little as may be: `costs` of lanes,
    and `price` for every sum that it has to send because its subtree ends there."""
    sums = [0.0, *accumulate(costs)]

    def cut(grain: int) -> list[range]:
        """At multiples of so many lanes, each as near as can be to a rank's share of all costs."""
        grid = [*range(0, len(costs), grain), len(costs)]
        shares = [sums[-1] * rank / ranks for rank in range(1, ranks)]
        inner = [min(grid, key=lambda lane: abs(sums[lane] - share)) for share in shares]
        return [range(first, end) for first, end in pairwise([0, *inner, len(costs)])]

    def longest(parts: list[range]) -> float:
        return max(sums[some.stop] - sums[some.start] + price * len(roots(len(costs), some)) for some in parts)

    grains = [1 << level for level in range((len(costs) - 1).bit_length() + 1)]
    return min((cut(grain) for grain in reversed(grains)), key=longest)  # of equal ones that with the largest subtrees


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
