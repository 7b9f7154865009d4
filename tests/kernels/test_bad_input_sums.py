"""Bad input is refused at the door: sums, norms and random numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fastfed import kernels

from .bad_input import CLIENTS, NOT_FINITE, SPOILED, D, refuses, refuses_overlap, vector


@pytest.mark.parametrize("how", SPOILED)
def test_weighted_sum_refuses_tensors(how: str) -> None:
    deltas, weights = vector(CLIENTS, D), torch.ones(CLIENTS)
    if how not in ("short", "long", "another device"):  # other lengths are fine; on another device the weights misfit
        refuses("deltas", kernels.weighted_sum, SPOILED[how](deltas), weights)
    if how != "nothing":
        refuses("weights", kernels.weighted_sum, deltas, SPOILED[how](weights))
        refuses("out", kernels.weighted_sum, deltas, weights, SPOILED[how](vector()))


def test_weighted_sum_into_its_own_input() -> None:
    deltas, weights = vector(CLIENTS, D), torch.ones(CLIENTS)
    refuses_overlap("deltas", "out", kernels.weighted_sum, deltas, weights, deltas[0])
    out = vector(dtype=torch.float64)
    refuses("out", kernels.weighted_sum, deltas, weights, out)


@pytest.mark.parametrize("how", SPOILED)
def test_trimmed_mean_refuses_tensors(how: str) -> None:
    deltas = vector(CLIENTS, D)
    if how not in (
        "short",
        "long",
        "another device",
    ):  # other lengths are fine, and so are other devices
        refuses("deltas", kernels.trimmed_mean, SPOILED[how](deltas), 1)
    if how != "nothing":
        refuses("out", kernels.trimmed_mean, deltas, 1, SPOILED[how](vector()))


def test_trimmed_mean_into_its_own_input() -> None:
    deltas = vector(CLIENTS, D)
    refuses_overlap("deltas", "out", kernels.trimmed_mean, deltas, 1, deltas[0])
    refuses("out", kernels.trimmed_mean, deltas, 1, vector(dtype=torch.float64))


@pytest.mark.parametrize("trim", [-1, (CLIENTS + 1) // 2, 10**30, 1.0, True, None, "1"])
def test_trim_leaves_some_clients(trim: Any) -> None:
    deltas = vector(CLIENTS, D)
    refuses("trim", kernels.trimmed_mean, deltas, trim)
    kernels.trimmed_mean(deltas, (CLIENTS - 1) // 2)


@pytest.mark.skipif(kernels.backends()["cpp"] is not True, reason="the compiled extension is missing")
def test_the_extension_trims_nothing_out_of_bounds() -> None:
    from fastfed import _core

    deltas, out = vector(CLIENTS, D), vector()
    for trim in (-1, (CLIENTS + 1) // 2, 2**62):
        with pytest.raises(ValueError, match="trim: must be less than half"):
            _core.trimmed_mean(deltas, trim, out)
    with pytest.raises(ValueError, match=r"deltas: must be \(clients, d\)"):
        _core.trimmed_mean(deltas, 1, out[1:])


@pytest.mark.parametrize("limit", [0.0, -1.0, *NOT_FINITE, "1", None])
def test_clip_limit(limit: Any) -> None:
    refuses("limit", kernels.clip, vector(), limit)


@pytest.mark.parametrize("how", ["int", "complex", "an axis too many", "strided", "in a graph", "a list", "nothing"])
def test_norms_and_clip_refuse_tensors(how: str) -> None:
    refuses("x", kernels.norms, SPOILED[how](vector()))
    refuses("x", kernels.clip, SPOILED[how](vector()), 1.0)


@pytest.mark.parametrize("op", ["uniform", "normal", "permutation"])
def test_draws(op: str) -> None:
    draw, stream = getattr(kernels, op), kernels.Stream(1)
    for n in (0, -1, 1.5, True, "3"):
        refuses("n", draw, n, stream)
    refuses("stream", draw, 3, 17)
    refuses("clients", draw, 3, stream, clients=[1, 2])
    refuses("clients", draw, 3, stream, clients=torch.tensor([1.0]))
    refuses("clients", draw, 3, stream, clients=torch.tensor([[1]]))
    refuses("clients", draw, 3, stream, clients=torch.tensor([-1]))
    refuses("clients", draw, 3, stream, clients=torch.tensor([2**32]))
    refuses("clients", draw, 3, stream, clients=torch.tensor([], dtype=torch.int64))
    refuses("clients", draw, 3, kernels.Stream(1, client=4), clients=torch.tensor([1]))


def test_shuffles() -> None:
    stream, ids, counts = kernels.Stream(1), torch.tensor([1, 2]), torch.tensor([3, 0])
    draw = kernels.shuffles
    refuses("stream", draw, counts, 17, clients=ids)
    for spoiled in ([1, 2], torch.tensor([1.0, 2.0]), torch.tensor([[1, 2]]), torch.tensor([1, -1]), ids[:0]):
        refuses("clients", draw, counts, stream, clients=spoiled)
    refuses("clients", draw, counts, kernels.Stream(1, client=4), clients=ids)
    for name in ("counts", "steps"):
        for spoiled in ([1, 2], torch.tensor([1.0, 2.0]), ids[:1], ids[:, None], torch.tensor([1, -1])):
            given = {"counts": counts, name: spoiled}
            refuses(name, draw, given.pop("counts"), stream, clients=ids, **given)
    refuses("steps", draw, counts, stream, clients=ids, steps=torch.tensor([0, 2**32]))
    refuses("steps", draw, counts, kernels.Stream(1, step=4), clients=ids, steps=ids)
    for width in (2, 0, -1, 3.0, True, "3"):
        refuses("width", draw, counts, stream, clients=ids, width=width)
    refuses("width", draw, counts.to("meta"), stream, clients=ids)
