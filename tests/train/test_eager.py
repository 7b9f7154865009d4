"""`eager` against plain PyTorch loops, in float64: every rule, correction and measurement."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastfed as ff
from fastfed import clients
from fastfed.data import Examples
from fastfed.purposes import Purpose
from fastfed.train import RoundWork
from fastfed.train.eager import Eager

from . import literal
from .agreement import kept
from .literal import Literal, Parameters, train_literally
from .support import labels, network, round_of, train, vectors

DOUBLE = torch.float64


def close(got: Tensor, wanted: Tensor, what: str = "") -> None:
    assert got.shape == wanted.shape
    assert float((got - wanted).norm()) <= 1e-11 * (1 + float(wanted.norm())), what


def two_clients(client: clients.Client, **given: Any) -> RoundWork:
    return round_of(
        network(), (9, 6), DOUBLE, optimizers=(client,), steps=torch.tensor([7, 4]), seed=3, round=2, **given
    )


def assert_trains_like(
    client: clients.Client, make_optimizer: Callable[[Parameters], Any], *, given: Any = None, **how: Any
) -> list[Literal]:
    """Two clients' deltas and losses are the literal loop's."""
    module, examples = network(), vectors()
    work = round_of(
        module, (9, 6), DOUBLE, optimizers=(client,), steps=torch.tensor([7, 4]), seed=3, round=2, **given or {}
    )
    outcome = Eager(module, "cross_entropy", examples).run(work)
    runs = []
    for i in range(2):
        plain = train_literally(module, F.cross_entropy, examples, work, i, make_optimizer, **how)
        close(kept(outcome)[i], plain.delta)
        scalars = {name: float(values[i]) for name, values in outcome.scalars.items()}
        assert scalars["steps"] == len(plain.losses)
        assert scalars["first_loss"] == pytest.approx(plain.losses[0], rel=1e-12)
        assert scalars["last_loss"] == pytest.approx(plain.losses[-1], rel=1e-12)
        assert scalars["mean_loss"] == pytest.approx(sum(plain.losses) / len(plain.losses), rel=1e-12)
        assert scalars["delta_norm"] == pytest.approx(float(plain.delta.norm()), rel=1e-12)
        runs.append(plain)
    return runs


# ---- rules ----------------------------------------------------------------------------------------------------------


def test_sgd() -> None:
    assert_trains_like(clients.SGD(lr=0.5), lambda p: torch.optim.SGD(p, lr=0.5))


def test_weight_decay() -> None:
    decayed = clients.SGD(lr=0.5, weight_decay=0.1)
    assert_trains_like(decayed, lambda p: torch.optim.SGD(p, lr=0.5, weight_decay=0.1))


def test_momentum() -> None:
    assert_trains_like(
        clients.Momentum(lr=0.1, momentum=0.8), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.8, nesterov=False)
    )


def test_adagrad() -> None:
    assert_trains_like(
        clients.AdaGrad(lr=0.1, eps=1e-4, v0=0.3),
        lambda p: torch.optim.Adagrad(p, lr=0.1, eps=1e-4, initial_accumulator_value=0.3),
    )


def test_adam() -> None:
    assert_trains_like(
        clients.Adam(lr=0.05, beta1=0.7, beta2=0.9, eps=1e-4),
        lambda p: torch.optim.Adam(p, lr=0.05, betas=(0.7, 0.9), eps=1e-4),
    )


def test_delay_in_epochs() -> None:
    client = clients.AdaGrad(lr=0.1, eps=1e-3, delay=2, delay_unit="epoch")
    assert_trains_like(client, lambda p: literal.DelayedAdaGrad(p, lr=0.1, eps=1e-3, delay=2))


@pytest.mark.parametrize("same_batch", [False, True])
def test_delta_sgd(same_batch: bool) -> None:
    client = clients.DeltaSGD(lr=0.3, gamma=0.8, delta=0.4, same_batch=same_batch)
    made: list[literal.DeltaSGD] = []

    def make(p: Parameters) -> literal.DeltaSGD:
        made.append(literal.DeltaSGD(p, 0.3, 0.8, 0.4, same_batch))
        return made[-1]

    assert_trains_like(client, make)
    assert len({round(size, 9) for size in made[0].sizes}) > 3  # both terms of the minimum were tried
    outcome = train(
        network(),
        round_of(network(), (9, 6), DOUBLE, optimizers=(client,), steps=torch.tensor([7, 4]), seed=3, round=2),
    )
    assert outcome.scalars["step_size"].tolist() == pytest.approx(
        [optimizer.sizes[-1] for optimizer in made], rel=1e-11
    )


def test_sps() -> None:
    made: list[literal.SPS] = []

    def make(p: Parameters) -> literal.SPS:
        made.append(literal.SPS(p, 0.6, 0.2, 1.5))
        return made[-1]

    assert_trains_like(clients.SPS(c=0.6, f_star=0.2, lr_max=1.5), make)
    sizes = [size for optimizer in made for size in optimizer.sizes]
    assert min(sizes) < 1.5 == max(sizes)


class _Masked(nn.Module):
    """Dropout with half of the numbers dropped, by masks drawn for the steps in `steps`, one at every call."""

    def __init__(self, work: RoundWork, client: int, steps: list[int]) -> None:
        super().__init__()
        self.key = (work.seed, Purpose.DROPOUT, work.round, int(work.ids[client]))
        self.steps = iter(steps)

    def forward(self, x: Tensor) -> Tensor:
        numbers = ff.kernels.uniform(x.numel(), ff.kernels.Stream(*self.key, next(self.steps)))
        return x * (numbers.view(x.shape) >= 0.5) * 2


def test_delta_sgd_drops_other_numbers_at_the_second_look_at_a_batch() -> None:
    torch.manual_seed(1)
    first, last, taken = nn.Linear(6, 5), nn.Linear(5, 4), 5
    module = nn.Sequential(first, nn.Dropout(0.5), last)
    client, examples = clients.DeltaSGD(lr=0.3, gamma=0.8, same_batch=True), vectors()
    work = round_of(module, (9,), DOUBLE, optimizers=(client,), steps=torch.tensor([taken]), seed=3, round=2)
    outcome = Eager(module, "cross_entropy", examples).run(work)
    looks = [0, *(look for step in range(1, taken) for look in (step, step + 2**31))]
    alike = nn.Sequential(first, _Masked(work, 0, looks), last)
    made: list[literal.DeltaSGD] = []

    def make(p: Parameters) -> literal.DeltaSGD:
        made.append(literal.DeltaSGD(p, 0.3, 0.8, 0.1, same_batch=True))
        return made[-1]

    plain = train_literally(alike, F.cross_entropy, examples, work, 0, make)
    close(kept(outcome)[0], plain.delta)


# ---- corrections ----------------------------------------------------------------------------------------------------


def test_prox() -> None:
    def pull(now: Parameters, start: Parameters) -> None:
        for p, anchor in zip(now, start, strict=True):
            p.grad += 0.7 * (p.detach() - anchor.detach())

    assert_trains_like(clients.SGD(lr=0.5, prox=0.7), lambda p: torch.optim.SGD(p, lr=0.5), correct=pull)


def test_clip() -> None:
    def shrink(now: Parameters, start: Parameters) -> None:
        norm = torch.cat([p.grad.flatten() for p in now]).norm()
        for p in now:
            p.grad *= min(1.0, 0.4 / float(norm))

    assert_trains_like(clients.SGD(lr=0.5, clip=0.4), lambda p: torch.optim.SGD(p, lr=0.5), correct=shrink)


def test_corrections_are_added_to_gradients() -> None:
    module = network()
    packing = ff.Packing.of(module)
    shift = packing.pack(module).double() * 0.3
    views = list(packing.views(shift.float()).values())

    def add(now: Parameters, start: Parameters) -> None:
        for p, own in zip(now, views, strict=True):
            p.grad += own.double()

    assert_trains_like(
        clients.SGD(lr=0.5),
        lambda p: torch.optim.SGD(p, lr=0.5),
        correct=add,
        given={"corrections": torch.stack([shift, shift]).float().double()},
    )


def test_every_client_has_its_own_correction() -> None:
    module = network()
    shift = ff.Packing.of(module).pack(module)
    plain = train(module, round_of(module, steps=torch.tensor([1, 1, 1])))
    moved = train(
        module, round_of(module, steps=torch.tensor([1, 1, 1]), corrections=torch.stack([shift, 0 * shift, -shift]))
    )
    difference = kept(moved) - kept(plain)
    torch.testing.assert_close(difference, -0.5 * torch.stack([shift, 0 * shift, -shift]), rtol=0, atol=1e-6)


def test_delta_sgd_compares_corrected_gradients() -> None:
    """With `same_batch` the gradient before is corrected as well, at the model before."""
    module = network()
    packing = ff.Packing.of(module)
    shift = 0.1 * packing.pack(module)

    def correct(now: Parameters, start: Parameters) -> None:
        for p, anchor, own in zip(now, start, packing.views(shift).values(), strict=True):
            p.grad += 0.3 * p.detach() + 0.8 * (p.detach() - anchor.detach()) + own.double()
        norm = float(torch.cat([p.grad.flatten() for p in now]).norm())
        for p in now:
            p.grad *= min(1.0, 0.5 / norm)

    client = clients.DeltaSGD(lr=0.3, gamma=0.8, delta=0.4, same_batch=True, weight_decay=0.3, prox=0.8, clip=0.5)
    assert_trains_like(
        client,
        lambda p: literal.DeltaSGD(p, 0.3, 0.8, 0.4, same_batch=True),
        correct=correct,
        given={"corrections": torch.stack([shift, shift]).double()},
    )


@pytest.mark.parametrize("from_first", [False, True])
def test_warm_up(from_first: bool) -> None:
    client = clients.Adam(lr=0.05, eps=1e-4, warmup=3, from_first=from_first)
    before = 0 if from_first else 1
    assert_trains_like(
        client, lambda p: torch.optim.Adam(p, lr=0.05, eps=1e-4), scale=lambda step: min(1.0, (step - before) / 3)
    )
    outcome = train(network(), round_of(network(), optimizers=(client,), steps=torch.tensor([1, 2, 5])))
    wanted = [(1 - before) * 0.05 / 3, (2 - before) * 0.05 / 3, 0.05]
    assert outcome.scalars["step_size"].tolist() == pytest.approx(wanted)


def test_own_learning_rates() -> None:
    lr = torch.tensor([0.1, 0.2, 0.0]).double()
    outcome = train(network(), round_of(network(), lr=lr, optimizers=(clients.SGD(lr=9.0, warmup=2),)))
    for i in range(2):
        alone = train(network(), round_of(network(), optimizers=(clients.SGD(lr=float(lr[i]), warmup=2),)))
        assert torch.equal(kept(outcome)[i], kept(alone)[i])
    assert not bool(kept(outcome)[2].any())
    assert torch.equal(outcome.scalars["step_size"], lr)


def test_a_preconditioner_starts_second_moments() -> None:
    module = network()
    v = ff.Packing.of(module).pack(module).abs()
    given: dict[str, Any] = {
        "steps": torch.tensor([1, 1, 1]),
        "optimizers": (clients.AdaGrad(lr=0.5, eps=0.1, v0=7.0),),
    }
    sgd = kept(train(module, round_of(module, steps=given["steps"], optimizers=(clients.SGD(lr=1.0),))))
    got = kept(train(module, round_of(module, preconditioner=v, **given)))
    torch.testing.assert_close(got, 0.5 * sgd / ((v + sgd**2).sqrt() + 0.1), rtol=1e-4, atol=1e-6)


def test_state_is_fresh_every_round() -> None:
    executor = Eager(network(), "cross_entropy", vectors())
    work = round_of(network(), optimizers=(clients.Adam(lr=0.1),))
    assert torch.equal(executor.run(work).delta, executor.run(work).delta)


def test_blended_rules_and_several_start_models() -> None:
    module = network()
    start = ff.Packing.of(module).pack(module)
    models = torch.stack([start, 0.5 * start])
    optimizers = (clients.SGD(lr=0.5), clients.SM3(lr=0.1))
    work = round_of(
        models, start_index=torch.tensor([1, 0, 1]), optimizers=optimizers, optimizer_index=torch.tensor([0, 1, 1])
    )
    together = kept(train(module, work))
    for i, (model, rule) in enumerate([(1, 0), (0, 1), (1, 1)]):
        alone = train(module, round_of(models[model].clone(), optimizers=(optimizers[rule],)))
        assert torch.equal(together[i], kept(alone)[i])


# ---- measurements ---------------------------------------------------------------------------------------------------


def test_least_cosine() -> None:
    """Of the raw gradients, whatever corrections the rule sees."""

    def make(p: Parameters) -> torch.optim.Optimizer:
        return torch.optim.SGD(p, lr=0.5, weight_decay=0.3)

    module = network()
    client = clients.SGD(lr=0.5, weight_decay=0.3, clip=0.1)
    work = round_of(module, (9, 6, 5), DOUBLE, optimizers=(client,), steps=torch.tensor([7, 2, 1]), measure_cosine=True)
    outcome = train(module, work)
    for i in range(2):
        g = train_literally(module, F.cross_entropy, vectors(), work, i, make, correct=_clip_with_decay).gradients
        cosines = [float(F.cosine_similarity(sum(g[:k]), g[k], dim=0)) for k in range(1, len(g))]
        assert float(outcome.scalars["min_cosine"][i]) == pytest.approx(min(cosines), abs=1e-10)
    assert bool(outcome.scalars["min_cosine"][2].isnan())


def _clip_with_decay(now: Parameters, start: Parameters) -> None:
    """Scales g + 0.3 x to norm 0.1; torch.optim adds the decay itself, so it is taken off again."""
    seen = [p.grad + 0.3 * p.detach() for p in now]
    norm = float(torch.cat([g.flatten() for g in seen]).norm())
    for p, g in zip(now, seen, strict=True):
        p.grad = g * min(1.0, 0.1 / norm) - 0.3 * p.detach()


def test_the_cosine_with_a_zero_gradient_is_zero() -> None:
    module = nn.Linear(6, 3)
    work = round_of(module, optimizers=(clients.SGD(lr=0.1),), measure_cosine=True)
    outcome = Eager(module, lambda outputs, targets: 0.0 * outputs.sum(), vectors()).run(work)
    assert outcome.scalars["min_cosine"].tolist() == [0.0, 0.0, 0.0]


def test_unmeasured_cosines_are_nan() -> None:
    assert bool(train(network(), round_of(network())).scalars["min_cosine"].isnan().all())


# ---- dropout --------------------------------------------------------------------------------------------------------


class Dropping(nn.Module):
    """Three dropout calls, of which the second drops nothing: the outputs are the inputs through the masks."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))
        self.first, self.none = nn.Dropout(0.3), nn.Dropout(0.0)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a = self.first(x * self.weight)
        b = F.dropout(self.none(x * self.weight).reshape(-1, 2, 3), 0.7, self.training, inplace=True)
        return a, b


def seen_by_loss(work: RoundWork, module: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """The outputs of every forward pass."""
    seen = []

    def loss(outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
        seen.append(tuple(output.detach().clone() for output in outputs))
        return 0 * outputs[0].sum()

    Eager(module, loss, Examples(torch.ones(40, 6), labels(0, 3, 40)), threads=1).run(work)
    return seen  # type: ignore[return-value]


def test_dropout_masks_are_the_streams() -> None:
    work = round_of(Dropping(), (9, 4), seed=21, round=6)
    passes = iter(seen_by_loss(work, Dropping()))
    for client, batches in ((0, (4, 4, 1, 4)), (1, (4, 4, 4, 4))):
        for step, n in enumerate(batches):
            a, b = next(passes)
            for call, p, output in ((0, 0.3, a), (1, 0.7, b)):
                stream = ff.kernels.Stream(21, Purpose.DROPOUT + call, 6, int(work.ids[client]), step)
                u = ff.kernels.uniform(n * 6, stream).view(output.shape)
                expected = torch.where(u >= p, 1 / (1 - p), 0.0)
                torch.testing.assert_close(output, expected)
    assert next(passes, None) is None


def test_dropout_keeps_the_mean_and_repeats() -> None:
    work = round_of(Dropping(), (40,), steps=torch.tensor([50]), batch_size=40)
    one, other = seen_by_loss(work, Dropping()), seen_by_loss(work, Dropping())
    assert all(torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in zip(one, other, strict=True))
    dropped = torch.cat([a for a, _ in one])
    assert float(dropped.mean()) == pytest.approx(1, abs=0.02)
    assert float((dropped == 0).float().mean()) == pytest.approx(0.3, abs=0.01)
    assert len({tuple(a.flatten().tolist()) for a, _ in one}) == 50


def test_dropout_of_everything() -> None:
    module = nn.Sequential(nn.Linear(6, 3), nn.Dropout(1.0))
    outcome = train(module, round_of(module))
    assert not bool(outcome.delta.any())
    assert outcome.scalars["first_loss"].tolist() == pytest.approx(3 * [torch.log(torch.tensor(3.0)).item()])


@pytest.mark.parametrize(
    ("layer", "named"),
    [
        (nn.Dropout2d(0.5), "Dropout2d"),
        (nn.AlphaDropout(0.1), "AlphaDropout"),
        (nn.LSTM(6, 3, num_layers=2, dropout=0.2), "LSTM"),
        (nn.MultiheadAttention(6, 2, dropout=0.1), "MultiheadAttention"),
    ],
)
def test_other_dropouts_are_refused_by_name(layer: nn.Module, named: str) -> None:
    with pytest.raises(ValueError, match=rf"^module: layer '1' \({named}\)"):
        Eager(nn.Sequential(nn.Linear(6, 6), layer), "cross_entropy", vectors())


class Noisy(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + torch.randn_like(x))


def test_torch_random_numbers_are_refused_and_untouched() -> None:
    dropping, noisy = nn.Sequential(network(), nn.Dropout(0.5)), Noisy(6, 3)
    before = torch.get_rng_state()
    train(dropping, round_of(dropping))
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(ValueError, match="torch's own random numbers"):
        train(noisy, round_of(noisy))
    assert torch.equal(torch.get_rng_state(), before)


# ---- modules and losses ---------------------------------------------------------------------------------------------


class Odd(nn.Module):
    """Tied and frozen parameters, a buffer that counts calls, an unused parameter, training-only behaviour."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.frozen = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.b.weight = self.a.weight
        self.unused = nn.Parameter(torch.ones(2))
        self.frozen.requires_grad_(False)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        assert self.training
        return self.frozen(torch.tanh(self.b(torch.tanh(self.a(x))))) / self.calls


def test_any_module_and_never_the_callers() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        module = Odd().eval()
    before = copy.deepcopy(module.state_dict())
    work = round_of(module, dtype=DOUBLE)
    outcome = Eager(module, F.cross_entropy, vectors()).run(work)
    for i in range(3):
        plain = train_literally(module, F.cross_entropy, vectors(), work, i, lambda p: torch.optim.SGD(p, lr=0.5))
        close(kept(outcome)[i], plain.delta)
    assert not module.training
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    views = ff.Packing.of(module).views(outcome.delta.float())
    assert not bool(views["unused"].any())
    assert bool(views["a.weight"].any())
    assert not any(p.grad is not None for p in module.parameters())


def test_a_float64_module() -> None:
    module = network().double()
    work = round_of(module, dtype=DOUBLE)
    plain = train_literally(module, F.cross_entropy, vectors(), work, 0, lambda p: torch.optim.SGD(p, lr=0.5))
    close(kept(train(module, work))[0], plain.delta)


def test_the_number_of_threads_changes_no_bit() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        module = nn.Sequential(nn.Linear(6, 300), nn.Dropout(0.1), nn.Tanh(), nn.Linear(300, 3))
    work = round_of(module, (9, 4, 6, 2, 8, 1), optimizers=(clients.Adam(lr=0.01),), batch_size=300)
    torch.set_num_threads(2)  # as conftest.py says
    outcomes = [Eager(module, "cross_entropy", vectors(), threads=count).run(work) for count in (1, 2, 5)]
    assert torch.get_num_threads() == 2
    for outcome in outcomes[1:]:
        assert torch.equal(outcome.delta, outcomes[0].delta)
        assert torch.equal(kept(outcome), kept(outcomes[0]))
        for name, values in outcome.scalars.items():
            assert torch.equal(values.nan_to_num(), outcomes[0].scalars[name].nan_to_num())


@pytest.mark.parametrize("threads", [1, 3])
def test_operations_run_in_one_thread(threads: int) -> None:
    seen = set()

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        seen.add(torch.get_num_threads())
        return outputs.sum()

    Eager(network(), loss, vectors(), threads=threads).run(round_of(network()))
    assert seen == {1}


@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_names_the_client(threads: int) -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        if len(targets) == 1:
            raise KeyError("no such thing")
        return outputs.sum()

    work = round_of(network(), (8, 9, 4))  # client 10 meets a batch of one at its third step
    with pytest.raises(RuntimeError, match=r"^client 10 \(position 1\), local step 3: 'no such thing'") as raised:
        Eager(network(), loss, vectors(), threads=threads).run(work)
    assert isinstance(raised.value.__cause__, KeyError)


def test_a_loss_must_be_one_number() -> None:
    with pytest.raises(RuntimeError, match=r"local step 1: loss: must be a single number, got shape \(4,\)"):
        train(network(), round_of(network()), loss=lambda outputs, targets: outputs.sum(dim=1))


@pytest.mark.parametrize("threads", [0, -1, 1.5, True])
def test_bad_threads(threads: Any) -> None:
    with pytest.raises(ValueError, match=r"^threads: "):
        Eager(network(), "cross_entropy", vectors(), threads=threads)
