"""`python -m fastfed.bench.convolutions`: each way of the engine with a convolution, beside oneDNN's, shape by shape.

The shapes are those of the models of ``fastfed.models``. A step of one batch on one thread, all contenders in turns:
each way of the engine that the shape can go (``FASTFED_CONVOLUTION``), and torch's convolution, which is oneDNN's, in
the quicker of its two orders of memory.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn
from torch.nn import functional as F

from .. import _core, models
from ..app.doctor import machine
from ..clients import SGD
from ..data import Examples
from ..packing import Packing
from ..train import RoundWork
from ..train.native import Native
from ..train.profile import Profile
from ..train.threads import one_thread_per_operation
from .common.choosing import choose
from .common.neighbours import busy

WAYS = ("winograd", "direct", "unrolled")
ASKED = "FASTFED_CONVOLUTION"
ORDERS = {"channels first": torch.contiguous_format, "channels last": torch.channels_last}
SPIN = 1 << 20  # rounds of multiply-adds: some milliseconds
SLICE = 0.02  # seconds that a contender's turn takes at least

MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, int, int]]] = {
    "emnist_cnn": (models.emnist_cnn, (1, 28, 28)),
    "mcmahan_cnn": (models.mcmahan_cnn, (1, 28, 28)),
    "lenet": (models.lenet, (1, 28, 28)),
    "resnet18_gn": (models.resnet18_gn, (3, 24, 24)),
    "resnet50_gn": (models.resnet50_gn, (3, 24, 24)),
    "small_vit": (models.small_vit, (1, 28, 28)),
}
"""Models with convolutions, and the images (channels, height, width) that they are made for."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@dataclass(frozen=True)
class Shape:
    """A convolution: images (channels, height, width) to `out` channels. `first` reads the input, to which no gradient
    goes back."""

    image: tuple[int, int, int]
    out: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    bias: bool
    first: bool

    @property
    def words(self) -> str:
        channels, height, width = self.image
        step = f" by {_pair(self.stride)}" if self.stride != (1, 1) else ""
        return (
            f"{channels} -> {self.out}, {height}x{width}, {_pair(self.kernel)}{step}{', first' if self.first else ''}"
        )

    @property
    def products(self) -> int:
        """Multiplications of an example's forward pass."""
        made = [
            (side + 2 * pad - kernel) // stride + 1
            for side, pad, kernel, stride in zip(self.image[1:], self.padding, self.kernel, self.stride, strict=True)
        ]
        return made[0] * made[1] * self.out * self.image[0] * self.kernel[0] * self.kernel[1]

    def layer(self) -> nn.Conv2d:
        return nn.Conv2d(self.image[0], self.out, self.kernel, self.stride, self.padding, bias=self.bias)


@dataclass(frozen=True)
class ConvolutionRow:
    """Milliseconds of one batch, medians over turns: `ways` by their names (forward, backward with plain SGD's update);
    `taken` is the engine's own choice, `library` oneDNN's (forward, backward), `bound` those of its products at the
    speed of multiply-adds in registers, forward and backward."""

    shape: str
    model: str
    batch: int
    taken: str
    ways: dict[str, tuple[float, float]]
    library: tuple[float, float]
    bound: float
    turns: int
    machine: str

    @property
    def ratio(self) -> float:
        """How many times as fast as the library the engine's own choice is."""
        return sum(self.library) / sum(self.ways[self.taken])

    @property
    def best(self) -> str:
        """The quickest of the ways in this run."""
        return min(self.ways, key=lambda way: sum(self.ways[way]))


def _pair(numbers: tuple[int, int]) -> str:
    return "x".join(map(str, numbers))


def _sides(given: Any) -> tuple[int, int]:
    height, width = given
    return height, width


def shapes_of(name: str) -> list[Shape]:
    """The different convolutions of a model, in its order."""
    make, image = MODELS[name]
    module, found = make(), list[Shape]()

    def note(layer: nn.Module, inputs: tuple[Tensor, ...], _: object) -> None:
        assert isinstance(layer, nn.Conv2d)
        image: Any = tuple(inputs[0].shape[1:])
        kernel, stride, padding = (_sides(given) for given in (layer.kernel_size, layer.stride, layer.padding))
        found.append(Shape(image, layer.out_channels, kernel, stride, padding, layer.bias is not None, not found))

    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(note)
    with torch.no_grad():
        module.eval()(torch.zeros(1, *image))
    return list(dict.fromkeys(found))


class _Behind(nn.Module):
    """The layer, behind something that is trained unless it is a model's first."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.before = nn.Identity() if shape.first else nn.GroupNorm(1, shape.image[0])
        self.layer = shape.layer()

    def forward(self, x: Tensor) -> Tensor:
        return torch.flatten(self.layer(self.before(x)), 1)


@contextmanager
def _asking(way: str) -> Iterator[None]:
    before = os.environ.pop(ASKED, None)
    if way:
        os.environ[ASKED] = way
    try:
        yield
    finally:
        os.environ.pop(ASKED, None)
        if before is not None:
            os.environ[ASKED] = before


@dataclass
class _Engine:
    """The engine with the layer in the way asked for ("": its own choice)."""

    way: str
    run: Callable[[], tuple[float, float]]

    @classmethod
    def of(cls, shape: Shape, batch: int, asked: str = "") -> _Engine:
        torch.manual_seed(0)
        module, inputs = _Behind(shape), torch.randn(batch, *shape.image)
        examples = Examples(inputs, torch.randn_like(module(inputs)).detach())
        with _asking(asked):
            engine = Native(module, "mse", examples, threads=1)
        place = next(i for i, step in enumerate(engine.program.instructions) if step.op == "conv2d")
        work = RoundWork(
            start=Packing.of(module).pack(module),
            rows=torch.arange(batch),
            offsets=torch.tensor([0, batch]),
            ids=torch.zeros(1, dtype=torch.int64),
            steps=torch.ones(1, dtype=torch.int64),
            batch_size=batch,
            optimizers=(SGD(lr=1e-6),),
        )

        def run() -> tuple[float, float]:
            engine.profile = Profile(engine.program)
            engine.run(work)
            layer = engine.profile.layers[place]
            return layer.forward, layer.backward

        return cls(engine._core.ways()[place], run)


def _library(shape: Shape, batch: int, order: torch.memory_format) -> Callable[[], tuple[float, float]]:
    """torch's convolution, its gradients, and SGD's update of the weight."""
    layer = shape.layer()
    weight, bias = (
        layer.weight.detach().contiguous(memory_format=order),
        None if layer.bias is None else layer.bias.detach(),
    )
    x = torch.randn(batch, *shape.image).contiguous(memory_format=order)
    options: Any = (shape.stride, shape.padding)
    dy = torch.randn_like(F.conv2d(x, weight, bias, *options))
    wanted = [not shape.first, True, shape.bias]
    sizes = [shape.out] if shape.bias else None

    def run() -> tuple[float, float]:
        begun = time.perf_counter()
        F.conv2d(x, weight, bias, *options)
        between = time.perf_counter()
        gradients = torch.ops.aten.convolution_backward(
            dy, x, weight, sizes, *options, (1, 1), False, (0, 0), 1, wanted
        )
        weight.sub_(gradients[1], alpha=1e-9)
        return between - begun, time.perf_counter() - between

    return run


@dataclass
class _Times:
    forward: list[float] = field(default_factory=list)
    backward: list[float] = field(default_factory=list)

    def take(self, run: Callable[[], tuple[float, float]]) -> None:
        """As many runs as fill a turn; what counts is their mean."""
        taken, begun = list[tuple[float, float]](), time.perf_counter()
        while not taken or time.perf_counter() - begun < SLICE:
            taken.append(run())
        self.forward.append(statistics.fmean(one for one, _ in taken))
        self.backward.append(statistics.fmean(other for _, other in taken))

    @property
    def milliseconds(self) -> tuple[float, float]:
        return 1e3 * statistics.median(self.forward), 1e3 * statistics.median(self.backward)


def measure(shape: Shape, model: str, batch: int, turns: int) -> ConvolutionRow:
    """One shape: every way that it can go, and the library; the first turn only warms up."""
    chosen = _Engine.of(shape, batch)
    engines = {engine.way: engine for engine in (_Engine.of(shape, batch, way) for way in WAYS)}
    runs = {way: engine.run for way, engine in engines.items()}
    runs |= {name: _library(shape, batch, order) for name, order in ORDERS.items()}
    for run in runs.values():
        run()
    times = {name: _Times() for name in runs}
    spins = []
    for _ in range(turns):
        for name, run in runs.items():
            times[name].take(run)
        begun = time.perf_counter()
        operations = _core.product_probe(SPIN)
        spins.append(operations / (time.perf_counter() - begun))
    directions = 2 if shape.first else 3
    return ConvolutionRow(
        shape=shape.words,
        model=model,
        batch=batch,
        taken=chosen.way,
        ways={way: times[way].milliseconds for way in engines},
        library=min((times[name].milliseconds for name in ORDERS), key=sum),
        bound=1e3 * directions * 2 * batch * shape.products / statistics.median(spins),
        turns=turns,
        machine=machine().words,
    )


def table(rows: Sequence[ConvolutionRow]) -> str:
    """All rows: milliseconds forward + backward of every way, the engine's own choice in brackets."""
    lines = [
        f"{'shape':34} {'batch':>5} {'winograd':>15} {'direct':>15} {'unrolled':>15} {'oneDNN':>15} {'x':>6} bound"
    ]
    for row in rows:
        cells = []
        for way in WAYS:
            pair = row.ways.get(way)
            text = "-" if pair is None else f"{pair[0]:.2f} + {pair[1]:.2f}"
            cells.append(f"[{text}]" if way == row.taken else f"{text} ")
        library = f"{row.library[0]:.2f} + {row.library[1]:.2f}"
        slower = "" if row.best == row.taken else f"  {row.best} is quicker"
        lines.append(
            f"{row.shape:34} {row.batch:5} {cells[0]:>15} {cells[1]:>15} {cells[2]:>15} {library:>15} "
            f"{row.ratio:5.2f}x {row.bound:.2f}{slower}"
        )
    return "\n".join(lines)


@app.command()
def main(
    models: Annotated[str, typer.Option(help="Some of the models whose shapes are measured.")] = "*",
    batch: Annotated[int, typer.Option(min=1, help="Examples of a batch.")] = 20,
    turns: Annotated[int, typer.Option(min=1, help="Turns of every contender.")] = 5,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all measurements as JSON rows.")] = None,
) -> None:
    """Measure every convolution of FastFed's models, forward and backward, beside oneDNN's, on one thread."""
    load, rows, seen = busy(), list[ConvolutionRow](), set[Shape]()
    with one_thread_per_operation():
        for name in choose(models.split(","), MODELS):
            for shape in shapes_of(name):
                if shape not in seen:
                    seen.add(shape)
                    rows.append(measure(shape, name, batch, turns))
    print(
        "ms of a batch on one thread, forward + backward with plain SGD's update; [] is the way that the engine takes"
    )
    print(table(rows))
    print(rows[0].machine + ("" if load is None else f"; others used {load:.0%} of it when this began"))
    if json_file is not None:
        json_file.write_text(json.dumps([asdict(row) | {"ratio": row.ratio} for row in rows], indent=1))


if __name__ == "__main__":
    app()
