"""Who takes part in `bench peers`: each framework's file, its environment, and what it runs side by side."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import fastfed

from ..rounds.rows import CHUNKED, FASTFED, PLAIN, VMAP
from ..rounds.workloads import Peer, Workload
from .contender import Contender

FEDJAX, PFL, FLOWER, BLAZEFL, JAX_VMAP = "fedjax", "pfl", "flower", "blazefl", "jax vmap"
FAILED = "failed"  # the file of an environment that could not be made: why


@dataclass(frozen=True)
class Variant:
    """So many clients of a workload, `chunk` of them (or so many processes) side by side."""

    clients: int
    chunk: int
    words: str = ""


@dataclass(frozen=True)
class Entrant:
    """A framework: `python -m peers.in_<stem>` in the environment `.venv-<home>` ("": FastFed's own).

    `variants(workload, clients, threads)` are timed, and the fastest counts; none if the framework has nothing for the
    workload. `ranks`: a variant's chunk is a number of processes, which find each other by `meeting`.
    """

    name: str
    stem: str
    home: str
    variants: Callable[[Workload, int, int], list[Variant]]
    ranks: bool = False
    meeting: Callable[[int], list[Mapping[str, str]]] = lambda processes: [{}]

    def missing(self, environments: Path) -> str:
        """Why its environment cannot be used; "" if it can."""
        return missing_home(self.home, environments)

    def start(self, variant: Variant, task: Path, threads: int, environments: Path) -> Contender:
        """Its processes, ready to be asked."""
        command = [python_of(self.home, environments), "-m", f"peers.in_{self.stem}", str(task)]
        command += [str(number) for number in (variant.clients, threads, variant.chunk)]
        processes = variant.chunk if self.ranks else 1
        return Contender(command, self.meeting(processes), threads)


def python_of(home: str, environments: Path) -> str:
    """The interpreter of `.venv-<home>`; FastFed's own for ""."""
    return str(environments / f".venv-{home}" / "bin" / "python") if home else sys.executable


def missing_home(home: str, environments: Path) -> str:
    """Why that interpreter cannot be used; "" if it can."""
    folder = environments / f".venv-{home}"
    if home and (folder / FAILED).exists():
        return f"does not install: {(folder / FAILED).read_text().strip()}"
    there = not home or (folder / "bin" / "python").exists()
    return "" if there else f"{folder.name} is not there: make bench-peers"


def home_of_environments() -> Path:
    """Where `make bench-peers` puts them: beside the package."""
    return Path(fastfed.__file__).parents[1]


def _whole(workload: Workload, clients: int, threads: int) -> list[Variant]:
    return [Variant(clients, 0)]


def _as_plain(workload: Workload, clients: int, threads: int) -> list[Variant]:
    """As many clients as the plain loop is given."""
    return [Variant(min(clients, workload.peers[PLAIN].clients), 0)]


def _chunks(workload: Workload, clients: int, threads: int) -> list[Variant]:
    """Every chunk that the workload has for vmap, on as many clients as the slowest way of it is given."""
    peers = [workload.peers[name] for name in (VMAP, CHUNKED) if name in workload.peers]
    able: list[Peer] = [peer for peer in peers if not peer.skipped]
    if not able:
        return []
    timed = min(clients, *(peer.clients for peer in able))
    chunks = sorted({min(chunk, timed) for peer in able for chunk in peer.chunks})
    return [Variant(timed, chunk, f"{chunk:,} at once") for chunk in chunks]


def _processes(workload: Workload, clients: int, threads: int) -> list[Variant]:
    """One process, and one a core."""
    timed = _as_plain(workload, clients, threads)[0].clients
    counts = sorted({1, min(threads, timed)})
    return [Variant(timed, count, f"{count} process{'es' if count > 1 else ''}") for count in counts]


def _addresses(processes: int) -> list[Mapping[str, str]]:
    """Where the processes of pfl meet."""
    if processes == 1:
        return [{}]
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
    workers = ",".join(f"127.0.0.1:{port + place}" for place in range(processes))
    shared = {"PFL_WORKER_ADDRESSES": workers, "GLOO_SOCKET_IFNAME": "lo"}
    return [{**shared, "PFL_WORKER_RANK": str(rank)} for rank in range(processes)]


OURS = Entrant(FASTFED, "fastfed", "", _whole)
ENTRANTS: dict[str, Entrant] = {
    entrant.name: entrant
    for entrant in (
        Entrant(FEDJAX, "fedjax", "fedjax", _as_plain),
        Entrant(PFL, "pfl", "pfl", _processes, ranks=True, meeting=_addresses),
        Entrant(FLOWER, "flower", "flower", _as_plain),
        Entrant(BLAZEFL, "blazefl", "blazefl", _as_plain),
        Entrant(PLAIN, "torch", "", _as_plain),
        Entrant(VMAP, "torch", "", _chunks),
        Entrant(JAX_VMAP, "jax", "", _chunks),
    )
}
