"""How a report looks where somebody says so: names and order of its lines, its metric, the size of its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from .entries import Group, styled


class Unknown(ValueError):
    """What a report is told about a run that it does not have."""


@dataclass(frozen=True)
class Look:
    """`labels` are new names of lines by their old ones, or by a run's name; `order` has the names that come first;
    `metric` is the column by which runs are judged (None: their own). `size` is of figures, in inches; `ylim` what the
    axis of the metric shows. `bands`: whether lines have those of their seeds."""

    labels: Mapping[str, str] = field(default_factory=dict)
    order: Sequence[str] = ()
    metric: str | None = None
    size: tuple[float, float] | None = None
    ylim: tuple[float, float] | None = None
    bands: bool = True

    def arranged(self, groups: Sequence[Group]) -> list[Group]:
        """The groups with their names, in their order."""
        for old in self.labels:
            self._check(
                "label", old, [*(one.label for one in groups), *(e.name for one in groups for e in one.entries)]
            )
        named = [replace(one, label=self._label(one)) for one in groups]
        for name in self.order:
            self._check("order", name, [one.label for one in named])
        first = [one for name in self.order for one in named if one.label == name]
        return styled([*first, *(one for one in named if one.label not in self.order)]) if self.order else named

    def _label(self, group: Group) -> str:
        names = [group.label, *(entry.name for entry in group.entries)]
        return next((self.labels[name] for name in names if name in self.labels), group.label)

    def _check(self, what: str, name: str, known: Sequence[str]) -> None:
        if name not in known:
            raise Unknown(f"{what}: no run is called {name!r}; there are {', '.join(dict.fromkeys(known))}")


PLAIN = Look()
