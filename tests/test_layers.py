"""The layers of the house: kernels know nothing of fastfed, rooms nothing of the app, the app nothing of kernels'
insides. Read from the imports, wherever in a file they stand."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import fastfed

PACKAGE = Path(fastfed.__file__).parent
ROOMS = ("plan", "train", "program", "aggregate", "exchange", "record", "saved", "data", "algorithms")
PARTS_OF_ROOMS = tuple(
    """simulation rooms run files settings hooks server tune clients servers models lora methods losses packing
    schedules timing fleet per_client compression privacy batch_norm norms past checks devices purposes extras abi
    optim waiting ranks board sharing training door notes metrics weights shown fine_tune
    loggers""".split()  # noqa: SIM905
)
DOORS_OF_KERNELS = ("fastfed.kernels", "fastfed.kernels.registry")  # what the app may know of them


def modules(*places: str) -> Iterator[tuple[str, Path]]:
    """Dotted names and files of all modules at these places below the package."""
    for place in places:
        path = PACKAGE / place
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]:
            parts = file.relative_to(PACKAGE).with_suffix("").parts
            yield ".".join(["fastfed", *(part for part in parts if part != "__init__")]), file


def imported(name: str, file: Path) -> set[str]:
    """The modules that a module imports from, as dotted names; `from a import b` counts as a and as a.b. What is for
    types alone is left out."""
    package = name.split(".") if file.name == "__init__.py" else name.split(".")[:-1]
    found: set[str] = set()
    tree = ast.parse(file.read_text())
    for_types = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    left_out = {inner for block in for_types for inner in ast.walk(block)}
    for node in set(ast.walk(tree)) - left_out:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            home = ".".join([*base, *([node.module] if node.module else [])])
            found |= {home, *(f"{home}.{alias.name}" for alias in node.names)}
    return {each for each in found if each.split(".")[0] == "fastfed"}


def is_below(name: str, place: str) -> bool:
    return name == place or name.startswith(f"{place}.")


def test_kernels_know_nothing_of_fastfed() -> None:
    allowed = ("fastfed.kernels", "fastfed._core")
    for name, file in modules("kernels"):
        foreign = {one for one in imported(name, file) - {"fastfed"} if not any(is_below(one, ok) for ok in allowed)}
        assert not foreign, (name, foreign)


def test_rooms_know_nothing_of_the_app() -> None:
    for name, file in modules(*ROOMS, *PARTS_OF_ROOMS):
        foreign = {
            one for one in imported(name, file) if is_below(one, "fastfed.app") or is_below(one, "fastfed.bench")
        }
        assert not foreign, (name, foreign)


def test_the_app_knows_nothing_of_the_insides_of_kernels() -> None:
    for name, file in modules("app"):
        inside = {one for one in imported(name, file) if is_below(one, "fastfed.kernels")}
        insides = {
            one
            for one in inside
            if any((PACKAGE / Path(*one.split(".")[1:])).with_suffix(s).exists() for s in ("", ".py"))
        }
        assert insides <= set(DOORS_OF_KERNELS), (name, insides)


def test_nobody_knows_the_hosts() -> None:
    """FastFed is whole without them; they use what any host of a user's own could."""
    for name, file in modules(*ROOMS, *PARTS_OF_ROOMS, "app", "kernels"):
        foreign = {one for one in imported(name, file) if is_below(one, "fastfed.integrations")}
        assert not foreign, (name, foreign)
    for name, file in modules("integrations"):
        foreign = {
            one for one in imported(name, file) if is_below(one, "fastfed.app") or is_below(one, "fastfed.bench")
        }
        assert not foreign, (name, foreign)


def test_every_module_belongs_to_a_layer() -> None:
    known = {
        *ROOMS,
        *PARTS_OF_ROOMS,
        "app",
        "kernels",
        "bench",
        "csrc",
        "integrations",
        "runs",
        "report",
        "torchrun",
        "cards",
        "_version",
        "__init__",
        "__main__",
    }
    there = {file.stem for file in PACKAGE.glob("*.py")} | {file.parent.name for file in PACKAGE.glob("*/__init__.py")}
    assert there <= known, there - known
