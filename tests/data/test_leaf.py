"""LEAF's json: numbers, images and text as the test writes them, and files that are not LEAF's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fastfed.data import DataError, Examples
from fastfed.data.loaders.leaf import leaf
from fastfed.data.loaders.text import character_tokens

Users = dict[str, tuple[list[Any], list[Any]]]


def content(users: Users) -> dict[str, Any]:
    return {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {name: {"x": x, "y": y} for name, (x, y) in users.items()},
    }


def write(root: Path, train: list[Users], test: list[Users]) -> Path:
    for part, files in (("train", train), ("test", test)):
        (root / part).mkdir(parents=True)
        for number, users in enumerate(files):
            (root / part / f"all_data_{number}.json").write_text(json.dumps(content(users)))
    return root


def numbers(count: int, start: float = 0.0, width: int = 4) -> list[list[float]]:
    return [[start + row + column / 10 for column in range(width)] for row in range(count)]


TRAIN: list[Users] = [{"f1": (numbers(2), [3, 61]), "f2": (numbers(1, 5), [0])}, {"f0": (numbers(3, 7), [1, 1, 2])}]
TEST: list[Users] = [{"f0": (numbers(1, 20), [4]), "f1": (numbers(2, 30), [5, 6])}]


def tensors(examples: Examples | None) -> tuple[torch.Tensor, torch.Tensor]:
    assert examples is not None
    assert isinstance(examples.inputs, torch.Tensor)
    assert isinstance(examples.targets, torch.Tensor)
    return examples.inputs, examples.targets


def test_numbers(tmp_path: Path) -> None:
    data = leaf(write(tmp_path / "femnist", TRAIN, TEST))
    inputs, targets = tensors(data.train)
    assert inputs.dtype is torch.float32
    torch.testing.assert_close(inputs, torch.tensor(numbers(2) + numbers(1, 5) + numbers(3, 7)))
    assert targets.tolist() == [3, 61, 0, 1, 1, 2]
    assert data.client_names == ("f1", "f2", "f0")
    assert data.client is not None
    assert data.client.tolist() == [0, 0, 1, 2, 2, 2]
    inputs, targets = tensors(data.test)
    torch.testing.assert_close(inputs, torch.tensor(numbers(1, 20) + numbers(2, 30)))
    assert targets.tolist() == [4, 5, 6]
    assert data.test_client is not None
    assert data.test_client.tolist() == [2, 0, 0]
    assert data.recipe is not None
    assert data.recipe.function == "data.leaf"


def test_images_take_the_shape_asked_for(tmp_path: Path) -> None:
    inputs, _ = tensors(leaf(write(tmp_path, TRAIN, TEST), shape=(1, 2, 2)).train)
    torch.testing.assert_close(inputs, torch.tensor(numbers(2) + numbers(1, 5) + numbers(3, 7)).reshape(6, 1, 2, 2))
    for bad in ((1, 2, 3), (), (-2, -2)):
        with pytest.raises(ValueError, match=r"^shape: must hold 4 numbers"):
            leaf(tmp_path, shape=bad)


def test_a_split_by_user_has_test_examples_of_nobody(tmp_path: Path) -> None:
    data = leaf(write(tmp_path, TRAIN, [{"stranger": (numbers(2), [0, 1])}]))
    assert data.client_names == ("f1", "f2", "f0")
    assert data.test is not None
    assert data.test_client is None


def test_users_without_examples_are_left_out(tmp_path: Path) -> None:
    data = leaf(write(tmp_path, [{"nobody": ([], [])}, *TRAIN], TEST))
    assert data.client_names == ("f1", "f2", "f0")


def test_text_predicts_the_next_character(tmp_path: Path) -> None:
    line = "What's in a name? That which we call a rose\nBy any other name would smell as sweet; so Romeo"
    windows = [line[start : start + 80] for start in range(4)]
    windows[2] = "é" + windows[2][1:]
    following = [line[start + 80] for start in range(4)]
    data = leaf(write(tmp_path, [{"JULIET": (windows, following)}], [{"JULIET": (windows[:1], following[:1])}]))
    inputs, targets = tensors(data.train)
    assert inputs.shape == targets.shape == (4, 80)
    assert inputs.dtype is targets.dtype is torch.int64
    for row in (0, 1, 3):
        assert inputs[row].tolist() == character_tokens(windows[row].encode()).tolist()
    assert inputs[2].tolist() == [87, *character_tokens(windows[2][1:].encode()).tolist()]  # é: one character, unknown
    assert targets[:, -1].tolist() == character_tokens("".join(following).encode()).tolist()
    assert bool((targets[:, :-1] == -100).all())
    with pytest.raises(ValueError, match=r"^shape: must be None for text"):
        leaf(tmp_path, shape=(80,))


TWEET = ["1", "Mon", "NO_QUERY", "someone", "so happy", "training"]


@pytest.mark.parametrize(
    ("problem", "user"),
    [
        ("no lists of numbers .sent140", ([TWEET], [1])),
        ("x of unequal lengths", ([[1.0, 2.0], [3.0]], [0, 1])),
        ("no lists of numbers", ([1.0, 2.0], [0, 1])),
        ("x that are not finite", ([[1.0, float("nan"), 2.0, 3.0]], [0])),
        ("x that are not finite in float32", ([[1.0, 1e39, 2.0, 3.0]], [0])),
        ("x that are not finite in float32", ([[1.0, float("inf"), 2.0, 3.0]], [0])),
        ("y that are no whole numbers from 0 to 2147483647", ([[1.0, 2.0, 3.0, 4.0]], [1e19])),
        ("y that are no whole numbers", ([[1.0, 2.0, 3.0, 4.0]], [10**19])),
        ("y that are no whole numbers", ([[1.0, 2.0, 3.0, 4.0]], [float("inf")])),
        ("y that are no whole numbers", ([[1.0, 2.0, 3.0, 4.0]], [0.5])),
        ("y that are no whole numbers", ([[1.0, 2.0, 3.0, 4.0]], ["a"])),
        ("y that are no whole numbers", ([[1.0, 2.0, 3.0, 4.0]], [-1])),
        ("celeba is not supported", (["1.jpg"], [1])),
        ("y that are no single characters", (["abc"], ["de"])),
        ("strings of unequal lengths", (["abc", "ab"], ["d", "e"])),
        ("mixes examples: odd has numbers of 3", (numbers(1, width=3), [0])),
        ("mixes examples: odd has text of 4", (["abcd"], ["e"])),
        ("whom another file has too", None),
    ],
)
def test_other_examples_are_refused(problem: str, user: tuple[list[Any], list[Any]] | None, tmp_path: Path) -> None:
    odd: Users = {"odd": user} if user else {"f2": (numbers(1), [0])}
    write(tmp_path, [*TRAIN, odd], TEST)
    with pytest.raises(DataError, match=problem) as caught:
        leaf(tmp_path)
    assert "Where to get it: https://github.com/TalwalkarLab/leaf" in str(caught.value)


def without(key: str) -> str:
    return json.dumps({name: value for name, value in content(TRAIN[0]).items() if name != key})


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        ("is truncated or no json", json.dumps(content(TRAIN[0]))[:-9]),
        ("is truncated or no json", ""),
        ("has no 'users'", "[]"),
        ("has no 'users'", without("users")),
        ("has no 'num_samples'", without("num_samples")),
        ("has no 'user_data'", without("user_data")),
        ("has no 'f1'", json.dumps(content(TRAIN[0]) | {"user_data": {}})),
        ("has no 'y'", json.dumps(content(TRAIN[0]) | {"user_data": {"f1": {"x": []}}})),
        ("not one entry of num_samples per user", json.dumps(content(TRAIN[0]) | {"num_samples": [2]})),
        ("2 x and 2 y where num_samples says 3", json.dumps(content(TRAIN[0]) | {"num_samples": [3, 1]})),
    ],
)
def test_wrong_files_are_named(problem: str, text: str, tmp_path: Path) -> None:
    path = write(tmp_path, TRAIN, TEST) / "train" / "all_data_0.json"
    path.write_text(text)
    with pytest.raises(DataError, match=problem) as caught:
        leaf(tmp_path)
    assert caught.value.path == path


def test_absent_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="train: does not exist"):
        leaf(tmp_path)
    write(tmp_path, TRAIN, [])
    with pytest.raises(DataError, match=r"test: holds 0 \.json files and no example"):
        leaf(tmp_path)
