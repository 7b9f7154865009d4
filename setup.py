"""Builds the private extension ``fastfed._core``. Everything else of the package is described in pyproject.toml.

Without a working C++ compiler FastFed still installs: the numba backend takes over and `fastfed doctor` says so.
"""

from __future__ import annotations

import os
import platform
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
NATIVE = ("bind", "engine", "kernels", "simd")  # the parts of csrc/ that the extension is made of
ABI = "csrc/abi/fastfed.cpp"  # with the kernels and the loops under them, the library for programs in C and C++
LIBRARY = "libfastfed.so"
NOT_IN_LIBRARY = ("products", "pools", "winograd", "library")  # the engine's
ALL_BINDINGS = "csrc/bind/all.cpp"
IS_X86 = platform.machine().lower() in ("x86_64", "amd64")

AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]
# One SIMD level per file, chosen at run time; csrc/simd/simd.h lists them. Rounding is the same at every level:
# contraction into fused multiply-adds is off, so that the bits do not depend on the compiler's mood.
SIMD_FLAGS = {
    "vector_loops_avx2.cpp": ["-mavx2", "-mf16c"],
    "vector_loops_avx512.cpp": [*AVX512, "-mf16c", "-mprefer-vector-width=512"],
    "pools_avx2.cpp": ["-mavx2"],
    "pools_avx512.cpp": AVX512,
    # Matrix products and Winograd's transforms are another matter: there the fused multiply-add is half of the speed,
    # and nothing but the engine uses them.
    "products_scalar.cpp": ["-ffp-contract=fast"],
    "products_avx2.cpp": ["-ffp-contract=fast", "-mavx2", "-mfma"],
    "products_avx512.cpp": ["-ffp-contract=fast", *AVX512, "-mfma"],
    "winograd_scalar.cpp": ["-ffp-contract=fast"],
    "winograd_avx2.cpp": ["-ffp-contract=fast", "-mavx2", "-mfma"],
    "winograd_avx512.cpp": ["-ffp-contract=fast", *AVX512, "-mfma"],
}
COMMON_FLAGS = [
    "-std=c++17", "-O3", "-g0", "-fopenmp", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno",
    "-fno-trapping-math", "-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Wno-sign-conversion",
]  # fmt: skip
# FASTFED_SANITIZE=address,undefined builds an extension that ends at the first thing it should not do: `make asan`.
SANITIZERS = os.environ.get("FASTFED_SANITIZE")
SANITIZED = (
    [f"-fsanitize={SANITIZERS}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-O1", "-g1"]
    if SANITIZERS
    else []
)

NEEDS_PYBIND11 = """
FastFed's bindings are written with pybind11, which is not installed here. Please run

    pip install .

which fetches it for the build, or, without build isolation,

    pip install 'pybind11>=2.13' 'setuptools>=77' wheel
    pip install --no-build-isolation .
"""
NO_COMPILER = """
-----------------------------------------------------------------------------------------------------------
FastFed: the C++ extension was NOT built: {error}
FastFed will run on its numba backend. For the fast one, install a C++17 compiler (g++ or clang++) and
reinstall with: pip install --force-reinstall --no-deps .
-----------------------------------------------------------------------------------------------------------
"""


def pybind11_headers() -> str:
    try:
        import pybind11
    except ModuleNotFoundError:
        sys.exit(NEEDS_PYBIND11)
    return pybind11.get_include()


def extension() -> Extension:
    files = [file for place in NATIVE for file in (ROOT / "csrc" / place).rglob("*.cpp")]
    # The longest first, so that nothing is left to wait for; it includes the others of its directory.
    sources = [ALL_BINDINGS, ABI, *sorted(str(file.relative_to(ROOT)) for file in files if file.parent.name != "bind")]
    if not IS_X86:
        sources = [source for source in sources if not Path(source).stem.endswith(("_avx2", "_avx512"))]
    return Extension(
        "fastfed._core",
        sources,
        depends=[str(p.relative_to(ROOT)) for p in (ROOT / "csrc").rglob("*") if p.suffix in (".h", ".inl", ".cpp")],
        include_dirs=["csrc"],
        libraries=["dl"],
        define_macros=[("FASTFED_X86", str(int(IS_X86)))],
        # as system headers: their warnings are not ours to fix
        extra_compile_args=[*COMMON_FLAGS, *SANITIZED, "-isystem", pybind11_headers()],
        extra_link_args=["-fopenmp", *SANITIZED],
        language="c++",
    )


class BuildExtension(build_ext):
    """Compiles files side by side, each with its SIMD flags; a missing compiler is a notice, not a failure."""

    def run(self) -> None:
        try:
            super().run()
        except Exception as error:  # distutils raises many kinds, and none of them should stop the installation
            if os.environ.get("FASTFED_REQUIRE_EXTENSION"):
                raise
            print(NO_COMPILER.format(error=error), file=sys.stderr)
            for ext in self.extensions:
                ext.optional = True
            self.extensions = []

    def library_path(self) -> Path:
        return Path(self.get_ext_fullpath("fastfed._core")).parent / LIBRARY

    def get_outputs(self) -> list[str]:
        return [*super().get_outputs(), *([str(self.library_path())] if self.extensions else [])]

    def copy_extensions_to_source(self) -> None:
        super().copy_extensions_to_source()
        if self.extensions:
            self.copy_file(str(Path(self.build_lib) / "fastfed" / LIBRARY), str(ROOT / "fastfed" / LIBRARY))

    def link_library(self, objects: list[str]) -> None:
        """The kernels once more, from the same objects, for whoever does not come from Python."""
        wanted = [
            one
            for one in objects
            if Path(one).parent.name in ("abi", "kernels", "simd") and not Path(one).stem.startswith(NOT_IN_LIBRARY)
        ]
        # A sanitizer's runtime is the process's, which is loaded first: its names are found then.
        whole = sys.platform == "linux" and not SANITIZED
        options = ["-fopenmp", *SANITIZED, *(["-Wl,--no-undefined"] if whole else [])]
        self.compiler.link_shared_object(wanted, str(self.library_path()), extra_postargs=options, target_lang="c++")

    def build_extension(self, ext: Extension) -> None:
        compiled: list[str] = []
        compile_all = self.compiler.compile

        def compile_one(source: str, **options: object) -> list[str]:
            extra = [*options.pop("extra_postargs"), *SIMD_FLAGS.get(Path(source).name, [])]
            return compile_all([source], extra_postargs=extra, **options)

        def compile_side_by_side(sources: list[str], **options: object) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                jobs = [pool.submit(compile_one, source, **options) for source in sources]
                compiled[:] = [obj for job in jobs for obj in job.result()]
            # The extension does without the names of C.
            return [obj for obj in compiled if Path(obj).parent.name != "abi"]

        self.compiler.compile = compile_side_by_side
        super().build_extension(ext)
        if compiled:
            self.link_library(compiled)


# kernels/, bench/ and csrc/ are parts of the package: links in fastfed/ put them in their place, so that every checkout
# imports its own whatever is installed elsewhere. `package_dir` says what is the default anyhow: with it, an editable
# installation is this directory on Python's path, and not a list of places that other checkouts would have to share.
setup(
    packages=[*find_packages(include=["fastfed", "fastfed.*"]), "fastfed.csrc"],
    package_dir={"": "."},
    package_data={
        "fastfed": ["py.typed", "*.pyi"],
        "fastfed.csrc": ["**/*.h", "cuda/*"],
        "fastfed.data": ["embedded/*"],
        "fastfed.app.report": ["page.*"],
    },
    ext_modules=[extension()],
    cmdclass={"build_ext": BuildExtension},
)
