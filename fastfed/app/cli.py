"""The command line, put together of the commands in ``fastfed.app.commands``.

Exit codes: 0 done, 1 failed, 2 asked for wrongly, 130 interrupted. A failure is a sentence, never a traceback. Each
command stands in a file of its own and imports what it needs when it is called, so that `--help` is quick.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .._version import __version__
from ..torchrun import are_asked_for
from .commands.bench import app as bench
from .commands.compare import compare
from .commands.data import app as data
from .commands.demo import demo
from .commands.doctor import doctor
from .commands.export import export
from .commands.methods import methods, schema
from .commands.report import report
from .commands.run import run
from .commands.starter import init
from .commands.sweep import sweep
from .commands.terminal import ASKED_WRONGLY, FAILED, complain, exit_codes
from .commands.watch import watch
from .errors import first_line

_TRACEBACK = "FASTFED_TRACEBACK"  # set in the environment: what nobody expected shows where it came from


class _Commands(TyperGroup):
    """All commands: what goes wrong in any of them becomes a sentence and an exit code here."""

    def invoke(self, ctx: Any) -> Any:
        with exit_codes():
            return super().invoke(ctx)


app = typer.Typer(
    name="fastfed",
    cls=_Commands,
    help="FastFed: federated optimisation simulated fast.\n\nExample: fastfed init a.toml, then: fastfed run a.toml",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for _command in (init, run, sweep, compare, report, watch, export, methods, schema, doctor, demo):
    app.command()(_command)
app.add_typer(data, name="data")
app.add_typer(bench, name="bench")


def main() -> None:
    """The entry point."""
    try:
        app()
    except Exception as error:
        if os.environ.get(_TRACEBACK):
            raise
        complain(f"something unexpected: {type(error).__name__}: {first_line(error)} ({_TRACEBACK}=1 shows where)")
        sys.exit(FAILED)


def _say_version(asked: bool) -> None:
    if asked:
        print(f"fastfed {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    called: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    try:
        several = are_asked_for()
    except ValueError as error:
        complain(str(error))
        raise typer.Exit(ASKED_WRONGLY) from None
    if several and called.invoked_subcommand != "run":
        if os.environ["RANK"] == "0":
            complain(
                f"torchrun: several processes share the work of `fastfed run` alone, got {called.invoked_subcommand}"
            )
        raise typer.Exit(ASKED_WRONGLY)


if __name__ == "__main__":
    main()
