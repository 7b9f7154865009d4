"""From an nn.Module to a `Program`: torch.fx records the forward pass, a walk over the record writes instructions."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor, fx, nn

from ..data.store import Inputs, Pixels, Sparse
from ..losses import LOSSES, Loss, LossName, find_loss
from ..norms import Statistics
from ..packing import Packing
from . import attention, ops, shapes  # noqa: F401 (they also fill the table)
from .draft import KINDS, Activation, Draft, Place, Symbol, Weight, Withheld, plainly
from .folding import folded, is_foldable
from .ir import Kind, Program, Unsupported, Value
from .table import AS_SEEN, BUILDERS, HINTS, LAYERS, OF_PARAMETERS, abilities
from .views import Part, View, copied

# What each loss sees; "mse" compares numbers in torch's order, whatever their shape.
SEEN: dict[str, tuple[Kind, ...]] = {"cross_entropy": ("vector", "sequence"), "binary_cross_entropy": ("vector",)}


def trace(module: nn.Module, inputs: Inputs, loss: Loss) -> Program:
    """The program of `module` on examples like `inputs` (only their form is looked at) under a loss of
    ``fastfed.losses``; `Unsupported` says what FastFed's engine lacks.

    >>> program = trace(nn.Linear(4, 2), torch.zeros(1, 4), "cross_entropy")
    >>> [(step.op, step.params) for step in program.instructions]
    [('linear', (0, 16))]
    """
    find_loss(loss)
    if not isinstance(loss, str):
        name = getattr(loss, "__name__", type(loss).__name__)
        raise Unsupported(f"loss {name!r} is a function; FastFed's engine has the losses: {', '.join(LOSSES)}")
    packing, statistics = _pack(module)
    draft = partial(Draft, packing, _first_value(inputs), statistics)
    with _mode(module, training=False):
        evaluated = _write(module, draft(), loss)
    with _mode(module, training=True):
        program = _write(module, draft(), loss)
    same_constants = torch.equal(program.constants.numbers, evaluated.constants.numbers)
    if evaluated.dropouts or _steps(program) != _steps(evaluated) or not same_constants:
        raise Unsupported(
            f"{_layer('', type(module))} does something else in training than in evaluation; in FastFed's engine only "
            "dropout and batch norm may differ, written nn.Dropout(p) or F.dropout(x, p, training=self.training)"
        )
    return program


def _pack(module: nn.Module) -> tuple[Packing, Statistics | None]:
    """Where parameters lie, and where batch norms' running statistics do."""
    try:
        packing = Packing.of(module, batch_norm=True)
        statistics = Statistics.of(module) or Statistics.of_frozen(module)
    except (TypeError, ValueError) as error:
        raise Unsupported(str(error)) from error
    for name, parameter in module.named_parameters():
        if parameter.dtype is not packing.dtype:
            raise Unsupported(
                f"parameter {name!r} is {parameter.dtype}; FastFed's engine computes in one precision: "
                "make the whole module float32"
            )
    return packing, statistics


def _first_value(inputs: Inputs) -> Value:
    if isinstance(inputs, Sparse):
        return Value("sparse", (inputs.width,))
    tensor = inputs.bytes if isinstance(inputs, Pixels) else inputs
    shape = inputs.shape if isinstance(inputs, Pixels) else tuple(tensor.shape[1:])
    if tensor.dtype is torch.int64 and len(shape) == 1:
        return Value("tokens", shape)
    if tensor.dtype is torch.int64 or len(shape) not in KINDS:
        raise Unsupported(
            f"inputs: {tensor.dtype} of shape {shape} per example; FastFed's engine takes float vectors, sequences "
            "(length, features) and images (channels, height, width), and int64 tokens (length)"
        )
    return Value(KINDS[len(shape)], shape)


@contextmanager
def _mode(module: nn.Module, training: bool) -> Iterator[None]:
    before = {layer: layer.training for layer in module.modules()}
    module.train(training)
    try:
        yield
    finally:
        for layer, mode in before.items():
            layer.training = mode


def _write(module: nn.Module, draft: Draft, loss: LossName) -> Program:
    given = Activation(0, draft.values[0].shape)
    output = _Walk(module, _record(module), draft).run(given, enable_io_processing=False)
    draft.place = Place("output", _layer("", type(module)))
    output = copied(draft, output) if isinstance(output, View) else output
    if not isinstance(output, Activation):
        draft.refuse(f"returns a {type(output).__name__}; FastFed's engine takes one tensor, which the loss sees")
    draft.place = Place("output", f"loss {loss!r}")
    seen = draft.flat(output) if loss == "mse" else draft.number(output, *SEEN[loss])
    if seen == 0:
        draft.refuse("is given the input itself; FastFed's engine wants something computed from it")
    values, instructions = tuple(draft.values), tuple(draft.instructions)
    layouts, constants = draft.layouts, draft.constants
    return _compact(
        Program(
            values, instructions, draft.packing, loss, seen, layouts, statistics=draft.statistics, constants=constants
        )
    )


def _compact(program: Program) -> Program:
    """Without the instructions whose results nobody uses; values and dropouts numbered anew, in order."""
    needed, kept = {program.output}, []
    for step in reversed(program.instructions):
        if step.output in needed:
            needed.update(step.inputs)
            kept.append(step)
        elif step.op in ("dropout", "batch_norm"):
            why = "dropouts are counted" if step.op == "dropout" else "it looks at batches all the same"
            raise Unsupported(
                f"{step.op.replace('_', ' ')} {step.name!r} makes something that nobody uses; leave it out: {why}, and "
                "FastFed's engine leaves out what nobody uses"
            )
    kept.reverse()
    numbers = {old: new for new, old in enumerate([0, *(step.output for step in kept)])}
    dropouts = count()
    steps = (
        replace(
            step,
            inputs=tuple(numbers[value] for value in step.inputs),
            output=numbers[step.output],
            settings={**step.settings, "index": float(next(dropouts))} if step.op == "dropout" else step.settings,
        )
        for step in kept
    )
    values = tuple(program.values[old] for old in numbers)
    return replace(program, values=values, instructions=tuple(steps), output=numbers[program.output])


def _steps(program: Program) -> list[tuple]:
    """What is computed, dropout aside: two compact programs that agree here do the same in evaluation."""
    source = {0: -1}
    steps: list[tuple] = []
    for step in program.instructions:
        inputs = tuple(source[value] for value in step.inputs)
        if step.op == "dropout":
            source[step.output] = inputs[0]
            continue
        source[step.output] = len(steps)
        steps.append((step.op, inputs, program.values[step.output], step.params, step.settings))
    return steps


# ---- the record


class _Proxy(fx.Proxy):
    """Records ``x += y`` as what it is: fx takes it for ``x = x + y``, and loses that other names see the sum too."""

    def __iadd__(self, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", operator.iadd, (self, other), {})


class _Tracer(fx.Tracer):
    """Looks into everything but LSTMs and what torch.nn has beyond `LAYERS`."""

    proxy_buffer_attributes = True  # they are constants

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) in BUILDERS or (m.__module__.startswith("torch.nn") and type(m) not in LAYERS)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def call_module(self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with _explained(_layer(self.path_of_module(m), type(m))):
            return super().call_module(m, forward, args, kwargs)

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, Tensor) and not isinstance(a, nn.Parameter):
            raise Unsupported(
                f"{self._here()} computes with a tensor that is neither its input nor a parameter nor a buffer itself; "
                "FastFed's engine knows these only: use self.register_buffer for a constant"
            )
        return super().create_arg(a)

    def _here(self) -> str:
        return _layer(*list(self.module_stack.values())[-1]) if self.module_stack else _layer("", type(self.root))


def _record(module: nn.Module) -> fx.Graph:
    label = _layer("", type(module))
    _refuse_hooks(module, label)
    tracer = _Tracer()
    if tracer.is_leaf_module(module, ""):
        return _record_leaf()
    with _explained(label):
        return tracer.trace(module, concrete_args=_defaults(module, label))


def _record_leaf() -> fx.Graph:
    """Of a module that is not looked into."""
    graph = fx.Graph()
    graph.output(graph.call_module("", (graph.placeholder("x"),)))
    return graph


def _refuse_hooks(module: nn.Module, label: str) -> None:
    if module._forward_hooks or module._forward_pre_hooks:
        raise Unsupported(f"{label} has forward hooks, which torch.fx does not see here; remove them")


def _defaults(module: nn.Module, label: str) -> dict[str, Any]:
    """The arguments of forward beside the input, which keep their defaults."""
    _, *others = inspect.signature(module.forward).parameters.values()
    for other in others:
        if other.default is inspect.Parameter.empty:
            raise Unsupported(f"{label} wants {other.name!r} beside its input; FastFed's engine gives one input")
    return {other.name: other.default for other in others}


@contextmanager
def _explained(label: str) -> Iterator[None]:
    try:
        yield
    except Unsupported:
        raise
    except Exception as error:  # whatever a forward pass may raise when it meets fx's stand-ins for tensors
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise Unsupported(
            f"{label} cannot be recorded by torch.fx ({reason[0].rstrip('.')}); FastFed's engine takes forward passes "
            "that do the same for every input"
        ) from error


# ---- the walk


class _Walk(fx.Interpreter):
    """Runs a record with `Activation`s for tensors; sizes are plain numbers, reckoned as they come."""

    def __init__(self, module: nn.Module, graph: fx.Graph, draft: Draft) -> None:
        super().__init__(module, garbage_collect_values=False, graph=graph)
        self.extra_traceback = False
        self.draft = draft
        self.slots = {slot.name: slot for slot in draft.packing.slots}

    def run_node(self, n: fx.Node) -> Any:
        self.draft.place = _place(n, self.module)
        return super().run_node(n)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Weight:
        return self.weight(str(target))

    def weight(self, name: str) -> Weight:
        packing = self.draft.packing
        name = packing.aliases.get(name, name)
        if name in self.slots:
            return Weight(name, self.slots[name].shape)
        if name not in packing.frozen and name not in packing.buffers:
            self.draft.refuse(f"uses {name!r}, which is no parameter and no buffer; FastFed's engine knows no other")
        constant: Tensor = operator.attrgetter(name)(self.module).detach()
        return Weight(name, tuple(constant.shape), constant)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if _is_plain(target) and not _has_tensors((args, kwargs)):
            return target(*args, **kwargs)
        return self._build(target, args, kwargs)

    def call_method(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not _has_tensors(args[0]):
            return getattr(args[0], target)(*args[1:], **kwargs)
        return self._build(target, args, kwargs)

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        module = self.submodules[target]
        _refuse_hooks(module, self.draft.place.label)
        prefix = f"{target}." if target else ""
        return self._build(type(module), (module, lambda name: self.weight(prefix + name), *args), kwargs)

    def _build(self, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if is_foldable(target, (args, kwargs)):
            return folded(self.draft, target, args, kwargs)
        builder = BUILDERS.get(target)
        if builder is None:
            hint = f"; {HINTS[target]}" if target in HINTS else ""
            self.draft.refuse(f"is nothing that FastFed's engine knows{hint}; {abilities()}")
        given = (*args, *kwargs.values())
        withheld = [arg for arg in given if isinstance(arg, Withheld)]
        if withheld and target is not operator.getitem:
            self.draft.refuse(withheld[0].why)
        if isinstance(given[0], Weight | Part) and target not in OF_PARAMETERS:
            self.draft.refuse(f"computes with {plainly(given[0])} itself; FastFed's engine has it as a layer's weight")
        if target not in AS_SEEN:
            args = tuple(copied(self.draft, arg) for arg in args)
            kwargs = {name: copied(self.draft, arg) for name, arg in kwargs.items()}
        try:
            inspect.signature(builder).bind(self.draft, *args, **kwargs)
        except TypeError as error:
            self.draft.refuse(f"is called in a way that FastFed's engine does not know: {error}")
        return builder(self.draft, *args, **kwargs)


def _place(node: fx.Node, module: nn.Module) -> Place:
    stack = list(node.meta.get("nn_module_stack", {}).values())
    path, kind = stack[-1] if stack else ("", type(module))
    if node.op == "call_module" or (stack and kind in LAYERS):
        return Place(path, _layer(path, kind))
    name = f"{path}.{node.name}" if path else node.name
    target = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    return Place(name, f"operation {name!r} ({target})")


def _layer(path: str, kind: type) -> str:
    return f"layer {path!r} ({kind.__name__})" if path else f"module {kind.__name__!r}"


def _is_plain(function: Any) -> bool:
    """Whether it reckons with Python's own numbers."""
    return function is torch._assert or getattr(function, "__module__", "") in (
        "_operator", "builtins", "math", "torch.fx._symbolic_trace",
    )  # fmt: skip


def _has_tensors(x: Any) -> bool:
    found: list[Any] = []
    fx.node.map_aggregate(x, lambda leaf: found.append(leaf) if isinstance(leaf, Symbol) else None)
    return bool(found)
