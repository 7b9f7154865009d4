"""The outputs of packed models, where torch computes them: what executors without an engine of their own predict by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from queue import SimpleQueue
from threading import Lock
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..data import Examples
from ..norms import PackedModel
from .model import LocalModel
from .threads import one_thread_per_operation

if TYPE_CHECKING:
    from .executors import Executor

# outputs (n, ...) and targets (n, ...) of one client's examples -> numbers by name
Metric = Callable[[Tensor, Tensor], Mapping[str, float]]

_CHUNK = 1024  # examples per forward pass of `predict`


def check_rows(rows: object, examples: Examples, form: str) -> None:
    """Refuses rows to predict that are not (n,) int64 of these examples, and examples that are not of that form."""
    if examples.form != form:
        raise ValueError(f"examples: must have the form of the executor's, {form}, got {examples.form}")
    if not isinstance(rows, Tensor) or rows.dtype is not torch.int64 or rows.dim() != 1 or not rows.is_cpu:
        kind = f"{rows.dtype} {tuple(rows.shape)} on {rows.device}" if isinstance(rows, Tensor) else repr(rows)
        raise TypeError(f"rows: must be a one-dimensional int64 tensor on the CPU, got {kind}")
    if not rows.numel():
        return
    least, most = (int(end) for end in rows.aminmax())
    if least < 0 or most >= len(examples):
        raise ValueError(f"rows: must lie in [0, {len(examples)}), got {least if least < 0 else most}")


class TorchOutputs:
    """The outputs of a module in evaluation mode, which several threads may ask for at once."""

    def __init__(self, module: nn.Module, threads: int, device: torch.device) -> None:
        self._models: SimpleQueue[LocalModel] = SimpleQueue()  # one per thread
        for _ in range(threads):
            model = LocalModel(module, device)
            model.module.eval()
            self._models.put(model)

    def __call__(self, packed: PackedModel, inputs: Iterable[Tensor]) -> list[Tensor]:
        """Of a packed model, for every batch of inputs; all on the device."""
        x, statistics = packed
        model = self._models.get()
        try:
            layout = model.statistics
            running = {} if layout is None or statistics is None else layout.views(statistics)
            tensors = {**model.constants(x.dtype), **running, **model.packing_as(x.dtype).views(x)}
            return [model(tensors, batch) for batch in inputs]
        finally:
            self._models.put(model)


class TorchPredict:
    """`predict` of an executor that has torch compute outputs: of `module`, which is copied when it is first asked,
    for examples of that `form`."""

    def __init__(self, module: nn.Module, device: torch.device, form: str) -> None:
        self._module, self._device, self._form = module, device, form
        self._outputs: TorchOutputs | None = None
        self._making = Lock()

    @torch.no_grad()
    def __call__(self, x: Tensor, examples: Examples, rows: Tensor, statistics: Tensor | None = None) -> Tensor:
        """The outputs of the packed model `x` (d,), with these running `statistics` (s,) of its batch norms (default:
        the module's), for these rows (n,) int64 of examples in the form of the executor's own, with dropout off:
        (n, ...) on the device."""
        check_rows(rows, examples, self._form)
        with self._making:
            if self._outputs is None:
                self._outputs = TorchOutputs(self._module, 1, self._device)
        there = None if statistics is None else statistics.to(self._device)
        packed = PackedModel(x.to(self._device), there)
        batches = (examples.batch(some, x.dtype)[0].to(self._device) for some in rows.split(_CHUNK))
        with one_thread_per_operation():
            return torch.cat(self._outputs(packed, batches))


def measure(
    executor: Executor,
    x: Tensor,
    examples: Examples,
    rows: Tensor,
    offsets: Tensor,
    metric: Metric,
    *,
    statistics: Tensor | None = None,
) -> list[dict[str, float]]:
    """What a `metric` of yours says of the packed model `x` (d,), client by client: client i has
    ``rows[offsets[i]:offsets[i + 1]]`` of `examples`. It is called with a client's outputs (n, ...) and its targets
    (n, ...), and gives numbers by name; a client without rows has none."""
    found = []
    for some in rows.split(offsets.diff().tolist()):
        if not len(some):
            found.append(dict[str, float]())
            continue
        outputs = executor.predict(x, examples, some, statistics)
        named = metric(outputs, examples.targets_of(some, outputs.dtype).to(outputs.device))
        found.append({name: float(value) for name, value in named.items()})
    return found
