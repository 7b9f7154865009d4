"""Processes that meet on the loopback, and what they leave behind."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def environment(rank: int, count: int, port: int) -> dict[str, str]:
    """As torchrun makes it, on the loopback alone."""
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    who = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
    quiet = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "COLUMNS": "200"}
    return {**os.environ, **where, **who, **quiet}


def started(count: int, *command: str, **more: str) -> list[subprocess.Popen[str]]:
    """So many processes of a module with its arguments, as ranks of one run; `more` is in their environment."""
    port = free_port()
    return [
        subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=ROOT,
            env={**environment(rank, count, port), **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]


def ended(processes: Sequence[subprocess.Popen[str]], seconds: float = 240) -> list[tuple[int, str, str]]:
    """Exit codes and what was said; whoever is still there after so many seconds is ended."""
    try:
        said = [process.communicate(timeout=seconds) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
    return [(process.returncode, *one) for process, one in zip(processes, said, strict=True)]


def started_job(folder: Path, names: Sequence[str], count: int, **more: bool) -> list[subprocess.Popen[str]]:
    """The ranks of a job (``worker.py``)."""
    folder.mkdir(exist_ok=True)
    file = folder / "job.json"
    file.write_text(json.dumps({"folder": str(folder), "names": list(names), **more}))
    return started(count, "tests.ranks.worker", str(file))


def job(folder: Path, names: Sequence[str], count: int, *, resume: bool = False) -> list[dict[str, Any]]:
    """What every rank of a job found, by rank."""
    for code, _, errors in ended(started_job(folder, names, count, resume=resume), 1500):
        assert code == 0, errors
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(count)]
