"""Batch norm's running statistics over rounds, beside a plain torch loop: a copy of the module per client with torch's
own layers, then weighted means of parameters and buffers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastfed as ff
from fastfed.exchange import ClientStore
from fastfed.purposes import Purpose

EXECUTORS = ("eager", "batched", "native")
SIZES = (7, 5, 12, 1)  # with batches of 4: short last ones, one of a single example
ROUNDS, BATCH, LR = 3, 4, 0.1


def module(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    made = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4, momentum=0.3),
        nn.ReLU(),
        nn.Conv2d(4, 3, 3, bias=False),
        nn.BatchNorm2d(3, affine=False),
        nn.Flatten(),
        nn.Linear(12, 3),
    )
    nn.init.uniform_(made[1].weight, 0.5, 1.5)
    nn.init.uniform_(made[1].running_mean, -0.2, 0.2)
    return made


def federation() -> ff.data.Federated:
    g = torch.Generator().manual_seed(5)
    n = sum(SIZES)
    x, y = torch.randn(n, 1, 6, 6, generator=g), torch.randint(3, (n,), generator=g)
    owner = torch.repeat_interleave(torch.arange(len(SIZES)), torch.tensor(SIZES))
    x += owner[:, None, None, None]  # clients whose statistics differ
    return ff.data.from_arrays(x, y, client=owner, test=(x[::3], y[::3]))


def simulation(executor: str = "eager", **settings: Any) -> ff.Simulation:
    given = {"client": ff.clients.SGD(lr=LR), "cohort": 4, "batch_size": BATCH, "epochs": 2, "seed": 1, **settings}
    return ff.Simulation(given.pop("model", module()), given.pop("fed", federation()), executor=executor, **given)


def batches(client: int, round: int, rows: Tensor) -> list[Tensor]:
    """Two epochs, each in its own order."""
    found: list[Tensor] = []
    for epoch in range(2):
        stream = ff.kernels.Stream(1, Purpose.SHUFFLE, round, client, epoch)
        found += rows[ff.kernels.permutation(len(rows), stream)].split(BATCH)
    return found


def trained(start: nn.Module, client: int, round: int) -> nn.Module:
    """One client's plain torch training, in float64."""
    fed, model = federation(), copy.deepcopy(start).double().train()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], LR)
    begin = sum(SIZES[:client])
    for rows in batches(client, round, torch.arange(begin, begin + SIZES[client])):
        inputs, targets = fed.examples.batch(rows)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs.double()), targets).backward()
        optimizer.step()
    return model


def mean_of(models: list[nn.Module], names: list[str]) -> dict[str, Tensor]:
    total = sum(SIZES)
    states = [model.state_dict() for model in models]
    return {name: sum(size / total * state[name] for size, state in zip(SIZES, states, strict=True)) for name in names}  # type: ignore[misc]


def close(found: nn.Module, wanted: nn.Module) -> None:
    for (name, a), b in zip(found.state_dict().items(), wanted.state_dict().values(), strict=True):
        if "num_batches" not in name:
            torch.testing.assert_close(a.double(), b.double(), rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_averaged_statistics_are_those_of_a_plain_loop(executor: str) -> None:
    sim, model = simulation(executor), module().double()
    names = [name for name in model.state_dict() if "num_batches" not in name]
    for round in range(ROUNDS):
        sim.step()
        model.load_state_dict(mean_of([trained(model, i, round) for i in range(4)], names), strict=False)
        close(sim.trained_model(), model)
    assert sim.fed.test is not None
    inputs, targets = sim.fed.test.batch(torch.arange(len(sim.fed.test)))
    with torch.no_grad():
        loss = float(F.cross_entropy(model.eval()(inputs.double()), targets))
    assert sim.evaluate()["test_loss"] == pytest.approx(loss, rel=1e-4)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_no_server_rule_and_no_optimizer_touches_the_statistics(executor: str) -> None:
    plain = simulation(executor)
    plain.step()
    other = simulation(executor, server=ff.servers.FedAdam(lr=0.3), delta_clip=0.01)
    other.step()
    assert torch.equal(other.batch_norm.named()["1.running_var"], plain.batch_norm.named()["1.running_var"])
    still = simulation(executor, client=ff.clients.SGD(lr=0.0, weight_decay=0.5, prox=0.5))
    still.step()
    assert not torch.equal(still.batch_norm.named()["1.running_mean"], module()[1].running_mean)
    assert torch.equal(still.params, still.packing.pack(module()))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_local_batch_norms_stay_with_their_clients(executor: str) -> None:
    sim, common = simulation(executor, batch_norm="local"), module().double()
    own = [copy.deepcopy(common.state_dict()) for _ in SIZES]
    norms = [name for name in common.state_dict() if name.startswith(("1.", "4."))]
    shared = [name for name in common.state_dict() if name not in norms]
    for round in range(ROUNDS):
        sim.step()
        models = []
        for client in range(4):
            start = copy.deepcopy(common)
            start.load_state_dict({name: own[client][name] for name in norms}, strict=False)
            models.append(trained(start, client, round))
            own[client] = copy.deepcopy(models[-1].state_dict())
        common.load_state_dict(mean_of(models, shared), strict=False)
        close(sim.trained_model(), common)  # whose batch norms are the first ones
    kept = sim.batch_norm.store.get(torch.arange(4), torch.zeros(22))
    for client in range(4):
        of_first = [own[client][f"1.{part}"] for part in ("weight", "bias", "running_mean", "running_var")]
        of_second = [own[client][f"4.{part}"] for part in ("running_mean", "running_var")]
        torch.testing.assert_close(kept[client].double(), torch.cat([*of_first, *of_second]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_frozen_statistics_are_used_and_never_change(executor: str) -> None:
    sim, model = simulation(executor, batch_norm="frozen"), module().double()

    def client(i: int, round: int) -> nn.Module:
        fed, local = federation(), copy.deepcopy(model).eval()
        optimizer = torch.optim.SGD(local.parameters(), LR)
        begin = sum(SIZES[:i])
        for rows in batches(i, round, torch.arange(begin, begin + SIZES[i])):
            inputs, targets = fed.examples.batch(rows)
            optimizer.zero_grad()
            F.cross_entropy(local(inputs.double()), targets).backward()
            optimizer.step()
        return local

    for round in range(2):
        sim.step()
        names = [name for name, _ in model.named_parameters()]
        model.load_state_dict(mean_of([client(i, round) for i in range(4)], names), strict=False)
        close(sim.trained_model(), model)


@pytest.mark.parametrize("mode", ["average", "local", "frozen"])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_resumed_run_goes_on_to_the_same_bits(executor: str, mode: Any, tmp_path: Any) -> None:
    sim = simulation(executor, batch_norm=mode, cohort=2)
    sim.run(2, progress=False)
    sim.save(tmp_path)
    again = ff.Simulation.resume(tmp_path, model=module(), fed=federation())
    for one in (sim, again):
        one.run(2, progress=False)
    assert torch.equal(sim.params, again.params)
    for (name, a), b in zip(sim.tensors().items(), again.tensors().values(), strict=True):
        assert torch.equal(a, b), name
    assert sim.history.rounds[-1]["train_loss"] == again.history.rounds[-1]["train_loss"]


def test_clients_of_old_models_start_from_what_these_had() -> None:
    settings = ff.methods.client_centric(
        ff.servers.FedAvg(), client_lr=LR, buffer=2, max_delay=3, epochs=1, randomness=1
    )
    sims = [simulation(name, **{"cohort": None, "epochs": None, **settings}) for name in EXECUTORS]
    for sim in sims:
        sim.run(8, progress=False)
    for sim in sims[1:]:
        assert torch.allclose(sim.params, sims[0].params, rtol=1e-3, atol=1e-4)
        assert torch.allclose(sim.batch_norm.now, sims[0].batch_norm.now, rtol=1e-3, atol=1e-4)
    late = sims[0]
    age = torch.tensor([0, 2])
    late.batch_norm.past.put(6, torch.full_like(late.batch_norm.now, 7.0))
    found = late.batch_norm.fields({"round": 8}, age)["statistics"]
    assert torch.equal(found[0], late.batch_norm.now)
    assert bool((found[1] == 7).all())


def test_an_asynchronous_run_is_resumed_with_the_statistics_of_old_models(tmp_path: Any) -> None:
    settings = ff.methods.client_centric(ff.servers.FedAvg(), client_lr=LR, buffer=2, max_delay=3, epochs=1)
    sim = simulation(**{"cohort": None, "epochs": None, **settings})
    sim.run(4, progress=False)
    sim.save(tmp_path)
    again = ff.Simulation.resume(tmp_path, model=module(), fed=federation())
    for one in (sim, again):
        one.run(4, progress=False)
    assert torch.equal(sim.batch_norm.now, again.batch_norm.now)
    assert torch.equal(sim.params, again.params)


def test_statistics_that_are_not_finite_are_in_no_mean() -> None:
    sim = simulation()
    found = torch.ones(3, 14)
    found[1] = torch.inf
    found[2] = 4.0
    outcome = ff.train.Outcome(None, {}, torch.zeros(3, dtype=torch.bool), statistics=found)  # type: ignore[arg-type]
    sim.batch_norm.absorb(None, outcome, torch.tensor([0.5, 0.25, 0.25]))  # type: ignore[arg-type]
    assert torch.allclose(sim.batch_norm.now, torch.full((14,), 2.0))


def test_bytes_count_what_travels() -> None:
    rows = {mode: simulation(batch_norm=mode).step() for mode in ("frozen", "average", "local")}
    for way in ("bytes_down", "bytes_up"):
        base = rows["frozen"][way]
        assert rows["average"][way] - base == 4 * 4 * 14  # four clients, 2 * (4 + 3) statistics of four bytes
        assert rows["local"][way] - base == -4 * 4 * 8  # the weight and the bias of four channels stay at home
    assert rows["local"]["client_optimizer_bytes"] - rows["frozen"]["client_optimizer_bytes"] == 4 * (8 + 14)


def test_refused_clients_and_rounds_leave_the_statistics_alone() -> None:
    fed = federation()
    fed.examples.inputs[:7] = float("nan")
    sim = simulation(fed=fed)
    sim.step()
    assert bool(torch.isfinite(sim.batch_norm.now).all())
    fed = federation()
    fed.examples.inputs[:] = float("nan")
    sim = simulation(fed=fed)
    before = sim.batch_norm.now.clone()
    assert sim.step()["changed"] is False
    assert torch.equal(sim.batch_norm.now, before)


PLAIN = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"batch_norm": "mean"}, "batch_norm: must be one of average, local, frozen, got 'mean'"),
        ({"batch_norm": "local", "model": PLAIN}, "batch_norm: the model has no batch norm that 'local'"),
        ({"aggregation": ff.aggregate.Median(), "weights": "uniform"}, "batch_norm: 'average' is the clients' mean"),
        (
            {"privacy": ff.privacy.Privacy(1.0, 1.0, 1e-3), "cohort": ff.plan.Poisson(0.5), "weights": "uniform"},
            "batch_norm: must be 'frozen' with privacy",
        ),
        ({"exchange": ff.exchange.PreviousModels(1.0)}, r"batch_norm: must be 'frozen' where features"),
        ({"model": nn.Sequential(nn.Flatten(), nn.BatchNorm1d(36, momentum=None))}, "module: layer '1' is a batch nor"),
    ],
)
def test_what_does_not_go_together_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises((ValueError, TypeError), match=sentence):
        simulation(**settings)


@pytest.mark.parametrize("mode", ["average", "local", "frozen"])
def test_auto_is_native(mode: Any) -> None:
    assert simulation("auto", batch_norm=mode).executor.name == "native"


def test_auto_goes_on_where_the_engine_has_no_such_batch_norm() -> None:
    of_rows = nn.Sequential(nn.Flatten(2), nn.BatchNorm1d(1), nn.Flatten(), nn.Linear(36, 3))
    sim = simulation("auto", model=of_rows)
    assert sim.executor.name == "eager"
    assert "BatchNorm1d" in sim.executor.why


@pytest.mark.parametrize("executor", EXECUTORS)
def test_one_value_per_channel_is_refused_as_torch_does(executor: str) -> None:
    dense = nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    with pytest.raises(RuntimeError, match=r"client 1 \(position 1\)|client 3 \(position 3\)"):
        simulation(executor, model=dense).step()  # 5 = 4 + 1 examples, and one alone
    simulation(executor, model=dense, batch_norm="frozen").step()


# ---- other rules, beside torch's own optimizers ---------------------------------------------------------------------


class Dense(nn.Module):
    """Batch norm of images and of vectors, before a curve and after it; every batch has several examples."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.of_images = nn.Conv2d(1, 3, 2, bias=False), nn.BatchNorm2d(3, eps=1e-3, momentum=0.2)
        self.hidden, self.of_vectors = nn.Linear(75, 7), nn.BatchNorm1d(7, momentum=0.6)
        self.head = nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.flatten(self.of_images(torch.relu(self.conv(x))), 1)
        return self.head(torch.tanh(self.of_vectors(self.hidden(x))))


def dense() -> nn.Module:
    torch.manual_seed(3)
    return Dense()


def two_clients() -> ff.data.Federated:
    """Of 11 and 8 examples: batches of 4, 4, 3 and of 4, 4."""
    g = torch.Generator().manual_seed(6)
    x, y = torch.randn(19, 1, 6, 6, generator=g), torch.randint(3, (19,), generator=g)
    return ff.data.from_arrays(x, y, client=(torch.arange(19) >= 11).long(), test=(x[:5], y[:5]))


Optimizer = torch.optim.Optimizer
RULES: dict[str, tuple[ff.clients.Client, Callable[[Any], Optimizer], float]] = {
    "weight decay": (ff.clients.SGD(lr=LR, weight_decay=0.1), lambda p: torch.optim.SGD(p, LR, weight_decay=0.1), 0.0),
    "momentum": (
        ff.clients.Momentum(lr=LR, momentum=0.8, weight_decay=0.05),
        lambda p: torch.optim.SGD(p, LR, momentum=0.8, weight_decay=0.05),
        0.0,
    ),
    "FedProx": (ff.clients.SGD(lr=LR, prox=0.7), lambda p: torch.optim.SGD(p, LR), 0.7),
    "adagrad": (
        ff.clients.AdaGrad(lr=LR, eps=1e-3, v0=0.1),
        lambda p: torch.optim.Adagrad(p, LR, eps=1e-3, initial_accumulator_value=0.1),
        0.0,
    ),
}


def trained_by(name: str, start: nn.Module, client: int, round: int) -> nn.Module:
    """One client's training by torch's own optimizer, in float64."""
    fed, model = two_clients(), copy.deepcopy(start).double().train()
    parameters, prox = list(model.parameters()), RULES[name][2]
    first = [p.detach().clone() for p in parameters]
    optimizer = RULES[name][1](parameters)
    for rows in batches(client, round, torch.arange(11) if client == 0 else torch.arange(11, 19)):
        inputs, targets = fed.examples.batch(rows)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs.double()), targets).backward()
        for p, began in zip(parameters, first, strict=True):
            assert p.grad is not None
            p.grad += prox * (p.detach() - began)
        optimizer.step()
    return model


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("executor", EXECUTORS)
def test_parameters_and_statistics_are_those_of_torch_optimizers(executor: str, rule: str) -> None:
    settings = {"client": RULES[rule][0], "cohort": 2, "model": dense(), "fed": two_clients()}
    sim, model = simulation(executor, **settings), dense().double()
    for round in range(2):
        sim.step()
        states = [trained_by(rule, model, client, round).state_dict() for client in range(2)]
        names = [name for name in states[0] if "num_batches" not in name]
        mean = {name: (11 * states[0][name] + 8 * states[1][name]) / 19 for name in names}
        model.load_state_dict(mean, strict=False)
        close(sim.trained_model(), model)


@pytest.mark.parametrize("mode", ["average", "local"])
@pytest.mark.parametrize("executor", EXECUTORS[1:])
def test_control_variates_go_with_batch_norm(executor: str, mode: Any) -> None:
    settings = {"exchange": ff.exchange.ControlVariates(), "weights": "uniform", "batch_norm": mode, "cohort": 3}
    sims = [simulation(name, **settings) for name in ("eager", executor)]
    for sim in sims:
        sim.run(3, progress=False)
    for (name, a), b in zip(sims[0].tensors().items(), sims[1].tensors().values(), strict=True):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-4), name


@pytest.mark.parametrize("mode", ["average", "local", "frozen"])
def test_threads_change_no_bit(mode: Any) -> None:
    found = []
    for threads in (1, 3):
        sim = simulation("native", batch_norm=mode, threads=threads)
        sim.run(3, progress=False)
        found.append([*sim.tensors().values(), torch.tensor(list(sim.evaluate(per_client=True).values()))])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


# ---- evaluation per client ------------------------------------------------------------------------------------------


def numbers() -> ff.data.Federated:
    """The same clients with numbers to learn, whose error shows every difference between two models."""
    fed = federation()
    inputs, targets = fed.examples.batch(torch.arange(sum(SIZES)))
    owner = torch.repeat_interleave(torch.arange(len(SIZES)), torch.tensor(SIZES))
    return ff.data.from_arrays(inputs, F.one_hot(targets, 3).float(), client=owner)


def own_errors(sim: ff.Simulation) -> Tensor:
    """Of each client's own model on its own examples, in torch: the shared layers, and what it keeps of batch norms."""
    kept = sim.batch_norm.store.get(torch.arange(4), torch.cat([*_norms_of(module())]))
    found = []
    for client, size in enumerate(SIZES):
        model = sim.trained_model()
        for tensor, part in zip(_norms_of(model), kept[client].split([4, 4, 4, 4, 3, 3]), strict=True):
            tensor.data.copy_(part)
        begin = sum(SIZES[:client])
        inputs, targets = sim.fed.examples.batch(torch.arange(begin, begin + size))
        with torch.no_grad():
            found.append(((model.eval()(inputs) - targets) ** 2).double().mean())
    return torch.stack(found)


def _norms_of(model: nn.Module) -> list[Tensor]:
    first, second = model[1], model[4]
    return [first.weight, first.bias, first.running_mean, first.running_var, second.running_mean, second.running_var]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_clients_are_evaluated_with_their_own_batch_norms(executor: str) -> None:
    sim = simulation(executor, batch_norm="local", cohort=2, fed=numbers(), loss="mse")
    sim.step()
    assert len(sim.batch_norm.store) == 2  # the others have not trained yet, and have the first ones
    for _ in range(3):
        found, wanted = sim.evaluate(per_client=True), own_errors(sim)
        assert found["client_mse_mean"] == pytest.approx(float(wanted.mean()), rel=1e-4)
        assert found["client_mse_p10"] == pytest.approx(float(torch.quantile(wanted, 0.1)), rel=1e-4)
        sim.run(2, progress=False, evaluate_every=0)


def test_norms_of_clients_are_fetched_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one process keeps them all, an evaluation needs the memory of one client's, not of all."""
    sim = simulation(batch_norm="local")
    sim.step()
    whole, fetched = ClientStore.get, list[int]()

    def get(self: ClientStore, ids: Tensor, default: Tensor) -> Tensor:
        fetched.append(len(ids))
        return whole(self, ids, default)

    monkeypatch.setattr(ClientStore, "get", get)
    sim.evaluate(per_client=True)
    assert set(fetched) == {1}
    assert len(fetched) >= 4


@pytest.mark.parametrize("mode", ["average", "frozen"])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_without_norms_of_their_own_clients_are_evaluated_with_the_global_ones(executor: str, mode: Any) -> None:
    sim = simulation(executor, batch_norm=mode)
    sim.run(2, progress=False)
    model, found = sim.trained_model().eval(), []
    for client, size in enumerate(SIZES):
        inputs, targets = sim.fed.examples.batch(torch.arange(sum(SIZES[:client]), sum(SIZES[:client]) + size))
        with torch.no_grad():
            found.append(float((model(inputs).argmax(1) == targets).double().mean()))
    assert sim.evaluate(per_client=True)["client_accuracy_mean"] == pytest.approx(sum(found) / 4)
