"""FedAda2's propositions on heavy-tailed gradient noise: one client's noise leaves averaging without a second moment,
and AdaGrad on the clients gives it back.

The paper's problem: F_i(x, xi) = x^2 / 2 + xi x, where client i (from 1) draws xi from Student's t with i + 1 degrees
of freedom, so that the first client's noise alone has no variance; or, worse, that client from a Cauchy distribution
and the others from Gaussians. The clients' mean objective is x^2 / 2, and its gradient x itself. All coordinates of a
model are such problems with noise of their own: a mean over them stands for an expectation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import fastfed as ff
from fastfed.train.threads import one_thread_per_operation

STUDENT = tuple(stats.t(i + 1) for i in (1, 2, 3, 4))
CAUCHY = (stats.cauchy(scale=0.3), *[stats.norm(scale=sigma) for sigma in (0.5, 1.0, 2.0)])  # a scale below 1/3
WORLDS = pytest.mark.parametrize("world", [STUDENT, CAUCHY], ids=["student", "cauchy"])
EPS = 1e-3


class Point(nn.Module):
    """A model that is its outputs: one number for every problem."""

    def __init__(self, start: float, problems: int) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.full((problems,), start))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.x.expand(len(inputs), -1)


def objective(x: Tensor, noise: Tensor) -> Tensor:
    """x^2 / 2 + xi x, the sum over problems: of a batch (n, problems)."""
    return (x**2 / 2 + noise * x).mean(0).sum()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Nothing here is worth a second thread."""
    with one_thread_per_operation():
        yield


def simulation(noise: Tensor, start: float, client: ff.clients.Client, **settings: Any) -> ff.Simulation:
    """FedAvg on noise (clients, draws, problems): everyone takes part and sees one draw a local step, of which there is
    one a round, unless told otherwise."""
    clients, draws, problems = noise.shape
    examples = ff.data.Examples(torch.zeros(clients * draws, 1), noise.reshape(-1, problems))
    offsets = torch.arange(0, clients * draws + 1, draws)
    fed = ff.data.Federated("heavy tail", examples, torch.arange(clients * draws), offsets)
    usual: dict[str, Any] = {"cohort": clients, "steps": 1, "weights": "uniform", "seed": 3, "threads": 1}
    settings = usual | settings | {"batch_size": 1, "loss": objective, "executor": "eager"}
    return ff.Simulation(Point(start, problems), fed, client=client, **settings)


def gradient(sim: ff.Simulation) -> Tensor:
    """The gradient of the mean objective at the global model, one number for every problem."""
    return sim.packing.views(sim.params)["x"].double()


def draws_of(world: Sequence[Any], draws: int, problems: int) -> Tensor:
    random = np.random.RandomState(5)
    of_clients = [noise.rvs(size=(draws, problems), random_state=random) for noise in world]
    return torch.from_numpy(np.stack(of_clients)).float()


# ---- one round, as an expectation -----------------------------------------------------------------------------------


def quantiles_of(world: Sequence[Any], problems: int) -> Tensor:
    """One draw per client and problem that is spread evenly: client by client its distribution's quantiles at the
    midpoints of [0, 1] cut into pieces, shuffled. A mean over problems is then an integral by the midpoint rule, which
    more pieces bring nearer to the expectation, if there is one."""
    random = np.random.RandomState(7)
    midpoints = (np.arange(problems) + 0.5) / problems
    of_clients = [random.permutation(noise.ppf(midpoints)) for noise in world]
    return torch.from_numpy(np.stack(of_clients)).float()[:, None]


def squared_gradients(world: Sequence[Any], client: ff.clients.Client, start: float = 1.0) -> list[float]:
    """The mean of the squared gradient after one round, over 2^8, 2^12 and 2^16 problems."""
    found = []
    for problems in (1 << 8, 1 << 12, 1 << 16):
        sim = simulation(quantiles_of(world, problems), start, client)
        sim.step()
        found.append(float(gradient(sim).square().mean()))
    return found


@WORLDS
@pytest.mark.parametrize("lr", [1.0, 0.01])
def test_averaging_hands_the_noise_on_at_once(world: Sequence[Any], lr: float) -> None:
    """x_1 = (1 - lr) x_0 - lr mean xi, for any learning rate."""
    noise = quantiles_of(world, 500)
    sim = simulation(noise, 2.0, ff.clients.SGD(lr=lr))
    sim.step()
    wanted = (1 - lr) * 2.0 - lr * noise[:, 0].double().mean(0)
    assert torch.allclose(gradient(sim), wanted, rtol=1e-5, atol=1e-6)


def test_averaging_has_no_second_moment_because_of_one_client() -> None:
    """Propositions 2 and 9 (i). The integral of xi^2 up to the outermost of n quantiles is log n for Student's t with
    two degrees of freedom: 16 times as many problems add log 16 each time, over the number of clients squared. For the
    Cauchy distribution it is n itself. Without that client it comes to rest."""
    few, more, many = squared_gradients(STUDENT, ff.clients.SGD(lr=1.0))
    step = math.log(16) / len(STUDENT) ** 2
    assert more - few == pytest.approx(step, rel=0.3)
    assert many - more == pytest.approx(step, rel=0.3)
    few, more, many = squared_gradients(CAUCHY, ff.clients.SGD(lr=1.0))
    assert more > 4 * few
    assert many == pytest.approx(16 * more, rel=0.1)
    for world in (STUDENT, CAUCHY):
        few, more, many = squared_gradients(world[1:], ff.clients.SGD(lr=1.0))
        assert many == pytest.approx(more, rel=0.1)
        assert many < 2.0


@WORLDS
def test_adagrad_on_clients_gives_the_second_moment_back(world: Sequence[Any]) -> None:
    """A first step of AdaGrad is at most lr long, whatever the noise: so is the mean of such steps."""
    start, lr = 1.0, 0.5
    few, more, many = squared_gradients(world, ff.clients.AdaGrad(lr=lr, eps=EPS), start)
    assert more == pytest.approx(few, rel=0.1)
    assert many == pytest.approx(more, rel=0.01)
    assert many < (start + lr) ** 2


# ---- many rounds ----------------------------------------------------------------------------------------------------


@WORLDS
def test_adagrad_on_clients_bounds_the_error(world: Sequence[Any]) -> None:
    """Propositions 9 (ii) and 10 (ii): with learning rates like 1/t, lim E|x_t - x*| is at most 2 sqrt 3 under
    Student's noise and at most 2 with a Cauchy client (over 1 - eps, which eps -> 0 makes 1). Started outside."""
    bound = 2 * math.sqrt(3) if world is STUDENT else 2.0
    adagrad = ff.clients.AdaGrad(lr=1.0, eps=EPS)
    sim = simulation(draws_of(world, 64, 512), 4.0, adagrad, client_schedule=lambda round: 1 / (round + 2))
    errors = [4.0]
    for _ in range(60):
        sim.step()
        errors.append(float(gradient(sim).abs().mean()))
    assert errors[0] > bound
    assert all(error < bound for error in errors[30:])
    assert errors[60] < errors[30], "it does not come nearer to the optimum any more"


@WORLDS
@pytest.mark.parametrize("steps", [1, 3])
def test_adagrad_on_clients_bounds_the_squared_gradient(world: Sequence[Any], steps: int) -> None:
    """Proposition 9 (iv): E|grad f(x_t)|^2 <= 2 |x_0|^2 + 2 (integral of 1/s^2 from 1)^2 at every t, where a round's
    learning rates add up to 1/t^2: the sum from t = 2 on is below that integral, 1. Here for every single problem."""
    noise, start = draws_of(world, 32, 4096), 0.5
    worst = {}
    for client in (ff.clients.SGD(lr=1 / steps), ff.clients.AdaGrad(lr=1 / steps, eps=EPS)):
        sim = simulation(noise, start, client, steps=steps, client_schedule=lambda round: 1 / (round + 2) ** 2)
        squares = []
        for _ in range(8):
            sim.step()
            squares.append(float(gradient(sim).square().max()))
        worst[client.rule] = max(squares)
    bound = 2 * start**2 + 2
    assert worst["adagrad"] <= bound
    assert worst["sgd"] > bound


def test_adagrad_on_clients_keeps_a_small_gradient_small() -> None:
    """Proposition 9 (iii): entered with |x| and learning rates of 1/sqrt T, the least E|grad f|^2 of T rounds is
    O(1/T); its proof gives the constant 2 + 2 B with B < 2 sqrt 3."""
    for rounds in (4, 16, 64):
        small = 1 / math.sqrt(rounds)
        sim = simulation(draws_of(STUDENT, 64, 512), small, ff.clients.AdaGrad(lr=small, eps=EPS))
        squares = []
        for _ in range(rounds):
            sim.step()
            squares.append(float(gradient(sim).square().mean()))
        assert max(squares) <= (2 + 4 * math.sqrt(3)) / rounds  # every one of them, not the least alone
