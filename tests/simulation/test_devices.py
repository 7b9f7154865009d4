"""Whole runs on a device that is not the CPU (``tests/pretend.py``): every method, whatever travels with the model.

Nothing mixes devices (the pretend device refuses it), the results are those of the same operations on the CPU, and what
crosses the border between host and device is counted: outside the training of clients it does not grow with them.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastfed as ff
from fastfed import methods
from fastfed.kernels import registry
from tests.pretend import NAME, OUTSIDE, Counts, Traffic, counted, held, within_room

from .support import CLIENTS, small_federation, small_model

__all__ = ["counted"]  # a fixture

EXECUTORS = ("eager", "batched")
ROUNDS = 2


def sparse_federation() -> ff.data.Federated:
    """Bags of 9 words with 4 tags, both as their non-zeros."""
    generator = torch.Generator().manual_seed(5)
    words = torch.rand(90, 9, generator=generator) * (torch.rand(90, 9, generator=generator) < 0.3)
    tags = (torch.rand(90, 4, generator=generator) < 0.4).float()
    kept = [ff.data.Sparse.of(matrix) for matrix in (words[:60], tags[:60])]
    offsets = torch.arange(0, 61, 60 // CLIENTS)
    test = ff.data.Examples(ff.data.Sparse.of(words[60:]), ff.data.Sparse.of(tags[60:]))
    return ff.data.Federated("bags", ff.data.Examples(*kept), torch.arange(60), offsets, test=test)


def picture_federation() -> ff.data.Federated:
    """Bytes of 5 by 5 pixels in 4 classes, normalised when they are read."""
    generator = torch.Generator().manual_seed(6)
    inputs = torch.randint(256, (90, 1, 5, 5), generator=generator).to(torch.uint8)
    labels = torch.randint(4, (90,), generator=generator)
    pixels = [ff.data.Pixels(part, (0.4,), (0.3,)) for part in (inputs[:60], inputs[60:])]
    offsets = torch.arange(0, 61, 60 // CLIENTS)
    train, test = (ff.data.Examples(*pair) for pair in zip(pixels, (labels[:60], labels[60:]), strict=True))
    return ff.data.Federated("pictures", train, torch.arange(60), offsets, test=test)


def poisoned_federation() -> ff.data.Federated:
    """The small federation, with a client whose delta will not be finite and one without examples."""
    fed = small_federation()
    assert isinstance(fed.examples.inputs, Tensor)
    inputs = fed.examples.inputs.clone()
    inputs[fed.rows[fed.offsets[3] : fed.offsets[4]]] = torch.inf
    offsets = fed.offsets.clone()
    offsets[1] = 0
    examples = dataclasses.replace(fed.examples, inputs=inputs)
    return ff.data.Federated("poisoned", examples, fed.rows, offsets, test=fed.test)


def seeded(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def made() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            return make()

    return made


class Shifted(nn.Module):
    """Has a frozen parameter and a buffer, which are not packed."""

    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 4)
        self.scale = nn.Parameter(torch.full((6,), 1.5), requires_grad=False)
        self.register_buffer("shift", torch.arange(6) / 6)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.inner(x * self.scale + self.shift)
        return found


WITH_DROPOUT = seeded(lambda: nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.3), nn.Tanh(), nn.Linear(5, 4)))
CONVOLUTIONS = seeded(lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(18, 4)))


DEFAULTS: dict[str, Any] = {"cohort": 5, "epochs": 1, "batch_size": 9, "client": ff.clients.SGD(lr=0.1), "seed": 11}


@dataclass(frozen=True)
class Case:
    """A run: the settings of its simulation, and what it trains on what."""

    settings: dict[str, Any]
    fed: Callable[[], ff.data.Federated] = small_federation
    model: Callable[[], nn.Module] = small_model
    executors: tuple[str, ...] = EXECUTORS

    def simulation(self, executor: str, device: str, **others: Any) -> ff.Simulation:
        settings = {**DEFAULTS, **self.settings, **others}
        timing = settings.get("timing")
        if timing is not None:  # says itself who takes part and, if it has epochs, how long
            settings |= {"cohort": None, **({"epochs": None} if hasattr(timing, "epochs") else {})}
        return ff.Simulation(self.model(), self.fed(), executor=executor, device=device, **settings)

    def run(self, executor: str, device: str) -> ff.Simulation:
        sim = apart(self.simulation(executor, device))
        sim.run(ROUNDS, evaluate_every=ROUNDS, per_client=True, progress=False)
        return sim


def own_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(outputs, targets, label_smoothing=0.1)


POISSON = {"cohort": ff.plan.Poisson(0.4), "weights": "uniform"}
YOGI = {"server": ff.servers.FedYogi(lr=0.1)}
PRIVACY = ff.privacy.Privacy(clip=0.3, noise=0.8, delta=1e-3)
ADAPTIVE = dataclasses.replace(PRIVACY, adaptive=ff.privacy.Quantile(count_noise=0.7))
BLEND = ff.clients.Blend(
    [
        ff.clients.Part(ff.clients.SGD(lr=0.1)),
        ff.clients.Part(ff.clients.Adam(lr=0.01), steps=2),
        ff.clients.Part(ff.clients.SM3(lr=0.05), weight=0.5),
    ]
)
SLOW = ff.fleet.Fleet(step_seconds=torch.linspace(0.1, 3, CLIENTS))
OTHERS: dict[str, Case] = {
    "momentum": Case({"client": ff.clients.Momentum(lr=0.1)}),
    "SPS": Case({"client": ff.clients.SPS()}),
    "Delta-SGD on the same batch": Case(methods.delta_sgd(same_batch=True)),
    "delayed epochs": Case({"client": ff.clients.AdaGrad(lr=0.1, delay=2, delay_unit="epoch"), "epochs": 3}),
    "warmup, clip, decay": Case({"client": ff.clients.SGD(lr=0.1, warmup=3, clip=0.5, weight_decay=0.01)}),
    "FedAMS, bias corrected": Case({"server": ff.servers.FedAMS(lr=0.1, bias_correction=True)}),
    "FedAdam, bias corrected": Case({"server": ff.servers.FedAdam(lr=0.1, bias_correction=True)}),
    "schedules": Case({"client_schedule": lambda r: 0.5**r, "server_schedule": lambda r: 0.9**r}),
    "steps and weights of their own": Case(
        {"epochs": None, "steps": [1 + i % 3 for i in range(CLIENTS)], "weights": [0.5 + i for i in range(CLIENTS)]}
    ),
    "clipped mean move per step": Case({"delta_clip": 0.05, "divide_by_steps": True}),
    "across epochs": Case({"epochs": 1.5, "across_epochs": True}),
    "FedBuff, stale": Case(methods.fedbuff(0.1, 6, buffer=3, staleness=0.5, fleet=SLOW)),
    "FedAsync, slow clients": Case(methods.fedasync(0.1, 6, fleet=SLOW)),
    "privacy": Case({**POISSON, "privacy": PRIVACY}),
    "privacy, adaptive": Case({**POISSON, "privacy": ADAPTIVE}),
    "privacy, nobody comes": Case({**POISSON, "cohort": ff.plan.Poisson(1e-6), "privacy": PRIVACY}),
    "privacy, top-k": Case({**POISSON, "privacy": PRIVACY, "compression": ff.compression.TopK(0.1)}),
    "top-k without feedback": Case({"compression": ff.compression.TopK(0.2, feedback=False), "weights": "uniform"}),
    "8 bits, clipped": Case({"compression": ff.compression.Int8(), "delta_clip": 0.1, "divide_by_steps": True}),
    "blend": Case({"client": BLEND}),
    "MOON, slow clients": Case({**methods.moon(0.1, mu=5.0), **methods.fedbuff(0.1, 6, buffer=3, fleet=SLOW)}),
    "SCAFFOLD, poisoned": Case({**methods.scaffold(), "cohort": CLIENTS}, fed=poisoned_federation),
    "poisoned": Case({"cohort": CLIENTS}, fed=poisoned_federation),
    "poisoned, signs": Case({"cohort": CLIENTS, "compression": ff.compression.Sign()}, fed=poisoned_federation),
    "nobody, at times": Case({"cohort": ff.plan.Poisson(1e-6)}),
    "sparse": Case(
        {"loss": "binary_cross_entropy"},
        fed=sparse_federation,
        model=seeded(lambda: nn.Linear(9, 4)),
        executors=EXECUTORS,
    ),
    "pictures": Case({}, fed=picture_federation, model=CONVOLUTIONS),
    "dropout": Case({}, model=WITH_DROPOUT),
    "frozen": Case({}, model=seeded(Shifted)),
    "float64": Case(
        {"server": ff.servers.FedYogi(lr=0.1), **POISSON, "privacy": PRIVACY}, model=lambda: small_model().double()
    ),
    "a loss of one's own": Case({"loss": own_loss}, executors=("eager",)),
}


def executors_of(settings: dict[str, Any]) -> tuple[str, ...]:
    """An algorithm in Python that says nothing of vectors runs one client at a time."""
    by_one = hasattr(settings.get("client"), "client_step") and not getattr(settings["client"], "vectorised", False)
    return ("eager",) if by_one else EXECUTORS


METHODS = {name: Case(settings, executors=executors_of(settings)) for name, settings in methods._examples().items()}
CASES = METHODS | OTHERS


def runs() -> list[Any]:
    """Every second case on one executor, by turns; the rest in `make device-proof`: what a method does around the
    training of its clients is the same on every executor, and much of it the same for every method."""
    found = []
    for number, (name, case) in enumerate(CASES.items()):
        usual = case.executors[number // 2 % len(case.executors)] if number % 2 == 0 else None
        found += [
            pytest.param(name, executor, marks=() if executor == usual else pytest.mark.exhaustive)
            for executor in case.executors
        ]
    return found


def by_turns(names: Sequence[str]) -> list[Any]:
    """Every second of them; the others in `make device-proof`."""
    return [pytest.param(name, marks=pytest.mark.exhaustive if n % 2 else ()) for n, name in enumerate(names)]


@pytest.fixture(autouse=True)
def reference_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels that a device without any of its own gets, on the CPU, too: then the same operations run."""
    chosen = registry.pick

    def pick(backend: str | None, x: Tensor) -> Any:
        return chosen("reference" if x.is_cpu else backend, x)

    monkeypatch.setattr(registry, "pick", pick)


def vectors(sim: ff.Simulation) -> dict[str, Tensor]:
    """All that a run has come to, by name, on the CPU."""
    return {name: held(tensor) for name, tensor in sim.tensors().items()}


def without_evaluation(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not name.startswith(("test_", "client_"))}


# What may cross the border in a round, the training of its clients apart, by room. The host waits once, to know whether
# the aggregate is finite; `train` is what the simulation does there around its executor.
USUAL = {"step": Counts(waits=1)}
IN_PYTHON = {"step": Counts(waits=2)}  # what a server of one's own gives is looked at, too
COMPRESSED = USUAL | {"aggregate": Counts(uploads=5)}
PRIVATE = USUAL | {"aggregate": Counts(uploads=1)}
BORDER: dict[str, dict[str, Counts]] = {
    "MOON": USUAL | {"train": Counts(uploads=1), "tune": Counts(uploads=2)},
    "MOON, slow clients": USUAL | {"train": Counts(uploads=1), "tune": Counts(uploads=3)},
    "SCAFFOLD": USUAL | {"train": Counts(uploads=2), "tune": Counts(uploads=6)},
    "SCAFFOLD, poisoned": USUAL | {"train": Counts(uploads=2), "tune": Counts(uploads=6)},
    "FATHOM": USUAL | {"tune": Counts(downloads=1)},
    "FedAvg, top 1% of the delta": COMPRESSED,
    "FedAvg, signs": COMPRESSED,
    "FedAvg, 8 bits": USUAL | {"aggregate": Counts(uploads=6)},
    "poisoned, signs": COMPRESSED,
    "top-k without feedback": USUAL | {"aggregate": Counts(uploads=2)},
    "8 bits, clipped": USUAL | {"aggregate": Counts(uploads=7)},
    "privacy": PRIVATE,
    "privacy, adaptive": PRIVATE,
    "privacy, nobody comes": PRIVATE,
    "privacy, top-k": USUAL | {"aggregate": Counts(uploads=6)},
    "float64": PRIVATE,
    "FedExP": {"step": Counts(waits=3)},  # the host also reads two numbers of its formula
    "FedNova": IN_PYTHON,
    "FedDyn": IN_PYTHON | {"train": Counts(uploads=2), "tune": Counts(uploads=2)},
    "FedLion": USUAL | {"tune": Counts(uploads=2)},
    "Ditto": USUAL | {"train": Counts(uploads=2), "tune": Counts(uploads=2)},
}
# In a round with five clients and 16 local steps, the executor alone; lower is better.
TRAINING = {"eager": Counts(uploads=48, downloads=6), "batched": Counts(uploads=30, downloads=5)}


def apart(sim: ff.Simulation) -> ff.Simulation:
    """The same simulation, whose executor counts as a room of its own."""
    run = sim.executor.run

    def counting(work: Any) -> Any:
        with within_room("executor"):
            return run(work)

    sim.executor.run = counting  # type: ignore[method-assign]
    return sim


def assert_within_bounds(found: Traffic, name: str, rounds: int = 1) -> None:
    """The traffic of so many rounds, outside the executor and evaluations."""
    for room, counts in found.rooms.items():
        if room not in ("executor", OUTSIDE):
            bound = sum([BORDER.get(name, USUAL).get(room, Counts())] * rounds, Counts())
            assert counts.within(bound), f"{room}: {counts}, allowed {bound}"


@pytest.mark.parametrize(("name", "executor"), runs())
def test_a_run_on_a_device_is_that_on_the_cpu(name: str, executor: str, counted: Traffic) -> None:
    case = CASES[name]
    there, here = case.run(executor, NAME), case.run(executor, "cpu")
    assert_within_bounds(counted, name, ROUNDS)
    assert there.params.device.type == NAME
    found, wanted = vectors(there), vectors(here)
    assert found.keys() == wanted.keys()
    for what, tensor in wanted.items():
        assert torch.equal(found[what], tensor), what
    for got, row in zip(there.history.without_seconds(), here.history.without_seconds(), strict=True):
        assert without_evaluation(got) == without_evaluation(row)
        assert got == pytest.approx(row, rel=1e-6)  # examples go to a device in larger portions


SEVERAL = (*BORDER, "FedYogi", "CC-FedAMS", "FedBuff, stale", "DJA, SM3-Adam", "blend", "poisoned")


@pytest.mark.parametrize("name", by_turns(SEVERAL))
def test_what_crosses_the_border_does_not_grow_with_the_cohort(name: str, counted: Traffic) -> None:
    case = CASES[name]
    is_number = isinstance(case.settings.get("cohort", 5), int)
    for cohort in (3, 9) if is_number and "timing" not in case.settings else (None,):
        given = {} if cohort is None else {"cohort": cohort}
        sim = apart(case.simulation(case.executors[-1], NAME, **given))
        for _ in range(3):
            counted.clear()
            sim.step()
            assert_within_bounds(counted, name)


@pytest.mark.parametrize("compression", [ff.compression.TopK(0.1), ff.compression.Sign(), ff.compression.Int8()])
def test_many_portions_of_compressed_deltas_cross_no_more_often(
    compression: ff.compression.Compression, counted: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ff.compression, "_PORTION", 1)
    sim = apart(Case({"compression": compression, "cohort": CLIENTS}).simulation("batched", NAME))
    sim.step()
    counted.clear()
    sim.step()
    assert_within_bounds(counted, "FedAvg, 8 bits")


@pytest.mark.parametrize("name", ["FedAvg", "Delta-SGD", "SPS", "DJA, Adam"])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_executors_stay_within_their_bounds(executor: str, name: str, counted: Traffic) -> None:
    sim = apart(CASES[name].simulation(executor, NAME))
    sim.step()
    counted.clear()
    assert sim.step()["steps"] == 16
    assert counted.rooms["executor"].within(TRAINING[executor]), counted.rooms["executor"]


def test_an_evaluation_is_fetched_in_one_piece(counted: Traffic) -> None:
    sim = CASES["FedAvg"].simulation("batched", NAME)
    sim.evaluate(per_client=True)  # sends the module there
    counted.clear()
    sim.evaluate()
    assert counted.rooms == {OUTSIDE: Counts(uploads=2, downloads=1)}
    sim.evaluate(per_client=True)
    assert counted.rooms == {OUTSIDE: Counts(uploads=6, downloads=3)}


def test_large_evaluations_go_there_in_portions(counted: Traffic, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = CASES["FedAvg"].simulation("batched", NAME).evaluate(per_client=True)
    monkeypatch.setattr("fastfed.record.evaluate._DEVICE_CHUNK", 8)
    monkeypatch.setattr("fastfed.record.evaluate._DEVICE_LOAD", 25)
    sim = CASES["FedAvg"].simulation("batched", NAME)
    sim.evaluate()
    counted.clear()
    assert sim.evaluate(per_client=True) == pytest.approx(whole, rel=1e-6)
    assert counted.rooms[OUTSIDE].downloads == 2
    test_portions = -(-100 // 24)  # of three chunks each
    assert counted.rooms[OUTSIDE].uploads >= 2 * test_portions + 2


# ---- checkpoints ----------------------------------------------------------------------------------------------------

KEPT = (
    "FedYogi",
    "FedAMS, bias corrected",
    "MOON, slow clients",
    "SCAFFOLD",
    "FATHOM",
    "CC-FedAMS",
    "FedBuff, stale",
    "privacy, adaptive",
    "FedAvg, top 1% of the delta",
    "frozen",
)
MOVES = [(NAME, "cpu"), ("cpu", NAME), pytest.param(NAME, NAME, marks=pytest.mark.exhaustive)]


@pytest.mark.parametrize(("begins", "ends"), MOVES)
@pytest.mark.parametrize("name", by_turns(KEPT))
def test_a_checkpoint_goes_on_on_another_device(name: str, begins: str, ends: str, tmp_path: Path) -> None:
    case = CASES[name]
    whole, first = case.simulation("eager", "cpu"), case.simulation("eager", begins)
    whole.run(4, evaluate_every=0, progress=False)
    first.run(2, evaluate_every=0, progress=False)
    first.save(tmp_path)
    second = ff.Simulation.resume(tmp_path, model=case.model(), fed=case.fed(), device=ends)
    second.run(2, evaluate_every=0, progress=False)
    assert second.params.device.type == ends
    found = vectors(second)
    for what, tensor in vectors(whole).items():
        assert torch.equal(found[what], tensor), what
    assert second.history.without_seconds() == whole.history.without_seconds()


def test_an_executor_of_the_cpu_is_replaced_elsewhere(tmp_path: Path) -> None:
    CASES["FedAvg"].simulation("native", "cpu").save(tmp_path)
    given: dict[str, Any] = {"fed": small_federation()}
    assert ff.Simulation.resume(tmp_path, **given).executor.name == "native"
    assert ff.Simulation.resume(tmp_path, **given, device="cpu").executor.name == "native"
    assert ff.Simulation.resume(tmp_path, **given, device=NAME).executor.name == "batched"
    assert ff.Simulation.resume(tmp_path, **given, device=NAME, executor="eager").executor.name == "eager"


def test_auto_is_batched_there_where_it_has_the_loss() -> None:
    assert CASES["FedAvg"].simulation("auto", NAME).executor.name == "batched"
    executor = CASES["a loss of one's own"].simulation("auto", NAME).executor
    assert executor.name == "eager"
    assert "batched cannot run this one (loss: must be one of" in executor.why


def test_a_run_is_the_same_run_on_every_device() -> None:
    here, there = (CASES["FedAvg"].simulation("eager", device) for device in ("cpu", NAME))
    assert here.saved.run == there.saved.run


# ---- models, devices and threads that are given ---------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", NAME])
@pytest.mark.parametrize("executor", [*EXECUTORS, "native"])
def test_the_callers_model_stays_where_it_is(executor: str, device: str) -> None:
    if executor == "native" and device == NAME:
        with pytest.raises(ValueError, match="device: the native engine runs on the CPU"):
            CASES["FedAvg"].simulation(executor, device)
        return
    case = CASES["frozen"] if executor != "native" else CASES["FedAvg"]
    given = case.model().to(NAME)
    before = copy.deepcopy(given.state_dict())
    moved = dataclasses.replace(case, model=lambda: given).run(executor, device)
    assert torch.equal(held(moved.params), held(case.run(executor, device).params))
    assert moved.params.device.type == device
    for name, tensor in given.state_dict().items():
        assert tensor.device.type == NAME
        assert torch.equal(held(tensor), held(before[name])), name
    trained = moved.trained_model()
    assert {p.device.type for p in trained.parameters()} == {NAME}
    assert torch.equal(held(moved.packing.pack(trained)), held(moved.params))


def test_weights_and_steps_may_be_given_on_the_device() -> None:
    name = "steps and weights of their own"
    settings = {**CASES[name].settings}
    settings |= {key: torch.tensor(settings[key], device=NAME) for key in ("steps", "weights")}
    assert torch.equal(held(Case(settings).run("eager", NAME).params), CASES[name].run("eager", "cpu").params)


def test_the_number_of_threads_changes_nothing_there() -> None:
    one, three = (CASES["SCAFFOLD"].simulation("eager", NAME, threads=threads) for threads in (1, 3))
    for sim in (one, three):
        sim.run(ROUNDS, progress=False)
    assert torch.equal(held(one.params), held(three.params))


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("abacus", "device: must be one that torch has here, as in cpu, got 'abacus'"),
        (torch.device("xpu"), "device: must be one that torch has here, as in cpu, got 'xpu'"),
        (f"{NAME}:7", f"device: must be one of the 1 that are here ({NAME}:0), got '{NAME}:7'"),
        ("meta", "device: must be one that holds numbers, got 'meta'"),
        (None, "device: must be one that torch has here, as in cpu, got None"),
    ],
)
def test_a_device_that_is_not_there_is_refused_at_the_door(device: Any, words: str) -> None:
    with pytest.raises(ValueError, match="device") as caught:
        CASES["FedAvg"].simulation("eager", device)
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)


def test_the_first_of_a_kind_may_be_named_by_its_number() -> None:
    assert CASES["FedAvg"].simulation("eager", f"{NAME}:0").params.device == torch.device(NAME, 0)


def test_what_draws_from_the_devices_own_random_numbers_is_refused() -> None:
    generator = torch.get_device_module(NAME).generator
    before = generator.get_state()

    def drawing(outputs: Tensor, targets: Tensor) -> Tensor:
        return own_loss(outputs, targets) * torch.rand((), generator=generator)

    with pytest.raises(ValueError, match="drew from torch's own random numbers"):
        Case({"loss": drawing}).run("eager", NAME)
    assert torch.equal(generator.get_state(), before)
