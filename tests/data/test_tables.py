"""Data as people have it: tables, CSV, folders of pictures, items as dicts, one data set per client."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fastfed as ff
from fastfed.app import config
from fastfed.data import DataError, Dataset, Examples, Pixels, Sparse

AGES, HEIGHTS = [30, 41, 22, 35, 58, 19], [1.7, 1.8, 1.6, 1.75, 1.9, 1.65]
CITIES, OWNERS = ["oslo", "bergen", "oslo", "oslo", "bergen", "oslo"], ["ann", "bob", "ann", "cy", "cy", "bob"]
COLUMNS = {"age": AGES, "height": HEIGHTS, "city": CITIES, "owner": OWNERS}


class Frame:
    """What is asked of a data frame: columns, by name."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self._columns, self.columns = columns, list(columns)

    def __getitem__(self, name: str) -> Any:
        return np.array(self._columns[name], dtype=object if name in ("city", "owner") else None)


class Hub:
    """What is asked of a data set of Hugging Face: rows as dicts, columns by name."""

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self._columns, self.column_names = columns, list(columns)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, key: int | str) -> Any:
        return self._columns[key] if isinstance(key, str) else {name: held[key] for name, held in self._columns.items()}


def as_rows() -> list[dict[str, Any]]:
    return [dict(zip(COLUMNS, row, strict=True)) for row in zip(*COLUMNS.values(), strict=True)]


def tables() -> Iterator[Any]:
    yield COLUMNS
    yield as_rows()
    yield Frame(COLUMNS)
    yield Hub(COLUMNS)
    yield {**COLUMNS, "age": torch.tensor(AGES), "height": np.array(HEIGHTS)}
    if importlib.util.find_spec("pandas") is not None:
        yield importlib.import_module("pandas").DataFrame(COLUMNS)


@pytest.mark.parametrize("table", list(tables()), ids=lambda table: type(table).__name__)
def test_a_table_of_any_kind(table: Any) -> None:
    data = ff.data.from_table(table, target="city", client="owner")
    assert data.class_names == ("bergen", "oslo")
    assert data.labels.tolist() == [1, 0, 1, 1, 0, 1]
    assert isinstance(data.train.inputs, torch.Tensor)
    assert torch.equal(data.train.inputs, torch.tensor([AGES, HEIGHTS]).T)
    assert data.client_names == ("ann", "bob", "cy")
    assert ff.data.natural(data).sizes.tolist() == [2, 2, 2]
    numbers = ff.data.from_table(table, target="height", inputs="age")
    assert numbers.train.targets.dtype is torch.float32  # type: ignore[union-attr]
    assert numbers.train.inputs.shape == (6, 1)  # type: ignore[union-attr]


def test_columns_of_arrays_lists_and_pictures() -> None:
    tokens = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    data = ff.data.from_table({"tokens": tokens, "next": tokens}, target="next")
    assert data.train.inputs.tolist() == data.train.targets.tolist() == tokens  # type: ignore[union-attr]
    images = [np.full((4, 5), shade, np.uint8) for shade in (1, 2, 3)]
    data = ff.data.from_table({"image": images, "label": [0, 1, 0]}, target="label", mean=0.5, std=0.5)
    assert isinstance(data.train.inputs, Pixels)
    assert data.train.inputs.bytes.shape == (3, 1, 4, 5)


def test_a_share_of_the_rows_as_test_set() -> None:
    data = ff.data.from_table({"x": list(range(50)), "y": list(range(50))}, target="y", test_fraction=0.2, seed=3)
    assert data.test is not None
    parts = [part.targets.tolist() for part in (data.train, data.test)]  # type: ignore[union-attr]
    assert (len(parts[0]), len(parts[1])) == (40, 10)
    assert sorted(parts[0] + parts[1]) == list(range(50))
    assert parts[1] != list(range(40, 50))
    assert data.train.inputs[:, 0].tolist() == parts[0]  # type: ignore[union-attr,call-overload]
    again = ff.data.from_torch([(float(i), i) for i in range(50)], test_fraction=0.2, seed=3)
    assert again.test is not None
    assert again.test.targets.tolist() == parts[1]  # type: ignore[union-attr]
    bags = Sparse.of(torch.eye(6)[torch.arange(30) % 6] * torch.arange(1, 31)[:, None])
    held = ff.data.splitting.rows_of(Examples(bags, torch.arange(30)), torch.tensor([29, 4]))
    assert isinstance(held.inputs, Sparse)
    assert torch.equal(held.inputs.dense(torch.arange(2)), bags.dense(torch.tensor([29, 4])))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"target": "town"}, "target: no column 'town'; there are age, height, city, owner."),
        ({"target": "city", "inputs": ["hight"]}, "inputs: no column 'hight'; there are age, height, city, owner. Did"),
        (
            {"target": "age"},
            "inputs: column 'city' holds texts, and only numbers go side by side; leave it out",
        ),
        ({"target": "age", "inputs": ["age"]}, "inputs: 'age' is the target; it cannot be learnt from itself"),
        ({"target": "age", "inputs": ["height"], "test_fraction": 1.5}, "test_fraction: must be a number in (0, 1), g"),
        (
            {"target": "city", "inputs": "age", "test": {"age": [1], "city": ["rome"]}},
            "test: city has the class 'rome', which no row for training has",
        ),
        ({"target": "city", "inputs": "age", "test": {"age": [1]}}, "test: has no column 'city'; it has age"),
        ({"table": {"x": [1, 2], "y": [1]}, "target": "y"}, "table: its columns must be of one length, got {'x': 2, "),
        ({"table": 3, "target": "y"}, "table: must be a data frame, a dict of columns, or a list of dicts, got int"),
        ({"table": {}, "target": "y"}, "table: has no rows"),
    ],
)
def test_tables_that_will_not_do(given: Any, sentence: str) -> None:
    with pytest.raises((ValueError, TypeError), match=f"^{re.escape(sentence)}"):
        ff.data.from_table(**{"table": COLUMNS, **given})


# ---- CSV ------------------------------------------------------------------------------------------------------------

CSV = "age,height,city,owner\n" + "".join(f"{','.join(map(str, row.values()))}\n" for row in as_rows())


def test_a_csv_file_in_python_and_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_text(f"\N{ZERO WIDTH NO-BREAK SPACE}{CSV}", encoding="utf-8")
    data = ff.data.from_csv(path, target="city", client="owner")
    wanted = ff.data.from_table(COLUMNS, target="city", client="owner")
    assert torch.equal(data.labels, wanted.labels)
    assert torch.equal(data.train.inputs, wanted.train.inputs)  # type: ignore[arg-type]
    assert data.name == "people"
    path.write_text(CSV.replace(",", ";"))
    table = {
        "name": "from_csv",
        "file": str(path),
        "target": "city",
        "client": "owner",
        "delimiter": ";",
        "partition": "natural",
        "test_fraction": 0.2,
    }
    made = config.source.Data.of(table)
    fed = made.make()
    assert len(fed) == 3
    assert fed.test is not None
    assert made.written()["test_fraction"] == 0.2


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "there is no such file"),
        ("a,b\n", "has no rows"),
        ("a,b\n1,2\n3\n", "row 3 has 1 cells, the first 2"),
        ("a,b\n1,\n", "row 2 has nothing in column 'b'; fill it in"),
    ],
)
def test_csv_files_that_will_not_do(tmp_path: Path, text: str | None, sentence: str) -> None:
    path = tmp_path / "a.csv"
    if text is not None:
        path.write_text(text)
    with pytest.raises(DataError, match=re.escape(f"{path}: {sentence}. Expected a CSV file")):
        ff.data.from_csv(path, target="b")


# ---- folders --------------------------------------------------------------------------------------------------------


def pictures(home: Path, *names: str, size: tuple[int, int] = (6, 4)) -> Path:
    image = pytest.importorskip("PIL.Image")
    for shade, name in enumerate(names):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        image.new("RGB", size, (shade, 100, 200)).save(home / name)
    return home


def test_folders_of_classes(tmp_path: Path) -> None:
    home = pictures(tmp_path / "pets", "dog/b.png", "cat/a.png", "cat/c.PNG", "dog/d.png")
    (home / "cat" / "notes.txt").write_text("no picture")
    data = ff.data.from_folder(home)
    assert data.class_names == ("cat", "dog")
    assert data.labels.tolist() == [0, 0, 1, 1]
    assert isinstance(data.train.inputs, Pixels)
    assert data.train.inputs.stored == (3, 4, 6)
    assert data.train.inputs.bytes[:, 0, 0, 0].tolist() == [1, 2, 0, 3]
    assert data.test is None
    half = ff.data.from_folder(home, size=3, grey=True, test_fraction=0.5)
    assert half.train.inputs.stored == (1, 3, 3)  # type: ignore[union-attr]
    assert half.test is not None
    assert len(half.test) == 2


def test_folders_of_clients_and_of_train_and_test(tmp_path: Path) -> None:
    home = pictures(tmp_path / "a", "ann/cat/1.png", "ann/dog/1.png", "bob/cat/1.png")
    fed = ff.data.natural(ff.data.from_folder(home, clients=True))
    assert fed.sizes.tolist() == [2, 1]
    assert fed.client_names == ("ann", "bob")
    home = pictures(tmp_path / "b", "train/cat/1.png", "train/dog/1.png", "test/dog/2.png")
    data = ff.data.from_folder(home)
    assert data.test is not None
    assert data.test.targets.tolist() == [1]  # type: ignore[union-attr]
    with pytest.raises(ValueError, match=r"^test_fraction: there is a test set already"):
        ff.data.from_folder(home, test_fraction=0.5)


def test_folders_that_will_not_do(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such directory"):
        ff.data.from_folder(tmp_path / "nowhere")
    with pytest.raises(DataError, match="holds no pictures in folders"):
        ff.data.from_folder(tmp_path)
    pictures(tmp_path, "cat/a.png")
    pictures(tmp_path, "dog/b.png", size=(5, 5))
    with pytest.raises(DataError, match=r"b\.png: is 5x5, and the first picture 6x4; size=\.\.\. makes them alike"):
        ff.data.from_folder(tmp_path)
    (tmp_path / "cat" / "z.png").write_text("text")
    with pytest.raises(DataError, match=r"z\.png: is no picture"):
        ff.data.from_folder(tmp_path, size=4)


# ---- items ----------------------------------------------------------------------------------------------------------


def test_items_as_dicts_and_lists(tmp_path: Path) -> None:
    hub = Hub({"image": [[[0.0, 1.0], [2.0, 3.0]], [[4.0, 5.0], [6.0, 7.0]]], "label": [1, 0], "id": ["a", "b"]})
    data = ff.data.from_torch(hub)
    assert data.labels.tolist() == [1, 0]
    assert data.train.inputs.shape == (2, 2, 2)  # type: ignore[union-attr]
    assert ff.data.from_torch([(torch.ones(3), 2), (torch.zeros(3), 1)]).labels.tolist() == [2, 1]
    with pytest.raises(ValueError, match=r"^dataset: item 0 has no target, one of label, labels, .*; it has image, id"):
        ff.data.from_torch(Hub({"image": [1.0], "id": ["a"]}))
    with pytest.raises(TypeError, match=r"^dataset: item 0 must be a pair \(input, target\) or a dict, got float"):
        ff.data.from_torch([1.0])
    with pytest.raises(ValueError, match=r"^dataset\[0\]: must be lists of one length, within each other too"):
        ff.data.from_torch([([[1], [2, 3]], 0)])
    if importlib.util.find_spec("datasets") is not None:
        real = importlib.import_module("datasets").Dataset.from_dict({"x": [[1.0, 2.0], [3.0, 4.0]], "label": [0, 1]})
        assert ff.data.from_torch(real).labels.tolist() == [0, 1]
        assert ff.data.from_table(real, target="label").train.inputs.shape == (2, 2)  # type: ignore[union-attr]


# ---- clients --------------------------------------------------------------------------------------------------------


def pair(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    drawn = np.random.default_rng(seed)
    return drawn.normal(size=(rows, 3)), drawn.integers(0, 2, rows)


def test_one_data_set_per_client() -> None:
    parts = {"ann": pair(4, 0), "bob": list(zip(*pair(2, 1), strict=True)), "cy": Hub({"x": [[1.0] * 3], "y": [1]})}
    tests = {"ann": pair(2, 3), "cy": pair(1, 4)}
    fed = ff.data.from_clients(parts, tests=tests)
    assert fed.client_names == ("ann", "bob", "cy")
    assert fed.sizes.tolist() == [4, 2, 1]
    assert fed.test is not None
    assert len(fed.test) == 3
    visit = fed.visit_tests(torch.tensor([2, 1, 0]))
    assert visit is not None
    assert visit.offsets.tolist() == [0, 1, 1, 3]
    rows = visit.examples.batch(visit.rows)[0]
    assert torch.allclose(rows[1:], torch.from_numpy(pair(2, 3)[0]).float())
    sim = ff.Simulation(nn.Linear(3, 2), fed, client=ff.clients.SGD(lr=0.1), cohort=2)
    row = sim.run(rounds=2, per_client=True, progress=False).rounds[-1]
    assert {"test_accuracy", "client_accuracy_mean"} <= set(row)


def test_a_share_of_every_client_as_its_tests() -> None:
    fed = ff.data.from_clients([pair(10, 0), pair(1, 1), pair(5, 2)], test_fraction=0.2)
    assert fed.sizes.tolist() == [8, 1, 4]
    assert fed.test_offsets is not None
    assert fed.test_offsets.tolist() == [0, 2, 2, 3]
    assert len(ff.data.from_clients([pair(3, 0)], test=pair(7, 1)).test or ()) == 7
    whole = ff.data.from_clients([Dataset("a", Examples(torch.ones(2, 3), torch.ones(2).long())), pair(2, 1)])
    assert whole.sizes.tolist() == [2, 2]


@pytest.mark.parametrize(
    ("clients", "given", "sentence"),
    [
        (3, {}, "clients: must be a list of data sets, or a dict of them by name, got int"),
        ([], {}, "clients: there are none"),
        ([pair(2, 0), (np.ones((2, 4)), np.ones(2, int))], {}, "clients[1]: must be like the first, float32 (3,)"),
        (
            [pair(2, 0)],
            {"tests": [pair(1, 0), pair(1, 1)]},
            "tests: must be one for each of the 1 clients",
        ),
        ({"a": pair(2, 0)}, {"tests": {"b": pair(1, 0)}}, "tests: 'b' is no client"),
        ({"a": pair(2, 0)}, {"tests": [pair(1, 0)]}, "tests: must be a dict where clients is one"),
        (
            [pair(2, 0)],
            {"test": pair(1, 0), "test_fraction": 0.5},
            "tests: give one of tests, test and test",
        ),
        ([pair(2, 0)], {"test": (np.ones((2, 4)), np.ones(2, int))}, "test: must be like the clients' examples, float"),
        ([(np.ones((2, 3)), np.ones(3, int))], {}, "clients[0]: y: has 3 rows, x has 2"),
    ],
)
def test_clients_that_will_not_do(clients: Any, given: Any, sentence: str) -> None:
    with pytest.raises((ValueError, TypeError), match=f"^{re.escape(sentence)}"):
        ff.data.from_clients(clients, **given)
