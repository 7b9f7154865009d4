"""Two "hosts" that only a cable connects: network namespaces with an address each, and torchrun between them.

The second has no run directory: the first rank alone writes. Needs root, and `ip` of iproute2.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import torch

import fastfed as ff
from fastfed.app import runs
from fastfed.app.config import load

from .support import ROOT
from .test_trouble import FILE

NAMES = (f"fastfed-a-{os.getpid()}", f"fastfed-b-{os.getpid()}")
ADDRESSES = ("10.213.7.1", "10.213.7.2")
CABLE = "ffcable"


def why_not() -> str | None:
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    if shutil.which("ip") is None:
        return "making network namespaces needs `ip` (iproute2)"
    tried = subprocess.run(["ip", "netns", "add", f"{NAMES[0]}-try"], capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"this system lets nobody make network namespaces: {tried.stderr.strip()}"
    subprocess.run(["ip", "netns", "delete", f"{NAMES[0]}-try"], check=True)
    return None


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[str, str]]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with ExitStack() as stack:
        for name in NAMES:
            ip("netns", "add", name)
            stack.callback(lambda name=name: ip("netns", "delete", name))
        # Both ends are made inside: nothing of the machine's own network is touched.
        ip("-n", NAMES[0], "link", "add", CABLE, "type", "veth", "peer", "name", CABLE, "netns", NAMES[1])
        for name, address in zip(NAMES, ADDRESSES, strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", CABLE)
            ip("-n", name, "link", "set", CABLE, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield NAMES


def torchrun(host: int, per_node: int, *command: str, folder: Path) -> subprocess.Popen[str]:
    """What one types on each of two hosts (docs/ranks.md)."""
    node = [f"--node-rank={host}", "--nnodes=2", f"--nproc-per-node={per_node}"]
    meet = [f"--master-addr={ADDRESSES[0]}", "--master-port=29517"]
    return subprocess.Popen(
        [
            "ip",
            "netns",
            "exec",
            NAMES[host],
            sys.executable,
            "-m",
            "torch.distributed.run",
            *node,
            *meet,
            "-m",
            *command,
        ],
        cwd=folder,
        env={**os.environ, "GLOO_SOCKET_IFNAME": CABLE, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    try:
        said = [process.communicate(timeout=400) for process in processes]
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                process.kill()
    return [(process.returncode, *one) for process, one in zip(processes, said, strict=True)]


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_two_hosts_give_the_bits_of_one_process(hosts: tuple[str, str], tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
        (folder / "run.toml").write_text(FILE)
    command = ("fastfed", "run", "run.toml", "--set", "run.rounds=9", "--out", "run")
    done = ended([torchrun(host, 2, *command, folder=folder) for host, folder in enumerate(folders)])
    assert [code for code, *_ in done] == [0, 0], done
    assert [path.name for path in folders[1].iterdir()] == ["run.toml"]  # the first rank alone writes
    assert runs.read(folders[0] / "run").info["ranks"] == 4
    one = runs.execute(load(folders[0] / "run.toml", ["run.rounds=9"]), tmp_path / "one", progress=False)
    params = [ff.Simulation.resume(place / runs.CHECKPOINT).params for place in (folders[0] / "run", one.path)]
    assert torch.equal(*params)


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_a_host_that_is_lost_is_one_sentence(hosts: tuple[str, str], tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(FILE)
    command = ("fastfed", "run", str(file), "--out", str(tmp_path / "run"))
    processes = [torchrun(host, 1, *command, folder=tmp_path) for host in range(2)]
    until = time.monotonic() + 300
    while not (tmp_path / "run" / runs.CHECKPOINT).exists() and time.monotonic() < until:
        time.sleep(0.1)
    for process in subprocess.run(
        ["ip", "netns", "pids", NAMES[1]], check=True, capture_output=True, text=True
    ).stdout.split():
        with suppress(ProcessLookupError):
            os.kill(int(process), 9)
    (code, _, errors), _ = ended(processes)
    assert code == 1
    sentences = [line for line in errors.splitlines() if line.startswith("fastfed: ")]
    assert len(sentences) == 1
    assert "rank 1 of 2 was lost" in sentences[0]
