"""TensorFlow Federated's HDF5 files, written by the test in the same layout, and files that are not."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

import fastfed as ff
from fastfed.data import Augment, DataError, Dataset, Examples, Pixels, Sparse
from fastfed.data.loaders import tff_file
from fastfed.data.loaders.stackoverflow import stack_overflow_nwp, stack_overflow_tags
from fastfed.data.loaders.text import CHARACTERS, character_sequences
from fastfed.data.loaders.tff import federated_cifar100, federated_emnist, federated_shakespeare

Clients = dict[str, dict[str, Any]]


def write(path: Path, clients: Clients) -> None:
    with h5py.File(path, "w") as file:
        examples = file.create_group("examples")
        for name, fields in clients.items():
            group = examples.create_group(name)
            for field, values in fields.items():
                text = isinstance(values, list)
                group.create_dataset(field, data=values, dtype=h5py.string_dtype() if text else None)


def drawing(count: int, shape: tuple[int, ...], start: int) -> Any:
    numbers = np.arange(start, start + count * int(np.prod(shape)), dtype=np.int64).reshape(count, *shape)
    return numbers * 37 % 256


def writer(labels: list[int], start: int = 0) -> dict[str, Any]:
    pixels = (drawing(len(labels), (28, 28), start) / 255).astype(np.float32)
    return {"pixels": pixels, "label": np.array(labels, dtype=np.int32)}


def emnist(root: Path, stem: str = "fed_emnist", top: int = 61) -> tuple[Clients, Clients]:
    train = {"f0002_11": writer([3, top]), "f0001_41": writer([0, 1, 2], 7)}
    test = {"f0001_41": writer([5], 11), "f0002_11": writer([4, 4], 13)}
    write(root / f"{stem}_train.h5", train)
    write(root / f"{stem}_test.h5", test)
    return train, test


def keys(data: Dataset) -> tuple[list[int], list[int] | None]:
    assert data.client is not None
    return data.client.tolist(), None if data.test_client is None else data.test_client.tolist()


def tensors(examples: Examples | None) -> tuple[torch.Tensor, torch.Tensor]:
    assert examples is not None
    assert isinstance(examples.inputs, torch.Tensor)
    assert isinstance(examples.targets, torch.Tensor)
    return examples.inputs, examples.targets


def dense(store: Any) -> list[list[float]]:
    assert isinstance(store, Sparse)
    return store.dense(torch.arange(len(store))).tolist()


@pytest.mark.parametrize("only_digits", [False, True])
def test_emnist(only_digits: bool, tmp_path: Path) -> None:
    train, test = emnist(tmp_path, *(("fed_emnist_digitsonly", 9) if only_digits else ()))
    data = federated_emnist(tmp_path, only_digits=only_digits)
    order = ("f0001_41", "f0002_11")  # HDF5 has them by name
    assert data.client_names == order
    assert keys(data) == ([0, 0, 0, 1, 1], [0, 1, 1])
    for part, file in ((data.train, train), (data.test, test)):
        inputs, labels = tensors(part)
        assert inputs.shape == (len(labels), 1, 28, 28)
        assert torch.equal(inputs[:, 0], torch.from_numpy(np.concatenate([file[name]["pixels"] for name in order])))
        assert labels.tolist() == [label for name in order for label in file[name]["label"]]
    assert "".join(data.class_names)[:12] == ("0123456789" if only_digits else "0123456789AB")
    assert len(data.class_names) == (10 if only_digits else 62)
    assert data.recipe is not None
    assert data.recipe.function == "data.federated_emnist"
    assert data.recipe.arguments == {"root": str(tmp_path), "only_digits": only_digits}


def test_emnist_for_the_autoencoder_is_ink_on_nothing(tmp_path: Path) -> None:
    emnist(tmp_path)
    plain, _ = tensors(federated_emnist(tmp_path).train)
    inputs, targets = tensors(federated_emnist(tmp_path, autoencoder=True).train)
    assert inputs.shape == (5, 784)
    assert torch.equal(inputs, 1 - plain.reshape(5, 784))
    assert targets.data_ptr() == inputs.data_ptr()  # one store for both


def test_cifar100(tmp_path: Path) -> None:
    def client(labels: list[int], start: int) -> dict[str, Any]:
        images = drawing(len(labels), (32, 32, 3), start).astype(np.uint8)
        coarse = np.array(labels, dtype=np.int64) // 5
        return {"image": images, "label": np.array(labels, dtype=np.int64), "coarse_label": coarse}

    train = {"0": client([99, 7], 1), "1": client([50], 2)}
    write(tmp_path / "fed_cifar100_train.h5", train)
    write(tmp_path / "fed_cifar100_test.h5", {"0": client([3], 3)})
    data = federated_cifar100(tmp_path)
    assert isinstance(data.train.inputs, Pixels)
    images = np.concatenate([client["image"] for client in train.values()])
    assert torch.equal(data.train.inputs.bytes, torch.from_numpy(images).permute(0, 3, 1, 2))
    assert data.labels.tolist() == [99, 7, 50]
    assert data.coarse is not None
    assert data.coarse.tolist() == [19, 1, 10]
    assert keys(data) == ([0, 0, 1], None)
    assert data.train.augmented is None
    augmented = federated_cifar100(tmp_path, crop=24, flip=True, standardise=True)
    for examples in (augmented.train, augmented.test):
        assert examples is not None
        assert isinstance(examples.inputs, Pixels)
        assert examples.inputs.augment == Augment(24, True, True)
        assert examples.batch(torch.tensor([0]))[0].shape == (1, 3, 24, 24)
    with pytest.raises(ValueError, match=r"^crop: must fit into images of 32x32 pixels, got 33"):
        federated_cifar100(tmp_path, crop=33)
    train["1"]["coarse_label"] = np.array([20])
    write(tmp_path / "fed_cifar100_train.h5", train)
    with pytest.raises(DataError, match="has coarse_labels from 1 to 20, of 20 classes"):
        federated_cifar100(tmp_path)


def test_shakespeare(tmp_path: Path) -> None:
    long = "".join(CHARACTERS[i * 7 % 86] for i in range(250))
    speeches = {"B_ROMEO": ["Ay me!", long], "A_JULIET": ["O Romeo", "", long[:79]]}
    write(tmp_path / "shakespeare_train.h5", {name: {"snippets": texts} for name, texts in speeches.items()})
    write(tmp_path / "shakespeare_test.h5", {"B_ROMEO": {"snippets": ["He jests"]}})
    data = federated_shakespeare(tmp_path)
    assert data.client_names == ("A_JULIET", "B_ROMEO")
    inputs, targets = tensors(data.train)
    texts = [text.encode() for name in data.client_names for text in speeches[name]]
    wanted, counts = character_sequences(texts, 80)
    assert counts.tolist() == [1, 1, 1, 1, 4]
    assert torch.equal(inputs, tensors(wanted)[0])
    assert torch.equal(targets, tensors(wanted)[1])
    assert inputs[0, :8].tolist() == [88, *(CHARACTERS.index(c) + 1 for c in "O Romeo")]
    assert keys(data) == ([0, 0, 0, 1, 1, 1, 1, 1], [1])
    assert tensors(federated_shakespeare(tmp_path, length=10).train)[0].shape[1] == 10


def asked(*sentences: str, title: str = "how to", tags: str = "python|c++") -> dict[str, Any]:
    count = len(sentences)
    kinds = {"type": ["question"] * count, "score": np.zeros(count, dtype=np.int64)}
    return {"tokens": list(sentences), "title": [title] * count, "tags": [tags] * count, **kinds}


def stack_overflow(root: Path, counts: bool = True) -> Path:
    train = {"10": asked("sort a list", "sort sort a b c d e", "a"), "11": asked("a list", title="", tags="c++|java")}
    write(root / "stackoverflow_train.h5", train)
    write(root / "stackoverflow_test.h5", {"11": asked("list", "sort"), "10": asked("a", "d e", "b")})
    if counts:
        (root / "stackoverflow.word_count").write_text("sort\t90\nlist\t80\na\t70\nb\t60\n")
        (root / "stackoverflow.tag_count").write_text(json.dumps({"java": 9, "python": 8, "c++": 7}))
    return root


def test_next_words(tmp_path: Path) -> None:
    data = stack_overflow_nwp(stack_overflow(tmp_path), words=3, length=4)
    inputs, targets = tensors(data.train)
    sort, list_, a, unknown, begin, end = 1, 2, 3, 4, 5, 6
    assert inputs.tolist() == [
        [begin, sort, a, list_],
        [begin, sort, sort, a],
        [begin, a, end, 0],
        [begin, a, list_, end],
    ]
    assert targets.tolist() == [
        [sort, a, list_, end],
        [sort, sort, a, unknown],
        [a, end, -100, -100],
        [a, list_, end, -100],
    ]
    assert keys(data) == ([0, 0, 0, 1], [0, 0, 0, 1, 1])
    assert data.uncounted == (unknown, begin, end)
    for fed in (ff.data.natural(data), ff.data.iid(data, clients=2)):
        assert fed.uncounted == data.uncounted
        ff.data.save_store(fed, tmp_path / "store")
        assert ff.data.open_store(tmp_path / "store").uncounted == data.uncounted
        shutil.rmtree(tmp_path / "store")
    assert data.recipe is not None
    assert data.recipe.arguments == {"root": str(tmp_path), "words": 3, "length": 4, "seed": 0}


def test_clients_and_examples_can_be_limited(tmp_path: Path) -> None:
    stack_overflow(tmp_path)
    data = stack_overflow_nwp(tmp_path, examples=2)
    assert keys(data)[0] == [0, 0, 1]
    assert tensors(data.train)[0].shape == (3, 20)
    alone = stack_overflow_nwp(tmp_path, clients=1, seed=None)
    assert alone.client_names == ("10",)
    assert keys(alone) == ([0, 0, 0], None)  # client 11 is in the test set only
    whole = tensors(stack_overflow_nwp(tmp_path, test_examples=None).test)[0]
    assert len(whole) == 5
    for count in range(1, 7):
        spread = stack_overflow_nwp(tmp_path, test_examples=count)
        rows = [place * 5 // count for place in range(count)] if count < 5 else list(range(5))
        assert torch.equal(tensors(spread.test)[0], whole[rows])
        assert keys(spread)[1] == [[0, 0, 0, 1, 1][row] for row in rows]


def test_users_are_drawn_at_random(tmp_path: Path) -> None:
    people = {f"{number:02}": asked("sort a list") for number in range(20)}
    write(tmp_path / "stackoverflow_train.h5", people)
    write(tmp_path / "stackoverflow_test.h5", {"00": asked("a")})
    names = {seed: stack_overflow_nwp(tmp_path, clients=6, seed=seed).client_names for seed in (0, 1, 2, None)}
    assert names[None] == tuple(people)[:6]
    assert len(set(names.values())) == 4
    for drawn in names.values():
        assert len(drawn) == 6
        assert drawn == tuple(sorted(set(drawn)))
    assert stack_overflow_tags(tmp_path, clients=6, seed=1).client_names == names[1]
    assert stack_overflow_nwp(tmp_path, clients=6).client_names == names[0]
    drawn_often = (tff_file._chosen(tuple(people), 6, seed) for seed in range(300))
    often = Counter(name for drawn in drawn_often for name in drawn)
    assert min(often.values()) > 55  # 90 each, but for chance (a standard deviation is 8)
    assert max(often.values()) < 125
    assert stack_overflow_nwp(tmp_path, clients=30).client_names == tuple(people)


def test_one_tag_each_is_the_most_frequent(tmp_path: Path) -> None:
    data = stack_overflow_tags(stack_overflow(tmp_path), words=4, tags=3, labels="one")
    java, python = 0, 1  # in the order of their counts; "c++" is third, and never the most frequent of two
    assert data.train.targets.tolist() == [python, python, python, java]  # type: ignore[union-attr]
    few = stack_overflow_tags(tmp_path, words=4, tags=1, labels="one")
    assert few.train.targets.tolist() == [-100, -100, -100, java]  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="labels: must be 'all' or 'one', got 'two'"):
        stack_overflow_tags(tmp_path, labels="two")  # type: ignore[arg-type]


def test_tags(tmp_path: Path) -> None:
    data = stack_overflow_tags(stack_overflow(tmp_path), words=4, tags=3)
    assert data.class_names == ("java", "python", "c++")
    sort, list_, a, b = range(4)
    bags = [{sort: 1, list_: 1, a: 1}, {sort: 2, a: 1, b: 1}, {a: 1}, {a: 1, list_: 1}]  # no "how to" is known
    wanted = [[bag.get(word, 0) / sum(bag.values()) for word in range(4)] for bag in bags]
    np.testing.assert_allclose(dense(data.train.inputs), wanted, rtol=1e-6)
    assert dense(data.train.targets) == [[0, 1, 1]] * 3 + [[1, 0, 1]]
    assert keys(data) == ([0, 0, 0, 1], [0, 0, 0, 1, 1])
    among_all = stack_overflow_tags(tmp_path, words=4, tags=2, count_unknown=True)
    sizes = [5, 9, 3, 2]  # all words, "how to" among them
    wanted = [[bag.get(word, 0) / size for word in range(4)] for bag, size in zip(bags, sizes, strict=True)]
    np.testing.assert_allclose(dense(among_all.train.inputs), wanted, rtol=1e-6)
    assert dense(among_all.train.targets) == [[0, 1]] * 3 + [[1, 0]]


def test_absent_counts_are_counted(tmp_path: Path) -> None:
    stack_overflow(tmp_path, counts=False)
    data = stack_overflow_tags(tmp_path, words=2, tags=2)
    assert data.class_names == ("c++", "python")  # 4 and 3 times
    # a 4, how 3, sort 3, to 3 times: a and how are known, and "a list" is all a
    np.testing.assert_allclose(dense(data.train.inputs), [[1 / 2, 1 / 2]] * 3 + [[1, 0]])
    inputs, _ = tensors(stack_overflow_nwp(tmp_path, words=2).train)
    assert inputs[0, :5].tolist() == [4, 2, 1, 3, 5]  # begin sort a unknown end: titles do not count here
    first = stack_overflow_tags(tmp_path, words=1, tags=1, examples=1)
    assert first.class_names == ("c++",)  # of the first examples, both have it


def test_counts_may_be_json_or_lines(tmp_path: Path) -> None:
    stack_overflow(tmp_path)
    lines = stack_overflow_nwp(tmp_path, words=4)
    (tmp_path / "stackoverflow.word_count").write_text(json.dumps({"sort": 9, "list": 8, "a": 7, "b": 6}))
    assert torch.equal(tensors(stack_overflow_nwp(tmp_path, words=4).train)[0], tensors(lines.train)[0])
    for bad in ("sort nine\n", '{"sort": 9', "sort\n", '{"sort": [9]}'):
        (tmp_path / "stackoverflow.word_count").write_text(bad)
        with pytest.raises(DataError, match=r"stackoverflow.word_count: is truncated or not as expected"):
            stack_overflow_nwp(tmp_path)


def spoiled(**changed: Any) -> Callable[[Path], None]:
    """Writes a training file in which a client has other fields; None leaves one out."""

    def write_it(path: Path) -> None:
        fields = {key: value for key, value in {**writer([1, 2]), **changed}.items() if value is not None}
        write(path, {"a": writer([1]), "b": fields})

    return write_it


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("problem", "spoil"),
    [
        ("does not exist", Path.unlink),
        ("is truncated or no HDF5 file", cut),
        ("is truncated or no HDF5 file", lambda path: path.write_bytes(b"not at all")),
        ("has no group /examples", lambda path: h5py.File(path, "w").close()),
        ("holds no example", lambda path: write(path, {})),
        ("has no readable /examples/b/label", spoiled(label=None)),
        (
            r"has float32 \(2, 27, 28\) as /examples/b/pixels, not 28x28 numbers",
            spoiled(pixels=np.zeros((2, 27, 28), dtype=np.float32)),
        ),
        (r"has int32 \(2, 28, 28\) as /examples/b/pixels", spoiled(pixels=np.zeros((2, 28, 28), dtype=np.int32))),
        ("has fields of unequal lengths for the client 'b'", spoiled(label=np.array([1]))),
        ("has labels from 1 to 62, of 62 classes", spoiled(label=np.array([1, 62]))),
        ("has labels from -1 to 1", spoiled(label=np.array([-1, 1]))),
        ("has pixels from 0.0 to 255.0", spoiled(pixels=np.array([0, 255], dtype="f4").repeat(784).reshape(2, 28, 28))),
        ("has pixels from nan to nan", spoiled(pixels=np.full((2, 28, 28), np.nan, dtype=np.float32))),
    ],
)
@pytest.mark.parametrize("part", ["train", "test"])
def test_wrong_files_are_named(problem: str, spoil: Callable[[Path], None], part: str, tmp_path: Path) -> None:
    emnist(tmp_path)
    path = tmp_path / f"fed_emnist_{part}.h5"
    spoil(path)
    with pytest.raises(DataError, match=problem) as caught:
        federated_emnist(tmp_path)
    assert caught.value.path == path
    assert "Where to get it: https://storage.googleapis.com/tff-datasets-public/fed_emnist.tar.bz2" in str(caught.value)


@pytest.mark.parametrize("load", [federated_shakespeare, federated_cifar100, stack_overflow_nwp, stack_overflow_tags])
def test_absent_files_are_named(load: Callable[[Path], Dataset], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"_train\.h5: does not exist"):
        load(tmp_path)


def test_numbers_are_no_text(tmp_path: Path) -> None:
    stack_overflow(tmp_path)
    write(tmp_path / "stackoverflow_test.h5", {"1": {"tokens": np.arange(3)}})
    with pytest.raises(DataError, match=r"has int64 \(3,\) as /examples/1/tokens, not text per example"):
        stack_overflow_nwp(tmp_path)


def test_an_absent_h5py_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emnist(tmp_path)
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ImportError, match=r"needs h5py: pip install 'fastfed\[hdf5\]'"):
        federated_emnist(tmp_path)


@pytest.mark.parametrize("name", ["words", "length", "clients", "examples", "test_examples"])
def test_bad_arguments_are_named(name: str, tmp_path: Path) -> None:
    stack_overflow(tmp_path)
    for bad in (0, 1.5, True):
        with pytest.raises(ValueError, match=f"^{name}: must be a whole number >= 1"):
            stack_overflow_nwp(tmp_path, **{name: bad})  # type: ignore[arg-type]


def test_files_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the second file is wrong: each is open in a process of its own, and an open file cannot be written by
    others."""
    stack_overflow(tmp_path)
    opened: list[subprocess.Popen[bytes]] = []

    class Watched(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            opened.append(self)

    monkeypatch.setattr(subprocess, "Popen", Watched)
    stack_overflow_nwp(tmp_path)
    (tmp_path / "stackoverflow_test.h5").write_bytes(b"nothing")
    with pytest.raises(DataError):
        stack_overflow_nwp(tmp_path)
    assert len(opened) == 4
    assert all(process.poll() is not None for process in opened)


# ---- files that would not let go ------------------------------------------------------------------------------------


@pytest.fixture
def writable(tmp_path: Path) -> Callable[[Callable[[Any], None]], Path]:
    """Federated EMNIST whose training file has one client, `a`, as a function makes it."""

    def write_client(make: Callable[[Any], None]) -> Path:
        emnist(tmp_path)
        with h5py.File(tmp_path / "fed_emnist_train.h5", "w") as file:
            make(file.create_group("examples/a"))
        return tmp_path

    return write_client


def _label(group: Any) -> None:
    group["label"] = np.array([1])


def _external(group: Any) -> None:
    _label(group)
    group.create_dataset("pixels", (1, 28, 28), "f4", external=[("/etc/hostname", 0, h5py.h5f.UNLIMITED)])


def _virtual(group: Any) -> None:
    _label(group)
    layout = h5py.VirtualLayout((1, 28, 28), "f4")
    layout[0] = h5py.VirtualSource("elsewhere.h5", "pixels", (28, 28))
    group.create_virtual_dataset("pixels", layout)


def _linked(group: Any) -> None:
    _label(group)
    group["pixels"] = h5py.ExternalLink("elsewhere.h5", "/pixels")


def _hollow(group: Any) -> None:
    group.create_dataset("label", (3_000_000_000,), "i8", chunks=(1000,))
    group.create_dataset("pixels", (3_000_000_000, 28, 28), "f4", chunks=(1, 28, 28))


def _empty(group: Any) -> None:
    _label(group)
    group["pixels"] = h5py.Empty("f4")


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (_external, "keeps /examples/a/pixels in another file, which is not followed"),
        (_virtual, "keeps /examples/a/pixels in another file, which is not followed"),
        (_linked, "has a link to somewhere else at /examples/a/pixels"),
        (_hollow, "says that /examples/a/pixels has 9,408,000,000,000 bytes, in 0 of the file"),
        (_empty, "has float32 None as /examples/a/pixels, not 28x28 numbers per example"),
    ],
)
def test_other_files_and_promises_are_not_followed(
    make: Callable[[Any], None], problem: str, writable: Callable[[Callable[[Any], None]], Path]
) -> None:
    with pytest.raises(DataError, match=problem):
        federated_emnist(writable(make))


@pytest.mark.parametrize(
    ("does", "problem"),
    [
        ("while True: pass", r"does not come to an end: HDF5 was at it for 0\.2 seconds"),
        ("import os; os.kill(os.getpid(), 11)", r"makes HDF5 crash \(SIGSEGV\)"),
        ("bytes(1 << 40)", "asks for more memory than its size could need"),
        ("raise ZeroDivisionError('by zero')", r"cannot be read \(ZeroDivisionError: by zero\)"),
    ],
)
def test_what_hdf5_does_with_a_damaged_file_is_told(
    does: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emnist(tmp_path)
    (tmp_path / "h5py.py").write_text(f"def File(*args):\n    {does}\n")  # a library that behaves so
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(tff_file, "_SECONDS", 0.2)
    with pytest.raises(DataError, match=problem):
        federated_emnist(tmp_path)
