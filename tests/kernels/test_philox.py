"""Random numbers: Philox4x32-10 against its published vectors, the same numbers on every backend, and their laws."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from fastfed import kernels
from fastfed.kernels.cuda import host, sources
from fastfed.kernels.reference import philox as reference

from .support import SLOW, same_bits

Stream = kernels.Stream
WORD = 0xFFFFFFFF
KNOWN_ANSWERS = [  # Random123, tests/kat_vectors, philox4x32 with 10 rounds: counter, key, result
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((WORD,) * 4, (WORD,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),  # the digits of pi
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
N = 2_001 if SLOW else 100_003
ROWS = 240 if SLOW else 24_000  # streams of one draw each: ten per order of four things, at least
SIGNIFICANCE = 1e-3  # of every statistical test; seeds are fixed, so each passes always or never


def philox(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    """Philox4x32-10 in Python's integers, written from the paper."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        left, right = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (right >> 32) ^ c1 ^ k0, right & WORD, (left >> 32) ^ c3 ^ k1, left & WORD
        k0, k1 = (k0 + 0x9E3779B9) & WORD, (k1 + 0xBB67AE85) & WORD
    return c0, c1, c2, c3


def words_of(stream: kernels.Stream, blocks: int) -> np.ndarray:
    """The words of a stream as its documentation defines them: (4 * blocks,)."""
    key = philox((stream.purpose, 0, 0, 0), (stream.seed & WORD, stream.seed >> 32))[:2]
    counters = ((block, stream.step, stream.client, stream.round) for block in range(blocks))
    return np.array([philox(counter, key) for counter in counters], dtype=np.uint64).ravel()


STREAMS = [
    Stream(0),
    Stream(seed=2**64 - 1, purpose=WORD, round=WORD, client=WORD, step=WORD),
    Stream(seed=0xA4093822299F31D0, purpose=7, round=500, client=123_456, step=31),
]


# ---- known answers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN_ANSWERS, ids=["zeros", "ones", "pi"])
def test_known_answers(counter: tuple[int, ...], key: tuple[int, ...], result: tuple[int, ...]) -> None:
    """Of the loop above, of the integers that make subkeys, and of the reference's tensors."""
    assert philox(counter, key) == result
    assert tuple(kernels.streams._philox.philox(*counter, *key)) == result
    words = [torch.tensor(word, dtype=torch.int64) for word in counter]
    tensors = reference._philox.philox(*words, *key)
    assert tuple(int(word) for word in tensors) == result


@pytest.mark.parametrize("stream", STREAMS, ids=["zeros", "ones", "mixed"])
def test_uniform_is_the_top_24_bits_of_the_words(backend: str, stream: kernels.Stream) -> None:
    words = words_of(stream, 9)
    got = kernels.uniform(33, stream, backend=backend)  # a part of the last block
    assert got.dtype == torch.float32
    assert np.array_equal(got.numpy() * 2.0**24, (words[:33] >> 8).astype(np.float32))


@pytest.mark.parametrize("stream", STREAMS, ids=["zeros", "ones", "mixed"])
def test_normal_is_box_muller_of_the_words(backend: str, stream: kernels.Stream) -> None:
    words = words_of(stream, 50).astype(np.float64).reshape(-1, 2)
    radius = np.sqrt(-2 * np.log((words[:, 0] + 0.5) * 2.0**-32))
    angle = 2 * np.pi * np.floor(words[:, 1] / 256) * 2.0**-24
    exact = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).ravel()
    # A word becomes a float32: near 1 the logarithm loses 2^-25 absolutely, and so the square of the radius.
    got = kernels.normal(200, stream, backend=backend).numpy().astype(np.float64)
    assert np.abs(got**2 - exact**2).max() < 2.0**-18
    assert np.array_equal(np.sign(got), np.sign(exact))


@pytest.mark.parametrize("stream", STREAMS, ids=["zeros", "ones", "mixed"])
def test_permutation_sorts_63_bits_of_two_words(backend: str, stream: kernels.Stream) -> None:
    words = words_of(stream, 50).reshape(-1, 2)
    keys = (words[:, 0] << np.uint64(31)) | (words[:, 1] >> np.uint64(1))
    got = kernels.permutation(99, stream, backend=backend)
    assert got.dtype == torch.int64
    assert got.tolist() == np.argsort(keys[:99], kind="stable").tolist()


# ---- the same numbers on every backend ------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 1023, N])
def test_backends_agree(backend: str, n: int) -> None:
    stream = STREAMS[2]
    assert same_bits(kernels.uniform(n, stream, backend=backend), kernels.uniform(n, stream, backend="reference"))
    assert same_bits(
        kernels.permutation(n, stream, backend=backend), kernels.permutation(n, stream, backend="reference")
    )
    got, wanted = kernels.normal(n, stream, backend=backend), kernels.normal(n, stream, backend="reference")
    assert (got - wanted).abs().max() <= 1e-6 * wanted.abs().max()


@pytest.mark.parametrize("draw", [kernels.uniform, kernels.normal], ids=["uniform", "normal"])
def test_the_first_numbers_do_not_depend_on_how_many(backend: str, draw: Callable[..., torch.Tensor]) -> None:
    long = draw(4099, STREAMS[2], backend=backend)
    for n in (1, 2, 3, 5, 64, 1023):
        assert same_bits(draw(n, STREAMS[2], backend=backend), long[:n].clone()), n


@pytest.mark.parametrize("op", ["uniform", "normal", "permutation"])
def test_a_batch_is_its_clients_streams(backend: str, op: str) -> None:
    draw = getattr(kernels, op)
    ids = torch.tensor([3, 0, WORD, 17])
    together = draw(203, Stream(11, purpose=2, round=5, step=1), clients=ids, backend=backend)
    assert together.shape == (4, 203)
    for row, client in zip(together, ids.tolist(), strict=True):
        alone = draw(203, Stream(11, purpose=2, round=5, client=client, step=1), backend=backend)
        assert same_bits(row.clone(), alone), client


@pytest.mark.parametrize("n", [1, 3, 64, 127, 128, 129])
def test_short_rows_of_many_clients_are_their_streams(backend: str, n: int) -> None:
    """Rows may share vectors of words; the last few of them would fill no vector."""
    ids = 13 * torch.arange(WORD // 13 - 36, WORD // 13 + 1)
    together = kernels.uniform(n, Stream(11, purpose=2, round=5, step=1), clients=ids, backend=backend)
    assert together.shape == (37, n)
    for row, client in zip(together, ids.tolist(), strict=True):
        alone = kernels.uniform(n, Stream(11, purpose=2, round=5, client=client, step=1), backend="reference")
        assert same_bits(row.clone(), alone), client


# Every kind of row: nothing, one thing, odd and even numbers, the whole width; ids and steps of 32 bits; a pair twice.
SHUFFLED = [  # client, step, count
    (3, 0, 0),
    (0, 2, 1),
    (WORD, WORD, 2),
    (3, 0, 203),
    (17, 5, 64),
    (3, 1, 203),
    (3, 0, 202),
    (3, 0, 203),
]


@pytest.mark.parametrize("width", [None, 203, 204, 1000])
def test_shuffles_are_permutations_of_unequal_length(backend: str, width: int | None) -> None:
    key = {"seed": 2**63 + 11, "purpose": 2, "round": 5}
    clients, steps, counts = torch.tensor(SHUFFLED).T.contiguous()
    drawn = kernels.shuffles(counts, Stream(**key), clients=clients, steps=steps, width=width, backend=backend)
    assert drawn.dtype == torch.int64
    assert drawn.shape == (len(SHUFFLED), width or 203)
    for row, (client, step, count) in zip(drawn, SHUFFLED, strict=True):
        assert row[count:].tolist() == list(range(count, width or 203))
        if count:
            alone = kernels.permutation(count, Stream(**key, client=client, step=step), backend="reference")
            assert torch.equal(row[:count], alone), (client, step, count)


def test_shuffles_of_many_short_rows(backend: str) -> None:
    """More rows than a tile has, at the stream's own step."""
    rows = 70 if SLOW else 5_000
    counts = torch.arange(rows) % 4
    drawn = kernels.shuffles(counts, Stream(3, step=8), clients=torch.arange(rows), backend=backend)
    for n in (1, 2, 3):
        own = (counts == n).nonzero().flatten()
        wanted = kernels.permutation(n, Stream(3, step=8), clients=own, backend="reference")
        assert torch.equal(drawn[own, :n], wanted)
    assert torch.equal(drawn.sort(dim=1).values, torch.arange(3).expand(rows, 3))


def test_a_long_shuffle(backend: str) -> None:
    """Rows of several tiles, of which the last hold nothing."""
    n, width = (2_003, 20_000) if SLOW else (100_003, 300_000)
    drawn = kernels.shuffles(torch.tensor([n]), STREAMS[0], clients=torch.tensor([4]), width=width, backend=backend)
    wanted = kernels.permutation(n, Stream(0, client=4), backend="reference")
    assert torch.equal(drawn[0], torch.cat([wanted, torch.arange(n, width)]))


def test_a_long_permutation(backend: str) -> None:
    """More things than a sort has buckets."""
    n = 2_003 if SLOW else (1 << 20) + 7
    drawn = kernels.permutation(n, STREAMS[2], backend=backend)
    assert torch.equal(drawn, kernels.permutation(n, STREAMS[2], backend="reference"))


# ---- the formulas of csrc/philox.h ----------------------------------------------------------------------------------

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not on PATH")
NormalPairs = Callable[[np.ndarray, np.ndarray], np.ndarray]
PAIRS = """
#include "philox.h"

extern "C" void pairs(long long n, const unsigned* word0, const unsigned* word1, float* out) {
  for (long long i = 0; i < n; ++i) fastfed::normal_pair(word0[i], word1[i], out[2 * i], out[2 * i + 1]);
}
"""


@pytest.fixture(scope="module")
def normal_pairs(tmp_path_factory: pytest.TempPathFactory) -> NormalPairs:
    """``normal_pair`` of csrc/philox.h, compiled as it stands: words (n,) and (n,) to numbers (n, 2) float32."""
    folder: Path = tmp_path_factory.mktemp("pairs")
    (folder / "pairs.cpp").write_text(PAIRS)
    library = folder / "pairs.so"
    command = [host.compiler(), *host.FLAGS, "-I", str(sources.csrc()), "-shared", str(folder / "pairs.cpp")]
    subprocess.run([*command, "-o", str(library)], check=True)
    function = ctypes.CDLL(str(library)).pairs

    def pairs(word0: np.ndarray, word1: np.ndarray) -> np.ndarray:
        words = [np.ascontiguousarray(word, dtype=np.uint32) for word in (word0, word1)]
        out = np.empty((words[0].size, 2), dtype=np.float32)
        addresses = (ctypes.c_void_p(array.ctypes.data) for array in (*words, out))
        function(ctypes.c_longlong(words[0].size), *addresses)
        return out

    return pairs


def all_kinds_of_words() -> np.ndarray:
    """Both ends, all powers of two, the borders of eighth turns and of the logarithm's exponents, with what lies beside
    each, and 300 random words."""
    eighths = [i << 29 for i in range(8)]
    exponents = [int(2**i * np.sqrt(0.5)) for i in range(1, 33)]
    borders = np.array([0, WORD, *(1 << i for i in range(32)), *eighths, *exponents], dtype=np.int64)
    beside = borders[:, None] + np.array([-513, -257, -256, -255, -1, 0, 1, 255, 256, 257, 513])
    words = np.concatenate([beside.ravel() & WORD, np.random.default_rng(1).integers(0, 1 << 32, 300)])
    return np.unique(words).astype(np.uint32)


@needs_compiler
def test_normal_numbers_are_within_four_units_in_the_last_place(normal_pairs: NormalPairs) -> None:
    """Of float64's Box-Muller of the float32 number that a word becomes."""
    words = all_kinds_of_words()
    assert {0, WORD} <= set(words.tolist())
    word0, word1 = (grid.ravel() for grid in np.meshgrid(words, words))
    inside = (word0.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32)
    radius = np.sqrt(-2 * np.log(inside.astype(np.float64)))
    ticks = (word1 >> np.uint32(8)).astype(np.int64)
    quarter = (ticks + (1 << 21)) >> 22  # the nearest quarter turn, so that exact zeros come out as such
    t = 2 * np.pi * (ticks - (quarter << 22)) * 2.0**-24
    cosine, sine = np.cos(t), np.sin(t)
    exact = radius[:, None] * np.stack(
        [
            np.choose(quarter % 4, [cosine, -sine, -cosine, sine]),
            np.choose(quarter % 4, [sine, cosine, -sine, -cosine]),
        ],
        axis=1,
    )
    got = normal_pairs(word0, word1).astype(np.float64)
    unit = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    assert (np.abs(got - exact) / unit).max() < 4
    assert np.abs(got).max() > 6.7


@needs_compiler
@pytest.mark.skipif(kernels.backends()["cpp"] is not True, reason="the compiled extension is missing")
@pytest.mark.parametrize("n", [1, 6, 64, 202])
def test_vectors_of_numbers_have_the_formulas_bits(normal_pairs: NormalPairs, n: int) -> None:
    for stream in STREAMS:
        words = words_of(stream, 51).reshape(-1, 2)
        expected = torch.from_numpy(normal_pairs(words[:, 0], words[:, 1])).reshape(-1)
        assert same_bits(kernels.normal(n, stream, backend="cpp"), expected[:n].clone())


# ---- streams --------------------------------------------------------------------------------------------------------


def test_every_part_of_a_stream_matters(backend: str) -> None:
    base = {"seed": 1, "purpose": 1, "round": 1, "client": 1, "step": 1}
    streams = [Stream(**base)] + [Stream(**{**base, part: 2}) for part in base]
    streams.append(Stream(**{**base, "seed": 1 + 2**32}))  # the upper half of the seed
    drawn = [kernels.uniform(64, stream, backend=backend) for stream in streams]
    for i, one in enumerate(drawn):
        for other in drawn[:i]:
            assert (one == other).float().mean() < 0.1, "two streams share numbers"


def test_streams_are_not_shifts_of_each_other(backend: str) -> None:
    one, other = (kernels.uniform(512, Stream(1, step=step), backend=backend) for step in (0, 1))
    assert len(np.intersect1d(one.numpy(), other.numpy())) <= 1  # 2^18 pairs of 24-bit numbers: 0.016 expected


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("seed", -1),
        ("seed", 2**64),
        ("purpose", 2**32),
        ("round", -1),
        ("client", 2**32),
        ("step", 1.5),
        ("step", True),
    ],
)
def test_streams_refuse_what_has_no_word(part: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^{part}: must be a whole number"):
        Stream(**{"seed": 0, part: value})


# ---- laws -----------------------------------------------------------------------------------------------------------


def test_uniform_numbers_are_uniform(backend: str) -> None:
    drawn = kernels.uniform(N, Stream(42), backend=backend).numpy().astype(np.float64)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert stats.kstest(drawn, "uniform").pvalue > SIGNIFICANCE
    assert abs(drawn.mean() - 0.5) < 4 * np.sqrt(1 / 12 / N)  # four standard deviations
    pairs = np.histogram2d(drawn[0 : N - 1 : 2], drawn[1::2], bins=8, range=[[0, 1], [0, 1]])[0]
    assert stats.chisquare(pairs.ravel()).pvalue > SIGNIFICANCE


def test_normal_numbers_are_normal(backend: str) -> None:
    drawn = kernels.normal(N, Stream(43), backend=backend).numpy().astype(np.float64)
    assert stats.kstest(drawn, "norm").pvalue > SIGNIFICANCE
    assert abs(drawn.mean()) < 4 / np.sqrt(N)
    assert abs(drawn.var() - 1) < 4 * np.sqrt(2 / N)
    neighbours = np.corrcoef(drawn[0 : N - 1 : 2], drawn[1::2])[0, 1]  # the two halves of one Box-Muller pair
    assert abs(neighbours) < 4 / np.sqrt(N / 2)


def test_permutations_are_permutations(backend: str) -> None:
    for n in (1, 2, 1000):
        drawn = kernels.permutation(n, Stream(44), clients=torch.arange(5), backend=backend)
        assert torch.equal(drawn.sort(dim=1).values, torch.arange(n).expand(5, n))


def test_every_order_is_equally_likely(backend: str) -> None:
    drawn = kernels.permutation(4, Stream(45), clients=torch.arange(ROWS), backend=backend)
    orders = {order: number for number, order in enumerate(permutations(range(4)))}
    counts = np.bincount([orders[tuple(order)] for order in drawn.tolist()], minlength=len(orders))
    assert stats.chisquare(counts).pvalue > SIGNIFICANCE


def test_clients_draw_independently(backend: str) -> None:
    first = kernels.uniform(4, Stream(46), clients=torch.arange(ROWS), backend=backend).numpy().astype(np.float64)
    assert stats.kstest(first.ravel(), "uniform").pvalue > SIGNIFICANCE
    assert abs(np.corrcoef(first[:-1, 0], first[1:, 0])[0, 1]) < 4 / np.sqrt(ROWS)
