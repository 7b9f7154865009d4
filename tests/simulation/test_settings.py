"""What goes together and what does not: each refusal names the setting, and says what to do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastfed as ff
from fastfed.losses import LossReduction

from .support import small_federation, small_model

SGD = ff.clients.SGD(lr=0.1)
ADAM = ff.clients.Adam(lr=0.1)
Part, Blend = ff.clients.Part, ff.clients.Blend
CENTRIC = ff.timing.ClientCentric()
BUFFERED = ff.timing.EventDriven(concurrency=4, buffer=2)
PRIVATE = ff.privacy.Privacy(clip=1.0, noise=1.0, delta=1e-3)
ADAPTIVE = ff.privacy.Privacy(clip=1.0, noise=1.0, delta=1e-3, adaptive=ff.privacy.Quantile(count_noise=1.0))
POISSON = {"cohort": ff.plan.Poisson(0.5), "weights": "uniform"}
SCAFFOLD = ff.exchange.ControlVariates()
FATHOM = ff.tune.Fathom()

REPEATED = {"cohort": ff.plan.Sampled(5, replacement=True)}

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({**REPEATED, "exchange": SCAFFOLD}, "replacement: a client of ControlVariates keeps a vector from round to round"),
    ({**REPEATED, **ff.methods.moon(0.1)}, "replacement: a client of PreviousModels keeps a vector"),
    ({**REPEATED, "compression": ff.compression.TopK(0.1)}, "replacement: a client keeps what TopK leaves out"),
    ({**REPEATED, "batch_norm": "local"}, "replacement: with batch_norm 'local' a client keeps its layers"),
    (
        {"cohort": None, "timing": ff.timing.ClientCentric(replacement=True), **ff.methods.moon(0.1), "epochs": None},
        "replacement: a client of PreviousModels keeps a vector",
    ),
    ({"cohort": ff.plan.Sampled(13)}, "size: must be at most the number of clients, 12"),
    ({"divide_by_steps": True, "divide_by_epochs": True}, "divide_by_epochs: deltas are divided by steps already"),
    ({"delta_clip": 1.0, "divide_by_epochs": True}, "divide_by_epochs: the norm that delta_clip bounds"),
    ({**POISSON, "privacy": PRIVATE, "divide_by_epochs": True}, "divide_by_epochs: the norm that privacy bounds"),
    ({"cohort": None}, "cohort: must say who takes part"),
    ({"timing": CENTRIC}, "cohort: with this timing a round has 5 clients"),
    (
        {"cohort": None, "timing": "soon"},
        "timing: must be like those of fastfed.timing, and 'soon' has no begin",
    ),
    ({"cohort": None, "timing": CENTRIC, "epochs": 2}, "epochs: the timing draws how long clients train"),
    ({"cohort": None, "timing": CENTRIC, "steps": 2}, "steps: the timing draws how long clients train"),
    ({"cohort": None, "timing": ff.timing.ClientCentric(buffer=13)}, "at most the number of clients, 12"),
    ({"cohort": None, "timing": ff.timing.EventDriven(13, buffer=2)}, "concurrency: must be"),
    ({"cohort": None, "timing": ff.timing.EventDriven(3, buffer=13)}, "buffer: must be"),
    ({"cohort": None, "timing": BUFFERED, "tuner": FATHOM}, "tuner: a simulated clock must know"),
    ({"cohort": None, "timing": CENTRIC, "tuner": FATHOM}, "tuner: the timing draws how long"),
    ({"cohort": None, "timing": BUFFERED, "exchange": SCAFFOLD}, "ControlVariates belongs to synchronous rounds"),
    (
        {"cohort": None, "timing": CENTRIC, **ff.methods.fedada2(transmit=True, client_lr=0.1, server_lr=0.1)},
        "Preconditioner belongs to synchronous rounds",
    ),
    ({"cohort": None, "timing": BUFFERED, "client": Blend([Part(SGD, steps=2)])}, "a simulated clock must know"),
    ({"tuner": "fathom"}, "tuner: must be like those of fastfed.tune"),
    ({"tuner": FATHOM, "client": ADAM}, "tuner: FATHOM tunes clients that run SGD; client rule 'adam'"),
    ({"tuner": FATHOM, "client": Blend([Part(SGD)])}, "tuner: FATHOM tunes clients that run SGD; Blend"),
    ({"tuner": FATHOM, "steps": 3}, "steps: FATHOM tunes epochs"),
    ({"tuner": FATHOM, "client_schedule": lambda round: 1.0}, "client_schedule: FATHOM tunes"),
    ({"privacy": PRIVATE, "weights": "uniform"}, "cohort: must be fastfed.plan.Poisson"),
    ({**POISSON, "privacy": PRIVATE, "weights": "examples"}, "weights: must be 'uniform' with privacy"),
    ({**POISSON, "privacy": PRIVATE, "delta_clip": 1.0}, "delta_clip: with privacy"),
    ({**POISSON, "privacy": PRIVATE, "exchange": SCAFFOLD}, "exchange: sends more than the clipped delta"),
    ({**POISSON, "privacy": ADAPTIVE, "compression": ff.compression.Sign()}, "compression: adaptive clipping"),
    ({**POISSON, "privacy": PRIVATE, "client": Blend([Part(SGD, weight=2.0)])}, "weight: must be 1 for every part"),
    ({**POISSON, "privacy": PRIVATE, "tuner": FATHOM}, "tuner: FATHOM goes by the clients' own cosines"),
    ({**POISSON, "privacy": 3.0}, "privacy: must be fastfed.privacy.Privacy"),
    ({"privacy": PRIVATE, "cohort": None, "timing": CENTRIC, "weights": "uniform"}, "cohort: must be fastfed.plan.Poi"),
    (
        {"compression": "zip"},
        "compression: must be like those of fastfed.compression, and 'zip' has no feedback",
    ),
    ({"compression": ff.compression.Sign(), "exchange": SCAFFOLD}, "compression: is for deltas"),
    ({"client": Blend([Part(SGD)], lambda of: 0, resources=[1, 2])}, "resources: must be one for each of the 12"),
    ({"client": Blend([Part(SGD, steps=2)]), "epochs": 1, "across_epochs": True}, "across_epochs: the parts"),
    ({"weights": [1e308] * 12}, r"weights: must be a number from 0 to 1e+30, got 1e+308 for client 0"),
    ({"weights": [1.0] * 11 + [float("nan")]}, r"weights: must be a number from 0 to 1e+30, got nan for client 11"),
    ({"weights": [1.0] * 11}, "weights: must be 'examples', 'uniform' or 12 finite numbers >= 0, one per client"),
    ({"weights": [0.0] * 12}, "weights: must be > 0 for at least one client"),
    ({"batches": "shuffled"}, "batches: must be 'epochs' or 'drawn', got 'shuffled'"),
    (
        {"cohort": None, "timing": ff.timing.EventDriven(4, 2, epochs=1, randomness=2), "across_epochs": True},
        "across_epochs: a simulated clock counts the batches of whole epochs",
    ),
    (
        {"cohort": None, "timing": ff.timing.ClientCentric(50)},
        "buffer: must be at most the number of clients",
    ),
    ({"batches": "drawn", "across_epochs": True}, "across_epochs: batches that are drawn have no epochs to cross"),
    ({"client": Blend([Part(ff.clients.SPS())]), "client_schedule": lambda round: 1.0}, "client_schedule: client rule"),
    ({"client": Blend([Part(SGD)], lambda of: 1)}, "choose: must give the number of a part, 0 to 0, got 1"),
]


@pytest.mark.parametrize(("settings", "says"), REFUSED, ids=[says for _, says in REFUSED])
def test_what_does_not_go_together_is_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises((ValueError, TypeError), match=says.replace("(", r"\(").replace("+", r"\+")):
        ff.Simulation(small_model(), small_federation(), **({"client": SGD, "cohort": 3} | settings))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Part("sgd"), "client: must be an optimizer"),  # type: ignore[arg-type]
        (lambda: Part(SGD, share=-1), "share: must be"),
        (lambda: Part(SGD, share=1e308), r"share: must be a number from 0 to 1e\+30, got 1e\+308"),
        (lambda: Part(SGD, weight=float("nan")), "weight: must be"),
        (lambda: Part(SGD, weight=1e308), r"weight: must be a number from 0 to 1e\+30, got 1e\+308"),
        (lambda: ff.plan.Sampled(2, shares=[1, 1e308]), r"shares: must be a number from 0 to 1e\+30, got 1e\+308 for"),
        (lambda: Part(SGD, steps=2, epochs=1), "epochs: give either"),
        (lambda: Part(SGD, steps=0), "steps: must be a whole number >= 1"),
        (lambda: Part(SGD, epochs=-1), "epochs: must be > 0"),
        (lambda: Blend([]), "parts: must be one or more"),
        (lambda: Blend([Part(SGD, share=0)]), "share: must be > 0 for one part"),
        (lambda: Blend([Part(SGD)], resources=[1]), "resources: are for `choose`"),
        (lambda: Blend([Part(SGD, share=2)], lambda of: 0), "share: would be ignored"),
        (lambda: ff.timing.ClientCentric(buffer=0), "buffer: must be a whole number >= 1"),
        (lambda: ff.timing.ClientCentric(max_delay=-1), "max_delay: must be a whole number >= 0"),
        (lambda: ff.timing.ClientCentric(epochs=3, randomness=0.5), "randomness: epochs . randomness must be a whole"),
        (lambda: ff.timing.ClientCentric(epochs=None), "randomness: belongs to epochs"),
        (lambda: ff.timing.ClientCentric(epochs_per="step"), "epochs_per: must be 'client' or 'round'"),  # type: ignore[arg-type]
        (
            lambda: ff.timing.ClientCentric(epochs=None, randomness=None, epochs_per="round"),
            "epochs_per: would be ignored",
        ),
        (lambda: ff.timing.EventDriven(concurrency=0), "concurrency: must be a whole number >= 1"),
        (lambda: ff.timing.EventDriven(3, staleness=-0.5), "staleness: must be a finite number >= 0"),
        (lambda: ff.timing.EventDriven(3, max_age=-1), "max_age: must be a whole number >= 0"),
        (lambda: ff.timing.Waves(3, wanted=4), "wanted: must be at most size, 3"),
        (lambda: ff.tune.Fathom(gamma_lr=-0.1), "gamma_lr: must be a finite number >= 0"),
        (lambda: ff.tune.Fathom(alpha=1.0), r"alpha: must be in \[0, 1\)"),
        (lambda: ff.tune.Fathom(counting="epochs"), "counting: must be 'floor' or 'ceil'"),
        (lambda: ff.tune.Fathom(max_batch=0), "max_batch: must be a finite number > 0"),
        (lambda: ff.methods.client_centric("yogi", client_lr=0.1, server_lr=1.0), "server: must be one of sgd"),
        (lambda: ff.methods.client_centric("ams", client_lr=0.1), "server_lr: must be given"),
        (
            lambda: ff.methods.client_centric(ff.servers.FedAvg(), client_lr=0.1, server_lr=1.0),
            "server_lr: would be ignored",
        ),
    ],
)
def test_bad_settings_are_refused(make: Any, says: str) -> None:
    with pytest.raises((ValueError, TypeError), match=says):
        make()


def test_a_clock_is_needed_to_stop_by_it() -> None:
    sim = ff.Simulation(small_model(), small_federation(), client=SGD, cohort=3)
    with pytest.raises(ValueError, match="until_clock: only a simulated clock"):
        sim.run(until_clock=10.0)
    timed = ff.Simulation(small_model(), small_federation(), client=SGD, timing=BUFFERED)
    with pytest.raises(ValueError, match="until_clock: must be a number of seconds >= 0"):
        timed.run(until_clock=-1.0)
    with pytest.raises(ValueError, match="flush: only a run that ends by until_clock"):
        timed.run(3, flush=True)


def test_a_cohort_of_the_buffers_size_is_welcome() -> None:
    sim = ff.Simulation(small_model(), small_federation(), client=SGD, cohort=2, timing=BUFFERED)
    assert sim.step()["clients"] == 2


@pytest.mark.parametrize("executor", ["native", "eager", "batched"])
def test_rates_of_a_summed_loss_are_those_of_its_mean_divided(executor: str) -> None:
    """Full batches of 5 examples with 3 tags each: what is summed is 5 or 3 times the mean, and so is its gradient."""
    g = torch.Generator().manual_seed(0)
    x, tags = torch.randn(40, 6, generator=g), (torch.rand(40, 3, generator=g) < 0.4).float()
    fed = ff.data.from_arrays(x, tags, client=torch.arange(40) // 10, test=(x, tags))
    torch.manual_seed(0)
    model = nn.Linear(6, 3)

    def trained(reduction: LossReduction, lr: float) -> tuple[Tensor, dict[str, Any]]:
        sim = ff.Simulation(
            model, fed, client=ff.clients.SGD(lr=lr), cohort=2, batch_size=5, loss="binary_cross_entropy",
            loss_reduction=reduction, executor=executor,
        )  # fmt: skip
        return sim.params, sim.run(3, progress=False).rounds[-1]

    mean, row = trained("mean", 0.6)
    for reduction, times in (("outputs", 3), ("batch", 5)):
        params, other = trained(reduction, 0.6 / times)  # type: ignore[arg-type]
        torch.testing.assert_close(params, mean, rtol=1e-4, atol=1e-6)
        assert other["train_loss"] == pytest.approx(times * row["train_loss"], rel=1e-4)
        assert other["test_loss"] == pytest.approx(times * row["test_loss"], rel=1e-4)
    with pytest.raises(ValueError, match=r"^loss_reduction: must be one of mean, outputs, batch, got 'sum'"):
        trained("sum", 0.6)  # type: ignore[arg-type]


def test_every_batch_that_is_drawn_is_full() -> None:
    """Clients of 10 examples: 3 steps of 7 draw 21 each, where epochs would have 7, 3 and 7."""
    x, y = torch.randn(40, 6), torch.arange(40) % 3
    fed = ff.data.from_arrays(x, y, client=torch.arange(40) // 10)

    def trained(**given: Any) -> tuple[Tensor, dict[str, Any]]:
        torch.manual_seed(0)
        sim = ff.Simulation(nn.Linear(6, 3), fed, client=SGD, cohort=2, steps=3, batch_size=7, **given)
        return sim.params, sim.run(2, evaluate_every=0, progress=False).rounds[-1]

    (native, row), (eager, _), (epochs, other) = (
        trained(batches="drawn", executor="native"), trained(batches="drawn", executor="eager"), trained()
    )  # fmt: skip
    torch.testing.assert_close(native, eager, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(native, epochs, atol=1e-3)
    assert (row["gradients"], other["gradients"]) == (42, 34)
