"""What a `torch.optim.Optimizer` has to be: groups, closures, missing gradients, state dicts, schedulers, hooks,
scalers, compiled functions; whatever tensors look like, and however many threads there are."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastfed as ff
from fastfed.kernels import extension, registry

from .support import Made, give, go_on, gradients, normals, parameters, run, same_bits, snapshot

MAKERS: dict[str, Made] = {
    "SM3": lambda p: ff.optim.SM3(p, lr=0.1),
    "SM3, momentum": lambda p: ff.optim.SM3(p, lr=0.1, beta1=0.9),
    "SM3I": lambda p: ff.optim.SM3I(p, lr=0.1),
    "SM3Adam": lambda p: ff.optim.SM3Adam(p, lr=0.02),
    "DeltaSGD": lambda p: ff.optim.DeltaSGD(p, lr=0.05),
    "SPS": lambda p: ff.optim.SPS(p, lr_max=0.1),
    "FedAvg": lambda p: ff.optim.FedAvg(p, lr=0.1),
    "FedAvgM": lambda p: ff.optim.FedAvgM(p, lr=0.1),
    "FedAdam": lambda p: ff.optim.FedAdam(p, lr=0.02, bias_correction=True),
    "FedYogi": lambda p: ff.optim.FedYogi(p, lr=0.02),
    "FedAdagrad": lambda p: ff.optim.FedAdagrad(p, lr=0.1),
    "FedAMS": lambda p: ff.optim.FedAMS(p, lr=0.02, weight_decay=0.1),
}
every_optimizer = pytest.mark.parametrize("name", MAKERS)
scheduled = pytest.mark.parametrize("name", [name for name in MAKERS if name not in ("SPS", "DeltaSGD")])


def loss_of(name: str) -> dict[str, Any]:
    """What `step` takes besides."""
    return {"loss": 3.0} if name == "SPS" else {}


def test_every_optimizer_is_here() -> None:
    made = {type(maker(parameters())).__name__ for maker in MAKERS.values()}
    assert made == set(ff.optim.__all__) - {"Descent"}


# ---- state dicts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@every_optimizer
def test_saved_midway_and_loaded(name: str, dtype: torch.dtype) -> None:
    """A file that `torch.load` takes without trusting it; the bits go on as if nothing had been."""
    params = parameters(dtype)
    optimizer = MAKERS[name](params)
    go_on(optimizer, params, range(3), **loss_of(name))
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    others = [nn.Parameter(p.detach().clone()) for p in params]
    other = MAKERS[name](others)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert same_bits(snapshot(other), snapshot(optimizer))
    for which, owner in ((optimizer, params), (other, others)):
        go_on(which, owner, range(3, 6), **loss_of(name))
    assert same_bits(snapshot(other), snapshot(optimizer))
    assert [{k: v for k, v in group.items() if k != "params"} for group in other.param_groups] == [
        {k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups
    ]


@pytest.mark.parametrize("again", [lambda o: pickle.loads(pickle.dumps(o)), copy.deepcopy], ids=["pickle", "copy"])
@every_optimizer
def test_made_again(name: str, again: Any) -> None:
    params = parameters()
    optimizer = MAKERS[name](params)
    go_on(optimizer, params, range(2), **loss_of(name))
    other = again(optimizer)
    for which in (other, optimizer):
        go_on(which, which.param_groups[0]["params"], range(2, 4), **loss_of(name))
    assert same_bits(snapshot(other), snapshot(optimizer))


# ---- groups and gradients -------------------------------------------------------------------------------------------


@every_optimizer
def test_a_parameter_without_a_gradient_stays(name: str) -> None:
    params = parameters()
    optimizer = MAKERS[name](params)
    go_on(optimizer, params, range(2), **loss_of(name))
    before = snapshot(optimizer)
    steps = [optimizer.state[p].get("step") for p in params]
    give(params, [g if i != 1 else None for i, g in enumerate(gradients(2))])
    optimizer.step(**loss_of(name))
    after = snapshot(optimizer)
    assert same_bits(before[1:2], after[1:2])
    assert not torch.equal(before[0]["x"], after[0]["x"])
    assert optimizer.state[params[1]].get("step") == steps[1]
    optimizer.zero_grad()
    optimizer.step(**loss_of(name))
    assert same_bits(after, snapshot(optimizer))


@pytest.mark.parametrize("bias_correction", [False, True])
def test_parameters_count_their_own_steps(bias_correction: bool) -> None:
    """As torch's: one that had no gradient at first is corrected as one that begins."""
    found = []
    for made in (
        lambda p: ff.optim.FedAdam(p, lr=0.1, bias_correction=bias_correction, eps="torch"),
        lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.9, 0.99), eps=1e-3),
    ):
        params = parameters(torch.float64)
        optimizer = made(params)
        for step in range(6):
            missing = (1, 3) if step < 3 else (5,)
            give(params, [None if i in missing else g for i, g in enumerate(gradients(step, torch.float64))])
            optimizer.step()
        found.append([p.detach() for p in params])
    alike = [torch.allclose(a, b, rtol=1e-11, atol=1e-13) for a, b in zip(*found, strict=True)]
    assert all(alike) == bias_correction


@scheduled
def test_groups_have_their_own_options(name: str) -> None:
    params, same = parameters(), parameters()
    optimizer = MAKERS[name]([{"params": params[:3]}, {"params": params[3:], "lr": 0.3, "weight_decay": 0.2}])  # type: ignore[list-item]
    go_on(optimizer, params, range(3))
    first, second = MAKERS[name](same[:3]), MAKERS[name](same[3:])
    second.param_groups[0].update(lr=0.3, weight_decay=0.2)
    for step in range(3):
        give(same, gradients(step))
        first.step()
        second.step()
    assert same_bits(snapshot(optimizer), snapshot(first) + snapshot(second))


@every_optimizer
def test_a_group_is_added_later(name: str) -> None:
    params = parameters()
    optimizer = MAKERS[name](params[:4])
    give(params, gradients(0))
    optimizer.step(**loss_of(name))
    optimizer.add_param_group({"params": params[4:]})
    before = [p.detach().clone() for p in params]
    go_on(optimizer, params, range(1, 3), **loss_of(name))
    assert all(not torch.equal(a, p) for a, p in zip(before, params, strict=True) if p.numel())
    if name != "SPS" and name != "DeltaSGD" and "step" in optimizer.state[params[0]]:
        assert [optimizer.state[params[i]]["step"] for i in (0, 5)] == [3, 2]


def test_names_of_parameters() -> None:
    module = nn.Linear(3, 2)
    optimizer = ff.optim.SM3(module.named_parameters(), lr=0.1)
    assert optimizer.param_groups[0]["param_names"] == ["weight", "bias"]


# ---- around the step ------------------------------------------------------------------------------------------------


@every_optimizer
def test_a_closure_is_evaluated_once_with_gradients(name: str) -> None:
    params, same = parameters(), parameters()
    optimizer, other = MAKERS[name](params), MAKERS[name](same)
    calls = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = sum((p * p).sum() for p in params)
        assert isinstance(loss, Tensor)
        loss.backward()
        calls.append(loss)
        return loss

    loss = optimizer.step(closure)
    assert calls == [loss]
    give(same, [2 * p.detach() for p in same])
    other.step(**({"loss": loss.item()} if name == "SPS" else {}))
    assert same_bits(snapshot(optimizer), snapshot(other))


@scheduled
def test_a_scheduler_sets_the_learning_rate(name: str) -> None:
    params, same = parameters(), parameters()
    optimizer, other = MAKERS[name](params), MAKERS[name](same)
    start = optimizer.param_groups[0]["lr"]
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for step in range(4):
        go_on(optimizer, params, range(step, step + 1))
        scheduler.step()
        other.param_groups[0]["lr"] = start * 0.5**step
        go_on(other, same, range(step, step + 1))
    assert same_bits(snapshot(optimizer), snapshot(other))


def test_a_learning_rate_may_be_a_tensor() -> None:
    number = run(lambda p: ff.optim.FedAdam(p, lr=0.25), 3)
    tensor = run(lambda p: ff.optim.FedAdam(p, lr=torch.tensor(0.25)), 3)  # type: ignore[arg-type]
    assert same_bits(number, tensor)


@every_optimizer
def test_hooks_run_once(name: str) -> None:
    params = parameters()
    optimizer = MAKERS[name](params)
    seen: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    go_on(optimizer, params, range(2), **loss_of(name))
    assert seen == ["before", "after"] * 2


@every_optimizer
def test_a_scaler_of_gradients(name: str) -> None:
    """Scaled and unscaled by a power of two: the same bits. A step with infinite gradients is left out."""
    params, same = parameters(), parameters()
    optimizer, other = MAKERS[name](params), MAKERS[name](same)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(4):
        optimizer.zero_grad()
        target = gradients(step)
        loss = sum((p * g).sum() for p, g in zip(params, target, strict=True))
        scaler.scale(loss).backward()
        if step == 2:
            params[0].grad[0, 0] = torch.inf  # type: ignore[index]
        else:
            go_on(other, same, range(step, step + 1), **loss_of(name))
        scaler.step(optimizer, **loss_of(name))
        scaler.update()
    assert same_bits(snapshot(optimizer), snapshot(other))


# One of each kind; compiling takes seconds.
@pytest.mark.parametrize(
    "name", ["SM3", "SPS", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("DeltaSGD", "FedAdam"))]
)
def test_inside_a_compiled_function(name: str) -> None:
    """A training step as a whole, and the optimizer's step alone: the bits of the one that is not compiled."""
    shots = []
    for how in ("plain", "whole", "step"):
        torch.compiler.reset()
        params = parameters()[:3]
        optimizer = MAKERS[name](params)

        def train(step: Tensor, params: Any = params, optimizer: Any = optimizer, how: str = how) -> None:
            sum((p.sin() * step).sum() for p in params).backward()
            if how != "step":
                optimizer.step(**loss_of(name))
                optimizer.zero_grad()

        work = torch.compile(train, backend="aot_eager") if how == "whole" else train
        take = torch.compile(optimizer.step, backend="aot_eager") if how == "step" else None
        for step in range(3):
            work(torch.tensor(1.0 + step))
            if take is not None:
                take(**loss_of(name))
                optimizer.zero_grad()
        shots.append(snapshot(optimizer))
    assert same_bits(shots[0], shots[2])
    for plain, compiled in zip(shots[0], shots[1], strict=True):
        torch.testing.assert_close(plain["x"], compiled["x"])


def test_autograd_notices_that_parameters_have_changed() -> None:
    p = nn.Parameter(torch.ones(3))
    optimizer = ff.optim.FedAvg([p], lr=0.1)
    loss = (p * p).sum()
    p.grad = torch.ones(3)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# ---- tensors of any kind --------------------------------------------------------------------------------------------


@every_optimizer
def test_any_strides(name: str) -> None:
    """Transposed parameters and gradients, channels last, gradients of another dtype: the bits of plain ones."""
    plain = [nn.Parameter(t) for t in normals(0, shapes=[(4, 6), (2, 3, 5, 4), (9,)])]
    odd = [
        nn.Parameter(plain[0].detach().t().contiguous().t()),
        nn.Parameter(plain[1].detach().clone(memory_format=torch.channels_last)),
        nn.Parameter(plain[2].detach().clone()),
    ]
    optimizer, other = MAKERS[name](plain), MAKERS[name](odd)
    for step in range(3):
        grads = normals(100 + step, shapes=[(4, 6), (2, 3, 5, 4), (9,)])
        give(plain, grads)
        give(odd, grads)
        odd[2].grad = torch.stack([grads[2], grads[2]], 1)[:, 0]
        optimizer.step(**loss_of(name))
        other.step(**loss_of(name))
    assert not odd[0].is_contiguous()
    found, wanted = snapshot(other), snapshot(optimizer)
    if name in ("DeltaSGD", "SPS"):  # their norms are summed in another order
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a["x"], b["x"])
    else:
        assert same_bits(found, wanted)


@every_optimizer
def test_float32_and_float64_in_one_group(name: str) -> None:
    params = [*parameters()[:3], *parameters(torch.float64)[3:]]
    optimizer = MAKERS[name](params)
    for step in range(2):
        give(params, [gradients(step, p.dtype)[i] for i, p in enumerate(params)])
        optimizer.step(**loss_of(name))
    if name not in ("DeltaSGD", "SPS"):
        single, double = run(MAKERS[name], 2), run(MAKERS[name], 2, torch.float64)
        assert same_bits(snapshot(optimizer), [*single[:3], *double[3:]])


LARGE = [(300, 500), (70_001,), (3,), (64, 32, 3, 3), (40_000,)]


@every_optimizer
def test_any_number_of_threads(name: str) -> None:
    found = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        params = [nn.Parameter(t) for t in normals(0, shapes=LARGE)]
        optimizer = MAKERS[name](params)
        for step in range(2):
            give(params, normals(step + 1, shapes=LARGE))
            optimizer.step(**loss_of(name))
        found.append(snapshot(optimizer))
    torch.set_num_threads(2)
    assert same_bits(found[0], found[1])
    assert same_bits(found[0], found[2])


@every_optimizer
def test_all_tensors_in_one_call(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled kernel is called once for all of them (twice where a norm comes first), and refuses nothing."""
    if registry.pick(None, torch.ones(1)).name != "cpp":
        pytest.skip("the compiled extension is not the backend here")
    core, answers = extension.load(), []
    for kernel in ("gradient_parts", "covered_parts", "squares_of_parts", "move_parts"):
        whole = getattr(core, kernel)
        monkeypatch.setattr(core, kernel, lambda *given, whole=whole: answers.append(whole(*given)) or answers[-1])
    params = parameters()
    optimizer = MAKERS[name](params)
    go_on(optimizer, params, range(1), **loss_of(name))
    assert len(answers) == (2 if name in ("DeltaSGD", "SPS") else 1)
    assert all(answer is not None and answer is not False for answer in answers)
