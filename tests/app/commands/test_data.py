"""`fastfed data list | check | show`."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from fastfed.app.config import kinds
from fastfed.app.config.stand_ins import STAND_INS

from .support import assert_refused, fastfed, small_file

REAL = Path(__file__).parents[4] / "shared" / "data"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return small_file(tmp_path).relative_to(tmp_path)


def idx(path: Path, shape: tuple[int, ...], count: int) -> None:
    """An idx file of bytes, as MNIST's, with values below 10."""
    sizes = b"".join(size.to_bytes(4, "big") for size in shape)
    header = bytes([0, 0, 8, len(shape)]) + sizes
    path.write_bytes(gzip.compress(header + bytes(i % 10 for i in range(count))))


def mnist(directory: Path, train: int = 30, test: int = 10) -> Path:
    directory.mkdir(parents=True)
    for part, rows in (("train", train), ("t10k", test)):
        idx(directory / f"{part}-images-idx3-ubyte.gz", (rows, 28, 28), rows * 784)
        idx(directory / f"{part}-labels-idx1-ubyte.gz", (rows,), rows)
    return directory


# ---- list -----------------------------------------------------------------------------------------------------------


def test_list_names_every_data_set_partition_and_stand_in() -> None:
    said = fastfed("data", "list")
    assert said.exit_code == 0
    for name in kinds.LOADERS:
        assert f"│ {name} " in said.stdout
    for name in kinds.PARTITIONS:
        assert re.search(rf"\b{name} \(", said.stdout), name
    last = " ".join(said.stdout.partition("--data synthetic stands in for")[2].split())
    assert last == ", ".join(STAND_INS)


# ---- check ----------------------------------------------------------------------------------------------------------


def test_check_finds_what_a_directory_and_those_in_it_hold(tmp_path: Path) -> None:
    mnist(tmp_path / "data" / "mnist")
    (tmp_path / "data" / "empty").mkdir()
    said = fastfed("data", "check", tmp_path / "data")
    assert said.exit_code == 0
    found = [line.split("│")[1:-1] for line in said.stdout.splitlines() if line.startswith("│")]
    assert {row[0].strip() for row in found if row[0].strip()} == {"mnist", "fashion_mnist"}
    assert all(row[3].strip() == "30 + 10" for row in found if row[0].strip())


@pytest.mark.skipif(not (REAL / "qmnist_writers").is_dir(), reason="needs QMNIST's files in ../shared/data")
def test_check_finds_files_that_lie_in_two_directories(tmp_path: Path) -> None:
    for name in ("fmnist", "mnist", "qmnist_writers"):  # the first has images, too, but others
        (tmp_path / name).symlink_to(REAL / name)
    said = fastfed("data", "check", tmp_path)
    assert said.exit_code == 0
    row = said.stdout.partition("│ qmnist ")[2].partition("├")[0]
    assert "qmnist_writers," in row
    assert "/mnist" in row
    assert "60,000 + 10,000" in row


def test_check_tells_what_does_not_load_and_fails(tmp_path: Path) -> None:
    place = mnist(tmp_path / "mnist")
    idx(place / "train-labels-idx1-ubyte.gz", (29,), 29)
    said = fastfed("data", "check", place)
    assert said.exit_code == 1
    assert "train-labels-idx1-ubyte.gz" in said.stdout.replace("\n", "")
    assert "yes" not in said.stdout


def test_check_of_a_directory_without_data_fails(tmp_path: Path) -> None:
    assert_refused(fastfed("data", "check", tmp_path), 1, f"{tmp_path}: holds none of the data sets that FastFed knows")


def test_check_of_no_directory_is_bad_usage(tmp_path: Path) -> None:
    said = fastfed("data", "check", tmp_path / "none")
    assert said.exit_code == 2
    assert "is not a directory" in said.stderr


@pytest.mark.skipif(not (REAL / "mnist").is_dir(), reason="needs MNIST's files in ../shared/data/mnist")
def test_check_reads_real_files() -> None:
    said = fastfed("data", "check", REAL / "mnist")
    assert said.exit_code == 0
    assert re.search(r"│ mnist .*│ yes +│ 60,000 \+ 10,000 │", said.stdout)


# ---- show -----------------------------------------------------------------------------------------------------------


def test_show_tells_sizes_and_classes_and_draws(file: Path) -> None:
    said = fastfed("data", "show", file, "--set", "data.clients=10", "--plot", "new/p.png")
    assert said.exit_code == 0
    assert re.search(r"│ clients +│ 10 ", said.stdout)
    assert re.search(r"│ examples of a client │ 144 to 145, mean 144.2, median 144", said.stdout)
    rows = re.findall(r"│ (\d) +│ ([ ░▒▓█]+) │ +([\d,]+) │", said.stdout)
    assert [digit for digit, _, _ in rows] == list("0123456789")
    assert sum(int(number) for *_, number in rows) == 1442
    assert Path("new/p.png").read_bytes().startswith(b"\x89PNG")


def test_show_of_other_data(file: Path) -> None:
    place = mnist(Path("files").absolute())
    sets = ("--set", "data.name=mnist", "--set", "data.clients=5")
    real = fastfed("data", "show", file, *sets, "--data", place)
    assert real.exit_code == 0
    assert re.search(r"│ examples +│ 30 ", real.stdout)
    made_up = fastfed("data", "show", file, *sets, "--data", "synthetic")
    assert made_up.exit_code == 0
    assert re.search(r"│ examples +│ 60,000 ", made_up.stdout)


def test_show_of_data_that_cannot_be_drawn_is_a_sentence(file: Path) -> None:
    said = fastfed("data", "show", file, "--data", "synthetic", "--plot", "p.png")
    assert said.exit_code == 2
    assert said.stderr.startswith("fastfed: --plot: fed: must be a Federated")
    assert not Path("p.png").exists()


def test_show_of_a_wrong_file_is_a_sentence(file: Path) -> None:
    assert_refused(fastfed("data", "show", file, "--set", "data.alhpa=1"), 2, "a.toml: data.alhpa: data 'digits' with")
