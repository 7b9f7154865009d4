"""The CUDA sources without a GPU: nvcc's verdict for every target, NVRTC's where it is there, and the host launcher.

What the kernels compute is tested by the case table: ``FASTFED_CUDA_HOST=1 pytest -m backend``.
"""

from __future__ import annotations

import ctypes
import getpass
import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import fastfed
from fastfed.kernels import layers, passes, registry
from fastfed.kernels.cuda import client_arguments, dense_step, device, host, launch, sources
from fastfed.kernels.cuda.weighted_sum import LEAST_BLOCKS, SumGrid
from fastfed.kernels.table import DIRECTIONS, SERVER_FORMULAS

TARGETS = ("sm_80", "sm_90", "sm_100", "sm_120")
STEMS = [file.stem for file in sources.kernel_files()]

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on PATH")
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not on PATH")

# ---- where compiled kernels are kept --------------------------------------------------------------------------------


@pytest.fixture
def fallback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in the temporary directory, where no other can be written to."""
    monkeypatch.delenv(sources.CACHE_VARIABLE, raising=False)
    monkeypatch.setattr(Path, "home", lambda: Path("/proc/nobody"))
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    return tmp_path / f"fastfed-{getpass.getuser()}"


def test_the_fallback_folder_is_ours_alone(fallback: Path) -> None:
    assert sources.cache_folder() == fallback == sources.cache_folder()
    assert fallback.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("what", ["writable by all", "writable by a group", "a link", "another's"])
def test_a_fallback_folder_that_others_write_to_is_refused(
    what: str, fallback: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if what == "a link":
        (tmp_path / "theirs").mkdir(mode=0o700)
        fallback.symlink_to(tmp_path / "theirs")
    else:
        fallback.mkdir()
        fallback.chmod({"writable by all": 0o777, "writable by a group": 0o770}.get(what, 0o700))
    if what == "another's":
        user = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: user + 1)
    with pytest.raises(
        OSError, match=r"others can write to it, and what is in it is run; name a folder by FASTFED_CACHE"
    ):
        sources.cache_folder()


# ---- nvcc -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Report:
    """What ptxas says of one kernel on one target."""

    kernel: str
    target: str
    registers: int
    stack: int
    spilled: int


def run_nvcc(stem: str, targets: Sequence[str], folder: Path) -> str:
    """Compiles a file for some targets at once, keeping its PTX in `folder`; everything nvcc said."""
    command = ["nvcc", "-std=c++17", f"-I{sources.csrc()}", "--fmad=false", "-Xptxas", "-v", "-fatbin", "--keep"]
    command += [f"--keep-dir={folder}", "-o", str(folder / f"{stem}.fatbin")]
    for target in targets:
        virtual = target.replace("sm", "compute")
        command += ["-gencode", f"arch={virtual},code={target}"]
    command.append(str(sources.csrc() / "cuda" / f"{stem}.cu"))
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def reports(text: str) -> Iterator[Report]:
    pattern = (
        r"Compiling entry function '(\w+)' for '(\w+)'.*?"
        r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) registers"
    )
    for kernel, target, stack, stored, loaded, registers in re.findall(pattern, text, re.DOTALL):
        yield Report(kernel, target, int(registers), int(stack), int(stored) + int(loaded))


def accesses(folder: Path, target: str) -> dict[str, Counter[str]]:
    """How often each kernel's PTX has each kind of global access."""
    several = list(folder.glob(f"*{target.replace('sm', 'compute')}*.ptx"))
    (ptx,) = several or folder.glob("*.ptx")  # nvcc names it after its target only where there are several
    entries = re.findall(r"\.entry (\w+)\((.*?)\n\}\n", ptx.read_text(), re.DOTALL)
    return {name: Counter(re.findall(r"\b((?:ld|st)\.global[\w.]*)", body)) for name, body in entries}


@dataclass(frozen=True)
class Vectors:
    """The vectors that a kernel must read and write, once each; `optional` ones are read only if the call has them."""

    read: int
    written: int
    optional: int = 0
    halves: int = 0  # of `read`, those in a half-width dtype
    optional_written: int = 0

    @property
    def bytes_per_element(self) -> int:
        return 4 * (self.read + self.written) - 2 * self.halves


def server_vectors(kernel: str) -> Vectors:
    """x and the rule's moments both ways, and one delta."""
    found = re.match(r"(?:server|aggregate)_step_([a-z]+)", kernel)
    assert found is not None
    moments = set(SERVER_FORMULAS[found[1]].moments) - ({"m"} if "without_m" in kernel else set())
    kept = 1 + len(moments)
    return Vectors(kept + 1, kept, halves=int("float16" in kernel))


CORRECTIONS = 2  # anchor and correction
CLIENT_VECTORS = {
    **{
        f"update_{name}_wide": Vectors(2 + len(rule.vectors), 1 + len(rule.vectors), CORRECTIONS)
        for name, rule in DIRECTIONS.items()
    },
    "update_delta_sgd_wide": Vectors(2, 1, CORRECTIONS, optional_written=1),
    "sm3_update_adagrad_i": Vectors(2, 1, CORRECTIONS),
    "sm3_update_adagrad_m_i": Vectors(3, 2, CORRECTIONS),
    "sm3_update_adam_m_i": Vectors(3, 2, CORRECTIONS),
    "sm3_update_adagrad_ii": Vectors(2, 1, CORRECTIONS + 1, optional_written=1),  # optional: nu
    "sm3_update_adagrad_m_ii": Vectors(3, 2, CORRECTIONS + 1, optional_written=1),
    "sm3_update_adam_m_ii": Vectors(3, 2, CORRECTIONS + 1, optional_written=1),
    "clip_rows_wide": Vectors(1, 1),
    "philox_uniform_wide": Vectors(0, 1),
    "philox_normal_wide": Vectors(0, 1),
}


def minimum(kernel: str) -> Vectors | None:
    """The least a kernel with wide accesses can read and write; None where it is not simply counted."""
    if kernel.startswith("server_step") and kernel.endswith("_wide"):
        return server_vectors(kernel)
    return CLIENT_VECTORS.get(kernel)


def dense_scalars(direction: str) -> int:
    """One number at a time, a dense step reads the bias (with anchor, correction and moments) and the client's
    coefficients."""
    rule = DIRECTIONS[direction]
    return 3 + len(rule.vectors) + (5 if rule.has_second_moment else 2)


def check_dense_accesses(kernel: str, found: Counter[str]) -> None:
    """Every tile is read and written by quads; how often the compiler writes that down is its own affair."""
    found_rule = re.match(r"dense_step_([a-z]+)_(few|many)_rows_wide$", kernel)
    assert found_rule is not None, kernel
    rule, rows = found_rule[1], {"few": 4, "many": 2}[found_rule[2]]  # of W, of one thread
    assert found["ld.global.f32"] == dense_scalars(rule), (kernel, found)
    moved = 1 + len(DIRECTIONS[rule].vectors)
    assert found["st.global.v4.f32"] >= rows * moved, (kernel, found)
    assert found["ld.global.v4.f32"] >= rows * (moved + CORRECTIONS), (kernel, found)


def check_accesses(kernel: str, found: Counter[str]) -> None:
    if kernel.startswith("dense_step"):
        if kernel.endswith("_wide"):
            check_dense_accesses(kernel, found)
        return
    wanted = minimum(kernel)
    if wanted is not None:
        floats = wanted.read - wanted.halves + wanted.optional
        assert found["ld.global.v4.f32"] == floats, (kernel, found)
        assert found["ld.global.v4.u16"] == wanted.halves, (kernel, found)
        assert found["st.global.v4.f32"] == wanted.written + wanted.optional_written, (kernel, found)
    elif kernel.startswith("aggregate_step") and kernel.endswith("_wide"):
        state, rows = server_vectors(kernel).written, found["ld.global.f32"]  # one weight per delta, unrolled or not
        halves = "float16" in kernel
        assert found["ld.global.v4.u16" if halves else "ld.global.v4.f32"] == rows + (0 if halves else state), found
        assert found["st.global.v4.f32"] == state, (kernel, found)
    elif kernel.endswith("_wide"):
        assert any(access.startswith("ld.global.v4") for access in found), (kernel, found)
    if kernel.endswith("_wide"):
        assert not any(access == "st.global.f32" for access in found), (kernel, found)


def print_table(told: list[Report]) -> None:
    print(f"{'kernel':44} {'B/element':>9} " + " ".join(f"{target:>7}" for target in TARGETS) + "  (registers)")
    for kernel in sorted({report.kernel for report in told}):
        least = minimum(kernel)
        registers = {report.target: report.registers for report in told if report.kernel == kernel}
        size = "" if least is None else str(least.bytes_per_element)
        print(f"{kernel:44} {size:>9} " + " ".join(f"{registers[target]:7}" for target in TARGETS))


SLOW = {"aggregate_step", "dense_step"}  # `make device-proof` compiles them; their code runs on the host anyhow


@needs_nvcc
@pytest.mark.parametrize("stem", [pytest.param(s, marks=pytest.mark.exhaustive if s in SLOW else ()) for s in STEMS])
def test_file_compiles_for_the_first_target(stem: str, tmp_path: Path) -> None:
    """nvcc takes its time for each: the others are for `make device-proof`."""
    compiles(stem, TARGETS[:1], tmp_path)


@needs_nvcc
@pytest.mark.exhaustive
@pytest.mark.parametrize("stem", STEMS)
def test_file_compiles_for_every_target(stem: str, tmp_path: Path) -> None:
    print_table(compiles(stem, TARGETS, tmp_path))


def compiles(stem: str, targets: Sequence[str], folder: Path) -> list[Report]:
    """No warning, no spill, no local memory; wide kernels move 128 bits at a time, and nothing twice."""
    text = run_nvcc(stem, targets, folder)
    assert "warning" not in text.lower(), text
    told = list(reports(text))
    assert {report.target for report in told} == set(targets)
    for report in told:
        assert report.spilled == 0, report
        assert report.stack == 0, report
    for target in targets:
        found = accesses(folder, target)
        assert set(found) == {report.kernel for report in told if report.target == target}
        for kernel, kinds in found.items():
            check_accesses(kernel, kinds)
    return told


# ---- NVRTC and CuPy -------------------------------------------------------------------------------------------------


def why_no_nvrtc() -> str | None:
    cuda = pytest.importorskip("cupy.cuda", reason="cupy is not installed")
    try:
        cuda.nvrtc.getVersion()
    except (RuntimeError, OSError, ImportError) as error:
        return f"NVRTC did not load: {str(error).strip()}"
    return None


@pytest.mark.parametrize("stem", STEMS)
def test_file_compiles_with_nvrtc(stem: str) -> None:
    reason = why_no_nvrtc()
    if reason is not None:
        pytest.skip(reason)
    assert device.compile_to_cubin(stem, "sm_90").startswith(b"\x7fELF")


def test_sources_include_no_system_header() -> None:
    """NVRTC has none."""
    for file in (sources.csrc() / "cuda").iterdir():
        if file.suffix == ".cu" or (file.suffix == ".h" and file.stem != "host"):
            included = re.findall(r"^#include (.*)$", file.read_text(), re.MULTILINE)
            for name in included:
                assert (sources.csrc() / name.split('"')[1]).is_file(), f"{file.name} includes {name}"


def test_options_keep_the_rounding_of_the_other_backends() -> None:
    options = device.options("sm_90")
    assert "--fmad=false" in options
    told = [option for option in options if not option.startswith("--include-path=")]  # a path may say anything
    assert not any("ftz" in option or "fast" in option for option in told)


def test_arguments_reach_cupy_by_value() -> None:
    numbers = client_arguments.ClientNumbers(*range(8))
    array = device.by_value(numbers)
    assert array.size == 1  # CuPy passes arrays of size one by value
    assert array.tobytes() == bytes(numbers)
    assert array.__array_interface__["data"][0] == ctypes.addressof(numbers)


# ---- sources and cache ----------------------------------------------------------------------------------------------


def test_sources_are_inside_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "fastfed"
    (package / "csrc" / "cuda").mkdir(parents=True)
    (package / "csrc" / "cuda" / "grid.h").touch()
    monkeypatch.setattr(fastfed, "__file__", str(package / "__init__.py"))
    assert sources.csrc.__wrapped__() == package / "csrc"


def test_missing_sources_say_where_they_were_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastfed, "__file__", str(tmp_path / "fastfed" / "__init__.py"))
    with pytest.raises(FileNotFoundError, match=re.escape(str(tmp_path / "fastfed" / "csrc"))):
        sources.csrc.__wrapped__()


def test_compiled_files_are_made_once_per_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sources.CACHE_VARIABLE, str(tmp_path))
    made: list[str] = []

    def make(path: Path) -> None:
        made.append(path.name)
        path.write_text("compiled")

    first = sources.compiled("thing", ".so", ("a",), make)
    assert sources.compiled("thing", ".so", ("a",), make) == first
    assert sources.compiled("thing", ".so", ("b",), make) != first
    assert len(made) == 2
    assert first.read_text() == "compiled"
    assert {file.suffix for file in tmp_path.iterdir()} <= {".so", ".lock"}  # no draft is left behind


def test_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(registry.BackendUnavailable, match="no-such-compiler"):
        host.compiler()


def test_sizes_stand_in_one_place() -> None:
    assert sources.size("THREADS") % sources.size("LANES") == 0
    python = "".join(file.read_text() for file in Path(launch.__file__).parent.glob("*.py"))
    assert re.search(rf"\b{sources.size('THREADS')}\b", python) is None


def test_coefficients_have_the_order_of_passes() -> None:
    found = re.search(r"struct Coefficients \{\s*float ([\w, ]+);", (sources.csrc() / "cuda" / "client.h").read_text())
    assert found is not None
    names = [name.upper() for name in found[1].split(", ")]
    assert [getattr(passes, name) for name in names] == list(range(passes.COEFFICIENTS))


def test_curves_have_the_numbers_of_layers() -> None:
    text = (sources.csrc() / "cuda" / "dense_step.cu").read_text()
    found = re.search(r"enum FusedCurve \{ NO_CURVE, ([\w, ]+) \};", text)
    assert found is not None
    assert (layers.NONE, *(getattr(layers, name) for name in found[1].split(", "))) == layers.FROM_OUTPUT
    assert layers.FROM_OUTPUT == (0, 1, 2, 3)  # as an enum counts


@pytest.mark.parametrize("structure", [dense_step.DenseLayer, dense_step.DenseValues], ids=lambda s: s.__name__)
def test_dense_structures_have_the_order_of_the_source(structure: type[ctypes.Structure]) -> None:
    text = (sources.csrc() / "cuda" / "dense_step.cu").read_text()
    found = re.search(rf"struct {structure.__name__} \{{\n(.*?)\n\}};", text, re.DOTALL)
    assert found is not None
    declared = re.findall(r"^ *(?:const )?(?:long long|float|int)\b([^;]*);", found[1], re.MULTILINE)
    assert re.findall(r"\w+", ",".join(declared)) == [field[0] for field in structure._fields_]


@pytest.mark.parametrize("allows_wide", [False, True])
@pytest.mark.parametrize("d", [1, 7_850, 27_648, 55_296, 110_592, 1_000_004])
def test_sums_over_clients_reach_all_of_a_card(d: int, allows_wide: bool) -> None:
    """As many blocks as two per multiprocessor, or blocks of one warp with one number a thread; every number is had."""
    grid = SumGrid.of(d, allows_wide)
    of_block = grid.threads * (launch.QUAD if grid.wide else 1)
    assert d <= grid.blocks * of_block < d + of_block
    assert grid.blocks >= LEAST_BLOCKS or of_block == sources.size("LANES")
    assert grid.threads % sources.size("LANES") == 0
    assert allows_wide or not grid.wide
    if d > 1_000_000:
        assert (grid.wide, grid.threads) == (allows_wide, launch.THREADS)


class Recorder:
    """A launcher that only notes its grids."""

    def __init__(self) -> None:
        self.grids: list[tuple[int, int, int]] = []

    def launch(self, stem: str, kernel: str, grid: tuple[int, int, int], *_: object) -> None:
        self.grids.append(grid)


@pytest.mark.parametrize("clients", [1, 65535, 65536, 200_000])
def test_grid_holds_any_number_of_clients(clients: int, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    monkeypatch.setattr(launch, "launcher", lambda: recorder)
    launch.run("norms", "square_rows", torch.device("cpu"), 3, clients)
    ((x, y, z),) = recorder.grids
    assert x == 3
    assert y <= 65535
    assert clients <= y * z < clients + z


# ---- the host launcher ----------------------------------------------------------------------------------------------

TOY_KERNELS = """
#include "cuda/grid.h"

FF_KERNEL(reverse, (int* data)) {
  __shared__ int kept[1024];
  int* mine = data + blockIdx.x * blockDim.x;
  kept[threadIdx.x] = mine[threadIdx.x];
  __syncthreads();
  mine[threadIdx.x] = kept[blockDim.x - 1 - threadIdx.x];
}

FF_KERNEL(warp_sums, (const double* in, double* out)) {
  const double sum = fastfed::warp_sum(in[threadIdx.x]);
  if (threadIdx.x % 32 == 0) out[threadIdx.x / 32] = sum;
}

FF_KERNEL(block_sums, (const double* in, double* out)) {
  const double sum = fastfed::block_sum(in[blockIdx.x * blockDim.x + threadIdx.x]);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

FF_KERNEL(swap_neighbours, (int* data)) {
  data[threadIdx.x] = __shfl_xor_sync(0xFFFFFFFFu, data[threadIdx.x], 1);
}

FF_KERNEL(indices, (int* out)) {
  const int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  out[block * blockDim.x + threadIdx.x] = 1000 * block + int(threadIdx.x);
}

FF_KERNEL(largest, (const int* in, int* out)) { atomicMax(out, in[threadIdx.x]); }

FF_KERNEL(divergent_barrier, (int* data)) {
  if (threadIdx.x == 3) return;
  __syncthreads();
  data[0] = 1;
}

FF_KERNEL(two_barriers, (int* data)) {
  if (threadIdx.x < 5) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  data[0] = 1;
}

FF_KERNEL(missing_lane, (int* data)) {
  if (threadIdx.x == 40) return;
  data[threadIdx.x] = __shfl_down_sync(0xFFFFFFFFu, data[threadIdx.x], 1);
}
"""


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> host.HostLauncher:
    if shutil.which("g++") is None:
        pytest.skip("g++ is not on PATH")
    folder = tmp_path_factory.mktemp("toys")
    (folder / "toys.cu").write_text(TOY_KERNELS)
    host.build([folder / "toys.cu"], folder / "toys.so")
    return host.HostLauncher(folder / "toys.so")


def start(
    toys: host.HostLauncher, kernel: str, *tensors: torch.Tensor, grid: tuple[int, int, int] = (1, 1, 1), threads: int
) -> None:
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]
    toys.launch("toys", kernel, grid, torch.device("cpu"), pointers, threads)


def test_barrier_lets_a_block_reverse_itself(toys: host.HostLauncher) -> None:
    data = torch.arange(3 * 96, dtype=torch.int32)
    start(toys, "reverse", data, grid=(3, 1, 1), threads=96)
    assert torch.equal(data, torch.arange(3 * 96, dtype=torch.int32).view(3, 96).flip(1).flatten())


def test_shuffles_add_up_a_warp(toys: host.HostLauncher) -> None:
    numbers, sums = torch.rand(128, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    start(toys, "warp_sums", numbers, sums, threads=128)
    torch.testing.assert_close(sums, numbers.view(4, 32).sum(1), rtol=1e-14, atol=0)


def test_block_sum_adds_up_every_block(toys: host.HostLauncher) -> None:
    threads = sources.size("THREADS")
    numbers, sums = torch.rand(5 * threads, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)
    start(toys, "block_sums", numbers, sums, grid=(5, 1, 1), threads=threads)
    torch.testing.assert_close(sums, numbers.view(5, threads).sum(1), rtol=1e-14, atol=0)


def test_shuffle_by_xor_swaps_neighbours(toys: host.HostLauncher) -> None:
    data = torch.arange(64, dtype=torch.int32)
    start(toys, "swap_neighbours", data, threads=64)
    assert torch.equal(data, torch.arange(64, dtype=torch.int32) ^ 1)


def test_every_thread_of_the_grid_runs_once(toys: host.HostLauncher) -> None:
    out = torch.full((2 * 3 * 4, 33), -1, dtype=torch.int32)
    start(toys, "indices", out, grid=(4, 3, 2), threads=33)
    expected = 1000 * torch.arange(24)[:, None] + torch.arange(33)[None]
    assert torch.equal(out, expected.to(torch.int32))


def test_atomic_maximum(toys: host.HostLauncher) -> None:
    numbers, out = torch.randint(0, 1000, (256,), dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    start(toys, "largest", numbers, out, threads=256)
    assert out[0] == numbers.max()


@pytest.mark.parametrize(
    ("kernel", "complaint"),
    [
        ("divergent_barrier", r"divergent barrier at toys.cu:\d+: thread 0 of block \(0, 0, 0\).* 63 of 64"),
        ("two_barriers", r"threads wait at different places: toys.cu:\d+ and toys.cu:\d+"),
        ("missing_lane", r"shuffle with missing lanes at toys.cu:\d+.* 31 of 32 threads"),
    ],
)
def test_what_would_hang_a_gpu_is_reported(toys: host.HostLauncher, kernel: str, complaint: str) -> None:
    data = torch.zeros(64, dtype=torch.int32)
    with pytest.raises(RuntimeError, match=complaint):
        start(toys, kernel, data, threads=64)
    start(toys, "swap_neighbours", data, threads=64)  # and the launcher works on


def test_wrong_arguments_are_reported(toys: host.HostLauncher) -> None:
    data = torch.zeros(64, dtype=torch.int32)
    with pytest.raises(RuntimeError, match="no kernel nonsense"):
        start(toys, "nonsense", data, threads=64)
    with pytest.raises(RuntimeError, match="kernel reverse takes 1 arguments, got 2"):
        start(toys, "reverse", data, data, threads=64)
    with pytest.raises(RuntimeError, match="kernel reverse takes 8 bytes as argument 0, got 4"):
        toys.launch("toys", "reverse", (1, 1, 1), torch.device("cpu"), [ctypes.c_int(1)], 64)


@needs_compiler
@pytest.mark.parametrize("file", [*sources.kernel_files(), sources.csrc() / "cuda" / "host.cpp"], ids=lambda f: f.name)
def test_file_compiles_for_the_host_without_warnings(file: Path) -> None:
    """Without code generation, which is the host session's."""
    command = [host.compiler(), *host.FLAGS, "-Werror", "-I", str(sources.csrc()), "-x", "c++", "-fsyntax-only"]
    done = subprocess.run([*command, "-include", "cuda/host.h", str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
