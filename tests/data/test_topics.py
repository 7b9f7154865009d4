"""AG News and DBpedia from small CSV files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fastfed as ff

TRAIN = """"3","Oil, again","Prices of oil rise\\\\nand ""rise"" again"
"1","Talks","the talks don't end"
"4","Again the chip","The"
"""
TEST = """"2","The game","the end of oil"
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "train.csv").write_text(TRAIN)
    (tmp_path / "test.csv").write_text(TEST)
    return tmp_path


def test_tokens_by_frequency(root: Path) -> None:
    data = ff.data.ag_news(root, words=4, length=6)
    # by hand: again 3, the 3, oil 2, rise 2, talks 2 (after rise in the alphabet); 5 is any other word, 0 pads
    assert data.train.inputs.tolist() == [[3, 1, 5, 5, 3, 4], [5, 2, 5, 5, 5, 0], [1, 2, 5, 2, 0, 0]]
    assert data.train.targets.tolist() == [2, 0, 3]
    assert data.test is not None
    assert data.test.inputs.tolist() == [[2, 5, 2, 5, 5, 3]]
    assert data.test.targets.tolist() == [1]
    assert data.class_names == ("World", "Sports", "Business", "Sci/Tech")


def test_bags_of_words(root: Path) -> None:
    data = ff.data.ag_news(root, words=4, bag=True)
    inputs, _ = data.train.batch(torch.arange(3))
    expected = [[2 / 6, 0, 2 / 6, 2 / 6], [0, 1, 0, 0], [1 / 3, 2 / 3, 0, 0]]
    torch.testing.assert_close(inputs, torch.tensor(expected))


def test_names_of_columns_are_left_out_and_dbpedia_has_its_classes(root: Path) -> None:
    (root / "train.csv").write_text("Class Index,Title,Description\n14,A book,It is\n")
    data = ff.data.dbpedia(root, length=3)
    assert data.train.targets.tolist() == [13]
    assert data.class_names[13] == "WrittenWork"
    assert data.train.inputs.shape == (1, 3)


def test_a_transformer_trains_on_it(root: Path) -> None:
    fed = ff.data.iid(ff.data.ag_news(root, words=20, length=8), clients=3)
    model = ff.models.text_transformer(24, 8, 4, 8, 1, 2)
    sim = ff.Simulation(model, fed, client=ff.clients.SGD(lr=0.1), cohort=3, batch_size=2)
    assert sim.run(2, progress=False).rounds[-1]["train_loss"] > 0


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("train.csv", None, "there is no such file"),
        ("test.csv", "", "holds no text"),
        ("train.csv", "1,only two\n", "row 1 has not a class of 1 to 4, a title and a text: '1,only two'"),
        ("train.csv", "1,a,b\n5,a,b\n", "row 2 has not a class of 1 to 4"),
        ("train.csv", "1,a,b\nx,a,b\n", "row 2 has not"),
        ("train.csv", b"1,a,\xff\n", "is no CSV file in UTF-8"),
    ],
)
def test_what_is_no_such_file_is_refused(root: Path, file: str, content: str | bytes | None, problem: str) -> None:
    if content is None:
        (root / file).unlink()
    else:
        (root / file).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ff.data.DataError, match=problem) as caught:
        ff.data.ag_news(root)
    assert caught.value.path == root / file


def test_arguments_are_checked(root: Path) -> None:
    for name in ("words", "length"):
        with pytest.raises(ValueError, match=f"^{name}: must be a whole number >= 1, got 0"):
            ff.data.ag_news(root, **{name: 0})
