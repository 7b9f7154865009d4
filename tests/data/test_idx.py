"""idx files: real ones against their published counts, written ones byte for byte, and every way to be wrong."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fastfed.data import DataError, Dataset, Pixels
from fastfed.data.loaders.idx import emnist, fashion_mnist, mnist, qmnist
from fastfed.data.normalise import STATISTICS

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
MNIST_CLASSES = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
MNIST_TEST_CLASSES = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def real(folder: str) -> Path:
    if not (SHARED / folder).is_dir():
        pytest.skip(f"the data set {folder} is not on this machine")
    return SHARED / folder


def pixels_of(data: Dataset) -> Pixels:
    assert isinstance(data.train.inputs, Pixels)
    return data.train.inputs


def check_statistics(data: Dataset, name: str) -> None:
    """The constants are the mean and the standard deviation of the training pixels, to the digits they have."""
    counts = pixels_of(data).bytes.flatten().bincount(minlength=256).double()
    values = torch.arange(256) / 255
    mean = (counts * values).sum() / counts.sum()
    std = ((counts * (values - mean) ** 2).sum() / counts.sum()).sqrt()
    assert (round(float(mean), 4), round(float(std), 4)) == (STATISTICS[name][0][0], STATISTICS[name][1][0])
    assert (pixels_of(data).mean, pixels_of(data).std) == STATISTICS[name]


def test_mnist_is_the_published_one() -> None:
    data = mnist(real("mnist"))
    assert data.test is not None
    assert data.labels.bincount().tolist() == MNIST_CLASSES
    assert data.test.targets.bincount().tolist() == MNIST_TEST_CLASSES  # type: ignore[union-attr]
    assert pixels_of(data).bytes.shape == (60000, 1, 28, 28)
    assert data.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert data.class_names[9] == "9"
    check_statistics(data, "mnist")


def test_fashion_mnist_is_the_published_one() -> None:
    data = fashion_mnist(real("fmnist"), normalise=True)
    assert data.labels.bincount().tolist() == [6000] * 10
    assert data.test is not None
    assert data.test.targets.bincount().tolist() == [1000] * 10  # type: ignore[union-attr]
    assert (data.class_names[0], data.class_names[9]) == ("T-shirt/top", "ankle boot")
    check_statistics(data, "fashion_mnist")


def test_qmnist_knows_the_writers_of_mnist() -> None:
    data = qmnist(real("qmnist_writers"), images=real("mnist"))
    assert data.client is not None
    assert data.test_client is not None
    assert data.test is not None
    sizes = data.client.bincount(minlength=len(data.client_names))
    test_sizes = data.test_client.bincount(minlength=len(data.client_names))
    assert (int((sizes > 0).sum()), int((test_sizes > 0).sum())) == (539, 297)
    assert not ((sizes > 0) & (test_sizes > 0)).any()  # disjoint, so that every writer is named once
    assert len(data.client_names) == 539 + 297
    assert (int(sizes[sizes > 0].min()), int(sizes.max())) == (19, 131)
    assert data.labels.bincount().tolist() == MNIST_CLASSES
    assert len(data.test) == 10000
    first = [data.client_names[int(key)] for key in (data.client[0], data.client[1], data.test_client[0])]
    assert first == ["2154", "0", "2578"]
    assert data.recipe is not None
    assert data.recipe.function == "data.qmnist"


def test_qmnist_refuses_images_that_are_not_mnist() -> None:
    with pytest.raises(DataError, match=r"row 0 is the digit 5, but .*fmnist has 9 there"):
        qmnist(real("qmnist_writers"), images=real("fmnist"))


def bytes_of(*shape: int) -> np.ndarray:
    return (np.arange(np.prod(shape)) * 7 % 251).astype(np.uint8).reshape(shape)


def idx(array: np.ndarray) -> bytes:
    code = {"u1": 0x08, "i4": 0x0C}[array.dtype.str[1:]]
    sizes = np.array(array.shape, ">u4").tobytes()
    return bytes([0, 0, code, array.ndim]) + sizes + array.astype(array.dtype.newbyteorder(">")).tobytes()


def write(path: Path, content: bytes, packed: bool) -> None:
    if packed:
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(content, 1))
    else:
        path.write_bytes(content)


IMAGES, LABELS = bytes_of(6, 28, 28), np.array([3, 1, 4, 1, 5, 9], np.uint8)


def write_four(root: Path, packed: bool = False) -> Path:
    for part, rows in (("train", slice(None)), ("t10k", slice(2))):
        write(root / f"{part}-images-idx3-ubyte", idx(IMAGES[rows]), packed)
        write(root / f"{part}-labels-idx1-ubyte", idx(LABELS[rows]), packed)
    return root


@pytest.mark.parametrize("packed", [False, True])
def test_files_are_read_byte_for_byte(tmp_path: Path, packed: bool) -> None:
    data = mnist(write_four(tmp_path, packed), normalise=False)
    assert np.array_equal(pixels_of(data).bytes.numpy()[:, 0], IMAGES)
    assert data.labels.tolist() == LABELS.tolist()
    assert data.test is not None
    assert len(data.test) == 2
    assert (pixels_of(data).mean, pixels_of(data).std) == ((0.0,), (1.0,))


def test_plain_images_stay_on_disk(tmp_path: Path) -> None:
    data = mnist(write_four(tmp_path))
    path = tmp_path / "train-images-idx3-ubyte"
    with path.open("r+b") as stream:
        stream.seek(16)
        stream.write(b"\xc8")
    assert int(pixels_of(data).bytes[0, 0, 0, 0]) == 0xC8  # what is read is the file
    pixels_of(data).bytes[0] = 1
    assert path.read_bytes()[16] == 0xC8  # which nobody writes to


def test_a_plain_file_goes_before_a_packed_one_and_dots_are_read_too(tmp_path: Path) -> None:
    write_four(tmp_path)
    (tmp_path / "train-images-idx3-ubyte").rename(tmp_path / "train-images.idx3-ubyte")
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(b"never opened")
    assert len(mnist(tmp_path).train) == 6


@pytest.mark.parametrize(("given", "mean", "std"), [((0.5, 0.25), (0.5,), (0.25,)), (((0.1,), (0.2,)), (0.1,), (0.2,))])
def test_own_statistics(tmp_path: Path, given: tuple[float, float], mean: tuple[float], std: tuple[float]) -> None:
    data = mnist(write_four(tmp_path), normalise=given)
    assert (pixels_of(data).mean, pixels_of(data).std) == (mean, std)


@pytest.mark.parametrize("given", [None, 0.5, "yes", (0.5,), ("a", "b")])
def test_bad_statistics_are_named_before_files_are_read(given: object) -> None:
    with pytest.raises(ValueError, match=r"^normalise: "):
        mnist("/no/such/place", normalise=given)  # type: ignore[arg-type]


def test_a_recipe_reads_the_same_files_again(tmp_path: Path) -> None:
    recipe = mnist(write_four(tmp_path), normalise=(0.5, 0.25)).recipe
    assert recipe is not None
    assert recipe.function == "data.mnist"
    assert recipe.arguments == {"root": str(tmp_path), "normalise": (0.5, 0.25)}


EMNIST_SPLITS = {"byclass": 62, "bymerge": 47, "balanced": 47, "letters": 26, "digits": 10, "mnist": 10}


def write_emnist(root: Path, split: str, labels: np.ndarray) -> None:
    root.mkdir(exist_ok=True)
    for part in ("train", "test"):
        write(root / f"emnist-{split}-{part}-images-idx3-ubyte", idx(bytes_of(len(labels), 28, 28)), True)
        write(root / f"emnist-{split}-{part}-labels-idx1-ubyte", idx(labels), True)


@pytest.mark.parametrize("split", EMNIST_SPLITS)
@pytest.mark.parametrize("folder", ["", "gzip"])
def test_emnist_is_turned_upright(tmp_path: Path, split: str, folder: str) -> None:
    classes, first = EMNIST_SPLITS[split], 1 if split == "letters" else 0
    write_emnist(tmp_path / folder, split, np.arange(first, first + classes, dtype=np.uint8))
    data = emnist(tmp_path, split)
    assert data.labels.tolist() == list(range(classes))
    assert len(set(data.class_names)) == len(data.class_names) == classes
    images = pixels_of(data).bytes
    assert images.is_contiguous()
    assert np.array_equal(images.numpy()[:, 0], bytes_of(classes, 28, 28).transpose(0, 2, 1))
    assert pixels_of(data).mean == STATISTICS[f"emnist {split}"][0]


def test_emnist_names_its_classes(tmp_path: Path) -> None:
    write_emnist(tmp_path, "byclass", np.array([0, 10, 36, 61], np.uint8))
    names = emnist(tmp_path).class_names
    assert [names[label] for label in (0, 9, 10, 35, 36, 61)] == ["0", "9", "A", "Z", "a", "z"]
    with pytest.raises(ValueError, match=r"^split: must be one of byclass, .* got 'all'"):
        emnist(tmp_path, "all")


def write_qmnist(root: Path, test_rows: int = 4) -> None:
    for part, writers in (("train", [70, 8, 70, 8, 8, 9]), ("test", [9, 7, 7, 70][:test_rows])):
        table = np.zeros((len(writers), 8), np.int32)
        table[:, 0], table[:, 2] = LABELS[: len(writers)], writers
        write(root / f"qmnist-{part}-labels-idx2-int", idx(table), part == "train")
        write(root / f"qmnist-{part}-images-idx3-ubyte", idx(IMAGES[: len(writers)]), part == "test")


def test_qmnist_with_its_own_images(tmp_path: Path) -> None:
    write_qmnist(tmp_path)
    data = qmnist(tmp_path)
    assert data.client_names == ("7", "8", "9", "70")
    assert data.client is not None
    assert data.test_client is not None
    assert data.client.tolist() == [3, 1, 3, 1, 1, 2]
    assert data.test_client.tolist() == [2, 0, 0, 3]
    assert data.labels.tolist() == LABELS.tolist()
    assert np.array_equal(pixels_of(data).bytes.numpy()[:, 0], IMAGES)


def test_only_the_test_rows_of_mnist_count_with_its_images(tmp_path: Path) -> None:
    write_qmnist(tmp_path)
    write_four(tmp_path)  # two test rows
    data = qmnist(tmp_path, images=tmp_path)
    assert data.client_names == ("7", "8", "9", "70")
    assert data.test_client is not None
    assert data.test_client.tolist() == [2, 0]


def test_qmnist_counts_must_agree(tmp_path: Path) -> None:
    write_qmnist(tmp_path)
    write(tmp_path / "qmnist-train-images-idx3-ubyte", idx(IMAGES[:3]), False)
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte: holds 3 images, but .* holds 6 labels"):
        qmnist(tmp_path)
    write_four(tmp_path)
    write_qmnist(tmp_path, test_rows=1)
    with pytest.raises(DataError, match=r"has 1 rows, but .* has 2 images"):
        qmnist(tmp_path, images=tmp_path)


IMAGES_FILE, LABELS_FILE = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
IMAGES_GZ, LABELS_GZ = f"{IMAGES_FILE}.gz", f"{LABELS_FILE}.gz"
GOOD_IMAGES, GOOD_LABELS = idx(IMAGES), idx(LABELS)
TERABYTES = GOOD_IMAGES[:4] + b"\xff\xff\xff\xff" + GOOD_IMAGES[8:]
GARBAGE = gzip.compress(GOOD_LABELS)[:10] + b"\xff" * 30

DAMAGES: dict[str, tuple[str, bytes | None, str]] = {  # a file, what it holds instead (None: it is gone), what is said
    "missing": (IMAGES_FILE, None, "no such file"),
    "empty": (IMAGES_FILE, b"", r"begins with the bytes \(none\)"),
    "wrong magic": (LABELS_FILE, b"\0\0\x0d\x01" + GOOD_LABELS[4:], "begins with the bytes 00 00 0d 01"),
    "labels for images": (IMAGES_FILE, GOOD_LABELS, "begins with the bytes 00 00 08 01"),
    "gzip, plain name": (LABELS_FILE, gzip.compress(GOOD_LABELS), "is a gzip file, whose name must end in .gz"),
    "inside the header": (IMAGES_FILE, GOOD_IMAGES[:9], "ends after 9 bytes"),
    "truncated": (IMAGES_FILE, GOOD_IMAGES[:-1], "is truncated"),
    "too long": (LABELS_FILE, GOOD_LABELS + b"\0", "left over"),
    "other size": (IMAGES_FILE, idx(bytes_of(6, 8, 8)), "header says 6x8x8"),
    "no rows": (LABELS_FILE, idx(LABELS[:0]), "header says 0"),
    "fewer images": (IMAGES_FILE, idx(IMAGES[:5]), "holds 5 images, but .* holds 6 labels"),
    "label 10": (LABELS_FILE, idx(LABELS + np.uint8(1)), "labels lie in 2 to 10"),
    "terabytes promised": (IMAGES_FILE, TERABYTES, "is truncated"),
    "not gzip": (LABELS_GZ, GOOD_LABELS, "is not a gzip file"),
    "gzip cut": (IMAGES_GZ, gzip.compress(GOOD_IMAGES)[:-20], "truncated or damaged"),
    "gzip damaged": (LABELS_GZ, GARBAGE, "truncated or damaged"),
    "gzip of too little": (IMAGES_GZ, gzip.compress(GOOD_IMAGES[:-1]), "is truncated"),
    "gzip of too much": (LABELS_GZ, gzip.compress(GOOD_LABELS + b"\0"), "left over"),
    "terabytes in gzip": (IMAGES_GZ, gzip.compress(TERABYTES), "is truncated"),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, case: str) -> None:
    name, content, problem = DAMAGES[case]
    (write_four(tmp_path) / name.removesuffix(".gz")).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=problem) as caught:
        mnist(tmp_path)
    assert caught.value.path == tmp_path / name
    said = str(caught.value)
    assert said.startswith(str(tmp_path / name))
    assert "Expected " in said
    assert "yann.lecun.com/exdb/mnist" in said


LOADERS = [
    (mnist, "yann.lecun.com"),
    (fashion_mnist, "zalandoresearch/fashion-mnist"),
    (emnist, "www.nist.gov"),
    (qmnist, "facebookresearch/qmnist"),
]


@pytest.mark.parametrize(("loader", "home"), LOADERS)
def test_a_directory_that_is_not_there_is_named(tmp_path: Path, loader: Callable[..., Dataset], home: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    for root, problem in (("absent", "no such directory"), ("file", "is not a directory"), ("", "no such file")):
        with pytest.raises(DataError, match=problem) as caught:
            loader(tmp_path / root)
        assert home in str(caught.value)
