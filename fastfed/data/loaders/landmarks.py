"""GLD-23K: the Google Landmarks photographs of those users who took many, as federated learning has them."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...extras import needed
from ...saved.recipe import remembered
from ..arguments import check_whole
from ..dataset import Dataset
from ..errors import DataError, reading
from ..normalise import Normalise, pixels, statistics
from ..store import Examples

_SOURCE = (
    "the federated split of Google Landmarks v2 (Hsu, Qi and Brown, 2020): landmarks-user-160k.zip for the CSV files, "
    "the photographs from the data set itself"
)
_TRAIN, _TEST, _IMAGES = "mini_gld_train_split.csv", "mini_gld_test.csv", "images"
_EXPECTED = (
    f"{_TRAIN} with columns user_id, image_id, class, {_TEST} with image_id, class, and {_IMAGES}/ with a .jpg of "
    "every image_id, in the folder itself or below the first three letters of its name (a/b/c/abc....jpg)"
)


class _Photograph(NamedTuple):
    user: str
    image: str
    kind: str


@remembered
def gld23k(root: str | PathLike[str], size: int = 224, normalise: Normalise = True) -> Dataset:
    """GLD-23K: 23,080 photographs of 203 landmarks by 233 users, and 1,959 for testing; a client is a user.

    ``root`` holds ``mini_gld_train_split.csv`` (user_id, image_id, class), ``mini_gld_test.csv`` (image_id, class) and
    ``images/``, as JPEG files. Each photograph is scaled until its shorter side is `size` and cut to its middle: bytes
    (3, size, size), 3.8 GB in all at 224. ``fastfed data features`` makes a small store of them that a linear model
    trains on. `normalise` True: mean and deviation 0.5, as vision transformers want it; else see
    ``fastfed.data.normalise``.
    """
    check_whole("size", size, least=1)
    scale = statistics("gld23k", normalise)
    home = Path(root)
    train = list(_rows(home / _TRAIN, ("user_id", "image_id", "class")))
    test = list(_rows(home / _TEST, ("image_id", "class")))
    kinds = {kind: place for place, kind in enumerate(sorted({one.kind for one in train}, key=_in_order))}
    users = {user: place for place, user in enumerate(dict.fromkeys(one.user for one in train))}
    for one in test:
        if one.kind not in kinds:
            raise DataError(home / _TEST, f"has the class {one.kind!r}, which nobody trains on", _EXPECTED, _SOURCE)

    def examples(of: list[_Photograph]) -> Examples:
        images = torch.stack([_read(_find(home / _IMAGES, one.image), size) for one in of])
        return Examples(pixels(images, scale), torch.tensor([kinds[one.kind] for one in of]))

    return Dataset(
        name="gld23k",
        train=examples(train),
        test=examples(test),
        client=torch.tensor([users[one.user] for one in train]),
        client_names=tuple(users),
        class_names=tuple(kinds),
    )


def _in_order(kind: str) -> tuple[int, int | str]:
    """Numbers by their value, before names."""
    return (0, int(kind)) if kind.isdigit() else (1, kind)


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[_Photograph]:
    if not path.is_file():
        raise DataError(path, "there is no such file", _EXPECTED, _SOURCE)
    with reading(path, _EXPECTED, _SOURCE), path.open(encoding="utf-8", newline="") as lines:
        table = csv.DictReader(lines)
        if not set(columns) <= set(table.fieldnames or ()):
            raise DataError(path, f"lacks columns of {', '.join(columns)}", _EXPECTED, _SOURCE)
        found = [_Photograph(row.get("user_id") or "", row["image_id"], row["class"]) for row in table]
    if any(one.image is None or one.kind is None for one in found):
        raise DataError(path, "has a row that ends early", _EXPECTED, _SOURCE)
    if not found:
        raise DataError(path, "names no photograph", _EXPECTED, _SOURCE)
    yield from found


def _find(images: Path, name: str) -> Path:
    for path in (images / f"{name}.jpg", images.joinpath(*name[:3], f"{name}.jpg")):
        if path.is_file():
            return path
    raise DataError(images / f"{name}.jpg", "there is no such file", _EXPECTED, _SOURCE)


def _read(path: Path, size: int) -> Tensor:
    """A photograph (3, size, size) uint8."""
    pillow = needed("PIL.Image", extra="plots", by="reading photographs")
    with reading(path, _EXPECTED, _SOURCE):
        try:
            with pillow.open(path) as opened:
                image = opened.convert("RGB")
        except OSError as error:  # a file that is no picture, too
            raise DataError(path, f"is no picture ({error})", _EXPECTED, _SOURCE) from error
    share = size / min(image.size)
    wide, high = (max(size, round(side * share)) for side in image.size)
    left, top = (wide - size) // 2, (high - size) // 2
    cut = image.resize((wide, high), pillow.Resampling.BILINEAR).crop((left, top, left + size, top + size))
    return torch.from_numpy(np.asarray(cut).transpose(2, 0, 1).copy())
