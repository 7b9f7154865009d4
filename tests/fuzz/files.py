"""`python -m tests.fuzz.files`: damaged files, and what readers make of them.

A case is a reader and a number: it writes what the reader reads, damages some of it, and reads it. Good is an error
that is one sentence, of a kind that the reader may raise, or a result; where files are sealed, only the result that
undamaged files give. A traceback, a process that dies, more than `SECONDS` or more than `MEMORY` bytes is a finding: it
is told with the command that makes it again, and the files are kept.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from .damage import damage
from .readers import READERS

SECONDS = 20  # that a reader may take for a small file, on a busy machine
MEMORY = 1 << 31  # bytes that it may take besides those that the process has
ROUND = 40  # cases of a child
LONGEST = 3000  # letters of a sentence

Ending = Literal["read", "refused", "finding"]


class Verdict(NamedTuple):
    """How a case ended; `words` are the sentence, or what is wrong."""

    reader: str
    number: int
    ending: Ending
    words: str


def same(a: Any, b: Any) -> bool:
    """Whether two results are the same to the bit."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a.nan_to_num(7), b.nan_to_num(7))
    if is_dataclass(a):
        return type(a) is type(b) and all(same(getattr(a, one.name), getattr(b, one.name)) for one in fields(a))
    if isinstance(a, dict):
        timed = {key for key in a if str(key).startswith("seconds")}
        return set(a) == set(b) and all(same(a[key], b[key]) for key in set(a) - timed)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b) or (a != a and b != b)


def judge(name: str, number: int, root: Path, good: Any) -> Verdict:
    """One case in this process; `good` is what undamaged files give, if that matters."""
    reader, rng = READERS[name], random.Random(f"{name} {number}")
    done = ", ".join(damage(rng, root))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = reader.read(root)
    except MemoryError as error:
        return Verdict(name, number, "finding", f"took too much memory ({done}): {error}")
    except (ValueError, OSError) as error:  # the kinds that mean a file: DataError and ConfigError are ValueErrors
        text = str(error)
        if "\n" in text.strip() or not text or len(text) > LONGEST or _is_bare(error):
            return Verdict(name, number, "finding", f"no sentence ({done}): {type(error).__name__}: {text[:300]}")
        return Verdict(name, number, "refused", text)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}:{where.lineno}"
        return Verdict(name, number, "finding", f"{type(error).__name__} at {place} ({done}): {str(error)[:300]}")
    if reader.seals and not same(found, good):
        return Verdict(name, number, "finding", f"was read, and is not what was written ({done})")
    return Verdict(name, number, "read", "")


def _is_bare(error: Exception) -> bool:
    """Whether it comes from a library as it is: our own name a file or an argument, and come from our own code."""
    last = traceback.extract_tb(error.__traceback__)[-1].filename
    return f"{os.sep}fastfed{os.sep}" not in last and not isinstance(error, OSError)


@contextlib.contextmanager
def limits() -> Iterator[None]:
    """Of memory and of time, for this process."""
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _child(name: str, numbers: list[int], home: Path, pristine: Path, pipe: Any) -> None:
    """Cases one after the other, each verdict sent as it comes."""
    reader = READERS[name]
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # a test runner's may be another
    good = reader.read(pristine) if reader.seals else None
    with limits():
        for number in numbers:
            root = home / f"case {number}"
            shutil.copytree(pristine, root)
            pipe.send(number)
            signal.setitimer(signal.ITIMER_REAL, SECONDS)  # which kills: nobody catches it
            verdict = judge(name, number, root, good)
            signal.setitimer(signal.ITIMER_REAL, 0)
            pipe.send(verdict)
            if verdict.ending != "finding":
                shutil.rmtree(root)


def run(name: str, numbers: list[int], home: Path) -> list[Verdict]:
    """The cases of one reader, in children that may die; after a death the next one goes on behind it."""
    pristine = home / "pristine"
    if not pristine.exists():
        pristine.mkdir(parents=True)
        READERS[name].write(pristine)
    context, verdicts, left = multiprocessing.get_context("fork"), list[Verdict](), list(numbers)
    while left:
        ours, theirs = context.Pipe()
        child = context.Process(target=_child, args=(name, left, home, pristine, theirs))
        child.start()
        theirs.close()
        current = left[0]
        with contextlib.suppress(EOFError):
            while left:
                said = ours.recv()
                if isinstance(said, Verdict):
                    verdicts.append(said)
                    left.remove(said.number)
                else:
                    current = said
        child.join()
        if left:
            slow = child.exitcode == -signal.SIGALRM
            words = f"took more than {SECONDS} s" if slow else f"the process ended with code {child.exitcode}"
            verdicts.append(Verdict(name, current, "finding", words))
            left.remove(current)
    return verdicts


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600, help="how long (default: ten minutes)")
    parser.add_argument("--seed", type=int, default=None, help="where the numbers of cases begin (default: the clock)")
    parser.add_argument("--only", default=None, help="one reader")
    parser.add_argument("--case", type=int, default=None, help="one case of that reader")
    parser.add_argument("--keep", type=Path, default=Path("out/fuzz"), help="where the files of findings are kept")
    given = parser.parse_args()
    if given.only is not None and given.only not in READERS:
        parser.error(f"--only: must be one of {', '.join(READERS)}, got {given.only!r}")
    names = list(READERS) if given.only is None else [given.only]
    begin = int(time.time()) * 1000 if given.seed is None else given.seed
    print(f"damaged files of {len(names)} readers, cases from {begin} on", flush=True)
    count, findings, end, number = (
        Counter[tuple[str, Ending]](),
        list[Verdict](),
        time.monotonic() + given.seconds,
        begin,
    )
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < end:
            for name in names:
                numbers = list(range(number, number + ROUND)) if given.case is None else [given.case]
                verdicts = run(name, numbers, Path(folder) / name)
                count.update((name, one.ending) for one in verdicts)
                for one in verdicts:
                    if one.ending == "finding":
                        findings.append(one)
                        _keep(one, Path(folder) / name, given.keep)
            number += ROUND
            if given.case is not None:
                break
    _tell(names, count, findings)
    return 1 if findings else 0


def _keep(one: Verdict, home: Path, keep: Path) -> None:
    source, target = home / f"case {one.number}", keep / f"{one.reader} {one.number}"
    if source.exists() and not target.exists():
        shutil.copytree(source, target)
        shutil.rmtree(source)
    print(f"FINDING {one.reader}: {one.words}\n  python -m tests.fuzz.files --only '{one.reader}' --case {one.number}")
    sys.stdout.flush()


def _tell(names: list[str], count: Counter[tuple[str, Ending]], findings: list[Verdict]) -> None:
    for name in names:
        read, refused = count[name, "read"], count[name, "refused"]
        print(f"{name:24} {read + refused + count[name, 'finding']:7} cases {read:7} read {refused:7} refused")
    print(f"{sum(count.values()) - len(findings)} passed, {len(findings)} failed")


if __name__ == "__main__":
    sys.exit(main())
