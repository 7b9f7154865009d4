"""Tables: data frames, columns by name, rows as dicts, data sets of Hugging Face, CSV files."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ..checks import nearest
from ..saved.recipe import remembered
from .arrays import as_dataset, stacked
from .dataset import Dataset
from .errors import DataError
from .normalise import Statistic
from .splitting import with_test

Columns = dict[str, Any]  # by name: an array, or a list of whatever the rows hold


@remembered
def from_table(
    table: Any,
    target: str,
    inputs: str | Sequence[str] | None = None,
    client: str | None = None,
    test: Any = None,
    test_fraction: float | None = None,
    seed: int = 0,
    name: str = "table",
    mean: Statistic | None = None,
    std: Statistic | None = None,
) -> Dataset:
    """A table as a data set: a data frame (pandas, polars), a dict of columns, a list of dicts, a data set of Hugging
    Face, or anything with `column_names` (or `columns`) whose columns it gives by name.

    `target` is the column to learn: whole numbers or texts are classes (texts in alphabetical order), other numbers are
    numbers. `inputs` are the columns to learn from, by default all others: numbers, one beside the other, in float32;
    or a single one of arrays, lists or pictures of one shape. `client` is the column that says whose a row is
    (``ff.data.natural`` deals by it). `test` is another such table, or `test_fraction` the share of rows, drawn with
    `seed`, that become the test set. `mean` and `std` normalise pictures.
    """
    columns = _columns("table", table)
    chosen = _chosen(columns, target, inputs, client)
    classes = _classes(columns[target])
    x, y = _inputs(columns, chosen), _targets(target, columns[target], classes)
    tested = None
    if test is not None:
        others = _columns("test", test)
        for column in (target, *chosen):
            if column not in others:
                raise ValueError(f"test: has no column {column!r}; it has {', '.join(map(str, others))}")
        tested = _inputs(others, chosen), _targets(target, others[target], classes)
    owner = None if client is None else _ids(columns[client])
    data = as_dataset(x, y, client=owner, test=tested, name=name, mean=mean, std=std)
    made = Dataset(name, data.train, data.test, data.client, data.client_names, class_names=classes or ())
    return with_test(made, test_fraction, seed)


@remembered
def from_csv(
    file: str | PathLike[str],
    target: str,
    inputs: str | list[str] | None = None,
    client: str | None = None,
    test: str | PathLike[str] | None = None,
    test_fraction: float | None = None,
    seed: int = 0,
    delimiter: str = ",",
) -> Dataset:
    """A CSV file whose first line names its columns, as `from_table` takes a table. `test` is another such file."""
    held = None if test is None else _read_csv(Path(test), delimiter)
    return from_table(
        _read_csv(Path(file), delimiter), target, inputs, client, held, test_fraction, seed, name=Path(file).stem
    )


# ---- columns --------------------------------------------------------------------------------------------------------


def _columns(name: str, table: Any) -> Columns:
    """What a table holds, by column."""
    if isinstance(table, Mapping):
        found = dict(table)
    elif isinstance(table, Sequence) and table and isinstance(table[0], Mapping):
        found = {key: [row.get(key) for row in table] for key in table[0]}
    else:
        names = getattr(table, "column_names", None)
        names = getattr(table, "columns", None) if names is None else names
        if names is None or callable(names):
            kind = type(table).__name__
            raise TypeError(f"{name}: must be a data frame, a dict of columns, or a list of dicts, got {kind}")
        found = {str(key): table[key] for key in names}
    columns = {str(key): _values(column) for key, column in found.items()}
    lengths = {key: len(column) for key, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"{name}: its columns must be of one length, got {lengths}")
    if not columns or not next(iter(lengths.values())):
        raise ValueError(f"{name}: has no rows")
    return columns


def _values(column: Any) -> Any:
    """A column as an array of numbers or texts, else as the list of what it holds."""
    if hasattr(column, "detach"):
        column = column.detach().cpu().numpy()
    if hasattr(column, "cat") and hasattr(column, "astype"):  # categories of pandas
        column = column.astype(object)
    if hasattr(column, "to_numpy"):
        column = column.to_numpy()
    if isinstance(column, np.ndarray) and column.dtype.kind in "iufb":
        return column.astype(np.int64) if column.dtype.kind == "b" else column
    held = list(column)
    kinds = {type(one) for one in held}
    if kinds <= {int, float, bool} or all(issubclass(kind, (np.number, np.bool_)) for kind in kinds):
        return np.asarray(held, dtype=np.float64 if float in kinds else None)
    return held


def _chosen(columns: Columns, target: str, inputs: str | Sequence[str] | None, client: str | None) -> list[str]:
    given = [inputs] if isinstance(inputs, str) else inputs
    for argument, names in (("target", [target]), ("client", [client] if client else []), ("inputs", given or [])):
        for name in names:
            if name not in columns:
                known = tuple(columns)
                raise ValueError(f"{argument}: no column {name!r}; there are {', '.join(known)}.{nearest(name, known)}")
    found = [name for name in columns if name not in (target, client)] if given is None else list(given)
    if not found:
        raise ValueError("inputs: no column is left to learn from")
    if target in found:
        raise ValueError(f"inputs: {target!r} is the target; it cannot be learnt from itself")
    return found


def _inputs(columns: Columns, chosen: Sequence[str]) -> Any:
    """Numbers side by side, or the one column of arrays."""
    if len(chosen) == 1 and not _is_numbers(columns[chosen[0]]):
        held = columns[chosen[0]]
        if isinstance(held, np.ndarray) and held.dtype.kind in "iuf":
            return held
        if isinstance(held, list) and held and not isinstance(held[0], (str, Mapping)) and held[0] is not None:
            return stacked(chosen[0], held)
    for name in chosen:
        if not _is_numbers(columns[name]):
            held = columns[name][0] if len(columns[name]) else None
            what = "texts" if isinstance(held, str) else f"{type(held).__name__}s"
            raise ValueError(
                f"inputs: column {name!r} holds {what}, and only numbers go side by side; leave it out with "
                "inputs=[...], or make numbers of it"
            )
    return np.stack([np.asarray(columns[name], dtype=np.float32) for name in chosen], axis=1)


def _is_numbers(column: Any) -> bool:
    return isinstance(column, np.ndarray) and column.ndim == 1 and column.dtype.kind in "iuf"


def _classes(column: Any) -> tuple[str, ...] | None:
    """The classes of a column of texts, in alphabetical order; None of other columns."""
    if isinstance(column, list) and column and all(isinstance(one, str) for one in column):
        return tuple(sorted(set(column)))
    return None


def _targets(name: str, column: Any, classes: tuple[str, ...] | None) -> Any:
    if classes is None:
        return stacked(name, column) if isinstance(column, list) else column
    places = {one: place for place, one in enumerate(classes)}
    for one in column:
        if one not in places:
            raise ValueError(f"test: {name} has the class {one!r}, which no row for training has")
    return np.array([places[one] for one in column], dtype=np.int64)


def _ids(column: Any) -> Any:
    if isinstance(column, np.ndarray) and column.dtype.kind == "f" and bool((column == column.astype(np.int64)).all()):
        return column.astype(np.int64)
    return column if isinstance(column, np.ndarray) else np.array([str(one) for one in column])


# ---- CSV ------------------------------------------------------------------------------------------------------------


def _read_csv(path: Path, delimiter: str) -> Columns:
    """The columns: of whole numbers, of numbers, or of texts."""
    expected, source = "a CSV file whose first line names its columns", "this file is yours"
    if not path.is_file():
        raise DataError(path, "there is no such file", expected, source)
    with path.open(encoding="utf-8-sig", newline="") as lines:
        try:
            rows = list(csv.reader(lines, delimiter=delimiter))
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(path, f"cannot be read ({error})", expected, source) from error
    rows = [row for row in rows if row]
    if len(rows) < 2:
        raise DataError(path, "has no rows", expected, source)
    head = [name.strip() for name in rows[0]]
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(head):
            raise DataError(path, f"row {number} has {len(row)} cells, the first {len(head)}", expected, source)
        for name, cell in zip(head, row, strict=True):
            if not cell.strip():
                raise DataError(path, f"row {number} has nothing in column {name!r}; fill it in", expected, source)
    return {name: _typed([row[place].strip() for row in rows[1:]]) for place, name in enumerate(head)}


def _typed(cells: list[str]) -> Any:
    for kind in (np.int64, np.float64):
        try:
            return np.array(cells, dtype=kind)
        except (ValueError, OverflowError):
            continue
    return cells
