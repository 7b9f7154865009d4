"""What a round of executor 'device' costs: how counts grow, what is launched, what the host does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("triton", reason="Triton is not installed")

from fastfed import Simulation, simulation
from fastfed.bench import device_costs as costs
from fastfed.bench.device import host, kernels
from fastfed.bench.device.stubbed import as_on_the_host, stubbed_card
from fastfed.bench.device_costs import FEW, IN_LANES, Moved
from fastfed.kernels import registry
from fastfed.record.history import ROOMS
from fastfed.train.device import lanes

if registry.interpreting():
    pytest.skip("kernels are written down here, not interpreted (TRITON_INTERPRET=1)", allow_module_level=True)


def moved(kernel: str, clients: int) -> Moved:
    return Moved(kernel, 100 + 10 * clients, 5 * clients, 300 + clients, {"tf32x3": 7.0 * clients}, 4.0 * clients)


def counted(workload: str) -> dict[str, list[Moved]]:
    names = {n: ["load", *["step"] * n, "end", "sum"] for n in costs.few_steps(workload)}
    found = {f"{c}x{n}": [moved(name, c) for name in made] for c in FEW for n, made in names.items()}
    return found | {f"sum of {c}": [moved("sum", 2 * c)] for c in IN_LANES}


@pytest.mark.parametrize("workload", ["W2", "W3"])
def test_a_round_grows_with_clients_and_steps(workload: str) -> None:
    made = costs.launches_of_round(workload, counted(workload), clients=1000, steps=5)
    assert [m.kernel for m in made] == ["load", *["step"] * 5, "end", "sum"]
    assert made[0] == moved("load", 1000)
    assert made[-1] == moved("sum", 2000)  # counted with several clients in every lane


@pytest.mark.parametrize("workload", ["W2", "W3"])
def test_passes_of_a_further_step(workload: str) -> None:
    found = costs.passes_per_step(workload, counted(workload), parameters=1)
    assert found == 1.0  # four bytes more for a client more and a step more


def test_launches_that_differ_in_two_places_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^launches: a step more must be launches more in one place"):
        costs._difference(["a", "b", "c"], ["a", "x", "b", "y", "c"])


# Of a further local step, and of a round. A single dense layer trains in one launch, but not under SM3, which raises
# maxima between steps.
LAUNCHES = {
    ("W1", "SGD"): (0, 6),
    ("W1", "Adam"): (0, 6),
    ("W1", "SM3"): (8, 22),
    ("W2", "SGD"): (10, 57),
    ("W2", "Adam"): (10, 57),
    ("W2", "SM3"): (12, 66),
    ("W3", "SGD"): (14, 76),
    ("W3", "Adam"): (14, 76),
    ("W3", "SM3"): (15, 81),
}


@pytest.mark.parametrize(("name", "rule"), costs.CASES)
def test_launches_do_not_depend_on_the_clients(name: str, rule: str) -> None:
    few, many = (host.launches_of(name, rule, clients) for clients in host.COHORTS)
    assert few == many
    assert (few.per_step, few.per_round) == LAUNCHES[name, rule]
    assert few.torch_per_step == 0


@pytest.mark.parametrize("rule", ["SGD", "Adam", "SM3"])
def test_no_gradient_is_stored(rule: str) -> None:
    """As large as the clients' models are the models themselves, and Adam's two moments."""
    sizes = host.allocations("W2", rule)
    assert len(sizes) == {"SGD": 1, "Adam": 3, "SM3": 1}[rule]
    assert set(sizes) == {10 * 199_232 * 4}


def test_a_whole_round_is_timed_by_room(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[dict[str, Any]] = []
    step = Simulation.step

    def noting(sim: Simulation) -> dict[str, Any]:
        rows.append(step(sim))
        return rows[-1]

    monkeypatch.setattr(Simulation, "step", noting)
    clock = simulation._Clock
    found = host.seconds_of_rooms("W1", "SGD", 6)
    assert set(found) == {*ROOMS, "round"}
    assert found["round"] >= max(found[room] for room in ROOMS) > 0
    assert simulation._Clock is clock
    assert len(rows) > 1
    for row in rows:  # the made-up answers let a round go its whole way
        assert (row["clients"], row["counted"], row["changed"], row["train_loss"]) == (6, 6, True, 1.0)


def test_the_command_tells_launches_and_host_time(tmp_path: Path) -> None:
    file = tmp_path / "launches.json"
    said = CliRunner().invoke(costs.app, ["--launches", "--only", "W1,SGD", "--json", str(file)])
    assert said.exit_code == 0, said.output
    (row,) = json.loads(file.read_text())
    assert (row["launches_per_step"], row["launches_per_round"]) == LAUNCHES["W1", "SGD"]
    assert row["same_for_10_and_1000_clients"]
    assert row["clients_timed"] == 1000
    assert "the same" in said.output


def test_a_difference_between_cohorts_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "launches_of", lambda name, rule, clients: host.Launches(clients, 0, 0, 0))
    monkeypatch.setattr(host, "seconds_of_rooms", lambda *_: dict.fromkeys((*ROOMS, "round"), 1e-3))
    row = host.launch_row("W1", "SGD")
    assert not row["same_for_10_and_1000_clients"]
    assert "DIFFERENT" in list(host.launch_table([row]).columns[6].cells)


def test_a_stubbed_card_leaves_nothing_behind() -> None:
    x = torch.zeros(3)
    before = registry.pick(None, x), lanes.fetch, dict(registry.BACKENDS), dict(registry._PREFERENCE)
    with stubbed_card() as seen:
        assert registry.pick(None, x).name == "triton"
        with as_on_the_host():
            assert registry.pick(None, x) is before[0]
        assert registry.pick(None, x).name == "triton"
    assert (registry.pick(None, x), lanes.fetch, registry.BACKENDS, registry._PREFERENCE) == before
    assert not seen


def test_the_command_tells_the_worst_form_of_every_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(name: str, rule: str, *_: Any) -> Iterator[kernels.Compiled]:
        for capability in kernels.CAPABILITIES:
            for registers in (40, 30):
                yield kernels.Compiled("a.b", capability, registers, 50 - registers, 64, 2, registers / 100, ("mma",))

    monkeypatch.setattr(kernels, "compiled", made)
    said = CliRunner().invoke(costs.app, ["--layers", "--only", "text,clipped"])
    assert said.exit_code == 0, said.output
    (line,) = (line for line in said.output.splitlines() if "a.b" in line)
    cells = [cell.strip() for cell in line.strip("│").split("│")]
    assert cells == ["a.b", "2", "40 / 40 / 40", "64 / 64 / 64", "30% / 30% / 30%", "20 / 20 / 20", "mma / mma / mma"]


def test_a_case_that_is_not_there_is_refused() -> None:
    for options, wanted in ([], "W1,SGD; W1,Adam"), (["--layers"], "images,SGD; images,Adam"):
        said = CliRunner().invoke(costs.app, [*options, "--only", "W9,SGD"])
        assert said.exit_code == 2
        assert f"must be one of {wanted}" in " ".join(said.output.split())
