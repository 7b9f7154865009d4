"""CIFAR from binary files and pickles that the test writes; pickles that want to run code are refused."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastfed.data import Augment, DataError, Dataset, Pixels
from fastfed.data.loaders.cifar import cifar10, cifar100
from fastfed.data.normalise import STATISTICS

ROWS = 3
STEMS_10 = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
STEMS_100 = ["train", "test"]
CLASSES_10 = [f"class {number}" for number in range(10)]
CLASSES_100 = [f"fine {number}" for number in range(100)]


def images_of(stem: str) -> np.ndarray:
    """(rows, 3072) bytes, different in every file."""
    return (np.arange(ROWS * 3072) * 7 + sum(stem.encode())).astype(np.uint8).reshape(ROWS, 3072)


def labels_of(stem: str, classes: int) -> list[int]:
    return [(sum(stem.encode()) + 3 * row) % classes for row in range(ROWS)]


def write_binary(root: Path, hundred: bool = False) -> Path:
    for stem in STEMS_100 if hundred else STEMS_10:
        columns = [labels_of(stem, 20), labels_of(stem, 100)] if hundred else [labels_of(stem, 10)]
        rows = np.concatenate([np.array(columns, np.uint8).T, images_of(stem)], axis=1)
        (root / f"{stem}.bin").write_bytes(rows.tobytes())
    return root


def batch(stem: str, hundred: bool) -> dict[str, Any]:
    if hundred:
        return {"data": images_of(stem), "coarse_labels": labels_of(stem, 20), "fine_labels": labels_of(stem, 100)}
    return {"data": images_of(stem), "labels": labels_of(stem, 10), "batch_label": f"{stem} of 6"}


def python2(value: Any) -> bytes:
    """A value as Python 2 and the numpy of its day pickled it: the published files are written so."""
    if isinstance(value, np.ndarray):
        kind = "u1" if value.dtype == np.uint8 else "f4"
        text = python2(value.tobytes())
        dtype = b"cnumpy\ndtype\n" + python2(kind) + b"K\x00K\x01\x87R(K\x03" + python2("|") + b"NNNJ\xff\xff\xff\xff"
        dtype += b"J\xff\xff\xff\xffK\x00tb"
        shape = b"(" + b"".join(python2(size) for size in value.shape) + b"t"
        array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + python2("b") + b"\x87R"
        return array + b"(K\x01" + shape + dtype + b"\x89" + text + b"tb"
    if isinstance(value, dict):
        items = (python2(key) + python2(entry) for key, entry in value.items())
        return b"}(" + b"".join(items) + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(python2(entry) for entry in value) + b"e"
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    text = value.encode() if isinstance(value, str) else value
    return b"T" + struct.pack("<i", len(text)) + text  # a byte string, which Python 2 called str


def from_python2(value: Any) -> bytes:
    return b"\x80\x02" + python2(value) + b"."


def from_python3(protocol: int) -> Callable[[Any], bytes]:
    return lambda value: pickle.dumps(value, protocol)


def write_pickles(root: Path, hundred: bool = False, dump: Callable[[Any], bytes] = from_python2) -> Path:
    for stem in STEMS_100 if hundred else STEMS_10:
        (root / stem).write_bytes(dump(batch(stem, hundred)))
    return root


def check(data: Dataset, hundred: bool) -> None:
    train, test = (STEMS_100[:1], STEMS_100[1:]) if hundred else (STEMS_10[:5], STEMS_10[5:])
    assert data.test is not None
    for examples, stems in ((data.train, train), (data.test, test)):
        images = np.concatenate([images_of(stem) for stem in stems]).reshape(-1, 3, 32, 32)
        assert isinstance(examples.inputs, Pixels)
        assert np.array_equal(examples.inputs.bytes.numpy(), images)
        labels = [label for stem in stems for label in labels_of(stem, 100 if hundred else 10)]
        assert isinstance(examples.targets, torch.Tensor)
        assert examples.targets.tolist() == labels
        assert (examples.inputs.mean, examples.inputs.std) == STATISTICS["cifar100" if hundred else "cifar10"]
    if hundred:
        assert data.coarse is not None
        assert data.coarse.tolist() == labels_of("train", 20)
    else:
        assert data.coarse is None


@pytest.mark.parametrize("hundred", [False, True])
def test_augmentation_is_an_option(tmp_path: Path, hundred: bool) -> None:
    write_binary(tmp_path, hundred)
    load = cifar100 if hundred else cifar10
    data = load(tmp_path, normalise=False, crop=24, flip=True, standardise=True)
    for examples in (data.train, data.test):
        assert examples is not None
        assert isinstance(examples.inputs, Pixels)
        assert examples.inputs.augment == Augment(crop=24, flip=True, standardise=True)
    assert load(tmp_path).train.augmented is None
    plain = load(tmp_path, crop=30)
    assert isinstance(plain.train.inputs, Pixels)
    assert plain.train.inputs.mean == STATISTICS["cifar100" if hundred else "cifar10"][0]
    assert plain.train.form != load(tmp_path).train.form
    with pytest.raises(ValueError, match=r"^normalise: must be False with standardise, which takes its place"):
        load(tmp_path, standardise=True)
    with pytest.raises(ValueError, match=r"^crop: must fit into images of 32x32 pixels, got 40"):
        load(tmp_path / "nowhere", crop=40)  # before any file is looked for


@pytest.mark.parametrize("folder", ["", "cifar-10-batches-bin"])
def test_cifar10_binary(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir(exist_ok=True)
    write_binary(tmp_path / folder)
    data = cifar10(tmp_path)
    check(data, hundred=False)
    assert data.class_names == ()
    assert data.recipe is not None
    assert data.recipe.function == "data.cifar10"
    (tmp_path / folder / "batches.meta.txt").write_text("\n".join([*CLASSES_10, "", ""]))
    assert cifar10(tmp_path).class_names == tuple(CLASSES_10)


@pytest.mark.parametrize("folder", ["", "cifar-100-binary"])
def test_cifar100_binary(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir(exist_ok=True)
    write_binary(tmp_path / folder, hundred=True)
    (tmp_path / folder / "fine_label_names.txt").write_text("\n".join(CLASSES_100))
    data = cifar100(tmp_path)
    check(data, hundred=True)
    assert data.class_names == tuple(CLASSES_100)


DUMPS = {"python 2": from_python2, **{f"python 3, protocol {p}": from_python3(p) for p in (2, 3, 4)}}


@pytest.mark.parametrize("dump", DUMPS.values(), ids=DUMPS)
@pytest.mark.parametrize("hundred", [False, True])
def test_pickles(tmp_path: Path, dump: Callable[[Any], bytes], hundred: bool) -> None:
    root = tmp_path / ("cifar-100-python" if hundred else "cifar-10-batches-py")
    root.mkdir()
    write_pickles(root, hundred, dump)
    load, meta, key, names = (
        (cifar100, "meta", "fine_label_names", CLASSES_100)
        if hundred
        else (cifar10, "batches.meta", "label_names", CLASSES_10)
    )
    check(load(tmp_path), hundred)
    (root / meta).write_bytes(dump({key: names, "other": [1, 2]}))
    assert load(root).class_names == tuple(names)


def test_the_test_writes_what_python_2_wrote() -> None:
    found = pickle.loads(from_python2(batch("train", True)), encoding="bytes")
    assert np.array_equal(found[b"data"], images_of("train"))
    assert found[b"fine_labels"] == labels_of("train", 100)


def test_arrays_by_columns_are_read_in_their_order(tmp_path: Path) -> None:
    write_pickles(tmp_path, hundred=True)
    turned = {**batch("train", True), "data": np.asfortranarray(images_of("train"))}
    (tmp_path / "train").write_bytes(pickle.dumps(turned, 3))
    check(cifar100(tmp_path), hundred=True)


class Evil:
    """Runs a function of its choice when it is unpickled."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


def crime(place: str) -> None:
    Path(place).write_text("it ran")


@pytest.mark.parametrize("protocol", range(5))
def test_a_pickle_that_wants_to_run_code_is_refused(tmp_path: Path, protocol: int) -> None:
    place = tmp_path / "ran"
    content = pickle.dumps({**batch("data_batch_3", False), "extra": Evil(crime, str(place))}, protocol)
    pickle.loads(content)  # it is as evil as it should be
    assert place.exists()
    place.unlink()
    write_pickles(tmp_path)
    (tmp_path / "data_batch_3").write_bytes(content)
    with pytest.raises(DataError, match=rf"asks for {__name__}\.crime, which is forbidden") as caught:
        cifar10(tmp_path)
    assert not place.exists()
    assert caught.value.path == tmp_path / "data_batch_3"


FORBIDDEN = {
    "os.system": b"cos\nsystem\n(S'true'\ntR.",
    "builtins.eval": b"cbuiltins\neval\n(S'1'\ntR.",
    "builtins.getattr": b"cbuiltins\ngetattr\n.",
    "numpy.load": b"cnumpy\nload\n.",
    "numpy.core.multiarray.scalar": b"cnumpy.core.multiarray\nscalar\n.",
    "_codecs.decode": b"c_codecs\ndecode\n.",
    "os.path.join": b"\x80\x04\x8c\x07os.path\x8c\x04join\x93.",
    "numpy.ndarray.tofile": b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93.",
}


@pytest.mark.parametrize("name", FORBIDDEN)
@pytest.mark.parametrize("file", ["test", "meta"])
def test_forbidden_names_are_named(tmp_path: Path, name: str, file: str) -> None:
    write_pickles(tmp_path, hundred=True)
    (tmp_path / file).write_bytes(FORBIDDEN[name])
    spelled = name.replace("builtins", "(builtins|__builtin__)").replace(".", r"\.")
    with pytest.raises(DataError, match=f"{file}: asks for {spelled}, which is forbidden"):
        cifar100(tmp_path)


GOOD = batch("test_batch", False)
DAMAGES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is no readable pickle"),
    "truncated": (from_python2(GOOD)[:-400], "is no readable pickle"),
    "text": (b"<html>not found</html>", "is no readable pickle"),
    "a list": (from_python2([1]), "holds a list"),
    "no data": (from_python2({"labels": [1]}), "its 'data' is NoneType"),
    "narrow": (from_python2({**GOOD, "data": GOOD["data"][:, 1:]}), r"its 'data' is \(3, 3071\)"),
    "no rows": (from_python2({"data": GOOD["data"][:0], "labels": []}), r"its 'data' is \(0, 3072\)"),
    "floats": (from_python2({**GOOD, "data": GOOD["data"].astype(np.float32)}), "an array of f4, not of bytes"),
    "short": (from_python2(GOOD).replace(python2(3) + python2(3072), python2(4) + python2(3072)), "cannot reshape"),
    "no labels": (from_python2({"data": GOOD["data"]}), "its 'labels' is NoneType"),
    "fewer labels": (from_python2({**GOOD, "labels": [1, 2]}), "its 'labels' is a list of 2 entries"),
    "texts": (from_python2({**GOOD, "labels": ["a", "b", "c"]}), "Expected a list of 3 integers"),
    "label 10": (from_python2({**GOOD, "labels": [0, 10, 1]}), "its labels lie in 0 to 10"),
    "label -1": (from_python2({**GOOD, "labels": [0, -1, 1]}), "its labels lie in -1 to 1"),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_a_pickle_that_cannot_be_used_is_named(tmp_path: Path, case: str) -> None:
    content, problem = DAMAGES[case]
    (write_pickles(tmp_path) / "test_batch").write_bytes(content)
    with pytest.raises(DataError, match=problem) as caught:
        cifar10(tmp_path)
    assert caught.value.path == tmp_path / "test_batch"
    assert "cs.toronto.edu" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("train.bin", lambda content: content[:-1], "no whole number of rows. Expected .* rows of 3074 bytes"),
        ("test.bin", lambda content: b"", "has 0 bytes"),
        ("train.bin", lambda content: b"\x14" + content[1:], "its coarse_labels lie in .* to 20"),
        ("train.bin", lambda content: content[:1] + b"\x64" + content[2:], "its fine_labels lie in .* to 100"),
    ],
)
def test_a_binary_file_that_cannot_be_used_is_named(
    tmp_path: Path, name: str, change: Callable[[bytes], bytes], problem: str
) -> None:
    path = write_binary(tmp_path, hundred=True) / name
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match=problem) as caught:
        cifar100(tmp_path)
    assert caught.value.path == path
    assert "cs.toronto.edu" in str(caught.value)


def test_batches_must_all_be_there_and_of_one_length(tmp_path: Path) -> None:
    path = write_binary(tmp_path) / "data_batch_4.bin"
    path.write_bytes(path.read_bytes()[:3073])
    with pytest.raises(DataError, match=r"data_batch_4.bin: holds 1 images, data_batch_1.bin holds 3"):
        cifar10(tmp_path)
    path.unlink()
    with pytest.raises(DataError, match=r"data_batch_4.bin: no such file"):
        cifar10(tmp_path)


def test_meta_files_must_name_every_class(tmp_path: Path) -> None:
    (write_binary(tmp_path) / "batches.meta.txt").write_text("cat\ndog\n")
    with pytest.raises(DataError, match=r"batches.meta.txt: names 2 classes. Expected the names of 10 classes"):
        cifar10(tmp_path)


@pytest.mark.parametrize("load", [cifar10, cifar100])
def test_a_directory_without_the_files_is_named(tmp_path: Path, load: Callable[..., Dataset]) -> None:
    for root, problem in ((tmp_path, "holds no file of cifar10"), (tmp_path / "absent", "no such directory")):
        with pytest.raises(DataError, match=problem) as caught:
            load(root)
        assert caught.value.path == root
        assert "cs.toronto.edu" in str(caught.value)
