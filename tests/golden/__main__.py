"""Keeps the bits of this commit, for the test of the next one: ``python -m tests.golden``.

Run it on the commit *before* a change that must not change bits, on the machine that will test the change; with
``TRITON_INTERPRET=1`` it keeps those of executor `device`. ``--files`` also writes the checkpoints and the run
directory anew, which are meant to stay as old as they are: only a change of their format that is wanted is a reason.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

import torch

from fastfed.app import runs

from .setups import (
    CHECKPOINTS,
    HASHES,
    RESUMED,
    ROUNDS,
    RUN,
    Hashes,
    configured,
    digests,
    executors,
    finished,
    half_done,
    kind_of_machine,
    names,
    of_run,
)


def found_here() -> Hashes:
    """The hashes of this session's runs, and of the run directory where `native` belongs to the session."""
    hashes: Hashes = {}
    for name in names():
        sim = finished(half_done(name))
        hashes[name] = digests(sim.params, sim.history)
    if "native" in executors():
        with tempfile.TemporaryDirectory() as scratch:
            hashes["run"] = of_run(runs.execute(configured(ROUNDS), Path(scratch) / "run", progress=False).path)
    return hashes


def write_files() -> None:
    for old in (CHECKPOINTS, RUN):
        shutil.rmtree(old, ignore_errors=True)
    for name in RESUMED:
        half_done(f"{name}/native").save(CHECKPOINTS / name)
    runs.execute(configured(ROUNDS // 2), RUN, progress=False)


def main() -> None:
    torch.set_num_threads(2)
    kept: dict[str, Hashes] = json.loads(HASHES.read_text()) if HASHES.exists() else {}
    kept[kind_of_machine()] = found_here()
    HASHES.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
    if "--files" in sys.argv[1:]:
        write_files()


if __name__ == "__main__":
    main()
