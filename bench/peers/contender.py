"""A contender of `bench peers` as a process in its own environment, which is asked by lines and answers by lines."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import fastfed

PATIENCE = 300.0  # seconds: nobody waits longer for one answer
_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")  # everybody waits as it does by itself


class ContenderFailed(RuntimeError):
    """A contender cannot go on; the sentence is its reason."""


class Contender:
    """One framework on one task: the processes of `command`, of which the first keeps the model.

    `environments` are what the processes' environments have besides this one's, one mapping each.
    """

    def __init__(
        self, command: list[str], environments: list[Mapping[str, str]], threads: int, patience: float = PATIENCE
    ) -> None:
        self._patience = patience
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by `end`
        shared = environment_of(threads // len(environments))
        self._processes = [self._start(command, {**shared, **own}) for own in environments]
        self._answers = [_listening(process) for process in self._processes]
        self.versions: dict[str, str] = {}
        try:
            self.versions = self._told()[0]["versions"]
        except ContenderFailed:
            self.end()
            raise

    def begin(self, steps: int | None) -> None:
        """Back to the start model, for clients with so many local steps (None: all)."""
        self._ask({"ask": "begin", "steps": steps})

    def run(self, rounds: int) -> float:
        """So many rounds; the seconds of the slowest process."""
        return self._ask({"ask": "run", "rounds": rounds})

    def watch(self, wake: Path) -> int:
        """The bytes that its processes have, from when on their peaks are watched; after a round of the task `wake`."""
        return self._bytes({"ask": "watch", "wake": str(wake)})

    def peak(self) -> int:
        """The most bytes that its processes had since, each at its own time."""
        return self._bytes({"ask": "peak"})

    def model(self, into: Path) -> None:
        """Writes the model as it is now."""
        self._ask({"ask": "model", "into": str(into)}, only_first=True)

    def end(self) -> None:
        """Waits until the processes have ended, and ends those that do not."""
        for process in self._processes:
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # it has ended already
                process.stdin.close()
        for process in self._processes:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._said.close()

    def _start(self, command: list[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
        )

    def _ask(self, asked: Mapping[str, Any], only_first: bool = False) -> float:
        return max(float(told["seconds"]) for told in self._answers_to(asked, only_first))

    def _bytes(self, asked: Mapping[str, Any]) -> int:
        return sum(int(told["bytes"]) for told in self._answers_to(asked))

    def _answers_to(self, asked: Mapping[str, Any], only_first: bool = False) -> list[dict[str, Any]]:
        count = 1 if only_first else len(self._processes)
        for process in self._processes[:count]:
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # it has ended: what it answered, or said, is its reason
                process.stdin.write(json.dumps(asked) + "\n")
                process.stdin.flush()
        return self._told(count)

    def _told(self, count: int | None = None) -> list[dict[str, Any]]:
        """What the processes answer."""
        return [self._answer(answers) for answers in self._answers[:count]]

    def _answer(self, answers: queue.Queue[str | None]) -> dict[str, Any]:
        try:
            line = answers.get(timeout=self._patience)
        except queue.Empty:
            for process in self._processes:
                process.kill()
            raise ContenderFailed(f"no answer within {self._patience:g} s") from None
        if line is None:
            answers.put(None)  # for who asks again
            raise ContenderFailed(f"it ended: {self._last_words()}")
        told: dict[str, Any] = json.loads(line)
        if "error" in told:
            raise ContenderFailed(told["error"])
        return told

    def _last_words(self) -> str:
        self._said.seek(0)
        lines = [line.strip() for line in self._said.read().splitlines() if line.strip()]
        return lines[-1] if lines else "without a word"


def environment_of(threads: int) -> dict[str, str]:
    """This process's, with so many threads, and the folders that contenders are imported from."""
    package = Path(fastfed.__file__).parent
    kept = {name: value for name, value in os.environ.items() if name not in _WAITING}
    # `python -m peers.in_...` for those who cannot import fastfed, and fastfed for those who can
    return {**kept, "OMP_NUM_THREADS": str(max(1, threads)), "PYTHONPATH": f"{package / 'bench'}:{package.parent}"}


def _listening(process: subprocess.Popen[str]) -> queue.Queue[str | None]:
    """The lines of a process as they come; None when there are no more."""
    lines: queue.Queue[str | None] = queue.Queue()
    output = process.stdout
    assert output is not None

    def listen(output: IO[str]) -> None:
        with output:
            for line in output:
                lines.put(line)
        lines.put(None)

    threading.Thread(target=listen, args=(output,), daemon=True).start()
    return lines
