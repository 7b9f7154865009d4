"""The program itself: layouts, numbering, names, the plain form, the description."""

from __future__ import annotations

import doctest
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fastfed import models
from fastfed.program import Program, describe, trace

from .support import Case, Net, check, conv, parameter, picture, sequence, sparse, tokens, vector
from .test_graphs import GRAPHS


def conv_program() -> tuple[nn.Module, Program]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(2, 3, (2, 4)), nn.ReLU(), nn.Flatten(), nn.Linear(36, 5))
    return module, trace(module, picture(), "cross_entropy")


def test_engine_vectors_there_and_back() -> None:
    module, traced = conv_program()
    assert traced.layouts == {"0.weight": (2, 3, 1, 0)}
    x = traced.packing.pack(module)
    engine = traced.to_engine(x)
    views = traced.engine_packing.views(engine)
    torch.testing.assert_close(views["0.weight"], module[0].weight.data.permute(2, 3, 1, 0), rtol=0, atol=0)
    torch.testing.assert_close(views["3.weight"], module[3].weight.data, rtol=0, atol=0)
    assert torch.equal(traced.from_engine(engine), x)
    assert torch.equal(traced.packing.pack(module), x)
    batch = torch.stack([x, 2 * x, -x])
    assert torch.equal(traced.to_engine(batch), torch.stack([engine, 2 * engine, -engine]))
    assert torch.equal(traced.from_engine(traced.to_engine(batch)), batch)


def test_engine_vectors_are_not_copied_for_nothing() -> None:
    module = nn.Linear(6, 3)
    traced = trace(module, vector(), "cross_entropy")
    x = traced.packing.pack(module)
    assert traced.to_engine(x) is x
    assert traced.from_engine(x) is x
    assert traced.engine_packing == traced.packing
    with pytest.raises(ValueError, match="x: must have shape"):
        traced.to_engine(x[:-1])


def test_sparse_weights_are_transposed() -> None:
    traced = trace(nn.Linear(9, 4), sparse(), "binary_cross_entropy")
    assert traced.layouts == {"weight": (1, 0)}
    assert [slot.shape for slot in traced.engine_packing.slots] == [(9, 4), (4,)]


def test_spec_is_plain() -> None:
    _, traced = conv_program()
    window = {"kernel_h": 2.0, "kernel_w": 4.0, "stride_h": 1.0, "stride_w": 1.0, "pad_h": 0.0, "pad_w": 0.0}
    assert traced.spec() == (
        [("image", 35, 2, 7, 5), ("image", 12, 3, 6, 2), ("image", 12, 3, 6, 2), ("vector", 1, 36, 0, 0),
         ("vector", 1, 5, 0, 0)],
        [("conv2d", [0], 1, [0, 48], window), ("relu", [1], 2, [], {}), ("flatten", [2], 3, [], {}),
         ("linear", [3], 4, [64, 256], {})],
    )  # fmt: skip
    assert (traced.input, traced.output, traced.loss) == (0, 4, "cross_entropy")
    described, _ = trace(models.shakespeare_lstm(), tokens(80, 90), "cross_entropy").spec()
    assert described[:2] == [("tokens", 80, 0, 0, 0), ("sequence", 80, 8, 0, 0)]
    described, _ = trace(nn.Linear(9, 4), sparse(), "binary_cross_entropy").spec()
    assert described[0] == ("sparse", 1, 9, 0, 0)


def test_dropouts_are_numbered_in_order() -> None:
    module = nn.Sequential(nn.Dropout(0.1), nn.Linear(6, 6), nn.Dropout(0), nn.Dropout(0.2), nn.ReLU(), nn.Dropout(0.3))
    traced = check(Case(lambda: module, vector, "dropout linear dropout relu dropout"))
    found = [step.settings for step in traced.instructions if step.op == "dropout"]
    assert found == [{"p": 0.1, "index": 0}, {"p": 0.2, "index": 1}, {"p": 0.3, "index": 2}]
    assert traced.dropouts == 3


@pytest.mark.parametrize(("given", "wanted"), [(None, -1), (0, 0), (3, 3), (-1, 10), (-11, 0)])
def test_padding_is_counted_from_the_front(given: int | None, wanted: int) -> None:
    layer = Net(lambda net, x: F.embedding(x, net.w, padding_idx=given), w=parameter(11, 2))
    (step,) = trace(layer, tokens(), "cross_entropy").instructions
    assert step.settings == {"padding_idx": wanted, "vocabulary": 11}


def test_tied_parameters_have_one_offset() -> None:
    traced = check(GRAPHS["tied embedding"])
    embedding, _, linear = traced.instructions
    assert embedding.params[0] == linear.params[0]


def test_names_are_the_modules_own() -> None:
    traced = check(GRAPHS["nested blocks"])
    assert [step.name for step in traced.instructions] == ["0.parts.a.parts.b", "0.parts.a.tanh", "0.add"]
    _, traced = conv_program()
    assert [step.name for step in traced.instructions] == ["0", "1", "2", "3"]


@pytest.mark.parametrize("training", [False, True])
def test_the_module_is_left_alone(training: bool) -> None:
    module = models.fmnist_cnn().train(training)
    module[4].eval()
    before = {name: p.clone() for name, p in module.state_dict().items()}
    attributes = set(vars(module))
    traced = trace(module, picture(1, 28, 28), "cross_entropy")
    assert traced.dropouts == 2
    assert module.training is training
    assert not module[4].training
    assert module[10].training is training
    assert set(vars(module)) == attributes
    assert all(torch.equal(before[name], p) for name, p in module.state_dict().items())


def test_mse_sees_numbers_in_torchs_order() -> None:
    traced = check(Case(conv(3, 3), picture, "conv2d flatten", "mse"))
    assert traced.values[traced.output].shape == (45,)
    traced = check(Case(lambda: nn.Linear(4, 3), sequence, "linear", "mse"))
    assert traced.values[traced.output].kind == "sequence"


def test_description() -> None:
    _, traced = conv_program()
    assert describe(traced).splitlines() == [
        "name  op                                       shapes                      parameters",
        "0     conv2d(kernel=2x4, stride=1x1, pad=0x0)  (2 x 7 x 5) -> (3 x 6 x 2)  0.weight 0.bias",
        "1     relu                                     (3 x 6 x 2) -> (3 x 6 x 2)",
        "2     flatten                                  (3 x 6 x 2) -> (36)",
        "3     linear                                   (36) -> (5)                 3.weight 3.bias",
        "loss  cross_entropy of (5)",
    ]


@pytest.mark.parametrize("name", ["ir", "trace"])
def test_docstrings(name: str) -> None:
    results = doctest.testmod(sys.modules[f"fastfed.program.{name}"])
    assert results.attempted > 0
    assert results.failed == 0
