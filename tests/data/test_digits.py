"""The embedded digits: the published counts, the same split everywhere, and a licence beside them."""

from __future__ import annotations

import hashlib
from importlib.resources import files

import pytest
import torch

from fastfed.data import Dataset, Pixels
from fastfed.data.loaders.digits import digits
from fastfed.data.normalise import STATISTICS

PUBLISHED_CLASSES = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def parts(data: Dataset) -> tuple[Pixels, Pixels, torch.Tensor, torch.Tensor]:
    assert data.test is not None
    (train, labels), (test, test_labels) = (
        (data.train.inputs, data.train.targets),
        (data.test.inputs, data.test.targets),
    )
    assert isinstance(train, Pixels)
    assert isinstance(test, Pixels)
    assert isinstance(labels, torch.Tensor)
    assert isinstance(test_labels, torch.Tensor)
    return train, test, labels, test_labels


def test_all_published_rows_are_there() -> None:
    train, test, labels, test_labels = parts(digits())
    assert torch.cat([labels, test_labels]).bincount().tolist() == PUBLISHED_CLASSES
    assert (len(train), len(test)) == (1442, 355)
    assert train.bytes.shape[1:] == test.bytes.shape[1:] == (1, 8, 8)
    first_row = train.bytes[0, 0, 0].double() * 16 / 255  # the file begins with a 0: 0 0 5 13 9 1 0 0
    assert first_row.round().tolist() == [0, 0, 5, 13, 9, 1, 0, 0]
    assert int(labels[0]) == 0


def test_values_are_spread_over_a_byte() -> None:
    train, test, _, _ = parts(digits())
    values = torch.cat([train.bytes.flatten(), test.bytes.flatten()])
    assert values.unique().tolist() == [round(count * 255 / 16) for count in range(17)]


@pytest.mark.parametrize("test_every", [2, 5, 10])
def test_every_class_gives_its_share_of_test_rows(test_every: int) -> None:
    _, _, labels, test_labels = parts(digits(test_every=test_every))
    assert test_labels.bincount().tolist() == [count // test_every for count in PUBLISHED_CLASSES]
    assert len(labels) + len(test_labels) == 1797


def test_the_split_is_the_same_everywhere() -> None:
    one, other = parts(digits()), parts(digits())
    assert torch.equal(one[0].bytes, other[0].bytes)
    digest = hashlib.sha256(one[3].numpy().astype("<i8").tobytes() + one[1].bytes.numpy().tobytes())
    assert (
        digest.hexdigest()[:16] == "5cbd7bc80de7fcf1"
    )  # the test rows as of the first release: results depend on them


def test_the_constants_are_those_of_the_data() -> None:
    train, test, _, _ = parts(digits())
    values = torch.cat([train.bytes.flatten(), test.bytes.flatten()]).double() / 255
    mean, std = round(float(values.mean()), 4), round(float(values.std(correction=0)), 4)
    assert ((mean,), (std,)) == STATISTICS["digits"] == (train.mean, train.std)
    plain, _, _, _ = parts(digits(normalise=False))
    assert (plain.mean, plain.std) == ((0.0,), (1.0,))


def test_source_and_licence_are_beside_the_file() -> None:
    text = (files("fastfed.data") / "embedded" / "digits.txt").read_text()
    for part in ("Alpaydin", "Kaynak", "10.24432/C50P49", "CC BY 4.0", "Changes"):
        assert part in text
    assert "CC BY 4.0" in (digits.__doc__ or "")


def test_a_recipe_is_kept() -> None:
    recipe = digits(test_every=4).recipe
    assert recipe is not None
    assert (recipe.function, recipe.arguments) == ("data.digits", {"test_every": 4})


@pytest.mark.parametrize("bad", [1, 0, -5, 2.5, True, 101, None])
def test_a_bad_share_is_named(bad: object) -> None:
    with pytest.raises(ValueError, match=r"^test_every: must be an integer from 2 to 100, got "):
        digits(test_every=bad)  # type: ignore[arg-type]
