"""Runs as a report takes them, and the groups of runs that differ only in their seed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...record.history import History
from ..config import CHANGE_NO_RESULT

# How the papers write the methods that have a name of their own.
_SPELLINGS = (
    "FedAvg FedAvgM FedAdagrad FedAdam FedYogi FedAMS FedProx MOON SCAFFOLD Delta-SGD FATHOM FedAda2 FedBuff FedAsync"
)
_SPELT = {re.sub(r"\W", "", name).lower(): name for name in _SPELLINGS.split()} | {"clientcentric": "Client-centric"}
_METRICS = ("test_accuracy", "test_recall_at_5", "test_mse", "test_loss", "train_loss")
_SETTING = re.compile(r"(?:^|, )[a-z_]+(?:\.[a-z_0-9]+)+ ")  # where a sweep adds a point's settings to its name
AS_IT_IS = "the file as it is"  # what a sweep calls a point that changes nothing
SOLID = 8  # styles of lines, from 0 on, that have no dashes: as many as there are colours
MISSING = "\N{EN DASH}"  # in place of a value that is not there


@dataclass(frozen=True)
class Entry:
    """One run: a name, its history, and what is known of it besides.

    `info` is what run.json holds, `config` the resolved configuration, `clients` and `costs` the contents of those
    files. All but the first two may be left out.
    """

    name: str
    history: History
    info: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    clients: Mapping[str, Any] | None = None
    costs: Mapping[str, Any] | None = None

    @property
    def method(self) -> str:
        """As the papers write it."""
        name = str(self.info.get("method") or self.name)
        return _SPELT.get(re.sub(r"[\W_]", "", name).lower(), name)

    @property
    def called(self) -> str:
        """The name that its file or a sweep's variant gives it, without settings that a sweep adds; else the method."""
        name = self.config.get("name")
        if not isinstance(name, str) or self.is_centralised:
            return self.method
        given = _SETTING.split(name)[0].strip()
        return self.method if given in ("", AS_IT_IS) else given

    @property
    def task(self) -> str:
        """What is learnt, as text: the data and how it is dealt, and the metric. Runs of different tasks are not
        ranked together."""
        data = self.config.get("data")
        held = {k: v for k, v in data.items() if tells_apart(f"data.{k}")} if isinstance(data, Mapping) else {}
        kept = {k: v for k, v in held.items() if k != "pooled" and not k.startswith("validation")}
        return json.dumps([kept, self.info.get("metric")], sort_keys=True, default=str)

    @property
    def seed(self) -> int | None:
        seed = self.info.get("seed", self.config.get("seed"))
        return seed if isinstance(seed, int) else None

    @property
    def is_centralised(self) -> bool:
        """Whether it was trained without clients."""
        data = self.config.get("data")
        return isinstance(data, Mapping) and data.get("pooled") is True

    @property
    def settings(self) -> dict[str, Any]:
        """The configuration with dotted keys."""
        return flatten(self.config)

    def has(self, column: str) -> bool:
        """Whether a row has a value there."""
        return any(row.get(column) is not None for row in self.history)


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed, as one line of a chart. `style` numbers its colour, dash and marker."""

    label: str
    style: int
    entries: tuple[Entry, ...]

    @property
    def key(self) -> str:
        return f"g{self.style}"

    def has(self, column: str) -> bool:
        return any(entry.has(column) for entry in self.entries)


def own_metrics(groups: Sequence[Group], metric: str | None) -> list[str]:
    """The columns of the users' own metrics, where a group has them: on the test set, else on the validation set;
    without `metric`, which is told anyway."""
    names = dict.fromkeys(name for group in groups for entry in group.entries for name in entry.info.get("metrics", ()))
    found = [next((c for c in (f"test_{n}", f"validation_{n}") if any(g.has(c) for g in groups)), None) for n in names]
    return [column for column in found if column not in (None, metric)]


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"server": {"lr": 1}} as {"server.lr": 1}."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def group(entries: Sequence[Entry]) -> list[Group]:
    """Runs that differ only in seeds together, in the order of their first. Of two with the same seeds, which are the
    same run twice, the one that came further."""
    found: dict[str, dict[str, Entry]] = {}
    for place, entry in enumerate(entries):
        alike, seeds = found.setdefault(_identity(entry), {}), _seeds(entry) or f"entry {place}"
        if seeds not in alike or len(alike[seeds].history) <= len(entry.history):
            alike[seeds] = entry
    sets = [tuple(one.values()) for one in found.values()]
    return [Group(*of_group) for of_group in zip(_labels(sets), _styles(sets), sets, strict=True)]


def styled(groups: Sequence[Group]) -> list[Group]:
    """The groups with the styles that their order gives them."""
    styles = _styles([one.entries for one in groups])
    return [replace(one, style=style) for one, style in zip(groups, styles, strict=True)]


def _styles(sets: Sequence[tuple[Entry, ...]]) -> list[int]:
    """0, 1, 2 ... in order, the first eight of them solid lines; training without clients is always dashed."""
    federated = [place for place, one in enumerate(sets) if not one[0].is_centralised]
    styles = {place: style for style, place in enumerate(federated)}
    dashed = max(SOLID, -(-len(federated) // SOLID) * SOLID)
    others = [place for place in range(len(sets)) if place not in styles]
    return [styles[place] if place in styles else dashed + others.index(place) for place in range(len(sets))]


def differing(entries: Iterable[Entry]) -> dict[str, list[Any]]:
    """The dotted keys of the configuration in which runs differ, with the value of each run; None where it has none."""
    settings = [entry.settings for entry in entries]
    keys = dict.fromkeys(key for one in settings for key in one)
    table = {key: [one.get(key) for one in settings] for key in keys}
    return {key: values for key, values in table.items() if len({json.dumps(v, default=str) for v in values}) > 1}


def is_seed(key: str) -> bool:
    """Whether a dotted key of the configuration is a seed."""
    last = key.rpartition(".")[2]
    return last == "seed" or last.endswith("_seed")


def tells_apart(key: str) -> bool:
    """Whether runs that differ in a dotted key are different methods or tasks, not the same once more."""
    return not is_seed(key) and key not in CHANGE_NO_RESULT


def main_metric(entries: Iterable[Entry]) -> str | None:
    """The column by which the runs are judged: what the most of them name, or have."""
    votes: dict[str, int] = {}
    for entry in entries:
        named = str(entry.info.get("metric") or "")
        for column in (named, f"test_{named}", *_METRICS):
            if column and entry.has(column):
                votes[column] = votes.get(column, 0) + 1
                break
    return max(votes, key=lambda column: votes[column]) if votes else None


def _identity(entry: Entry) -> str:
    """What runs of a group share. Without a configuration nobody knows, and the name decides."""
    if not entry.config:
        return json.dumps(["name", entry.name])
    shared = {k: v for k, v in entry.settings.items() if tells_apart(k)}
    return json.dumps([entry.method, shared], sort_keys=True, default=str)


def _seeds(entry: Entry) -> str:
    """All its seeds, of which the data may have one too; empty where none is known."""
    known = {key: value for key, value in entry.settings.items() if is_seed(key)}
    if entry.seed is not None:
        known["seed"] = entry.seed
    return json.dumps(known, sort_keys=True, default=str) if known else ""


def _labels(sets: Sequence[tuple[Entry, ...]]) -> list[str]:
    """The name or the method where that tells the groups apart, else with the settings that do."""
    firsts = [one[0] for one in sets]
    bases = [_base(one) for one in sets]
    labels = []
    for entry, base in zip(firsts, bases, strict=True):
        rivals = [other for other, of_other in zip(firsts, bases, strict=True) if of_other == base]
        labels.append(base if len(rivals) == 1 else f"{base} ({_distinction(entry, rivals)})")
    return _numbered(labels)


def _base(entries: tuple[Entry, ...]) -> str:
    """What the runs of a group are called, if all are called the same."""
    names = {entry.called for entry in entries}
    return names.pop() if len(names) == 1 else entries[0].method


def _distinction(entry: Entry, rivals: Sequence[Entry]) -> str:
    own = entry.settings
    keys = [key for key in differing(rivals) if key in own and tells_apart(key)]
    if not 1 <= len(keys) <= 3:
        return entry.name
    return ", ".join(f"{_short(key, keys)} {plain(own[key])}" for key in keys)


def _short(key: str, among: Sequence[str]) -> str:
    last = key.rpartition(".")[2]
    return last if sum(other.rpartition(".")[2] == last for other in among) == 1 and len(last) > 2 else key


def plain(value: object) -> str:
    """A setting as TOML would have it, without quotes; a dash for none."""
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _numbered(labels: Sequence[str]) -> list[str]:
    """Equal labels with a number behind."""
    seen: dict[str, int] = {}
    unique = []
    for label in labels:
        seen[label] = seen.get(label, 0) + 1
        unique.append(label if seen[label] == 1 else f"{label} #{seen[label]}")
    return unique


# ---- from directories -----------------------------------------------------------------------------------------------


def gather(places: Sequence[Path]) -> list[Entry]:
    """The runs at these places: run directories, or directories that hold some, at any depth. Each once.

    ``runs.DamagedRun`` says what was looked for where none is, and which file cannot be read.
    """
    from .. import runs

    found: dict[Path, None] = {}
    for place in places:
        here = runs.find(place) if place.is_dir() else []
        if not here:
            looked = f"looked for {runs.INFO} beside {runs.CONFIG} in it and below"
            missing = f"no run there; {looked}" if place.is_dir() else "no such directory"
            raise runs.DamagedRun(f"{place}: {missing}")
        found |= dict.fromkeys(path.resolve() for path in here)
    return [read(path) for path in found]


def read(path: Path) -> Entry:
    """The run in a directory."""
    from .. import runs

    run = runs.read(path)
    return Entry(run.name, run.history, run.info, run.config, run.clients, run.costs)
