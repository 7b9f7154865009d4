"""Where the data comes from when the command line says so: other directories, or made-up data in their place.

A stand-in has the shapes of the data set's inputs and targets, so that a file's model and loss fit it, and about as
many clients with about as many examples, dealt as the file's partition says. What it cannot tell is how well a method
does on the real data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .errors import ConfigError
from .kinds import LOADERS
from .options import NONE, arguments_of, checked, require
from .source import HELD_OUT, Model, Source, data_model, directories, named_loader, option_owner, partition_of

SYNTHETIC = "synthetic"
_FAMILY = f"{SYNTHETIC}_"
_SUFFIX = " (synthetic data)"

Arguments = Mapping[str, Any]


@dataclass(frozen=True)
class _Task:
    """Made-up data in the shapes of a data set: the loader that makes it and what that is given. `rows` training
    examples belong to `clients` natural clients (None: nobody knows any), whose sizes have the `spread`. `even` is what
    makes all clients alike."""

    loader: str
    given: Arguments
    rows: float
    clients: int | None = None
    spread: float = 0.5
    even: Arguments = field(default_factory=dict)

    @property
    def has_classes(self) -> bool:
        return "classes" in self.given


_GREY, _COLOUR = [1, 28, 28], [3, 32, 32]
_EVEN = 1000.0  # the alpha of clients that hardly differ in their classes
_EMNIST = {  # classes and training rows of its splits
    "byclass": (62, 697_932), "bymerge": (47, 697_932), "balanced": (47, 112_800), "letters": (26, 124_800),
    "digits": (10, 240_000), "mnist": (10, 60_000),
}  # fmt: skip


def _images(classes: int, shape: Sequence[int], rows: float, loader: str = "images", **more: Any) -> _Task:
    given = {"classes": classes, "shape": list(shape)}
    return _Task(f"{_FAMILY}{loader}", given, rows, even={"alpha": _EVEN}, **more)


def _photographs(classes: int, given: Arguments, **more: Any) -> _Task:
    """CIFAR's; seen as the file asks for."""
    task = _images(classes, _COLOUR, 50_000, **more)
    asked = {key: given[key] for key in ("crop", "flip", "standardise") if given[key] not in (False, NONE)}
    return replace(task, given={**task.given, **asked})


def _emnist(given: Arguments) -> _Task:
    if given["split"] not in _EMNIST:
        raise ConfigError(f"data.split: must be one of {', '.join(_EMNIST)}, got {given['split']!r}")
    classes, rows = _EMNIST[given["split"]]
    return _images(classes, _GREY, rows)


def _writers(given: Arguments) -> _Task:
    classes, rows, clients = (10, 341_873, 3383) if given["only_digits"] else (62, 671_585, 3400)
    loader = "autoencoder" if given["autoencoder"] else "images"
    return _images(classes, _GREY, rows, loader, clients=clients)


def _text(vocabulary: int, length: int, rows: float, clients: int, spread: float) -> _Task:
    given = {"vocabulary": vocabulary, "length": length}
    return _Task(f"{_FAMILY}text", given, rows, clients, spread, even={"skew": 0.0})


def _topics(classes: int, rows: float, given: Arguments) -> _Task:
    vocabulary = given["words"] if given["bag"] else given["words"] + 4
    told = {"classes": classes, "vocabulary": vocabulary, "length": given["length"], "bag": given["bag"]}
    return _Task(f"{_FAMILY}topics", told, rows, even={"alpha": _EVEN})


def _landmarks(given: Arguments) -> _Task:
    return _images(203, [3, given["size"], given["size"]], 23_080, clients=233, spread=0.6)


def _tags(given: Arguments, rows: float, clients: int, spread: float) -> _Task:
    told = {name: given[name] for name in ("words", "tags", "labels")}
    return _Task(f"{_FAMILY}tags", told, rows, clients, spread)


def _users(given: Arguments) -> dict[str, Any]:
    """Stack Overflow's 342,477 users with 135,818,730 examples; a file may keep fewer of both."""
    clients, most = given["clients"] or 342_477, given["examples"] or math.inf
    return {"rows": clients * min(135_818_730 / 342_477, most), "clients": clients, "spread": 1.0}


# Which made-up data stands in for which data set; the arguments of its loader say the rest.
STAND_INS: Mapping[str, Callable[[Arguments], _Task]] = {
    "digits": lambda given: _images(10, [1, 8, 8], 1442),
    "mnist": lambda given: _images(10, _GREY, 60_000),
    "fashion_mnist": lambda given: _images(10, _GREY, 60_000),
    "emnist": _emnist,
    "qmnist": lambda given: _images(10, _GREY, 60_000, clients=539, spread=0.17),
    "cifar10": lambda given: _photographs(10, given),
    "cifar100": lambda given: _photographs(100, given),
    "federated_cifar100": lambda given: _photographs(100, given, clients=500, spread=0.0),
    "federated_emnist": _writers,
    "federated_shakespeare": lambda given: _text(90, given["length"], 16_068, clients=715, spread=1.0),
    "shakespeare_plays": lambda given: _text(90, given["length"], 48_589, clients=447, spread=0.73),
    "stack_overflow_nwp": lambda given: _text(given["words"] + 4, given["length"], **_users(given)),
    "stack_overflow_tags": lambda given: _tags(given, **_users(given)),
    "ag_news": lambda given: _topics(4, 120_000, given),
    "dbpedia": lambda given: _topics(14, 560_000, given),
    "gld23k": _landmarks,
    "stack_exchange": lambda given: _tags(given, 1185, clients=643, spread=0.63),  # as much as three small sites
}


# ---- partitions -----------------------------------------------------------------------------------------------------


def _dirichlet(task: _Task, given: Arguments) -> dict[str, Any]:
    _need_classes(task, "dirichlet")
    alpha = given["alpha"] if given["prior"] == "scaled" else given["alpha"] / task.given["classes"]
    return {"alpha": alpha, "seed": given["seed"], **_sizes(task, given["clients"], given["examples"])}


def _dirichlet_by_label(task: _Task, given: Arguments) -> dict[str, Any]:
    """A client's share of a class has the relative variance (n - 1) / (n alpha + 1); its size is the sum of them."""
    _need_classes(task, "dirichlet_by_label")
    n, alpha = given["clients"], given["alpha"]
    variance = (n - 1) / (n * alpha + 1) / task.given["classes"]
    spread = round(math.sqrt(math.log1p(variance)), 3)
    return {"alpha": alpha, "seed": given["seed"], **_sizes(task, n, None), "spread": spread}


def _pachinko(task: _Task, given: Arguments) -> dict[str, Any]:
    """A coarse label has five fine ones in CIFAR-100: a fifth of alpha for each leaves a client as concentrated."""
    _need_classes(task, "pachinko")
    return {"alpha": given["alpha"] / 5, "seed": given["seed"], **_sizes(task, given["clients"], given["examples"])}


def _iid(task: _Task, given: Arguments) -> dict[str, Any]:
    return {**task.even, "seed": given["seed"], **_sizes(task, given["clients"], None)}


def _natural(task: _Task, given: Arguments) -> dict[str, Any]:
    if task.clients is None:
        raise ConfigError("data.partition: this data does not say who its clients are; use dirichlet or iid")
    mean = max(task.rows / task.clients, given["min_examples"])
    return {"clients": task.clients, "examples": round(float(mean), 1), "spread": task.spread}


def _need_classes(task: _Task, partition: str) -> None:
    if not task.has_classes:
        raise ConfigError(f"data.partition: {partition!r} deals by classes, and this data has none; use natural or iid")


def _sizes(task: _Task, clients: int, examples: int | Sequence[int] | None) -> dict[str, Any]:
    """All clients alike, or with sizes that spread as a range of them does."""
    if clients < 1:
        raise ConfigError(f"data.clients: must be a whole number >= 1, got {clients!r}")
    if examples is None:
        return {"clients": clients, "examples": float(max(1, task.rows // clients)), "spread": 0.0}
    if not isinstance(examples, Sequence):
        return {"clients": clients, "examples": float(examples), "spread": 0.0}
    low, high = examples
    mean = (low + high) / 2
    deviation = (high - low) / math.sqrt(12) / max(mean, 1)  # of a uniform distribution, to its mean
    return {"clients": clients, "examples": mean, "spread": round(math.sqrt(math.log1p(deviation**2)), 3)}


_DEALS: Mapping[str, Callable[[_Task, Arguments], dict[str, Any]]] = {
    "dirichlet": _dirichlet, "dirichlet_by_label": _dirichlet_by_label, "pachinko": _pachinko, "iid": _iid,
    "natural": _natural,
}  # fmt: skip


# ---- tables ---------------------------------------------------------------------------------------------------------


def with_data(tables: Mapping[str, Any], data: Sequence[str]) -> dict[str, Any]:
    """The tables of a file with the data that ``--data`` names: directories in the order of the loader's, or
    "synthetic" for a stand-in. "mnist=DIR" is a directory for the data set mnist alone. None leaves all as it is."""
    table = tables.get("data", {})
    mine = _directories_for(table, data)
    if not mine:
        return dict(tables)
    if SYNTHETIC not in data:
        return {**tables, "data": _with_directories(table, mine)}
    if len(data) > 1:
        raise ConfigError(f"--data: must be {SYNTHETIC} alone, or directories, got {', '.join(data)}")
    name = tables.get("name")
    named = {"name": name + _SUFFIX} if isinstance(name, str) and not name.endswith(_SUFFIX) else {}
    return {**tables, **named, "data": stand_in(table, tables.get("model"))}


def check_data(files: Sequence[Mapping[str, Any]], data: Sequence[str]) -> None:
    """Refuses what would be read by nobody, or by the wrong one: files of several data sets may bear the same names."""
    read = list(dict.fromkeys(name for tables in files if (name := _named(tables.get("data"))) is not None))
    for text in data:
        owner, directory = _addressed(text)
        if owner is None and len(read) > 1 and text != SYNTHETIC:
            raise ConfigError(f"--data: must say for which of {', '.join(read)}, as in {read[0]}=DIR, got {text!r}")
        if owner is not None and directory in ("", SYNTHETIC):
            raise ConfigError(f"--data: must have a directory behind the name, as in {owner}=DIR, got {text!r}")
        if owner is not None and owner not in read:
            raise ConfigError(f"--data: {text!r} is for data that is not read here; {' and '.join(read)} is")


def _directories_for(table: Any, data: Sequence[str]) -> list[str]:
    """Those that are for any data set, and those for the one of this table."""
    return [directory for owner, directory in map(_addressed, data) if owner in (None, _named(table))]


def _named(table: Any) -> str | None:
    """The name of the data set, if there is one; whether it is any good is checked elsewhere."""
    name = table.get("name") if isinstance(table, Mapping) else None
    return name if isinstance(name, str) else None


def _addressed(text: str) -> tuple[str | None, str]:
    """The data set that a directory is for, None where it does not say, and the directory."""
    name, equals, directory = text.partition("=")
    return (name, directory) if equals and name in LOADERS else (None, text)


def _with_directories(table: Any, data: Sequence[str]) -> dict[str, Any]:
    load = named_loader(table)
    places = directories(load)
    if not places:
        raise ConfigError(f"--data: data {table['name']!r} reads no files, so it takes no directory, got {data[0]!r}")
    if len(data) > 1 and arguments_of(load)[places[0]].takes_list:
        return {**table, places[0]: list(data)}
    if len(data) > len(places):
        raise ConfigError(f"--data: data {table['name']!r} takes {' and '.join(places)}, got {len(data)} directories")
    return {**table, **dict(zip(places, data, strict=False))}


def stand_in(table: Any, model: Any = None) -> dict[str, Any]:
    """The table ``[data]`` of the made-up data that stands in for a data set; made-up data stands for itself.

    The data set's directories are not looked at, and need not be named. Keys that only the made-up data has, such as
    `test_examples`, are passed on to it. Of a store that is opened, only the table ``[model]`` tells the shapes.
    """
    load = named_loader(table)
    name = str(table["name"])
    if name.startswith(_FAMILY):
        return dict(table)
    if name == _STORE and _takes_features(model):
        return {**_features(model), **{key: value for key, value in table.items() if key in _synthetic_keys()}}
    if name not in STAND_INS:
        raise ConfigError(f"--data: nothing stands in for {name!r}, whose shapes only its files tell; name a directory")
    for key in HELD_OUT:
        if table.get(key, NONE) not in (NONE, False):
            raise ConfigError(
                f"data.{key}: made-up data is made when it is visited; leave it out with --data synthetic"
            )
    deal = partition_of(load, table)
    assert deal is not None  # what comes with clients has no stand-in
    if table["partition"] not in _DEALS:
        raise ConfigError(f"--data: the partition {table['partition']!r} belongs to the real data; use another with it")
    real = {*arguments_of(load), *arguments_of(deal), "name", "partition"}
    passed = {key: value for key, value in table.items() if key not in real and key in _synthetic_keys()}
    given = _checked(load, deal, {key: value for key, value in table.items() if key not in passed})
    task = STAND_INS[name](_all(load, {key: value for key, value in given.items() if key not in arguments_of(deal)}))
    dealt = _DEALS[str(table["partition"])](task, _all(deal, given))
    tests = {"test_examples": given["test_examples"]} if given.get("test_examples") is not None else {}
    return {"name": task.loader, **task.given, **dealt, **tests, **passed}


_STORE, _OF_STORE = "open_store", 100  # clients that a store may have, and examples of each


def _takes_features(model: Any) -> bool:
    """Whether a model is made for rows of numbers, and says how many and how many classes there are."""
    return isinstance(model, Mapping) and model.get("name") in ("softmax_regression", "mlp")


def _features(model: Mapping[str, Any]) -> dict[str, Any]:
    given = Model.of(model).arguments()
    inputs, classes = given["sizes"][:: len(given["sizes"]) - 1] if "sizes" in given else given.values()
    task = _images(classes, [1, 1, inputs], _OF_STORE**2, clients=_OF_STORE)
    return {"name": task.loader, **task.given, **_natural(task, {"min_examples": 1})}


def _checked(load: Callable[..., Any], deal: Callable[..., Any], table: Mapping[str, Any]) -> dict[str, Any]:
    words = f"data {table['name']!r} with partition {table['partition']!r}"
    kept = {key: value for key, value in table.items() if key not in directories(load)}
    given = checked(data_model(load, deal), "data", kept, words, option_owner)
    require(deal, "data", {"data": None, **given}, words)
    return given


def _all(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A function's arguments, defaults included."""
    known = arguments_of(function)
    return Source("", function, {key: value for key, value in given.items() if key in known}).arguments()


def _synthetic_keys() -> set[str]:
    return {key for name, load in LOADERS.items() if name.startswith(_FAMILY) for key in arguments_of(load)}
