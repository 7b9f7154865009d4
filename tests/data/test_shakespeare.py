"""Plays as text: the real plays' roles and lines, the split within a role, and files that are no plays."""

from __future__ import annotations

import lzma
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch

from fastfed.data import DataError, Dataset, Examples
from fastfed.data.loaders.shakespeare import read_roles, shakespeare_plays
from fastfed.data.loaders.text import CHARACTERS

PLAYS = Path(__file__).parents[2].parent / "shared" / "data" / "shakespeare_roles"
needs_plays = pytest.mark.skipif(not PLAYS.is_dir(), reason="the plays are absent: ../shared/data/shakespeare_roles")

PLAY = """

   The Tragedy of Nothing
Homepage | Nothing | Entire play
     Persons of the play
**** ACT I ****
     Enter FIRST
FIRST
     One.
     Two.

SECOND
     Three.
**** SCENE II ****
     Enter all
FIRST
     Four.
     Five.
     Exit
SILENT
SECOND
     Six.
"""


@pytest.fixture
def plays(tmp_path: Path) -> Path:
    (tmp_path / "plays").mkdir()
    (tmp_path / "plays" / "Nothing.txt").write_text(PLAY)
    return tmp_path / "plays"


def sentence(tokens: torch.Tensor) -> str:
    marks = {0: "", 87: "?", 88: "<", 89: ">", -100: ""}
    return "".join(marks[token] if token in marks else CHARACTERS[token - 1] for token in tokens.tolist())


def tensors(examples: Examples) -> tuple[torch.Tensor, torch.Tensor]:
    assert isinstance(examples.inputs, torch.Tensor)
    assert isinstance(examples.targets, torch.Tensor)
    return examples.inputs, examples.targets


def sentences(data: Dataset, test: bool = False) -> list[tuple[str, str]]:
    """The client and the text of every example; inputs and targets overlap in all but one token."""
    examples, clients = (data.test, data.test_client) if test else (data.train, data.client)
    assert examples is not None
    assert clients is not None
    inputs, targets = tensors(examples)
    known = targets[:, :-1] != -100
    assert torch.equal(inputs[:, 1:][known], targets[:, :-1][known])
    first = [sentence(row[:1]) for row in inputs]
    names = [data.client_names[client] for client in clients]
    return [(name, begin + sentence(row)) for name, begin, row in zip(names, first, targets, strict=True)]


def test_speakers_and_speeches(plays: Path) -> None:
    first, second = read_roles(plays)
    assert (first.play, first.name, first.lines) == ("Nothing", "FIRST", 5)
    assert first.speeches == [["One.", "Two."], ["Four.", "Five.", "Exit"]]
    assert (second.name, second.speeches) == ("SECOND", [["Three."], ["Six."]])
    assert first.divide(4) == ([b"One."], [b"Two.", b"Four.\nFive.\nExit"])


def test_the_last_lines_of_a_role_are_its_test_set(plays: Path) -> None:
    data = shakespeare_plays(plays, min_lines=1, test_fraction=0.25)
    assert data.client_names == ("Nothing/FIRST", "Nothing/SECOND")
    assert sentences(data) == [
        ("Nothing/FIRST", "<One.\nTwo.>"),
        ("Nothing/FIRST", "<Four.>"),
        ("Nothing/SECOND", "<Three.>"),
    ]
    assert sentences(data, test=True) == [("Nothing/FIRST", "<Five.\nExit>"), ("Nothing/SECOND", "<Six.>")]
    assert data.recipe is not None
    assert data.recipe.function == "data.shakespeare_plays"
    assert data.recipe.arguments == {"root": str(plays), "min_lines": 1, "test_fraction": 0.25}


def test_short_roles_and_the_test_set_can_be_left_out(plays: Path) -> None:
    data = shakespeare_plays(plays, min_lines=5, test_fraction=0, length=6)
    assert data.client_names == ("Nothing/FIRST",)
    assert data.test is data.test_client is None
    assert [text for _, text in sentences(data)] == ["<One.\nT", "wo.>", "<Four.\n", "Five.\nE", "xit>"]


def test_an_archive_is_read_as_a_directory_is(plays: Path, tmp_path: Path) -> None:
    archive = tmp_path / "plays.tar.xz"
    with tarfile.open(archive, "w:xz") as tar:
        tar.add(plays, "plays")
    wanted = read_roles(plays)
    assert read_roles(archive) == wanted
    (tmp_path / "only").mkdir()
    archive.rename(tmp_path / "only" / archive.name)
    assert read_roles(tmp_path / "only") == wanted


@needs_plays
def test_the_real_plays() -> None:
    roles = read_roles(PLAYS)
    assert len({role.play for role in roles}) == 36
    assert len(roles) == 1341
    assert sum(role.lines for role in roles) == 109_698
    assert sum(len(line) for role in roles for speech in role.speeches for line in speech) == pytest.approx(
        4.19e6, 1e-3
    )
    data = shakespeare_plays(PLAYS)
    assert len(data.client_names) == 447
    assert data.test is not None
    assert data.client is not None
    assert data.test_client is not None
    assert data.client.unique().numel() == data.test_client.unique().numel() == 447
    predicted = begun = 0
    for examples in (data.train, data.test):
        inputs, targets = tensors(examples)
        assert inputs.shape == targets.shape == (len(examples), 80)
        assert 0 <= int(inputs.min()) < int(inputs.max()) == 89
        assert not bool((inputs == 87).any())  # every character of the plays is known
        assert bool((targets != -100).any(1).all())
        predicted += int(((targets > 0) & (targets < 87)).sum())
        begun += int((inputs[:, 0] < 87).sum())
    # First characters of pieces are inputs only; a speech that the split divides loses the line break between.
    spoken = sum(len("\n".join(speech)) for role in roles if role.lines >= 50 for speech in role.speeches)
    assert spoken - 447 <= predicted + begun <= spoken
    first = int((data.client == data.client_names.index("Hamlet/HAMLET")).nonzero()[0])
    assert sentence(tensors(data.train)[1][first]) == "[Aside] A little more than kin, and less than kind.>"


def wrong(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("problem", "make"),
    [
        ("does not exist", lambda d: d / "absent"),
        ("holds no .txt file and 0 tar archives", lambda d: d),
        ("has no line that begins with", lambda d: wrong(d / "a.txt", b"FIRST\n   One.\n").parent),
        ("is not UTF-8 text", lambda d: wrong(d / "a.txt", b"**** ACT ****\n\xff\xfe").parent),
        ("is truncated or no tar archive", lambda d: wrong(d / "a.tar.xz", b"no archive at all")),
        ("is truncated or no tar archive", lambda d: wrong(d / "a.tar.xz", lzma.compress(b"no tar"))),
    ],
)
def test_wrong_files_are_named(problem: str, make: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=problem) as caught:
        shakespeare_plays(make(tmp_path))
    assert "Where to get it: https://shakespeare.mit.edu" in str(caught.value)


@pytest.mark.parametrize("ending", ["tar", "tar.xz", "tar.gz"])
def test_a_truncated_archive_is_refused(ending: str, tmp_path: Path) -> None:
    whole = tmp_path / f"whole.{ending}"
    with tarfile.open(whole, f"w:{ending[4:]}") as tar:  # type: ignore[call-overload]
        for number in range(3):
            tar.add(wrong(tmp_path / f"{number}.txt", PLAY.encode()))
    assert len(read_roles(whole)) == 6
    content = whole.read_bytes()
    cuts = range(512, 6 * 512 + 1, 256) if ending == "tar" else range(1, len(content), 7)  # the end is 20 empty blocks
    for cut in cuts:
        with pytest.raises(DataError, match="is truncated or no tar archive"):
            read_roles(wrong(tmp_path / f"cut.{ending}", content[:cut]))


@pytest.mark.parametrize(
    ("name", "bad"),
    [("min_lines", {"min_lines": 0}), ("min_lines", {"min_lines": 6}), ("test_fraction", {"test_fraction": 1.0}),
     ("length", {"length": 0})],
)  # fmt: skip
def test_bad_arguments_are_named(name: str, bad: dict[str, Any], plays: Path) -> None:
    with pytest.raises(ValueError, match=f"^{name}: "):
        shakespeare_plays(plays, **bad)
