"""The self-test of a card: small rounds on executor `device`, held against `eager` in float64 on the host.

Kernels are compiled for each card where they run, by a compiler that no test here has seen at work. A wrong result
must not pass silently, so the first round on a card is preceded by these; what they found is kept by card, driver and
versions, and looked up from then on.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ... import clients, kernels
from ..._version import __version__
from ...cards import card_of
from ...clients import Client
from ...data import Augment, Examples, Pixels, Sparse
from ...files import write_whole
from ...losses import LossName
from ...models import LSTM
from ...packing import Packing
from ..eager import Eager
from ..work import Outcome, RoundWork
from .engine import Device

VARIABLE = "FASTFED_SELF_TEST"
OFF, AGAIN = "off", "again"

# A round may err, against float64, so many times as much as `eager` does in float32. Tests on the host allow twice as
# much; a card gets four times that, because its tensor cores cut sums off where the host rounds them, and its
# exponentials are good to two units in the last place. What this must find is far away: products in plain tf32 err a
# thousand times as much, and a wrong operand more than that.
FACTOR = 8.0
EPSILON = torch.finfo(torch.float32).eps

SIZES = (6, 0, 5, 1)  # examples of each client: none, one, several batches with and without a short one
STEPS = (2, 2, 3, 1)
BATCH = 4
ROWS = sum(SIZES)
FEW = 2  # clients at once, against all of them


class SelfTestFailed(RuntimeError):
    """A card computed small rounds wrongly, so that no large one is run on it."""


@dataclass(frozen=True)
class Verdict:
    """What the self-test of a device found: a sentence for every round that came out wrong; none if it passed."""

    device: str
    failures: tuple[str, ...]
    seconds: float

    @property
    def passed(self) -> bool:
        return not self.failures

    @property
    def words(self) -> str:
        return "passed" if self.passed else f"failed: {'; '.join(self.failures)}"


# ---- the rounds -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A small round: a model, its loss, data and the clients' optimizer; `replayed`: its launches are, too."""

    name: str
    module: Callable[[], nn.Module]
    loss: LossName
    examples: Callable[[torch.Generator], Examples]
    rule: Client
    replayed: bool = False


class _Tagger(nn.Module):
    """Tokens (n, length) to labels (n, length, classes)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.lstm = LSTM(6, 8)
        self.head = nn.Linear(8, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.lstm(self.embedding(tokens)))
        return outputs


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(9, 70), nn.ReLU(), nn.Linear(70, 8), nn.Tanh(), nn.Linear(8, 4))


def _softmax() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(24, 4))


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1),
        nn.GroupNorm(2, 6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.Linear(36, 4),
    )


def _of_crops() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(32, 4))


def _normal(g: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=g)


def _labels(g: torch.Generator, classes: int, *shape: int) -> Tensor:
    return torch.randint(classes, shape, generator=g)


def _vectors(g: torch.Generator) -> Examples:
    return Examples(_normal(g, ROWS, 9), _labels(g, 4, ROWS))


def _images(g: torch.Generator) -> Examples:
    images = torch.randint(256, (ROWS, 2, 4, 6), generator=g, dtype=torch.uint8)
    return Examples(Pixels(images, (0.4, 0.6), (0.25, 0.3)), _labels(g, 4, ROWS))


def _digits(g: torch.Generator) -> Examples:
    images = torch.randint(256, (ROWS, 1, 4, 6), generator=g, dtype=torch.uint8)
    return Examples(Pixels(images, (0.4,), (0.25,)), _labels(g, 4, ROWS))


def _crops(g: torch.Generator) -> Examples:
    images = torch.randint(256, (ROWS, 2, 6, 7), generator=g, dtype=torch.uint8)
    return Examples(Pixels(images, augment=Augment(crop=4, flip=True, standardise=True)), _labels(g, 4, ROWS))


def _sequences(g: torch.Generator) -> Examples:
    return Examples(_labels(g, 11, ROWS, 2), _labels(g, 5, ROWS, 2))


def _words(g: torch.Generator) -> Examples:
    words = _normal(g, ROWS, 30).abs() * (torch.rand(ROWS, 30, generator=g) < 0.15)
    tags = (torch.rand(ROWS, 7, generator=g) < 0.3).float()
    return Examples(Sparse.of(words), Sparse.of(tags))


CASES: tuple[Case, ...] = (
    Case("one dense layer, all steps at once", _softmax, "cross_entropy", _digits, clients.Adam(lr=0.02, eps=1e-3)),
    Case("dense layers, SGD fused", _mlp, "cross_entropy", _vectors, clients.SGD(lr=0.3, weight_decay=0.05), True),
    Case("dense layers, Adam fused", _mlp, "cross_entropy", _vectors, clients.Adam(lr=0.02, eps=1e-3)),
    Case("dense layers, SM3 fused", _mlp, "cross_entropy", _vectors, clients.SM3(lr=0.1, eps=1e-3)),
    Case("dense layers, gradients clipped", _mlp, "cross_entropy", _vectors, clients.SGD(lr=0.3, clip=0.5)),
    Case("convolution, pool, dropout, norm", _cnn, "cross_entropy", _images, clients.SGD(lr=0.3), True),
    Case("images cut out, flipped and standardised", _of_crops, "cross_entropy", _crops, clients.SGD(lr=0.3)),
    Case("tokens and LSTM", _Tagger, "cross_entropy", _sequences, clients.SGD(lr=0.3)),
    Case("sparse inputs", lambda: nn.Linear(30, 7), "binary_cross_entropy", _words, clients.Momentum(lr=0.1)),
)


class _Trial(Device):
    """The executor under test: not tested before it is used, and with so many clients at once as it is told."""

    at_once: int | None = None

    def _check_card(self) -> None:
        pass

    def _clients_at_once(self, *given: Any) -> int:
        return super()._clients_at_once(*given) if self.at_once is None else self.at_once


def _work(case: Case, module: nn.Module) -> RoundWork:
    return RoundWork(
        start=Packing.of(module).pack(module),
        rows=torch.arange(ROWS).flip(0).contiguous(),
        offsets=torch.tensor([0, *torch.tensor(SIZES).cumsum(0).tolist()]),
        ids=torch.arange(len(SIZES)) * 7 + 3,
        steps=torch.tensor(STEPS),
        batch_size=BATCH,
        optimizers=(case.rule,),
        seed=5,
        keep_deltas=True,
    )


def _made(case: Case) -> tuple[nn.Module, Examples]:
    """The same numbers every time; torch's own random numbers go on as if nothing had happened."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(3)
        return case.module(), case.examples(torch.Generator().manual_seed(4))


def problem_of(case: Case, device: torch.device) -> str | None:
    """What is wrong with the case's round on the device: by how much, and where; None if nothing is."""
    module, examples = _made(case)
    work = _work(case, module)
    eager = Eager(module, case.loss, examples, threads=1)
    plain, exact = eager.run(work), eager.run(replace(work, start=work.start.double()))
    trial = _Trial(module, case.loss, examples, device=device)
    got = trial.run(work)
    found = _difference(got, plain, exact)
    if found is None and case.replayed:
        trial.run(replace(work, start=work.start + 0.1))  # captured
        found = _other_bits(got, trial.run(work), "launches that are replayed give other bits")
    if found is None:
        trial.at_once = FEW
        few, start = trial.run(work), work.start.to(device)
        moved = _after_a_step(few, start)  # before anybody asks for the sum, which `got` has been asked for
        found = _other_bits(got, few, f"{FEW} clients at once give other bits than {len(SIZES)}")
        if found is None and not torch.equal(moved, _after_a_step(got, start)):
            found = "lanes that are joined by the server's step give other bits"
    return found


def _after_a_step(outcome: Outcome, start: Tensor) -> Tensor:
    """Where the server's Adam goes along the round's sum, and its moments."""
    rule, x = "adam", start.clone()
    state = kernels.server_state(rule, x)
    outcome.total.step(rule, x, state, lr=0.1)
    return torch.cat([x, *state.values()]).cpu()


def _deltas(outcome: Outcome) -> Tensor:
    assert outcome.deltas is not None
    return outcome.deltas.cpu()


def _losses(outcome: Outcome) -> Tensor:
    """(3, clients), 0 where a client has none."""
    names = ("first_loss", "last_loss", "mean_loss")
    return torch.stack([outcome.scalars[name] for name in names]).nan_to_num()


COMPARED: dict[str, Callable[[Outcome], Tensor]] = {
    "deltas": _deltas,
    "sums of deltas": lambda outcome: outcome.delta.cpu(),
    "losses": _losses,
}


def _difference(got: Outcome, plain: Outcome, exact: Outcome) -> str | None:
    """The sentence about the first thing that is further from float64 than rounding explains."""
    if not torch.equal(got.refused, exact.refused):
        return "clients were refused for numbers that are not finite"
    for what, part in COMPARED.items():
        wanted = part(exact).double()
        size = float(wanted.norm())
        error, of_eager = (float((part(each).double() - wanted).norm()) for each in (got, plain))
        allowed = FACTOR * (of_eager + EPSILON * size)
        if not error <= allowed:  # NaN included
            return (
                f"{what} differ from float64 by {error / size:.1e} of their norm, and rounding by {allowed / size:.1e}"
            )
    return None


def _other_bits(one: Outcome, other: Outcome, sentence: str) -> str | None:
    """The sentence, if that is so."""
    same = all(torch.equal(part(one), part(other)) for part in COMPARED.values())
    return None if same else sentence


def run(device: torch.device | str, cases: Sequence[Case] = CASES) -> Verdict:
    """Runs the rounds on a CUDA device, or on "cpu" in Triton's interpreter; keeps nothing."""
    device = torch.device(device)
    begin, failures = time.perf_counter(), []
    for case in cases:
        try:
            problem = problem_of(case, device)
        except torch.OutOfMemoryError:
            raise  # says something about the card's other users, nothing about its kernels
        except Exception as error:  # compilers and drivers raise anything; what it was is the verdict
            first = (str(error).splitlines() or [""])[0]
            problem = f"it stopped with {type(error).__name__}: {first}"
        if problem is not None:
            failures.append(f"{case.name}: {problem}")
    return Verdict(str(device), tuple(failures), time.perf_counter() - begin)


# ---- verdicts that are kept -----------------------------------------------------------------------------------------


def key_of(device: torch.device) -> dict[str, str]:
    """What a verdict depends on: the card, its driver, versions, and the kernels' sources."""
    card = card_of(torch.cuda.current_device() if device.index is None else device.index)
    return {
        "card": card.name,
        "capability": card.capability,
        "driver": card.driver,
        "torch": torch.__version__,
        "triton": _triton_version(),
        "fastfed": __version__,
        "kernels": sources_hash(),
    }


def _triton_version() -> str:
    import triton

    return str(triton.__version__)


@cache
def sources_hash() -> str:
    """Of all files that Triton's kernels are compiled from."""
    folder = Path(kernels.__file__).parent
    files = [*folder.glob("*.py"), *(folder / "triton").rglob("*.py")]
    texts = (str(file.relative_to(folder)).encode() + b"\0" + file.read_bytes() for file in sorted(files))
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:16]


def _file_of(key: dict[str, str]) -> Path:
    from ...kernels.cuda.sources import cache_folder

    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    return cache_folder() / f"self_test-{name}.json"


def kept(device: torch.device) -> Verdict | None:
    """The verdict about this card, driver and these versions, if there is one."""
    key = key_of(device)
    try:
        found = json.loads(_file_of(key).read_text())
        if found["key"] != key:
            return None
        verdict = found["verdict"]
        return Verdict(verdict["device"], tuple(verdict["failures"]), verdict["seconds"])
    except (OSError, ValueError, KeyError, TypeError):  # none, or half of one: the test is repeated
        return None


def run_and_keep(device: torch.device) -> Verdict:
    """Runs the self-test and keeps what it finds for later processes."""
    verdict, key = run(device), key_of(device)
    file = _file_of(key)
    write_whole(file, json.dumps({"key": key, "verdict": asdict(verdict)}, indent=1) + "\n")
    return verdict


# ---- before a card is used ------------------------------------------------------------------------------------------

_settled: set[tuple[str, int | None]] = set()  # devices that passed, in this process


def require(device: torch.device) -> None:
    """Refuses a card whose self-test failed; runs the test where there is no verdict yet, and says so.

    ``FASTFED_SELF_TEST=off`` goes on without, ``again`` repeats it, once in a process.
    """
    asked = os.environ.get(VARIABLE, "")
    if asked not in ("", OFF, AGAIN):
        raise ValueError(f"{VARIABLE}: must be {OFF!r}, {AGAIN!r} or unset, got {asked!r}")
    where = (device.type, device.index)
    if asked == OFF or where in _settled:
        return
    verdict = None if asked == AGAIN else kept(device)
    if verdict is None:
        name = torch.cuda.get_device_name(device)
        print(f"fastfed: first use of {name}: testing the kernels, which takes a minute", file=sys.stderr, flush=True)
        verdict = run_and_keep(device)
    if not verdict.passed:
        raise SelfTestFailed(
            f"device: the kernels compute wrongly on {device} ({'; '.join(verdict.failures)}); use executor 'eager', "
            f"or set {VARIABLE}={AGAIN} to repeat the test, {VARIABLE}={OFF} to go on at your own risk"
        )
    _settled.add(where)
