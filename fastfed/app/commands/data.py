"""`fastfed data list | get | check | show | features`: what data there is, and who has what of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..counting import counted
from ..errors import first_line
from .run import DataOption, File, Sets
from .terminal import FAILED, complain, console, say, show_table

if TYPE_CHECKING:
    from rich.table import Table
    from torch import nn

    from ...data import Federation

app = typer.Typer(
    help="Data sets: which there are, which a directory holds, who has what.\n\nExample: fastfed data list",
    no_args_is_help=True,
    rich_markup_mode=None,
)


# ---- list -----------------------------------------------------------------------------------------------------------


@app.command("list")
def list_all() -> None:
    """Show every data set and what it needs.

    Example: fastfed data list
    """
    from rich.markup import escape
    from rich.table import Table

    from ..config.kinds import LOADERS, has_clients
    from ..config.stand_ins import STAND_INS

    table = Table(show_lines=True)
    for heading in ("name", "what it is", "clients", "keys"):
        table.add_column(heading, overflow="fold")
    for name, load in LOADERS.items():
        clients = "its own" if has_clients(load) else "by a partition"
        table.add_row(name, escape(_summary(load)), clients, escape("\n".join(_keys(load))))
    shown = console()
    show_table(table)
    shown.print(f"Partitions: {'; '.join(_partitions())}", highlight=False, markup=False)
    shown.print(f"--data synthetic stands in for {', '.join(STAND_INS)}", highlight=False, markup=False)


def _summary(function: object) -> str:
    return " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())


def _keys(function: Callable[..., Any]) -> Iterator[str]:
    from ..config.options import NO_DEFAULT, arguments_of

    for argument in arguments_of(function).values():
        if argument.name != "data":
            yield argument.name if argument.default is NO_DEFAULT else f"{argument.name} = {argument.default!r}"


def _partitions() -> Iterator[str]:
    from ..config.kinds import PARTITIONS

    for name, deal in PARTITIONS.items():
        yield f"{name} ({', '.join(_keys(deal))})"


# ---- get ------------------------------------------------------------------------------------------------------------


@app.command()
def get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A data set; `fastfed data list` shows them.")],
    to: Annotated[Path | None, typer.Option(help="The directory to put it into. Default: data/NAME.")] = None,
    base: Annotated[
        str | None, typer.Option("--from", metavar="ADDRESS", help="Another address of the same files, file:// too.")
    ] = None,
) -> None:
    """Download a data set, and check its files.

    Only files whose digests are published are downloaded; of other data sets it says what to fetch, and from where, as
    it does where there is no network. The directory is what data.root names, or --data DIR.

    Example: fastfed data get fashion_mnist --to ~/data/fashion
    """
    from ...checks import nearest
    from ...data.fetching import DOWNLOADS, FetchError, fetch
    from ..config.kinds import LOADERS

    if name not in LOADERS:
        hint = nearest(name, tuple(LOADERS))
        raise typer.BadParameter(f"no data set {name!r} (`fastfed data list` shows them).{hint}", param_hint="NAME")
    home = Path("data") / name if to is None else to.expanduser()
    if name not in DOWNLOADS:
        complain(_what_to_fetch(name, home))
        raise typer.Exit(FAILED)
    try:
        fetch(name, home, base, lambda line: say(line, stderr=True))
    except (FetchError, OSError) as error:
        complain(first_line(error))
        raise typer.Exit(FAILED) from None
    load = LOADERS[name]
    problem = _try(load, {"root": home})
    if problem is None or problem[0] is not None:
        why = "no file of it is there" if problem is None else problem[0]
        complain(f"{home}: what was downloaded does not load: {why}")
        raise typer.Exit(FAILED)
    say(f'{name}: {problem[1]} examples in {home.resolve()}; in a file, data.root = "{home}"')


def _what_to_fetch(name: str, home: Path) -> str:
    """Of a data set that is not downloaded, what its loader wants."""
    from ...data import DataError
    from ..config.kinds import LOADERS
    from ..config.source import directories

    places = directories(LOADERS[name])
    if not places:
        return f"{name}: needs no files"
    try:
        LOADERS[name](**{places[0]: home / "nothing"})
    except DataError as error:
        wanted = str(error).partition("Expected ")[2]
        return f"{name}: is not downloaded by FastFed. Put into {home}: {wanted}"
    except (TypeError, ValueError, ImportError):
        pass
    return f"{name}: reads files of your own"


# ---- check ----------------------------------------------------------------------------------------------------------


@app.command()
def check(
    root: Annotated[Path, typer.Argument(metavar="ROOT", help="A directory with data, or with directories of data.")],
) -> None:
    """Say which of the known data sets a directory holds, and whether they load.

    Looks into ROOT and the directories in it. Data sets with files of the same names (MNIST, Fashion-MNIST) cannot be
    told apart. Exit code 1 if one does not load, or if there is none.

    Example: fastfed data check ~/data
    """
    from rich.markup import escape
    from rich.table import Table

    if not root.is_dir():
        raise typer.BadParameter(f"{root} is not a directory", param_hint="ROOT")
    table = Table()
    for heading in ("name", "root", "loads", "examples"):
        table.add_column(heading, overflow="fold")
    broken = 0
    for name, place, problem, holds in _found(root):
        broken += problem is not None
        table.add_row(name, escape(place), "[green]yes[/]" if problem is None else escape(problem), holds)
    if not table.row_count:
        complain(f"{root}: holds none of the data sets that FastFed knows (`fastfed data list`)")
        raise typer.Exit(FAILED)
    show_table(table)
    if broken:
        raise typer.Exit(FAILED)


def _found(root: Path) -> Iterator[tuple[str, str, str | None, str]]:
    """Of every data set that is there: its name, where, what is wrong with it, and how much it holds."""
    from ..config.kinds import LOADERS
    from ..config.source import directories

    places = [root, *sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))]
    for place in places:
        for name, load in LOADERS.items():
            if name.startswith("from_"):  # those read whatever a user has
                continue
            found = _find(load, directories(load), place, places)
            if found is not None:
                yield name, *found


def _find(
    load: Callable[..., Any], keys: list[str], place: Path, places: list[Path]
) -> tuple[str, str | None, str] | None:
    """Where a data set is, what is wrong with it, and how much it holds; None if it is not in this place."""
    if not keys:
        return None
    alone = _try(load, {keys[0]: place})
    if alone is not None:
        return str(place), *alone
    for other in places if len(keys) > 1 else ():  # files may lie in two directories; in the wrong two they do not load
        outcome = _try(load, {keys[0]: place, keys[1]: other})
        if outcome is not None and outcome[0] is None:
            return f"{place}, {other}", *outcome
    return None


def _try(load: Callable[..., Any], places: Mapping[str, Path]) -> tuple[str | None, str] | None:
    """What is wrong and how much there is; None if the files are not there at all."""
    from ...data import DataError

    try:
        made = load(**places)
    except DataError as error:
        return None if not error.path.exists() or error.path in places.values() else (str(error), "-")
    except (ValueError, OSError, ImportError) as error:
        return str(error), "-"
    train = getattr(made, "train", None) or made.examples
    return None, f"{len(train):,} + {len(made.test or ()):,}"


# ---- show -----------------------------------------------------------------------------------------------------------


@app.command()
def show(
    file: File,
    sets: Sets = None,
    data: DataOption = None,
    plot: Annotated[Path | None, typer.Option(help="Write a picture of the partition (.png, .svg, .pdf).")] = None,
    labels: Annotated[
        Path | None, typer.Option(help="Write a picture of how many labels clients have, as AFO's Figure 14.")
    ] = None,
) -> None:
    """Show the clients of a configuration: how many, their sizes, and who has which classes.

    Example: fastfed data show digits.toml --set data.alpha=0.01 --plot out/partition.png
    """
    from ...data import draw_labels, draw_partition
    from .. import config as configs

    fed = configs.load(file, sets or (), data or ()).federation()
    show_table(sizes(fed))
    classes = partition(fed)
    if classes is not None:
        show_table(classes)
    for option, path, draw in (("--plot", plot, draw_partition), ("--labels", labels, draw_labels)):
        if path is None:
            continue
        try:
            draw(fed, path)  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            raise configs.ConfigError(f"{option}: {error}") from error
        say(f"Picture: {path.resolve()}")


# ---- features -------------------------------------------------------------------------------------------------------


@app.command()
def features(
    file: File,
    out: Annotated[Path, typer.Option(help="The store to write: a new directory.")],
    sets: Sets = None,
    data: DataOption = None,
    head: Annotated[
        str | None, typer.Option(help="The layer whose inputs are the features. Default: the last nn.Linear.")
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="A state_dict of the model, as torch.save wrote it. Default: its first weights.")
    ] = None,
) -> None:
    """Replace the inputs of a configuration's data by the features of its model, which stays as it is.

    The store has the same clients and targets. A file whose data is open_store, directory = STORE, trains a linear
    model on it: what the whole model would be with all but its last layer frozen.

    Example: fastfed data features landmarks.toml --weights vit.pt --out stores/landmarks
    """
    from ...data import features as make_features
    from ...data import save_store
    from .. import config as configs

    if out.exists():
        raise configs.ConfigError(f"--out: {out} exists already; a store is written to a new directory")
    config = configs.load(file, sets or (), data or ())
    model = config.make_model()
    _load_weights(model, weights)
    fed = config.federation()
    try:
        with _counting() as told:
            made = make_features(fed, model, head, told=told)
    except (ValueError, RuntimeError, TypeError, IndexError) as error:
        text = str(error)
        key = "--head" if text.startswith("head: ") else "model"
        raise configs.ConfigError(f"{key}: {text.removeprefix('head: ').splitlines()[0]}") from error
    save_store(made, out)
    say(f"Store: {out.resolve()}, {len(made.examples):,} examples of {made.examples.inputs.shape[1]} features")  # type: ignore[union-attr]


def _load_weights(model: nn.Module, weights: Path | None) -> None:
    import torch

    from ..config import ConfigError

    if weights is None:
        return
    try:
        model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    except Exception as error:
        raise ConfigError(f"--weights: {weights} does not hold this model's: {first_line(error)}") from error


@contextmanager
def _counting() -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("features"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    shown = console(stderr=True)
    with Progress(*columns, console=shown, disable=not shown.is_terminal) as bar:
        task = bar.add_task("features", total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)


# ---- tables ---------------------------------------------------------------------------------------------------------


def sizes(fed: Federation) -> Table:
    """A federation in numbers."""
    from rich.table import Table

    number = fed.sizes.double()
    table = Table(title=fed.name, show_header=False)
    rows = {
        "clients": f"{len(fed):,}",
        "examples": f"{int(fed.sizes.sum()):,}",
        "test examples": f"{len(fed.test):,}" if fed.test is not None else "-",
        "examples of a client": f"{int(number.min()):,} to {int(number.max()):,}, mean {float(number.mean()):,.1f}, "
        f"median {float(number.median()):,.0f}",
    }
    for key, value in rows.items():
        table.add_row(key, value)
    return table


_SHADES = " ░▒▓█"
_CLIENTS_ACROSS, _MOST_CLASSES = 60, 64
_BESIDES = 32  # columns of a terminal that the table needs beside the clients


def partition(fed: Federation) -> Table | None:
    """Classes by clients, darker where a client has more; None where examples have no class, or there are too many."""
    from rich.table import Table

    from ..runs import who_has_what

    told = who_has_what(fed)
    if told["counts"] is None or len(told["classes"]) > _MOST_CLASSES:
        return None
    counts = told["counts"][: min(_CLIENTS_ACROSS, max(1, console().width - _BESIDES))]
    most = max(1, max(map(max, counts)))
    table = Table(title=f"{len(counts)} of {counted(len(fed), 'client')} across (█: {counted(most, 'example')})")
    for heading in ("class", "clients", "examples"):
        table.add_column(heading, no_wrap=True, justify="right" if heading == "examples" else "left")
    for kind, name in enumerate(told["classes"]):
        row = [client[kind] for client in counts]
        table.add_row(name, "".join(_shade(n, most) for n in row), f"{sum(row):,}")
    return table


def _shade(number: int, most: int) -> str:
    """Anything is more than nothing."""
    return _SHADES[0] if number == 0 else _SHADES[max(1, round(number / most * (len(_SHADES) - 1)))]
