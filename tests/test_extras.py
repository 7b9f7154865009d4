"""What FastFed is without its extras: the whole engine, from Python; and what it says where a package is missing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Only what pyproject.toml calls a dependency, and what that brings, may be imported.
ALONE = """
import sys
sys.modules.update(dict.fromkeys({refused}))  # as if they were not installed
{program}
"""
EXTRAS = [
    *("numba", "typer", "rich", "pydantic", "tomli_w", "matplotlib", "PIL", "dp_accounting", "h5py", "scipy", "jax"),
    *("flwr", "pfl"),
]


def run(program: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", ALONE.format(refused=set(EXTRAS), program=program)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


def test_the_engine_needs_no_extra(tmp_path: Path) -> None:
    program = """
import fastfed as ff
fed = ff.data.iid(ff.data.digits(), clients=10)
made = dict(cohort=3, epochs=1, batch_size=20, **ff.methods.fedadam(0.1, 0.01))
sim = ff.Simulation(ff.models.mlp(64, 8, 10), fed, **made)
history = sim.run(2, evaluate_every=1, checkpoint="kept", checkpoint_every=1)
resumed = ff.Simulation.resume("kept")
print(sim.executor.name, len(history.rounds), resumed.round)
"""
    said = run(program, tmp_path)
    assert said.returncode == 0, said.stderr
    assert said.stdout.split() == ["native", "2", "2"]


SENTENCES = {
    "ff.data.draw_partition(ff.data.iid(ff.data.digits(), 5))": r"a picture needs matplotlib: .*fastfed\[plots\]",
    "str(ff.methods.table(ff.models.mlp(4, 3)))": r"a printed table of costs needs rich: .*fastfed\[app\]",
    "ff.kernels.server_step('sgd', x, x.clone(), {}, lr=1.0, backend='numba')": r"numba.*is not installed",
}


def test_what_needs_an_extra_says_which() -> None:
    """All in one process: importing torch is what takes long."""
    program = f"""
import json, torch, fastfed as ff
said, x = {{}}, torch.zeros(3)
for wanted in {list(SENTENCES)}:
    try:
        eval(wanted)
    except (ImportError, RuntimeError) as error:
        said[wanted] = str(error)
print(json.dumps(said))
"""
    done = run(program)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    for wanted, sentence in SENTENCES.items():
        assert re.search(sentence, said[wanted]), said


def test_the_command_line_says_what_it_needs() -> None:
    said = run("import runpy; runpy.run_module('fastfed', run_name='__main__')")
    assert said.returncode == 1
    assert said.stderr == "fastfed: the command line needs typer: pip install 'fastfed[app]'\n"


def test_the_module_is_the_command_line() -> None:
    said = subprocess.run([sys.executable, "-m", "fastfed", "--version"], capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith("fastfed ")
