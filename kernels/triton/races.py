"""Races of interpreted kernels: pairs of accesses that a card may carry out in either order, with different results.

A program is many threads, and Triton orders nothing between two of them but at `tl.debug_barrier()`; programs of one
launch are not ordered at all. The interpreter runs everything in one order and so cannot fail; here its accesses are
judged by these rules.

Inside a program, between two barriers, an address that one instruction writes must not be touched by another
instruction: not read after it, not written again (not even with the same value), not read before it. Nor may one
instruction write two values to one address. Turns of a loop are different instructions.

The one exception is an element updated in place: read, then written, at the same place in a tile of the same shape
and type, in a tile of at least as many elements as the program has threads. Such tiles are laid out without copies:
one thread alone reads the element. Either the same thread writes it, after its own read (``Traffic.in_place_layouts``
shows that the compiled layouts agree), or another that had to wait for the value because what it writes is made of it.
Smaller tiles and single numbers are read by several threads each, of which one writes while another may still have to
read: they need a barrier.

Across the programs of a launch, what one writes no other may touch.

Atomic operations may meet each other anywhere if they are the same and their order cannot be seen: integer sums, minima
and maxima, bits; not sums of floats (the result would depend on the order), not exchanges. A kernel that uses what an
atomic returns sees the order all the same, which this module cannot see. Atomics and plain accesses to one address need
a barrier between them, and never mix across programs.

An address outside the storage of every tensor among the arguments is refused before it is touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from torch import Tensor

from .interpreted import READ, WRITE, Access, Observer, Started, observed

COMMUTING = frozenset({"add", "min", "umin", "max", "umax", "and", "or", "xor"})


class Kind(Enum):
    """What two accesses do to one address."""

    READ_AFTER_WRITE = "read after a write, without a barrier between"
    WRITE_AFTER_READ = "written after a read that another thread may have to make, without a barrier between"
    WRITTEN_TWICE = "written by two instructions, without a barrier between"
    TWO_VALUES = "written by one instruction with different values"
    ATOMIC_AND_PLAIN = "touched atomically and plainly, without a barrier between"
    ORDER_SEEN = "touched by atomics whose result depends on their order"
    PROGRAMS = "written by one program and touched by another"


@dataclass(frozen=True)
class Race:
    """The first of `addresses` addresses that the lines `first` and `second` fight for in a program (or in two)."""

    kernel: str
    kind: Kind
    first: str
    second: str
    programs: tuple[tuple[int, int, int], ...]
    argument: str
    element: int
    addresses: int

    def __str__(self) -> str:
        where = " and ".join(str(index) for index in self.programs)
        lines = self.first if self.first == self.second else f"{self.first} and {self.second}"
        return (
            f"{self.kernel}: {self.argument}[{self.element}] is {self.kind.value}: {lines}, program {where}, "
            f"{self.addresses} addresses in all"
        )


@dataclass(frozen=True)
class Excuse:
    """Races of this kind over this argument of this kernel are known, and harmless `because` of a reason."""

    kernel: str
    kind: Kind
    argument: str
    because: str

    def covers(self, race: Race) -> bool:
        return (self.kernel, self.kind, self.argument) == (race.kernel, race.kind, race.argument)


@dataclass
class Verdict:
    """What was found: `races` that nobody excused, `excused` ones, and how many launches were judged."""

    races: list[Race] = field(default_factory=list)
    excused: list[Race] = field(default_factory=list)
    launches: int = 0

    def check(self) -> None:
        """An error that lists the races, if there are any."""
        if self.races:
            raise RaceError("\n".join(str(race) for race in self.races))


class RaceError(AssertionError):
    """Kernels whose results depend on the order in which a card happens to work."""


@contextmanager
def watched(excuses: Sequence[Excuse] = ()) -> Iterator[Verdict]:
    """Judges every kernel launched inside; the verdict is complete at the end. Needs TRITON_INTERPRET=1."""
    verdict = Verdict()
    with observed(_Judge(verdict, excuses)):
        yield verdict


class _Judge(Observer):
    """Collects a program's accesses between barriers, and all of a launch."""

    def __init__(self, verdict: Verdict, excuses: Sequence[Excuse]) -> None:
        self.verdict, self.excuses = verdict, excuses
        self.reported: set[tuple[str, ...]] = set()

    def launch_starts(self, launch: Started) -> None:
        self.launch, self.memory = launch, _Memory(launch.tensors)
        self.since_barrier: list[Access] = []
        self.accesses: list[Access] = []
        self.owners: list[int] = []
        self.programs: list[tuple[int, int, int]] = []

    def program_starts(self, index: tuple[int, int, int]) -> None:
        self.barrier()
        self.programs.append(index)

    def access(self, access: Access) -> None:
        if access.starts.size:
            self.memory.refuse_strays(access, self.launch.kernel)
            self.since_barrier.append(access)

    def barrier(self) -> None:
        accesses, self.since_barrier = self.since_barrier, []
        self.accesses += accesses
        self.owners += [len(self.programs) - 1] * len(accesses)
        self._judge(accesses, None)

    def launch_ends(self) -> None:
        self.barrier()
        self._judge(self.accesses, self.owners)
        self.verdict.launches += 1

    def _judge(self, accesses: list[Access], owners: list[int] | None) -> None:
        """By the rules of one program, or with `owners` (the program of each access) by those across programs."""
        concerned = self.memory.concerned(accesses)
        if not concerned:
            return
        chosen = [accesses[i] for i in concerned]
        elements = _shared_elements(chosen, None if owners is None else [owners[i] for i in concerned])
        if elements is None:
            return
        found = _inside(elements, self.launch.threads) if owners is None else _across(elements)
        for kind, first, second in found:
            self._report(kind, elements, first, second, chosen)

    def _report(
        self, kind: Kind, elements: _Elements, first: np.ndarray, second: np.ndarray, accesses: list[Access]
    ) -> None:
        """Elements `first` and `second` (n,) clash pairwise; one report for each kind, argument and pair of lines."""
        one, other = (accesses[elements.instruction[side[0]]] for side in (first, second))
        argument, element = self.memory.name(int(elements.start[first[0]]))
        key = (self.launch.kernel, kind.name, one.line, other.line, argument)
        if key in self.reported:
            return
        self.reported.add(key)
        owners = sorted({int(elements.owner[first[0]]), int(elements.owner[second[0]])})
        programs = tuple(self.programs[owner] for owner in owners) if kind is Kind.PROGRAMS else (self.programs[-1],)
        race = Race(self.launch.kernel, kind, one.line, other.line, programs, argument, element, first.size)
        excused = any(excuse.covers(race) for excuse in self.excuses)
        (self.verdict.excused if excused else self.verdict.races).append(race)


# ---- addresses and arguments ----------------------------------------------------------------------------------------


class _Memory:
    """The storages of a launch's tensors, in the order of their addresses."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors
        spans = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors.values()}
        self.begins = np.array(sorted(spans), dtype=np.int64)
        self.ends = np.array([begin + spans[begin] for begin in sorted(spans)], dtype=np.int64)

    def storage_of(self, addresses: np.ndarray) -> np.ndarray:
        """(n,) the last storage that begins at or before each address; -1: none does."""
        return np.searchsorted(self.begins, addresses, side="right") - 1

    def refuse_strays(self, access: Access, kernel: str) -> None:
        storage = self.storage_of(access.starts)
        ends = access.starts + access.item_bytes
        stray = (storage < 0) | (ends > self.ends[storage]) if self.ends.size else storage < 0
        if stray.any():
            element = np.unravel_index(int(access.elements[stray.argmax()]), access.shape)
            raise RaceError(
                f"{kernel}: {access.line}: element {tuple(map(int, element))} of the tile {access.shape} is outside "
                f"of every argument, and not masked"
            )

    def concerned(self, accesses: list[Access]) -> list[int]:
        """Which accesses touch storage that some of them write: the others cannot race. An access stays in one."""
        storages = [int(self.storage_of(access.starts[:1])[0]) for access in accesses]
        written = {storage for storage, access in zip(storages, accesses, strict=True) if access.kind != READ}
        return [i for i, storage in enumerate(storages) if storage in written]

    def name(self, address: int) -> tuple[str, int]:
        """The argument that holds this address, and the element; of several the one that begins last before it."""
        storage = int(self.storage_of(np.array([address]))[0])
        begin = self.begins[storage]
        inside = [(t.data_ptr(), name) for name, t in self.tensors.items() if begin <= t.data_ptr() <= address]
        inside = [(at, name) for at, name in inside if self.tensors[name].untyped_storage().data_ptr() == begin]
        at, name = max(inside, default=(int(begin), f"storage {storage}"), key=lambda found: found[0])
        item_bytes = self.tensors[name].element_size() if name in self.tensors else 1
        return name, (address - at) // item_bytes


# ---- the rules ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Elements:
    """Elements of accesses that share an address with a write: sorted by `group` (one group per address)."""

    group: np.ndarray  # 0, 0, 0, 1, 1, ...
    begins: np.ndarray  # of every group
    start: np.ndarray
    item_bytes: np.ndarray
    instruction: np.ndarray
    owner: np.ndarray
    kind: np.ndarray  # 0 a read, 1 a write, others atomic
    element: np.ndarray
    tile: np.ndarray  # equal for tiles of equal shape
    tile_size: np.ndarray
    bits: np.ndarray
    commutes: np.ndarray

    def smallest(self, values: np.ndarray) -> np.ndarray:
        """(groups,) of values (n,)."""
        return np.minimum.reduceat(values, self.begins)

    def largest(self, values: np.ndarray) -> np.ndarray:
        """(groups,) of values (n,)."""
        return np.maximum.reduceat(values, self.begins)

    def any(self, which: np.ndarray) -> np.ndarray:
        """(groups,) whether a group has a member of `which` (n,)."""
        return np.logical_or.reduceat(which, self.begins)

    def first(self, which: np.ndarray) -> np.ndarray:
        """(groups,) the number of each group's first member of `which` (n,); 0 where there is none."""
        found = self.smallest(np.where(which, np.arange(which.size), which.size))
        return np.where(found < which.size, found, 0)

    def harmless_atomics(self) -> np.ndarray:
        """(groups,) whether all members are one kind of atomics whose order cannot be seen."""
        return (self.smallest(self.kind) == self.largest(self.kind)) & ~self.any(~self.commutes)


def _shared_elements(accesses: list[Access], owners: list[int] | None) -> _Elements | None:
    """None, if no address is written and touched again."""
    sizes = [access.starts.size for access in accesses]
    start = np.concatenate([access.starts for access in accesses])
    kinds = _numbered([READ, WRITE], [access.kind for access in accesses])
    item_bytes, kind = np.repeat([access.item_bytes for access in accesses], sizes), np.repeat(kinds, sizes)
    order = np.argsort(start, kind="stable")  # stable: members of a group stay in the program's order
    ends = np.maximum.accumulate((start + item_bytes)[order])
    opens = np.concatenate([[True], start[order][1:] >= ends[:-1]])  # overlapping bytes belong together
    kept = _written_and_shared(opens, kind[order] != 0)
    if not kept.any():
        return None
    order, opens = order[kept], opens[kept]
    instruction = np.repeat(np.arange(len(accesses)), sizes)[order]
    tiles = _numbered([], [access.shape for access in accesses])
    bits = [np.zeros(a.starts.size, np.uint64) if a.bits is None else a.bits.astype(np.uint64) for a in accesses]
    return _Elements(
        group=np.cumsum(opens) - 1,
        begins=np.flatnonzero(opens),
        start=start[order],
        item_bytes=item_bytes[order],
        instruction=instruction,
        owner=instruction if owners is None else np.array(owners)[instruction],
        kind=kind[order],
        element=np.concatenate([access.elements for access in accesses])[order],
        tile=tiles[instruction],
        tile_size=np.array([np.prod(access.shape) for access in accesses])[instruction],
        bits=np.concatenate(bits)[order],
        commutes=np.array([access.kind in COMMUTING for access in accesses])[instruction],
    )


def _numbered(first: list, values: list) -> np.ndarray:
    """Equal values get equal numbers; those of `first` get 0, 1, ..."""
    numbers = {value: number for number, value in enumerate(dict.fromkeys([*first, *values]))}
    return np.array([numbers[value] for value in values], dtype=np.int64)


def _written_and_shared(opens: np.ndarray, writes: np.ndarray) -> np.ndarray:
    """(n,) which elements belong to groups of several members, at least one of which is not a read."""
    begins = np.flatnonzero(opens)
    size = np.diff(begins, append=opens.size)
    wanted = (size > 1) & np.logical_or.reduceat(writes, begins)
    return np.repeat(wanted, size)


_Found = Iterator[tuple[Kind, np.ndarray, np.ndarray]]  # for each group at fault the two members that clash


def _inside(e: _Elements, threads: int) -> _Found:
    """The rules of one program between two barriers."""
    read, write, atomic = e.kind == 0, e.kind == 1, e.kind > 1
    mixed = e.any(atomic) & e.any(~atomic)
    yield from _where(Kind.ATOMIC_AND_PLAIN, mixed, e.first(atomic), e.first(~atomic))
    alone = e.any(atomic) & ~mixed
    yield from _where(Kind.ORDER_SEEN, alone & ~e.harmless_atomics(), e.begins, e.begins + 1)

    plain, writer = e.any(write) & ~mixed, e.first(write)
    its_writer = writer[e.group]  # of every member
    again = write & (e.instruction != e.instruction[its_writer])
    yield from _where(Kind.WRITTEN_TWICE, plain & e.any(again), writer, e.first(again))
    differs = write & ~again & (e.bits != e.bits[its_writer])
    yield from _where(Kind.TWO_VALUES, plain & e.any(differs), writer, e.first(differs))
    later = read & (e.instruction > e.instruction[its_writer])
    yield from _where(Kind.READ_AFTER_WRITE, plain & e.any(later), writer, e.first(later))
    in_place = (e.tile_size >= threads) & (e.tile == e.tile[its_writer]) & (e.element == e.element[its_writer])
    in_place &= (e.start == e.start[its_writer]) & (e.item_bytes == e.item_bytes[its_writer])
    earlier = read & ~later & ~in_place
    yield from _where(Kind.WRITE_AFTER_READ, plain & e.any(earlier), e.first(earlier), writer)


def _across(e: _Elements) -> _Found:
    """Addresses that several programs touch, unless by one kind of atomics whose order cannot be seen."""
    several = e.smallest(e.owner) != e.largest(e.owner)
    writer = e.first(e.kind > 0)
    stranger = e.first(e.owner != e.owner[writer][e.group])
    yield from _where(Kind.PROGRAMS, several & ~e.harmless_atomics(), writer, stranger)


def _where(kind: Kind, bad: np.ndarray, first: np.ndarray, second: np.ndarray) -> _Found:
    if bad.any():
        yield kind, first[bad], second[bad]
