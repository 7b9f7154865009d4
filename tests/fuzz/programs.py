"""`python -m tests.fuzz.programs`: random models x rules x options, the native engine against autograd in float64.

A case is a number, from which all is drawn: a model, its data, a round's work. What the engine errs may be twice what
plain autograd in float32 errs, and some units in the last place. Where steps blow roundings up, one run says little:
then the medians of both over a few runs are compared, whose start models are a rounding apart. A model that the
engine refuses, or torch itself, counts as that. A case that errs more, or that raises, is a finding, told with the
command that makes it again.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import fastfed as ff
from fastfed.data import Examples, Pixels, Sparse
from fastfed.losses import IGNORED
from fastfed.models import LSTM
from fastfed.program import Unsupported
from fastfed.train import DeltaPolicy, RoundWork, executors

TIMES, ULPS = 2.0, 4e-7  # of eager's error in float32; of the size of what is compared
SMALLEST = 1e-9
NUDGES = 15  # starts a rounding apart
UNDEFINED = "Expected more than 1 value per channel"  # torch, of a group norm over one number
SIDES = (6, 17)  # of images: above and below the size from which they go one by one


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Reader(nn.Module):
    """Tokens through an LSTM, or an attention block, to labels of all places or of the last."""

    def __init__(self, draw: random.Random, vocabulary: int, length: int, classes: int, last: bool) -> None:
        super().__init__()
        heads = draw.choice([1, 2, 3])
        width = heads * draw.randint(1, 5)
        self.embedding, self.last = nn.Embedding(vocabulary, width), last
        self.attends = draw.random() < 0.4
        if self.attends:
            self.body: nn.Module = nn.TransformerEncoderLayer(
                width, heads, draw.randint(3, 20), dropout=0.0, batch_first=True, norm_first=draw.random() < 0.5
            )
            inner = width
        else:
            inner = draw.randint(1, 19)
            self.body = LSTM(width, inner, draw.choice([1, 1, 2]))
        self.head = nn.Linear(inner, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        y = self.body(self.embedding(tokens))
        return self.head(y[:, -1]) if self.last else self.head(y)


@dataclass(frozen=True)
class Case:
    """What was drawn."""

    kind: str
    module: nn.Module
    examples: Examples
    loss: Any
    work: RoundWork


class Errors(NamedTuple):
    """Norms of the differences to float64, and of what is compared."""

    native: float
    eager: float
    size: float

    @property
    def are_fine(self) -> bool:
        return self.native <= TIMES * self.eager + ULPS * self.size + SMALLEST

    @property
    def ratio(self) -> float:
        return self.native / max(self.eager, ULPS * self.size, SMALLEST)


def case_of(number: int) -> Case:
    """The case of that number; always the same."""
    draw = random.Random(number)
    torch.manual_seed(number)
    kind = draw.choice(["dense", "images", "images", "text", "tags"])
    module, examples, loss = {"dense": _dense, "images": _images, "text": _text, "tags": _tags}[kind](draw)
    return Case(kind, module.train(), examples, loss, _work(draw, module, len(examples)))


def _curve(draw: random.Random) -> nn.Module:
    return draw.choice([nn.ReLU, nn.GELU, nn.Sigmoid, nn.Tanh, nn.SiLU])()


def _some(draw: random.Random) -> int:
    return draw.randint(6, 40)


def _dense(draw: random.Random) -> tuple[nn.Module, Examples, str]:
    classes, rows, width = draw.randint(2, 11), _some(draw), draw.randint(1, 37)
    first, layers = width, list[nn.Module]()
    for _ in range(draw.randint(0, 3)):
        if draw.random() < 0.25:
            layers.append(Residual(nn.Sequential(nn.Linear(width, width), _curve(draw))))
        else:
            out = draw.randint(1, 33)
            layers.append(nn.Linear(width, out, bias=draw.random() < 0.8))
            width = out
        if draw.random() < 0.3:
            layers.append(nn.LayerNorm(width, eps=draw.choice([1e-5, 1e-3])))
        layers.append(_curve(draw))
        if draw.random() < 0.3:
            layers.append(nn.Dropout(draw.choice([0.1, 0.5])))
    layers.append(nn.Linear(width, classes))
    if draw.random() < 0.2:
        return nn.Sequential(*layers), Examples(torch.randn(rows, first), torch.randn(rows, classes)), "mse"
    labels = torch.randint(0, classes, (rows,))
    return nn.Sequential(*layers), Examples(torch.randn(rows, first), labels), "cross_entropy"


def _images(draw: random.Random) -> tuple[nn.Module, Examples, str]:
    classes, rows, channels = draw.randint(2, 11), _some(draw), draw.randint(1, 3)
    shape = (channels, draw.randint(*SIDES), draw.randint(*SIDES))
    layers, x = list[nn.Module](), torch.zeros(2, *shape)
    for _ in range(draw.randint(1, 3)):
        kernel, stride = draw.randint(1, 4), draw.randint(1, 2)
        padding = draw.randint(0, kernel // 2)
        if min(x.shape[2:]) + 2 * padding < kernel:
            break
        out = draw.choice([1, 2, 3, 4, 6, 8, 16, 17, 32])
        sides = (kernel, draw.choice([kernel, max(1, kernel - 1)]))
        stage: list[nn.Module] = [nn.Conv2d(x.shape[1], out, sides, stride, padding, bias=draw.random() < 0.8)]
        if draw.random() < 0.4:
            stage.append(nn.GroupNorm(draw.choice([g for g in range(1, out + 1) if out % g == 0]), out))
        stage.append(_curve(draw))
        if draw.random() < 0.2:
            stage.append(Residual(nn.Sequential(nn.Conv2d(out, out, 3, padding=1), _curve(draw))))
        x = nn.Sequential(*stage)(x).detach()
        if draw.random() < 0.5 and min(x.shape[2:]) >= 2:
            stage.append(_pool(draw, x))
            x = stage[-1](x)
        if draw.random() < 0.2:
            stage.append(nn.Dropout(0.3))
        layers += stage
    layers += [nn.Flatten(), nn.Linear(x[0].numel(), classes)]
    labels = torch.randint(0, classes, (rows,))
    if draw.random() < 0.4:
        bytes_of = torch.randint(0, 256, (rows, *shape), dtype=torch.uint8)
        return nn.Sequential(*layers), Examples(Pixels(bytes_of, (0.4,), (0.3,)), labels), "cross_entropy"
    return nn.Sequential(*layers), Examples(torch.randn(rows, *shape), labels), "cross_entropy"


def _pool(draw: random.Random, x: Tensor) -> nn.Module:
    kernel = draw.randint(2, min(3, *x.shape[2:]))
    padding, stride = draw.randint(0, kernel // 2), draw.choice([1, 2])
    kind = draw.randrange(4)
    if kind == 0:
        return nn.MaxPool2d(kernel, draw.choice([stride, kernel]), padding)
    if kind == 1:
        return nn.AvgPool2d(kernel, stride, padding, count_include_pad=draw.random() < 0.5)
    return nn.AdaptiveAvgPool2d(draw.randint(1, 3)) if kind == 2 else nn.AdaptiveMaxPool2d(draw.randint(1, 2))


def _text(draw: random.Random) -> tuple[nn.Module, Examples, str]:
    classes, rows = draw.randint(2, 11), _some(draw)
    vocabulary, length, last = draw.randint(3, 20), draw.randint(1, 9), draw.random() < 0.4
    labels = torch.randint(0, classes, (rows,) if last else (rows, length))
    if not last:
        labels[torch.rand(rows, length) < 0.2] = IGNORED
    tokens = torch.randint(0, vocabulary, (rows, length))
    return Reader(draw, vocabulary, length, classes, last), Examples(tokens, labels), "cross_entropy"


def _tags(draw: random.Random) -> tuple[nn.Module, Examples, str]:
    classes, rows, words = draw.randint(2, 11), _some(draw), draw.randint(3, 60)
    bags = (torch.rand(rows, words) < 0.15).float() * torch.rand(rows, words)
    tags = (torch.rand(rows, classes) < 0.3).float()
    inner = draw.randint(1, 17)
    shallow, deep = [nn.Linear(words, classes)], [nn.Linear(words, inner), nn.ReLU(), nn.Linear(inner, classes)]
    module = nn.Sequential(*(shallow if draw.random() < 0.5 else deep))
    return module, Examples(Sparse.of(bags), Sparse.of(tags)), "binary_cross_entropy"


def _optimizer(draw: random.Random) -> Any:
    """One of all rules; a root's eps is large enough that roundings of a tiny gradient do not decide on a step."""
    options: dict[str, Any] = {}
    if draw.random() < 0.25:
        options["clip"] = draw.choice([0.1, 1.0])
    if draw.random() < 0.25:
        options["weight_decay"] = 0.01
    if draw.random() < 0.25:
        options["prox"] = 0.1
    name = draw.choice(["SGD", "SGD", "Momentum", "AdaGrad", "Adam", "SM3", "DeltaSGD", "SPS"])
    if name == "SPS":
        options["lr_max"] = 0.3
    elif name in ("AdaGrad", "Adam", "SM3"):
        options |= {"lr": 0.01, "eps": draw.choice([1e-2, 1e-1]), "delay": draw.choice([1, 1, 2, 4])}
    else:
        options["lr"] = 0.05 if name == "DeltaSGD" else draw.choice([0.01, 0.1, 0.5])
    if name == "SGD" and draw.random() < 0.3:
        options["warmup"] = draw.randint(1, 4)
    return getattr(ff.clients, name)(**options)


def _work(draw: random.Random, module: nn.Module, rows: int) -> RoundWork:
    clients = draw.randint(1, 5)
    cuts = sorted(draw.randint(0, rows) for _ in range(clients - 1))
    optimizers = tuple(_optimizer(draw) for _ in range(draw.choice([1, 1, 2])))
    several = torch.tensor([draw.randrange(len(optimizers)) for _ in range(clients)]) if len(optimizers) > 1 else None
    policy = DeltaPolicy(
        weights=draw.choice(["examples", "uniform"]),
        clip=draw.choice([None, None, 0.05]),
        divide_by_steps=draw.random() < 0.3,
    )
    return RoundWork(
        start=ff.Packing.of(module).pack(module),
        rows=torch.randperm(rows),
        offsets=torch.tensor([0, *cuts, rows]),
        ids=torch.randperm(100)[:clients],
        steps=torch.tensor([draw.randint(0, 6) for _ in range(clients)]),
        batch_size=draw.randint(1, 9),
        optimizers=optimizers,
        optimizer_index=several,
        policy=policy,
        round=draw.randint(0, 5),
        seed=draw.randint(0, 5),
    )


def errors_of(case: Case) -> Errors | None:
    """None if the engine refuses the model, or torch does."""
    eager = executors.make("eager", case.module, case.loss, case.examples)
    try:
        native = executors.make("native", case.module, case.loss, case.examples, threads=1)
        exact = eager.run(replace(case.work, start=case.work.start.double())).delta
    except Unsupported:
        return None
    except RuntimeError as error:
        if UNDEFINED in str(error):
            return None
        raise

    def error(executor: Any, start: Tensor) -> float:
        return float((executor.run(replace(case.work, start=start)).delta.double() - exact).norm())

    first, size = case.work.start, float(exact.norm())
    found = Errors(error(native, first), error(eager, first), size)
    if found.are_fine:
        return found
    starts = list(_nudged(first))
    usual = (statistics.median(error(executor, start) for start in starts) for executor in (native, eager))
    return Errors(*usual, size)


def _nudged(start: Tensor) -> Iterator[Tensor]:
    draw = torch.Generator().manual_seed(0)
    for _ in range(NUDGES):
        yield start * (1 + (torch.rand(start.shape, generator=draw) - 0.5) * torch.finfo(start.dtype).eps * 2)


def _again(number: int) -> str:
    return f"  python -m tests.fuzz.programs --case {number}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600, help="how long (default: ten minutes)")
    parser.add_argument("--seed", type=int, default=None, help="where the numbers of cases begin (default: the clock)")
    parser.add_argument("--case", type=int, default=None, help="one case, with its model")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if given.case is not None:
        print(case_of(given.case), errors_of(case_of(given.case)), sep="\n")
        return 0
    begin = int(time.time()) * 1000 if given.seed is None else given.seed
    print(f"random models and rounds, cases from {begin} on", flush=True)
    end, count, worst, number = time.monotonic() + given.seconds, Counter[str](), 0.0, begin
    while time.monotonic() < end:
        try:
            case = case_of(number)
            errors = errors_of(case)
        except Exception as error:
            count["failed"] += 1
            print(f"FINDING {type(error).__name__}: {error}\n{_again(number)}", flush=True)
        else:
            if errors is None:
                count["refused"] += 1
            else:
                worst = max(worst, errors.ratio)
                count["passed" if errors.are_fine else "failed"] += 1
                if not errors.are_fine:
                    print(f"FINDING {case.kind}: {errors}\n{_again(number)}", flush=True)
        number += 1
    print(f"the largest error: {worst:.2f} times that of float32 autograd; {count['refused']} models were refused")
    print(f"{count['passed']} passed, {count['failed']} failed")
    return 1 if count["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
