"""`python -m fastfed.bench.waiting`: what threads that wait cost, alone and beside others who want the processor.

A thread that has done its share of a round waits for the others, and then for the next call: it spins, which is the
quickest, or it sleeps, which leaves the processor to whoever has use for it. OpenMP is told when it is loaded, so every
setting has a process of its own; they take turns.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from .common.neighbours import busy

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
SETTINGS: dict[str, dict[str, str]] = {  # what a process is started with; none of them: what `import fastfed` chooses
    "FastFed's own": {},
    "OpenMP's own": {"GOMP_SPINCOUNT": "300000"},  # GNU's, where it is told nothing
    "10,000 turns": {"GOMP_SPINCOUNT": "10000"},
    "1,000 turns": {"GOMP_SPINCOUNT": "1000"},
    "passive": {"OMP_WAIT_POLICY": "passive"},
}
WORKS = {"a client": 1, "10 clients": 10, "100 clients": 100}  # of 40 examples each, two steps
MOMENT = 1e-3  # seconds that the host does something else between two calls

Calls = dict[str, Callable[[], object]]


def calls_of(threads: int) -> Calls:
    """Rounds of softmax regression on 784 numbers, and a server's step on a million."""
    import torch

    import fastfed as ff

    torch.set_num_threads(threads)
    module = torch.nn.Linear(784, 10)
    examples = ff.data.Examples(torch.randn(4000, 784), torch.randint(10, (4000,)))
    engine = ff.train.make("native", module, "cross_entropy", examples, threads=threads)
    x = ff.Packing.of(module).pack(module)

    def round_of(clients: int) -> Callable[[], object]:
        work = ff.train.RoundWork(
            start=x,
            rows=torch.arange(40 * clients),
            offsets=40 * torch.arange(clients + 1),
            ids=torch.arange(clients),
            steps=torch.full((clients,), 2),
            batch_size=20,
            optimizers=(ff.clients.SGD(lr=0.1),),
        )
        return lambda: engine.run(work)

    model, delta = torch.randn(1_000_000), torch.randn(1_000_000)
    state = ff.kernels.server_state("adam", model)
    step = {"a step of 1e6": lambda: ff.kernels.server_step("adam", model, delta, state, lr=0.01)}
    return {name: round_of(clients) for name, clients in WORKS.items()} | step


def costs(call: Callable[[], object], times: int) -> list[tuple[float, float]]:
    """Wall and processor seconds of every call. What threads spin while the host does something else counts."""
    found = []
    for _ in range(times):
        begun, used = time.perf_counter(), time.process_time()
        call()
        wall = time.perf_counter() - begun
        until = time.perf_counter() + MOMENT
        own = time.thread_time()
        while time.perf_counter() < until:
            pass
        own = time.thread_time() - own
        found.append((wall, time.process_time() - used - own))
    return found


def serve(threads: int) -> None:
    """Measures as often as a line asks for, until there are no more lines; answers in lines of JSON."""
    calls = calls_of(threads)
    for call in calls.values():
        call()
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        print(json.dumps({name: costs(call, int(line)) for name, call in calls.items()}), flush=True)


class Process:
    """A process of its own with a setting."""

    def __init__(self, setting: dict[str, str], threads: int) -> None:
        told = {name: value for name, value in os.environ.items() if name not in VARIABLES} | setting
        program = f"from fastfed.bench import waiting; waiting.serve({threads})"
        self._there = subprocess.Popen(
            [sys.executable, "-c", program], env=told, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def answer(self) -> Any:
        assert self._there.stdout is not None
        return json.loads(self._there.stdout.readline())

    def ask(self, times: int) -> dict[str, list[tuple[float, float]]]:
        assert self._there.stdin is not None
        self._there.stdin.write(f"{times}\n")
        self._there.stdin.flush()
        found: dict[str, list[tuple[float, float]]] = self.answer()
        return found

    def end(self) -> None:
        self._there.communicate()  # no more lines


@contextmanager
def loops(count: int) -> Iterator[None]:
    """So many processes that want a processor all the time."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in started:
            loop.kill()
            loop.wait()


def in_turns(processes: dict[str, Process], turns: int, times: int) -> dict[str, dict[str, tuple[float, float]]]:
    """The medians of wall and processor milliseconds over all calls, by setting and work."""
    taken: dict[str, dict[str, list[tuple[float, float]]]] = {name: {} for name in processes}
    for _ in range(turns):
        for name, process in processes.items():
            for work, found in process.ask(times).items():
                taken[name].setdefault(work, []).extend(found)
    return {
        name: {work: (_median([w for w, _ in found]), _median([p for _, p in found])) for work, found in works.items()}
        for name, works in taken.items()
    }


def _median(seconds: Sequence[float]) -> float:
    return 1e3 * statistics.median(seconds)


@app.command()
def main(
    turns: Annotated[int, typer.Option(min=1, help="Turns of every setting.")] = 5,
    times: Annotated[int, typer.Option(min=1, help="Calls of each work in a turn.")] = 20,
    threads: Annotated[int, typer.Option(min=1, help="Threads of FastFed.")] = 2,
    beside: Annotated[str, typer.Option(help="Numbers of busy loops beside it.")] = "0,2",
) -> None:
    """Measure what waiting threads cost: wall / processor milliseconds, medians."""
    processes = {name: Process(setting, threads) for name, setting in SETTINGS.items()}
    for process in processes.values():
        process.answer()
    for count in map(int, beside.split(",")):
        load = busy()
        with loops(count):
            found = in_turns(processes, turns, times)
        others = "" if load is None else f"; others used {load:.0%} of the machine when it began"
        print(f"{threads} threads on {os.cpu_count()} processors beside {count} busy loops{others}")
        for name, works in found.items():
            cells = ", ".join(f"{work} {wall:.2f} / {used:.2f}" for work, (wall, used) in works.items())
            print(f"  {name:14} {cells}")
    for process in processes.values():
        process.end()


if __name__ == "__main__":
    app()
