"""The page of runs that are still going: served to this machine alone, made anew whenever the runs have gone on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from . import runs
from .counting import counted
from .report import gather
from .report.files import sweeps_among
from .report.page import compose, render, waiting

HOST, PORT = "127.0.0.1", 8765
_LINGERS = 5.0  # seconds after a run's end in which an open page may still fetch it


class Watched:
    """What is in some directories, as a page; the same text as long as nothing there has changed."""

    def __init__(self, places: Sequence[Path]) -> None:
        self.places = list(places)
        self._made: tuple[str, str] | None = None
        self._lock = threading.Lock()

    def version(self) -> str:
        """Changes with every row that is written, and every run that begins or ends."""
        found = [(path, _stamp(path)) for place in self.places for path in _files(place)]
        return f"{hash(tuple(found)) & 0xFFFFFFFFFFFF:x}"

    def page(self) -> str:
        with self._lock:
            version = self.version()
            if self._made is None or self._made[0] != version:
                self._made = version, self._render(version)
            return self._made[1]

    def _render(self, version: str) -> str:
        try:
            entries = gather([place for place in self.places if place.is_dir()] or self.places)
        except runs.DamagedRun:  # nothing is there yet, or is being written just now
            return waiting(", ".join(map(str, self.places)), version)
        states = [str(entry.info.get("status")) for entry in entries]
        going, done = states.count("running"), states.count("done")
        report = compose(entries, sweeps=[place for place in sweeps_among(self.places) if done])
        told = f"{counted(going, 'run')} going, {done} done" if going else f"{counted(len(states), 'run')}, none going"
        return render(report, live=version, state=told)


def _files(place: Path) -> Iterator[Path]:
    for name in (runs.ROUNDS, runs.INFO):
        yield from sorted(place.rglob(name))


def _stamp(path: Path) -> tuple[int, int]:
    with suppress(OSError):
        told = path.stat()
        return told.st_mtime_ns, told.st_size
    return 0, 0


class Server:
    """Serves the page on 127.0.0.1 until it is closed; `address` says where."""

    def __init__(self, watched: Watched, port: int | None = None) -> None:
        self.seen = 0.0  # when somebody last asked
        self.fetched = ""  # the version that was last given
        self._http = self._bound(watched, port)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    def _bound(self, watched: Watched, port: int | None) -> ThreadingHTTPServer:
        handler = _handler(watched, self)
        if port is None:
            with suppress(OSError):  # taken: any other will do
                return _Quiet((HOST, PORT), handler)
        return _Quiet((HOST, port or 0), handler)

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self._http.server_address[1]}/"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A page that was closed while it was sent is no error."""


def _handler(watched: Watched, server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """The page, or its version."""
            if self.headers.get("Host", "").rpartition(":")[0] not in (HOST, "localhost"):
                self.send_error(403, "served to this machine alone")  # another site's name that points here
                return
            server.seen = time.monotonic()
            if self.path == "/version":
                self._give(watched.version(), "text/plain")
            elif self.path == "/":
                page = watched.page()
                server.fetched = watched.version()
                self._give(page, "text/html")
            else:
                self.send_error(404)

        def _give(self, text: str, kind: str) -> None:
            body = text.encode()
            self.send_response(200)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: the terminal is the run's."""

    return Handler


@contextmanager
def served(places: Sequence[Path], port: int | None = None) -> Iterator[Server]:
    """While the block runs, and until a page that is open has fetched how it ended."""
    watched = Watched(places)
    server = Server(watched, port)
    try:
        yield server
        end = time.monotonic() + _LINGERS
        while time.monotonic() - server.seen < _LINGERS and time.monotonic() < end:
            if server.fetched == watched.version():
                break
            time.sleep(0.1)
    finally:
        server.close()
