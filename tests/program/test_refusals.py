"""What the native engine cannot run is refused in one sentence that names the layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastfed import models
from fastfed.data.store import Inputs
from fastfed.program import Unsupported, trace

from .support import Block, Net, after_conv, conv, linear_then, of, parameter, picture, sequence, sparse, tokens, vector


@dataclass(frozen=True)
class Refusal:
    module: Callable[[], nn.Module]
    inputs: Callable[[], Inputs]
    says: tuple[str, ...]  # the beginning, then what must follow in the sentence
    loss: Any = "mse"


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) if x.sum() > 0 else x


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.linear(x)


def hooked(layer: nn.Module) -> nn.Module:
    layer.register_forward_hook(lambda module, args, output: 2 * output)
    return layer


def half() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6).half(), nn.Linear(6, 2))


def select_in_place(net: Any, x: Any) -> Any:
    y = net.lstm(x)
    last = y[:, -1]
    y.relu_()
    return last


def shared_layouts() -> nn.Module:
    net = nn.Sequential(nn.Linear(9, 9), nn.ReLU(), nn.Linear(9, 9))
    net[2].weight = net[0].weight
    return net


def unused_dropout(net: Any, x: Any) -> Any:
    y = net.l(x)
    net.drop(y)
    return y


def other_wiring(net: Any, x: Any) -> Any:
    y = net.l(x)
    z = y.relu()
    return z + (y if net.training else z)


def lstm(**options: Any) -> Callable[[], nn.Module]:
    return lambda: Net(lambda net, x: net.rnn(x)[0], rnn=nn.LSTM(4, 3, **{"batch_first": True, **options}))


def sequential(*layers: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*layers)


ENGINE = "FastFed's engine"
REFUSALS = {
    # layers
    "batch norm of a sequence": Refusal(
        sequential(nn.Linear(4, 3), nn.BatchNorm1d(5)), sequence, ("layer '1' (BatchNorm1d) is given sequence (5, 3)",)
    ),
    "batch norm of too few channels": Refusal(
        sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(2)),
        picture,
        ("layer '1' (BatchNorm2d) has 2 channels and is given (3, 7, 5)",),
    ),
    "batch norm without statistics": Refusal(
        sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3, track_running_stats=False)),
        picture,
        ("layer '1' (BatchNorm2d) keeps no running statistics", "use nn.GroupNorm", ENGINE),
    ),
    "batch norm that counts batches": Refusal(
        sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3, momentum=None)),
        picture,
        ("module: layer '1' is a batch norm with momentum=None",),
    ),
    "batch norm of volumes": Refusal(
        sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm3d(3)), picture, ("layer '1' (BatchNorm3d) is nothing that",)
    ),
    "unused batch norm": Refusal(
        lambda: Net(lambda net, x: (net.norm(x), net.l(x))[1], l=nn.Linear(6, 2), norm=nn.BatchNorm1d(6)),
        vector,
        ("batch norm 'norm' makes something that nobody uses", ENGINE),
    ),
    "softmax": Refusal(sequential(nn.Linear(6, 3), nn.Softmax(1)), vector, ("layer '1' (Softmax)", "take logits")),
    "channel dropout": Refusal(
        sequential(nn.Conv2d(2, 3, 1), nn.Dropout2d()), picture, ("layer '1' (Dropout2d)", "use nn.Dropout;")
    ),
    "gru": Refusal(
        lambda: Net(lambda net, x: net.rnn(x)[0], rnn=nn.GRU(4, 3, batch_first=True)),
        sequence,
        ("layer 'rnn' (GRU)", "use nn.LSTM"),
    ),
    "nested": Refusal(
        sequential(Block(lambda parts, x: parts["act"](x), act=nn.Sequential(nn.Linear(6, 6), nn.LeakyReLU()))),
        vector,
        ("layer '0.parts.act.1' (LeakyReLU)", ENGINE),
    ),
    # options of layers
    "conv groups": Refusal(
        sequential(nn.Conv2d(2, 4, 3, groups=2)), picture, ("layer '0' (Conv2d) has groups=2", ENGINE)
    ),
    "conv dilation": Refusal(
        sequential(nn.Conv2d(2, 4, 3, dilation=2)), picture, ("layer '0' (Conv2d) has dilation=(2, 2)", ENGINE)
    ),
    "conv padding mode": Refusal(
        sequential(nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect")),
        picture,
        ("layer '0' (Conv2d)", "padding_mode='zeros'", ENGINE),
    ),
    "conv same, even": Refusal(
        sequential(nn.Conv2d(2, 4, (3, 4), padding="same")),
        picture,
        ("layer '0' (Conv2d) has padding='same' with an even kernel (3, 4)",),
    ),
    "max pool ceil_mode": Refusal(
        of(lambda: nn.MaxPool2d(2, ceil_mode=True)), picture, ("layer '1' (MaxPool2d) has ceil_mode=True", ENGINE)
    ),
    "max pool dilation": Refusal(
        of(lambda: nn.MaxPool2d(2, dilation=2)), picture, ("layer '1' (MaxPool2d) has dilation=2", ENGINE)
    ),
    "max pool indices": Refusal(
        of(lambda: nn.MaxPool2d(2, return_indices=True)), picture, ("layer '1' (MaxPool2d)", "leave out return_indices")
    ),
    "adaptive max pool indices": Refusal(
        of(lambda: nn.AdaptiveMaxPool2d(2, return_indices=True)),
        picture,
        ("layer '1' (AdaptiveMaxPool2d)", "leave out return_indices"),
    ),
    "avg pool ceil_mode": Refusal(
        of(lambda: nn.AvgPool2d(2, ceil_mode=True)), picture, ("layer '1' (AvgPool2d) has ceil_mode=True", ENGINE)
    ),
    "avg pool divisor": Refusal(
        of(lambda: nn.AvgPool2d(2, divisor_override=3)),
        picture,
        ("layer '1' (AvgPool2d) has divisor_override=3", ENGINE),
    ),
    "group norm on vectors": Refusal(
        sequential(nn.Linear(6, 4), nn.GroupNorm(2, 4)), vector, ("layer '1' (GroupNorm) is given vector (4,)", ENGINE)
    ),
    "layer norm of pictures": Refusal(
        sequential(nn.Conv2d(2, 3, 1), nn.LayerNorm(5)),
        picture,
        ("layer '1' (LayerNorm) is given image (3, 7, 5)", ENGINE),
    ),
    "layer norm of two axes": Refusal(
        sequential(nn.Linear(4, 4), nn.LayerNorm((5, 4))),
        sequence,
        ("layer '1' (LayerNorm) has normalized_shape=(5, 4)",),
    ),
    "embedding max_norm": Refusal(
        sequential(nn.Embedding(11, 3, max_norm=1.0)), tokens, ("layer '0' (Embedding) has max_norm=1.0", ENGINE)
    ),
    "embedding scaled": Refusal(
        sequential(nn.Embedding(11, 3, scale_grad_by_freq=True)),
        tokens,
        ("layer '0' (Embedding) has scale_grad_by_freq=True", ENGINE),
    ),
    "embedding sparse": Refusal(
        sequential(nn.Embedding(11, 3, sparse=True)), tokens, ("layer '0' (Embedding) has sparse=True", ENGINE)
    ),
    "embedding of numbers": Refusal(
        sequential(nn.Embedding(11, 3)), vector, ("layer '0' (Embedding) is given vector (6,)", "tokens")
    ),
    "lstm time first": Refusal(lstm(batch_first=False), sequence, ("layer 'rnn' (LSTM) has batch_first=False", ENGINE)),
    "lstm both ways": Refusal(
        lstm(bidirectional=True), sequence, ("layer 'rnn' (LSTM) has bidirectional=True", ENGINE)
    ),
    "lstm projected": Refusal(lstm(proj_size=2), sequence, ("layer 'rnn' (LSTM) has proj_size=2", ENGINE)),
    "lstm dropout": Refusal(
        lstm(num_layers=2, dropout=0.1), sequence, ("layer 'rnn' (LSTM) has dropout=0.1 between its layers", ENGINE)
    ),
    "lstm state given": Refusal(
        lambda: Net(
            lambda net, x: net.rnn(x, (net.h, net.h))[0], rnn=nn.LSTM(4, 3, batch_first=True), h=parameter(1, 3, 3)
        ),
        sequence,
        ("layer 'rnn' (LSTM) has a given initial state", ENGINE),
    ),
    "lstm state used": Refusal(
        lambda: Net(
            lambda net, x: net.out(net.rnn(x)[1][0][-1]), rnn=nn.LSTM(4, 3, batch_first=True), out=nn.Linear(3, 2)
        ),
        sequence,
        ("layer 'out' (Linear) uses the final state of an LSTM", "take x[:, -1]"),
    ),
    "lstm width": Refusal(
        sequential(models.LSTM(3, 2)), sequence, ("layer '0' (LSTM) takes 3 features, but is given 4",)
    ),
    "lstm hooked": Refusal(
        lambda: nn.Sequential(hooked(models.LSTM(4, 2))), sequence, ("layer '0' (LSTM) has forward hooks",)
    ),
    "attention alone": Refusal(
        lambda: nn.TransformerEncoderLayer(4, 2), sequence, ("module 'TransformerEncoderLayer'", ENGINE)
    ),
    "torch's lstm alone": Refusal(
        lambda: nn.LSTM(4, 3, batch_first=True), sequence, ("module 'LSTM' returns a tuple", ENGINE)
    ),
    "linear width": Refusal(
        sequential(nn.Linear(5, 3)), vector, ("layer '0' (Linear) does not fit what it is given: ",)
    ),
    "conv channels": Refusal(sequential(nn.Conv2d(3, 3, 1)), picture, ("layer '0' (Conv2d) does not fit",)),
    "conv of a sequence": Refusal(
        sequential(nn.Conv2d(1, 3, 1)), sequence, ("layer '0' (Conv2d) is given sequence (5, 4)", ENGINE)
    ),
    "linear on a picture": Refusal(
        sequential(nn.Linear(5, 3)), picture, ("layer '0' (Linear) is given image (2, 7, 5)", ENGINE)
    ),
    # functions
    "unknown function": Refusal(
        linear_then(lambda x: torch.cumsum(x, 1)), vector, ("operation 'cumsum' (cumsum)", ENGINE + " has: ")
    ),
    "unknown function in a block": Refusal(
        sequential(nn.Linear(6, 6), Block(lambda parts, x: F.elu(x))), vector, ("operation '1.elu' (elu)", ENGINE)
    ),
    "log_softmax": Refusal(
        linear_then(lambda x: F.log_softmax(x, 1)), vector, ("operation 'log_softmax' (log_softmax)", "take logits")
    ),
    "unknown method": Refusal(linear_then(lambda x: x.exp()), vector, ("operation 'exp' (exp)", ENGINE)),
    "matmul": Refusal(
        lambda: Net(lambda net, x: x @ net.w, w=parameter(6, 2)), vector, ("operation 'matmul' (matmul)", ENGINE)
    ),
    "unknown arguments": Refusal(
        linear_then(lambda x: torch.add(x, x, out=x)), vector, ("operation 'add' (add) is called in a way", "'out'")
    ),
    "scaled sum": Refusal(
        linear_then(lambda x: torch.add(x, x, alpha=2)), vector, ("operation 'add' (add) has alpha=2", ENGINE)
    ),
    "sum with a number": Refusal(linear_then(lambda x: x + 1), vector, ("operation 'add' (add) is given 1", ENGINE)),
    "sum with a parameter of another shape": Refusal(
        lambda: Net(lambda net, x: x + net.w, w=parameter(5, 1)),
        sequence,
        ("operation 'add' (add) adds parameter 'w', shaped (5, 1), to (5, 4)", ENGINE),
    ),
    "sum of two shapes": Refusal(
        lambda: Net(lambda net, x: x + net.a(x), a=nn.Linear(6, 1)),
        vector,
        ("operation 'add' (add) adds shapes (6,) and (1,)", ENGINE),
    ),
    "another mean": Refusal(
        after_conv(lambda x: x.mean(1)), picture, ("operation 'mean' (mean) takes another mean", ENGINE)
    ),
    "half a mean": Refusal(
        after_conv(lambda x: x.mean(dim=2)), picture, ("operation 'mean' (mean) takes another mean", ENGINE)
    ),
    "examples mixed": Refusal(
        lambda: Net(lambda net, x: net.linear(x.view(-1, 4)), linear=nn.Linear(4, 2)),
        sequence,
        ("operation 'view' (view) mixes the examples", ENGINE),
    ),
    "reshaped to a sequence": Refusal(
        lambda: Net(lambda net, x: net.linear(x.view(-1, 3, 2)), linear=nn.Linear(2, 2)),
        vector,
        ("layer 'linear' (Linear) is given (6,) reshaped to a sequence (3, 2) by 'view'", ENGINE),
    ),
    "seen as another type": Refusal(
        linear_then(lambda x: x.view(torch.int32)),
        vector,
        ("operation 'view' (view) reads numbers as torch.int32", ENGINE),
    ),
    "squeezed everywhere": Refusal(
        after_conv(lambda x: x.squeeze()), picture, ("operation 'squeeze' (squeeze) squeezes without a dim",)
    ),
    "permuted": Refusal(
        after_conv(lambda x: x.permute(0, 2, 3, 1)),
        picture,
        ("module 'Net' is given something seen as (7, 5, 4) per example by 'permute'", ENGINE),
    ),
    "tokens reshaped": Refusal(
        lambda: Net(lambda net, x: net.e(x.unsqueeze(-1)), e=nn.Embedding(11, 3)),
        tokens,
        ("operation 'unsqueeze' (unsqueeze) reshapes (5,) to (5, 1)", ENGINE),
    ),
    "tokens as numbers": Refusal(
        lambda: Net(lambda net, x: net.linear(x.float()), linear=nn.Linear(5, 2)),
        tokens,
        ("operation 'float_1' (float) is given tokens (5,)", ENGINE),
    ),
    "a number": Refusal(
        lambda: Net(lambda net, x: net.l(x)[:, 1, 0], l=nn.Linear(4, 2)),
        sequence,
        ("module 'Net' is given something seen as () per example by 'getitem'", ENGINE),
    ),
    "an example": Refusal(
        linear_then(lambda x: x[0]), vector, ("operation 'getitem' (getitem) picks some of a batch's examples", ENGINE)
    ),
    "some examples": Refusal(
        linear_then(lambda x: x[:7] + x[1:8]), vector, ("operation 'getitem' (getitem) picks some of a batch's", ENGINE)
    ),
    "what a mask picks": Refusal(
        linear_then(lambda x: x[:, x]), vector, ("operation 'getitem' (getitem) picks", "numbers and slices", ENGINE)
    ),
    "several channels": Refusal(
        after_conv(lambda x: x[:, :2]), picture, ("module 'Net' is given something seen as (2, 7, 5)", ENGINE)
    ),
    "a step too far": Refusal(
        lambda: Net(lambda net, x: net.l(x)[:, 5], l=nn.Linear(4, 2)),
        sequence,
        ("operation 'getitem' (getitem) does not fit",),
    ),
    "an attribute": Refusal(
        linear_then(lambda x: x.relu() if x.device is None else x.T), vector, ("operation 'getattr_", ENGINE)
    ),
    "sparse activation": Refusal(
        sequential(nn.ReLU(), nn.Linear(9, 2)), sparse, ("layer '0' (ReLU) is given sparse (9,)", ENGINE)
    ),
    "in place, with a part elsewhere": Refusal(
        lambda: Net(select_in_place, lstm=models.LSTM(4, 3)),
        sequence,
        ("operation 'relu_' (relu_) changes a tensor in place",),
    ),
    # tensors
    "constant": Refusal(
        sequential(nn.Linear(6, 6), Block(lambda parts, x: x + torch.ones(6))),
        vector,
        ("layer '1' (Block) computes with a tensor", ENGINE),
    ),
    "computed weight": Refusal(
        lambda: Net(lambda net, x: F.linear(x, 2 * net.w), w=parameter(2, 6)),
        vector,
        ("operation 'mul' (mul)", ENGINE),
    ),
    "parametrised": Refusal(
        lambda: nn.Sequential(torch.nn.utils.parametrizations.weight_norm(nn.Linear(6, 2))),
        vector,
        ("layer '0' (ParametrizedLinear)", ENGINE),
    ),
    "created": Refusal(
        linear_then(lambda x: x + torch.zeros_like(x)), vector, ("operation 'zeros_like' (zeros_like)", ENGINE)
    ),
    "computed in the forward pass": Refusal(
        lambda: Net(lambda net, x: F.linear(x, net.l(x)), l=nn.Linear(6, 6)),
        vector,
        ("operation 'linear_1' (linear)", "as a weight", ENGINE),
    ),
    "parameter reshaped": Refusal(
        lambda: Net(lambda net, x: F.linear(x, net.w.view(2, 6)), w=parameter(12)),
        vector,
        ("operation 'linear' (linear) is given a part of parameter 'w' as a weight", ENGINE),
    ),
    "weight with one axis": Refusal(
        lambda: Net(lambda net, x: F.linear(x, net.w), w=parameter(6)),
        vector,
        ("operation 'linear' (linear) is given parameter 'w' of shape (6,), where a weight has 2 axes",),
    ),
    "half precision": Refusal(half, vector, ("parameter '0.weight' is torch.float16", ENGINE)),
    "nothing to train": Refusal(lambda: nn.ReLU(), vector, ("module: has no trainable parameter",)),
    "sparse and dense shared": Refusal(
        shared_layouts, sparse, ("layer '2' (Linear) shares parameter '0.weight'", ENGINE)
    ),
    # forward passes
    "branching": Refusal(Branching, vector, ("module 'Branching' cannot be recorded by torch.fx", ENGINE)),
    "branching inside": Refusal(
        lambda: nn.Sequential(nn.Linear(6, 6), Branching()),
        vector,
        ("layer '1' (Branching) cannot be recorded by torch.fx", ENGINE),
    ),
    "two inputs": Refusal(TwoInputs, vector, ("module 'TwoInputs' wants 'mask' beside its input", ENGINE)),
    "two outputs": Refusal(linear_then(lambda x: (x, x)), vector, ("module 'Net' returns a tuple", ENGINE)),
    "hooked": Refusal(lambda: hooked(nn.Linear(6, 6)), vector, ("module 'Linear' has forward hooks",)),
    "dropout in evaluation": Refusal(
        linear_then(F.dropout), vector, ("module 'Net' does something else in training", "training=self.training")
    ),
    "another evaluation": Refusal(
        lambda: Net(lambda net, x: net.l(x) if net.training else net.l(x).relu(), l=nn.Linear(6, 2)),
        vector,
        ("module 'Net' does something else in training", ENGINE),
    ),
    "in training, other wires": Refusal(
        lambda: Net(other_wiring, l=nn.Linear(6, 2)), vector, ("module 'Net' does something else in training", ENGINE)
    ),
    "unused dropout": Refusal(
        lambda: Net(unused_dropout, l=nn.Linear(6, 2), drop=nn.Dropout(0.1)),
        vector,
        ("dropout 'drop' makes something that nobody uses", ENGINE),
    ),
    "in training, a value of another layer": Refusal(
        lambda: Net(
            lambda net, x: net.a(x) + (net.a(x) if net.training else net.b(x)), a=nn.Linear(6, 2), b=nn.Linear(6, 2)
        ),
        vector,
        ("module 'Net' does something else in training", ENGINE),
    ),
    # losses and inputs
    "cross entropy of pictures": Refusal(
        conv(3, 3), picture, ("loss 'cross_entropy' is given image (3, 5, 3)", ENGINE), "cross_entropy"
    ),
    "tags of sequences": Refusal(
        lambda: nn.Linear(4, 3),
        sequence,
        ("loss 'binary_cross_entropy' is given sequence (5, 3)", ENGINE),
        "binary_cross_entropy",
    ),
    "loss of tokens": Refusal(lambda: Net(lambda net, x: x, l=nn.Linear(1, 1)), tokens, ("loss 'mse' is tokens (5,)",)),
    "the input itself": Refusal(
        lambda: Net(lambda net, x: x.view(-1, 6), l=nn.Linear(1, 1)),
        vector,
        ("loss 'cross_entropy' is given the input itself",),
        "cross_entropy",
    ),
    "own loss": Refusal(lambda: nn.Linear(6, 3), vector, ("loss 'l1_loss' is a function", ENGINE), F.l1_loss),
    "volumes": Refusal(
        lambda: nn.Linear(6, 3),
        lambda: torch.zeros(2, 3, 4, 5, 6),
        ("inputs: torch.float32 of shape (3, 4, 5, 6)", ENGINE),
    ),
    "tables of tokens": Refusal(
        lambda: nn.Embedding(6, 3),
        lambda: torch.zeros(2, 3, 4, dtype=torch.int64),
        ("inputs: torch.int64 of shape (3, 4)", ENGINE),
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str) -> None:
    refusal = REFUSALS[name]
    module = refusal.module()
    attributes = set(vars(module))
    with pytest.raises(Unsupported) as error:
        trace(module, refusal.inputs(), refusal.loss)
    sentence = str(error.value)
    beginning, *more = refusal.says
    assert sentence.startswith(beginning), sentence
    assert all(part in sentence for part in more), sentence
    assert "\n" not in sentence
    assert set(vars(module)) == attributes


def test_unknown_loss() -> None:
    with pytest.raises(ValueError, match=r"^loss: must be one of cross_entropy") as error:
        trace(nn.Linear(6, 3), vector(), "hinge")  # type: ignore[arg-type]
    assert not isinstance(error.value, Unsupported)
