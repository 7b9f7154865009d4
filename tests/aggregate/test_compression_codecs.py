"""Compression: every codec against a literal NumPy version, row by row; errors fed back; checkpoints."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fastfed import compression
from fastfed.compression import Compressor, Int8, Sign, TopK
from fastfed.kernels import Stream, uniform
from fastfed.packing import Packing
from fastfed.purposes import Purpose
from fastfed.saved import recipe

SHAPES = {"scale": (), "bias": (7,), "none": (0, 3), "weight": (3, 5), "cube": (2, 3, 3), "conv": (2, 3, 1, 5)}
PARAMETERS = 1 + 7 + 15 + 18 + 30
CODECS = [TopK(0.2), Sign(), Int8()]
DTYPES = [torch.float32, torch.float64]


def packing_of(dtype: torch.dtype = torch.float32, shapes: dict[str, tuple[int, ...]] | None = None) -> Packing:
    return Packing.from_shapes(SHAPES if shapes is None else shapes, dtype=dtype)


def random_vectors(packing: Packing, n: int, seed: int = 0) -> Tensor:
    """(n, d) with gaps of 0; tensors of very different sizes, some entries 0, some of equal magnitude."""
    generator, x = np.random.default_rng(seed), packing.zeros(n)
    for number, slot in enumerate(packing.slots):
        values = generator.standard_normal((n, slot.numel)) * 10.0 ** (number - 2)
        values[generator.random(values.shape) < 0.1] = 0
        values[generator.random(values.shape) < 0.1] = -(10.0 ** (number - 2))
        x[:, slot.span] = torch.from_numpy(values).to(x)
    return x


# ---- literal versions: one client, float64 --------------------------------------------------------------------------


def literal_top_k(v: np.ndarray, packing: Packing, k: int) -> np.ndarray:
    places = [place for slot in packing.slots for place in range(slot.offset, slot.offset + slot.numel)]
    read = np.zeros_like(v)
    for place in sorted(places, key=lambda place: (-abs(v[place]), place))[:k]:
        read[place] = v[place]
    return read


def literal_sign(v: np.ndarray, packing: Packing) -> np.ndarray:
    read = np.zeros_like(v)
    for slot in packing.slots:
        scale = math.fsum(abs(v[slot.span])) / max(1, slot.numel)
        for place in range(slot.offset, slot.offset + slot.numel):
            read[place] = -scale if v[place] < 0 else scale
    return read


def literal_int8(v: np.ndarray, packing: Packing, draws: np.ndarray) -> np.ndarray:
    read = np.zeros_like(v)
    for slot in packing.slots:
        scale = max(abs(v[slot.span]), default=0.0) / 127
        for place in range(slot.offset, slot.offset + slot.numel):
            if scale > 0:
                level = v[place] / scale
                fraction = level - math.floor(level)
                read[place] = scale * (math.floor(level) + (draws[place] < fraction))
    return read


def literal(codec: Any, vectors: Tensor, packing: Packing, ids: Tensor, seed: int, round: int) -> np.ndarray:
    rows = []
    for v, client in zip(vectors.double().numpy(), ids.tolist(), strict=True):
        if isinstance(codec, TopK):
            rows.append(literal_top_k(v, packing, max(1, math.ceil(codec.fraction * packing.parameters))))
        elif isinstance(codec, Sign):
            rows.append(literal_sign(v, packing))
        else:
            draws = uniform(packing.size, Stream(seed, Purpose.COMPRESSION, round, client))
            rows.append(literal_int8(v, packing, draws.double().numpy()))
    return np.stack(rows)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("codec", [TopK(0.001), TopK(0.2), TopK(0.5), TopK(1.0), Sign(), Int8()])
def test_a_codec_agrees_with_its_literal_version(codec: Any, dtype: torch.dtype) -> None:
    packing = packing_of(dtype)
    vectors, ids = random_vectors(packing, 9), torch.tensor([5, 0, 1, 2**32 - 1, 77, 3, 8, 1000, 4])
    given = vectors.clone()
    read = codec.encode(vectors, packing, ids, 2**63 + 5, 12).decoded
    assert torch.equal(vectors, given)
    assert read.dtype is dtype
    wanted = literal(codec, vectors, packing, ids, 2**63 + 5, 12)
    tolerance = 1e-6 if dtype is torch.float32 else 1e-13
    np.testing.assert_allclose(read.double().numpy(), wanted, rtol=tolerance, atol=0)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [1, 2, 3, 127, 128, 4097])
def test_one_tensor_of_any_size(codec: Any, size: int) -> None:
    packing = packing_of(shapes={"x": (size,)})
    vectors, ids = random_vectors(packing, 2, seed=size), torch.tensor([3, 9])
    read = codec.encode(vectors, packing, ids, 1, 2).decoded
    np.testing.assert_allclose(read.double().numpy(), literal(codec, vectors, packing, ids, 1, 2), rtol=1e-6, atol=0)


# ---- what each promises ---------------------------------------------------------------------------------------------


def test_top_k_takes_the_lowest_index_of_equal_magnitudes() -> None:
    packing = packing_of(shapes={"a": (3,), "b": (), "c": (4,)})
    places = [0, 1, 2, 16, 32, 33, 34, 35]
    vectors = packing.zeros(3)
    vectors[0, places] = torch.tensor([1.0, -2.0, 2.0, -2.0, 3.0, 2.0, 2.0, 0.0])
    vectors[1, places] = -5.0
    read = TopK(0.5).encode(vectors, packing, torch.arange(3), 0, 0).decoded  # 4 of 8
    assert read[0, places].tolist() == [0, -2, 2, -2, 3, 0, 0, 0]
    assert read[1, places].tolist() == [-5, -5, -5, -5, 0, 0, 0, 0]
    assert not read[2].any()
    assert read.count_nonzero() == 8


def test_top_k_never_takes_a_gap_even_where_something_lies_in_it() -> None:
    packing = packing_of(shapes={"a": (3,), "b": (2,)})
    vectors = torch.full((1, packing.size), 100.0)
    for view in packing.views(vectors).values():
        view.fill_(0.5)
    for codec in (TopK(0.8), TopK(1.0), Sign(), Int8()):
        read = codec.encode(vectors, packing, torch.tensor([0]), 0, 0).decoded
        inside = sum(int(view.count_nonzero()) for view in packing.views(read).values())
        assert read.count_nonzero() == inside == (4 if codec == TopK(0.8) else 5)


@pytest.mark.parametrize(
    ("fraction", "of", "k"), [(0.07, 100, 7), (0.1, 30, 3), (0.1, 31, 4), (1e-9, 50, 1), (1, 9, 9)]
)
def test_top_k_counts_the_fraction_as_written(fraction: float, of: int, k: int) -> None:
    packing = packing_of(shapes={"x": (of,)})
    vectors = torch.rand(1, packing.size) + 1
    assert TopK(fraction).count(packing) == k
    assert TopK(fraction).encode(vectors, packing, torch.tensor([0]), 0, 0).decoded.count_nonzero() == k


def test_sign_reads_zero_as_positive_and_a_tensor_of_zeros_as_zero() -> None:
    packing = packing_of(shapes={"a": (4,), "b": (3,)})
    vectors = packing.zeros(1)
    vectors[0, :4] = torch.tensor([0.0, -0.0, -3.0, 1.0])
    read = Sign().encode(vectors, packing, torch.tensor([0]), 0, 0).decoded
    assert read[0, :4].tolist() == [1, 1, -1, 1]
    assert not read[0, 4:].any()


def test_sign_does_not_overflow() -> None:
    packing, largest = packing_of(shapes={"x": (1000,)}), torch.finfo(torch.float32).max
    vectors = packing.zeros(1)
    vectors[:, :1000] = -largest
    assert Sign().encode(vectors, packing, torch.tensor([0]), 0, 0).decoded[0, :1000].tolist() == [-largest] * 1000


def test_int8_is_unbiased() -> None:
    packing = packing_of(torch.float64)
    clients = 20_000
    vector = random_vectors(packing, 1, seed=4)
    read = Int8().encode(vector.repeat(clients, 1), packing, torch.arange(clients), 3, 0).decoded
    for slot in packing.slots:
        if slot.numel == 0:
            continue
        v, scale = vector[0, slot.span], vector[0, slot.span].abs().max() / 127
        errors = (read[:, slot.span] - v) / scale
        assert errors.abs().max() < 1
        fraction = v / scale - torch.floor(v / scale)
        deviation = (fraction * (1 - fraction)).sqrt()  # of one message, in levels
        assert ((errors.mean(0).abs() - 1e-6) * math.sqrt(clients) <= 4.5 * deviation).all()
        assert errors.std(0).numpy() == pytest.approx(deviation.numpy(), abs=0.02)


def test_int8_draws_by_seed_round_client_and_place() -> None:
    packing = packing_of(shapes={"x": (500,)})
    vectors = packing.zeros(1)
    vectors[:, :500] = torch.rand(500) + 0.01
    read = {
        key: tuple(Int8().encode(vectors, packing, torch.tensor([key[2]]), key[0], key[1]).decoded[0].tolist())
        for key in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))
    }
    assert len(set(read.values())) == 4
    flat = packing.zeros(1)
    flat[:, :500] = 0.5 / 127
    flat[:, 0] = 1.0
    levels = Int8().encode(flat, packing, torch.tensor([0]), 0, 0).decoded[0, 1:500] * 127
    assert 150 < levels.sum() < 350  # each place has its own draw


def test_int8_keeps_zeros_extremes_and_the_smallest_numbers() -> None:
    packing, largest = packing_of(shapes={"a": (3,), "b": (4,), "c": (2,)}), torch.finfo(torch.float32).max
    vectors = packing.zeros(1)
    vectors[0, 16:19] = torch.tensor([largest, -largest, 0.0])
    vectors[0, 32:34] = torch.tensor([1e-45, -1e-45])
    for round in range(20):
        assert torch.equal(Int8().encode(vectors, packing, torch.tensor([0]), 0, round).decoded, vectors)


def test_int8_keeps_whole_levels() -> None:
    packing = packing_of(torch.float64, {"x": (255,)})
    vectors = packing.zeros(1)
    vectors[0, :255] = torch.arange(-127, 128)
    for round in range(50):
        read = Int8().encode(vectors, packing, torch.tensor([0]), 0, round).decoded
        assert torch.allclose(read, vectors, rtol=1e-12, atol=0)


def test_bytes() -> None:
    single, double = packing_of(), packing_of(torch.float64)
    assert single.parameters == PARAMETERS == 71
    assert [codec.message_bytes(single) for codec in CODECS] == [15 * 8, 9 + 5 * 4, 71 + 5 * 4]
    for codec in CODECS:  # "none" is empty and has no scale
        sent = codec.encode(random_vectors(single, 3), single, torch.arange(3), 0, 0)
        assert sent.bytes == codec.message_bytes(single)
        sent = codec.encode(random_vectors(double, 3), double, torch.arange(3), 0, 0)
        assert sent.bytes == codec.message_bytes(double, torch.float64)
    assert [codec.message_bytes(double, torch.float64) for codec in CODECS] == [15 * 12, 9 + 5 * 8, 71 + 5 * 8]
    assert TopK(1e-9).message_bytes(single) == 8
    huge = packing_of(shapes={"x": (1 << 16, (1 << 16) + 1)})
    assert TopK(1e-9).message_bytes(huge) == 5 * (4 + 8)


# ---- one client's message is its own --------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_a_message_depends_on_nobody_else(codec: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    packing = packing_of(torch.float64, {"a": (200_003,), "b": (), "c": (301, 11)})  # no rounding hides a difference
    vectors, ids = random_vectors(packing, 7), torch.tensor([4, 9, 2, 0, 1, 30, 5])
    together = codec.encode(vectors, packing, ids, 1, 2).decoded
    for row in range(7):
        alone = codec.encode(vectors[row : row + 1], packing, ids[row : row + 1], 1, 2).decoded
        assert torch.equal(alone[0], together[row])
    order = torch.tensor([6, 2, 0, 5, 1, 4, 3])
    assert torch.equal(codec.encode(vectors[order], packing, ids[order], 1, 2).decoded, together[order])
    for portion in (1, 3 * packing.size, 1 << 40):
        monkeypatch.setattr(compression, "_PORTION", portion)
        assert torch.equal(codec.encode(vectors, packing, ids, 1, 2).decoded, together)


@pytest.mark.parametrize("codec", CODECS)
def test_the_number_of_threads_changes_nothing(codec: Any) -> None:
    packing = packing_of(torch.float64, {"a": (700_001,), "b": (301, 11)})
    vectors, ids, before = random_vectors(packing, 2), torch.tensor([4, 9]), torch.get_num_threads()
    read = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            read += [
                codec.encode(vectors, packing, ids, 1, 2).decoded,
                codec.encode(vectors[:1], packing, ids[:1], 1, 2),
            ]
    finally:
        torch.set_num_threads(before)
    for both, one in zip(read[::2], read[1::2], strict=True):
        assert torch.equal(both, read[0])
        assert torch.equal(one.decoded[0], read[0][0])


@pytest.mark.parametrize("codec", CODECS)
def test_nobody_sends_nothing(codec: Any) -> None:
    packing, nobody = packing_of(), torch.zeros(0, dtype=torch.int64)
    sent = Compressor(codec, packing, torch.float32).send(nobody, packing.zeros(0), 0, 0)
    assert sent.decoded.shape == (0, packing.size)
    assert sent.bytes == codec.message_bytes(packing)


# ---- errors fed back ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_what_was_read_and_what_is_left_add_up_to_the_deltas(codec: Any) -> None:
    packing = packing_of(torch.float64)
    compressor = Compressor(codec, packing, torch.float64)
    deltas_sum, read_sum, lost = packing.zeros(20), packing.zeros(20), packing.zeros(20)
    for round in range(15):
        ids = torch.from_numpy(np.random.default_rng(round).permutation(20)[:8])
        deltas = random_vectors(packing, 8, seed=100 + round)
        given = deltas.clone()
        sent = compressor.send(ids, deltas, 5, round)
        assert torch.equal(deltas, given)
        # By hand: the codec's message of the delta and all that was lost before.
        wanted = codec.encode(deltas + lost[ids], packing, ids, 5, round)
        assert torch.equal(sent.decoded, wanted.decoded)
        assert sent.bytes == wanted.bytes
        lost[ids] += deltas - sent.decoded
        deltas_sum[ids] += deltas
        read_sum[ids] += sent.decoded
        kept = compressor.tensors()
        for client, left in zip(kept["ids"].tolist(), kept["vectors"], strict=True):
            assert torch.allclose(read_sum[client] + left, deltas_sum[client], rtol=1e-10, atol=1e-9)
            lost[client] = left
    assert lost.any()
    gaps = torch.ones(packing.size, dtype=torch.bool)
    for slot in packing.slots:
        gaps[slot.span] = False
    assert not lost[:, gaps].any()


def test_feedback_sends_in_time_what_top_k_alone_never_would() -> None:
    packing = packing_of(shapes={"x": (4,)})
    delta = packing.zeros(1)
    delta[0, :4] = torch.tensor([1.0, 0.5, -0.25, 0.125])
    for feedback in (True, False):
        compressor = Compressor(TopK(0.25, feedback=feedback), packing, torch.float32)
        read = sum(compressor.send(torch.tensor([7]), delta, 0, round).decoded for round in range(64))
        reached = (read[0, :4] / 64).tolist()  # type: ignore[index]
        assert reached == pytest.approx([1.0, 0.5, -0.25, 0.125] if feedback else [1.0, 0, 0, 0], abs=0.03)


@pytest.mark.parametrize("codec", [TopK(0.2, feedback=False), Sign(feedback=False), Int8(feedback=False)])
def test_without_feedback_nothing_is_kept(codec: Any) -> None:
    packing = packing_of()
    compressor, ids = Compressor(codec, packing, torch.float32), torch.tensor([3, 1])
    for round in range(3):
        deltas = random_vectors(packing, 2, seed=round)
        sent = compressor.send(ids, deltas, 0, round).decoded
        assert torch.equal(sent, codec.encode(deltas, packing, ids, 0, round).decoded)
    assert compressor.tensors() == {}
    compressor.load({})
    with pytest.raises(ValueError, match=r"^tensors: must be empty without feedback, got \['ids', 'vectors'\]"):
        compressor.load({"ids": ids, "vectors": packing.zeros(2)})


@pytest.mark.parametrize("codec", CODECS)
def test_a_run_goes_on_from_a_checkpoint(codec: Any) -> None:
    packing = packing_of()

    def send(compressor: Compressor, round: int) -> Tensor:
        ids = torch.tensor([round % 3, 10 + round % 2, 50])
        return compressor.send(ids, random_vectors(packing, 3, seed=round), 9, round).decoded

    straight = Compressor(codec, packing, torch.float32)
    for round in range(4):
        send(straight, round)
    kept = {name: tensor.clone() for name, tensor in straight.tensors().items()}
    resumed = Compressor(codec, packing, torch.float32)
    resumed.load(kept)
    for round in range(4, 9):
        assert torch.equal(send(straight, round), send(resumed, round))
    for name, tensor in straight.tensors().items():
        assert torch.equal(tensor, resumed.tensors()[name])
    assert len(kept["ids"]) == 6


def test_half_a_message_is_never_kept() -> None:
    packing = packing_of()
    compressor = Compressor(Int8(), packing, torch.float32)
    with pytest.raises(ValueError, match="round: must be"):
        compressor.send(torch.tensor([1]), random_vectors(packing, 1), 0, -1)
    assert len(compressor.tensors()["ids"]) == 0


# ---- the door -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fraction", [0, -0.1, 1.1, math.nan, math.inf, "0.1", True, None])
def test_bad_fractions(fraction: Any) -> None:
    with pytest.raises(ValueError, match=r"^fraction: must be a number in \(0, 1\], got "):
        TopK(fraction)


@pytest.mark.parametrize("kind", [lambda f: TopK(0.1, feedback=f), Sign, Int8])
def test_bad_feedback(kind: Any) -> None:
    with pytest.raises(ValueError, match=r"^feedback: must be True or False, got 1"):
        kind(1)


GOOD: dict[str, Any] = {
    "vectors": random_vectors(packing_of(), 2),
    "packing": packing_of(),
    "ids": torch.tensor([1, 2]),
    "seed": 0,
    "round": 0,
}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"vectors": [[0.0]]}, "vectors: must be a torch.Tensor, got list"),
        ({"vectors": GOOD["vectors"].half()}, "vectors: must be float32 or float64, got torch.float16"),
        ({"vectors": GOOD["vectors"][0]}, "vectors: must have shape (n, 112), got (112,)"),
        ({"vectors": GOOD["vectors"][:, :-1]}, "vectors: must have shape (n, 112), got (2, 111)"),
        ({"vectors": GOOD["vectors"].clone().requires_grad_()}, "vectors: is part of an autograd graph"),
        ({"packing": {"x": (3,)}}, "packing: must be a fastfed.Packing, got dict"),
        ({"packing": packing_of(shapes={"x": (0,)})}, "packing: must hold at least one parameter"),
        ({"ids": [1, 2]}, "ids: must be a torch.Tensor, got list"),
        ({"ids": torch.tensor([1, 2], dtype=torch.int32)}, "ids: must be int64 of shape (2,), got torch.int32 (2,)"),
        ({"ids": torch.tensor([1])}, "ids: must be int64 of shape (2,), got torch.int64 (1,)"),
        ({"ids": torch.tensor([1, -2])}, "ids: must lie in [0, 2**32), got [1, -2]"),
        ({"ids": torch.tensor([1, 1 << 32])}, "ids: must lie in [0, 2**32), got [1, 4294967296]"),
        ({"seed": -1}, "seed: must be a whole number in [0, 2**64), got -1"),
        ({"round": 0.5}, "round: must be a whole number in [0, 2**32), got 0.5"),
    ],
)
def test_bad_calls(codec: Any, bad: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        codec.encode(**(GOOD | bad))
    assert str(caught.value).startswith(message)


def test_bad_calls_of_a_compressor() -> None:
    packing, ids, deltas = packing_of(), torch.tensor([1, 2]), GOOD["vectors"]
    with pytest.raises(TypeError, match=r"^settings: must be TopK, Sign or Int8 of fastfed.compression, got 'int8'"):
        Compressor("int8", packing, torch.float32)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^packing: must be a fastfed.Packing, got int"):
        Compressor(Int8(), 112, torch.float32)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^dtype: must be torch.float32 or torch.float64, got torch.float16"):
        Compressor(Int8(), packing, torch.float16)
    compressor = Compressor(Int8(), packing, torch.float32)
    with pytest.raises(TypeError, match=r"^deltas: must be torch.float32, got torch.float64"):
        compressor.send(ids, deltas.double(), 0, 0)
    with pytest.raises(ValueError, match=r"^deltas: must have shape \(n, 112\), got \(2, 111\)"):
        compressor.send(ids, deltas[:, 1:], 0, 0)
    with pytest.raises(ValueError, match=r"^ids: must hold every client once, got \[1, 1\]"):
        compressor.send(torch.tensor([1, 1]), deltas, 0, 0)
    with pytest.raises(ValueError, match=r"^tensors: must hold ids and vectors, got \['ids'\]"):
        compressor.load({"ids": ids})
    with pytest.raises(
        ValueError, match=r"^tensors: vectors must be torch.float32 of shape \(2, 112\), got .*64 \(2, 112\)"
    ):
        compressor.load({"ids": ids, "vectors": deltas.double()})
    with pytest.raises(
        ValueError, match=r"^tensors: vectors must be torch.float32 of shape \(2, 112\), got .* \(1, 112\)"
    ):
        compressor.load({"ids": ids, "vectors": deltas[:1]})
    assert len(compressor.tensors()["ids"]) == 0


def test_settings_go_through_json() -> None:
    for codec in (TopK(0.25), TopK(1, feedback=False), Sign(), Sign(feedback=False), Int8()):
        written = json.dumps(recipe.to_json("compression", codec))
        assert recipe.from_json(json.loads(written)) == codec
