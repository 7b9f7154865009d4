"""Questions of Stack Exchange: the real sites' counts, the split in time, and files that are no dumps."""

from __future__ import annotations

import lzma
from collections import Counter
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import pytest
import torch

from fastfed.data import DataError, Dataset, Sparse
from fastfed.data.loaders.stackexchange import read_posts, read_questions, stack_exchange

SITES = Path(__file__).parents[2].parent / "shared" / "data" / "stackexchange"
needs_sites = pytest.mark.skipif(not SITES.is_dir(), reason="the sites are absent: ../shared/data/stackexchange")


def row(number: int, **changed: str) -> str:
    attributes = {
        "Id": str(number),
        "PostTypeId": "1",
        "CreationDate": f"2020-01-01T00:00:{number:02d}.000",
        "OwnerUserId": "7",
        "Title": "A title",
        "Body": "<p>Don't <em>stop</em></p><ul><li>one</li><li>two &amp; 3</li></ul>",
        "Tags": "<red><blue-green>",
        **changed,
    }
    return f"<row {' '.join(f'{k}={quoteattr(v)}' for k, v in attributes.items() if v)} />"


def posts(*rows: str) -> str:
    return '\ufeff<?xml version="1.0" encoding="utf-8"?>\n<posts>\n' + "\n".join(rows) + "\n</posts>"


def written(directory: Path, *rows: str, name: str = "hue-Posts.xml") -> Path:
    path = directory / name
    path.write_text(posts(*rows), encoding="utf-8")
    return path


def dense(store: Any) -> torch.Tensor:
    assert isinstance(store, Sparse)
    return store.dense(torch.arange(len(store)))


def clients(data: Dataset, test: bool = False) -> list[str]:
    keys = data.test_client if test else data.client
    assert keys is not None
    return [data.client_names[key] for key in keys]


def test_a_question_is_words_and_tags(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        row(1),
        row(2, Tags="|red|c++|", OwnerUserId="", OwnerDisplayName="user9", Body="<pre>x &lt; y</pre>"),
        row(3, PostTypeId="2", Tags=""),
        row(4, OwnerUserId=""),
    )
    first, second = read_questions(path)
    assert (first.client, first.id, first.asked) == ("hue/7", 1, "2020-01-01T00:00:01.000")
    assert first.words.split() == ["a", "title", "don't", "stop", "one", "two", "3"]
    assert first.tags == ("red", "blue-green")
    assert (second.client, second.words, second.tags) == ("hue/user9", "a title x y", ("red", "c++"))
    assert len(list(read_posts(path))) == 4


def test_the_last_questions_in_time_are_for_testing(tmp_path: Path) -> None:
    asked = {"CreationDate": "2019-06-01T00:00:00.000"}  # before all others, though the last in the file
    path = written(
        tmp_path,
        row(1, Body="", Title="early words"),
        row(2, Body="", Title="later later later words", Tags="<green><green>"),
        row(3, OwnerUserId="8", Body="", Title="words words words early", Tags="<red><green>"),
        row(4, Body="", Title="first", **asked),
    )
    data = stack_exchange(path, words=3, tags=2, test_fraction=0.3)
    assert data.client_names == ("hue/7", "hue/8")
    assert clients(data) == ["hue/7", "hue/7", "hue/8"]
    assert clients(data, test=True) == ["hue/7"]
    # Known from training: words 4, early 2, first 1; red 3, blue-green 2. What tests add does not count.
    assert data.class_names == ("red", "blue-green")
    torch.testing.assert_close(
        dense(data.train.inputs), torch.tensor([[0, 0, 1], [1 / 2, 1 / 2, 0], [3 / 4, 1 / 4, 0]])
    )
    assert dense(data.train.targets).tolist() == [[1, 1], [1, 1], [1, 0]]
    assert data.test is not None
    assert dense(data.test.inputs).tolist() == [[1, 0, 0]]
    assert dense(data.test.targets).tolist() == [[0, 0]]
    assert data.recipe is not None
    assert data.recipe.function == "data.stack_exchange"


def test_people_of_two_sites_are_two_clients(tmp_path: Path) -> None:
    (tmp_path / "tone.example").mkdir()
    one = written(tmp_path, row(1), row(2))
    two = written(tmp_path / "tone.example", row(1), name="Posts.xml")
    data = stack_exchange([one, two], test_fraction=0)
    assert clients(data) == ["hue/7", "hue/7", "tone.example/7"]
    assert data.test is data.test_client is None
    assert dense(data.train.inputs).shape == (3, 10000)
    assert dense(data.train.targets).shape == (3, 500)
    assert data.recipe is not None
    assert data.recipe.arguments["root"] == (str(one), str(two))
    with pytest.raises(ValueError, match=r"^root: the site 'hue' is given 2 times"):
        stack_exchange([one, tmp_path])


def test_rows_that_cross_pieces_of_the_file_are_whole(tmp_path: Path) -> None:
    path = written(tmp_path, *(row(number, Body="word " * 150_000) for number in range(1, 6)))
    assert path.stat().st_size > 3 << 20
    assert [question.words.count("word") for question in read_questions(path)] == [150_000] * 5


@needs_sites
@pytest.mark.parametrize(
    ("site", "posters", "questions", "tags"),
    [("quantumcomputing", 334, 612, 154), ("beer", 782, 663, 155), ("coffee", 116, 225, 123)],
)
def test_the_real_sites(site: str, posters: int, questions: int, tags: int) -> None:
    path = SITES / f"{site}-Posts.xml.xz"
    assert len({post["OwnerUserId"] for post in read_posts(path) if "OwnerUserId" in post}) == posters
    data = stack_exchange(path, test_fraction=0)
    assert len(data.train) == questions
    assert len(data.class_names) == tags
    sums = dense(data.train.inputs).sum(1)
    torch.testing.assert_close(sums, torch.ones(questions))
    assert bool((dense(data.train.targets).sum(1) >= 1).all())


@needs_sites
def test_the_real_sites_together() -> None:
    data = stack_exchange(SITES)
    assert data.test is not None
    assert len(data.train) + len(data.test) == 612 + 663 + 225
    trained, tested = Counter(clients(data)), Counter(clients(data, test=True))
    for name in data.client_names:
        asked = trained[name] + tested[name]
        assert tested[name] == min(asked - 1, -(-asked // 5))
    assert {name.split("/")[0] for name in data.client_names} == {"beer", "coffee", "quantumcomputing"}


BOMB = '<!DOCTYPE posts [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]><posts><row Id="1" Body="&b;"/></posts>'
GOOD = posts(row(1))


@pytest.mark.parametrize(
    ("problem", "content"),
    [
        ("has a document type declaration", BOMB.encode()),
        ("is truncated or no XML", GOOD[:-20].encode()),
        ("is truncated or no XML", b""),
        ("is truncated or no XML", b"7z\xbc\xaf\x27\x1c"),
        ("begins with <users>, not with <posts>", b"<users></users>"),
        ("has a <post> where a <row> is due", b"<posts><post/></posts>"),
        ("has a row without PostTypeId", posts(row(1, PostTypeId="")).encode()),
        ("has a row without CreationDate", posts(row(1, CreationDate="")).encode()),
        ("has a row whose Id is 'one'", posts(row(1, Id="one")).encode()),
        ("holds no question with an owner", posts(row(1, PostTypeId="2")).encode()),
    ],
)
def test_wrong_files_are_named(problem: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "Posts.xml"
    path.write_bytes(content)
    with pytest.raises(DataError, match=problem) as caught:
        stack_exchange(path)
    assert caught.value.path == path
    assert "Where to get it: https://archive.org/details/stackexchange" in str(caught.value)


@pytest.mark.parametrize("content", [lzma.compress(GOOD.encode())[:-30], b"no xz at all"])
def test_wrong_xz_files_are_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "Posts.xml.xz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"is truncated or no \.xz file"):
        stack_exchange(path)


def test_absent_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        stack_exchange(tmp_path / "absent.xml")
    with pytest.raises(DataError, match=r"holds no file whose name ends in Posts\.xml"):
        stack_exchange(tmp_path)
    with pytest.raises(ValueError, match=r"^root: "):
        stack_exchange([])


@pytest.mark.parametrize(("name", "bad"), [("words", 0), ("tags", -1), ("test_fraction", 1.0)])
def test_bad_arguments_are_named(name: str, bad: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"^{name}: "):
        stack_exchange(written(tmp_path, row(1)), **{name: bad})
