"""The papers' models: parameter counts, shapes, and an LSTM that is torch's with one bias."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastfed as ff
from fastfed import models


def pixels(*shape: int) -> Tensor:
    return torch.rand(3, *shape)


def tokens(length: int, vocabulary: int) -> Tensor:
    return torch.randint(vocabulary, (3, length))


# name: (model, inputs of three examples, shape of one output, parameters as the papers' tables and code have them)
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], tuple[int, ...], int]] = {
    "softmax_regression": (lambda: models.softmax_regression(784, 10), lambda: pixels(1, 28, 28), (10,), 7_850),
    "mlp": (lambda: models.mlp(784, 200, 200, 10), lambda: pixels(784), (10,), 199_210),
    "emnist_cnn": (models.emnist_cnn, lambda: pixels(1, 28, 28), (62,), 1_206_590),
    "emnist_cnn plain": (lambda: models.emnist_cnn(10, False, True), lambda: pixels(1, 28, 28), (10,), 1_199_882),
    "emnist_autoencoder": (models.emnist_autoencoder, lambda: pixels(1, 28, 28), (784,), 2_837_314),
    "shakespeare_lstm": (models.shakespeare_lstm, lambda: tokens(80, 90), (80, 90), 820_522),
    "stack_overflow_nwp": (models.stack_overflow_nwp, lambda: tokens(20, 10004), (20, 10004), 4_050_748),
    "stack_overflow_lr": (models.stack_overflow_lr, lambda: pixels(10000), (500,), 5_000_500),
    "fmnist_cnn": (models.fmnist_cnn, lambda: pixels(1, 28, 28), (10,), 21_840),
    "lenet": (models.lenet, lambda: pixels(1, 28, 28), (10,), 44_426),
    "lenet, coloured": (lambda: models.lenet(channels=3, size=32), lambda: pixels(3, 32, 32), (10,), 62_006),
    "lenet, cut out": (lambda: models.lenet(channels=3, size=24), lambda: pixels(3, 24, 24), (10,), 31_286),
    "resnet18_gn": (models.resnet18_gn, lambda: pixels(3, 24, 24), (10,), 11_173_962),
    "resnet18_gn, 100 classes": (lambda: models.resnet18_gn(100), lambda: pixels(3, 24, 24), (100,), 11_220_132),
    "resnet50_gn": (models.resnet50_gn, lambda: pixels(3, 24, 24), (100,), 23_705_252),
    "resnet18_bn": (models.resnet18_bn, lambda: pixels(3, 24, 24), (10,), 11_173_962),
    "resnet50_bn": (models.resnet50_bn, lambda: pixels(3, 24, 24), (100,), 23_705_252),
    "mcmahan_cnn": (models.mcmahan_cnn, lambda: pixels(1, 28, 28), (10,), 1_663_370),
    "vit_s16": (models.vit_s16, lambda: pixels(3, 224, 224), (1000,), 22_050_664),
    "vit_s16, small pictures": (lambda: models.vit_s16(10, 32), lambda: pixels(3, 32, 32), (10,), 21_595_786),
    "small_vit": (models.small_vit, lambda: pixels(1, 28, 28), (10,), 455_050),
    "small_vit, coloured": (lambda: models.small_vit(10, 32, 3), lambda: pixels(3, 32, 32), (10,), 459_562),
    "text_transformer": (models.text_transformer, lambda: tokens(64, 10004), (4,), 1_686_020),
}


@pytest.mark.parametrize("name", MODELS)
def test_parameters_and_shapes(name: str) -> None:
    make, inputs, shape, parameters = MODELS[name]
    model = make().eval()
    assert sum(p.numel() for p in model.parameters()) == parameters
    with torch.no_grad():
        outputs = model(inputs())
    assert outputs.shape == (3, *shape)
    assert outputs.isfinite().all()


def test_a_picture_too_small_for_lenet_is_refused() -> None:
    assert models.lenet(size=16)(pixels(1, 16, 16)).shape == (3, 10)
    with pytest.raises(ValueError, match=r"size: .* less than 16 pixels, got 15"):
        models.lenet(size=15)


def dropouts(model: nn.Module) -> list[float]:
    return [layer.p for layer in model.modules() if isinstance(layer, nn.Dropout)]


def test_dropout_as_in_the_papers() -> None:
    assert dropouts(models.emnist_cnn()) == [0.25, 0.5]
    assert dropouts(models.fmnist_cnn()) == [0.5, 0.5]
    assert dropouts(models.emnist_cnn(dropout=False)) == dropouts(models.fmnist_cnn(dropout=False)) == [0, 0]


def literal_emnist_cnn(weights: dict[str, Tensor], x: Tensor, relus: set[str]) -> Tensor:
    """AFO Table 4 row by row, dropout off, with a ReLU after the layers of these names."""

    def after(name: str, value: Tensor) -> Tensor:
        return value.clamp(min=0) if name in relus else value

    def convolved(x: Tensor, layer: str) -> Tensor:
        windows = x.unfold(2, 3, 1).unfold(3, 3, 1)  # (n, channels, height, width, 3, 3)
        products = torch.einsum("nchwij,ocij->nohw", windows, weights[f"{layer}.weight"])
        return products + weights[f"{layer}.bias"][:, None, None]

    x = after("first", convolved(x, "0"))
    x = after("second", convolved(x, "2"))
    x = x.unfold(2, 2, 2).unfold(3, 2, 2).amax((4, 5)).reshape(len(x), 9216)
    x = after("dense", x @ weights["7.weight"].T + weights["7.bias"])
    return x @ weights["10.weight"].T + weights["10.bias"]


ACTIVATIONS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "paper": ({}, {"second"}),
    "code": ({"activations": "code"}, {"first", "second", "dense"}),
    "first": ({"first_relu": True}, {"first", "second"}),
    "dense": ({"dense_relu": True}, {"second", "dense"}),
    "code, but neither": ({"activations": "code", "first_relu": False, "dense_relu": False}, {"second"}),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_of_emnist_cnn(name: str) -> None:
    given, relus = ACTIVATIONS[name]
    torch.manual_seed(0)
    model = models.emnist_cnn(**given).double().eval()
    x = torch.randn(3, 1, 28, 28, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(model(x), literal_emnist_cnn(dict(model.named_parameters()), x, relus))
    assert sum(p.numel() for p in model.parameters()) == 1_206_590


def test_emnist_cnn_refuses_other_activations() -> None:
    with pytest.raises(ValueError, match="activations: must be 'paper' or 'code', got 'relu'"):
        models.emnist_cnn(activations="relu")  # type: ignore[arg-type]


def test_group_norm_groups_and_strides() -> None:
    model = models.resnet18_gn(groups=4)
    assert {layer.num_groups for layer in model.modules() if isinstance(layer, nn.GroupNorm)} == {4}
    strides = [layer.stride[0] for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    assert strides.count(2) == 6  # in three stages, the first convolution and the shortcut


def test_batch_norm_has_the_place_of_group_norm() -> None:
    plain = [type(layer).__name__ for layer in models.resnet18_bn().modules()]
    assert plain == [
        type(layer).__name__.replace("GroupNorm", "BatchNorm2d") for layer in models.resnet18_gn().modules()
    ]
    assert sum(b.numel() for name, b in models.resnet50_bn().named_buffers() if "running" in name) == 53_120


def twin_of_block(block: models.TransformerBlock, width: int, heads: int, inner: int) -> nn.TransformerEncoderLayer:
    """torch's own, with the same weights."""
    twin = nn.TransformerEncoderLayer(
        width, heads, inner, 0.0, "gelu", layer_norm_eps=1e-6, batch_first=True, norm_first=True, dtype=torch.float64
    )
    pairs = {
        "norm1": block.first, "norm2": block.second, "linear1": block.dense[0], "linear2": block.dense[2],
        "self_attn.out_proj": block.attention.outputs,
    }  # fmt: skip
    for name, layer in pairs.items():
        twin.get_submodule(name).load_state_dict(layer.state_dict())
    twin.self_attn.in_proj_weight.data.copy_(block.attention.inputs.weight.data)
    twin.self_attn.in_proj_bias.data.copy_(block.attention.inputs.bias.data)
    return twin


def test_a_transformer_block_is_torchs() -> None:
    torch.manual_seed(0)
    block = models.TransformerBlock(12, 3, 20).double()
    for p in block.parameters():
        nn.init.normal_(p)
    x = torch.randn(4, 5, 12, dtype=torch.float64)
    hidden = torch.tensor([[False] * 5, [False, False, True, True, True], [False] * 4 + [True], [False] + [True] * 4])
    twin = twin_of_block(block, 12, 3, 20)
    torch.testing.assert_close(block(x), twin(x))
    torch.testing.assert_close(block(x, hidden)[~hidden], twin(x, src_key_padding_mask=hidden)[~hidden])


def test_padding_does_not_change_what_a_text_is_taken_for() -> None:
    torch.manual_seed(0)
    model = models.text_transformer(50, 9, 3, 8, 2, 2).eval()
    text = torch.tensor([[4, 7, 2, 0, 0, 0, 0, 0, 0]])
    torch.testing.assert_close(model(text), model(text[:, :4]))
    assert model(torch.zeros(2, 9, dtype=torch.int64)).isfinite().all()
    assert not torch.allclose(model(text), model(torch.tensor([[7, 4, 2, 0, 0, 0, 0, 0, 0]])))  # places matter


def test_a_vision_transformer_looks_at_patches_and_their_places() -> None:
    torch.manual_seed(0)
    model = models.vit_s16(3, 32).eval()
    picture = torch.rand(1, 3, 32, 32)
    with torch.no_grad():
        swapped = picture.roll(16, 3)  # the same patches, elsewhere
        assert not torch.allclose(model(picture), model(swapped), atol=1e-6)
        model.places.zero_()
        torch.testing.assert_close(model(picture), model(swapped), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="size: must be a multiple of the patch 16, got 30"):
        models.vit_s16(3, 30)
    with pytest.raises(ValueError, match="heads: must divide the channels, 8, got 3"):
        models.text_transformer(channels=8, heads=3)


def test_attention_runs_on_three_executors() -> None:
    g = torch.Generator().manual_seed(0)
    words, kinds = torch.randint(0, 30, (40, 6), generator=g), torch.randint(0, 3, (40,), generator=g)
    fed = ff.data.from_arrays(words, kinds, client=torch.arange(40) % 5)

    def run(executor: str) -> ff.Simulation:
        torch.manual_seed(1)
        model = models.text_transformer(30, 6, 3, 8, 1, 2)
        sim = ff.Simulation(model, fed, client=ff.clients.SGD(lr=0.1), cohort=4, batch_size=3, executor=executor)
        sim.run(2, evaluate_every=0, progress=False)
        return sim

    sims = {name: run(name) for name in ("eager", "batched", "auto")}
    for other in ("batched", "auto"):
        torch.testing.assert_close(sims["eager"].params, sims[other].params, rtol=1e-3, atol=1e-5)
    assert sims["auto"].executor.name == "native"


def torch_twin(lstm: models.LSTM) -> nn.LSTM:
    """nn.LSTM with the same weights and its second biases 0."""
    twin = nn.LSTM(lstm.input, lstm.hidden, lstm.layers, batch_first=True, dtype=torch.float64)
    for layer in range(lstm.layers):
        named = {"weight_ih": "weight_ih", "weight_hh": "weight_hh", "bias": "bias_ih"}
        for ours, theirs in named.items():
            getattr(twin, f"{theirs}_l{layer}").data.copy_(getattr(lstm, f"{ours}_l{layer}").data)
        getattr(twin, f"bias_hh_l{layer}").data.zero_()
    return twin


@pytest.mark.parametrize(("input", "hidden", "layers", "length"), [(3, 5, 1, 7), (4, 4, 2, 1), (1, 2, 3, 6)])
def test_lstm_is_torchs_with_one_bias(input: int, hidden: int, layers: int, length: int) -> None:
    torch.manual_seed(0)
    lstm = models.LSTM(input, hidden, layers).double()
    twin = torch_twin(lstm)
    x = torch.randn(2, length, input, dtype=torch.float64, requires_grad=True)
    ours, (theirs, _) = lstm(x), twin(x)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-14)
    ours.square().sum().backward()
    theirs.square().sum().backward()
    for layer in range(layers):
        torch.testing.assert_close(
            getattr(lstm, f"bias_l{layer}").grad, getattr(twin, f"bias_ih_l{layer}").grad, rtol=0, atol=1e-12
        )
        torch.testing.assert_close(
            getattr(lstm, f"weight_hh_l{layer}").grad, getattr(twin, f"weight_hh_l{layer}").grad, rtol=0, atol=1e-12
        )


def test_lstm_parameters_by_name() -> None:
    shapes = {name: tuple(p.shape) for name, p in models.LSTM(3, 5, layers=2).named_parameters()}
    assert shapes == {
        "weight_ih_l0": (20, 3), "weight_hh_l0": (20, 5), "bias_l0": (20,),
        "weight_ih_l1": (20, 5), "weight_hh_l1": (20, 5), "bias_l1": (20,),
    }  # fmt: skip
    assert all(p.abs().max() <= 5**-0.5 for p in models.LSTM(3, 5, layers=2).parameters())


def test_lstm_under_vmap() -> None:
    """The parameters of several clients at once, as the batched executor has them."""
    torch.manual_seed(0)
    clients = [models.LSTM(3, 4, layers=2).double() for _ in range(3)]
    stacked = {
        name: torch.stack([dict(client.named_parameters())[name].data for client in clients])
        for name, _ in clients[0].named_parameters()
    }
    x = torch.randn(3, 2, 5, 3, dtype=torch.float64)

    def run(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(clients[0], parameters, (x,))

    together = torch.func.vmap(run)(stacked, x)
    for i, client in enumerate(clients):
        torch.testing.assert_close(together[i], client(x[i]).detach(), rtol=0, atol=1e-14)


@pytest.mark.parametrize(("sizes", "name"), [((0, 1, 1), "input"), ((1, 0, 1), "hidden"), ((1, 1, 0), "layers")])
def test_lstm_refuses_empty_sizes(sizes: tuple[int, int, int], name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: must be >= 1, got 0"):
        models.LSTM(*sizes)


def test_mlp_wants_inputs_and_outputs() -> None:
    with pytest.raises(ValueError, match=r"^sizes: must name at least inputs and outputs, got \(3,\)"):
        models.mlp(3)


def test_residual_adds_the_shortcut() -> None:
    x = torch.randn(2, 3)
    block = models.Residual(nn.Linear(3, 3), nn.Linear(3, 3))
    torch.testing.assert_close(block(x), (block.body(x) + block.shortcut(x)).clamp(min=0))
