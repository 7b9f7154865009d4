"""Every kind of figure that FastFed draws, of short runs on the embedded digits, as one page: docs/gallery.md.

python -m fastfed.app.gallery docs
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..extras import needed
from . import runs
from . import sweep as sweeps
from .config import parse
from .report import figures, gather
from .report.charts import Chart, Partition
from .report.page import compose
from .sweep import charts, drawing

FOLDER, PAGE = "gallery", "gallery.md"
_DOTS = 110  # per inch: a page shows them smaller than paper
_DATA = {"name": "digits", "partition": "dirichlet", "clients": 40, "alpha": 0.3}
_MODEL = {"name": "mlp", "sizes": [64, 32, 10]}
_RUN = {"rounds": 40, "cohort": 8, "epochs": 2.0, "batch_size": 10, "evaluate_every": 4}
_NAMED: Mapping[str, Mapping[str, Any]] = {  # what differs, by names of methods and by what a figure needs
    "fedavg": {"client": {"lr": 0.1}},
    "fedyogi": {"client": {"lr": 0.1}, "server": {"lr": 0.03}},
    "delta_sgd": {},
    "fathom": {"client": {"lr": 0.1}},
    "fedbuff": {"client": {"lr": 0.1}, "timing": {"concurrency": 16, "buffer": 5, "fleet": {"spread": 1.0}}},
    "private": {
        "method": "fedavg",
        "client": {"lr": 0.1},
        "privacy": {"clip": 0.5, "noise": 0.6, "delta": 1e-3},
        "run": {"cohort": {"poisson": 0.3}, "weights": "uniform"},
    },
}
_SEEDS = 3
_SWEEP = """
method = "fedyogi"
[data]
name = "digits"
partition = "dirichlet"
clients = 40
alpha = 0.3
[model]
name = "mlp"
sizes = [64, 32, 10]
[run]
rounds = 20
cohort = 8
batch_size = 10
evaluate_every = 4
[sweep]
seeds = 3
[[sweep.variants]]
name = "FedYogi"
[[sweep.variants]]
name = "FedAdam"
set = { method = "fedadam" }
[sweep.grid]
"client.lr" = "1e-2:1e0:log5"
"server.lr" = "1e-3:1e-1:log5"
"""


_HEAD = """\
# Every figure

What reports and sweeps draw, each of short runs on the embedded digits. `make gallery` makes this page and its
pictures.
[reports.md](reports.md) and [sweeps.md](sweeps.md) say what they show; `--figures pdf` gives them for a paper.
"""


class Shown(NamedTuple):
    """A figure: what it is called, the command that draws it, and its file."""

    title: str
    command: str
    file: str


def write(place: Path) -> Path:
    """Makes the runs, draws every figure into a folder beside the page, and writes that."""
    folder = place / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fastfed-gallery-") as scratch:
        shown = [*_of_runs(Path(scratch) / "runs", folder), *_of_a_sweep(Path(scratch), folder)]
    for path in folder.glob("*.png"):
        if path.name not in {one.file for one in shown}:
            path.unlink()
    page = place / PAGE
    page.write_text(_page(shown), encoding="utf-8")
    return page


def _of_runs(home: Path, folder: Path) -> Iterator[Shown]:
    for name, tables in _NAMED.items():
        for seed in range(_SEEDS if name in ("fedavg", "fedyogi") else 1):
            runs.execute(parse(_tables(name, tables, seed)), home / f"{name}-{seed}", progress=False)
    seen: set[str] = set()
    for chart in compose(gather([home])).charts:
        if isinstance(chart, (Chart, Partition)) and chart.id not in seen:
            seen.add(chart.id)
            with _styled():
                drawn = figures.draw(chart)
            yield Shown(chart.title, "fastfed report runs", _save(drawn, folder, chart.id))


def _of_a_sweep(home: Path, folder: Path) -> Iterator[Shown]:
    file = home / "sweep.toml"
    file.write_text(_SWEEP)
    swept = sweeps.carry_out(sweeps.plan(file), home / "swept", jobs=1)
    for picture in charts.pictures(swept):
        with _styled():
            drawn = drawing.draw(picture)
        title = picture.title or drawing.title_of(picture)
        yield Shown(title, "fastfed sweep grid.toml", _save(drawn, folder, f"sweep_{picture.id}"))


def _tables(name: str, tables: Mapping[str, Any], seed: int) -> dict[str, Any]:
    run = {key: value for key, value in _RUN.items() if "timing" not in tables or key != "cohort"}
    named = {"name": name} if "method" in tables else {}
    own = {**run, **tables.get("run", {}), "seed": seed}
    return {"method": name, "data": _DATA, "model": _MODEL, **named, **tables, "run": own}


def _styled() -> Any:
    return needed("matplotlib", extra="plots", by="the gallery").rc_context(figures.STYLE)


def _save(figure: Any, folder: Path, name: str) -> str:
    with _styled():
        figure.savefig(folder / f"{name}.png", dpi=_DOTS)
    return f"{name}.png"


def _page(shown: Sequence[Shown]) -> str:
    parts = [_HEAD]
    for one in shown:
        parts.append(f"## {one.title}\n\n`{one.command}`\n\n![{one.title}]({FOLDER}/{one.file})\n")
    return "\n".join(parts)


if __name__ == "__main__":
    print(write(Path(sys.argv[1] if len(sys.argv) > 1 else "docs")))
