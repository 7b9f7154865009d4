"""The store on disk: everything comes back, mapped and not read; nothing is half-written; damage is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fastfed.data import Augment, DataError, Dataset, Examples, Federated, Pixels, Sparse, disk, fingerprint
from fastfed.data.disk import open_store, save_store
from fastfed.data.fingerprint import sampled
from fastfed.data.partition import dirichlet, iid, natural

ROWS = 12


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def bytes_of(*shape: int) -> Tensor:
    return torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def bags(rows: int, width: int) -> Sparse:
    dense = numbers(rows, width)
    dense[dense.abs() < 1] = 0
    return Sparse.of(dense)


def images() -> Federated:
    labels = torch.arange(ROWS) % 3
    train = Examples(Pixels(bytes_of(ROWS, 3, 4, 5), (0.1, 0.2, 0.3), (0.5,)), labels)
    test = Examples(Pixels(bytes_of(2, 3, 4, 5), augment=Augment(crop=3, flip=True, standardise=True)), labels[:2])
    return dirichlet(Dataset("images", train, test, class_names=("a", "b", "ç")), 3)


def tags() -> Federated:
    return iid(Dataset("tags", Examples(bags(ROWS, 9), bags(ROWS, 4))), 2)


def text() -> Federated:
    tokens = torch.arange(ROWS * 5).view(ROWS, 5)
    clients, tests = torch.arange(ROWS) % 3, torch.tensor([2, 0])
    names = ("ann", "bob", "cid")
    data = Dataset("text", Examples(tokens, tokens + 1), Examples(tokens[:2], tokens[:2]), clients, names, tests)
    return natural(data)


def autoencoder() -> Federated:
    rows = numbers(ROWS, 7)
    return iid(Dataset("autoencoder", Examples(rows, rows)), 2)


def empty_bags() -> Federated:
    return iid(Dataset("empty", Examples(Sparse.of(torch.zeros(ROWS, 9)), numbers(2, ROWS).T)), 2)


def many_images() -> Federated:
    rows = 3000
    return iid(Dataset("many", Examples(Pixels(bytes_of(rows, 1, 4, 4)), torch.arange(rows) % 3)), 3)


def many_bags() -> Federated:
    return iid(Dataset("bags", Examples(bags(500, 40), torch.arange(500) % 3)), 3)


KINDS = [images, tags, text, autoencoder, empty_bags]


def tensors_of(thing: Any) -> dict[str, Tensor]:
    """Every tensor in a dataclass, by its path."""
    if isinstance(thing, Tensor):
        return {"": thing}
    found = {}
    for name in getattr(thing, "__dataclass_fields__", ()):
        found |= {f"{name}.{path}": tensor for path, tensor in tensors_of(getattr(thing, name)).items()}
    return found


@pytest.mark.parametrize("make", KINDS)
def test_everything_comes_back(tmp_path: Path, make: Any) -> None:
    fed = make()
    save_store(fed, tmp_path / "deep" / "store")
    again = open_store(tmp_path / "deep" / "store")
    ours, theirs = tensors_of(fed), tensors_of(again)
    assert set(ours) == set(theirs)
    for path, tensor in ours.items():
        assert theirs[path].dtype is tensor.dtype
        assert torch.equal(theirs[path], tensor), path
    for name in ("name", "client_names", "class_names"):
        assert getattr(again, name) == getattr(fed, name)
    assert again.fingerprint() == fed.fingerprint()
    cohort = torch.tensor([1, 0])
    visit, wanted = again.visit(cohort), fed.visit(cohort)
    for one, two in zip(visit.examples.batch(visit.rows), wanted.examples.batch(wanted.rows), strict=True):
        assert torch.equal(one, two)
    assert [file.name for file in (tmp_path / "deep").iterdir()] == ["store"]


def test_normalisation_comes_back(tmp_path: Path) -> None:
    save_store(images(), tmp_path / "s")
    inputs = open_store(tmp_path / "s").examples.inputs
    assert isinstance(inputs, Pixels)
    assert (inputs.mean, inputs.std) == ((0.1, 0.2, 0.3), (0.5,))


def test_an_autoencoders_rows_are_kept_once(tmp_path: Path) -> None:
    save_store(autoencoder(), tmp_path / "s")
    again = open_store(tmp_path / "s")
    assert again.examples.targets is again.examples.inputs
    assert not (tmp_path / "s" / "train.targets.npy").exists()


def mapped_files() -> str:
    return Path("/proc/self/maps").read_text()


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc/self/maps, which says what is mapped")
def test_arrays_are_mapped_not_read(tmp_path: Path) -> None:
    save_store(images(), tmp_path / "s")
    fed = open_store(tmp_path / "s")
    for name in ("train.inputs.bytes.npy", "train.targets.npy", "test.inputs.bytes.npy", "rows.npy"):
        assert str(tmp_path / "s" / name) in mapped_files()
    inputs = fed.examples.inputs
    assert isinstance(inputs, Pixels)
    with (tmp_path / "s" / "train.inputs.bytes.npy").open("r+b") as file:  # a change of the file is seen ...
        file.seek(-1, 2)
        file.write(bytes([255 - int(inputs.bytes[-1, -1, -1, -1])]))
    assert inputs.bytes[-1, -1, -1, -1] != images().examples.inputs.bytes[-1, -1, -1, -1]  # type: ignore[union-attr]


def test_writing_to_a_tensor_does_not_change_the_file(tmp_path: Path) -> None:
    save_store(images(), tmp_path / "s")
    inputs = open_store(tmp_path / "s").examples.inputs
    assert isinstance(inputs, Pixels)
    inputs.bytes.zero_()
    assert open_store(tmp_path / "s").fingerprint() == images().fingerprint()


def test_a_store_can_be_saved_again(tmp_path: Path) -> None:
    save_store(tags(), tmp_path / "one")
    save_store(open_store(tmp_path / "one"), tmp_path / "two")
    assert open_store(tmp_path / "two").fingerprint() == tags().fingerprint()


def test_remembers_how_it_was_opened(tmp_path: Path) -> None:
    save_store(tags(), tmp_path / "s")
    recipe = open_store(tmp_path / "s").recipe
    assert recipe is not None
    assert recipe.json() == {"recipe": "data.open_store", "arguments": {"directory": str(tmp_path / "s")}}


# ---- refusals -------------------------------------------------------------------------------------------------------


def test_an_existing_store_is_not_overwritten(tmp_path: Path) -> None:
    save_store(images(), tmp_path / "s")
    with pytest.raises(FileExistsError, match=r"^directory: "):
        save_store(tags(), tmp_path / "s")
    assert open_store(tmp_path / "s").name == "images"
    (tmp_path / "bare").mkdir()
    save_store(tags(), tmp_path / "bare")
    assert open_store(tmp_path / "bare").name == "tags"


def test_a_failing_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []

    def fail(path: Path, array: Any, **options: Any) -> None:
        path.write_bytes(b"half")
        written.append(path)
        if len(written) == 3:
            raise OSError("disk full")

    monkeypatch.setattr(np, "save", fail)
    with pytest.raises(OSError, match="disk full"):
        save_store(images(), tmp_path / "s")
    assert list(tmp_path.iterdir()) == []


def damaged(tmp_path: Path, damage: Any) -> Path:
    store = tmp_path / "s"
    save_store(images(), store)
    damage(store)
    return store


def rewrite_header(store: Path, **changed: Any) -> None:
    header = json.loads((store / "store.json").read_text())
    (store / "store.json").write_text(json.dumps({**header, **changed}))


def of_the_first_format(store: Path, fed: Federated, **changed: Any) -> None:
    """Makes the store what was written before: no digests, no seal, and a fingerprint of a sample."""
    header = json.loads((store / "store.json").read_text())
    del header["seal"], header["digests"]
    before = {**header, "format": "fastfed store 1", "fingerprint": sampled(fed), **changed}
    (store / "store.json").write_text(json.dumps(before))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("problem", "damage"),
    [
        (r"s: there is no such directory", shutil.rmtree),
        (r"s: has no store\.json", lambda s: (s / "store.json").unlink()),
        (r"store\.json: is no JSON", lambda s: truncate(s / "store.json")),
        (r"store\.json: does not say 'fastfed store 2'", lambda s: rewrite_header(s, format="another")),
        (r"store\.json: its contents are not those", lambda s: rewrite_header(s, train=None)),
        (r"store\.json: its contents are not those", lambda s: rewrite_header(s, uncounted=[1])),
        (r"store\.json: its contents are not those", lambda s: rewrite_header(s, seal=None)),
        (r"train\.targets\.npy: there is no such file", lambda s: (s / "train.targets.npy").unlink()),
        (r"train\.inputs\.bytes\.npy: cannot be mapped", lambda s: truncate(s / "train.inputs.bytes.npy")),
        (r"rows\.npy: cannot be mapped", lambda s: (s / "rows.npy").write_bytes(b"")),
        (r"rows\.npy: cannot be mapped", lambda s: (s / "rows.npy").write_bytes(b"nonsense")),
        (r"rows\.npy: its contents are not those", lambda s: np.save(s / "rows.npy", np.arange(12) + 1)),
        (r"targets\.npy: its contents are not those", lambda s: np.save(s / "train.targets.npy", np.arange(12)[::-1])),
        (r"targets\.npy: its contents are not those", lambda s: np.save(s / "train.targets.npy", np.zeros(12, "<i4"))),
    ],
)
def test_damage_is_named(tmp_path: Path, problem: str, damage: Any) -> None:
    with pytest.raises(DataError, match=problem):
        open_store(damaged(tmp_path, damage))


@pytest.mark.parametrize(
    ("problem", "damage"),
    [
        (r"its parts do not fit together .*targets", lambda s: np.save(s / "train.targets.npy", np.arange(3))),
        (r"its parts do not fit together .*rows", lambda s: np.save(s / "rows.npy", np.arange(12) + 1)),
        (r"its parts do not fit together", lambda s: rewrite_header(s, train=None)),
        (r"its contents are not those", lambda s: np.save(s / "train.targets.npy", np.zeros(12, dtype=np.int64))),
    ],
)
def test_a_store_of_before_is_opened_and_damage_to_it_named(tmp_path: Path, problem: str, damage: Any) -> None:
    save_store(images(), tmp_path / "s")
    of_the_first_format(tmp_path / "s", images())
    assert open_store(tmp_path / "s").fingerprint() == images().fingerprint()
    damage(tmp_path / "s")
    with pytest.raises(DataError, match=rf"s: {problem}"):
        open_store(tmp_path / "s")


def change_one(path: Path) -> None:
    """Another number in an array that has many, far from those that a look at every hundredth row would read."""
    array = np.load(path)
    array.reshape(-1)[array.size // 2 + 1] += 1
    np.save(path, array)


@pytest.mark.parametrize(
    ("make", "name"),
    [(many_images, "train.inputs.bytes"), (many_images, "train.targets"), (many_bags, "train.inputs.values")],
)
def test_one_changed_number_among_many_is_refused(tmp_path: Path, make: Any, name: str) -> None:
    save_store(make(), tmp_path / "s")
    open_store(tmp_path / "s")
    change_one(tmp_path / "s" / f"{name}.npy")
    with pytest.raises(DataError, match=rf"{name}\.npy: its contents are not those that were saved"):
        open_store(tmp_path / "s")


def count_digests(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The tensors whose bytes are read for a digest from now on."""
    read: list[Tensor] = []
    pieces = fingerprint._digests
    monkeypatch.setattr(fingerprint, "_digests", lambda tensor: read.append(tensor) or pieces(tensor))
    return read


def test_a_store_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_SETTLED", -1.0)
    save_store(many_images(), tmp_path / "s")
    read = count_digests(monkeypatch)
    first = open_store(tmp_path / "s")
    arrays = len(list((tmp_path / "s").glob("*.npy")))
    assert len(read) == arrays
    told = first.fingerprint()
    assert open_store(tmp_path / "s").fingerprint() == told
    assert len(read) == arrays  # neither for the fingerprint, nor by the second opening
    change_one(tmp_path / "s" / "train.inputs.bytes.npy")
    with pytest.raises(DataError, match=r"its contents are not those"):
        open_store(tmp_path / "s")


def test_a_file_that_was_just_written_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_store(many_images(), tmp_path / "s")
    open_store(tmp_path / "s")
    read = count_digests(monkeypatch)
    open_store(tmp_path / "s")
    assert read


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"rows": 3}', "[" * 100_000])
def test_what_was_checked_is_not_needed(tmp_path: Path, text: str) -> None:
    save_store(images(), tmp_path / "s")
    (tmp_path / "s" / "checked.json").write_text(text)
    assert open_store(tmp_path / "s").fingerprint() == images().fingerprint()


def test_what_this_process_writes_to_a_store_changes_its_fingerprint(tmp_path: Path) -> None:
    save_store(images(), tmp_path / "s")
    fed = open_store(tmp_path / "s")
    assert isinstance(fed.examples.targets, Tensor)
    fed.examples.targets[5] = 0
    assert fed.fingerprint() != images().fingerprint()


def test_only_held_examples_are_saved(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"^fed: "):
        save_store("fed", tmp_path / "s")  # type: ignore[arg-type]
