"""`python -m fastfed.bench.host_time`: what the host does for a local step of executor 'batched'.

Clients, examples, batches and steps are a workload's, but the model has four parameters: hardly anything is computed,
so that the time left is what it takes to plan the round and to hand its operations over. On a device that computes
beside the host, a local step cannot be faster than this.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from typing import Annotated

import torch
import typer
from torch import nn

from ..data import Examples
from ..packing import Packing
from ..train.batched import Batched
from .rounds.workloads import WORKLOADS, Workload

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def with_next_to_no_model(workload: Workload) -> Workload:
    """The workload's clients and steps; every example is one number of one of two classes."""

    def data(n: int) -> Examples:
        numbers = torch.arange(n) % 7
        return Examples(numbers[:, None].float(), numbers % 2)

    return replace(workload, module=lambda: nn.Linear(1, 2), loss="cross_entropy", data=data)


def seconds_per_step(workload: Workload, clients: int, rounds: int) -> list[float]:
    """Of every round: its processor time over the number of local steps. One round more goes before."""
    module = workload.make_module()
    work = workload.work(Packing.of(module).pack(module), clients, clients)
    executor = Batched(module, workload.loss, workload.data(clients * workload.examples))
    taken = []
    for _ in range(rounds + 1):
        begin = time.process_time()  # the processor's, not the clock's: neighbours do not count
        executor.run(work)
        taken.append((time.process_time() - begin) / int(work.steps.max()))
    return taken[1:]


@app.command()
def main(
    workload: Annotated[str, typer.Option(help=f"One of {', '.join(WORKLOADS)}.")] = "W1",
    clients: Annotated[int, typer.Option(min=1, help="Clients of a round.")] = 1000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds that are timed.")] = 21,
) -> None:
    """Measure the host's share of a local step of executor 'batched'."""
    if workload not in WORKLOADS:
        raise typer.BadParameter(f"must be one of {', '.join(WORKLOADS)}, got {workload!r}", param_hint="--workload")
    taken = [1e3 * each for each in seconds_per_step(with_next_to_no_model(WORKLOADS[workload]), clients, rounds)]
    spread = f"from {min(taken):.2f} to {max(taken):.2f}"
    print(f"{workload}, {clients:,} clients: {statistics.median(taken):.2f} ms of host time a local step ({spread})")


if __name__ == "__main__":
    app()
