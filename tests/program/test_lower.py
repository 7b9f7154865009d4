"""From programs to networks: strides, fused curves and pools, aliases, the flow of gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastfed import models
from fastfed.kernels import covers
from fastfed.kernels.layers import (
    GELU_TANH,
    NONE,
    RELU,
    SIGMOID,
    TANH,
    Add,
    Convolution,
    Curve,
    Dense,
    Dropout,
    Network,
    Recurrence,
    Reorder,
    Shape,
    Windows,
    adaptive_axis,
    grid_axis,
)
from fastfed.norms import frozen
from fastfed.program import Program, Unsupported, trace
from fastfed.program.lower import lower, stride_of, with_contrast, with_pixel_columns


def network(module: nn.Module, inputs: Tensor, loss: str = "cross_entropy") -> Network:
    return lower(trace(module, inputs, loss))  # type: ignore[arg-type]


def layers(of: Network) -> list[str]:
    return [type(step.layer).__name__ for step in of.steps]


@pytest.mark.parametrize(("width", "stride"), [(1, 1), (3, 3), (4, 4), (10, 12), (784, 784)])
def test_rows_of_four_numbers_or_more_start_on_borders(width: int, stride: int) -> None:
    assert stride_of(width) == stride


def test_curves_are_fused_where_their_slope_is_read_off_the_output() -> None:
    module = nn.Sequential(
        nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 5), nn.GELU("tanh"), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)
    )
    made = network(module, torch.zeros(1, 6))
    assert layers(made) == ["Dense", "Dense", "Curve", "Dense", "Dense"]
    assert [getattr(step.layer, "curve", None) for step in made.steps] == [RELU, NONE, GELU_TANH, TANH, NONE]
    # The gradient of a fused curve's output passes through it where it is made; nobody asks for that of the input.
    assert [step.flows[0].gate for step in made.steps] == [NONE, RELU, NONE, NONE, TANH]
    assert [step.flows[0].wanted for step in made.steps] == [False, True, True, True, True]


def test_a_curve_that_makes_the_outputs_is_not_fused() -> None:
    """The loss gives the gradient behind it."""
    made = network(nn.Sequential(nn.Linear(6, 5), nn.Sigmoid()), torch.zeros(1, 6), "mse")
    assert layers(made) == ["Dense", "Curve"]
    assert made.steps[1].layer == Curve(SIGMOID, Shape(1, 5, 8))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        return self.head(x + torch.sigmoid(self.inner(x)))


def test_gradients_of_a_value_with_several_readers_add_up_before_its_curve() -> None:
    made = network(Residual(), torch.zeros(1, 6))
    assert layers(made) == ["Dense", "Dense", "Add", "Dense"]
    first, inner, add, head = made.steps
    assert (first.layer.curve, inner.layer.curve) == (RELU, SIGMOID)  # type: ignore[union-attr]
    # Going back the sum comes first: it stores, and the inner layer adds and, being the last, applies the curve.
    assert add.inputs == (first.output, inner.output)
    assert [(flow.add, flow.gate) for flow in add.flows] == [(False, NONE), (False, SIGMOID)]
    assert [(flow.add, flow.gate) for flow in inner.flows] == [(True, RELU)]
    assert isinstance(add.layer, Add)
    assert head.flows[0].gate == NONE


def test_a_contrast_adds_to_the_features_before_the_last_layer_does() -> None:
    made = network(Residual(), torch.zeros(1, 6))
    assert made.features == made.steps[-1].inputs[0]
    assert not made.steps[-1].flows[0].add
    changed = with_contrast(made)
    assert changed.steps[-1].flows[0].add
    assert changed.steps[:-1] == made.steps[:-1]


def test_nothing_before_the_first_parameter_wants_a_gradient() -> None:
    made = network(nn.Sequential(nn.Dropout(0.3), nn.Linear(6, 3)), torch.zeros(1, 6))
    assert isinstance(made.steps[0].layer, Dropout)
    assert [step.flows[0].wanted for step in made.steps] == [False, False]


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.layer(x)))


def test_a_layer_used_twice_adds_to_its_gradient_on_the_way_back() -> None:
    made = network(Twice(), torch.zeros(1, 4))
    assert [step.shared for step in made.steps] == [True, False]  # the second is met first


def test_the_papers_cnn_is_four_steps() -> None:
    program = with_pixel_columns(trace(models.emnist_cnn(dropout=False), torch.zeros(1, 1, 28, 28), "cross_entropy"))
    made = lower(program)
    assert layers(made) == ["Convolution", "Convolution", "Dense", "Dense"]
    first, second = made.steps[0].layer, made.steps[1].layer
    assert isinstance(first, Convolution)
    assert isinstance(second, Convolution)
    assert (first.pool, second.pool, second.curve, second.made, second.stored) == (
        False,
        True,
        RELU,
        (24, 24),
        (12, 12),
    )
    assert program.columns == {"7.weight": (64, 144)}


def test_without_pixel_columns_a_flattened_image_is_reordered() -> None:
    made = network(models.emnist_cnn(dropout=False), torch.zeros(1, 1, 28, 28))
    assert "Reorder" in layers(made)
    reorder = next(step.layer for step in made.steps if isinstance(step.layer, Reorder))
    assert reorder == Reorder(Shape(144, 64, 64), 9216, image=True, to_vector=True)


def test_one_channel_is_flat_already() -> None:
    assert layers(network(models.softmax_regression(), torch.zeros(1, 1, 28, 28))) == ["Dense"]
    traced = trace(models.softmax_regression(), torch.zeros(1, 1, 28, 28), "cross_entropy")
    program = with_pixel_columns(traced)
    assert layers(lower(program)) == ["Dense"]
    x = torch.zeros(program.packing.size)
    assert program.from_engine(x) is x  # no copy
    assert program.places is None


@pytest.mark.parametrize("shape", [(7,), (3, 7)])
def test_engine_vectors_come_back(shape: tuple[int, ...]) -> None:
    program: Program = with_pixel_columns(trace(models.emnist_cnn(), torch.zeros(1, 1, 28, 28), "cross_entropy"))
    x = torch.randn(*shape[:-1], program.packing.size, generator=torch.Generator().manual_seed(1))
    there = program.to_engine(x)
    assert not torch.equal(there, x)
    assert torch.equal(program.from_engine(there), x)


def test_places_say_where_engine_numbers_are_in_a_packed_vector() -> None:
    program = with_pixel_columns(trace(models.emnist_cnn(), torch.zeros(1, 1, 28, 28), "cross_entropy"))
    x = torch.randn(program.packing.size, generator=torch.Generator().manual_seed(1))
    places = program.places
    assert places is not None
    assert places.dtype is torch.int32
    assert torch.equal(x[places.long()], program.to_engine(x))
    assert torch.equal(places.long().sort().values, torch.arange(program.packing.size))  # each once
    plain = trace(models.mlp(6, 5, 4), torch.zeros(1, 6), "cross_entropy")
    assert with_pixel_columns(plain).places is None


def test_columns_follow_the_pixels() -> None:
    """The dense layer's product is the same: weights and features are in one order, whichever that is."""
    program = with_pixel_columns(trace(models.emnist_cnn(), torch.zeros(1, 1, 28, 28), "cross_entropy"))
    x = torch.randn(program.packing.size, generator=torch.Generator().manual_seed(1))
    image = torch.randn(64, 12, 12, generator=torch.Generator().manual_seed(2))
    weight = program.packing.views(x)["7.weight"]
    moved = program.engine_packing.views(program.to_engine(x))["7.weight"]
    by_pixels, by_channels = image.permute(1, 2, 0).flatten().double(), image.flatten().double()
    torch.testing.assert_close(moved.double() @ by_pixels, weight.double() @ by_channels)


def test_pools_that_overlap_are_layers_of_their_own() -> None:
    for pool in (nn.MaxPool2d(3, 2), nn.AvgPool2d(2), nn.MaxPool2d(2, padding=1)):
        module = nn.Sequential(nn.Conv2d(1, 3, 3), pool, nn.Flatten(), nn.LazyLinear(2))
        module(torch.zeros(1, 1, 9, 9))
        made = network(module, torch.zeros(1, 1, 9, 9))
        assert isinstance(made.steps[1].layer, Windows)


@pytest.mark.parametrize(
    ("axis", "function"),
    [
        (grid_axis(9, 4, 3, 2, 0, True), lambda x: F.avg_pool2d(x, (3, 1), (2, 1))),
        (grid_axis(9, 5, 3, 2, 1, True), lambda x: F.avg_pool2d(x, (3, 1), (2, 1), (1, 0))),
        (grid_axis(9, 5, 3, 2, 1, False), lambda x: F.avg_pool2d(x, (3, 1), (2, 1), (1, 0), count_include_pad=False)),
        (adaptive_axis(9, 4), lambda x: F.adaptive_avg_pool2d(x, (4, 1))),
    ],
)
def test_windows_are_torchs(axis: object, function: object) -> None:
    numbers = torch.randn(1, 1, 9, 1, generator=torch.Generator().manual_seed(3))
    windows = zip(axis.begin, axis.end, axis.counts, strict=True)  # type: ignore[attr-defined]
    means = torch.stack([numbers[0, 0, begin:end, 0].sum() / count for begin, end, count in windows])
    torch.testing.assert_close(means, function(numbers).flatten())  # type: ignore[operator]
    for pixel, (first, end) in enumerate(axis.seen_by()):  # type: ignore[attr-defined]
        sees = [o for o, (b, e) in enumerate(zip(axis.begin, axis.end, strict=True)) if b <= pixel < e]  # type: ignore
        assert list(range(first, end)) == sees


def test_places_know_their_axes_in_sm3s_cover() -> None:
    program = trace(models.emnist_cnn(), torch.zeros(1, 1, 28, 28), "cross_entropy")
    layout = covers.decode(program.engine_packing.cover())
    axes = [axis for matrix in layout.matrices for axis in (*matrix.row_axes, *matrix.col_axes)]
    dense = next(step.layer for step in lower(program).steps if isinstance(step.layer, Dense))
    place = dense.weight
    assert (place.rows, place.cols) == (128, 9216)
    assert [axes[i].size for i in range(place.row_first, place.row_end)] == [128]
    assert [axes[i].size for i in range(place.col_first, place.col_end)] == [9216]


def test_an_lstm_is_a_dense_layer_and_a_recurrence() -> None:
    made = network(models.shakespeare_lstm(), torch.zeros(1, 80, dtype=torch.int64))
    assert layers(made) == ["Embedding", "Recurrence", "Recurrence", "Dense"]
    first = made.steps[1].layer
    assert isinstance(first, Recurrence)
    assert (first.driven.outputs, first.driven.inputs, first.driven.rows, first.hidden, first.length) == (
        1024,
        8,
        80,
        256,
        80,
    )
    assert first.bias is None
    assert first.hidden_side.weight.offset == first.weight.offset


def test_a_device_engine_has_no_batch_norm() -> None:
    module = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    for given in (module, frozen(module)):
        with pytest.raises(Unsupported, match=r"^module: layer '1' is a batch norm.* 'device' .*nn.GroupNorm"):
            network(given, torch.zeros(1, 6))


def test_a_device_engine_has_no_attention_and_nothing_frozen() -> None:
    with pytest.raises(
        Unsupported, match=r"^module: layer 'transpose' needs pick, .* 'device' does not know; 'native', "
    ):
        network(models.small_vit(size=8), torch.zeros(1, 1, 8, 8))
    block = models.TransformerBlock(4, 2, 8)
    with pytest.raises(Unsupported, match=r"^module: layer 'attention\..*' needs attention, .* executor 'device'"):
        network(block, torch.zeros(1, 3, 4))
    module = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3))
    module[0].bias.requires_grad_(False)
    with pytest.raises(Unsupported, match=r"^module: layer '0' has a frozen parameter, which executor 'device'"):
        network(module, torch.zeros(1, 6))
