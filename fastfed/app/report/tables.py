"""The tables of a report: results, costs, privacy, what became of updates, configurations, machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ...record.evaluate import higher_is_better
from .entries import MISSING, Entry, Group, differing, flatten, own_metrics, plain, tells_apart
from .grid import Cell, Grid, as_html
from .statistics import Estimate, estimate
from .summary import Summary, by_task, final_of, is_share, ranked
from .words import (
    byte_unit,
    bytes_in_units,
    column_of,
    digits,
    estimate_of,
    name_of,
    prior_name,
    rounds_to,
    value_of,
)

# ---- results --------------------------------------------------------------------------------------------------------


def results(summaries: Sequence[Summary], metric: str | None, target: float | None, is_ordered: bool = False) -> Grid:
    """The headline table, the best group first, or as they come if they are `ordered`. Groups of different tasks are
    not ranked together."""
    tasks = by_task(summaries)
    grids = [_results(one, metric, target, is_ordered) for one in tasks]
    if len(grids) == 1:
        return grids[0]
    words = task_words([one[0].group for one in tasks])
    heads = list(dict.fromkeys(head for grid in grids for head in grid.heads))
    rows = []
    for grid, task in zip(grids, words, strict=True):
        for row in grid.rows:
            cells = dict(zip(grid.heads, row, strict=True))
            own = [cells.get(head, Cell(MISSING)) for head in heads]
            rows.append([own[0], Cell(task), *own[1:]])
    return Grid([heads[0], "task", *heads[1:]], rows, "sortable", "results")


def task_words(groups: Sequence[Group]) -> list[str]:
    """What tells the tasks of these groups apart."""
    found = differing([one.entries[0] for one in groups])
    keys = [key for key in found if key.startswith("data.") and tells_apart(key)]
    shown = ["data.name"] if "data.name" in keys else keys[:3]
    if not shown:
        return [str(one.entries[0].info.get("metric") or one.label) for one in groups]
    values = [[one.entries[0].settings.get(key) for key in shown] for one in groups]
    return [
        ", ".join(plain(v) if key == "data.name" else f"{key.partition('.')[2]} {plain(v)}" for key, v in pairs)
        for pairs in ([*zip(shown, one, strict=True)] for one in values)
    ]


def _results(summaries: Sequence[Summary], metric: str | None, target: float | None, is_ordered: bool) -> Grid:
    order = list(summaries) if is_ordered else ranked(summaries, metric)
    name = name_of(metric) if metric else "metric"
    goal = f"{100 * target:g}%" if target is not None and metric and is_share(metric) else plain(target)
    unit, size = byte_unit(max((one.bytes.mean for one in order if one.bytes is not None), default=0.0))
    others = {f"final {name_of(column)}": column for column in own_metrics([one.group for one in order], metric)}
    own = {head: [_estimate(column, final_of(one.group, column)) for one in order] for head, column in others.items()}
    columns = {
        "run": [_label(one.group) for one in order],
        "seeds": [Cell(str(len(one.group.entries)), len(one.group.entries)) for one in order],
        f"final {name}": [_final(one, metric or "") for one in order],
        f"best {name}": [_estimate(metric or "", one.best) for one in order],
        **own,
        f"rounds to {goal}": [Cell(rounds_to(one), _mean(one.rounds_to)) for one in order],
        f"{unit} to {goal}": _numbers([one.bytes_to_target for one in order], size),
        f"gradients to {goal}": _counts([one.gradients_to_target for one in order]),
        "rounds": [_rounds(one) for one in order],
        f"{unit} sent": _numbers([one.bytes for one in order], size),
        "seconds": _numbers([one.seconds for one in order]),
        "status": [Cell(one.status) for one in order],
    }
    if all(len(one.group.entries) == 1 for one in order):
        del columns["seeds"]
    if target is None:
        del columns[f"rounds to {goal}"], columns[f"{unit} to {goal}"]
    if target is None or all(one.gradients_to_target is None for one in order):
        del columns[f"gradients to {goal}"]
    better = metric is None or higher_is_better(metric)
    rows = [list(row) for row in zip(*columns.values(), strict=True)]
    grid = Grid(list(columns), [*rows, *_prior(order, metric, list(columns), f"final {name}")], "sortable", "results")
    less = [f"{what} to {goal}" for what in ("rounds", unit, "gradients")]
    more = {head: higher_is_better(column) for head, column in others.items()}
    return grid.marked({f"final {name}": better, f"best {name}": better, **more, **dict.fromkeys(less, False)})


def _prior(order: Sequence[Summary], metric: str | None, heads: Sequence[str], final: str) -> list[list[Cell]]:
    """A row for who learns nothing but frequencies, where the runs are of one task and say what that is worth."""
    entries = [entry for one in order for entry in one.group.entries]
    found = [entry.info.get("prior") for entry in entries if entry.info.get("metric") == metric]
    if len(set(found)) != 1 or found[0] is None:
        return []
    value = float(found[0])
    cells = {"run": Cell(prior_name(metric)), final: Cell(value_of(str(metric), value), value)}
    return [[cells.get(head, Cell(MISSING)) for head in heads]]


def _final(one: Summary, metric: str) -> Cell:
    """Of the runs that ended in a finite number: those that did not are not passed over in silence."""
    cell = _estimate(metric, one.final)
    return Cell(f"{cell.text} ({one.ended_well} of {len(one.rounds)})") if one.final and one.lost else cell


def _rounds(one: Summary) -> Cell:
    few, many = min(one.rounds), max(one.rounds)
    return Cell(f"{many:,}" if few == many else f"{few:,} to {many:,}", many)


# ---- costs, privacy, fates ------------------------------------------------------------------------------------------


def costs(groups: Sequence[Group]) -> Grid | None:
    """What one client pays in one round; centralised runs have none, and send nothing."""
    paying = [group for group in groups if group.entries[0].costs and not group.entries[0].is_centralised]
    rows = [[_label(group), *_cost(group.entries[0])] for group in paying]
    return _grid(["run", "down", "up", "down and up", "optimizer memory"], rows, "costs")


def _cost(entry: Entry) -> list[Cell]:
    told = entry.costs or {}
    parameters = entry.info.get("parameters")
    d = 4 * parameters if isinstance(parameters, int) and parameters else None
    down, up, memory = (int(told.get(name) or 0) for name in ("bytes_down", "bytes_up", "optimizer_bytes"))
    return [
        Cell(f"{bytes_in_units(n)} ({digits(n / d)} d)" if d else bytes_in_units(n), n)
        for n in (down, up, down + up, memory)
    ]


def privacy(groups: Sequence[Group]) -> Grid | None:
    """The budget of each private group: what is spent, of how much, and what it was spent on."""
    private = [group for group in groups if group.has("epsilon") or "privacy" in group.entries[0].config]
    rows = [[_label(group), *_budget(group)] for group in private]
    return _grid(["run", "ε spent", "ε allowed", "δ", "noise multiplier", "clip", "accountant"], rows, "privacy")


def _budget(group: Group) -> list[Cell]:
    spent = [entry.history.last("epsilon") for entry in group.entries if entry.has("epsilon")]
    told = group.entries[0].config.get("privacy")
    told = told if isinstance(told, Mapping) else {}
    clips = [entry.history.last("clip") for entry in group.entries if entry.has("clip")]
    clip = f"{digits(estimate(clips).mean)} (adaptive)" if _given(told.get("adaptive")) and clips else None
    return [
        Cell(digits(estimate(spent).mean), max(spent)) if spent else Cell("without bound"),
        Cell(_given(told.get("target_epsilon")) or MISSING),
        *(Cell(_given(told.get(name)) or MISSING) for name in ("delta", "noise")),
        Cell(clip or _given(told.get("clip")) or MISSING),
        Cell(_given(told.get("accountant")) or MISSING),
    ]


def _given(value: object) -> str:
    """A setting in words; empty where it is none."""
    return "" if value in (None, "none") else plain(value)


_FATES = {
    "skipped": "refused (not finite)",
    "idle": "idle (nothing to do)",
    "dropped": "dropped out",
    "lost": "lost (window closed)",
    "stale": "stale (too old)",
    "discarded": "discarded (too late)",
}
_RUNNING_TOTALS = ("dropped", "lost", "stale", "discarded")  # these columns count from the start of the run


def fates(groups: Sequence[Group]) -> Grid | None:
    """Updates that did not count, by reason; None if all of them did."""
    totals = {group.key: {name: _fate(group, name) for name in _FATES} for group in groups}
    names = [name for name in _FATES if any(totals[group.key][name] for group in groups)]
    if not names:
        return None
    rows = []
    for group in groups:
        trained = sum(sum(entry.history.values("clients")) for entry in group.entries)
        cells = [Cell(f"{totals[group.key][name]:,}", totals[group.key][name]) for name in names]
        rows.append([_label(group), Cell(f"{trained:,}", trained), *cells])
    return _grid(["run", "updates", *(_FATES[name] for name in names)], rows, "updates that did not count")


def _fate(group: Group, name: str) -> int:
    columns = [entry.history.values(name) for entry in group.entries]
    return sum(max(column, default=0) if name in _RUNNING_TOTALS else sum(column) for column in columns)


# ---- configurations and machines ------------------------------------------------------------------------------------


def differences(groups: Sequence[Group]) -> Grid | None:
    """Only the keys in which groups differ; None if no key does."""
    found = differing([group.entries[0] for group in groups])
    keys = {key: values for key, values in found.items() if tells_apart(key)}
    rows = [[_code(key), *(Cell(plain(value)) for value in values)] for key, values in keys.items()]
    return _grid(["setting", *(group.label for group in groups)], rows, "differences", "text")


def configurations(groups: Sequence[Group]) -> str:
    """The whole configuration of each group, folded away."""
    return "".join(_folded(group) for group in groups if group.entries[0].config)


def _folded(group: Group) -> str:
    varying = differing(group.entries)
    settings = flatten(group.entries[0].config)
    shown = {k: ", ".join(map(plain, varying[k])) if k in varying else plain(v) for k, v in settings.items()}
    rows = [[_code(key), Cell(value)] for key, value in shown.items()]
    table = as_html(Grid(["setting", "value"], rows, "text", f"configuration of {group.label}"))
    return f"<details><summary>{escape(group.label)}</summary>{table}</details>"


def machines(groups: Sequence[Group]) -> Grid | None:
    """Where and with which versions the runs were made; one row for each different machine."""
    found: dict[str, tuple[dict[str, Any], list[str]]] = {}
    for group in groups:
        for told in {str(machine): machine for machine in map(_machine, group.entries) if machine}.values():
            found.setdefault(str(told), (told, []))[1].append(group.label)
    facts = list(dict.fromkeys(name for told, _ in found.values() for name in told))
    rows = [[Cell(", ".join(labels)), *(Cell(_fact(fact, told)) for fact in facts)] for told, labels in found.values()]
    return _grid(["runs", *(fact.removesuffix("_bytes") for fact in facts)], rows, "machines", "text")


def _machine(entry: Entry) -> dict[str, Any]:
    info = entry.info
    about = {name: info[name] for name in ("executor", "threads", "fastfed", "torch") if info.get(name) is not None}
    machine = info.get("machine")
    return about | (flatten(machine) if isinstance(machine, Mapping) else {"machine": machine} if machine else {})


def _fact(name: str, told: Mapping[str, Any]) -> str:
    value = told.get(name)
    return bytes_in_units(value) if name.endswith("_bytes") and isinstance(value, int) else plain(value)


# ---- cells ----------------------------------------------------------------------------------------------------------


def _grid(heads: Sequence[str], rows: Sequence[Sequence[Cell]], name: str, kind: Any = "plain") -> Grid | None:
    return Grid(heads, rows, kind, name) if rows else None


def _label(group: Group) -> Cell:
    return Cell(group.label, style=group.style)


def _code(key: str) -> Cell:
    return Cell(key, code=True)


def _estimate(metric: str, one: Estimate | None) -> Cell:
    return Cell(estimate_of(metric, one), _mean(one))


def _numbers(column: Sequence[Estimate | None], size: float = 1.0) -> list[Cell]:
    means = [None if one is None else one.mean / size for one in column]
    return [Cell(text, value) for text, value in zip(column_of(means), means, strict=True)]


def _counts(column: Sequence[Estimate | None]) -> list[Cell]:
    """Large whole numbers, to three digits: 1.23M."""
    units = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
    cells = []
    for one in column:
        size, unit = next(((s, u) for s, u in units if one is not None and one.mean >= s), units[-1])
        cells.append(Cell(MISSING if one is None else f"{digits(one.mean / size)}{unit}", _mean(one)))
    return cells


def _mean(one: Estimate | None) -> float | None:
    return None if one is None else one.mean
