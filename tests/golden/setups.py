"""The runs whose bits are kept: one of each kind of plan, exchange, tuner and aggregation, on every executor.

Bits depend on the machine: on the SIMD level, on torch's choice of products, on the compilers. `kind_of_machine` names
what they depend on, and hashes are kept by it.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fastfed as ff
from fastfed.app import runs
from fastfed.app.config import parse
from fastfed.kernels import registry

from ..app.config.support import tables
from ..simulation.support import simulation, small_federation

Hashes = dict[str, dict[str, str]]

HERE = Path(__file__).parent
HASHES = HERE / "hashes.json"
NEWER = (
    "gradients",
    "delta_norm_std",
    "step_size_grown",
    "step_size_measured",
)  # columns that rows had not when the hashes were made
CHECKPOINTS = HERE / "checkpoints"  # one each of `RESUMED`, written after half of its rounds
RUN = HERE / "run"  # the directory of `configured`, written after half of its rounds, with checkpoints of format 1
RUN_OF_FORMAT_2 = HERE / "run_of_format_2"  # the same one
ROUNDS = 4

_FLEET = ff.fleet.Fleet(step_seconds=0.1, spread=1.0, network_seconds=0.5, dropout=0.05)
_BLEND = ff.clients.Blend(
    [
        ff.clients.Part(ff.clients.SGD(lr=0.1)),
        ff.clients.Part(ff.clients.Adam(lr=0.01, delay=2), share=2.0, weight=0.5),
        ff.clients.Part(ff.clients.SM3(lr=0.05), steps=3),
    ]
)
SETUPS: dict[str, dict[str, Any]] = {
    "fedavg": ff.methods.fedavg(0.1),
    "fedadam": ff.methods.fedadam(0.1, 0.05),
    "fedyogi-momentum": {"client": ff.clients.Momentum(lr=0.05, clip=1.0), "server": ff.servers.FedYogi(lr=0.05)},
    "fedams-prox": ff.methods.fedprox(0.1, 0.1, ff.servers.FedAMS(lr=0.05, bias_correction=True)),
    "scaffold": ff.methods.scaffold(0.1),
    "moon": ff.methods.moon(0.1, mu=2.0, head="3"),
    # As these methods were when the hashes were made.
    "fedada2": {
        **ff.methods.fedada2(client_lr=0.05, server_lr=0.05),
        "client": ff.clients.SM3(lr=0.05, delay=2, delay_mode="compact"),
    },
    "fedada2-transmitted": {
        **ff.methods.fedada2("adam", "adam", transmit=True, client_lr=0.01, server_lr=0.01, bias_correction=True),
        "server": ff.servers.FedAdam(lr=0.01, second_moment_of="delta"),
    },
    "joint-transmitted": ff.methods.fedada2(
        "adagrad", "adam", sm3=False, transmit=True, client_lr=0.01, server_lr=0.1, bias_correction=True
    ),
    "delta-sgd": ff.methods.delta_sgd(),
    "sps": {"client": ff.clients.SPS(lr_max=1.0, eps=0.0), "server": ff.servers.FedAvgM()},
    "fathom": ff.methods.fathom(0.1, epochs=2, batch_size=7, form="paper"),
    "client-centric": {**ff.methods.client_centric(client_lr=0.1, server_lr=0.05, buffer=3), "epochs": None},
    "fedbuff": ff.methods.fedbuff(0.1, concurrency=6, buffer=3, staleness=0.5, fleet=_FLEET),
    "private": {
        **ff.methods.fedavg(0.1),
        "cohort": ff.plan.Poisson(0.4),
        "weights": "uniform",
        "privacy": ff.privacy.Privacy(clip=0.5, noise=0.6, delta=1e-3),
    },
    "top-k": {**ff.methods.fedavg(0.1), "compression": ff.compression.TopK(0.2)},
    "blend": {"client": _BLEND, "server": ff.servers.FedAdagrad(lr=0.1)},
    "sparse": {**ff.methods.fedadam(0.5, 0.05), "fed": "sparse"},
}
RESUMED = ("scaffold", "moon", "fedada2-transmitted", "fathom", "client-centric", "fedbuff", "private", "top-k")
ON_DEVICE = ("fedadam", "scaffold", "moon", "fedada2", "delta-sgd", "fedbuff", "private", "top-k", "blend", "sparse")
WITHOUT_COHORT = ("client-centric", "fedbuff")


def sparse_federation() -> ff.data.Federated:
    """The small federation with three in four of its numbers left out, as sparse rows."""
    fed = small_federation()

    def sparse(given: ff.data.Examples) -> ff.data.Examples:
        dense = torch.where(given.inputs.abs() > 2, given.inputs, 0.0)
        return ff.data.Examples(ff.data.Sparse.of(dense), given.targets)

    assert fed.test is not None
    return replace(fed, examples=sparse(fed.examples), test=sparse(fed.test))


FEDERATIONS: dict[str, Callable[[], ff.data.Federated]] = {"small": small_federation, "sparse": sparse_federation}


def executors() -> tuple[str, ...]:
    """The executors that this session can run: Triton's interpreter has one of its own."""
    return ("device",) if registry.interpreting() else ("native", "batched", "eager")


def names() -> list[str]:
    """The runs of this session, each as "set-up/executor"."""
    return [f"{name}/{one}" for one in executors() for name in (ON_DEVICE if one == "device" else SETUPS)]


def begun(name: str) -> ff.Simulation:
    """The run of that name ("set-up/executor") before its first round."""
    setup, executor = name.split("/")
    cohort = {"cohort": None if setup in WITHOUT_COHORT else 3 if executor == "device" else 5}
    shorter = {"epochs": None, "steps": 2} if executor == "device" else {}  # the interpreter takes its time
    settings = {**cohort, **shorter, **SETUPS[setup], "executor": executor}
    fed = FEDERATIONS[settings.pop("fed", "small")]()
    return simulation(fed, **settings)


def half_done(name: str) -> ff.Simulation:
    sim = begun(name)
    sim.run(rounds=ROUNDS // 2, evaluate_every=0, progress=False)
    return sim


def finished(sim: ff.Simulation) -> ff.Simulation:
    """The run after the second half of its rounds, evaluated every second one."""
    sim.run(rounds=ROUNDS // 2, evaluate_every=2, progress=False)
    return sim


def configured(rounds: int) -> Any:
    """The configuration of the run directory: digits, FedAda2 with what it transmits, on the native executor; as the
    method was then."""
    rules = {
        "client": {"rule": "adam", "lr": 0.01, "delay_mode": "compact", "bias_correction": True},
        "server": {"rule": "adam", "lr": 0.01, "beta2": 0.99},
    }
    own = {"rounds": rounds, "cohort": 3, "evaluate_every": 0, "checkpoint_every": 1, "seed": 1, "executor": "native"}
    return parse(tables(name="golden", method="fedada2", method_options={"transmit": True}, **rules, run=own))


def digests(params: torch.Tensor, history: ff.History) -> dict[str, str]:
    """Hashes of the model and of the rows without their timings, apart: a failure says which of the two changed."""
    kept = [{name: value for name, value in row.items() if name not in NEWER} for row in history.without_seconds()]
    rows = json.dumps(kept, sort_keys=True).encode()
    model = params.detach().cpu().contiguous().numpy().tobytes()
    return {part: hashlib.sha256(found).hexdigest()[:16] for part, found in (("params", model), ("rows", rows))}


def of_run(home: Path) -> dict[str, str]:
    """The hashes of a finished run directory."""
    return digests(ff.Simulation.resume(home / runs.CHECKPOINT).params, runs.read(home).history)


def kind_of_machine() -> str:
    """What bits depend on: two machines of one kind give the same."""
    found = {
        "machine": platform.machine(),
        "processor": _vendor(),
        "libc": " ".join(platform.libc_ver()),
        "torch": f"{torch.__version__} {torch.backends.cpu.get_cpu_capability()}",
        **_extension(),
        **{package: _version(package) for package in ("numpy", "scipy", "dp-accounting")},
    }
    if registry.interpreting():
        found["triton"] = _version("triton")
        found["openblas"] = _core_of_openblas()  # the interpreter's products are NumPy's
    return ", ".join(f"{name} {value}" for name, value in found.items())


def _vendor() -> str:
    """Who made the processor: libraries choose their products by it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("vendor_id")), platform.processor())


def _core_of_openblas() -> str:
    """The family of processors for which NumPy's library of products has chosen its kernels."""
    for library in Path(np.__file__).parents[1].glob("numpy.libs/*openblas*"):
        told = getattr(ctypes.CDLL(str(library)), "scipy_openblas_get_corename64_", None)
        if told is not None:
            told.restype = ctypes.c_char_p
            name: bytes = told()
            return name.decode()
    return "unknown"


def _extension() -> dict[str, str]:
    try:
        from fastfed import _core
    except ImportError:
        return {"extension": "none"}
    built = _core.build_info()
    return {"compiler": str(built["compiler"]), "simd": str(built["simd"])}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"
