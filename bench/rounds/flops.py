"""How many floating-point operations a client's training takes: those of its products, read off the program.

A product of (m, k) and (k, n) counts 2 m n k, once forward, once for the weight's gradient, and once for the input's
where anything before it is trained. Sparse rows count their non-zeros. All the rest (activations, norms, the update)
counts nothing, as everywhere.
"""

from __future__ import annotations

from ...data import Inputs, Sparse
from ...program import Instruction, Program


def per_example(program: Program, inputs: Inputs) -> float:
    """Operations of a forward and a backward pass of one example; of the average one of sparse `inputs`."""
    return sum(by_layer(program, inputs))


def by_layer(program: Program, inputs: Inputs) -> list[float]:
    """The same, instruction by instruction."""
    trained = _trained(program)
    return [_of_instruction(step, program, inputs, step.inputs[0] in trained) for step in program.instructions]


def _trained(program: Program) -> set[int]:
    """The values that depend on a parameter: those whose gradient somebody needs."""
    trained: set[int] = set()
    for step in program.instructions:
        if any(offset >= 0 for offset in step.params) or trained.intersection(step.inputs):
            trained.add(step.output)
    return trained


def _of_instruction(step: Instruction, program: Program, inputs: Inputs, needs_input_gradient: bool) -> float:
    before, after = program.values[step.inputs[0]].spec, program.values[step.output].spec
    (_, rows, channels, *_), out = before, after[2]
    passes = 3 if needs_input_gradient else 2
    if step.op == "linear":
        return passes * 2.0 * rows * channels * out
    if step.op == "conv2d":
        window = step.settings["kernel_h"] * step.settings["kernel_w"]
        return passes * 2.0 * after[1] * out * channels * window
    if step.op == "lstm":  # four gates; the products with the hidden state always need both gradients
        return 2.0 * rows * 4 * out * (passes * channels + 3 * out)
    if step.op == "attention":  # the scores, and the values' sum; it has no weights of its own
        heads, queries, keys = (step.settings[name] for name in ("heads", "queries", "keys"))
        across = step.settings["width"] + step.settings["value_width"]
        return (3 if needs_input_gradient else 1) * 2.0 * heads * queries * keys * across
    if step.op == "sparse_linear":
        assert isinstance(inputs, Sparse)
        return 2 * 2.0 * inputs.columns.numel() / len(inputs) * out
    return 0.0
