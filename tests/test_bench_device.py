"""What a round of executor 'device' costs: how counts grow, what is launched, what the host does."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from fastfed.bench import device_costs as costs
from fastfed.bench.device_costs import FEW, IN_LANES, Moved
from fastfed.kernels.registry import interpreting

if interpreting():
    pytest.skip("kernels are written down here, not interpreted (TRITON_INTERPRET=1)", allow_module_level=True)


def moved(kernel: str, clients: int) -> Moved:
    return Moved(kernel, 100 + 10 * clients, 5 * clients, 300 + clients, {"tf32x3": 7.0 * clients}, 4.0 * clients)


def counted() -> dict[str, list[Moved]]:
    names = {2: ["load", "step", "step", "end", "sum"], 3: ["load", "step", "step", "step", "end", "sum"]}
    found = {f"{c}x{n}": [moved(name, c) for name in names[n]] for c in FEW for n in (2, 3)}
    return found | {f"sum of {c}": [moved("sum", 2 * c)] for c in IN_LANES}


def test_a_round_grows_with_clients_and_steps() -> None:
    made = costs.launches_of_round(counted(), clients=1000, steps=5)
    assert [m.kernel for m in made] == ["load", *["step"] * 5, "end", "sum"]
    assert made[0] == moved("load", 1000)
    assert made[-1] == moved("sum", 2000)  # counted with several clients in every lane


def test_passes_of_a_further_step() -> None:
    assert costs.passes_per_step(counted(), parameters=1) == 1.0  # four bytes more for a client more and a step more


def test_launches_that_differ_in_two_places_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^launches: a step more must be launches more in one place"):
        costs._difference(["a", "b", "c"], ["a", "x", "b", "y", "c"])


@pytest.mark.parametrize(("name", "per_step", "per_round"), [("W1", 0, 5), ("W2", 10, 56), ("W3", 14, 75)])
def test_launches_do_not_depend_on_the_clients(name: str, per_step: int, per_round: int) -> None:
    few, many = (costs.host(name, "SGD", clients) for clients in (3, 10))
    for found in (few, many):
        assert (found.per_step, found.per_round) == (per_step, per_round)
    assert (few.torch_per_step, few.torch_per_round) == (many.torch_per_step, many.torch_per_round)


@pytest.mark.parametrize("rule", ["SGD", "Adam", "SM3"])
def test_no_gradient_is_stored(rule: str) -> None:
    """As large as the clients' models are the models themselves, and Adam's two moments."""
    shapes = costs.allocations("W2", rule)
    assert len(shapes) == {"SGD": 1, "Adam": 3, "SM3": 1}[rule]
    assert set(shapes) == {(10, 199_232)}
