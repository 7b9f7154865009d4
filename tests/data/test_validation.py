"""Examples that are held out: of every client, or of some clients whole; and what a simulation makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fastfed as ff
from fastfed.app.config import ConfigError, stand_in
from fastfed.app.config.source import Data
from fastfed.data import Federated


@pytest.fixture
def fed() -> Federated:
    return ff.data.dirichlet(ff.data.digits(), clients=17, alpha=0.4, seed=3, examples=(3, 41))


def rows_of(fed: Federated) -> list[int]:
    assert fed.validation_rows is not None
    return sorted([*fed.rows.tolist(), *fed.validation_rows.tolist()])


def test_a_share_of_every_clients_examples_is_held_out(fed: Federated) -> None:
    held = ff.data.hold_out(fed, 0.3, seed=5)
    assert held.validation_rows is not None
    for client in range(len(fed)):
        before, now = set(fed.rows_of(client).tolist()), set(held.rows_of(client).tolist())
        assert now < before or len(before) < 4
        assert before - now <= set(held.validation_rows.tolist())
        assert len(now) == len(before) - int(0.3 * len(before))
    assert rows_of(held) == sorted(fed.rows.tolist())  # none lost, none twice


def test_some_clients_are_held_out_whole(fed: Federated) -> None:
    held = ff.data.hold_out(fed, 0.25, of="clients", seed=5)
    assert (len(fed), len(held)) == (17, 13)
    assert rows_of(held) == sorted(fed.rows.tolist())
    each = [fed.rows_of(client).tolist() for client in range(17)]
    kept = [held.rows_of(client).tolist() for client in range(13)]
    assert kept == [rows for rows in each if rows in kept]  # those who stay, in their order


def test_it_is_a_matter_of_the_seed(fed: Federated) -> None:
    for of in ("examples", "clients"):
        once, again = (ff.data.hold_out(fed, 0.3, of=of, seed=1) for _ in range(2))  # type: ignore[arg-type]
        other = ff.data.hold_out(fed, 0.3, of=of, seed=2)  # type: ignore[arg-type]
        assert once.fingerprint() == again.fingerprint() != other.fingerprint()
        assert once.fingerprint() != fed.fingerprint()


def test_clients_keep_their_names_and_tests() -> None:
    data = ff.data.as_dataset(torch.randn(40, 3), torch.arange(40) % 2, client=torch.arange(40) // 4, test=None)
    fed = ff.data.natural(data)
    held = ff.data.hold_out(fed, 0.5, of="clients")
    for client, name in enumerate(held.client_names):
        whole = fed.client_names.index(name)
        assert held.rows_of(client).tolist() == fed.rows_of(whole).tolist()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"share": 0}, "share: must be a number > 0, got 0"),
        ({"share": 1.0}, r"share: must be a number in \(0, 1\), got 1.0"),
        ({"of": "rows"}, "of: must be 'examples' or 'clients', got 'rows'"),
        ({"share": 1e-4}, "share: 0.0001 of every client of digits is no whole example; see of='clients'"),
    ],
)
def test_refusals(fed: Federated, arguments: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        ff.data.hold_out(fed, **arguments)  # type: ignore[arg-type]


def test_what_is_made_when_visited_has_nothing_to_hold_out(fed: Federated) -> None:
    with pytest.raises(TypeError, match="makes its examples when they are asked for"):
        ff.data.hold_out(ff.data.synthetic_images(clients=5))
    with pytest.raises(ValueError, match="has a validation set already"):
        ff.data.hold_out(ff.data.hold_out(fed))


def simulation(fed: Federated) -> ff.Simulation:
    torch.manual_seed(0)
    model = ff.models.mlp(64, 8, 10)
    return ff.Simulation(model, fed, client=ff.clients.SGD(lr=0.1), cohort=5, batch_size=7)


def test_a_simulation_evaluates_on_what_is_held_out(fed: Federated) -> None:
    held = ff.data.hold_out(fed, 0.3)
    sim = simulation(held)
    history = sim.run(4, evaluate_every=2, progress=False)
    assert held.validation_rows is not None
    inputs, targets = held.examples.batch(held.validation_rows)
    outputs = sim.trained_model()(inputs).detach()
    accuracy = float((outputs.argmax(1) == targets).double().mean())
    loss = float(torch.nn.functional.cross_entropy(outputs, targets))
    assert history.last("validation_accuracy") == pytest.approx(accuracy)
    assert history.last("validation_loss") == pytest.approx(loss, rel=1e-5)
    assert [row["round"] for row in history if "validation_loss" in row] == [2, 4]


def test_a_target_may_be_of_the_validation_set_only_where_there_is_one(fed: Federated) -> None:
    history = simulation(ff.data.hold_out(fed)).run(
        50, evaluate_every=1, target={"validation_accuracy": 0.3}, progress=False
    )
    assert 1 < len(history) < 50
    with pytest.raises(ValueError, match="target: this run does not measure 'validation_loss'"):
        simulation(fed).run(1, target={"validation_loss": 1.0}, progress=False)


def test_a_run_with_a_validation_set_is_resumed(fed: Federated, tmp_path: Path) -> None:
    sim = simulation(ff.data.hold_out(fed, 0.2, of="clients"))
    sim.run(3, checkpoint=tmp_path, progress=False)
    again = ff.Simulation.resume(tmp_path)
    assert again.run(2, progress=False).without_seconds() == sim.run(2, progress=False).without_seconds()
    assert "validation_loss" in again.history.rounds[-1]


def test_examples_that_several_clients_have_cannot_be_held_out(fed: Federated) -> None:
    """What one holds out, another would train on."""
    twice = ff.data.dirichlet(ff.data.digits(), clients=30, alpha=0.5, examples=50, replacement=True)
    for of in ("examples", "clients"):
        with pytest.raises(ValueError, match="fed: some examples of digits are dealt twice"):
            ff.data.hold_out(twice, 0.2, of=of)  # type: ignore[arg-type]


def test_files_keep_what_is_held_out(fed: Federated, tmp_path: Path) -> None:
    held = ff.data.hold_out(fed, 0.3)
    ff.data.save_partition(held, tmp_path / "who.npz")
    assert ff.data.load_partition(ff.data.digits(), tmp_path / "who.npz").fingerprint() == held.fingerprint()
    ff.data.save_store(held, tmp_path / "store")
    opened = ff.data.open_store(tmp_path / "store")
    assert opened.validation_rows is not None
    assert torch.equal(opened.validation_rows, torch.as_tensor(held.validation_rows))


def test_a_configuration_may_take_back_what_its_base_holds_out() -> None:
    data = {"name": "digits", "partition": "iid", "clients": 5, "validation": 0.2}
    assert Data.of(data).validation is not None
    assert Data.of({**data, "validation": "none"}).validation is None
    with pytest.raises(ConfigError, match=r"data\.validation_of: would be ignored"):
        Data.of({**data, "validation": "none", "validation_of": "clients"})
    with pytest.raises(ConfigError, match=r"data\.validation: made-up data is made when it is visited"):
        stand_in({**data, "name": "mnist"})
