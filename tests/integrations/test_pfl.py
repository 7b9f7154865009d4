"""FastFed inside pfl: its loop beside its own local training, and central steps beside torch's optimizers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from .support import federation, host

host("pfl")

from pfl.aggregate.simulate import SimulatedBackend  # noqa: E402
from pfl.algorithm import FederatedAveraging  # noqa: E402
from pfl.algorithm.base import NNAlgorithmParams  # noqa: E402
from pfl.data.dataset import Dataset  # noqa: E402
from pfl.data.federated_dataset import FederatedDataset  # noqa: E402
from pfl.hyperparam import NNTrainHyperParams  # noqa: E402
from pfl.metrics import Metrics, StringMetricName, Weighted  # noqa: E402
from pfl.model.pytorch import PyTorchModel  # noqa: E402
from pfl.stats import MappedVectorStatistics  # noqa: E402

import fastfed as ff  # noqa: E402
from fastfed.integrations.pfl import CentralOptimizer, NativeAveraging  # noqa: E402
from fastfed.integrations.pfl.algorithm import _id_of  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of pfl's event loop


class Model(nn.Module):
    """A model as pfl wants it: with a loss and metrics of its own."""

    def __init__(self, seed: int = 3) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 13), nn.Tanh(), nn.Linear(13, 10))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layers(inputs)
        return outputs

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self(inputs), targets)

    @torch.no_grad()
    def metrics(self, inputs: Tensor, targets: Tensor) -> dict[str, Any]:
        right = (self(inputs).argmax(1) == targets).sum().item()
        return {"accuracy": Weighted(right, len(targets))}


def users() -> dict[str, Dataset]:
    """Ten users; their ids are names."""
    fed = federation()
    found = {}
    for place in range(len(fed)):
        inputs, targets = fed.examples.batch(fed.rows_of(place))
        found[f"user {place}"] = Dataset((inputs, targets), user_id=f"user {place}")
    return found


def run(algorithm: Any, central: Any, rounds: int = 4, evaluated: bool = False, **params: Any) -> tuple[Model, Any]:
    """A run of pfl's own loop on its own backend: the model, and the metrics of the last round."""
    np.random.seed(1)
    held, names = users(), iter(sorted(users()) * 100)
    data = FederatedDataset(lambda user: held[user], lambda: next(names))
    model = Model()
    usual = {"local_num_epochs": 3, "local_learning_rate": 0.3, "local_batch_size": None}
    seen: list[Any] = []

    class Noting:
        def on_train_begin(self, *, model: Any) -> Any:
            return Metrics()

        def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
            seen.append(dict(aggregate_metrics.to_simple_dict()))
            return False, Metrics()

        def on_train_end(self, *, model: Any) -> None:
            pass

    algorithm.run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=1 if evaluated else 1000,
            train_cohort_size=7,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=data, val_data=data),
        PyTorchModel(model, torch.optim.SGD, central(model.parameters())),
        NNTrainHyperParams(**{**usual, **params}),
        callbacks=[Noting()],
        send_metrics_to_platform=False,
    )
    return model, seen


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def averaging(params: Any) -> Any:
    return torch.optim.SGD(params, lr=1.0)


# ---- local training -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clip", [None, 0.4])
@pytest.mark.parametrize("length", [{}, {"local_num_epochs": None, "local_num_steps": 5}])
def test_full_batches_are_pfls_own(length: dict[str, Any], clip: float | None) -> None:
    """Without batches there is no order of examples to differ in."""
    given = {**length, "local_max_grad_norm": clip}
    wanted, _ = run(FederatedAveraging(), averaging, **given)
    found, _ = run(NativeAveraging(), averaging, **given)
    assert not torch.allclose(flat(wanted), flat(Model()), atol=1e-2)
    torch.testing.assert_close(flat(found), flat(wanted), rtol=1e-4, atol=2e-6)


def test_evaluation_sees_the_users_own_model() -> None:
    """pfl evaluates before and after local training; both are what they are with its own."""
    _, wanted = run(FederatedAveraging(), averaging, evaluated=True)
    _, found = run(NativeAveraging(), averaging, evaluated=True)
    for mine, theirs in zip(found, wanted, strict=True):
        for name, value in theirs.items():
            assert mine[name] == pytest.approx(value, rel=1e-4), name
        losses = [value for name, value in mine.items() if "local training loss" in name]
        assert len(losses) == 1
    assert any("after local training" in name for name in wanted[0])


def test_batches_are_fastfeds_own() -> None:
    """The same users one after the other in FastFed's executor: ids key the order of examples."""
    fed, model = federation(), Model()
    found, _ = run(NativeAveraging(seed=9), averaging, rounds=2, local_batch_size=10)
    packing = ff.Packing.of(model)
    x = packing.pack(model)
    engine = ff.train.executors.make("native", model, "cross_entropy", fed.examples)
    order = iter(sorted(users()) * 100)
    for round in range(2):
        places = [int(next(order).split()[1]) for _ in range(7)]
        visit = fed.visit(torch.tensor(places))
        ids = [_id_of(Dataset((), user_id=f"user {place}")) for place in places]
        work = ff.train.RoundWork(
            start=x, rows=visit.rows, offsets=visit.offsets, ids=torch.tensor(ids),
            steps=3 * -(-visit.offsets.diff() // 10), batch_size=10, optimizers=(ff.clients.SGD(lr=0.3),), seed=9,
            round=round, policy=ff.train.DeltaPolicy("uniform"),
        )  # fmt: skip
        x = x + engine.run(work).delta
    torch.testing.assert_close(packing.pack(found), x, rtol=1e-4, atol=1e-6)
    assert min(ids) >= 1 << 32


def test_any_loss_runs() -> None:
    wanted, _ = run(NativeAveraging(executor="eager"), averaging)
    found, _ = run(NativeAveraging(loss=nn.functional.cross_entropy), averaging)
    torch.testing.assert_close(flat(found), flat(wanted))


def test_the_data_are_inputs_and_targets() -> None:
    algorithm = NativeAveraging()
    with pytest.raises(ValueError, match=r"user_dataset: must be \(inputs, targets\), got 3 arrays"):
        algorithm.train_one_user({}, None, Dataset((np.zeros(3), np.zeros(3), np.zeros(3))), None)


@pytest.mark.parametrize("client", ["sgd", ff.clients.SPS()])
def test_a_client_without_a_learning_rate_is_refused(client: Any) -> None:
    with pytest.raises(ValueError, match=r"client: must be an optimizer of fastfed.clients with a learning rate"):
        NativeAveraging(client=client)


def test_ids_of_users() -> None:
    def id_of(user: Any) -> int:
        return _id_of(Dataset((), user_id=user))

    assert id_of(7) == 7
    assert id_of(2**63 - 1) == 2**63 - 1
    found = [id_of(user) for user in ("a", "b", "7", None, -1, 2**63)]
    assert len(set(found)) == 6
    assert all(0 <= each < 2**63 for each in found)
    assert id_of("a") == id_of("a")


# ---- central optimizers ---------------------------------------------------------------------------------------------

# torch adds its epsilon to the corrected root, FastFed's FedAdam tau to the root before: here neither is anything
ADAM = {"beta1": 0.8, "beta2": 0.95, "tau": 1e-30, "v0": 0.0, "second_moment_of": "delta", "bias_correction": True}
CENTRAL = {
    "sgd": (ff.servers.FedAvg(lr=0.7), lambda p: torch.optim.SGD(p, lr=0.7)),
    "momentum": (ff.servers.FedAvgM(lr=0.7, momentum=0.6), lambda p: torch.optim.SGD(p, lr=0.7, momentum=0.6)),
    "adagrad": (
        ff.servers.FedAdagrad(lr=0.2, tau=1e-4, v0=0.01),
        lambda p: torch.optim.Adagrad(p, lr=0.2, eps=1e-4, initial_accumulator_value=0.01),
    ),
    "adam": (ff.servers.FedAdam(lr=0.05, **ADAM), lambda p: torch.optim.Adam(p, lr=0.05, betas=(0.8, 0.95), eps=1e-30)),
    "ams": (
        ff.servers.FedAMS(lr=0.05, **{**ADAM, "tau": 1e-3}),
        lambda p: torch.optim.Adam(p, lr=0.05, betas=(0.8, 0.95), eps=1e-3, amsgrad=True),
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CENTRAL)
def test_central_steps_are_torchs(name: str, dtype: torch.dtype) -> None:
    """By pfl's own `apply_model_update`, with a learning rate that changes on the way."""
    server, make = CENTRAL[name]
    models = [Model().to(dtype) for _ in range(2)]
    pfl_models = [
        PyTorchModel(models[0], torch.optim.SGD, CentralOptimizer(models[0].parameters(), server)),
        PyTorchModel(models[1], torch.optim.SGD, make(models[1].parameters())),
    ]
    generator = torch.Generator().manual_seed(4)
    for round in range(6):
        deltas = {n: torch.randn(p.shape, generator=generator).to(dtype) for n, p in models[0].named_parameters()}
        for each in pfl_models:
            each._central_optimizer.param_groups[0]["lr"] = server.lr / (1 + round // 3)
            _, metrics = each.apply_model_update(MappedVectorStatistics({n: d.clone() for n, d in deltas.items()}))
            told = metrics[StringMetricName("learning rate")].overall_value
            assert told == server.lr / (1 + round // 3)
    counted = {int(held["step"]) for held in pfl_models[0]._central_optimizer.state.values() if "step" in held}
    assert counted == ({6} if name in ("adam", "ams") else set())  # of every parameter's own
    within = 1e-5 if dtype is torch.float32 else 1e-12
    torch.testing.assert_close(flat(models[0]), flat(models[1]), rtol=within, atol=within)


def test_a_run_with_fastfed_on_both_sides() -> None:
    server = ff.servers.FedYogi(lr=0.1)
    _, seen = run(NativeAveraging(), lambda p: CentralOptimizer(p, server), rounds=12, evaluated=True)
    accuracy = [row for row in seen[-1] if "accuracy" in row and "after" not in row]
    assert seen[-1][accuracy[0]] > 0.5 > seen[0][accuracy[0]]


def test_pfl_saves_and_restores_the_moments(tmp_path: Any) -> None:
    server = ff.servers.FedAdam(lr=0.1, **ADAM)

    def made() -> Any:
        model = Model()
        return PyTorchModel(model, torch.optim.SGD, CentralOptimizer(model.parameters(), server))

    def moved(model: Any, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        deltas = {n: torch.randn(p.shape, generator=generator) for n, p in model.pytorch_model.named_parameters()}
        model.apply_model_update(MappedVectorStatistics(deltas))

    one, other = made(), made()
    for seed in range(3):
        moved(one, seed)
    one.save(str(tmp_path))
    other.load(str(tmp_path))
    for each in (one, other):
        moved(each, 7)
    assert torch.equal(flat(one.pytorch_model), flat(other.pytorch_model))


def test_what_is_no_server_is_refused() -> None:
    model = Model()
    with pytest.raises(TypeError, match=r"server: must be one of fastfed.servers"):
        CentralOptimizer(model.parameters(), torch.optim.SGD)  # type: ignore[arg-type]
    groups = [{"params": [p]} for p in model.parameters()]
    with pytest.raises(ValueError, match="params: must be one group"):
        CentralOptimizer(groups, ff.servers.FedAvg())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="closure: "):
        CentralOptimizer(model.parameters(), ff.servers.FedAvg()).step(lambda: None)
