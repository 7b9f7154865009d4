"""The page of runs that are still going: what it serves, to whom, and how a browser follows it."""

from __future__ import annotations

import io
import json
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fastfed.app import cli, live, runs, sweep
from fastfed.app.commands import watch
from fastfed.app.live import Server, Watched, served
from tests.app.report.chromium import browser
from tests.app.report.support import rows, write_run

from .commands.support import small_file


def got(address: str, host: str | None = None) -> str:
    request = urllib.request.Request(address, headers={} if host is None else {"Host": host})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return str(answer.read().decode())


def goes_on(run: Path, accuracies: list[float | None]) -> None:
    (run / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(accuracies)))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "runs" / "a", rows([0.5, 0.6]), info={"status": "running"})


def test_the_page_changes_with_the_runs_and_only_then(run: Path) -> None:
    watched = Watched([run.parent])
    first = watched.page()
    assert "1 run going, 0 done" in first
    assert "60.0% test accuracy after 2 rounds" in first
    assert watched.page() is first
    version = watched.version()
    goes_on(run, [0.5, 0.6, 0.75])
    assert watched.version() != version
    assert "75.0% test accuracy after 3 rounds" in watched.page()


@pytest.mark.parametrize("is_there", [False, True])
def test_a_directory_without_a_run_waits(tmp_path: Path, is_there: bool) -> None:
    place = tmp_path / "later"
    if is_there:
        place.mkdir()
    watched = Watched([place])
    assert f"Nothing has begun yet in {place}." in watched.page()
    write_run(place / "a", rows([0.5]))
    assert "FedAvg" in watched.page()


def test_it_is_served_to_this_machine_alone(run: Path) -> None:
    with served([run], port=0) as server:
        assert server._http.server_address[0] == "127.0.0.1"
        assert 'data-version="' in got(server.address)
        assert "connect-src 'self'" in got(server.address)
        assert got(f"{server.address}version") == Watched([run]).version()
        for path, host in (("", "evil.example:80"), ("../../etc/passwd", None), ("rounds.jsonl", None)):
            with pytest.raises(urllib.error.HTTPError):
                got(f"{server.address}{path}", host)
        server.seen = 0.0
    with pytest.raises(urllib.error.URLError):
        got(server.address)


def test_a_port_that_is_taken_is_passed_over(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(live, "PORT", taken.getsockname()[1])
        server = Server(Watched([run]))
        try:
            assert not server.address.endswith(f":{live.PORT}/")
            assert "FedAvg" in got(server.address)
        finally:
            server.close()


def test_the_pages_that_are_written_to_disk_ask_for_nothing(run: Path, tmp_path: Path) -> None:
    said = CliRunner().invoke(cli.app, ["report", str(run), "--out", str(tmp_path / "out"), "--no-figures"])
    assert said.exit_code == 0
    text = (tmp_path / "out" / "index.html").read_text()
    assert "connect-src" not in text
    assert 'id="live"' not in text


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_live_says_where_while_it_goes(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def looks(*arguments: object, **options: object) -> None:
        served_at.append(got(next(line for line in said.getvalue().splitlines() if "live" in line).split()[-1]))
        raise runs.RunFailed("enough")

    served_at: list[str] = []
    said = io.StringIO()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runs, "execute", looks)
    monkeypatch.setattr(sweep, "carry_out", looks)
    monkeypatch.setattr(watch, "complain", lambda line: said.write(f"{line}\n"))
    ended = CliRunner().invoke(cli.app, [command, str(small_file(tmp_path)), "--live", "--quiet"])
    assert (ended.exit_code, len(served_at)) == (1, 1)
    assert "Nothing has begun yet" in served_at[0]


def test_a_browser_follows_a_run_and_keeps_what_was_switched_off(run: Path) -> None:
    write_run(run.parent / "b", rows([0.4, 0.5]), method="fedyogi")
    with served([run.parent], port=0) as server, browser() as started:
        page = started.new_context().new_page()
        page.goto(server.address)
        chart = "#chart-test_accuracy_by_round path.line"
        page.locator(".legend button", has_text="FedYogi").first.click()
        assert page.locator(chart).count() == 1
        goes_on(run, [0.5, 0.6, 0.9])
        page.locator("h1", has_text="90.0%").wait_for(timeout=60_000)
        page.locator(chart).first.wait_for()
        assert page.locator(chart).count() == 1
        server.seen = 0.0
