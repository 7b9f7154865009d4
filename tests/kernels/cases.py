"""The table of cases: rule x options x shape x steps. Every backend runs all of it; a new rule is a new row."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import fastfed as ff
from fastfed.kernels import CLIENT_RULES, SERVER_RULES

Snapshot = dict[str, Tensor]
BIG = 1_000_003  # not a multiple of anything a kernel could like
SHAPES = {  # every rank that SM3 tells apart, odd sizes, a singleton axis, a wide and a tall matrix
    "scalar": (),
    "bias": (7,),
    "matrix": (5, 9),
    "wide": (3, 1025),
    "tall": (70, 4),
    "cube": (3, 4, 5),
    "conv": (6, 1, 3, 3),
    "aligned": (16, 64),
}


@dataclass(frozen=True)
class ServerCase:
    rule: str
    d: int = 4097
    options: dict[str, Any] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    steps: int = 4
    delta_dtype: torch.dtype = torch.float32
    clients: int | None = None  # a number: aggregate_step on that many deltas

    @property
    def id(self) -> str:
        return _name(self.rule, self.d, self.clients, {**self.options, **self.state}, str(self.delta_dtype)[6:])


@dataclass(frozen=True)
class ClientCase:
    rule: str
    d: int | None = 4097  # None: the tensors of SHAPES, packed
    options: dict[str, Any] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    steps: int = 4
    clients: int | None = None  # None: one vector (d,)
    extras: frozenset[str] = frozenset()

    @property
    def id(self) -> str:
        return _name(self.rule, self.d or "shapes", self.clients, {**self.options, **self.state}, *sorted(self.extras))


def _name(*parts: object) -> str:
    words = []
    for part in parts:
        if isinstance(part, dict):
            words += [f"{key}={value}" for key, value in part.items()]
        elif part is not None:
            words.append(str(part))
    return "-".join(words)


# The options that a rule's cases have, no default among them: one row for every rule of the table.
SERVER_OPTIONS: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.7},
    "momentum": {"lr": 0.3, "momentum": 0.8},
    "adagrad": {"lr": 0.05, "tau": 1e-2},
    "adam": {"lr": 0.03, "beta1": 0.8, "beta2": 0.95, "tau": 1e-2},
    "yogi": {"lr": 0.03, "beta1": 0.8, "beta2": 0.95, "tau": 1e-2},
    "ams": {"lr": 0.03, "beta1": 0.8, "beta2": 0.95, "tau": 1e-2},
}
CLIENT_OPTIONS: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.1},
    "momentum": {"lr": 0.1, "momentum": 0.7},
    "adagrad": {"lr": 0.1, "eps": 1e-3},
    "adam": {"lr": 0.02, "beta1": 0.8, "beta2": 0.95, "eps": 1e-3},
    "sm3": {"lr": 0.1, "eps": 1e-3},
    "sm3_1": {"lr": 0.1, "eps": 1e-3},
    "sm3_adam": {"lr": 0.02, "beta1": 0.8, "beta2": 0.95, "eps": 1e-3},
    "sm3_1_adam": {"lr": 0.02, "beta1": 0.8, "beta2": 0.95, "eps": 1e-3},
    "delta_sgd": {"lr": 0.05, "gamma": 1.5, "delta": 0.2},
    "sps": {"c": 0.7, "f_star": 0.1, "lr_max": 0.4},
}


def _server_cases() -> list[ServerCase]:
    state = {rule: {"tau": o["tau"]} if "tau" in o else {} for rule, o in SERVER_OPTIONS.items()}
    cases = [
        ServerCase(rule, d, o, state[rule], steps=2 if d == BIG else 4)
        for rule, o in SERVER_OPTIONS.items()
        for d in (1, 7, 4097, BIG)
    ]
    for rule in (name for name, entry in SERVER_RULES.items() if "v" in entry.moments):
        for followed in ("momentum", "delta"):
            chosen = {**SERVER_OPTIONS[rule], "beta1": 0.6, "second_moment_of": followed}
            cases.append(ServerCase(rule, 257, chosen, {**state[rule], "beta1": 0.6}))
        cases.append(ServerCase(rule, 257, SERVER_OPTIONS[rule], {**state[rule], "v0": 0.5}))
        cases.append(ServerCase(rule, 257, {**SERVER_OPTIONS[rule], "beta1": 0.0}, {**state[rule], "beta1": 0.0}))
    for rule in (name for name, entry in SERVER_RULES.items() if "bias_correction" in entry.options):
        chosen = {**SERVER_OPTIONS[rule], "bias_correction": True}
        extra = {"vmax0": 1e-3} if "vmax" in SERVER_RULES[rule].moments else {}
        cases.append(ServerCase(rule, 257, chosen, {**state[rule], "v0": 0.0, "bias_correction": True, **extra}, 6))
        as_torch = {**state[rule], "bias_correction": True, "eps": "torch"}
        cases.append(ServerCase(rule, 257, {**chosen, "eps": "torch"}, as_torch, 6))
        cases.append(ServerCase(rule, 130, {**chosen, "eps": "torch"}, as_torch, 3, clients=5))
    for rule in (name for name, entry in SERVER_RULES.items() if "eps" in entry.options):
        as_torch = {"eps": "torch", "second_moment_of": "momentum"}
        cases.append(ServerCase(rule, 257, {**SERVER_OPTIONS[rule], **as_torch}, {**state[rule], "eps": "torch"}))
    for rule, o in SERVER_OPTIONS.items():
        cases += [ServerCase(rule, 513, o, state[rule], 3, dtype) for dtype in (torch.bfloat16, torch.float16)]
        for clients, d in ((1, 7), (5, 4097), (64, 130)):
            cases.append(ServerCase(rule, d, o, state[rule], 3, clients=clients))
    cases += [
        ServerCase("adam", 1030, SERVER_OPTIONS["adam"], state["adam"], 3, t, 9)
        for t in (torch.bfloat16, torch.float16)
    ]
    cases.append(ServerCase("yogi", BIG, SERVER_OPTIONS["yogi"], state["yogi"], 2, clients=3))
    return cases


def _client_cases() -> list[ClientCase]:
    corrected = {"weight_decay": 0.03, "prox": 0.2, "clip": 2.0}
    cases = []
    for rule, o in CLIENT_OPTIONS.items():
        covered = CLIENT_RULES[rule].cover is not None
        sizes = (None,) if covered else (1, 7, 4097, BIG)
        cases += [ClientCase(rule, d, o, steps=2 if d == BIG else 4) for d in sizes]
        shape = None if covered else 331
        cases.append(ClientCase(rule, shape, {**o, "weight_decay": 0.05}))
        cases.append(ClientCase(rule, shape, {**o, **corrected}, extras=frozenset({"anchor", "correction"})))
        batch = frozenset({"anchor", "correction", "finished"} | ({"lr"} if "lr" in o else set()))
        alone = {key: value for key, value in o.items() if key != "lr"}
        cases.append(ClientCase(rule, shape, {**alone, **corrected}, steps=3, clients=3, extras=batch))
        cases.append(ClientCase(rule, shape, {**o, "clip": 1.5}, steps=2, clients=2, extras=frozenset({"correction"})))
    for rule, entry in CLIENT_RULES.items():
        if not entry.has_second_moment:
            continue
        o, shape = CLIENT_OPTIONS[rule], 331 if entry.cover is None else None
        cases.append(ClientCase(rule, shape, {**o, "delay": 3}, steps=5))
        cases.append(ClientCase(rule, shape, {**o, "delay": 2}, steps=4, clients=3, extras=frozenset({"finished"})))
        cases.append(ClientCase(rule, shape, {**o, "delay": 2}, steps=5, extras=frozenset({"epoch"})))
        quick = {**o, "beta1": 0.01} if "beta1" in o else o  # a momentum that forgets, or no step is below the floor
        cases.append(ClientCase(rule, shape, {**quick, "floor": 5.0}, steps=3, clients=3, extras=frozenset({"small"})))
        cases.append(ClientCase(rule, shape, o, {"v0": 0.3}))
        if entry.corrects_bias:
            for counted in (7.0, math.inf):
                cases.append(ClientCase(rule, shape, {**o, "bias_from": counted, "delay": 2}, {"v0": 0.3}))
    for rule in ("sm3", "sm3_adam"):
        chosen = {**CLIENT_OPTIONS[rule], "delay": 3}
        cases.append(ClientCase(rule, None, chosen, {"delay_mode": "exact"}, steps=5))
        cases.append(ClientCase(rule, None, chosen, {"delay_mode": "exact"}, 4, 2, frozenset({"finished"})))
    for rule in ("sm3", "sm3_1"):  # the reference implementation's form: eps inside the root, momentum behind it
        chosen = {"lr": 0.1, "eps": 0.0, "root_eps": 1e-6, "beta1": 0.9}
        cases.append(ClientCase(rule, None, chosen, {"beta1": 0.9}))
    authors = {**CLIENT_OPTIONS["delta_sgd"], "grow_first": True, "lr_eps": 1e-8}
    cases.append(ClientCase("delta_sgd", 331, authors, steps=7))
    cases.append(
        ClientCase("delta_sgd", 331, CLIENT_OPTIONS["delta_sgd"], {"same_batch": True}, extras=frozenset({"previous"}))
    )
    cases.append(
        ClientCase("delta_sgd", 331, CLIENT_OPTIONS["delta_sgd"], clients=3, extras=frozenset({"still", "finished"}))
    )
    return cases


SERVER_CASES = _server_cases()
CLIENT_CASES = _client_cases()


class Numbers:
    """Float32 numbers, the same for every backend and dtype of one case."""

    def __init__(self, case_id: str, dtype: torch.dtype) -> None:
        self.generator = torch.Generator().manual_seed(zlib.crc32(case_id.encode()))
        self.dtype = dtype

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(shape, generator=self.generator) * scale).to(self.dtype)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator).to(self.dtype)


def _snapshot(x: Tensor, state: dict[str, Tensor]) -> Snapshot:
    return {"x": x.clone()} | {name: t.clone() for name, t in state.items() if name not in ("cover", "sets")}


def _reload(state: dict[str, Tensor], folder: Path) -> dict[str, Tensor]:
    """The state as a checkpoint gives it back."""
    save_file(state, folder / "state.safetensors")
    return load_file(folder / "state.safetensors")


def run_server(case: ServerCase, backend: str, dtype: torch.dtype, folder: Path | None = None) -> list[Snapshot]:
    """x and all state after every step; with `folder`, saved to it and reloaded midway."""
    numbers = Numbers(case.id, dtype)
    x = numbers.normal(case.d)
    state = ff.kernels.server_state(case.rule, x, **case.state)
    snapshots = []
    for step in range(case.steps):
        if folder is not None and state and step == case.steps // 2:
            state = _reload(state, folder)
        rows = (case.clients or 1, case.d)
        deltas = numbers.normal(*rows, scale=0.5).to(case.delta_dtype)
        if dtype is torch.float64:
            deltas = deltas.to(dtype)  # the half-width numbers, held exactly
        if case.clients is None:
            ff.kernels.server_step(case.rule, x, deltas[0], state, backend=backend, **case.options)
        else:
            weights = numbers.uniform(case.clients) + 0.1
            weights /= case.clients
            ff.kernels.aggregate_step(case.rule, x, deltas, weights, state, backend=backend, **case.options)
        snapshots.append(_snapshot(x, state))
    return snapshots


def run_client(case: ClientCase, backend: str, dtype: torch.dtype, folder: Path | None = None) -> list[Snapshot]:
    """x and all state after every step; with `folder`, saved to it and reloaded midway."""
    numbers = Numbers(case.id, dtype)
    packing = ff.Packing.from_shapes(SHAPES, dtype=torch.float32)
    fill = _packed_filler(packing) if case.d is None else lambda t: t
    d = packing.size if case.d is None else case.d
    lead = () if case.clients is None else (case.clients,)
    x = fill(numbers.normal(*lead, d))
    made = {**case.state, "packing": packing} if case.d is None else case.state
    state = ff.kernels.client_state(case.rule, x, **made)
    anchor = fill(numbers.normal(d)) if "anchor" in case.extras else None
    snapshots = []
    for step in range(case.steps):
        if folder is not None and state and step == case.steps // 2:
            state = _reload(state, folder)
        given: dict[str, Any] = dict(case.options)
        if (
            "small" in case.extras
        ):  # client 0 below the floor at odd steps, and always: 1 at none, 2 with a zero gradient
            size = torch.tensor([1e-5 if step % 2 else 1.0, 1.0, 0.0], dtype=dtype)[:, None]
            grad = fill(numbers.normal(*lead, d) * size)
        elif "still" in case.extras:
            grad = fill(numbers.normal(*lead, d)) if step == 0 else grad
        else:
            grad = fill(numbers.normal(*lead, d))
        if "anchor" in case.extras:
            given["anchor"] = anchor
        if "correction" in case.extras:
            given["correction"] = fill(numbers.normal(*lead, d, scale=0.3))
        if "lr" in case.extras:
            given["lr"] = numbers.uniform(*lead) * 0.1 + 0.01
        if "finished" in case.extras:
            given["finished"] = torch.tensor([(step + client) % 3 == 2 for client in range(case.clients or 1)])
        if "epoch" in case.extras:
            given["epoch"] = 1 + step // 2
        if "previous" in case.extras:
            given["previous_grad"] = fill(numbers.normal(*lead, d))
        if case.rule == "sps":
            given["loss"] = numbers.uniform(*lead) * 20 + 1 if lead else 9.5
        ff.kernels.client_step(case.rule, x, grad, state, backend=backend, **given)
        snapshots.append(_snapshot(x, state))
    return snapshots


def _packed_filler(packing: ff.Packing) -> Callable[[Tensor], Tensor]:
    inside = torch.zeros(packing.size, dtype=torch.bool)
    for slot in packing.slots:
        inside[slot.span] = True
    return lambda t: torch.where(inside, t, torch.zeros_like(t))
