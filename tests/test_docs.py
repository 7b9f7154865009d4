"""The documentation: its examples run and print what it shows, its commands exist, its links and names resolve."""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import typer
from typer.testing import CliRunner

import fastfed as ff
from fastfed.app import cli, config, sweep
from fastfed.bench import (
    checkpoints,
    convolutions,
    device_costs,
    epochs,
    events,
    flower,
    gpu_report,
    host_time,
    memory,
    optim,
    ranks,
    robust,
    rooms,
    waiting,
)
from fastfed.bench.kernels import cases

from .pages import blocks, file_of, run_page

ROOT = Path(__file__).parents[1]
PAGES = {str(path.relative_to(ROOT)): path.read_text() for path in sorted((ROOT / "docs").rglob("*.md"))}
ALL = {**PAGES, "README.md": (ROOT / "README.md").read_text()}

every_page = pytest.mark.parametrize("page", ALL)


# ---- examples -------------------------------------------------------------------------------------------------------

ELSEWHERE = ("docs/flower.md", "docs/pfl.md")  # pages whose examples run where their host is: tests/integrations
EXECUTED = (
    "docs/runs.md",
    "docs/sweeps.md",
    "docs/reports.md",
    "docs/model.md",
)  # pages whose commands are run, not only looked up


def run_command(line: str, where: str) -> str:
    """What a ``fastfed`` command prints. Its exit code is 0, or what a comment behind it says: ``# exit code 2``."""
    command, _, comment = line.partition("#")
    words = shlex.split(command)
    if not words:
        return ""
    wanted = re.search(r"exit code (\d+)", comment)
    assert words[0] == "fastfed", f"{where}: only commands of fastfed are run, not {words[0]}"
    done = CliRunner().invoke(cli.app, words[1:])
    assert done.exit_code == int(wanted[1] if wanted else 0), f"{where}: {line}\n{done.output}{done.exception!r}"
    return done.output


RUN = [page for page, text in PAGES.items() if ("```python" in text or page in EXECUTED) and page not in ELSEWHERE]


SLOW = {"docs/sweeps.md"}  # a page that `make rule-proof` runs


@pytest.mark.parametrize("page", [pytest.param(p, marks=pytest.mark.exhaustive if p in SLOW else ()) for p in RUN])
@pytest.mark.xdist_group("docs")  # what one page has compiled and imported serves the next
def test_examples_run_and_print_what_is_shown(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(page, PAGES[page], run_command if page in EXECUTED else None)


def test_an_output_that_is_not_printed_is_noticed() -> None:
    page = "```python\nprint('loss', 0.5)\n```\n\n```text\nloss {}\n```\n"
    run_page("right", page.format("0.51"))
    for wrong in ("0.7", "0.5 0.5", "of 0.5", ""):
        with pytest.raises(AssertionError, match="wrong:6: shows"):
            run_page("wrong", page.format(wrong))
    with pytest.raises(AssertionError, match="no block printed"):
        run_page("alone", "```text\n1\n```\n")


def test_a_command_that_does_otherwise_is_noticed() -> None:
    page = "```sh\nfastfed {}\n```\n\n```text\n{}\n```\n"
    run_page("right", page.format("--version", f"fastfed {ff.__version__}"), run_command)
    run_page("right", page.format("run missing.toml  # exit code 2", ""), run_command)
    for command, shown in (("--version", "fastfed 7.7.7"), ("--version # exit code 2", ""), ("run missing.toml", "")):
        with pytest.raises(AssertionError, match="wrong:"):
            run_page("wrong", page.format(command, shown), run_command)


def configurations(text: str, home: Path) -> list[dict[str, Any]]:
    """The tables of a page's TOML blocks: files as they are, on their bases, which a page shows before them; other
    tables in place of those of the file before them."""
    found: list[dict[str, Any]] = []
    file: dict[str, Any] = {}
    for block in blocks(text):
        name = file_of(block)
        if block.language == "python" and name:
            (home / name).write_text(block.text)
        if block.language == "toml":
            if name:
                (home / name).write_text(block.text)
                file = config.document.read(home / name)
            found.append(file if name else {**file, **config.document.tomllib.loads(block.text)})
    return found


@pytest.mark.parametrize("page", [page for page, text in PAGES.items() if "```toml" in text])
def test_configurations_are_accepted(page: str, tmp_path: Path) -> None:
    for tables in configurations(PAGES[page], tmp_path):
        if "sweep" in tables:
            (tmp_path / "sweep.toml").write_text(config.document.write(tables))
            assert sweep.plan(tmp_path / "sweep.toml").points
        else:
            config.parse(tables)


# ---- commands -------------------------------------------------------------------------------------------------------


_MODULES = (
    checkpoints, convolutions, device_costs, epochs, events, flower, gpu_report, host_time, memory, optim, ranks,
    robust, rooms, waiting,
)  # fmt: skip
PROGRAMS = {module.__name__: module.app for module in _MODULES}


def problem_with(command: str) -> str | None:
    """What is wrong with a line of a shell block; None if its program, subcommand and options exist."""
    words = shlex.split(command, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words = words[1:]
    match words:
        case []:
            return None
        case ["fastfed", *rest]:
            return _unknown(cli.app, [word for word in rest if re.fullmatch("[a-z]+", word)][:2], rest)
        case ["torchrun", *rest] if "fastfed" in rest:
            return problem_with(shlex.join(rest[rest.index("fastfed") :]))
        case ["torchrun", *_, script] if script.endswith(".py"):
            return None
        case ["python", "-m", program, *rest] if program in PROGRAMS:
            return _unknown(PROGRAMS[program], [], rest)
        case ["python", "-m", "pytest", *rest]:
            return next((f"{word}: no such place" for word in rest if "/" in word and not (ROOT / word).exists()), None)
        case ["make", target]:
            targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            return None if target in targets else f"{target}: no such target"
        case ["python", script, *_] if script.endswith(".py"):
            return None if (ROOT / script).is_file() else f"{script}: no such file"
        case ["pip", "install", *_]:
            return None
    return f"{command}: not a command that this test knows"


def _unknown(app: Any, path: list[str], words: list[str]) -> str | None:
    """Asks the program itself: the help of a command that does not exist fails."""
    for length in range(len(path), -1, -1):  # a lower-case word may also be an argument
        help = CliRunner().invoke(app, [*path[:length], "--help"])
        if help.exit_code == 0:
            break
    if path and length == 0:
        return f"{path[0]}: no such command"
    known = set(re.findall(r"--[a-z-]+", help.output))
    options = [word.split("=")[0] for word in words if word.startswith("--")]
    return next((f"{option}: no such option of {path[:length]}" for option in options if option not in known), None)


def commands_of(text: str) -> list[str]:
    """The lines of a page's shell blocks, fenced or, as in the README, indented."""
    fenced = [line for block in blocks(text) if block.language == "sh" for line in block.text.splitlines()]
    outside = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return fenced + re.findall(r"^    ((?:fastfed|make|pip|python|torchrun) .*)$", outside, re.MULTILINE)


@every_page
def test_commands_exist(page: str) -> None:
    problems = [problem for problem in map(problem_with, commands_of(ALL[page])) if problem]
    assert not problems


@cache
def options_of_commands() -> frozenset[str]:
    """The options of all commands of ``fastfed``."""

    def below(command: Any) -> set[str]:
        own = {option for parameter in command.params for option in parameter.opts}
        return own.union(*(below(other) for other in getattr(command, "commands", {}).values())) | {"--help"}

    return frozenset(below(typer.main.get_command(cli.app)))


@pytest.mark.parametrize(
    "line",
    [
        "fastfed benches kernels",
        "fastfed bench kernels --size 1",
        "fastfed doctor --yaml",
        "torchrun --nproc-per-node 4 -m fastfed ruin a.toml",
        "torchrun --nproc-per-node 4 -m fastfed run a.toml --rank 4",
        "python -m fastfed.bench.events --client 3",
        "python -m fastfed.bench.host_time --client 3",
        "python -m fastfed.bench.optim --turn 3",
        "python -m fastfed.bench.device_cost",
        "python -m pytest tests/kernel",
        "python experiments/fashion.py",
        "make coffee",
        "curl example.org",
    ],
)
def test_a_command_that_does_not_exist_is_noticed(line: str) -> None:
    assert problem_with(line)


# C++ in test_abi.py, what others write ("py") in tests/integrations
TESTED = {"python", "sh", "text", "toml", "diff", "cpp", "py"}


def test_blocks_have_a_language_that_is_tested() -> None:
    for page, text in PAGES.items():
        assert text.count("```") == 2 * len(blocks(text)), f"{page}: a fence is not closed, or indented"
        others = {block.language for block in blocks(text)} - TESTED
        assert not others, f"{page}: nothing tests blocks of {others}"


# ---- the page that adds a rule --------------------------------------------------------------------------------------

RULE_PAGE = "docs/adding_a_rule.md"


class Change(NamedTuple):
    """A block of the page: in `file`, the lines `old` become `new`."""

    file: str
    old: str
    new: str


def changes(text: str) -> list[Change]:
    found = []
    for block in blocks(text):
        if block.language == "diff":
            head, *lines = block.text.splitlines()
            old, new = ("".join(f"{line[1:]}\n" for line in lines if line[0] in f" {kind}") for kind in "-+")
            found.append(Change(head.removeprefix("--- "), old, new))
    return found


def apply(change: Change, tree: Path) -> None:
    text = (tree / change.file).read_text()
    assert text.count(change.old) == 1, f"{RULE_PAGE}: {change.file} has not once\n{change.old}"
    (tree / change.file).write_text(text.replace(change.old, change.new))


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources with the page's changes, and without a compiled extension."""
    tree = tmp_path_factory.mktemp("rule")
    unwanted = shutil.ignore_patterns("__pycache__", "*.png", "*.so")
    for place in ("fastfed", "kernels", "csrc", "bench", "tests", "docs"):
        shutil.copytree(ROOT / place, tree / place, ignore=unwanted, symlinks=True)
    for file in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, tree)
    for change in changes(PAGES[RULE_PAGE]):
        apply(change, tree)
    return tree


def run_there(tree: Path, *arguments: str, **environment: str) -> str:
    """What Python prints when it is run on the copy."""
    ours = {key: value for key, value in os.environ.items() if key != "FASTFED_BACKEND"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=tree, env={**ours, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def passed_there(tree: Path, which: str, *arguments: str, **environment: str) -> int:
    """How many of the tests passed that pytest's -k `which` names."""
    quiet = ("-q", "-p", "no:cacheprovider", f"--basetemp={tree / 'tmp'}")
    said = run_there(tree, "-m", "pytest", *quiet, "-k", which, *arguments, **environment)
    return int(re.findall(r"(\d+) passed", said)[0])


CASES, ORACLES = "tests/kernels/test_cases.py", "tests/kernels/test_oracles.py"
OF_RULES = 9 + 8  # cases of the server's rule and of the clients', on one backend


def test_a_rule_is_as_few_files_as_the_page_says() -> None:
    server, client = PAGES[RULE_PAGE].split("\n## A client rule\n")
    for text, most in ((server, 6), (client, 7)):
        assert len({change.file for change in changes(text)} - {"docs/rules.md"}) == most


@pytest.mark.exhaustive
def test_the_page_adds_rules(extended: Path) -> None:
    """On the backends that Python makes, without the five large ones of the cases."""
    small = "nesterov and (reference or numba) and not (1000003 or 4097)"
    complete = "has_cases or has_an_oracle or page_of_rules"
    passed = passed_there(extended, f"({small}) or {complete}", CASES, ORACLES, "tests/app/test_cli.py")
    assert passed == 2 * (OF_RULES - 5 + 2) + 3
    assert passed_there(extended, "nesterov-7 and triton", CASES, TRITON_INTERPRET="1") == 3
    rounds = """
import fastfed as ff
fed = ff.data.iid(ff.data.digits(), clients=10)
client, server = ff.clients.Nesterov(lr=0.05), ff.servers.FedNesterov(lr=0.5)
sim = ff.Simulation(ff.models.mlp(64, 8, 10), fed, cohort=5, client=client, server=server)
print(sim.run(rounds=6, evaluate_every=6, progress=False).last("test_accuracy"))
"""
    assert float(run_there(extended, "-c", rounds)) > 0.5


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not on PATH")
def test_the_page_adds_rules_to_every_backend(extended: Path) -> None:
    """The extension is built from the copy: minutes."""
    run_there(extended, "setup.py", "build_ext", "--inplace", FASTFED_REQUIRE_EXTENSION="1")
    print(run_there(extended, "-c", "from fastfed import _core; print(_core.server_formulas(), _core.directions())"))
    assert passed_there(extended, "nesterov", CASES, ORACLES) == 3 * (OF_RULES + 2) + OF_RULES  # and in float64
    for session in ({"TRITON_INTERPRET": "1", "FASTFED_TILES": "wide"}, {"FASTFED_CUDA_HOST": "1"}):
        assert passed_there(extended, "nesterov", "-m", "backend", CASES, ORACLES, **session) == OF_RULES + 2
    all_changes = changes(PAGES[RULE_PAGE])
    for change in reversed(all_changes):  # and the rules go again
        apply(Change(change.file, change.new, change.old), extended)
    assert all((extended / change.file).read_text() == (ROOT / change.file).read_text() for change in all_changes)


# ---- links and names ------------------------------------------------------------------------------------------------


def prose(text: str) -> str:
    """The text without its fenced and indented blocks."""
    return re.sub(r"^(    .*\n)+", "", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.M), flags=re.M)


def broken_links(page: str, text: str) -> list[str]:
    """The links to files or headings that do not exist."""
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(text)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, heading = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        if not target.exists() or (heading and heading not in anchors(target.read_text())):
            broken.append(link)
    return broken


def anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@every_page
def test_links_resolve(page: str) -> None:
    assert not broken_links(page, ALL[page])


def test_every_page_is_reached_from_the_index() -> None:
    linked = {(ROOT / "docs" / link).resolve() for link in re.findall(r"\]\(([^)#]+\.md)\)", PAGES["docs/index.md"])}
    missing = [page for page in PAGES if (ROOT / page) not in linked and page != "docs/index.md"]
    assert not missing


PLACES = ("fastfed", "kernels", "csrc", "bench", "tests", "docs", "experiments")
TEXTS = {".py", ".h", ".cpp", ".inl", ".cu", ".pyi", ".toml"}


@cache
def words_of_the_project() -> frozenset[str]:
    """Every identifier in the sources and in the files beside them, and the names of the ops that are timed."""
    files = [path for place in PLACES for path in (ROOT / place).rglob("*") if path.suffix in TEXTS]
    files = [path for path in files if path != Path(__file__)]
    files += [ROOT / name for name in ("Makefile", "pyproject.toml", "setup.py", ".gitignore")]
    return frozenset(word for path in files for word in re.findall(r"\w+", path.read_text())) | cases.CASES.keys()


def problem_of(name: str) -> str | None:
    """What is wrong with something in backticks: a path, a test, a name of ``ff`` or ``fastfed``, or a plain word."""
    path, _, test = name.partition("::")
    if re.fullmatch(r"[\w./*-]+", path) and path.split("/")[0] in PLACES and "/" in path:
        if not any(ROOT.glob(path.rstrip("/"))):
            return "no such path"
        return None if not test or f"def {test}(" in (ROOT / path).read_text() else "no such test"
    if re.fullmatch(r"[A-Za-z_]\w+", name):
        return None if name in words_of_the_project() else "a word that no source has"
    if name.startswith("fastfed ") or name.startswith("python "):
        return problem_with(name)
    if name.startswith("--"):
        return None if name.split()[0] in options_of_commands() else "no command has this option"
    try:
        tree = ast.parse(name.replace("...", ""), mode="eval")
    except SyntaxError:
        return None
    return next((problem for node in ast.walk(tree) if (problem := _problem_at(node))), None)


def _problem_at(node: ast.AST) -> str | None:
    """An attribute chain of FastFed must exist, and a call of it must take the keywords that it is given."""
    if isinstance(node, ast.Attribute):
        return None if _found(ast.unparse(node)) is not _MISSING else f"{ast.unparse(node)} does not exist"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        function = _found(ast.unparse(node.func))
        if not callable(function):
            return None
        taken = inspect.signature(function).parameters
        given = [keyword.arg for keyword in node.keywords if keyword.arg]
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values()):
            return next((f"{name}: not an argument of it" for name in given if name not in taken), None)
    return None


_MISSING = object()


def _found(dotted: str) -> Any:
    """The object of a dotted name that begins with ff or fastfed; None for other names."""
    first, *rest = dotted.split(".")
    if first not in ("ff", "fastfed") or not all(part.isidentifier() for part in rest):
        return None
    found: Any = ff
    for part in rest:
        if isinstance(found, ModuleType) and not hasattr(found, part):
            with contextlib.suppress(ImportError):
                importlib.import_module(f"{found.__name__}.{part}")
        found = getattr(found, part, _MISSING)
        if found is _MISSING:
            return _MISSING
    return found


def in_backticks(text: str) -> list[str]:
    return [" ".join(found.split()) for found in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose(text))]


@every_page
def test_names_in_backticks_exist(page: str) -> None:
    added = {word for change in changes(ALL[page]) for word in re.findall(r"\w+", change.new)}
    names = [name for name in in_backticks(ALL[page]) if name not in added]
    problems = {name: problem for name in names if (problem := problem_of(name))}
    assert not problems


@pytest.mark.parametrize(
    "name",
    [
        "ff.methods.fedada3",
        "ff.plan.Poison(0.1)",
        "ff.servers.FedYogi(lr=0.1, taw=1)",
        "timing=ff.timing.Wave",
        "fastfed.trainer",
        "fastfed/stepp.py",
        "tests/test_docs.py::test_nothing",
        "RoundWorks",
        "fastfed benches",
        "--alpha 3",
    ],
)
def test_a_name_that_does_not_exist_is_noticed(name: str) -> None:
    source = f"See `{name}`."
    (found,) = in_backticks(source)
    assert (problem_of(found) or problem_of(found.partition("=")[2])) is not None


@pytest.mark.parametrize("link", ["missing.md", "rules.md#rules-of-cricket", "laws/", "#nothing"])
def test_a_broken_link_is_noticed(link: str) -> None:
    expected = [] if link == "laws/" else [link]
    assert broken_links("docs/index.md", f"See [this]({link}).") == expected
