"""Independent oracles: torch.optim, optax and the literal loops of ``literal.py``, against every backend.

An oracle runs in float32 and in float64 on the same numbers. A backend may err from the float64 run by twice what the
oracle's float32 run does (``support.py``); where it computes in float64 itself, the two agree to rounding.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fastfed as ff
from fastfed import kernels

from . import literal
from .cases import SERVER_OPTIONS
from .support import RANKS, SLOW, assert_runs_close, axis_sets, normal, packed_normal

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what jax deprecates while it is imported is not ours
    import jax
    import optax

SM3_STEPS = 5 if SLOW else 7  # two refreshes at least, with a delay of 3
D = 261  # odd; long enough for a vector loop and its remainder, short enough for loops in Python
FLOAT64_BACKENDS = ("reference", "cpp")
NUMPY = {torch.float32: np.float32, torch.float64: np.float64}
Snapshots = list[dict[str, Tensor]]
Run = Callable[[torch.dtype], Snapshots]


def agree(backend: str, run: Callable[[str, torch.dtype], Snapshots], oracle: Run) -> Snapshots:
    """Holds every tensor that the oracle exposes against the backend's, after every step; the float64 oracle."""
    plain, exact = oracle(torch.float32), oracle(torch.float64)
    exposed = [{name: t for name, t in shot.items() if name != "binds"} for shot in exact]
    assert_runs_close(run(backend, torch.float32), plain, exposed, exact[0]["x"])
    if backend in FLOAT64_BACKENDS:
        for g, e in zip(run(backend, torch.float64), exposed, strict=True):
            for name in e:
                torch.testing.assert_close(g[name], e[name], rtol=1e-11, atol=1e-13)
    return exact


def seed_of(name: str) -> int:
    return zlib.crc32(name.encode())


def gradients(name: str, steps: int, d: int = D) -> list[Tensor]:
    """Float32 gradients of very different size from one coordinate to the next."""
    scale = torch.exp(normal(seed_of(name) + 1, d))
    return [normal(seed_of(name) + 2 + step, d) * scale for step in range(steps)]


def start(name: str, dtype: torch.dtype, d: int = D) -> Tensor:
    return normal(seed_of(name), d, dtype=dtype)


def snapshot(x: Tensor, state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"x": x.clone(), **{name: tensor.clone() for name, tensor in state.items()}}


def tensors(snapshots: literal.Snapshots) -> Snapshots:
    return [{name: torch.as_tensor(value) for name, value in shot.items()} for shot in snapshots]


def arrays(vectors: list[Tensor], dtype: torch.dtype) -> list[Any]:
    return [vector.numpy().astype(NUMPY[dtype]) for vector in vectors]


def client_run(
    rule: str,
    x0: Tensor,
    grads: list[Tensor],
    options: dict[str, Any],
    made: dict[str, Any] | None = None,
    each: Callable[[int, torch.dtype], dict[str, Any]] | None = None,
) -> Callable[[str, torch.dtype], Snapshots]:
    """A run of `client_step`; `each` gives the arguments that change from step to step."""

    def run(backend: str, dtype: torch.dtype) -> Snapshots:
        x = x0.to(dtype)
        x = x.clone() if x is x0 else x
        state = kernels.client_state(rule, x, **(made or {}))
        shots = []
        for step, g in enumerate(grads):
            given = options if each is None else {**options, **each(step, dtype)}
            kernels.client_step(rule, x, g.to(dtype), state, backend=backend, **given)
            shots.append(snapshot(x, state))
        return shots

    return run


def server_run(
    rule: str,
    x0: Tensor,
    deltas: list[Tensor],
    options: dict[str, Any],
    made: dict[str, Any],
    each: Callable[[int], dict[str, Any]] | None = None,
    prepare: Callable[[dict[str, Tensor]], None] | None = None,
) -> Callable[[str, torch.dtype], Snapshots]:
    """A run of `server_step`; `prepare` changes the state before the first."""

    def run(backend: str, dtype: torch.dtype) -> Snapshots:
        x = x0.to(dtype)
        x = x.clone() if x is x0 else x
        state = kernels.server_state(rule, x, **made)
        if prepare is not None:
            prepare(state)
        shots = []
        for step, delta in enumerate(deltas):
            given = options if each is None else {**options, **each(step)}
            kernels.server_step(rule, x, delta.to(dtype), state, backend=backend, **given)
            shots.append(snapshot(x, state))
        return shots

    return run


# ---- torch.optim ----------------------------------------------------------------------------------------------------


def torch_run(
    make: Callable[..., torch.optim.Optimizer],
    x0: Tensor,
    grads: list[Tensor],
    options: dict[str, Any],
    exposed: dict[str, str],
    flip: bool = False,
) -> Run:
    """A run of a torch optimizer; `exposed` maps our names of state to theirs. With `flip` m has the delta's sign."""

    def run(dtype: torch.dtype) -> Snapshots:
        x = torch.nn.Parameter(x0.to(dtype).clone())
        optimizer = make([x], foreach=False, **options)
        shots = []
        for g in grads:
            x.grad = g.to(dtype).clone()
            optimizer.step()
            state = {ours: optimizer.state[x][theirs] for ours, theirs in exposed.items()}
            if flip and "m" in state:
                state["m"] = -state["m"]
            shots.append(snapshot(x.detach(), state))
        return shots

    return run


@pytest.mark.parametrize("weight_decay", [0.0, 0.07])
def test_client_adam_is_torchs(backend: str, weight_decay: float) -> None:
    grads, x = gradients("adam", 6), start("adam", torch.float32)
    theirs = {"lr": 0.03, "betas": (0.8, 0.95), "eps": 1e-4, "weight_decay": weight_decay}
    ours = {"lr": 0.03, "beta1": 0.8, "beta2": 0.95, "eps": 1e-4, "weight_decay": weight_decay}
    oracle = torch_run(torch.optim.Adam, x, grads, theirs, {"m": "exp_avg", "v": "exp_avg_sq"})
    agree(backend, client_run("adam", x, grads, ours), oracle)


@pytest.mark.parametrize("weight_decay", [0.0, 0.07])
def test_client_adagrad_is_torchs(backend: str, weight_decay: float) -> None:
    grads, x = gradients("adagrad", 6), start("adagrad", torch.float32)
    options = {"lr": 0.2, "eps": 1e-5, "weight_decay": weight_decay}
    oracle = torch_run(torch.optim.Adagrad, x, grads, options, {"v": "sum"})
    agree(backend, client_run("adagrad", x, grads, options), oracle)


@pytest.mark.parametrize("weight_decay", [0.0, 0.07])
@pytest.mark.parametrize("momentum", [None, 0.7])
def test_client_sgd_is_torchs(backend: str, momentum: float | None, weight_decay: float) -> None:
    grads, x = gradients("sgd", 6), start("sgd", torch.float32)
    options = {"lr": 0.1, "weight_decay": weight_decay}
    theirs, ours = ({"momentum": momentum} if momentum else {}), ({"momentum": momentum} if momentum else {})
    exposed = {"m": "momentum_buffer"} if momentum else {}
    oracle = torch_run(torch.optim.SGD, x, grads, {**options, **theirs}, exposed)
    agree(backend, client_run("momentum" if momentum else "sgd", x, grads, {**options, **ours}), oracle)


def test_server_ams_is_torchs_amsgrad(backend: str) -> None:
    """torch keeps the largest *uncorrected* v and corrects it in the denominator: as FedAMS's authors, from v0 = 0."""
    grads, x = gradients("amsgrad", 8), start("amsgrad", torch.float32)
    grads = [g * (0.3 if step % 3 else 1.0) for step, g in enumerate(grads)]  # v falls, so that the maximum matters
    theirs = {"lr": 0.03, "betas": (0.8, 0.9), "eps": 1e-4, "amsgrad": True}
    exposed = {"m": "exp_avg", "v": "exp_avg_sq", "vmax": "max_exp_avg_sq"}
    ours = {"lr": 0.03, "beta1": 0.8, "beta2": 0.9, "tau": 1e-4, "bias_correction": True, "second_moment_of": "delta"}
    made = {"v0": 0.0, "vmax0": 0.0, "bias_correction": True}
    run = server_run("ams", x, [-g for g in grads], ours, made)
    exact = agree(backend, run, torch_run(torch.optim.Adam, x, grads, theirs, exposed, flip=True))
    assert (exact[-1]["vmax"] > exact[-1]["v"]).any()


def test_server_adam_is_torchs(backend: str) -> None:
    """The AFO authors add tau to the uncorrected root: with tau = eps * sqrt(1 - beta2^t) it is torch's Adam."""
    grads, x, beta2, eps = gradients("server adam", 6), start("server adam", torch.float32), 0.95, 1e-3
    theirs = {"lr": 0.03, "betas": (0.8, beta2), "eps": eps}
    ours = {"lr": 0.03, "beta1": 0.8, "beta2": beta2, "bias_correction": True, "second_moment_of": "delta"}
    made = {"v0": 0.0, "bias_correction": True}
    run = server_run(
        "adam", x, [-g for g in grads], ours, made, each=lambda t: {"tau": eps * (1 - beta2 ** (t + 1)) ** 0.5}
    )
    agree(backend, run, torch_run(torch.optim.Adam, x, grads, theirs, {"m": "exp_avg", "v": "exp_avg_sq"}, flip=True))


def test_server_adagrad_is_torchs(backend: str) -> None:
    grads, x = gradients("server adagrad", 6), start("server adagrad", torch.float32)
    theirs = {"lr": 0.2, "eps": 1e-3, "initial_accumulator_value": 0.04}
    run = server_run("adagrad", x, [-g for g in grads], {"lr": 0.2, "tau": 1e-3}, {"v0": 0.04})
    agree(backend, run, torch_run(torch.optim.Adagrad, x, grads, theirs, {"v": "sum"}))


def test_server_momentum_is_torchs_sgd(backend: str) -> None:
    grads, x = gradients("server momentum", 6), start("server momentum", torch.float32)
    theirs = {"lr": 0.3, "momentum": 0.8}
    oracle = torch_run(torch.optim.SGD, x, grads, theirs, {"m": "momentum_buffer"}, flip=True)
    agree(backend, server_run("momentum", x, [-g for g in grads], theirs, {}), oracle)


# ---- optax ----------------------------------------------------------------------------------------------------------


def optax_run(transform: Callable[[], Any], x0: Any, grads: list[Any], expose: Callable[[Any], dict[str, Any]]) -> Run:
    """A run of an optax optimizer over a tree of arrays; `expose` gives x and state from (parameters, its state)."""

    def run(dtype: torch.dtype) -> Snapshots:
        with jax.enable_x64(dtype is torch.float64):
            optimizer = transform()

            def cast(tree: Any) -> Any:
                return jax.tree.map(lambda leaf: jax.numpy.asarray(leaf, dtype=NUMPY[dtype]), tree)

            parameters = cast(x0)
            state, shots = optimizer.init(parameters), []
            for g in grads:
                updates, state = optimizer.update(cast(g), state, parameters)
                parameters = optax.apply_updates(parameters, updates)
                shots.append({k: torch.from_numpy(np.array(v)) for k, v in expose((parameters, state)).items()})
        return shots

    return run


YOGI = {"b1": 0.8, "b2": 0.95, "eps": 1e-2}


@pytest.mark.parametrize("initial", [1e-6, 0.5])  # optax's own default, and one that matters
def test_server_yogi_is_optaxs(backend: str, initial: float) -> None:
    """optax starts m as well as v at `initial`, and adds eps to the *corrected* root: m's start is set by hand, and
    tau = eps * sqrt(1 - b2^t) turns the AFO authors' bias correction into optax's."""
    name, b2 = f"yogi {initial}", YOGI["b2"]
    grads, x = gradients(name, 6), start(name, torch.float32)

    def transform() -> Any:
        if initial == 1e-6:
            return optax.yogi(0.03, **YOGI)
        scale = optax.scale_by_yogi(**YOGI, initial_accumulator_value=initial)
        return optax.chain(scale, optax.scale_by_learning_rate(0.03))

    def expose(reached: Any) -> dict[str, Any]:
        parameters, (adam, _) = reached
        return {"x": parameters, "m": -adam.mu, "v": adam.nu}

    ours = {"lr": 0.03, "beta1": YOGI["b1"], "beta2": b2, "second_moment_of": "delta", "bias_correction": True}
    run = server_run(
        "yogi",
        x,
        [-g for g in grads],
        ours,
        {"v0": initial, "bias_correction": True},
        each=lambda t: {"tau": YOGI["eps"] * (1 - b2 ** (t + 1)) ** 0.5},
        prepare=lambda state: state["m"].fill_(-initial),
    )
    oracle = optax_run(transform, x.numpy(), [g.numpy() for g in grads], expose)
    exact = agree(backend, run, oracle)
    assert (exact[-1]["v"] < exact[0]["v"]).any() or initial == 1e-6  # both signs of v - q were met
    assert (exact[-1]["v"] > exact[0]["v"]).any()


def test_client_sm3_is_optaxs(backend: str) -> None:
    """SM3's reference form: eps inside the root, momentum of the preconditioned gradient. optax knows no rank 0."""
    shapes = {name: shape for name, shape in RANKS.items() if shape}
    packing = ff.Packing.from_shapes(shapes)
    x = packed_normal(packing, seed_of("sm3"))
    grads = [packed_normal(packing, seed_of("sm3") + 1 + step) for step in range(6)]
    grads[3][packing.slots[1].span] = 0.0  # a whole tensor without gradient
    b1, eps = 0.85, 1e-4

    def tree(vector: Tensor) -> dict[str, Any]:
        return {name: view.numpy() for name, view in packing.views(vector).items()}

    def flat(leaves: dict[str, Any], dtype: Any) -> Any:
        vector = np.zeros(packing.size, dtype=dtype)
        for slot in packing.slots:
            vector[slot.span] = np.asarray(leaves[slot.name]).ravel()
        return vector

    def expose(reached: Any) -> dict[str, Any]:
        parameters, (sm3, _) = reached
        dtype = next(iter(parameters.values())).dtype
        mu = np.concatenate([np.asarray(axis).ravel() for slot in packing.slots for axis in sm3.mu[slot.name]])
        return {"x": flat(parameters, dtype), "m": flat(sm3.nu, dtype), "mu": mu}

    def transform() -> Any:
        return optax.chain(optax.scale_by_sm3(b1=b1, eps=eps), optax.scale(-0.1))

    oracle = optax_run(transform, tree(x), [tree(g) for g in grads], expose)
    ours = {"lr": 0.1, "eps": 0.0, "root_eps": eps, "beta1": b1}
    agree(backend, client_run("sm3", x, grads, ours, {"packing": packing, "beta1": b1}), oracle)


def test_client_sm3_is_optaxs_by_its_own_name() -> None:
    """The named optimizer (eps 1e-8), so that a change of optax's defaults is noticed."""
    packing = ff.Packing.from_shapes({"w": (8, 16)})  # no gap: the vector is the matrix
    x, grads = normal(1, 128), [normal(2 + step, 128) for step in range(4)]
    oracle = optax_run(
        lambda: optax.sm3(0.1, momentum=0.6),
        x.view(8, 16).numpy(),
        [g.view(8, 16).numpy() for g in grads],
        lambda reached: {"x": reached[0].ravel()},
    )
    options = {"lr": 0.1, "eps": 0.0, "root_eps": 1e-8, "beta1": 0.6}
    agree("reference", client_run("sm3", x, grads, options, {"packing": packing, "beta1": 0.6}), oracle)


# ---- SM3 over any cover ---------------------------------------------------------------------------------------------

SM3_RULES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {  # rule: form, our options, the loop's
    "sm3": ("II", {"eps": 1e-3}, {"eps": 1e-3}),
    "sm3_1": ("I", {"eps": 1e-3}, {"eps": 1e-3}),
    "sm3_adam": ("II", {"eps": 1e-3, "beta1": 0.8, "beta2": 0.9}, {"eps": 1e-3, "betas": (0.8, 0.9)}),
    "sm3_1_adam": ("I", {"eps": 1e-3, "beta1": 0.8, "beta2": 0.9}, {"eps": 1e-3, "betas": (0.8, 0.9)}),
}
DELAYS = [(1, False), (3, False), (1, True), (3, True)]


def sm3_oracle(x: Tensor, grads: list[Tensor], sets: list[list[int]], **options: Any) -> Run:
    def run(dtype: torch.dtype) -> Snapshots:
        given = dict(options)
        if "anchor" in given:
            given["anchor"] = arrays([given["anchor"]], dtype)[0]
        if "corrections" in given:
            given["corrections"] = arrays(given["corrections"], dtype)
        return tensors(literal.sm3(arrays([x], dtype)[0], arrays(grads, dtype), sets, **given))

    return run


def random_cover(seed: int, d: int, sets: int) -> list[list[int]]:
    """Overlapping sets of random size, in random order; what they miss comes as one more set."""
    draw = np.random.default_rng(seed)
    cover = [draw.choice(d, size=draw.integers(1, d // 2), replace=False).tolist() for _ in range(sets)]
    missed = sorted(set(range(d)) - {j for members in cover for j in members})
    return [*cover, missed] if missed else cover


@pytest.mark.parametrize("rule", SM3_RULES)
@pytest.mark.parametrize(("delay", "exact"), DELAYS)
@pytest.mark.parametrize(("d", "count"), [(1, 1), (23, 3), (40, 15)])
def test_sm3_over_arbitrary_covers(rule: str, delay: int, exact: bool, d: int, count: int) -> None:
    form, ours, theirs = SM3_RULES[rule]
    if exact and form == "I":
        pytest.skip("SM3-I needs no nu: its cover stands still between refreshes")
    name = f"{rule} {delay} {d}"
    cover = random_cover(seed_of(name), d, count) if d > 1 else [[0]]
    x, grads = start(name, torch.float32, d), gradients(name, 7, d)
    made = {"cover": cover, **({"delay_mode": "exact"} if exact else {})}
    oracle = sm3_oracle(x, grads, cover, lr=0.1, form=form, delay=delay, exact=exact, **theirs)
    agree("reference", client_run(rule, x, grads, {"lr": 0.1, "delay": delay, **ours}, made), oracle)


@pytest.mark.parametrize("rule", ["sm3", "sm3_1_adam"])
def test_sm3_starts_a_set_at_the_largest_v0_inside(rule: str) -> None:
    form, ours, theirs = SM3_RULES[rule]
    d, name = 30, f"v0 {rule}"
    cover, v0 = random_cover(seed_of(name), d, 6), normal(3, d).square()
    x, grads = start(name, torch.float32, d), gradients(name, 4, d)

    def run(backend: str, dtype: torch.dtype) -> Snapshots:
        made = {"cover": cover, "v0": v0.to(dtype)}
        return client_run(rule, x, grads, {"lr": 0.1, **ours}, made)(backend, dtype)

    oracle = sm3_oracle(x, grads, cover, lr=0.1, form=form, v0=v0.numpy(), **theirs)
    agree("reference", run, oracle)


@pytest.mark.parametrize("rule", SM3_RULES)
@pytest.mark.parametrize(("delay", "exact"), DELAYS)
def test_sm3_over_the_axes_of_packed_tensors(backend: str, rule: str, delay: int, exact: bool) -> None:
    form, ours, theirs = SM3_RULES[rule]
    if exact and form == "I":
        pytest.skip("SM3-I needs no nu: its cover stands still between refreshes")
    packing = ff.Packing.from_shapes(RANKS)
    seed = seed_of(f"axes {rule} {delay}")
    x = packed_normal(packing, seed)
    grads = [packed_normal(packing, seed + 1 + step) for step in range(SM3_STEPS)]
    made = {"packing": packing, **({"delay_mode": "exact"} if exact else {})}
    oracle = sm3_oracle(x, grads, axis_sets(packing), lr=0.1, form=form, delay=delay, exact=exact, **theirs)
    agree(backend, client_run(rule, x, grads, {"lr": 0.1, "delay": delay, **ours}, made), oracle)


@pytest.mark.parametrize("rule", SM3_RULES)
def test_sm3_with_corrections_and_floor(backend: str, rule: str) -> None:
    form, ours, theirs = SM3_RULES[rule]
    packing = ff.Packing.from_shapes(RANKS)
    seed = seed_of(f"around {rule}")
    x, anchor = packed_normal(packing, seed), packed_normal(packing, seed + 1)
    grads, corrections = tiny_now_and_then(
        [packed_normal(packing, seed + 2 + step) for step in range(6)],
        [packed_normal(packing, seed + 20 + step) * 0.1 for step in range(6)],
    )
    # No decay and no pull: a tiny gradient must stay tiny. The floor lies between tiny and usual directions.
    shared = {"lr": 0.1, "clip": 3.0, "floor": 1.0}
    if "betas" in theirs:  # a first moment that forgets quickly, or the floor would have nothing to take away
        ours, theirs = {**ours, "beta1": 0.2}, {**theirs, "betas": (0.2, theirs["betas"][1])}
    oracle = sm3_oracle(x, grads, axis_sets(packing), form=form, corrections=corrections, **shared, **theirs)

    def each(step: int, dtype: torch.dtype) -> dict[str, Any]:
        return {"correction": corrections[step].to(dtype)}

    exact = agree(backend, client_run(rule, x, grads, {**shared, **ours}, {"packing": packing}, each), oracle)
    assert_floored_sometimes(x, exact)

    pulled = {"lr": 0.1, "clip": 3.0, "prox": 0.3, "weight_decay": 0.05}
    oracle = sm3_oracle(x, grads, axis_sets(packing), form=form, anchor=anchor, **pulled, **theirs)
    run = client_run(
        rule, x, grads, {**pulled, **ours}, {"packing": packing}, lambda _, dtype: {"anchor": anchor.to(dtype)}
    )
    agree(backend, run, oracle)


# ---- client rules, literally ----------------------------------------------------------------------------------------

TINY_STEPS = (2, 3)  # counted from 0: not the first, where every coordinate of adagrad moves by lr


def tiny_now_and_then(*sequences: list[Tensor]) -> list[list[Tensor]]:
    """The same vectors, shrunk at a few steps so far that an update floor must take them away."""
    return [[v * 1e-4 if step in TINY_STEPS else v for step, v in enumerate(vectors)] for vectors in sequences]


def assert_floored_sometimes(x0: Tensor, exact: Snapshots) -> None:
    before = x0.double()
    moved = []
    for shot in exact:
        moved.append(not torch.equal(shot["x"], before))
        before = shot["x"]
    assert any(moved), "the floor took every step away"
    assert not all(moved), "the floor took no step away"


ADAPTIVE: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "adagrad": (literal.agdu, {"lr": 0.1, "eps": 1e-3}),
    "adam": (literal.admu, {"lr": 0.03, "beta1": 0.5, "beta2": 0.9, "eps": 1e-3}),
}


@pytest.mark.parametrize("rule", ADAPTIVE)
@pytest.mark.parametrize("delay", [1, 2, 3])
@pytest.mark.parametrize("v0", [0.0, 0.3])
def test_delayed_second_moments(backend: str, rule: str, delay: int, v0: float) -> None:
    loop, options = ADAPTIVE[rule]
    name = f"delay {rule} {delay} {v0}"
    x, grads = start(name, torch.float32), gradients(name, 7)

    def oracle(dtype: torch.dtype) -> Snapshots:
        return tensors(loop(arrays([x], dtype)[0], arrays(grads, dtype), delay=delay, v0=v0, **options))

    agree(backend, client_run(rule, x, grads, {**options, "delay": delay}, {"v0": v0}), oracle)


def test_delay_counted_in_epochs(backend: str) -> None:
    name, epochs = "epochs", [1, 1, 2, 2, 3, 3, 4]
    loop, options = ADAPTIVE["adam"]
    x, grads = start(name, torch.float32), gradients(name, len(epochs))

    def oracle(dtype: torch.dtype) -> Snapshots:
        return tensors(loop(arrays([x], dtype)[0], arrays(grads, dtype), delay=2, epochs=epochs, **options))

    run = client_run("adam", x, grads, {**options, "delay": 2}, each=lambda step, _: {"epoch": epochs[step]})
    agree(backend, run, oracle)


@pytest.mark.parametrize("rule", ADAPTIVE)
def test_update_floor(backend: str, rule: str) -> None:
    loop, options = ADAPTIVE[rule]
    name = f"floor {rule}"
    x = start(name, torch.float32)
    (grads,) = tiny_now_and_then(gradients(name, 6))
    usual = float(np.sqrt(D))  # the norm of a direction whose entries are about 1
    floor = {"adagrad": 0.1, "adam": 0.6}[rule] * usual  # adam's m forgets slowly

    def oracle(dtype: torch.dtype) -> Snapshots:
        return tensors(loop(arrays([x], dtype)[0], arrays(grads, dtype), floor=floor, **options))

    assert_floored_sometimes(x, agree(backend, client_run(rule, x, grads, {**options, "floor": floor}), oracle))


def around(name: str) -> dict[str, Any]:
    """FedProx, SCAFFOLD, weight decay and a clipping norm that binds at some steps only."""
    return {
        "weight_decay": 0.05,
        "prox": 0.3,
        "clip": 25.0,
        "anchor": normal(seed_of(name) + 100, D),
        "corrections": [normal(seed_of(name) + 101 + step, D) * 0.3 for step in range(6)],
    }


CORRECTED: dict[str, tuple[Callable[..., Any], dict[str, Any], dict[str, Any]]] = {  # rule: loop, its options, ours
    "sgd": (literal.sgd, {"lr": 0.1}, {"lr": 0.1}),
    "momentum": (literal.sgd, {"lr": 0.1, "momentum": 0.7}, {"lr": 0.1, "momentum": 0.7}),
    "adagrad": (literal.agdu, *[ADAPTIVE["adagrad"][1]] * 2),
    "adam": (literal.admu, *[ADAPTIVE["adam"][1]] * 2),
    "delta_sgd": (literal.delta_sgd, *[{"lr": 0.05, "gamma": 1.5, "delta": 0.2}] * 2),
    "sps": (literal.sps, *[{"c": 0.7, "f_star": 0.2, "lr_max": 0.3}] * 2),
}


def test_every_client_rule_has_an_oracle() -> None:
    assert CORRECTED.keys() | SM3_RULES.keys() == kernels.CLIENT_RULES.keys()


@pytest.mark.parametrize("rule", CORRECTED)
def test_corrections_come_before_the_rule_and_clipping_last(backend: str, rule: str) -> None:
    loop, theirs, ours = CORRECTED[rule]
    name = f"around {rule}"
    x, grads = start(name, torch.float32), gradients(name, 6)
    grads = [g * (0.1 if step % 2 else 2.0) for step, g in enumerate(grads)]
    extra, losses = around(name), [40.0, 0.9, 90.0, 2.0, 300.0, 1.2]
    positional = {"sps": (losses,)}.get(rule, ())
    numbers = {key: value for key, value in extra.items() if isinstance(value, float)}

    def oracle(dtype: torch.dtype) -> Snapshots:
        vectors = {"anchor": arrays([extra["anchor"]], dtype)[0], "corrections": arrays(extra["corrections"], dtype)}
        first = arrays([x], dtype)[0]
        return tensors(loop(first, arrays(grads, dtype), *positional, **numbers, **vectors, **theirs))

    def each(step: int, dtype: torch.dtype) -> dict[str, Any]:
        given = {"anchor": extra["anchor"].to(dtype), "correction": extra["corrections"][step].to(dtype)}
        return {**given, "loss": losses[step]} if rule == "sps" else given

    agree(backend, client_run(rule, x, grads, {**numbers, **ours}, each=each), oracle)
    free = corrected_norms(x, grads, extra)
    assert min(free) < extra["clip"] < max(free)


def corrected_norms(x: Tensor, grads: list[Tensor], extra: dict[str, Any]) -> list[float]:
    """Norms that clipping meets if x hardly moves: a check that the case exercises both sides."""
    pulled = [
        g + extra["weight_decay"] * x + extra["prox"] * (x - extra["anchor"]) + c
        for g, c in zip(grads, extra["corrections"], strict=True)
    ]
    return [float(v.norm()) for v in pulled]


def test_the_four_corrections_in_one_coordinate() -> None:
    """By hand: g = 1 + 0.5*2 (decay) + 0.25*(2 - 4) (prox) + 0.5 (correction) = 2, clipped to 1, step 0.5: 2 - 0.5."""
    x = torch.tensor([2.0])
    kernels.client_step(
        "sgd",
        x,
        torch.tensor([1.0]),
        {},
        lr=0.5,
        weight_decay=0.5,
        prox=0.25,
        anchor=torch.tensor([4.0]),
        correction=torch.tensor([0.5]),
        clip=1.0,
        backend="reference",
    )
    assert x.item() == 1.5


# ---- Delta-SGD and SPS ----------------------------------------------------------------------------------------------


def restless_and_calm(name: str, steps: int) -> list[Tensor]:
    """Gradients that change by much, then hardly, then not at all, then vanish: every branch of Delta-SGD's rule."""
    base = normal(seed_of(name), D)
    grads = [base + (2.0 if step % 3 == 1 else 0.02) * normal(seed_of(name) + 1 + step, D) for step in range(steps)]
    return [*grads, grads[-1].clone(), torch.zeros(D), torch.zeros(D), *grads[:2]]


@pytest.mark.parametrize(
    "options",
    [
        {"lr": 0.2},  # the paper's settings
        {"lr": 0.05, "gamma": 1.5, "delta": 0.3, "theta": 0.6},
        {"lr": 0.05, "grow_first": True, "lr_eps": 1e-3},  # the authors' code, with an epsilon that can be seen
    ],
    ids=["paper", "other", "authors"],
)
def test_delta_sgd(backend: str, options: dict[str, Any]) -> None:
    name = f"delta_sgd {sorted(options)}"
    x, grads = start(name, torch.float32), restless_and_calm(name, 7)

    def oracle(dtype: torch.dtype) -> Snapshots:
        return tensors(literal.delta_sgd(arrays([x], dtype)[0], arrays(grads, dtype), **options))

    exact = agree(backend, client_run("delta_sgd", x, grads, options), oracle)
    assert {int(shot["binds"]) for shot in exact} >= {1, 2}


def test_delta_sgd_on_the_same_batch(backend: str) -> None:
    """The authors' code: the previous gradient is evaluated again, on the current batch."""
    name = "same batch"
    x, grads = start(name, torch.float32), gradients(name, 6)
    previous = [g + (0.3, 9.0)[step % 2] * normal(seed_of(name) + 50 + step, D) for step, g in enumerate(grads)]
    options = {"lr": 0.05, "gamma": 1.5}

    def oracle(dtype: torch.dtype) -> Snapshots:
        again = arrays(previous, dtype)
        return tensors(literal.delta_sgd(arrays([x], dtype)[0], arrays(grads, dtype), previous=again, **options))

    def each(step: int, dtype: torch.dtype) -> dict[str, Any]:
        return {"previous_grad": previous[step].to(dtype)}

    run = client_run("delta_sgd", x, grads, options, {"same_batch": True}, each)
    exact = agree(backend, run, oracle)
    assert {int(shot["binds"]) for shot in exact} >= {1, 2}


def test_sps(backend: str) -> None:
    name = "sps"
    x, grads = start(name, torch.float32), gradients(name, 6)
    losses = [300.0, 2.5, 1e4, 0.9, 150.0, 3.0]
    options = {"c": 0.7, "f_star": 0.2, "lr_max": 0.3}

    def oracle(dtype: torch.dtype) -> Snapshots:
        return tensors(literal.sps(arrays([x], dtype)[0], arrays(grads, dtype), losses, **options))

    exact = agree(backend, client_run("sps", x, grads, options, each=lambda step, _: {"loss": losses[step]}), oracle)
    assert {int(shot["binds"]) for shot in exact} == {1, 2}


def test_sps_defaults(backend: str) -> None:
    """By hand, with f_star = 0 and c = 0.5: lr = loss / (c * ||g||^2) = 4 / (0.5 * 16) = 0.5."""
    x = torch.zeros(4)
    state = kernels.client_state("sps", x)
    kernels.client_step("sps", x, torch.full((4,), 2.0), state, loss=4.0, backend=backend)
    assert x.tolist() == [-1.0] * 4
    assert state["lr"].item() == 0.5


# ---- server rules, literally ----------------------------------------------------------------------------------------


def server_options(rule: str) -> dict[str, Any]:
    """The options of the rule's cases, and a first moment where it may have one."""
    usual = {"beta1": 0.4} if "beta1" in kernels.SERVER_RULES[rule].options else {}
    return {**usual, **SERVER_OPTIONS[rule]}


def server_agrees(backend: str, rule: str, options: dict[str, Any], made: dict[str, Any], **theirs: Any) -> Snapshots:
    name = f"server {rule} {sorted(options)} {sorted(made)}"
    x, deltas = start(name, torch.float32), gradients(name, 6)
    deltas = [d * (0.3 if step % 3 else 1.0) for step, d in enumerate(deltas)]

    def oracle(dtype: torch.dtype) -> Snapshots:
        return tensors(literal.server(rule, arrays([x], dtype)[0], arrays(deltas, dtype), **options, **theirs))

    return agree(backend, server_run(rule, x, deltas, options, made), oracle)


@pytest.mark.parametrize("followed", ["momentum", "delta"])
@pytest.mark.parametrize("v0", [None, 0.0, 0.5])
@pytest.mark.parametrize("rule", kernels.SERVER_RULES)
def test_server_rules(backend: str, rule: str, followed: str, v0: float | None) -> None:
    """Every rule of the table: one without an oracle fails here."""
    options = server_options(rule)
    if "v" not in kernels.SERVER_RULES[rule].moments:
        if v0 is not None or followed == "delta":
            pytest.skip("keeps no second moment")
        server_agrees(backend, rule, options, {"beta1": options["beta1"]} if "beta1" in options else {})
        return
    options = {**options, "second_moment_of": followed}
    made = {"tau": options["tau"], "beta1": options["beta1"], **({} if v0 is None else {"v0": v0})}
    server_agrees(backend, rule, options, made, v0=v0)


@pytest.mark.parametrize("followed", ["momentum", "delta"])
@pytest.mark.parametrize("rule", ["adam", "yogi", "ams"])
def test_authors_bias_corrections(backend: str, rule: str, followed: str) -> None:
    options = {**server_options(rule), "second_moment_of": followed, "bias_correction": True}
    start_at = {"v0": 0.0, **({"vmax0": 1e-3} if rule == "ams" else {})}
    server_agrees(backend, rule, options, {"bias_correction": True, **start_at}, **start_at)


@pytest.mark.parametrize(
    ("rule", "papers"),
    [
        ("sgd", {"lr": 1.0}),
        ("momentum", {"lr": 1.0, "momentum": 0.9}),
        ("adagrad", {"beta1": 0.0, "tau": 1e-3, "second_moment_of": "momentum"}),
        ("adam", {"beta1": 0.9, "beta2": 0.99, "tau": 1e-3, "second_moment_of": "momentum"}),
        ("yogi", {"beta1": 0.9, "beta2": 0.99, "tau": 1e-3, "second_moment_of": "momentum"}),
        ("ams", {"beta1": 0.9, "beta2": 0.99, "tau": 1e-3, "second_moment_of": "delta"}),
    ],
)
def test_the_paper_is_the_default(rule: str, papers: dict[str, Any]) -> None:
    """Nothing set but the learning rate where there is no default: the settings of AFO and, for ams, of CC."""
    lr = {} if "lr" in papers else {"lr": 0.1}
    x, deltas = start(rule, torch.float64), [d.double() for d in gradients(rule, 4)]
    loop = literal.server(rule, x.numpy(), [d.numpy() for d in deltas], **papers, **lr)
    got = server_run(rule, x, deltas, lr, {})("reference", torch.float64)
    for g, e in zip(got, tensors(loop), strict=True):
        for name in g:
            torch.testing.assert_close(g[name], e[name], rtol=1e-12, atol=1e-14)
