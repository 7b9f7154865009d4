"""What notebooks see: short lines and small tables, a bar that is drawn once, columns to work with."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import fastfed as ff
from fastfed.app.runs import Run
from fastfed.data import Federation
from fastfed.record import progress


@pytest.fixture(scope="module")
def fed() -> Federation:
    return ff.data.dirichlet(ff.data.digits(), clients=20, alpha=0.5)


@pytest.fixture(scope="module")
def sim(fed: Federation) -> ff.Simulation:
    made = ff.Simulation(ff.models.mlp(64, 10), fed, client=ff.clients.SGD(lr=0.1), cohort=4)
    made.run(rounds=5, evaluate_every=2, progress=False)
    return made


def test_everything_shows_itself_in_a_line_and_as_a_small_table(sim: ff.Simulation, fed: Any) -> None:
    data = ff.data.digits()
    bags = ff.data.as_dataset(torch.eye(3).numpy(), torch.arange(3).numpy())
    made_up = ff.data.synthetic_images(clients=5, classes=3, shape=[1, 4, 4])
    run = Run(".", {}, {"name": "a", "status": "done", "metric": "test_accuracy"}, sim.history, None, None)  # type: ignore[arg-type]
    shown = [sim, fed, data, bags, made_up, fed.examples, fed.examples.inputs, fed.visit(torch.arange(2)), run]
    for one in [*shown, sim.history]:
        assert len(repr(one)) < 400
        assert "\n" not in repr(one)
        assert repr(one).startswith(f"{type(one).__name__}(")
        assert one._repr_html_().startswith("<table>")
        assert len(one._repr_html_()) < 3000


def test_the_lines_say_what_matters(sim: ff.Simulation, fed: Any) -> None:
    each = f"examples=1440, examples_each=72, form='{fed.examples.form}', test={len(fed.test)}"
    assert repr(fed) == f"Federated(name='digits', clients=20, {each})"
    history = sim.history
    for one in (sim, history):
        assert f"test_accuracy={history.last('test_accuracy')!r}" in repr(one)
    assert "client='SGD(lr=0.1)', server='FedAvg()'" in repr(sim)
    assert "650 parameters" in repr(sim)
    assert "<td" in history._repr_html_()
    assert f"{history.last('train_loss'):.4g}" in history._repr_html_()


def test_a_name_in_a_table_is_text() -> None:
    data = ff.data.as_dataset(torch.eye(3).numpy(), torch.arange(3).numpy(), name="<script>")
    assert "&lt;script&gt;" in data._repr_html_()


# ---- columns --------------------------------------------------------------------------------------------------------


def test_a_column_that_is_not_there_is_refused_with_those_that_are(sim: ff.Simulation) -> None:
    history = sim.history
    for ask in (history.column, history.last, history.best, history.columns, lambda name: history.rounds_to(name, 0.5)):
        with pytest.raises(KeyError, match=r"test_acuracy: no round has it; there are round, .*Did you mean"):
            ask("test_acuracy")
    assert history.values("test_acuracy") == []
    assert ff.History().column("test_accuracy") == []


def test_columns_have_equal_lengths(sim: ff.Simulation) -> None:
    found = sim.history.columns("round", "train_loss", "test_accuracy")
    assert found["round"] == [2, 4, 5]
    assert found["test_accuracy"] == sim.history.column("test_accuracy")
    assert found["train_loss"] == [sim.history.rounds[i - 1]["train_loss"] for i in (2, 4, 5)]


@pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="pandas is not installed")
def test_a_table_of_pandas_has_a_line_per_round(sim: ff.Simulation) -> None:
    table = sim.history.to_pandas()
    assert list(table.index) == [1, 2, 3, 4, 5]
    assert table["test_accuracy"].isna().tolist() == [True, False, True, False, False]
    assert table["train_loss"].tolist() == sim.history.column("train_loss")
    assert len(ff.History().to_pandas()) == 0


def test_without_pandas_it_is_named(sim: ff.Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"needs pandas: pip install 'fastfed\[notebook\]'"):
        sim.history.to_pandas()


def test_a_picture_has_the_values(sim: ff.Simulation) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="matplotlib is not installed")
    axes = sim.history.plot()
    assert axes.get_ylabel() == "test accuracy"
    assert axes.lines[0].get_xdata().tolist() == [2, 4, 5]
    assert axes.lines[0].get_ydata().tolist() == sim.history.column("test_accuracy")
    again = sim.history.plot("train_loss", "delta_norm", by="gradients", ax=pyplot.figure().subplots())
    assert [text.get_text() for text in again.get_legend().get_texts()] == ["train loss", "delta norm"]
    assert again.get_xlabel() == "gradients"
    with pytest.raises(KeyError, match="nonsense: no round has it"):
        sim.history.plot("nonsense")
    pyplot.close("all")


# ---- the bar --------------------------------------------------------------------------------------------------------


class ZMQInteractiveShell:
    """What a notebook's kernel calls its shell."""


def test_a_notebook_has_one_output_that_is_replaced(fed: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[dict[str, str]] = []
    outputs: list[dict[str, Any]] = []

    def display(bundle: dict[str, str], **options: Any) -> SimpleNamespace:
        drawn.append(bundle)
        outputs.append(options)
        return SimpleNamespace(update=lambda bundle, raw: drawn.append(bundle))

    kernel, shown = ModuleType("IPython"), ModuleType("IPython.display")
    kernel.get_ipython = ZMQInteractiveShell  # type: ignore[attr-defined]
    shown.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_DRAWINGS", 0.0)
    ff.Simulation(ff.models.mlp(64, 10), fed, client=ff.clients.SGD(lr=0.1), cohort=4).run(rounds=3, evaluate_every=2)
    assert outputs == [{"raw": True, "display_id": True}]
    assert [bundle["text/plain"].split()[1] for bundle in drawn] == ["0/3", "1/3", "2/3", "3/3", "3/3"]
    assert 'value="3" max="3"' in drawn[-1]["text/html"]
    assert "accuracy " in drawn[-1]["text/plain"]
