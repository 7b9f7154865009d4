"""`fastfed run`: what it writes and says, and every way in which it can go wrong."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fastfed.app import runs
from fastfed.record import progress
from fastfed.record import writers as record
from fastfed.saved import checkpoint, sealed

from ..test_runs import contents, failing_from, final_model
from .support import assert_refused, fastfed, small_file


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in a directory of its own, which is the working directory too."""
    monkeypatch.chdir(tmp_path)
    return small_file(tmp_path).relative_to(tmp_path)


# ---- what it writes and says ----------------------------------------------------------------------------------------


def test_it_runs_and_says_what_came_of_it_and_where_it_is(file: Path, tmp_path: Path) -> None:
    said = fastfed("run", file)
    assert said.exit_code == 0
    run = runs.read("runs/a")
    assert (run.status, len(run.history)) == ("done", 4)
    assert said.stdout.endswith(f"Run:    {tmp_path / 'runs' / 'a'}\nReport: type fastfed report runs/a\n")
    assert re.search(r"test accuracy +│ " + re.escape(f"{run.history.last('test_accuracy'):.4g}"), said.stdout)


def test_overrides_and_places(file: Path) -> None:
    said = fastfed("run", file, "--set", "run.rounds=2", "--set", "client.lr=0.5", "--threads", "1", "--out", "b/c")
    assert said.exit_code == 0
    run = runs.read("b/c")
    assert (len(run.history), run.config["client"]["lr"], run.config["run"]["threads"]) == (2, 0.5, 1)
    assert not Path("runs").exists()


def test_what_is_changed_most_has_options_of_its_own(file: Path) -> None:
    short = ("--rounds", "3", "--seed", "7", "--cohort", "5", "--epochs", "2", "--batch-size", "9")
    said = fastfed("run", file, *short, "--client-lr", "0.25", "--server-lr", "0.5", "--device", "cpu", "--quiet")
    assert said.exit_code == 0, said.output
    told = runs.read("runs/a").config
    kept = {key: told["run"][key] for key in ("rounds", "seed", "cohort", "epochs", "batch_size", "device")}
    assert kept == {"rounds": 3, "seed": 7, "cohort": 5, "epochs": 2.0, "batch_size": 9, "device": "cpu"}
    assert (told["client"]["lr"], told["server"]["lr"]) == (0.25, 0.5)


def test_a_short_option_beside_the_same_key_is_refused(file: Path) -> None:
    said = fastfed("run", file, "--rounds", "3", "--set", "run.rounds=4")
    assert said.exit_code == 2
    assert "run.rounds is given by --set too; give it once" in said.stderr


@pytest.mark.parametrize(
    ("key", "meant"),
    [("rounds", "run.rounds"), ("cohort", "run.cohort"), ("lr", "client.lr or server.lr"), ("tau", "server.tau")],
)
def test_a_key_without_its_table_is_told_where_it_belongs(file: Path, key: str, meant: str) -> None:
    said = fastfed("run", file, "--set", f"{key}=3")
    assert_refused(said, 2, f"{file}: {key}: no such key or table")
    assert said.stderr.endswith(f" Did you mean {meant}?\n")


def test_no_rounds_are_said(file: Path) -> None:
    said = fastfed("run", file, "--rounds", "0")
    assert said.exit_code == 0
    assert "No round was run (run.rounds is 0): the model is as it began." in said.stdout
    assert "fastfed report" not in said.stdout


def test_quiet_says_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.0)
    said = fastfed("run", file, "--quiet")
    assert (said.exit_code, said.output) == (0, "")
    assert runs.read("runs/a").status == "done"


def test_json_is_a_line_per_round_on_standard_output_and_the_table_is_not(file: Path) -> None:
    said = fastfed("run", file, "--json")
    assert said.exit_code == 0
    rows = [json.loads(line) for line in said.stdout.splitlines()]
    assert rows == runs.read("runs/a").history.rounds
    assert "test accuracy" in said.stderr


def test_json_after_a_resume_has_only_the_new_rounds(file: Path) -> None:
    fastfed("run", file, "--set", "run.rounds=3", "--quiet")
    said = fastfed("run", file, "--json", "--resume", "--quiet")
    assert [json.loads(line)["round"] for line in said.stdout.splitlines()] == [4]


def test_lines_where_there_is_no_terminal(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.0)
    lines = fastfed("run", file).stderr.splitlines()
    assert len(lines) == 4
    assert re.fullmatch(
        r"round 2/4  train loss [\d.]+  test loss [\d.]+  test accuracy [\d.]+  [\d.e+]+ rounds/s  \d+:\d\d:\d\d left",
        lines[1],
    )
    assert "test accuracy" not in lines[0]


def test_a_bar_on_a_terminal_fits_its_width(file: Path) -> None:
    shown = on_a_terminal(["run", str(file), *many(300)], columns=80)
    drawn = [line for line in shown if line.startswith("round")]
    assert drawn
    assert all(len(line) <= 80 for line in drawn)
    assert re.search(r"━ +300/300 loss [\d.e-]+  accuracy [\d.]+  [\d.e+]+ rounds/s \d:\d\d:\d\d", drawn[-1])


def many(rounds: int) -> list[str]:
    """So many rounds, with few checkpoints, which take longer than they."""
    sets = (f"run.rounds={rounds}", "run.checkpoint_every=100", "run.evaluate_every=100")
    return [word for one in sets for word in ("--set", one)]


def on_a_terminal(arguments: list[str], columns: int) -> list[str]:
    """What a command shows on a pseudo-terminal, without its colours and movements."""
    import fcntl
    import pty
    import struct
    import termios

    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES", "NO_COLOR")}
    command = [sys.executable, "-m", "fastfed.app.cli", *arguments]
    program = subprocess.Popen(
        command, stdin=follower, stdout=follower, stderr=follower, env={**environment, "TERM": "xterm"}
    )
    os.close(follower)
    shown = b""
    while True:
        try:
            part = os.read(leader, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(leader)
    assert program.wait() == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    return [line.rstrip() for line in re.split(r"[\r\n]+", plain)]


def test_synthetic_data_goes_to_a_place_of_its_own(file: Path) -> None:
    said = fastfed("run", file, "--data", "synthetic", "--quiet")
    assert said.exit_code == 0
    run = runs.read("runs/a-synthetic")
    assert run.name == "small (synthetic data)"
    assert run.config["data"]["name"] == "synthetic_images"
    assert not Path("runs/a").exists()


# ---- asked for wrongly: exit code 2, nothing written ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--set", "client.lrr=1"], "a.toml: client.lrr: client rule 'sgd' has no such option"),
        (["--set", "cleint.lr=1"], "a.toml: cleint: no such key or table"),
        (["--set", "client.lr=-0.1"], "a.toml: client.lr: must be a finite number >= 0, got -0.1"),
        (["--set", "server.tau=0.1"], "a.toml: server.tau: server rule 'sgd' would ignore it, it is an option of"),
        (["--set", "server"], "--set: must be a dotted key and a value, as in server.lr=0.1, got 'server'"),
        (["--set", "run.cohort=500"], "run.cohort: must be at most the number of clients, 20, got 500"),
        (["--set", "run.device=abacus"], "run.device: must be one that torch has here"),
        (["--set", "model.sizes=[64,3]"], "model: has 3 outputs, and the data has labels up to 9"),
        (["--set", "data.name=mnist"], "a.toml: data.root: data 'mnist' with partition 'iid' needs it, a directory"),
        (["--set", "data.name=mnist", "--data", "nowhere"], "data: "),
        (["--data", "nowhere"], "--data: data 'digits' reads no files"),
        (["--from", "round-2"], "--from: goes on from a checkpoint of a run that is there; give --resume, too"),
        (["--resume", "--from", "last"], "--from: must name a checkpoint, as in round-120, got 'last'"),
    ],
)
def test_a_wrong_request_is_a_sentence_and_leaves_nothing(file: Path, arguments: list[str], sentence: str) -> None:
    assert_refused(fastfed("run", file, *arguments), 2, sentence)
    assert [path.name for path in Path().iterdir()] == ["a.toml"]


def test_going_back_to_a_checkpoint(file: Path) -> None:
    assert fastfed("run", file, "--quiet").exit_code == 0
    rows = runs.read("runs/a").history.without_seconds()
    last = checkpoint.newest("runs/a/checkpoint").stem
    assert fastfed("run", file, "--resume", "--from", last, "--quiet").exit_code == 0
    assert runs.read("runs/a").history.without_seconds() == rows
    refused = fastfed("run", file, "--resume", "--from", "round-99")
    assert_refused(refused, 2, "--from: runs/a/checkpoint has no checkpoint of round 99; it has ")


def test_a_missing_file_is_a_sentence(file: Path) -> None:
    said = fastfed("run", "b.toml")
    assert_refused(said, 2, "b.toml: no such file; `fastfed init b.toml` writes one to begin with")


def test_a_missing_directory_of_data_says_what_was_wanted_and_where_to_get_it(file: Path) -> None:
    said = fastfed("run", file, "--set", "data.name=mnist", "--data", "nowhere")
    assert str(Path("nowhere").absolute()) in said.stderr
    assert "train-images-idx3-ubyte" in said.stderr


def test_a_second_run_into_the_same_directory_is_a_sentence_and_changes_nothing(file: Path) -> None:
    assert fastfed("run", file, "--quiet").exit_code == 0
    before = contents(Path("runs"))
    sentence = "runs/a: holds a run already; use --resume to go on, or another --out"
    assert_refused(fastfed("run", file, "--set", "client.lr=0.5"), 2, sentence)
    assert_refused(
        fastfed("run", file, "--resume", "--set", "client.lr=0.5"), 2, "client.lr: the run in runs/a has 0.1"
    )
    assert contents(Path("runs")) == before


def test_a_file_of_a_sweep_is_told_apart(file: Path) -> None:
    file.write_text(file.read_text() + "\n[sweep]\nseeds = 3\n")
    assert_refused(fastfed("run", file), 2, "a.toml: sweep: this file describes many runs; `fastfed sweep` runs them")


# ---- failures: exit code 1 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("owner", "name"), [(record.JsonLines, "write"), (sealed, "write")])
def test_a_full_disk_is_a_sentence_and_resume_goes_on(
    file: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, failing_from(getattr(owner, name), full, 1))
        said = fastfed("run", file)
    assert_refused(said, 1, f"runs/a: cannot be written: {full.strerror}; what was there stays, and --resume goes on")
    assert fastfed("run", file, "--resume", "--quiet").exit_code == 0
    fastfed("run", file, "--out", "whole", "--quiet")
    assert final_model(Path("runs/a")) == final_model(Path("whole"))


# In the new process, as jax does not like to be forked by this one.
LIMITED = """
import resource, signal
from fastfed.app.cli import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # EFBIG in place of the end of the process
resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
main()
"""


def test_a_real_limit_on_files_is_a_sentence(file: Path) -> None:
    """The system itself refuses to write more than 30 kB into one file."""
    command = [sys.executable, "-c", LIMITED, "run", str(file), *many(200), "--quiet"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 1
    assert said.stderr == (
        "fastfed: runs/a: cannot be written: File too large; what was there stays, and --resume goes on from it\n"
    )
    assert runs.read("runs/a").status == "failed"
    assert fastfed("run", file, *many(200), "--resume", "--quiet").exit_code == 0
    assert len(runs.read("runs/a").history) == 200


def test_a_directory_that_cannot_be_made_is_a_sentence(file: Path) -> None:
    Path("taken").write_text("precious")
    said = fastfed("run", file, "--out", "taken/a")
    assert_refused(said, 1, "taken/a: cannot be written: Not a directory; nothing was begun")
    assert Path("taken").read_text() == "precious"


# ---- Ctrl-C ---------------------------------------------------------------------------------------------------------


def start(file: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fastfed.app.cli", "run", str(file), *many(10_000), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_rounds(program: subprocess.Popen[str], rounds: int) -> None:
    rows = Path("runs/a") / runs.ROUNDS
    while program.poll() is None and (not rows.exists() or rows.read_text().count("\n") < rounds):
        time.sleep(0.01)
    assert program.poll() is None, "it ended before it could be interrupted"


def test_ctrl_c_leaves_a_checkpoint_and_a_summary_and_resume_goes_on_to_the_same_bits(file: Path) -> None:
    program = start(file)
    wait_for_rounds(program, 5)
    program.send_signal(signal.SIGINT)
    out, err = program.communicate()
    assert program.returncode == 130
    stopped = runs.read("runs/a")
    done = len(stopped.history)
    assert stopped.status == "interrupted"
    assert 5 <= done < 10_000
    assert max(checkpoint.rounds_of(Path("runs/a") / runs.CHECKPOINT)) >= done
    assert f"fastfed: interrupted after round {done}; --resume goes on" in err
    assert "Traceback" not in err
    assert "interrupted" in out
    assert "Run: " in out
    more = many(done + 20)
    assert fastfed("run", file, *more, "--resume", "--quiet").exit_code == 0
    assert fastfed("run", file, *more, "--out", "whole", "--quiet").exit_code == 0
    assert len(runs.read("whole").history) == done + 20
    assert final_model(Path("runs/a"))[1] == final_model(Path("whole"))[1]


def test_ctrl_c_with_json_leaves_whole_lines(file: Path) -> None:
    program = start(file, "--json")
    wait_for_rounds(program, 3)
    program.send_signal(signal.SIGINT)
    out, _ = program.communicate()
    assert program.returncode == 130
    told = [json.loads(line) for line in out.splitlines()]
    assert told == runs.read("runs/a").history.rounds


def test_ctrl_c_before_the_first_round_leaves_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastfed.app.config import Config

    with monkeypatch.context() as patched:
        patched.setattr(Config, "federation", failing_from(Config.federation, KeyboardInterrupt(), 0))
        said = fastfed("run", file)
    assert_refused(said, 130, "interrupted before the first round")
    assert not Path("runs").exists()
    again = fastfed("run", file, "--resume")
    assert again.exit_code == 0
    assert "runs/a: holds no run to go on with; it starts from the beginning" in again.stderr


# ---- resuming -------------------------------------------------------------------------------------------------------


def test_resuming_a_finished_run_says_so_and_does_nothing(file: Path) -> None:
    fastfed("run", file, "--quiet")
    before = contents(Path("runs"))
    said = fastfed("run", file, "--resume")
    assert said.exit_code == 0
    assert "runs/a: this run is finished; nothing was left to do" in said.stderr
    assert contents(Path("runs")) == before


def test_resuming_a_damaged_run_names_the_file(file: Path) -> None:
    fastfed("run", file, "--quiet")
    (Path("runs/a") / runs.INFO).write_text("{")
    for path in Path("runs/a/checkpoint").iterdir():  # beside good ones it would be written again
        path.unlink()
    assert_refused(fastfed("run", file, "--resume"), 2, "runs/a/run.json: cannot be read: ")
