"""What a round of every method costs a client: the table of FedAda2, counted by hand, and what rows say of it."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

import fastfed as ff
from fastfed.record import costs

from ..simulation.support import small_federation, small_model

D = 20 * 32 + 32 + 32 * 10 + 10
AXES = (32 + 20) + 32 + (10 + 32) + 10  # a number per row and column of a matrix, one per entry of a vector
TENSORS = 4
TOP, SIGNS, EIGHT_BITS = 8 * 11, 126 + 4 * TENSORS, D + 4 * TENSORS  # 11 are one in a hundred, 126 hold a bit for each

VECTORS = {  # down, up and memory in floats
    "FedAvg": (D, D, 0),
    "FedAvgM": (D, D, 0),
    "FedAdagrad": (D, D, 0),
    "FedAdam": (D, D, 0),
    "FedYogi": (D, D, 0),
    "FedAMS": (D, D, 0),
    "FedProx": (D, D, 0),
    "MOON": (D, D, D),
    "SCAFFOLD": (2 * D, 2 * D, D),
    "Delta-SGD": (D, D, D),
    "FATHOM": (D, D, 0),
    "CC-FedAvg": (D, D, 0),
    "CC-FedSGD": (D, D, 0),
    "CC-FedAdagrad": (D, D, 0),
    "CC-FedAdam": (D, D, 0),
    "CC-FedAMS": (D, D, 0),
    "FedBuff": (D, D, 0),
    "FedAsync": (D, D, 0),
    "FedExP": (D, D, 0),
    "FedNova": (D, D, D),
    "FedDyn": (D, D, D),
    "FedLion": (2 * D, 2 * D, D),
    "Ditto": (D, D, D),
    "joint AdaGrad, nothing transmitted": (D, D, D),
    "joint Adam, nothing transmitted": (D, D, 2 * D),
    "DJA, AdaGrad": (2 * D, D, D),
    "DJA, Adam": (2 * D, D, 2 * D),
    "FedAda2, SM3-AdaGrad": (D, D, AXES),
    "FedAda2, SM3-Adam": (D, D, D + AXES),
    "DJA, SM3-AdaGrad": (2 * D, D, AXES),
    "DJA, SM3-Adam": (2 * D, D, D + AXES),
}
BYTES = {name: (4 * down, 4 * up, 4 * memory) for name, (down, up, memory) in VECTORS.items()} | {
    "FedAvg, top 1% of the delta": (4 * D, TOP, 4 * D),
    "FedAvg, signs": (4 * D, SIGNS, 4 * D),
    "FedAvg, 8 bits": (4 * D, EIGHT_BITS, 4 * D),
}


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 10))


def test_the_table_is_counted_right(capsys: pytest.CaptureFixture[str]) -> None:
    rows = ff.methods.table(model())
    assert {row.method: (row.bytes_down, row.bytes_up, row.optimizer_bytes) for row in rows} == BYTES
    assert capsys.readouterr().out == ""
    printed = str(rows)
    assert "d = 1,002 parameters (4,008 bytes)" in printed
    line = next(line for line in printed.splitlines() if "DJA, SM3-Adam " in line)
    cells = [cell.strip() for cell in line.strip("│").split("│")]
    assert cells[1:] == ["8,016 (2 d)", "4,008 (1 d)", "12,024 (3 d)", "4,552 (1.14 d)"]
    assert all(name in printed for name in BYTES)


def test_numbers_of_eight_bytes_cost_twice_as_much() -> None:
    single, double = (ff.methods.table(each) for each in (model(), model().double()))
    for one, other in zip(single, double, strict=True):
        assert other.bytes_down == 2 * one.bytes_down
    assert [row.optimizer_bytes for row in double] == [2 * row.optimizer_bytes for row in single]


SGD = ff.clients.SGD(lr=0.1)
BLEND = ff.clients.Blend([ff.clients.Part(SGD), ff.clients.Part(ff.clients.Adam(lr=0.1))])


@pytest.mark.parametrize(
    ("settings", "vectors"),
    [
        ({"client": SGD}, 0),
        ({"client": BLEND}, 2),  # of the one that needs most
        ({"client": SGD, "compression": ff.compression.Int8()}, 1),
        ({"client": SGD, "compression": ff.compression.Int8(feedback=False)}, 0),
        ({**ff.methods.moon(0.1), "compression": ff.compression.Sign(), "client": BLEND}, 4),
    ],
)
def test_rows_tell_the_memory_of_a_client(settings: dict[str, Any], vectors: int) -> None:
    sim = ff.Simulation(small_model(), small_federation(), cohort=3, **settings)
    assert sim.step()["client_optimizer_bytes"] == vectors * costs.vector_bytes(sim.packing)
