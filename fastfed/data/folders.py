"""Folders of pictures: a folder of each class, perhaps below a folder of each client."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..extras import needed
from ..saved.recipe import remembered
from .arguments import check_whole
from .arrays import as_dataset, pictured
from .dataset import Dataset
from .errors import DataError
from .normalise import Statistic
from .splitting import with_test

_EXPECTED = "a folder of each class with its pictures, or train/ and test/ with such folders"
_SOURCE = "these files are yours"
_ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff"}


class _Picture(NamedTuple):
    path: Path
    kind: str
    client: str


@remembered
def from_folder(
    root: str | PathLike[str],
    size: int | None = None,
    grey: bool = False,
    clients: bool = False,
    test_fraction: float | None = None,
    seed: int = 0,
    mean: Statistic | None = None,
    std: Statistic | None = None,
) -> Dataset:
    """Pictures in folders: ``root/CLASS/*.png`` (or .jpg and others), as bytes (channels, height, width).

    With `clients`, ``root/CLIENT/CLASS/*.png``, which ``ff.data.natural`` deals. Where `root` has folders train and
    test, these hold the classes, else `test_fraction` is the share of pictures, drawn with `seed`, that become the test
    set. All are made (size, size), their middle; without `size` they must be of one size. `grey` makes one channel of
    them. `mean` and `std` as in `from_arrays`.
    """
    if size is not None:
        check_whole("size", size, least=1)
    home = Path(root)
    if not home.is_dir():
        raise DataError(home, "is not a directory" if home.exists() else "no such directory", _EXPECTED, _SOURCE)
    parted = (home / "train").is_dir() and (home / "test").is_dir()
    train = _below(home / "train" if parted else home, clients)
    test = _below(home / "test", clients=False) if parted else []
    kinds = {kind: place for place, kind in enumerate(sorted({one.kind for one in train}))}
    for one in test:
        if one.kind not in kinds:
            raise DataError(one.path.parent, "is a class that nobody trains on", _EXPECTED, _SOURCE)

    def read(pictures: list[_Picture]) -> tuple[Tensor, Tensor]:
        return _stacked(pictures, size, grey), torch.tensor([kinds[one.kind] for one in pictures])

    owners = [one.client for one in train] if clients else None
    held = read(test) if test else None
    data = as_dataset(*read(train), client=owners, test=held, name=home.name, mean=mean, std=std)
    made = Dataset(data.name, data.train, data.test, data.client, data.client_names, class_names=tuple(kinds))
    return with_test(made, test_fraction, seed)


def _below(home: Path, clients: bool) -> list[_Picture]:
    """The pictures of a folder of classes, or of clients with such folders, in the order of their names."""
    homes = [(folder.name, folder) for folder in _folders(home)] if clients else [("", home)]
    found = [
        _Picture(path, folder.name, client)
        for client, place in homes
        for folder in _folders(place)
        for path in sorted(folder.iterdir())
        if path.suffix.lower() in _ENDINGS
    ]
    if not found:
        raise DataError(home, "holds no pictures in folders", _EXPECTED, _SOURCE)
    return found


def _folders(home: Path) -> list[Path]:
    return sorted(path for path in home.iterdir() if path.is_dir() and not path.name.startswith("."))


def _stacked(pictures: list[_Picture], size: int | None, grey: bool) -> Tensor:
    """(n, channels, height, width) uint8."""
    images: Tensor | None = None
    for place, one in enumerate(pictures):
        image = _read(one.path, size, grey)
        if images is None:
            images = torch.empty((len(pictures), *image.shape), dtype=torch.uint8)
        if image.shape != images.shape[1:]:
            seen, wanted = (f"{shape[2]}x{shape[1]}" for shape in (image.shape, images.shape[1:]))
            problem = f"is {seen}, and the first picture {wanted}; size=... makes them alike"
            raise DataError(one.path, problem, _EXPECTED, _SOURCE)
        images[place] = image
    assert images is not None
    return images


def _read(path: Path, size: int | None, grey: bool) -> Tensor:
    pillow, ops = (needed(f"PIL.{name}", extra="plots", by="reading pictures") for name in ("Image", "ImageOps"))
    try:
        with pillow.open(path) as opened:
            image = opened.convert("L" if grey else "RGB")
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(path, f"is no picture ({error})", _EXPECTED, _SOURCE) from error
    return pictured(str(path), ops.fit(image, (size, size)) if size is not None else image).reshape(
        1 if grey else 3, *((size, size) if size is not None else (image.height, image.width))
    )
