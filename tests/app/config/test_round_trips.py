"""A configuration that is written with every default stated, and read again, is the same and gives the same run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fastfed.app import config
from fastfed.app.config import kinds
from fastfed.app.config import method as methods
from fastfed.app.config.options import arguments_of
from fastfed.app.config.parts import CHOICES

from .support import DATA, needed, others, read_again, tables


def assert_stays(made: config.Config) -> None:
    """Nothing is lost or changed on the way through tables, and through a file."""
    assert config.parse(made.resolved()).resolved() == made.resolved()
    assert read_again(made).resolved() == made.resolved()


def of_kind(table: str, kind: str) -> dict[str, Any]:
    return {CHOICES[table].key: kind, **needed(CHOICES[table].kinds[kind])}


OPTIONAL = [(name, kind) for name, table in CHOICES.items() for kind in table.kinds]


@pytest.mark.parametrize(("table", "kind"), OPTIONAL, ids=lambda word: word)
def test_every_kind_of_every_table(table: str, kind: str) -> None:
    given = of_kind(table, kind)
    made = config.parse(tables(**{table: given}))
    assert_stays(made)
    written = made.resolved()[table]
    assert {key: written[key] for key in given} == given
    assert set(written) == {CHOICES[table].key, *arguments_of(CHOICES[table].kinds[kind])}


@pytest.mark.parametrize(("table", "kind"), OPTIONAL, ids=lambda word: word)
def test_every_option_is_kept_or_refused_by_name(table: str, kind: str) -> None:
    arguments = arguments_of(CHOICES[table].kinds[kind]).values()
    outcomes = [kept_or_refused(table, kind, one.name, value) for one in arguments for value in others(one)]
    assert "kept" in outcomes or not outcomes


def kept_or_refused(table: str, kind: str, argument: str, value: Any) -> str:
    try:
        made = config.parse(tables(**{table: {**of_kind(table, kind), argument: value}}))
    except config.ConfigError as error:
        return "refused" if str(error).startswith(f"{table}.") else pytest.fail(f"does not name the key: {error}")
    assert made.resolved()[table][argument] == value
    assert read_again(made).resolved()[table][argument] == value
    return "kept"


@pytest.mark.parametrize("side", ["client", "server"])
@pytest.mark.parametrize("kind", kinds.SCHEDULES)
def test_every_schedule(side: str, kind: str) -> None:
    lists = {"rounds": [1, 2], "factors": [0.5, 0.25], "at": [0.5, 0.75]}
    given = {"kind": kind, **needed(kinds.SCHEDULES[kind])}
    given |= {key: lists[key] for key, value in given.items() if value == "somewhere"}
    made = config.parse(tables(schedule={side: given}))
    assert_stays(made)
    assert {key: made.resolved()["schedule"][side][key] for key in given} == given


@pytest.mark.parametrize("model", kinds.MODELS)
def test_every_model(model: str) -> None:
    given = {"sizes": [3, 4]} if model == "mlp" else needed(kinds.MODELS[model])
    made = config.parse(tables(model={"name": model, **given}))
    assert_stays(made)
    assert set(made.resolved()["model"]) == {"name", *arguments_of(kinds.MODELS[model])}


def _all_data() -> list[tuple[str, str | None]]:
    found = kinds.LOADERS.items()
    return [(name, deal) for name, load in found for deal in ([None] if kinds.has_clients(load) else kinds.PARTITIONS)]


@pytest.mark.parametrize(("name", "partition"), _all_data())
def test_every_loader_with_every_partition(name: str, partition: str | None) -> None:
    given = {"name": name, **needed(kinds.LOADERS[name])}
    if partition is not None:
        given |= {"partition": partition, **needed(kinds.PARTITIONS[partition], "data")}
    made = config.parse(tables(data=given))
    assert_stays(made)
    written = made.resolved()["data"]
    assert {key: value for key, value in written.items() if key in given and value != "somewhere"} | given == {
        key: written[key] if given[key] != "somewhere" else "somewhere" for key in given
    }
    loose = [key for key, value in written.items() if value == "somewhere" and key != "target"]  # which is a column
    assert not loose, "a relative path was not made whole"


@pytest.mark.parametrize("method", kinds.METHODS)
def test_every_method(method: str) -> None:
    shown = methods.tables(method)
    run = {"rounds": 2, "cohort": 4, **shown.get("run", {})}
    made = config.parse({"data": DATA, "model": {"name": "mlp", "sizes": [64, 10]}, **shown, "run": run})
    assert_stays(made)
    assert made.resolved()["method"] == method
    for name in methods.homes(method):
        table, _, key = methods.homes(method)[name].partition(".")
        assert key in made.resolved()[table], f"{name} is not written"


BLEND = {
    "rule": "blend",
    "parts": [
        {"rule": "sgd", "lr": 0.1, "share": 0.5, "steps": 2},
        {"rule": "sm3", "lr": 0.05, "share": 0.5, "weight": 2.0},
    ],
}
PRIVATE = {"clip": 0.5, "noise": 1.0, "delta": 1e-3}
FLEET = {"step_seconds": 0.1, "spread": 1.0, "dropout": 0.1}
CASES: dict[str, dict[str, Any]] = {
    "FedAvg": tables(method="fedavg", client={"lr": 0.1}, server=None),
    "FedAda2 with DJA": tables(
        method="fedada2",
        method_options={"sm3": False, "transmit": True},
        client={"lr": 0.05, "rule": "adam"},
        server={"lr": 0.1, "rule": "adam", "tau": 0.01},
    ),
    "FedProx": tables(
        method="fedprox", method_options={"mu": 0.3}, client={"lr": 0.1}, server={"rule": "yogi", "lr": 1}
    ),
    "FedAdam as torch's": tables(server={"rule": "adam", "lr": 0.1, "bias_correction": True, "eps": "torch"}),
    "MOON": tables(method="moon", client={"lr": 0.1}, server=None, exchange={"mu": 0.5}),
    "SCAFFOLD": tables(method="scaffold", client=None, server=None),
    "FATHOM": tables(method="fathom", client={"lr": 0.1}, server=None, tuner={"gamma_lr": 0.05}),
    "client-centric": tables(
        method="client_centric", client={"lr": 0.1}, server={"lr": 0.1}, timing={"buffer": 2}, run={"rounds": 3}
    ),
    "FedBuff": tables(
        method="fedbuff", client={"lr": 0.1}, server=None, timing={"concurrency": 4, "fleet": FLEET}, run={"rounds": 3}
    ),
    "waves until a clock": tables(timing={"kind": "waves", "size": 4, "fleet": FLEET}, run={"until_clock": 3.0}),
    "a blend": tables(client=BLEND),
    "with replacement": tables(run={"rounds": 2, "cohort": {"size": 30, "replacement": True}}),
    "by shares": tables(run={"rounds": 2, "cohort": {"size": 4, "shares": {"alpha": 0.5}}}),
    "those who are there": tables(run={"rounds": 2, "cohort": {"availability": {"period": 5, "length": 2}}}),
    "client-centric, in waves": tables(
        timing={"kind": "client_centric", "shares": {"spread": 1.0}, "availability": {"period": 9.5, "low": 0.1}},
        run={"rounds": 2, "divide_by_epochs": True},
    ),
    "privacy": tables(privacy=PRIVATE, run={"rounds": 2, "cohort": {"poisson": 0.3}, "weights": "uniform"}),
    "adaptive clipping": tables(
        privacy={**PRIVATE, "adaptive": {"quantile": 0.4, "count_noise": 1.0}},
        run={"rounds": 2, "cohort": {"poisson": 0.3}, "weights": "uniform"},
    ),
    "TopK": tables(compression={"kind": "top_k", "fraction": 0.1}),
    "Int8": tables(compression={"kind": "int8"}),
    "schedules": tables(
        schedule={"client": {"kind": "staircase", "factor": 0.5, "every": 1}, "server": {"kind": "constant"}}
    ),
    "cohorts by round": tables(run={"rounds": 2, "cohort": [[0, 1], [2, 3, 4]], "steps": 3}),
    "a target": tables(run={"rounds": 4, "cohort": 5, "target": {"train_loss": 2.0}, "per_client": True}),
    "synthetic data": tables(
        data={"name": "synthetic_images", "clients": 10, "shape": [1, 8, 8], "examples": 20, "seed": 3}
    ),
    "weights by client": tables(run={"rounds": 2, "cohort": 4, "weights": [1.0 + i for i in range(20)], "seed": 5}),
}


def ran(made: config.Config) -> tuple[list[dict[str, Any]], bytes]:
    sim = made.simulation()
    sim.run(**made.run_settings, progress=False)
    return sim.history.without_seconds(), sim.params.numpy().tobytes()


@pytest.mark.parametrize("case", CASES)
def test_the_file_that_is_written_gives_the_same_bits(case: str) -> None:
    made = config.parse(CASES[case])
    assert_stays(made)
    rows, bits = ran(made)
    again = ran(read_again(made))
    assert rows
    assert again == (rows, bits)
    other = {**CASES[case], "run": {**CASES[case]["run"], "seed": 77}}
    assert ran(config.parse(other))[1] != bits, "the seed does not matter"


def test_the_seed_of_the_run_is_that_of_the_first_weights() -> None:
    one, other = (config.parse(tables(run={"rounds": 1, "cohort": 2, "seed": seed})) for seed in (1, 2))
    first: Callable[[config.Config], list[float]] = lambda made: next(made.make_model().parameters()).flatten().tolist()  # noqa: E731
    assert first(one) == first(one)
    assert first(one) != first(other)
    assert (one.seed, other.seed) == (1, 2)


@pytest.mark.parametrize(
    ("key", "table", "kind"),
    [
        ("availability", {"period": 10}, "Sinusoidal"),
        ("availability", {"period": 10, "length": 3}, "Cyclic"),
        ("availability", {"period": 10, "high": 0.5}, "Sinusoidal"),
        ("shares", {"alpha": 0.3}, "Dirichlet"),
        ("shares", {"spread": 0.3}, "LogNormal"),
    ],
    ids=str,
)
def test_of_several_tables_the_one_is_meant_that_is_whole(key: str, table: dict[str, Any], kind: str) -> None:
    made = config.parse(tables(run={"rounds": 1, "cohort": {"size": 2, key: table}}))
    assert type(getattr(made.simulation().settings.cohort, key)).__name__ == kind
    assert_stays(made)


@pytest.mark.parametrize(("key", "lacks"), [("availability", "period"), ("shares", "alpha")])
def test_a_table_that_is_none_of_several_is_told_what_it_lacks(key: str, lacks: str) -> None:
    with pytest.raises(config.ConfigError, match=rf"run\.cohort\.{key}\.{lacks}: must be given, a number"):
        config.parse(tables(run={"rounds": 1, "cohort": {"size": 2, key: {}}}))


def test_an_argument_of_a_method_in_run_means_what_it_means_in_python() -> None:
    made = config.parse(
        {"method": "client_centric", "data": DATA, "model": tables()["model"], "client": {"lr": 0.1}}
        | {
            "server": {"rule": "sgd", "lr": 1.0},
            "timing": {"buffer": 2},
            "run": {"rounds": 1, "divide_by_epochs": True},
        }
    )
    settings = made.simulation().settings
    assert (settings.divide_by_steps, settings.divide_by_epochs) == (False, True)
    assert_stays(made)
