"""The plays of Shakespeare as text, one client per speaking role of a play."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

import numpy as np
import torch

from ...saved.recipe import remembered
from ..arguments import check_whole
from ..dataset import Dataset
from ..errors import DataError, reading
from ..store import Examples
from .text import character_sequences, check_fraction, held_out

_SOURCE = "https://shakespeare.mit.edu, the page of each entire play saved as text"
_EXPECTED = (
    "plays as .txt files, in a directory or in a tar archive: '****' before acts and scenes, the speaker's name "
    "on a line of its own, indented speech"
)
_MOST = 1 << 28  # bytes that an archive unpacks to: all plays are a fortieth of it
_HEADING = "****"


@dataclass
class Role:
    """A speaking role of a play: its speeches in order, each a list of lines without indentation.

    Lines of speech and stage directions inside a speech look alike in the text, so both are here.
    """

    play: str
    name: str
    speeches: list[list[str]] = field(default_factory=list)

    @property
    def lines(self) -> int:
        return sum(map(len, self.speeches))

    def divide(self, test_lines: int) -> tuple[list[bytes], list[bytes]]:
        """The texts before the last `test_lines` lines, and the texts of those; one text per speech, or its part."""
        before, after = list[bytes](), list[bytes]()
        left = self.lines - test_lines
        for speech in self.speeches:
            for part, texts in ((speech[:left], before), (speech[left:], after)):
                if part:
                    texts.append("\n".join(part).encode())
            left = max(0, left - len(speech))
        return before, after


@remembered
def shakespeare_plays(
    root: str | PathLike[str], min_lines: int = 50, test_fraction: float = 0.2, length: int = 80
) -> Dataset:
    """Next-character prediction on plays as text; a client is a role of a play, named ``play/role``.

    `root` is a directory with a .txt file per play (at any depth), a tar archive of such files, or a directory with one
    such archive. Roles with fewer than `min_lines` lines are left out. The last `test_fraction` of a role's lines,
    rounded up but never all, are its test set (0: no test set).

    Every speech is cut into sequences as AFO does: inputs and targets int64 (examples, length), tokens below 90,
    targets `IGNORED` (-100) where padded.
    """
    check_whole("min_lines", min_lines, least=1)
    check_fraction("test_fraction", test_fraction)
    check_whole("length", length, least=1)
    roles = [role for role in read_roles(root) if role.lines >= min_lines]
    if not roles:
        raise ValueError(f"min_lines: no role of {Path(root)} has {min_lines} lines or more")
    divided = [role.divide(held_out(role.lines, test_fraction)) for role in roles]
    train, client = _examples([before for before, _ in divided], length)
    test, test_client = _examples([after for _, after in divided], length)
    return Dataset(
        name="shakespeare_plays",
        train=train,
        test=test if len(test) else None,
        client=client,
        client_names=tuple(f"{role.play}/{role.name}" for role in roles),
        test_client=test_client if len(test) else None,
    )


def read_roles(root: str | PathLike[str]) -> list[Role]:
    """All roles that speak, by play in alphabetical order and then by first appearance."""
    roles: dict[tuple[str, str], Role] = {}
    with reading(root, _EXPECTED, _SOURCE):
        texts = sorted(_texts(Path(root)))
    for path, text in texts:
        play = PurePosixPath(path.as_posix()).stem
        for name, speech in _speeches(path, text):
            roles.setdefault((play, name), Role(play, name)).speeches.append(speech)
    return list(roles.values())


def _speeches(path: Path, text: str) -> Iterator[tuple[str, list[str]]]:
    """Who says which lines. What stands before the first heading is no part of the play, and after a heading nobody
    speaks until somebody is named."""
    lines = [line for line in text.splitlines() if line.strip()]
    headings = [number for number, line in enumerate(lines) if line.startswith(_HEADING)]
    if not headings:
        raise DataError(path, f"has no line that begins with '{_HEADING}'", _EXPECTED, _SOURCE)
    speaker, speech = "", list[str]()
    for line in [*lines[headings[0] :], _HEADING]:
        if line[0].isspace():
            speech.append(line.strip())
            continue
        if speaker and speech:
            yield speaker, speech
        speaker, speech = "" if line.startswith(_HEADING) else line.strip(), []


def _texts(root: Path) -> list[tuple[Path, str]]:
    """The plays below a directory or in an archive: where each comes from, and its text."""
    if root.is_file():
        return _archived(root)
    if not root.is_dir():
        raise DataError(root, "does not exist", _EXPECTED, _SOURCE)
    plays = sorted(path for path in root.rglob("*.txt") if path.is_file())
    if plays:
        return [(path, _decoded(path, path.read_bytes())) for path in plays]
    archives = sorted(path for path in root.iterdir() if ".tar" in path.suffixes or path.suffix == ".tgz")
    if len(archives) != 1:
        raise DataError(root, f"holds no .txt file and {len(archives)} tar archives", _EXPECTED, _SOURCE)
    return _archived(archives[0])


def _archived(archive: Path) -> list[tuple[Path, str]]:
    """The .txt files of a tar archive, read in memory: nothing is unpacked to disk."""
    found = []
    try:
        with _unpacked(archive) as stream, tarfile.open(fileobj=cast(Any, _Bounded(stream)), mode="r:") as tar:
            for member in tar:
                if member.issparse():
                    raise tarfile.TarError(f"{member.name} has holes, as no text has")
                content = tar.extractfile(member) if member.isfile() and member.name.endswith(".txt") else None
                if content is not None:
                    path = archive / member.name
                    found.append((path, _decoded(path, content.read())))
            _check_end(tar)
    except (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, OSError) as error:
        raise DataError(archive, f"is truncated or no tar archive ({error})", _EXPECTED, _SOURCE) from error
    if not found:
        raise DataError(archive, "holds no .txt file", _EXPECTED, _SOURCE)
    return found


_OPENERS: dict[bytes, Callable[[Path], object]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ": lzma.open,
}


def _unpacked(archive: Path) -> BinaryIO:
    """The archive as it is before it is compressed."""
    with archive.open("rb") as file:
        begin = file.read(6)
    opener = next((opener for magic, opener in _OPENERS.items() if begin.startswith(magic)), None)
    return archive.open("rb") if opener is None else cast(BinaryIO, opener(archive))


class _Bounded:
    """A stream that ends where it is longer than all plays could be: nothing beyond is read or looked for."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self.tell = stream, stream.tell

    def read(self, size: int) -> bytes:
        self._check(self.tell() + size)
        return self._stream.read(size)

    def seek(self, place: int) -> int:
        self._check(place)
        return self._stream.seek(place)

    def _check(self, end: int) -> None:
        if end > _MOST:
            raise tarfile.TarError(f"it unpacks to more than {_MOST >> 20} MiB")


def _check_end(tar: tarfile.TarFile) -> None:
    """Refuses an archive without its end: tarfile itself takes a cut between two files for the end."""
    file = cast(BinaryIO, tar.fileobj)
    file.seek(tar.offset)
    if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise EOFError("its end is missing")
    while file.read(1 << 20):  # to the end of a compressed file, where its checksum is
        pass


def _decoded(path: Path, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(path, f"is not UTF-8 text ({error})", _EXPECTED, _SOURCE) from error


def _examples(texts: list[list[bytes]], length: int) -> tuple[Examples, torch.Tensor]:
    """The sequences of all clients' texts, and the client of each, (examples,) int64."""
    examples, counts = character_sequences([text for own in texts for text in own], length)
    of_text = np.repeat(np.arange(len(texts)), [len(own) for own in texts])
    return examples, torch.from_numpy(np.repeat(of_text, counts))
