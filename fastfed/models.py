"""The models of the papers: plain torch layers that torch.fx can trace, so every executor runs them, but for attention
and batch norm, which "native" has and "device" has not.

Papers, as in the documentation: AFO = "Adaptive Federated Optimization", DSGD = "Adaptive Federated Learning with
Auto-Tuned Clients" (Delta-SGD), CC = "Client-Centric Federated Adaptive Optimization". Shapes leave out the batch.
All models give logits: the losses want no softmax.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from .lora import lora, merged  # noqa: F401 (they belong to the models that users ask for)
from .saved.recipe import remembered


class LSTM(nn.Module):
    """Long short-term memory, (n, T, input) -> (n, T, hidden) from a zero state, one bias per gate.

    As ``nn.LSTM(batch_first=True)``, gates in its order i, f, g, o, but with a single bias (the papers' parameter
    counts have one) and only the outputs returned. Plain matrix products, so that ``torch.func.vmap`` can run it.
    """

    def __init__(self, input: int, hidden: int, layers: int = 1) -> None:
        super().__init__()
        for name, size in (("input", input), ("hidden", hidden), ("layers", layers)):
            if size < 1:
                raise ValueError(f"{name}: must be >= 1, got {size}")
        self.input, self.hidden, self.layers = input, hidden, layers
        for layer in range(layers):
            channels = input if layer == 0 else hidden
            self.register_parameter(f"weight_ih_l{layer}", nn.Parameter(torch.empty(4 * hidden, channels)))
            self.register_parameter(f"weight_hh_l{layer}", nn.Parameter(torch.empty(4 * hidden, hidden)))
            self.register_parameter(f"bias_l{layer}", nn.Parameter(torch.empty(4 * hidden)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform in +-1/sqrt(hidden), as in torch."""
        bound = 1 / math.sqrt(self.hidden)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def extra_repr(self) -> str:
        return f"{self.input}, {self.hidden}, layers={self.layers}"

    def forward(self, x: Tensor) -> Tensor:
        for layer in range(self.layers):
            weight_ih, weight_hh, bias = (getattr(self, f"{p}_l{layer}") for p in ("weight_ih", "weight_hh", "bias"))
            x = _recur(F.linear(x, weight_ih, bias), weight_hh)
        return x


def _recur(driven: Tensor, weight: Tensor) -> Tensor:
    """One layer over time: `driven` (n, T, 4H) is what the inputs and the bias give to the gates."""
    hidden = cell = driven.new_zeros(driven.shape[0], weight.shape[1])
    outputs = []
    for now in driven.unbind(1):
        i, f, g, o = (now + hidden @ weight.t()).chunk(4, dim=-1)
        cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
        hidden = torch.sigmoid(o) * torch.tanh(cell)
        outputs.append(hidden)
    return torch.stack(outputs, dim=1)


@remembered
def softmax_regression(inputs: int = 784, classes: int = 10) -> nn.Sequential:
    """Multinomial logistic regression: any shape of `inputs` numbers -> (classes,)."""
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, classes))


@remembered
def mlp(*sizes: int) -> nn.Sequential:
    """Dense layers with ReLU between them: any shape of sizes[0] numbers -> (sizes[-1],).

    ``mlp(784, 200, 200, 10)`` is the "2NN" of the FedAvg paper.
    """
    if len(sizes) < 2:
        raise ValueError(f"sizes: must name at least inputs and outputs, got {sizes}")
    layers = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *layers[:-1])


@remembered
def emnist_cnn(
    classes: int = 62,
    dropout: bool = True,
    first_relu: bool | None = None,
    activations: Literal["paper", "code"] = "paper",
    dense_relu: bool | None = None,
) -> nn.Sequential:
    """AFO Table 4, character recognition: (1, 28, 28) -> (classes,); 1,206,590 parameters.

    The table has a ReLU after the second convolution and nowhere else. The authors' code, from which the published
    figures come, has one after the first convolution and after the dense layer of 128, too: `activations` "code".
    `first_relu` and `dense_relu` say it of one of these two layers alone (None: as `activations` has it).
    """
    if activations not in ("paper", "code"):
        raise ValueError(f"activations: must be 'paper' or 'code', got {activations!r}")

    def activation(asked: bool | None) -> nn.Module:
        return nn.ReLU() if (activations == "code" if asked is None else asked) else nn.Identity()

    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        activation(first_relu),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25 if dropout else 0.0),
        nn.Flatten(),
        nn.Linear(9216, 128),
        activation(dense_relu),
        nn.Dropout(0.5 if dropout else 0.0),
        nn.Linear(128, classes),
    )


@remembered
def emnist_autoencoder() -> nn.Sequential:
    """AFO Table 3: 784 numbers in any shape -> (784,), a sigmoid after every dense layer, for the loss "mse";
    2,837,314 parameters."""
    sizes = (784, 1000, 500, 250, 30, 250, 500, 1000, 784)
    layers = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.Sigmoid())]
    return nn.Sequential(nn.Flatten(), *layers)


@remembered
def shakespeare_lstm(vocabulary: int = 90) -> nn.Sequential:
    """AFO Table 5, next character: tokens (80,) -> (80, vocabulary); 820,522 parameters."""
    return nn.Sequential(nn.Embedding(vocabulary, 8), LSTM(8, 256, layers=2), nn.Linear(256, vocabulary))


@remembered
def stack_overflow_nwp(vocabulary: int = 10004) -> nn.Sequential:
    """AFO Table 6, next word: tokens (20,) -> (20, vocabulary); 4,050,748 parameters.

    `vocabulary` counts the words and the four tokens for padding, unknown words, begin and end.
    """
    return nn.Sequential(
        nn.Embedding(vocabulary, 96), LSTM(96, 670), nn.Linear(670, 96), nn.Linear(96, vocabulary)
    )  # fmt: skip


@remembered
def stack_overflow_lr(words: int = 10000, tags: int = 500) -> nn.Sequential:
    """AFO's tag prediction: a bag of words (words,), dense or sparse -> (tags,), for the loss "binary_cross_entropy";
    5,000,500 parameters."""
    return nn.Sequential(nn.Linear(words, tags))


@remembered
def fmnist_cnn(classes: int = 10, dropout: bool = True) -> nn.Sequential:
    """DSGD's shallow CNN for MNIST and Fashion-MNIST: (1, 28, 28) -> (classes,); 21,840 parameters.

    The paper says "two convolutional and two fully-connected layers, followed by dropout and ReLU"; the sizes (5x5x10,
    5x5x20, 50) are those of the authors' code. Its first dropout drops whole channels; here it drops single numbers.
    """
    return nn.Sequential(
        nn.Conv2d(1, 10, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(10, 20, 5),
        nn.Dropout(0.5 if dropout else 0.0),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(320, 50),
        nn.ReLU(),
        nn.Dropout(0.5 if dropout else 0.0),
        nn.Linear(50, classes),
    )


@remembered
def mcmahan_cnn(classes: int = 10) -> nn.Sequential:
    """The CNN of the FedAvg paper (McMahan et al.) for MNIST: (1, 28, 28) -> (classes,); 1,663,370 parameters.

    Two 5x5 convolutions that keep the size, each with ReLU and 2x2 pooling, then a dense layer of 512.
    """
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(3136, 512),
        nn.ReLU(),
        nn.Linear(512, classes),
    )


@remembered
def lenet(classes: int = 10, channels: int = 1, size: int = 28) -> nn.Sequential:
    """CC's CNN for Fashion-MNIST: (channels, size, size) -> (classes,); 44,426 parameters.

    With `channels` 3 and `size` 32, or that of a crop, it takes CIFAR's pictures. `size` >= 16.
    """
    if size < 16:
        raise ValueError(f"size: two convolutions and pools leave nothing of less than 16 pixels, got {size}")
    left = ((size - 4) // 2 - 4) // 2  # pixels of a side after both
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * left * left, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, classes),
    )


class Residual(nn.Module):
    """relu(body(x) + shortcut(x)): one unit of a residual network."""

    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


@remembered
def resnet18_gn(classes: int = 10, groups: int = 2) -> nn.Sequential:
    """AFO's ResNet-18 for CIFAR, group norm in place of batch norm: (3, H, W), 24x24 there -> (classes,).

    A 3x3 stem without pooling, as usual for small pictures; 11,173,962 parameters with 10 classes.
    """
    return _resnet((2, 2, 2, 2), classes, partial(nn.GroupNorm, groups), bottleneck=False)


@remembered
def resnet50_gn(classes: int = 100, groups: int = 2) -> nn.Sequential:
    """ResNet-50 for CIFAR-100, group norm in place of batch norm: (3, H, W) -> (classes,).

    A 3x3 stem without pooling; 23,705,252 parameters with 100 classes.
    """
    return _resnet((3, 4, 6, 3), classes, partial(nn.GroupNorm, groups), bottleneck=True)


@remembered
def resnet18_bn(classes: int = 10) -> nn.Sequential:
    """DSGD's ResNet-18 for CIFAR: `resnet18_gn` with batch norm, as first published: (3, H, W) -> (classes,).

    11,173,962 parameters with 10 classes, and 9,600 running statistics: see `batch_norm` of ``Simulation``.
    """
    return _resnet((2, 2, 2, 2), classes, nn.BatchNorm2d, bottleneck=False)


@remembered
def resnet50_bn(classes: int = 100) -> nn.Sequential:
    """DSGD's ResNet-50 for CIFAR-100, `resnet50_gn` with batch norm: (3, H, W) -> (classes,).

    23,705,252 parameters with 100 classes, and 53,120 running statistics.
    """
    return _resnet((3, 4, 6, 3), classes, nn.BatchNorm2d, bottleneck=True)


Norm = Callable[[int], nn.Module]  # of so many channels


def _resnet(depths: tuple[int, ...], classes: int, norm: Norm, bottleneck: bool) -> nn.Sequential:
    residuals: list[nn.Module] = []
    channels = 64
    for stage, depth in enumerate(depths):
        for number in range(depth):
            stride = 2 if stage > 0 and number == 0 else 1
            inner = 64 << stage
            out = 4 * inner if bottleneck else inner
            body = _bottleneck if bottleneck else _basic
            plain = stride == 1 and channels == out
            shortcut = nn.Identity() if plain else nn.Sequential(*_convolve(channels, out, 1, stride, norm))
            residuals.append(Residual(body(channels, inner, stride, norm), shortcut))
            channels = out
    stem = (*_convolve(3, 64, 3, 1, norm), nn.ReLU())
    return nn.Sequential(*stem, *residuals, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def _convolve(channels: int, out: int, kernel: int, stride: int, norm: Norm) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(channels, out, kernel, stride, kernel // 2, bias=False), norm(out)


def _basic(channels: int, inner: int, stride: int, norm: Norm) -> nn.Sequential:
    first, second = _convolve(channels, inner, 3, stride, norm), _convolve(inner, inner, 3, 1, norm)
    return nn.Sequential(*first, nn.ReLU(), *second)


def _bottleneck(channels: int, inner: int, stride: int, norm: Norm) -> nn.Sequential:
    first, second = _convolve(channels, inner, 1, 1, norm), _convolve(inner, inner, 3, stride, norm)
    return nn.Sequential(*first, nn.ReLU(), *second, nn.ReLU(), *_convolve(inner, 4 * inner, 1, 1, norm))


# ---- transformers ---------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """Multi-head self-attention, (n, T, channels) -> the same; positions of `hidden` (n, T) bool are not looked at.

    Plain products and a softmax, which executor "native" knows for what they are.
    """

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        if heads < 1 or channels % heads:
            raise ValueError(f"heads: must divide the channels, {channels}, got {heads}")
        self.heads = heads
        self.inputs, self.outputs = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)

    def forward(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:
        n, length, channels = x.shape
        query, key, value = self.inputs(x).view(n, length, 3, self.heads, channels // self.heads).permute(2, 0, 3, 1, 4)
        products = query @ key.transpose(-2, -1) / math.sqrt(channels // self.heads)
        if hidden is not None:
            products = products.masked_fill(hidden[:, None, None, :], float("-inf"))
        mixed = (products.softmax(-1) @ value).transpose(1, 2).reshape(n, length, channels)
        return self.outputs(mixed)


class TransformerBlock(nn.Module):
    """Attention and a dense layer of `inner` numbers with GELU, each behind a layer norm and added to its input."""

    def __init__(self, channels: int, heads: int, inner: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.first, self.attention = nn.LayerNorm(channels, eps), Attention(channels, heads)
        self.second = nn.LayerNorm(channels, eps)
        self.dense = nn.Sequential(nn.Linear(channels, inner), nn.GELU(), nn.Linear(inner, channels))

    def forward(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:
        x = x + self.attention(self.first(x), hidden)
        return x + self.dense(self.second(x))


class VisionTransformer(nn.Module):
    """Patches of a picture through transformer blocks; the class token's last state goes into the layer `head`."""

    def __init__(
        self, classes: int, size: int, patch: int, channels: int, depth: int, heads: int, colours: int = 3
    ) -> None:
        super().__init__()
        if patch < 1 or size % patch:
            raise ValueError(f"size: must be a multiple of the patch {patch}, got {size}")
        self.patches = nn.Conv2d(colours, channels, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, channels))
        self.places = nn.Parameter(torch.empty(1, (size // patch) ** 2 + 1, channels))
        nn.init.trunc_normal_(self.places, std=0.02)
        self.blocks = nn.ModuleList(TransformerBlock(channels, heads, 4 * channels) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(channels, 1e-6), nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


@remembered
def vit_s16(classes: int = 1000, size: int = 224) -> VisionTransformer:
    """ViT-S/16, FedAda2's backbone: (3, size, size) -> (classes,); 22,050,664 parameters for 1000 classes at 224.

    12 blocks of 384 channels with 6 heads over patches of 16x16.
    """
    return VisionTransformer(classes, size, patch=16, channels=384, depth=12, heads=6)


@remembered
def small_vit(classes: int = 10, size: int = 28, colours: int = 1) -> VisionTransformer:
    """A vision transformer for small pictures: (colours, size, size) -> (classes,); 455,050 parameters for grey ones of
    28x28.

    4 blocks of 96 channels with 3 heads over patches of 4x4.
    """
    return VisionTransformer(classes, size, patch=4, channels=96, depth=4, heads=3, colours=colours)


def hidden_tokens(tokens: Tensor, padding: int = 0) -> Tensor:
    """Which tokens (n, T) are `padding`, for attention not to look at; none of a text of padding alone: (n, T) bool."""
    hidden = tokens == padding
    return hidden & ~hidden.all(1, keepdim=True)


def mean_of_shown(x: Tensor, hidden: Tensor) -> Tensor:
    """The mean of a sequence (n, T, channels) over the steps that `hidden` (n, T) bool does not hide: (n, channels)."""
    shown = (~hidden)[..., None].to(x.dtype)
    return (x * shown).sum(1) / shown.sum(1)


fx.wrap("hidden_tokens")  # what FastFed's engine knows as a whole
fx.wrap("mean_of_shown")


class TextTransformer(nn.Module):
    """Tokens through transformer blocks; the mean over those that are no padding (token 0) goes into `head`."""

    def __init__(self, vocabulary: int, length: int, classes: int, channels: int, depth: int, heads: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, channels)
        self.places = nn.Parameter(torch.empty(1, length, channels))
        nn.init.normal_(self.places, std=0.02)
        self.blocks = nn.ModuleList(TransformerBlock(channels, heads, 4 * channels) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(channels), nn.Linear(channels, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = hidden_tokens(tokens)
        x = self.embedding(tokens) + self.places[:, : tokens.shape[1]]
        for block in self.blocks:
            x = block(x, hidden)
        return self.head(self.norm(mean_of_shown(x, hidden)))


@remembered
def text_transformer(
    vocabulary: int = 10004, length: int = 64, classes: int = 4, channels: int = 128, depth: int = 2, heads: int = 4
) -> TextTransformer:
    """A small transformer that tells the class of a text: tokens (length,), 0 pads -> (classes,).

    1,686,020 parameters as it stands, most of them the vocabulary's.
    """
    return TextTransformer(vocabulary, length, classes, channels, depth, heads)
