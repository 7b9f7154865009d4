"""Whatever is wrong with a file, its reader says so in one sentence that names it."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastfed as ff
from fastfed.data import DataError
from fastfed.data.errors import reading
from fastfed.data.loaders.stackexchange import _plain

from .test_stackexchange import row, written

DEEP = "[" * 100_000


def partition(path: Path, header: str) -> None:
    bytes_of = np.frombuffer(header.encode(), dtype=np.uint8)
    with path.open("wb") as file:
        np.savez(file, rows=np.arange(3), offsets=np.array([0, 3]), header=bytes_of)


def deep_partition(folder: Path) -> Any:
    partition(folder / "p.npz", DEEP)
    return ff.data.load_partition(ff.data.digits(), folder / "p.npz")


def odd_partition(folder: Path) -> Any:
    header = {"format": "fastfed partition 1", "name": "a", "examples": 1442, "test_examples": None}
    partition(folder / "p.npz", json.dumps({**header, "client_names": [], "fingerprint": 7}))
    return ff.data.load_partition(ff.data.digits(), folder / "p.npz")


def deep_store(folder: Path) -> Any:
    (folder / "store.json").write_text(DEEP)
    return ff.data.open_store(folder)


def deep_leaf(folder: Path) -> Any:
    (folder / "train").mkdir()
    (folder / "train" / "p.json").write_text(DEEP)
    return ff.data.leaf(folder)


def unhashable_leaf(folder: Path) -> Any:
    (folder / "train").mkdir()
    (folder / "train" / "p.json").write_text('{"users": [[]], "num_samples": [1], "user_data": {}}')
    return ff.data.leaf(folder)


def question(folder: Path, **changed: str) -> Any:
    written(folder, row(1, **changed), name="p-Posts.xml")
    return ff.data.stack_exchange(folder)


@pytest.mark.parametrize(
    ("read", "file", "problem"),
    [
        (deep_partition, "p.npz", "cannot be read (it is nested too deeply)"),
        (odd_partition, "p.npz", "cannot be read (AttributeError: 'int' object has no attribute 'startswith')"),
        (deep_store, "store.json", "is no JSON (maximum recursion depth exceeded"),
        (deep_leaf, "train/p.json", "cannot be read (it is nested too deeply)"),
        (unhashable_leaf, "train/p.json", "cannot be read (TypeError: unhashable type: 'list')"),
        (
            lambda folder: question(folder, Id="9" * 5000),
            "p-Posts.xml",
            "cannot be read (ValueError: ",
        ),
        (
            lambda folder: question(folder, Body=f"&#{'9' * 5000};"),
            "p-Posts.xml",
            "cannot be read (ValueError: ",
        ),
    ],
)
def test_damage_is_one_sentence(read: Callable[[Path], Any], file: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"^{re.escape(str(tmp_path / file))}: {re.escape(problem)}.*[.] Expected "):
        read(tmp_path)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (IndexError("list index out of range"), "IndexError: list index out of range"),
        (MemoryError(), "it asks for more memory than there is"),
        (AssertionError(), "AssertionError"),
        (RuntimeError("two\n  lines"), "RuntimeError: two lines"),
        (RuntimeError("x" * 1000), f"RuntimeError: {'x' * 300} ..."),
    ],
)
def test_any_exception_names_the_file(error: Exception, told: str) -> None:
    with pytest.raises(DataError) as found, reading("a/b.bin", "a file", "its home"):
        raise error
    assert str(found.value) == f"a/b.bin: cannot be read ({told}). Expected a file. Where to get it: its home"
    assert found.value.__cause__ is error


def test_what_is_no_fault_of_the_file_is_not_put_down_to_it() -> None:
    for error in (ImportError("h5py is missing"), KeyboardInterrupt()):
        with pytest.raises(type(error)), reading("a", "b", "c"):
            raise error


@pytest.mark.parametrize(
    ("html", "words"),
    [
        ("<p>Don't <em>stop</em></p><li>one</li><li>two &amp; 3", ["Don't", "stop", "one", "two", "&", "3"]),
        ("a < b <a title=\"x > y\" href='>'>c</a>&lt;d&gt;", ["a", "<", "b", "c", "<d>"]),
        ("a<!-- b > <i> -->c<!-- never", ["a", "c<!--", "never"]),
        ("one<br/>two<!DOCTYPE x>three<?pi?>four<", ["one", "two", "three", "four<"]),
    ],
)
def test_html_without_its_tags(html: str, words: list[str]) -> None:
    assert _plain(html).split() == words


@pytest.mark.parametrize("piece", ["<a ", "<!--", '<a "', "<a '\"", "</", "&", "<a b="])
def test_html_that_never_ends_takes_no_longer_than_its_length(piece: str) -> None:
    """Some 200,000 pieces: what looks at the rest for each of them would take minutes."""
    assert len(_plain(piece * 200_000)) >= 200_000


# ---- small files that ask for much ----------------------------------------------------------------------------------


@contextmanager
def in_memory_of(spare: int) -> Iterator[None]:
    """Whatever asks for more address space than there is now and `spare` bytes fails, as on a machine without it."""
    resource = pytest.importorskip("resource")
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + spare, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def refused(read: Callable[[], Any]) -> str:
    """What a reader says that has 300 MB and no more."""
    with in_memory_of(300 << 20), pytest.raises(DataError) as found:
        read()
    return str(found.value)


def test_an_array_that_promises_8_tib_is_not_given_them(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<i8", "fortran_order": False, "shape": (1 << 40,)})
    with zipfile.ZipFile(tmp_path / "p.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("rows.npy", header.getvalue() + bytes(80))
    told = refused(lambda: ff.data.load_partition(ff.data.digits(), tmp_path / "p.npz"))
    assert "p.npz: cannot be read (rows.npy says that it has 8,796,093,022,208 bytes, in " in told


def tar_of(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with gzip.open(path, "wb", compresslevel=1) as stream:
        for info, content in members:
            stream.write(info.tobuf(tarfile.GNU_FORMAT) + content)
        stream.write(bytes(1024))
    return path


def test_a_tar_archive_with_a_text_of_1_tib_of_holes_is_refused(tmp_path: Path) -> None:
    info = tarfile.TarInfo("play.txt")
    info.type, info.size = tarfile.GNUTYPE_SPARSE, 0
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    block[483:495] = tarfile.itn(1 << 40, 12, tarfile.GNU_FORMAT)  # its size with its holes
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    (tmp_path / "plays.tar").write_bytes(bytes(block) + bytes(1024))
    told = refused(lambda: ff.data.shakespeare_plays(tmp_path))
    assert "is truncated or no tar archive (play.txt has holes, as no text has)" in told


@pytest.mark.parametrize("name", ["play.txt", "else.bin"])
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_tar_archive_that_unpacks_to_more_than_all_plays_is_refused(kind: bytes, name: str, tmp_path: Path) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, 6 << 30
    archive = tar_of(tmp_path / "plays.tar.gz", (info, bytes(1 << 20)))  # what it would unpack to does not matter
    told = refused(lambda: ff.data.shakespeare_plays(archive))
    assert "is truncated or no tar archive (it unpacks to more than 256 MiB)" in told


CIFAR = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")


def test_a_pickle_that_names_a_place_far_away_is_given_no_memory_for_it(tmp_path: Path) -> None:
    far = b"\x80\x02}r" + (1 << 29).to_bytes(4, "little") + b"."  # an empty dictionary, kept as number 2**29
    for stem in CIFAR:
        (tmp_path / stem).write_bytes(far)
    assert "its 'data' is NoneType" in refused(lambda: ff.data.cifar10(tmp_path))


def test_a_pickle_that_says_the_same_text_again_and_again_is_refused(tmp_path: Path) -> None:
    text = b"X" + (1 << 20).to_bytes(4, "little") + bytes(1 << 20)
    again = b"h\x00h\x01h\x02\x86R"  # encode(text, "latin1"), which stays on the stack
    pickled = b"\x80\x02c_codecs\nencode\nq\x00" + text + b"q\x01X\x06\x00\x00\x00latin1q\x02" + again * 400 + b"."
    for stem in CIFAR:
        (tmp_path / stem).write_bytes(pickled)
    told = refused(lambda: ff.data.cifar10(tmp_path))
    assert "data_batch_1: is no readable pickle (UnpicklingError: it has more text than the file)" in told


def test_a_post_that_does_not_end_is_refused(tmp_path: Path) -> None:
    with lzma.open(tmp_path / "p-Posts.xml.xz", "wb", preset=0) as file:
        file.write(b'<posts><row Id="1" PostTypeId="1" CreationDate="2020" Body="')
        for _ in range(40):
            file.write(bytes([97]) * (1 << 20))
    assert "has a post of more than 32 MiB" in refused(lambda: ff.data.stack_exchange(tmp_path))
