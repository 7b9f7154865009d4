"""Downloads of data sets whose publishers tell a digest of their files, and what to fetch by hand of all others."""

from __future__ import annotations

import hashlib
import http.client
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from ..files import aside

_SECONDS = 30.0  # without a byte
_CHUNK = 1 << 20
Told = Callable[[str], None]


class FetchError(ValueError):
    """A file could not be downloaded, or is not what it should be: the message says what to do by hand."""


@dataclass(frozen=True)
class _File:
    """A file, its MD5 as its publisher or torchvision tells it, and whether it is an archive to be unpacked."""

    name: str
    md5: str
    is_archive: bool = False


@dataclass(frozen=True)
class Download:
    """The files of a data set, and the address that their names are appended to."""

    base: str
    files: tuple[_File, ...]


def _idx(base: str, images: str, labels: str, test_images: str, test_labels: str) -> Download:
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    digests = (images, labels, test_images, test_labels)
    return Download(base, tuple(_File(f"{name}-ubyte.gz", md5) for name, md5 in zip(names, digests, strict=True)))


DOWNLOADS: dict[str, Download] = {
    "mnist": _idx(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
    "fashion_mnist": _idx(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
    "emnist": Download(
        "https://biometrics.nist.gov/cs_links/EMNIST/",
        (_File("gzip.zip", "58c8d27c78d21e728a6bc7b3cc06412e", is_archive=True),),
    ),
    "qmnist": Download(
        "https://raw.githubusercontent.com/facebookresearch/qmnist/master/",
        (
            _File("qmnist-train-images-idx3-ubyte.gz", "ed72d4157d28c017586c42bc6afe6370"),
            _File("qmnist-train-labels-idx2-int.gz", "0058f8dd561b90ffdd0f734c6a30e5e4"),
            _File("qmnist-test-images-idx3-ubyte.gz", "1394631089c404de565df7b7aeaf9412"),
            _File("qmnist-test-labels-idx2-int.gz", "5b5b05890a5e13444e108efe57b788aa"),
        ),
    ),
    "cifar10": Download(
        "https://www.cs.toronto.edu/~kriz/",
        (_File("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", is_archive=True),),
    ),
    "cifar100": Download(
        "https://www.cs.toronto.edu/~kriz/",
        (_File("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", is_archive=True),),
    ),
}


def fetch(name: str, to: str | PathLike[str], base: str | None = None, told: Told = lambda line: None) -> Path:
    """Downloads a data set into a directory, which its loader then takes as `root`. Files that are there, and right,
    are not downloaded again. `base` is another address of the same files: a mirror, or ``file:///...``."""
    download, home = DOWNLOADS[name], Path(to)
    address = download.base if base is None else f"{base.rstrip('/')}/"
    for file in download.files:
        target = home / file.name
        if target.is_file() and _digest(target) == file.md5:
            told(f"{target}: is there already")
        else:
            told(f"{address}{file.name}")
            _download(f"{address}{file.name}", target, file, by_hand(name, home))
        if file.is_archive:
            _unpack(target, home)
    return home


def by_hand(name: str, to: str | PathLike[str]) -> str:
    """What to fetch, where there is no network: a sentence."""
    download = DOWNLOADS[name]
    files = ", ".join(f"{file.name} (MD5 {file.md5})" for file in download.files)
    then = ", unpack it there" if any(file.is_archive for file in download.files) else ""
    return f"fetch {files} from {download.base} into {to}{then}"


def _download(url: str, target: Path, file: _File, help: str) -> None:
    """The file, complete and with the right digest, or none."""
    if not url.startswith(("https://", "http://", "file://")):
        raise FetchError(f"{url}: must be an address that begins with https://, http:// or file://")
    target.parent.mkdir(parents=True, exist_ok=True)
    found = hashlib.md5(usedforsecurity=False)
    try:
        with (
            aside(target) as scratch,
            urllib.request.urlopen(url, timeout=_SECONDS) as answer,
            scratch.open("wb") as out,
        ):
            while chunk := answer.read(_CHUNK):
                found.update(chunk)
                out.write(chunk)
            if found.hexdigest() != file.md5:
                raise FetchError(f"{url}: is not the file that it should be (MD5 {found.hexdigest()}); {help}")
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", None) or error
        raise FetchError(f"{url}: cannot be downloaded ({reason}); {help}") from error


def _digest(path: Path) -> str:
    found = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()


def _unpack(archive: Path, home: Path) -> None:
    """Nothing of an archive lands outside the directory."""
    try:
        if archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as held:
                held.extractall(home)
        else:
            with tarfile.open(archive) as packed:
                packed.extractall(home, filter="data")
    except (tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
        raise FetchError(f"{archive}: cannot be unpacked ({error})") from error
