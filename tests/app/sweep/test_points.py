"""The points that a file and the command line come to."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastfed.app import sweep
from fastfed.app.config import ConfigError, load
from fastfed.app.sweep import points

from .support import BASE, write

NO_RULES = BASE.replace('rule = "sgd"', "lr = 1.0", 2).replace("lr = 1.0\n", "", 1)
VARIANTS = """
[sweep]
seeds = 2
metric = "test_loss"
last = 2

[sweep.grid]
"client.lr" = "0.1:1:log2"
server.lr = [0.5, 1.0]

[[sweep.variants]]
name = "SGD"
set = { client.clip = 1.0 }

[[sweep.variants]]
name = "FedProx"
set = { "client.prox" = 0.1, server = { lr = 2.0 } }
grid = { "client.weight_decay" = [0.0, 0.1] }
"""


def test_every_combination_once_in_order(tmp_path: Path) -> None:
    plan = sweep.plan(write(tmp_path), ["client.lr=0.1,1", "server.lr=0.5,1"], seeds=2)
    told = [(p.settings["client.lr"], p.settings["server.lr"], p.seed) for p in plan.points]
    assert told == [(lr, server, seed) for lr in (0.1, 1) for server in (0.5, 1) for seed in (0, 1)]
    last = plan.configs[plan.points[-1].name]
    assert (last.settings["client"].lr, last.settings["server"].lr, last.seed) == (1, 1, 1)
    assert len({point.name for point in plan.points}) == len({point.cell for point in plan.points}) * 2 == 8


def test_variants_have_settings_and_axes_of_their_own(tmp_path: Path) -> None:
    plan = sweep.plan(write(tmp_path, VARIANTS))
    sgd = [point for point in plan.points if point.variant == "SGD"]
    prox = [point for point in plan.points if point.variant == "FedProx"]
    assert (len(sgd), len(prox)) == (2 * 2 * 2, 2 * 2 * 2)
    assert {tuple(point.settings) for point in sgd} == {("client.lr", "server.lr")}
    assert {tuple(point.settings) for point in prox} == {("client.lr", "client.weight_decay")}
    config = plan.configs[prox[-1].name]
    assert config.settings["server"].lr == 2.0  # set by the variant, which has no part in the shared axis
    assert (config.settings["client"].prox, config.settings["client"].weight_decay) == (0.1, 0.1)
    assert (plan.spec.seeds, plan.spec.metric, plan.spec.window.evaluations) == (2, "test_loss", 2)


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    plan = sweep.plan(
        write(tmp_path, VARIANTS), ["server.lr=3,4"], ["client.lr=0.7", "run.rounds=9"], seeds=1, metric="train_loss"
    )
    assert (plan.spec.seeds, plan.spec.metric) == (1, "train_loss")
    assert all("client.lr" not in point.settings for point in plan.points)
    configs = list(plan.configs.values())
    assert {config.settings["client"].lr for config in configs} == {0.7}
    assert {config.settings["server"].lr for config in configs} == {3, 4}  # the variant's own too
    assert {config.run_settings["rounds"] for config in configs} == {9}


def test_a_point_is_the_run_of_the_same_settings(tmp_path: Path) -> None:
    file = write(tmp_path)
    config = sweep.plan(file, ["client.lr=0.3"], seeds=2).configs["client.lr=0.3,seed=1"]
    alone = load(file, ["client.lr=0.3", "run.seed=1"]).resolved()
    told = config.resolved()
    assert told.pop("name") == "client.lr 0.3"
    for key in ("checkpoint_every", "keep"):
        told["run"].pop(key), alone["run"].pop(key)
    assert told == alone


def test_an_axis_of_whole_tables(tmp_path: Path) -> None:
    plan = sweep.plan(write(tmp_path), ['client={rule="sgd",lr=1.0},{rule="adam",lr=0.01}', "client.clip=1,2"])
    rules = [
        (c.settings["client"].rule, c.settings["client"].lr, c.settings["client"].clip) for c in plan.configs.values()
    ]
    assert rules == [("sgd", 1.0, 1), ("sgd", 1.0, 2), ("adam", 0.01, 1), ("adam", 0.01, 2)]
    assert plan.points[0].method == "client sgd (lr 1)"
    assert plan.points[0].label == "client sgd (lr 1), client.clip 1"
    assert all(set(point.name) <= set("abcdefghijklmnopqrstuvwxyzABCDEF0123456789.,=+-") for point in plan.points)


def test_what_is_learnt_who_learns_and_what_is_tuned(tmp_path: Path) -> None:
    found = sweep.plan(
        write(tmp_path, base=NO_RULES), ["method=fedavg,fedyogi", "data.alpha=0.1,1", "client.lr=0.1,1"]
    ).points
    assert found[-1].task == {"data.alpha": 1}
    assert found[-1].method == "FedYogi"
    assert found[-1].numbers == {"client.lr": 1}
    assert found[-1].label == "FedYogi, data.alpha 1, client.lr 1"


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ("[sweep]\nseed = 3", "digits.toml: sweep.seed: no such key (there are seeds, metric"),
        ("[sweep]\nseeds = 0", "sweep.seeds: must be a whole number >= 1, got 0"),
        ("[sweep]\nlast = true", "sweep.last: must be a whole number >= 1, got True"),
        ("[sweep]\nlast = 2\nlast_rounds = 10", "sweep.last: give a number of evaluations or of rounds"),
        ("[sweep]\nselect = 3", "sweep.select: must be a column of the rounds, as in test_accuracy, got 3"),
        ("[sweep]\nmetric = 3", "sweep.metric: must be a column of the rounds"),
        ("[sweep]\ngrid = 3", "sweep.grid: must be a table of dotted keys"),
        ("[sweep.grid]\nx = 3", "sweep.grid: x must have a list a,b,c, or a range"),
        ("[sweep.grid]\nx = '1:2:log'", "sweep.grid: x: a range must end in logN or linN"),
        ("[sweep]\nvariants = 3", "sweep.variants: must be tables [[sweep.variants]]"),
        ("[[sweep.variants]]\nset = {}", "sweep.variants[0].name: must be a string"),
        ("[[sweep.variants]]\nname = 'a'\nsets = {}", "sweep.variants[0].sets: no such key"),
        ("[[sweep.variants]]\nname = 'a'\nset = 3", "sweep.variants[0].set: must be a table"),
        ("[[sweep.variants]]\nname = 'a'\n[[sweep.variants]]\nname = 'a'", "two of them are called 'a'"),
        ("[sweep.grid]\nclient.lrr = [1.0]", "client.lrr: client rule 'sgd' has no such option"),
        ("[sweep.grid]\nclient.lr = [1.0, -1.0]", "(in the point client.lr -1)"),
    ],
)
def test_mistakes_in_the_file(tmp_path: Path, more: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        sweep.plan(write(tmp_path, more))
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"grid": ["client.lr=1", "client.lr=2"]}, "--grid: client.lr is given twice"),
        ({"grid": ["client.lr=1"], "sets": ["client.lr=2"]}, "--grid: client.lr is given by --set too"),
        ({"grid": ["name=a,b"]}, "--grid: name cannot be an axis"),
        ({"grid": ["run.threads=1,2"]}, "--grid: run.threads cannot be an axis"),
        ({"grid": ["run.seed=1,2"], "seeds": 2}, "--seeds: run.seed is an axis of the grid already"),
        ({"grid": ["client.lr.x=1"]}, "--grid: client.lr is not a table, so client.lr.x cannot be set"),
        ({"metric": "test_accurcy"}, "--metric: the runs do not measure 'test_accurcy'; they measure train_loss, "),
        ({"metric": "test_loss", "sets": ["run.evaluate_every=0"]}, "they measure train_loss"),
        ({"select": "validation_loss"}, "--select: the runs do not measure 'validation_loss'; they measure train_"),
        ({"last": 2, "last_rounds": 3}, "--last: give a number of evaluations or of rounds (last_rounds), not both"),
    ],
)
def test_mistakes_on_the_command_line(tmp_path: Path, arguments: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        sweep.plan(write(tmp_path), **arguments)  # type: ignore[arg-type]
    assert str(caught.value).startswith(sentence) or sentence in str(caught.value)
    assert str(caught.value).startswith("--")


def test_threads_of_the_file_are_those_of_the_points(tmp_path: Path) -> None:
    assert sweep.plan(write(tmp_path)).threads is None
    plan = sweep.plan(write(tmp_path), sets=["run.threads=3"])
    assert plan.threads == 3
    (config,) = plan.configs.values()
    assert points.with_threads(config, 1).settings["threads"] == 1


def test_too_many_points_are_a_mistake(tmp_path: Path) -> None:
    grid = [f"{key}=1:1000:lin1000" for key in ("client.lr", "server.lr")]
    with pytest.raises(ConfigError, match=r"--grid: comes to 1,000,000 runs"):
        sweep.plan(write(tmp_path), grid)


RULES = """
[[sweep.variants]]
name = "averaging"
set = { server = { rule = "sgd", lr = 1.0 } }

[[sweep.variants]]
name = "Adam"
set = { server = { rule = "adam", lr = 0.1 } }

[[sweep.variants]]
name = "Yogi"
set = { server = { rule = "yogi", lr = 0.1 } }
"""


def test_a_setting_is_left_out_where_a_rule_would_ignore_it(tmp_path: Path) -> None:
    file = write(tmp_path, RULES)
    plan = sweep.plan(file, sets=["server.tau=0.25", "run.rounds=3"])
    servers = {point.variant: plan.configs[point.name].settings["server"] for point in plan.points}
    assert [getattr(server, "tau", None) for server in servers.values()] == [None, 0.25, 0.25]
    assert plan.skipped == {"server.tau=0.25": ("averaging",)}
    assert {config.run_settings["rounds"] for config in plan.configs.values()} == {3}


def test_a_setting_that_no_variant_takes_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path, RULES)
    with pytest.raises(ConfigError, match=r"server.momentum: .* would ignore it, .*\(in the point averaging\)"):
        sweep.plan(file, sets=["server.momentum=0.9"])
    with pytest.raises(ConfigError, match=r"server.tau: .*\(in the point Adam\)"):
        sweep.plan(file, sets=["server.tau=-1"])
    with pytest.raises(ConfigError, match=r"server.tua: .* has no such option"):
        sweep.plan(file, sets=["server.tua=0.1"])
