"""The fingerprint: whatever of the data differs, it differs; how the bytes lie in memory and how many cores read them
does not count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fastfed as ff
from fastfed.data import Augment, Dataset, Examples, Federated, Pixels, Sparse, fingerprint
from fastfed.data.dataset import has_fingerprint
from fastfed.data.partition import iid

ROWS = 5000


def images(**pixels: Any) -> Federated:
    contents = torch.randint(256, (ROWS, 1, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    examples = Examples(Pixels(contents, **pixels), torch.arange(ROWS) % 10)
    return iid(Dataset("images", examples, Examples(Pixels(contents[:7]), torch.arange(7))), 20)


def test_images_that_are_zeroed_between_run_and_resume_are_noticed(tmp_path: Path) -> None:
    fed, model = images(), ff.models.mlp(16, 10)
    sim = ff.Simulation(model, fed, cohort=2, client=ff.clients.SGD(lr=0.1), batch_size=50)
    sim.run(1, checkpoint=tmp_path, progress=False)
    inputs = fed.examples.inputs
    assert isinstance(inputs, Pixels)
    for row in range(ROWS):
        if row % 5:  # 4,000 of 5,000
            inputs.bytes.numpy()[row] = 0
    with pytest.raises(ValueError, match=r"fed: is not the data of this checkpoint .* its contents differ"):
        ff.Simulation.resume(tmp_path, fed=fed)


@pytest.mark.parametrize(
    "change",
    [
        lambda fed: replace(fed, rows=fed.rows.flip(0)),
        lambda fed: replace(fed, uncounted=(3,)),
        lambda fed: replace(fed, validation_rows=torch.tensor([1])),
        lambda fed: replace(fed, test=None),
        lambda fed: images(mean=(0.1,)),
        lambda fed: images(std=(0.1,)),
        lambda fed: images(augment=Augment(flip=True)),
        lambda fed: replace(fed, examples=Examples(fed.examples.inputs, fed.examples.targets.int().long() + 1)),
        lambda fed: replace(fed, examples=Examples(fed.examples.inputs, fed.examples.targets.float())),
    ],
)
def test_whatever_differs_is_told_apart(change: Callable[[Federated], Federated]) -> None:
    assert images().fingerprint() == images().fingerprint() != change(images()).fingerprint()


@pytest.mark.parametrize("part", ["starts", "columns", "values"])
def test_one_entry_of_sparse_rows_is_told(part: str) -> None:
    def bags() -> Sparse:
        return Sparse(torch.arange(1001), torch.arange(1000).int() % 7, torch.ones(1000), 8)

    def dealt(inputs: Sparse) -> str:
        return iid(Dataset("bags", Examples(inputs, torch.zeros(1000).long())), 2).fingerprint()

    other = bags()
    getattr(other, part)[500] += 1
    assert dealt(bags()) != dealt(other)


def digest(tensor: Tensor) -> str:
    return fingerprint.digest_of(tensor)


def test_a_digest_is_of_contents_and_not_of_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.randn(37, 5, generator=torch.Generator().manual_seed(0))
    wanted = digest(tensor)
    assert digest(tensor.T.contiguous().T) == digest(torch.cat([tensor, tensor])[:37]) == wanted
    assert len({wanted, digest(tensor.view(5, 37)), digest(tensor.int()), digest(tensor[:36])}) == 4
    monkeypatch.setattr(fingerprint, "_PIECE", 100)
    many = digest(tensor)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0}, raising=False)
    assert digest(tensor) == many
    for row in range(37):
        other = tensor.clone()
        other[row, row % 5] += 1
        assert digest(other) != many


@pytest.mark.parametrize("tensor", [torch.empty(0), torch.empty(3, 0), torch.empty(0, 4).long()])
def test_nothing_has_a_digest(tensor: Tensor) -> None:
    assert digest(tensor) == digest(tensor.clone())


def test_a_fingerprint_of_before_is_recognised() -> None:
    fed = images()
    assert has_fingerprint(fed, "cec331494b3a0a29")  # as it was written when a sample of the rows was read
    assert has_fingerprint(fed, fed.fingerprint())
    assert not has_fingerprint(fed, "cec331494b3a0a28")
