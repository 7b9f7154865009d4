"""Driver 2: one client per program, all its local steps in one launch, for models of a single dense layer.

Softmax regression on a thousand clients is bound by what little it moves: here weights are read from the start model
the first time and written once a step, examples are read where they lie, as bytes if they are bytes, and nothing else
reaches memory. As in `products.update_forward`, a step's update is applied where the next one reads the weights.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from ...layers import Dense
from ..compiled import device, largest, total
from ..gradient import COEFFICIENTS
from ..launch import launch
from .losses import IGNORED
from .products import PRECISION
from .rule import Rule, Sink, settle

OUTPUTS = 64  # at most so many classes ...
BATCH = 64  # ... and examples in a batch: both are one tile


class Rounds(NamedTuple):
    """What clients do in a round: `rows` (steps, clients, batch) int64 of examples, `lengths` (steps, clients) int32
    of them are real, `steps` (clients,) int64; `coefficients` (steps, clients, COEFFICIENTS) of the rule."""

    rows: Tensor
    lengths: Tensor
    steps: Tensor
    coefficients: Tensor


class Examples(NamedTuple):
    """The store: `inputs` (examples, numbers), of which bytes stand for ``scale[channel] * byte + shift[channel]``
    (None: numbers as they are); int `labels` (examples,)."""

    inputs: Tensor
    scale: Tensor | None
    shift: Tensor | None
    labels: Tensor


class Results(NamedTuple):
    """`losses` (clients, 3) float64: first, last, sum; `squares` (clients,) float64 of the whole move."""

    losses: Tensor
    squares: Tensor


@device
def _exact_dot(a, exact, acc):
    """a times whole numbers of few bits: those need no splitting, so that two passes are as good as tf32x3."""
    high = (a.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)  # the bits that tf32 has
    acc = tl.dot(high, exact, acc, input_precision="tf32")
    return tl.dot(a - high, exact, acc, input_precision="tf32")


@device
def _gradient(dz, store, example, k, known, K: tl.constexpr, PIXELS: tl.constexpr, PRECISION: tl.constexpr):
    """The gradient of a tile of weights, from dz (outputs, rows)."""
    a = tl.load(store.inputs + example[:, None] * K + k[None, :], mask=known, other=0).to(tl.float32)
    if store.scale is None:
        return tl.dot(dz, a, input_precision=PRECISION)
    else:
        scale = tl.load(store.scale + k // PIXELS, mask=k < K, other=0.0)
        shift = tl.load(store.shift + k // PIXELS, mask=k < K, other=0.0)
        zero = tl.zeros((dz.shape[0], k.shape[0]), tl.float32)
        return _exact_dot(dz, a, zero) * scale[None, :] + total(dz, axis=1)[:, None] * shift[None, :]


@device
def _forward(w, z, store, example, k, known, K: tl.constexpr, PIXELS: tl.constexpr, PRECISION: tl.constexpr):
    """z (outputs, rows), gone on with by the inputs `k`."""
    a = tl.load(store.inputs + example[None, :] * K + k[:, None], mask=known, other=0).to(tl.float32)
    if store.scale is None:
        return tl.dot(w, a, z, input_precision=PRECISION)
    else:
        scale = tl.load(store.scale + k // PIXELS, mask=k < K, other=0.0)
        shift = tl.load(store.shift + k // PIXELS, mask=k < K, other=0.0)
        return _exact_dot(w * scale[None, :], a, z) + total(w * shift[None, :], axis=1)[:, None]


@device
def _weights(x, start, at, is_first, mask):
    """The client's own, or before its first update those of the start model."""
    fresh = tl.load(start + at, mask=tl.where(is_first, mask, False), other=0.0)
    return tl.where(is_first, fresh, tl.load(x + at, mask=tl.where(is_first, False, mask), other=0.0))


@triton.jit
def _train(
    x, starts, start_stride, store, rounds, results, weight, bias, sink, clients,
    K: tl.constexpr, N: tl.constexpr, PIXELS: tl.constexpr, CAPACITY: tl.constexpr, HAS_BIAS: tl.constexpr,
    IGNORE: tl.constexpr, FORMULA: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BR: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(0).to(tl.int64)
    n, r, row = tl.arange(0, BN), tl.arange(0, BR), tl.arange(0, 1)
    mine, start = x + client * sink.size, starts + client * start_stride
    steps = tl.load(rounds.steps + client)
    dz = tl.zeros((BN, BR), tl.float32)
    last = tl.zeros((BR,), tl.int64)
    last_length = 0
    first_loss = tl.full((), float("nan"), tl.float64)
    loss = first_loss
    sum_of_losses = tl.full((), 0.0, tl.float64)
    squares = tl.zeros((BN, BK), tl.float32).to(tl.float64)
    bias_squares = tl.zeros((1, BN), tl.float32).to(tl.float64)
    for step in range(steps + 1):
        # Every turn but the first updates by the turn before, and every turn but the last goes on to a forward pass.
        tl.debug_barrier()
        here = step * clients + client
        goes_on = step < steps
        length = tl.load(rounds.lengths + here, mask=goes_on, other=0)
        example = tl.load(rounds.rows + here * CAPACITY + r, mask=r < length, other=0)
        coef = rounds.coefficients + (step - 1) * clients * COEFFICIENTS
        z = tl.zeros((BN, BR), tl.float32)
        for k0 in range(0, K, BK):
            k = k0 + tl.arange(0, BK)
            inside = (n < N)[:, None] & (k < K)[None, :]
            at = weight.offset + n[:, None] * K + k[None, :]
            w = _weights(mine, start, at, step <= 1, inside)
            if step > 0:
                known = (r < last_length)[:, None] & (k < K)[None, :]
                g = _gradient(dz, store, last, k, known, K, PIXELS, PRECISION)
                w = settle(sink, coef, weight, g, w, client, n, n < N, k, k < K, K, FORMULA, False, False)
                w = tl.where(inside, w, 0.0)
                if step == steps:
                    change = (w - tl.load(start + at, mask=inside, other=0.0)).to(tl.float64)
                    squares += change * change
            if goes_on:
                known = (r < length)[None, :] & (k < K)[:, None]
                z = _forward(w, z, store, example, k, known, K, PIXELS, PRECISION)
        if HAS_BIAS:
            b = _weights(mine, start, bias.offset + n, step <= 1, n < N)[None, :]
            if step > 0:
                b = settle(
                    sink,
                    coef,
                    bias,
                    total(dz, axis=1)[None, :],
                    b,
                    client,
                    row,
                    row < 1,
                    n,
                    n < N,
                    N,
                    FORMULA,
                    False,
                    True,
                )
                b = tl.where((n < N)[None, :], b, 0.0)
                if step == steps:
                    moved = (b - tl.load(start + bias.offset + n, mask=n < N, other=0.0)[None, :]).to(tl.float64)
                    bias_squares += moved * moved
            z += total(b, axis=0)[:, None]
        if goes_on:
            label = tl.load(store.labels + example, mask=r < length, other=IGNORE).to(tl.int32)
            counted = (r < length) & (label != IGNORE)
            count = tl.maximum(total(counted.to(tl.int32)), 1)
            z = tl.where((n < N)[:, None], z, float("-inf"))
            z -= largest(z, axis=0)[None, :]
            e = tl.exp(z)
            mass = total(e, axis=0)
            hit = n[:, None] == label[None, :]
            lost = tl.where(counted, tl.log(mass) - total(tl.where(hit, z, 0.0), axis=0), 0.0)
            loss = total(lost.to(tl.float64)) / count.to(tl.float64)
            first_loss = tl.where(step == 0, loss, first_loss)
            sum_of_losses += loss
            share = tl.where(counted, 1.0 / count.to(tl.float32), 0.0)
            dz = (e / mass[None, :] - hit.to(tl.float32)) * share[None, :]
            last, last_length = example, length
    tl.store(results.losses + client * 3, first_loss)
    tl.store(results.losses + client * 3 + 1, loss)
    tl.store(results.losses + client * 3 + 2, sum_of_losses)
    tl.store(results.squares + client, total(squares) + total(bias_squares))


def fits(layer: Dense, batch: int) -> bool:
    """Whether a model of this layer alone can be trained so."""
    return layer.rows == 1 and layer.curve == 0 and layer.outputs <= OUTPUTS and batch <= BATCH


def train(
    layer: Dense, batch: int, pixels: int, x: Tensor, start: Tensor, store: Examples, rounds: Rounds, results: Results,
    sink: Sink, rule: Rule,
) -> None:  # fmt: skip
    """All local steps of clients, from `start` (d,) or (clients, d) to x (clients, d). Numbers of an example lie
    channel by channel, `pixels` each."""
    own = start.dim() == 2
    sizes = {"K": layer.inputs, "N": layer.outputs, "PIXELS": pixels, "CAPACITY": batch, "IGNORE": IGNORED}
    tile = {"BN": max(16, triton.next_power_of_2(layer.outputs)), "BK": 32, "BR": 32 if batch <= 32 else 64}
    args = (x, start, start.shape[-1] if own else 0, store, rounds, results, layer.weight, layer.bias or layer.weight)
    constants = {"HAS_BIAS": layer.bias is not None, "PRECISION": PRECISION, **rule.constants}
    launch(_train, len(x), x, *args, sink, len(x), stages=2, **sizes, **tile, **constants)
