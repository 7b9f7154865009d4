"""Downloads: from a server on this machine, checked, kept, unpacked; and what is said where there is none."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fastfed.data import fetching
from fastfed.data.fetching import Download, FetchError, fetch

from ..app.commands.support import fastfed
from ..app.commands.test_data import mnist


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None: ...


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """An address on the loopback, and the directory that it serves."""
    home = tmp_path / "served"
    home.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(home))) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}", home
        running.shutdown()
        thread.join()


def published(monkeypatch: pytest.MonkeyPatch, name: str, files: dict[str, bytes], archive: bool = False) -> None:
    held = tuple(
        fetching._File(file, hashlib.md5(contents, usedforsecurity=False).hexdigest(), archive)
        for file, contents in files.items()
    )
    monkeypatch.setitem(fetching.DOWNLOADS, name, Download("https://nowhere.invalid/", held))


def test_a_data_set_is_downloaded_checked_and_loaded(
    server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, served = server
    files = {path.name: path.read_bytes() for path in mnist(served / "mnist").iterdir()}
    published(monkeypatch, "mnist", files)
    said = fastfed("data", "get", "mnist", "--to", tmp_path / "here", "--from", f"{address}/mnist")
    assert said.exit_code == 0, said.stderr
    assert said.stdout.startswith("mnist: 30 + 10 examples in ")
    assert {path.name for path in (tmp_path / "here").iterdir()} == set(files)
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "here").iterdir()}
    (tmp_path / "here" / "t10k-labels-idx1-ubyte.gz").write_bytes(b"damaged")
    said = fastfed("data", "get", "mnist", "--to", tmp_path / "here", "--from", f"file://{served}/mnist/")
    assert said.exit_code == 0, said.stderr
    assert said.stderr.count("is there already") == 3
    after = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "here").iterdir()}
    assert {name for name in files if before[name] != after[name]} == {"t10k-labels-idx1-ubyte.gz"}


def test_what_is_not_the_file_is_not_kept(
    server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, served = server
    published(monkeypatch, "mnist", {"a.gz": b"right"})
    (served / "a.gz").write_bytes(b"wrong")
    with pytest.raises(FetchError, match=r"/a\.gz: is not the file that it should be \(MD5 .*\); fetch a\.gz \(MD5 "):
        fetch("mnist", tmp_path / "here", address)
    assert list((tmp_path / "here").iterdir()) == []
    with pytest.raises(FetchError, match=r"/x/a\.gz: cannot be downloaded \(File not found\); fetch a\.gz"):
        fetch("mnist", tmp_path / "here", f"{address}/x")
    with pytest.raises(FetchError, match="must be an address that begins with https"):
        fetch("mnist", tmp_path / "here", "ftp://somewhere")


def test_archives_are_unpacked_and_nothing_lands_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = tmp_path / "served"
    served.mkdir()
    with tarfile.open(served / "a.tar.gz", "w:gz") as packed:
        member = tarfile.TarInfo("inner/data.bin")
        member.size = 3
        packed.addfile(member, io.BytesIO(b"123"))
    with zipfile.ZipFile(served / "b.zip", "w") as zipped:
        zipped.writestr("gzip/more.bin", b"45")
    with tarfile.open(served / "c.tar.gz", "w:gz") as packed:
        member = tarfile.TarInfo("../outside.bin")
        packed.addfile(member, io.BytesIO(b""))
    for name in ("a.tar.gz", "b.zip", "c.tar.gz"):
        published(monkeypatch, name, {name: (served / name).read_bytes()}, archive=True)
    here = tmp_path / "here"
    for name in ("a.tar.gz", "b.zip"):
        fetch(name, here, f"file://{served}")
    assert (here / "inner" / "data.bin").read_bytes() == b"123"
    assert (here / "gzip" / "more.bin").read_bytes() == b"45"
    with pytest.raises(FetchError, match=r"c\.tar\.gz: cannot be unpacked \("):
        fetch("c.tar.gz", here, f"file://{served}")
    assert not (tmp_path / "outside.bin").exists()


def test_without_a_network_it_says_what_to_fetch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published(monkeypatch, "mnist", {"a.gz": b"right"})
    said = fastfed("data", "get", "mnist", "--to", tmp_path / "here", "--from", "http://127.0.0.1:9")
    assert said.exit_code == 1
    assert "http://127.0.0.1:9/a.gz: cannot be downloaded (" in said.stderr
    assert "; fetch a.gz (MD5 " in said.stderr
    assert f"from https://nowhere.invalid/ into {tmp_path / 'here'}" in said.stderr
    said = fastfed("data", "get", "stack_exchange", "--to", tmp_path / "here")
    assert said.exit_code == 1
    assert "stack_exchange: is not downloaded by FastFed. Put into " in said.stderr
    assert "Where to get it: " in said.stderr
    assert "needs no files" in fastfed("data", "get", "digits").stderr
    said = fastfed("data", "get", "mnits")
    assert said.exit_code == 2
    assert "mnist" in said.stderr


def test_every_download_is_of_a_data_set_that_there_is() -> None:
    from fastfed.app.config.kinds import LOADERS

    assert set(fetching.DOWNLOADS) <= set(LOADERS)
    for download in fetching.DOWNLOADS.values():
        assert all(len(bytes.fromhex(file.md5)) == 16 for file in download.files)
