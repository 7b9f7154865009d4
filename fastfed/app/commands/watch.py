"""`fastfed watch`: the page of runs that are still going."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from .terminal import complain, say

Live = Annotated[
    bool, typer.Option("--live", help="Serve the report's page to this machine while it goes, as `fastfed watch` does.")
]


def watch(
    places: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Runs or sweeps, or directories that hold some.")
    ],
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Default: 8765, or any that is free where that is taken.")
    ] = None,
) -> None:
    """Follow runs in a browser as they go.

    The page is that of `fastfed report`, made anew whenever a run has gone on. It is served on 127.0.0.1 alone: no
    other machine can read it. A directory may still be empty, or not be there yet. Ctrl-C ends it.

    Example: fastfed watch runs/digits
    """
    from ..live import Server, Watched

    server = Server(Watched(places), port)
    say(f"Watching {', '.join(map(str, places))}: {server.address} (Ctrl-C ends it)")
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        say("")
    finally:
        server.close()


@contextmanager
def live(wanted: bool, home: Path) -> Iterator[None]:
    """While the block runs, the page of what it writes into a directory, if it is wanted."""
    if not wanted:
        yield
        return
    from ..live import served

    with served([home]) as server:
        complain(f"live: {server.address}")
        yield
