"""Every SIMD level gives the same bits, and one that cannot run here says so."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fastfed import kernels

pytestmark = pytest.mark.skipif(kernels.backends()["cpp"] is not True, reason="the compiled extension is missing")

# Prints a digest of x and all state after three steps of every rule, of the sums, and of random numbers, at sizes with
# a ragged end.
PROGRAM = """
import hashlib, torch
import fastfed as ff

digest = hashlib.sha256()

def enter(*tensors):
    for t in tensors:
        digest.update(t.contiguous().numpy().tobytes())

generator = torch.Generator().manual_seed(7)
shapes = {"w": (37, 53), "c": (5, 3, 7), "b": (19,), "ragged": (3, 17), "whole": (2, 48), "narrow": (300, 11)}
packing = ff.Packing.from_shapes(shapes)
d = packing.size
for rule in ff.kernels.SERVER_RULES:
    x = torch.randn(d, generator=generator)
    state = ff.kernels.server_state(rule, x)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        deltas = torch.randn(6, d, generator=generator).to(dtype)
        ff.kernels.aggregate_step(rule, x, deltas, torch.rand(6, generator=generator), state, lr=0.1, backend="cpp")
    enter(x, *state.values())
for rule, entry in ff.kernels.CLIENT_RULES.items():
    x = torch.randn(3, d, generator=generator)
    state = ff.kernels.client_state(rule, x, **({"packing": packing} if entry.cover else {}))
    given = {"loss": torch.ones(3)} if rule == "sps" else {"lr": 0.1}
    for _ in range(3):
        grad = torch.randn(3, d, generator=generator)
        ff.kernels.client_step(rule, x, grad, state, weight_decay=0.1, clip=9.0, backend="cpp", **given)
    enter(x, *state.values())
for clients in (1, 2, 7, 33):
    deltas = torch.randn(clients, d, generator=generator)
    deltas[clients // 2, :9] = deltas[0, 5:14] = torch.nan
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        for trim in {0, (clients - 1) // 2}:
            enter(ff.kernels.trimmed_mean(deltas.to(dtype), trim, backend="cpp"))
x = torch.randn(3, d, generator=generator)
enter(ff.kernels.norms(x, backend="cpp"), ff.kernels.clip(x, 1.0, backend="cpp"), x)
stream = ff.kernels.Stream(seed=7, purpose=1, round=2, step=3)
for n in (1, 63, 64, 1003, 20_011):
    for draw in (ff.kernels.uniform, ff.kernels.normal, ff.kernels.permutation):
        enter(draw(n, stream, backend="cpp"), draw(n, stream, clients=torch.tensor([0, 5, 2**32 - 1]), backend="cpp"))
enter(ff.kernels.uniform(21, stream, clients=torch.arange(37), backend="cpp"))
print(digest.hexdigest())
"""


def run(level: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "FASTFED_SIMD": level}
    return subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False)


def test_every_level_gives_the_same_bits() -> None:
    from fastfed import _core

    digests = {}
    for level in _core.build_info()["simd_compiled"]:
        done = run(level)
        if done.returncode == 0:
            digests[level] = done.stdout.strip()
        else:
            assert f"FASTFED_SIMD: this processor has no {level}" in done.stderr
    assert "scalar" in digests
    assert len(set(digests.values())) == 1, digests


def test_an_unknown_level_is_an_error_that_lists_the_known_ones() -> None:
    done = run("mmx")
    assert done.returncode == 1
    assert "FASTFED_SIMD: must be one of scalar" in done.stderr
