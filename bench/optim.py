"""`python -m fastfed.bench.optim`: `ff.optim` beside torch.optim, on all parameters of a residual network.

Contenders take turns, each with its own copy of the parameters and all with the same gradients. Where torch has no such
rule, its operations on lists of tensors stand for it (``peers/foreach.py``).
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from .. import optim
from ..app.doctor import machine
from .common.neighbours import TOLERABLE, busy
from .common.timing import Call, take_turns
from .peers import foreach

FUSED_BAR, FOREACH_BAR = 1.0, 5.0  # how many times as fast as these we want to be
_LR = 1e-3

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def resnet_shapes(widths: Sequence[int], blocks: Sequence[int], stem: int, classes: int) -> list[tuple[int, ...]]:
    """The tensors of a residual network of basic blocks, a norm behind every convolution."""
    shapes: list[tuple[int, ...]] = [(widths[0], 3, stem, stem), (widths[0],), (widths[0],)]
    inside = widths[0]
    for width, count in zip(widths, blocks, strict=True):
        for _ in range(count):
            kernels = [(width, inside, 3, 3), (width, width, 3, 3)]
            kernels += [(width, inside, 1, 1)] if width != inside else []
            for kernel in kernels:
                shapes += [kernel, (width,), (width,)]
            inside = width
    return [*shapes, (classes, inside), (classes,)]


MODELS: dict[str, list[tuple[int, ...]]] = {
    "resnet32": resnet_shapes((16, 32, 64), (5, 5, 5), 3, 10),  # of CIFAR: it stays in a cache
    "resnet34": resnet_shapes((64, 128, 256, 512), (3, 4, 6, 3), 7, 1000),  # of ImageNet: memory is the bound
}
_AS_TORCH: dict[str, Any] = {"bias_correction": True, "eps": "torch"}
_ADAM = partial(torch.optim.Adam, lr=_LR, betas=(0.9, 0.99), eps=1e-3)
_OURS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "FedAvg": partial(optim.FedAvg, lr=_LR),
    "FedAvgM": partial(optim.FedAvgM, lr=_LR),
    "FedAdagrad": partial(optim.FedAdagrad, lr=_LR),
    "FedAdam": partial(optim.FedAdam, lr=_LR, **_AS_TORCH),
    "FedAMS": partial(optim.FedAMS, lr=_LR, **_AS_TORCH),
    "FedYogi": partial(optim.FedYogi, lr=_LR),
    "DeltaSGD": partial(optim.DeltaSGD, lr=_LR, delta=0.0),  # gradients that never change would let it grow for ever
    "SPS": partial(optim.SPS, lr_max=_LR),
    "SM3": partial(optim.SM3, lr=_LR),
    "SM3I": partial(optim.SM3I, lr=_LR),
    "SM3Adam": partial(optim.SM3Adam, lr=_LR),
}
_TORCH: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "FedAvg": partial(torch.optim.SGD, lr=_LR),
    "FedAvgM": partial(torch.optim.SGD, lr=_LR, momentum=0.9),
    "FedAdagrad": partial(torch.optim.Adagrad, lr=_LR),
    "FedAdam": _ADAM,
    "FedAMS": partial(_ADAM, amsgrad=True),
}
_FOREACH: dict[str, Callable[[list[Tensor], list[Tensor]], Call]] = {
    "FedYogi": foreach.yogi,
    "DeltaSGD": partial(foreach.delta_sgd, delta=0.0),
    "SPS": foreach.sps,
    "SM3": foreach.sm3,
    "SM3I": partial(foreach.sm3, form="I"),
    "SM3Adam": partial(foreach.sm3, adam=True),
}


@dataclass(frozen=True)
class OptimRow:
    """Seconds of one contender's step: the median over turns, with the 20th and 80th percentile."""

    model: str
    tensors: int
    parameters: int
    optimizer: str
    contender: str
    seconds: float
    p20: float
    p80: float
    turns: int
    threads: int
    machine: str


def contenders(name: str, shapes: Sequence[tuple[int, ...]]) -> dict[str, Call]:
    """Ours and torch's, each with parameters of its own."""
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(shape, generator=generator) for shape in shapes]
    grads = [0.01 * torch.randn(shape, generator=generator) for shape in shapes]

    def parameters() -> list[nn.Parameter]:
        made = [nn.Parameter(each.clone()) for each in start]
        for p, g in zip(made, grads, strict=True):
            p.grad = g
        return made

    ours = _OURS[name](parameters())
    found: dict[str, Call] = {"ff.optim": partial(ours.step, loss=3.0) if name == "SPS" else ours.step}
    if name in _TORCH:
        found["torch fused"] = _TORCH[name](parameters(), fused=True).step
        found["torch foreach"] = _TORCH[name](parameters(), foreach=True).step
    else:
        own = [each.clone() for each in start]
        found["torch foreach"] = _FOREACH[name](own, grads)
    return found


def run(model: str, names: Sequence[str], turns: int, tell: Callable[[str], None]) -> list[OptimRow]:
    """A row for each contender of each optimizer."""
    shapes = MODELS[model]
    sizes = len(shapes), sum(map(math.prod, shapes))
    rows = []
    for name in names:
        tell(f"{model}: {name}")
        for contender, timing in take_turns(contenders(name, shapes), turns).items():
            seconds = timing.median, timing.p20, timing.p80
            rows.append(
                OptimRow(
                    model, *sizes, name, contender, *seconds, timing.rounds, torch.get_num_threads(), machine().words
                )
            )
    return rows


def ratios(rows: Sequence[OptimRow]) -> dict[tuple[str, str], float]:
    """How many times as long as ours each other contender's step takes, by optimizer and contender."""
    ours = {row.optimizer: row.seconds for row in rows if row.contender == "ff.optim"}
    return {
        (row.optimizer, row.contender): row.seconds / ours[row.optimizer] for row in rows if row.contender != "ff.optim"
    }


def table(rows: Sequence[OptimRow]) -> Table:
    """Microseconds of a step with their spread, and ratios."""
    first = rows[0]
    title = f"{first.model}: {first.tensors} tensors, {first.parameters:,} parameters; {first.turns} turns"
    shown = Table(title=f"{title}, {first.threads} threads")
    for name in ("optimizer", "contender"):
        shown.add_column(name, no_wrap=True)
    for name in ("median, us", "p20", "p80", "times ours"):
        shown.add_column(name, justify="right", no_wrap=True)
    found = ratios(rows)
    for row in rows:
        ratio = found.get((row.optimizer, row.contender))
        times = [f"{1e6 * seconds:,.0f}" for seconds in (row.seconds, row.p20, row.p80)]
        named = row.optimizer if row.contender == "ff.optim" else ""
        shown.add_row(named, row.contender, *times, "" if ratio is None else f"{ratio:.2f}")
    return shown


def missed(rows: Sequence[OptimRow]) -> list[str]:
    """Sentences about bars that were missed: torch's fused where there is one, else its foreach."""
    found, sentences = ratios(rows), []
    for optimizer in dict.fromkeys(row.optimizer for row in rows):
        against, bar = ("torch fused", FUSED_BAR) if optimizer in _TORCH else ("torch foreach", FOREACH_BAR)
        if found[optimizer, against] < bar:
            sentences.append(f"{optimizer} is {found[optimizer, against]:.2f}x {against}; the bar is {bar:g}x.")
    return sentences


@app.command()
def main(
    model: Annotated[str, typer.Option(help=f"One of {', '.join(MODELS)}, or all.")] = "all",
    optimizers: Annotated[str, typer.Option(help="Names of `ff.optim`, with commas; or all.")] = "all",
    turns: Annotated[int, typer.Option(min=1, help="Turns of all contenders.")] = 15,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all measurements as JSON rows.")] = None,
) -> None:
    """Measure `ff.optim` beside torch.optim on the tensors of a residual network.

    Example: python -m fastfed.bench.optim --model resnet32 --optimizers FedAdam,SM3 --turns 21 --json out/optim.json
    """
    models = list(MODELS) if model == "all" else [model]
    names = list(_OURS) if optimizers == "all" else optimizers.split(",")
    for given, known, hint in ((models, MODELS, "--model"), (names, _OURS, "--optimizers")):
        for one in given:
            if one not in known:
                raise typer.BadParameter(f"must be of {', '.join(known)}, got {one!r}", param_hint=hint)
    console = Console()
    console = console if console.is_terminal else Console(width=120)
    others = busy()
    rows: list[OptimRow] = []
    for chosen in models:
        of_model = run(chosen, names, turns, lambda line: print(line, file=sys.stderr, flush=True))
        console.print(table(of_model))
        for sentence in missed(of_model):
            console.print(sentence, highlight=False)
        rows += of_model
    console.print(rows[0].machine, highlight=False)
    if others is not None and others > TOLERABLE:
        console.print(f"Others used {others:.0%} of the machine: alone it is faster.")
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
        console.print(f"Rows: {json_file}")


if __name__ == "__main__":
    app()
