"""Where a program splits into features and a head: only at its last layer."""

from __future__ import annotations

from .ir import Program, Unsupported


def check_head(program: Program, head: str) -> None:
    """Refuses to take the layer of this full name for the head of the program: what makes its output."""
    named = [step for step in program.instructions if step.name == head and step.params]
    last = program.instructions[-1]
    if not named and head:
        raise Unsupported(f"head {head!r} is not one layer of FastFed's engine, which compares inputs of such layers")
    if len(named) > 1:
        raise Unsupported(f"head: layer {head!r} must be used once in a forward pass, not {len(named)} times")
    if named and named[0] is not last:
        raise Unsupported(
            f"head: the model's outputs are not those of layer {head!r}, but of {last.name!r} ({last.op}); name the "
            "layer that makes them as head="
        )
    if not named or not _is_trained(program, last.inputs[0]):
        raise Unsupported(f"head: nothing that is trained comes before layer {head!r}, so its input is always the same")


def _is_trained(program: Program, value: int) -> bool:
    """Whether a parameter has a part in a value."""
    makers = {step.output: step for step in program.instructions}
    waiting = [value]
    while waiting:
        step = makers.get(waiting.pop())
        if step is not None and any(offset >= 0 for offset in step.params):
            return True
        waiting += step.inputs if step is not None else ()
    return False
