"""What a layer is to a device engine: plain descriptions, from which kernels are compiled and launched.

A *value* of the forward pass is stored per client as rows of numbers: `rows` per example, `channels` numbers each,
their starts `stride` apart; images have a row per pixel, with their channels side by side. Nothing here needs a device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

# Curves (activations) by number: kernels are compiled for one.
NONE, RELU, SIGMOID, TANH, SILU, GELU, GELU_TANH = range(7)
FROM_OUTPUT = (NONE, RELU, SIGMOID, TANH)  # their slope can be read off their output, so that they need no pass of
# their own: they are fused into the kernel that makes their input, and into those that make its gradient


class Shape(NamedTuple):
    """A value: `rows` per example of `channels` numbers, `stride` apart."""

    rows: int
    channels: int
    stride: int

    @property
    def numbers(self) -> int:
        """What one example takes."""
        return self.rows * self.stride


class Place(NamedTuple):
    """A parameter, as a matrix: `offset` in a client's vector, `rows` and `cols`; where SM3's axes of its rows and of
    its columns begin and end among those of all parameters (``covers.axis_spans``)."""

    offset: int
    rows: int = 0
    cols: int = 0
    row_first: int = 0
    row_end: int = 0
    col_first: int = 0
    col_end: int = 0


class Dense(NamedTuple):
    """A dense layer: its weight and bias (None: without), `outputs` x `inputs`; `rows` per example; the distance of
    rows in memory of its input and its output; the `curve` fused behind it."""

    weight: Place
    bias: Place | None
    outputs: int
    inputs: int
    rows: int
    in_stride: int
    out_stride: int
    curve: int = NONE


class Convolution(NamedTuple):
    """A convolution: channels, sizes of images and kernel, stride and padding (height, width each); the distance of
    pixels in memory; the `curve` fused behind it. Its weight is (height, width, inputs, outputs).

    `pool`: only the largest number of every 2 x 2 pixels leaves the kernel, with its place in them; odd pixels at the
    far edges have no part in it.
    """

    weight: Place
    bias: Place | None
    inputs: int
    outputs: int
    image: tuple[int, int]
    made: tuple[int, int]
    kernel: tuple[int, int]
    step: tuple[int, int]
    pad: tuple[int, int]
    in_stride: int
    out_stride: int
    curve: int = NONE
    pool: bool = False

    @property
    def taps(self) -> int:
        """Rows of the weight as a matrix."""
        return self.kernel[0] * self.kernel[1] * self.inputs

    @property
    def stored(self) -> tuple[int, int]:
        """The size of the images that are stored."""
        return (self.made[0] // 2, self.made[1] // 2) if self.pool else self.made


class Norm(NamedTuple):
    """A normalisation of units of `pixels` rows and `width` columns: group norm has one for every example and group of
    channels, layer norm one for every row. Weight and bias (None: without); what is added to the variance."""

    weight: Place | None
    bias: Place | None
    pixels: int
    width: int
    groups: int
    rows: int
    stride: int
    eps: float
    curve: int = NONE

    def units(self, batch: int) -> int:
        """Of one client."""
        return batch * (self.rows // self.pixels) * self.groups


class Embedding(NamedTuple):
    """A vector of `channels` numbers for each of `words`; `rows` tokens per example; the token without gradient (-1:
    none)."""

    weight: Place
    words: int
    channels: int
    rows: int
    out_stride: int
    padding: int = -1


class Recurrence(NamedTuple):
    """An LSTM: what its inputs give (a dense layer of 4 * hidden outputs), then its hidden side: weight (4 * hidden,
    hidden), a bias of its own (None: without), `length` time steps. Gates in the order input, forget, candidate,
    output."""

    driven: Dense
    weight: Place
    bias: Place | None
    hidden: int
    length: int
    out_stride: int

    @property
    def gate_stride(self) -> int:
        return self.driven.out_stride

    @property
    def hidden_side(self) -> Dense:
        """The hidden weight as a dense layer, from the output one step earlier to the gates."""
        return Dense(
            self.weight, self.bias, 4 * self.hidden, self.hidden, self.length, self.out_stride, self.gate_stride
        )


class Curve(NamedTuple):
    """An activation with a pass of its own."""

    curve: int
    shape: Shape


class Add(NamedTuple):
    """The sum of two values of one shape, and the `curve` fused behind it."""

    shape: Shape
    curve: int = NONE


class Dropout(NamedTuple):
    """Numbers set to 0 with probability `p`, the others scaled by 1 / (1 - p); `number` counts the dropouts of a model:
    each has a random stream of its own. An `image`'s numbers are drawn in torch's order."""

    shape: Shape
    p: float
    number: int
    image: bool


class Reorder(NamedTuple):
    """Between an image (or a sequence) of this shape and a vector in torch's order, whose rows are `flat_stride` apart;
    `to_vector` says which way."""

    shape: Shape
    flat_stride: int
    image: bool
    to_vector: bool


class Select(NamedTuple):
    """One `row` of every example."""

    shape: Shape
    out_stride: int
    row: int


@dataclass(frozen=True)
class PoolAxis:
    """One axis of a pooling layer: the first pixel and the end of each output's window, and what each window counts in
    a mean."""

    begin: tuple[int, ...]
    end: tuple[int, ...]
    counts: tuple[int, ...]
    pixels: int

    @property
    def longest(self) -> int:
        """The longest window."""
        return max(e - b for b, e in zip(self.begin, self.end, strict=True))

    def seen_by(self) -> list[tuple[int, int]]:
        """First and end of the outputs that see each pixel; windows move on, so those are neighbours."""
        found = []
        for pixel in range(self.pixels):
            who = [o for o, (b, e) in enumerate(zip(self.begin, self.end, strict=True)) if b <= pixel < e]
            found.append((who[0], who[-1] + 1) if who else (0, 0))
        return found


def grid_axis(pixels: int, outputs: int, kernel: int, step: int, pad: int, count_pad: bool) -> PoolAxis:
    """Windows of `kernel` pixels, `step` apart; `count_pad`: a mean counts the padding."""
    starts = [o * step - pad for o in range(outputs)]
    begin, end = [max(s, 0) for s in starts], [min(s + kernel, pixels) for s in starts]
    counts = [kernel if count_pad else e - b for b, e in zip(begin, end, strict=True)]
    return PoolAxis(tuple(begin), tuple(end), tuple(counts), pixels)


def adaptive_axis(pixels: int, outputs: int) -> PoolAxis:
    """Windows that divide the pixels as evenly as they can."""
    begin = [o * pixels // outputs for o in range(outputs)]
    end = [-(-(o + 1) * pixels // outputs) for o in range(outputs)]
    return PoolAxis(tuple(begin), tuple(end), tuple(e - b for b, e in zip(begin, end, strict=True)), pixels)


class Windows(NamedTuple):
    """A pooling layer: both axes, whether it takes the largest number or the mean, its channels and their stride."""

    y: PoolAxis
    x: PoolAxis
    largest: bool
    channels: int
    in_stride: int
    out_stride: int

    @property
    def is_two_by_two(self) -> bool:
        """Whether windows are 2 x 2 pixels, side by side, and the largest number is taken."""
        sides = (axis.begin == tuple(2 * o for o in range(axis.pixels // 2)) for axis in (self.y, self.x))
        ends = (axis.end == tuple(2 * o + 2 for o in range(axis.pixels // 2)) for axis in (self.y, self.x))
        return self.largest and all(sides) and all(ends)

    @property
    def places(self) -> int:
        """In the largest window."""
        return self.y.longest * self.x.longest

    def numbers(self) -> list[int]:
        """Both axes one behind the other: begin, end and counts of outputs; first and end of who sees each pixel."""
        numbers: list[int] = []
        for axis in (self.y, self.x):
            seen = axis.seen_by()
            numbers += [*axis.begin, *axis.end, *axis.counts, *(first for first, _ in seen), *(end for _, end in seen)]
        return numbers


Layer = Dense | Convolution | Norm | Embedding | Recurrence | Curve | Add | Dropout | Reorder | Select | Windows


@dataclass(frozen=True)
class Flow:
    """How a gradient comes to one input of a step: not at all unless `wanted`; `add`: another step has put a part of it
    there already; `gate`: the curve that made the input, through which the last step passes the whole."""

    wanted: bool
    add: bool = False
    gate: int = NONE


@dataclass(frozen=True)
class Step:
    """One layer at work: buffers it reads and the one it makes, how gradients flow to what it reads; `shared`: a step
    that comes later in the forward pass has put a part of its parameters' gradient there already."""

    layer: Layer
    inputs: tuple[int, ...]
    output: int
    flows: tuple[Flow, ...]
    shared: bool = False


@dataclass(frozen=True)
class Network:
    """A model's forward pass and loss as steps over buffers; buffer 0 is the input, `output` what the loss sees.

    `buffers` has the shape of every buffer (of aliases, the one that is stored). `tokens`: the input is tokens.
    `features` is the buffer that goes into the last layer, for a contrast.
    """

    buffers: tuple[Shape, ...]
    steps: tuple[Step, ...]
    output: int
    shape: Shape
    loss: str
    tokens: bool
    features: int
    feature_shape: Shape
