"""The compiled extension by itself: whose arrays it takes, which it refuses, and that it needs no torch to run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

core = pytest.importorskip("fastfed._core", reason="the compiled extension is missing")


def arrays(n: int = 21) -> list[np.ndarray]:
    generator = np.random.default_rng(3)
    return [generator.standard_normal(n, dtype=np.float32) ** 2 for _ in range(4)]


def formula(name: str) -> int:
    return core.server_formulas().index(name)


def adam_numbers() -> tuple[float, ...]:
    from fastfed.kernels.table import server_numbers

    return server_numbers("adam", ("lr", "tau", "beta1", "beta2"), 0.1, 1e-2, 0.8, 0.95)


def test_numpy_arrays_get_the_bits_of_tensors() -> None:
    ours = arrays()
    tensors = [torch.from_numpy(array.copy()) for array in ours]
    for x, delta, m, v in (ours, tensors):
        core.server_step(formula("adam"), x, delta, m, v, None, adam_numbers())
    for mine, theirs in zip(ours, tensors, strict=True):
        assert mine.tobytes() == theirs.numpy().tobytes()
    assert not np.array_equal(ours[0], arrays()[0])


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda x: x.setflags(write=False), "writable"),
        (lambda x: x[::-1], "contiguous and on the CPU"),
        (lambda x: x[:5], "5 elements long|as long as x"),
        (lambda x: x.astype(np.int32), "float32 or float64"),
        (lambda x: x.astype(">f4"), "float32 or float64"),
        (lambda x: x.tolist(), "an array or tensor"),
    ],
    ids=["read-only", "reversed", "shorter", "integers", "big-endian", "a list"],
)
def test_what_memory_safety_forbids_is_refused(spoil, words: str) -> None:
    x, delta, m, v = arrays()
    spoilt = spoil(x)
    before = x.copy()
    with pytest.raises(ValueError, match=f"must be (.*{words})"):
        core.server_step(formula("adam"), x if spoilt is None else spoilt, delta, m, v, None, adam_numbers())
    assert np.array_equal(x, before)


def test_what_is_only_read_may_be_read_only() -> None:
    x, delta, m, v = arrays()
    delta.setflags(write=False)
    core.server_step(formula("adam"), x, delta, m, v, None, adam_numbers())
    assert not np.array_equal(x, arrays()[0])


def test_tensors_without_memory_of_their_own_are_refused() -> None:
    delta, m, v = (torch.rand(5) for _ in range(3))
    meta = torch.empty(5, device="meta")
    with pytest.raises(ValueError, match=r"x: must be (an array or tensor|contiguous and on the CPU)"):
        core.server_step(formula("adam"), meta, delta, m, v, None, adam_numbers())
    assert not core.surely_valid(meta, (delta,), (), (), ())
    assert not core.surely_valid(delta.clone().requires_grad_(), (m,), (), (), ())
    assert not core.surely_valid(delta.numpy(), (m,), (), (), ())  # whatever is no tensor is for kernels/check.py
    assert core.surely_valid(delta, (m,), (), (), ())


def test_the_host_says_how_many_threads_there_are() -> None:
    asked = []

    def count() -> int:
        asked.append(1)
        return 1

    core.count_threads_by(count)
    try:
        x, delta, m, v = arrays()
        core.server_step(formula("adam"), x, delta, m, v, None, adam_numbers())
        assert asked == [1]
        core.count_threads_by(lambda: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            core.server_step(formula("adam"), x, delta, m, v, None, adam_numbers())
    finally:
        core.count_threads_by(torch.get_num_threads)


# Trains two dense layers, whose matrices are beyond what our own products take where torch brings a library's.
ALONE = """
import importlib.util, json, sys
import numpy as np
import numpy.random

file, with_torch = sys.argv[1:]
if with_torch == "with":
    import torch
spec = importlib.util.spec_from_file_location("_core", file)
core = importlib.util.module_from_spec(spec)
spec.loader.exec_module(core)
inputs, hidden, classes, rows = 300, 150, 40, 200
d = hidden * inputs + hidden + classes * hidden + classes
generator = numpy.random.default_rng(0)
values = [("vector", 1, n, 0, 0) for n in (inputs, hidden, hidden, classes)]
first = hidden * inputs + hidden
layers = [
    ("linear", [0], 1, [0, hidden * inputs], {}),
    ("relu", [1], 2, [], {}),
    ("linear", [2], 3, [first, first + classes * hidden], {}),
]
program = core.Program(values, layers, 3, "cross_entropy", "mean", d, 0, np.zeros(0, np.float32))
examples = {
    "count": rows, "inputs": generator.standard_normal((rows, inputs), dtype=np.float32),
    "targets": generator.integers(0, classes, rows), "augment": None, "byte_values": None,
}
x = generator.standard_normal(d, dtype=np.float32) * np.float32(0.05)
outputs = np.zeros((rows, classes), np.float32)
program.predict(examples, x, None, np.arange(rows), outputs, 2)
weights, biases = x[: first - hidden].reshape(hidden, inputs), x[first - hidden : first]
wanted = np.maximum(examples["inputs"].astype(float) @ weights.T + biases, 0)
last = x[first:-classes].reshape(classes, hidden)
wanted = wanted @ last.T + x[-classes:]
error = float(np.abs(outputs - wanted).max())
print(json.dumps({"torch": "torch" in sys.modules, "error": error, "scale": float(np.abs(wanted).max())}))
"""


@pytest.mark.parametrize("with_torch", ["with", "without"])
def test_the_engine_runs_without_torch(with_torch: str) -> None:
    file = str(Path(core.__file__))
    command = [sys.executable, "-c", ALONE, file, with_torch]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    found = json.loads(said.stdout)
    assert found["torch"] is (with_torch == "with")
    assert found["error"] < 3e-6 * found["scale"]
