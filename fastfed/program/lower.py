"""From a `Program` to a `Network`: the layers as a device engine runs them, with strides, fused curves and the flow of
gradients. Pure Python: it runs, and is tested, anywhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..kernels import covers
from ..kernels.layers import (
    FROM_OUTPUT,
    GELU,
    GELU_TANH,
    NONE,
    RELU,
    SIGMOID,
    SILU,
    TANH,
    Add,
    Convolution,
    Curve,
    Dense,
    Dropout,
    Embedding,
    Flow,
    Layer,
    Network,
    Norm,
    Place,
    Recurrence,
    Reorder,
    Select,
    Shape,
    Step,
    Windows,
    adaptive_axis,
    grid_axis,
)
from .ir import ABSENT, Instruction, Program, Unsupported, Value

_BORDER = 4  # numbers: wide accesses to memory take four, and want rows that start on such a border
_CURVES = {"relu": RELU, "sigmoid": SIGMOID, "tanh": TANH, "silu": SILU}
_WITH_CURVE = (Dense, Convolution, Norm, Add)


def lower(program: Program) -> Network:
    """The network of a program. Sparse inputs must have been traced as vectors: a device engine reads them dense."""
    return _Lowering(program).network()


def with_pixel_columns(program: Program) -> Program:
    """The same program, where dense layers that read a flattened image have their columns in the order in which the
    image is stored: flattening it is then no work at all."""
    names = {slot.offset: slot.name for slot in program.packing.slots}
    users = Counter(offset for step in program.instructions for offset in step.params if offset >= 0)
    columns: dict[str, tuple[int, int]] = {}
    for flat in program.instructions:
        readers = [step for step in program.instructions if flat.output in step.inputs]
        image = program.values[flat.inputs[0]]
        if flat.op != "flatten" or image.kind != "image" or flat.output == program.output or not _is_dense(image):
            continue
        if image.shape[0] == 1:
            continue  # a single channel is in that order: the layouts are the same, and nothing need be copied
        if all(step.op == "linear" and users[step.params[0]] == 1 for step in readers):
            channels, pixels = image.shape[0], image.shape[1] * image.shape[2]
            columns |= {names[step.params[0]]: (channels, pixels) for step in readers}
    return replace(program, columns=columns)


def _is_dense(image: Value) -> bool:
    """Whether pixels follow each other in memory without a gap, and several numbers each."""
    shape = shape_of(image)
    return shape.stride == shape.channels and stride_of(shape.rows * shape.channels) == shape.rows * shape.channels


def stride_of(channels: int) -> int:
    """How far apart rows of so many numbers lie."""
    return channels if channels < _BORDER else -(-channels // _BORDER) * _BORDER


def shape_of(value: Value) -> Shape:
    """How a value is stored."""
    if value.kind == "tokens":
        return Shape(value.shape[0], 1, 1)
    _, rows, channels, _, _ = value.spec
    return Shape(rows, channels, stride_of(channels))


@dataclass
class _Draft:
    """A step before it is known how gradients flow."""

    layer: Layer
    inputs: tuple[int, ...]
    output: int
    params: tuple[int, ...]


@dataclass
class _Lowering:
    program: Program
    shapes: tuple[Shape, ...] = ()
    drafts: list[_Draft] = field(default_factory=list)
    alias: dict[int, int] = field(default_factory=dict)  # values that are another value's memory

    def __post_init__(self) -> None:
        self.shapes = tuple(shape_of(value) for value in self.program.values)
        self.places = _places(self.program)

    def network(self) -> Network:
        program = self.program
        for instruction in program.instructions:
            self._add(instruction)
        drafts = self._with_pools(self._with_curves())
        steps = _with_flows(drafts)
        last = drafts[-1]
        return Network(
            buffers=tuple(self.shapes[self._root(value)] for value in range(len(self.shapes))),
            steps=tuple(steps),
            output=self._root(program.output),
            shape=self.shapes[program.output],
            loss=program.loss,
            tokens=program.values[0].kind == "tokens",
            features=last.inputs[0],
            feature_shape=self.shapes[program.instructions[-1].inputs[0]],
        )

    def _root(self, value: int) -> int:
        while value in self.alias:
            value = self.alias[value]
        return value

    def _add(self, step: Instruction) -> None:
        if step.op == "batch_norm":
            raise Unsupported(
                f"module: layer {step.name!r} is a batch norm, whose running statistics executor 'device' does not "
                "know; 'native', 'eager' and 'batched' do, and nn.GroupNorm runs everywhere"
            )
        if step.op not in _LAYERS or any(place < ABSENT for place in step.params):
            what = (
                "has a frozen parameter"
                if step.op in _LAYERS
                else f"needs {step.op.replace('_', ' ')}, as transformers do"
            )
            raise Unsupported(
                f"module: layer {step.name!r} {what}, which executor 'device' does not know; 'native', 'eager' and "
                "'batched' do"
            )
        layer = _LAYERS[step.op](self, step)
        if isinstance(layer, Reorder) and (_is_plain(layer) or self._is_read_by_pixels(step)):
            self.alias[step.output] = step.inputs[0]
            return
        inputs = tuple(self._root(value) for value in step.inputs)
        params = tuple(offset for offset in step.params if offset >= 0)
        self.drafts.append(_Draft(layer, inputs, step.output, params))

    def _is_read_by_pixels(self, flat: Instruction) -> bool:
        """Whether those who read a flattened image have their columns in the order of the image."""
        offsets = {slot.name: slot.offset for slot in self.program.packing.slots}
        ordered = {offsets[name] for name in self.program.columns}
        readers = [step for step in self.program.instructions if flat.output in step.inputs]
        return bool(readers) and all(step.op == "linear" and step.params[0] in ordered for step in readers)

    def _with_curves(self) -> list[_Draft]:
        """Curves that read off their output, put behind the step that makes their input for nobody else."""
        return self._merged(self.drafts, self._curve_behind)

    def _with_pools(self, drafts: list[_Draft]) -> list[_Draft]:
        """Pools of 2 x 2 pixels, put behind the convolution that makes their input for nobody else."""
        return self._merged(drafts, self._pool_behind)

    def _merged(self, drafts: list[_Draft], behind: Callable[[_Draft, _Draft], Layer | None]) -> list[_Draft]:
        """With every step left out whose maker does its work too, as the layer that `behind` gives."""
        readers = Counter(value for draft in drafts for value in draft.inputs)
        makers = {draft.output: draft for draft in drafts}
        kept = []
        for draft in drafts:
            maker = makers.get(draft.inputs[0])
            both = behind(maker, draft) if maker is not None and readers[maker.output] == 1 else None
            if maker is None or both is None:
                kept.append(draft)
            else:
                maker.layer, maker.output = both, draft.output
                makers[draft.output] = maker
        return kept

    def _curve_behind(self, maker: _Draft, draft: _Draft) -> Layer | None:
        curve, layer = draft.layer, maker.layer
        fits = (
            isinstance(curve, Curve) and curve.curve in FROM_OUTPUT and draft.output != self._root(self.program.output)
        )
        if not fits or not isinstance(layer, _WITH_CURVE) or layer.curve != NONE:
            return None
        assert isinstance(curve, Curve)
        return layer._replace(curve=curve.curve)

    def _pool_behind(self, maker: _Draft, draft: _Draft) -> Layer | None:
        """The largest number stays the largest under a ReLU, so that the order of the two does not matter."""
        pool, layer = draft.layer, maker.layer
        if not isinstance(pool, Windows) or not isinstance(layer, Convolution) or not pool.is_two_by_two:
            return None
        if layer.curve not in (NONE, RELU) or not all(layer.made):
            return None
        return layer._replace(pool=True, out_stride=pool.out_stride)

    def place(self, offset: int) -> Place | None:
        return None if offset < 0 else self.places[offset]

    def weight(self, offset: int) -> Place:
        return self.places[offset]


def _is_plain(layer: Reorder) -> bool:
    """Whether both sides have the same numbers in the same places."""
    shape = layer.shape
    if shape.rows == 1:
        return shape.stride == layer.flat_stride
    in_order = shape.channels == 1 if layer.image else True
    return in_order and shape.stride == shape.channels and shape.rows * shape.channels == layer.flat_stride


def _places(program: Program) -> dict[int, Place]:
    """Every parameter by its offset, with its axes in SM3's cover."""
    layout = covers.decode(program.engine_packing.cover())
    return {
        matrix.offset: Place(matrix.offset, matrix.rows, matrix.cols, *spans)
        for matrix, spans in zip(layout.matrices, covers.axis_spans(layout), strict=True)
    }


# ---- how gradients flow ---------------------------------------------------------------------------------------------


def _with_flows(drafts: list[_Draft]) -> Iterator[Step]:
    """Going back, the first step to reach a value stores its gradient, later ones add, and the last passes the whole
    through the curve that made the value."""
    trained: set[int] = set()
    for draft in drafts:
        if draft.params or any(value in trained for value in draft.inputs):
            trained.add(draft.output)
    curves = {draft.output: getattr(draft.layer, "curve", NONE) for draft in drafts if _is_fused(draft.layer)}
    left = Counter(value for draft in drafts for value in draft.inputs)
    met, used, steps = set[int](), set[int](), []
    for draft in reversed(drafts):
        flows = []
        for value in draft.inputs:
            left[value] -= 1
            gate = curves.get(value, NONE) if left[value] == 0 else NONE
            flows.append(Flow(value in trained, value in met, gate))
            met.add(value)
        shared = bool(used.intersection(draft.params))
        used.update(draft.params)
        steps.append(Step(draft.layer, draft.inputs, draft.output, tuple(flows), shared))
    yield from reversed(steps)


def _is_fused(layer: Layer) -> bool:
    return isinstance(layer, _WITH_CURVE)


def with_contrast(network: Network) -> Network:
    """The same network where a part of the features' gradient is there before the way back begins."""
    *others, last = network.steps
    flows = (replace(last.flows[0], add=True), *last.flows[1:])
    return replace(network, steps=(*others, replace(last, flows=flows)))


# ---- layers ---------------------------------------------------------------------------------------------------------


def _linear(to: _Lowering, step: Instruction) -> Dense:
    given, made = to.shapes[step.inputs[0]], to.shapes[step.output]
    weight, bias = step.params
    return Dense(
        to.weight(weight), to.place(bias), made.channels, given.channels, given.rows, given.stride, made.stride
    )  # fmt: skip


def _pair(settings: Mapping[str, float], name: str) -> tuple[int, int]:
    return int(settings[f"{name}_h"]), int(settings[f"{name}_w"])


def _image(value: Value) -> tuple[int, int]:
    return value.shape[1], value.shape[2]


def _conv2d(to: _Lowering, step: Instruction) -> Convolution:
    given, made = to.program.values[step.inputs[0]], to.program.values[step.output]
    weight, bias = step.params
    return Convolution(
        weight=to.weight(weight),
        bias=to.place(bias),
        inputs=given.shape[0],
        outputs=made.shape[0],
        image=_image(given),
        made=_image(made),
        kernel=_pair(step.settings, "kernel"),
        step=_pair(step.settings, "stride"),
        pad=_pair(step.settings, "pad"),
        in_stride=to.shapes[step.inputs[0]].stride,
        out_stride=to.shapes[step.output].stride,
    )


def _embedding(to: _Lowering, step: Instruction) -> Embedding:
    made = to.shapes[step.output]
    words, padding = int(step.settings["vocabulary"]), int(step.settings["padding_idx"])
    return Embedding(to.weight(step.params[0]), words, made.channels, made.rows, made.stride, padding)


def _lstm(to: _Lowering, step: Instruction) -> Recurrence:
    given, made = to.shapes[step.inputs[0]], to.shapes[step.output]
    weight_ih, weight_hh, *biases = step.params
    first, second = (*biases, -1, -1)[:2]
    gates = 4 * made.channels
    driven = Dense(
        to.weight(weight_ih), to.place(first), gates, given.channels, given.rows, given.stride, stride_of(gates)
    )  # fmt: skip
    return Recurrence(driven, to.weight(weight_hh), to.place(second), made.channels, made.rows, made.stride)


def _pool(to: _Lowering, step: Instruction) -> Windows:
    given, made = to.program.values[step.inputs[0]], to.program.values[step.output]
    pixels, outputs = _image(given), _image(made)
    if step.op.startswith("adaptive"):
        axes = [adaptive_axis(p, o) for p, o in zip(pixels, outputs, strict=True)]
    else:
        kernel, stride, pad = (_pair(step.settings, name) for name in ("kernel", "stride", "pad"))
        counted = bool(step.settings.get("count_include_pad", 1.0))
        axes = [grid_axis(pixels[i], outputs[i], kernel[i], stride[i], pad[i], counted) for i in range(2)]
    strides = to.shapes[step.inputs[0]].stride, to.shapes[step.output].stride
    return Windows(axes[0], axes[1], "max" in step.op, given.shape[0], *strides)


def _curve(to: _Lowering, step: Instruction) -> Curve:
    if step.op == "gelu":
        return Curve(GELU_TANH if step.settings["tanh"] else GELU, to.shapes[step.output])
    return Curve(_CURVES[step.op], to.shapes[step.output])


def _add(to: _Lowering, step: Instruction) -> Add:
    return Add(to.shapes[step.output])


def _dropout(to: _Lowering, step: Instruction) -> Dropout:
    image = to.program.values[step.output].kind == "image"
    return Dropout(to.shapes[step.output], step.settings["p"], int(step.settings["index"]), image)


def _reorder(to: _Lowering, step: Instruction) -> Reorder:
    rows_at, flat_at = (step.inputs[0], step.output) if step.op == "flatten" else (step.output, step.inputs[0])
    image = to.program.values[rows_at].kind == "image"
    return Reorder(to.shapes[rows_at], to.shapes[flat_at].stride, image, step.op == "flatten")


def _select(to: _Lowering, step: Instruction) -> Select:
    return Select(to.shapes[step.inputs[0]], to.shapes[step.output].stride, int(step.settings["index"]))


def _group_norm(to: _Lowering, step: Instruction) -> Norm:
    shape, groups = to.shapes[step.output], int(step.settings["groups"])
    return _norm(to, step, pixels=shape.rows, width=shape.channels // groups, groups=groups)


def _layer_norm(to: _Lowering, step: Instruction) -> Norm:
    return _norm(to, step, pixels=1, width=to.shapes[step.output].channels, groups=1)


def _norm(to: _Lowering, step: Instruction, **unit: Any) -> Norm:
    shape = to.shapes[step.output]
    weight, bias = step.params
    return Norm(
        to.place(weight), to.place(bias), rows=shape.rows, stride=shape.stride, eps=step.settings["eps"], **unit
    )


_LAYERS: dict[str, Any] = {
    "linear": _linear,
    "conv2d": _conv2d,
    "embedding": _embedding,
    "lstm": _lstm,
    "max_pool": _pool,
    "avg_pool": _pool,
    "adaptive_avg_pool": _pool,
    "adaptive_max_pool": _pool,
    "relu": _curve,
    "sigmoid": _curve,
    "tanh": _curve,
    "silu": _curve,
    "gelu": _curve,
    "add": _add,
    "dropout": _dropout,
    "flatten": _reorder,
    "image": _reorder,
    "select": _select,
    "group_norm": _group_norm,
    "layer_norm": _layer_norm,
}
