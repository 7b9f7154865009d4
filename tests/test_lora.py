"""Low-rank adapters: nothing else moves, is packed or is sent; merged weights do the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastfed as ff
from fastfed import models
from fastfed.lora import AdaptedAttention, AdaptedLinear
from fastfed.saved.restore import constants


class Reader(nn.Module):
    """An embedding, torch's attention, and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(12, 8)
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.dense = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        x = x + self.attend(x, x, x, need_weights=False)[0]
        return self.head(self.dense(x).mean(1))


def reader() -> Reader:
    torch.manual_seed(3)
    return Reader()


def texts() -> ff.data.Federation:
    g = torch.Generator().manual_seed(0)
    words, kinds = torch.randint(0, 12, (60, 7), generator=g), torch.randint(0, 3, (60,), generator=g)
    return ff.data.from_arrays(words, kinds, client=torch.arange(60) % 6)


def simulation(model: nn.Module, **given: Any) -> ff.Simulation:
    usual = {"client": ff.clients.Adam(lr=0.05), "cohort": 4, "batch_size": 4, "executor": "native", "seed": 5}
    return ff.Simulation(model, texts(), **{**usual, **given})


def trained(module: nn.Module) -> list[str]:
    return [name for name, parameter in module.named_parameters() if parameter.requires_grad]


def filled(module: nn.Module) -> nn.Module:
    """With adapters that do something."""
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and name.rpartition(".")[2] in ("up", "out_up"):
            nn.init.normal_(parameter)
    return module


def test_only_adapters_are_packed() -> None:
    base = reader()
    adapted = models.lora(base, rank=2)
    assert trained(adapted) == [
        "attend.down", "attend.up", "attend.out_down", "attend.out_up", "dense.0.down", "dense.0.up", "head.down",
        "head.up",
    ]  # fmt: skip
    packing = ff.Packing.of(adapted)
    assert packing.parameters == 2 * (8 + 24 + 8 + 8 + 8 + 16 + 16 + 3)
    assert trained(base) == [name for name, _ in base.named_parameters()]  # the module given is left alone
    assert simulation(adapted).params.numel() == packing.size
    assert isinstance(adapted.attend, AdaptedAttention)
    assert isinstance(adapted.head, AdaptedLinear)


@pytest.mark.parametrize("mode", [True, False])
def test_fresh_adapters_change_nothing(mode: bool) -> None:
    base, words = reader().train(mode), texts().examples.inputs
    adapted = models.lora(base, rank=3, alpha=7.0).train(mode)
    with torch.no_grad():
        assert torch.equal(adapted(words), base(words))


@pytest.mark.parametrize("alpha", [None, 5.0])
def test_merged_weights_do_the_same(alpha: float | None) -> None:
    torch.manual_seed(1)
    base, words = reader().double().eval(), texts().examples.inputs
    adapted = filled(models.lora(base, rank=2, alpha=alpha))
    whole = models.merged(adapted)
    assert type(whole.head) is nn.Linear
    assert type(whole.attend) is nn.MultiheadAttention
    with torch.no_grad():
        torch.testing.assert_close(whole(words), adapted(words))
        assert not torch.allclose(adapted(words), base(words))
    by_hand = base.head.weight + (1.0 if alpha is None else alpha / 2) * adapted.head.up @ adapted.head.down
    torch.testing.assert_close(whole.head.weight, by_hand)


def test_targets_and_what_is_trained_whole() -> None:
    adapted = models.lora(models.small_vit(size=8), 2, targets=["attention.inputs", "dense.0"], trained=["head"])
    layers = {name.rpartition(".")[0] for name in trained(adapted)}
    inside = {f"blocks.{i}.{layer}" for i in range(4) for layer in ("attention.inputs", "dense.0")}
    assert layers == inside | {"head"}
    alone = models.lora(nn.Linear(4, 3), 1)
    assert trained(alone) == ["down", "up"]
    assert type(models.merged(alone)) is nn.Linear


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"rank": 0}, "rank: must be >= 1, got 0"),
        ({"rank": 1, "targets": ["haed"]}, "targets: no layer's name ends with 'haed'"),
        ({"rank": 1, "targets": "head"}, "targets: must be a list of names, got 'head'"),
        ({"rank": 1, "trained": ["tail"]}, "trained: no layer's name ends with 'tail'"),
    ],
)
def test_refusals(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        models.lora(reader(), **given)


def test_a_module_without_linear_layers_is_refused() -> None:
    with pytest.raises(ValueError, match=r"module: has no nn\.Linear"):
        models.lora(nn.Sequential(nn.Conv2d(1, 2, 3)), 1)


class Headed(nn.Module):
    """A head of several layers, one of which has a name that begins as its own."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
        self.header = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.header(x))
        return out


def test_layers_within_what_is_trained_whole_get_no_adapters() -> None:
    model = models.lora(Headed(), 2, trained=["head"])
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert trained == ["head.0.weight", "head.0.bias", "head.2.weight", "head.2.bias", "header.down", "header.up"]


def test_attention_with_widths_of_its_own_is_refused_by_name() -> None:
    module = nn.ModuleDict({"look": nn.MultiheadAttention(8, 2, kdim=4, vdim=4), "head": nn.Linear(8, 2)})
    with pytest.raises(ValueError, match=r"targets: layer 'look' has keys or values of a width of their own"):
        models.lora(module, 2)
    assert models.lora(module, 2, targets=["head"])["head"].down.requires_grad  # type: ignore[index]


def test_a_run_moves_adapters_and_nothing_else() -> None:
    base = reader()
    adapted = models.lora(base, rank=2)
    before = {name: tensor.clone() for name, tensor in constants(adapted).items()}
    sim = simulation(adapted)
    start = sim.params.clone()
    sim.run(3, evaluate_every=0, progress=False)
    assert not torch.equal(sim.params, start)
    after = constants(sim.model)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], tensor) for name, tensor in after.items())
    named = dict(base.named_parameters())
    assert torch.equal(after["head.base.weight"], named["head.weight"])
    assert torch.equal(after["words.weight"], named["words.weight"])


def test_native_does_what_eager_does_for_any_number_of_threads() -> None:
    torch.manual_seed(0)
    adapted = filled(models.lora(reader(), 2))
    runs = []
    for executor, threads in (("native", 1), ("native", 2), ("native", 7), ("eager", 1)):
        sim = simulation(adapted, executor=executor, threads=threads, client=ff.clients.SGD(lr=0.3))
        sim.run(2, evaluate_every=0, progress=False)
        runs.append(sim.params)
    assert torch.equal(runs[0], runs[1])
    assert torch.equal(runs[0], runs[2])
    torch.testing.assert_close(runs[0], runs[3], rtol=1e-3, atol=1e-5)


def test_a_run_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    adapted = models.lora(reader(), rank=2)
    whole = simulation(adapted)
    whole.run(4, evaluate_every=0, progress=False)
    half = simulation(adapted)
    half.run(2, evaluate_every=0, progress=False)
    path = half.save(tmp_path)
    torch.manual_seed(99)
    other = models.lora(Reader(), rank=2)  # the frozen weights of the checkpoint take the place of these
    resumed = ff.Simulation.resume(path, model=other, fed=texts())
    resumed.run(2, evaluate_every=0, progress=False)
    assert torch.equal(resumed.params, whole.params)
    assert torch.equal(constants(resumed.model)["head.base.weight"], constants(whole.model)["head.base.weight"])


def test_a_recipe_makes_it_again() -> None:
    adapted = models.lora(models.mlp(4, 3, 2), rank=1, targets=["1"])
    again = adapted.recipe.make()
    assert trained(again) == ["1.down", "1.up"]
