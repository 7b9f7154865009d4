"""`fastfed methods` and `fastfed schema`: what a configuration may say."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from .terminal import console, say, show_table


def methods(
    name: Annotated[str | None, typer.Argument(metavar="[METHOD]", help="One of them, with every key it has.")] = None,
    costs: Annotated[bool, typer.Option("--costs", help="What a round of each costs a client, instead.")] = False,
    model: Annotated[str, typer.Option(help="The model whose costs these are.")] = "emnist_cnn",
) -> None:
    """Show every method, its paper, and the keys that its options have in a configuration.

    A key without a value must be given. AFO, FedAda2, DSGD, FATHOM and CC are the papers, named below the table. With
    the name of a method: its part of a configuration, every default stated. With --costs: the bytes that a client of
    each method is sent and sends in a round, and the memory of its optimizer, as FedAda2's Table 2.

    Example: fastfed methods fedyogi
    """
    if costs:
        _show_costs(model)
    elif name is None:
        _list_all()
    else:
        _show(name)


def _show_costs(name: str) -> None:
    from ... import methods as module
    from ..config import ConfigError
    from ..config.kinds import MODELS, find

    make = find(MODELS, "--model", name)
    try:
        model = make()
    except (TypeError, ValueError) as error:  # one that must be told its sizes
        raise ConfigError(f"--model: {name} must be told its sizes; take one that has defaults") from error
    console().print(module.table(model))


def _list_all() -> None:
    from rich.markup import escape
    from rich.table import Table

    from ... import methods as module
    from ..config.kinds import METHODS

    table = Table(show_lines=True)
    for heading in ("method", "what it is", "keys and defaults"):
        table.add_column(heading, overflow="fold")
    for name, make in METHODS.items():
        table.add_row(name, escape(_summary(make)), escape("\n".join(_keys(name))))
    show_table(table)
    papers = (inspect.getdoc(module) or "").partition("Papers")[2].partition(":")[2]
    console().print(f"Papers: {' '.join(papers.split())}", highlight=False, markup=False)


def _show(method: str) -> None:
    """A method's part of a file, as TOML; what must be given is a comment."""
    from ..config import document, kinds
    from ..config import method as homes

    make = kinds.find(kinds.METHODS, "METHOD", method)
    needed = {homes.homes(method)[name] for name in homes.needed(method)}
    table = ""
    say(f"# {_summary(make)}\n")
    for line in document.write(homes.tables(method)).splitlines():
        if line.startswith("["):
            table = line.strip("[]")
        key = line.partition(" = ")[0]
        say(f"# {key} must be given" if f"{table}.{key}" in needed else line)


def _summary(make: object) -> str:
    return " ".join((inspect.getdoc(make) or "").split("\n\n")[0].split())


def _keys(method: str) -> Iterator[str]:
    """The dotted keys of a method, those that must be given first."""
    from ..config import method as homes
    from ..config.kinds import METHODS, SERVERS, name_of

    parameters = inspect.signature(METHODS[method]).parameters
    for name in sorted(parameters, key=lambda name: name not in homes.needed(method)):
        key, default = homes.homes(method)[name], parameters[name].default
        if name in homes.needed(method):
            yield f"{key} (must be given)"
        elif default is not None:
            yield f"{key} = {json.dumps(default)}"
        elif key == "server.rule":
            yield f"{key} = {json.dumps(name_of(SERVERS, homes.example(method)['server']))}"
        else:
            yield key


def schema(
    out: Annotated[Path | None, typer.Option(help="Where it goes. Default: standard output.")] = None,
) -> None:
    """Write the JSON schema of configurations, with which editors complete and check them.

    Example: fastfed schema --out fastfed.schema.json
    """
    from ..config import json_schema

    text = json.dumps(json_schema(), indent=1)
    if out is None:
        print(text)
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text + "\n")
    say(f"Schema: {out}")
