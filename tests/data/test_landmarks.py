"""GLD-23K from small files: who took what, and pictures cut to a square."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fastfed as ff

GREY, RED = (128, 128, 128), (250, 10, 10)


def picture(path: Path, wide: int, high: int, colour: tuple[int, int, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (wide, high), colour).save(path, quality=95)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "mini_gld_train_split.csv").write_text("user_id,image_id,class\n7,aaa1,10\n3,bcd2,2\n7,eee3,2\n")
    (tmp_path / "mini_gld_test.csv").write_text("image_id,class\nfff4,10\n")
    images = tmp_path / "images"
    picture(images / "aaa1.jpg", 8, 8, GREY)
    picture(images / "b" / "c" / "d" / "bcd2.jpg", 30, 10, RED)
    picture(images / "eee3.jpg", 6, 40, RED)
    picture(images / "fff4.jpg", 16, 16, GREY)
    return tmp_path


def test_clients_are_users_and_classes_go_by_their_numbers(root: Path) -> None:
    data = ff.data.gld23k(root, size=8)
    assert data.client is not None
    assert data.client.tolist() == [0, 1, 0]
    assert data.client_names == ("7", "3")
    assert data.class_names == ("2", "10")
    assert data.train.targets.tolist() == [1, 0, 0]
    assert data.test is not None
    assert data.test.targets.tolist() == [1]
    inputs, _ = data.train.batch(torch.arange(3))
    assert inputs.shape == (3, 3, 8, 8)
    torch.testing.assert_close(inputs[0], torch.full((3, 8, 8), (128 / 255 - 0.5) / 0.5), rtol=0, atol=0.02)
    assert bool((inputs[1:, 0] > 0.8).all())
    assert bool((inputs[1:, 1:] < -0.8).all())
    assert len(ff.data.natural(data)) == 2


def test_the_middle_is_what_is_kept(root: Path) -> None:
    stripes = np.zeros((4, 12, 3), dtype=np.uint8)
    stripes[:, 4:8] = 255
    Image.fromarray(stripes).resize((120, 40), Image.Resampling.NEAREST).save(root / "images" / "aaa1.jpg", quality=95)
    inputs, _ = ff.data.gld23k(root, size=40, normalise=False).train.batch(torch.arange(1))
    assert float(inputs[0, :, :, 4:36].min()) > 0.9


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("mini_gld_train_split.csv", None, "there is no such file"),
        ("mini_gld_train_split.csv", "image_id,class\na,1\n", "lacks columns of user_id, image_id, class"),
        ("mini_gld_test.csv", "image_id,class\n", "names no photograph"),
        ("mini_gld_test.csv", "image_id,class\nfff4,99\n", "has the class '99', which nobody trains on"),
        ("images/eee3.jpg", None, "there is no such file"),
        ("images/eee3.jpg", "no picture", "is no picture"),
    ],
)
def test_what_is_not_as_expected_is_refused(root: Path, file: str, content: str | None, problem: str) -> None:
    (root / file).unlink()
    if content is not None:
        (root / file).write_text(content)
    with pytest.raises(ff.data.DataError, match=problem) as caught:
        ff.data.gld23k(root, size=8)
    assert caught.value.path == root / file
