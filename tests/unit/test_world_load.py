"""The load as a process of its own, against a real server; what is done to it and to its ledger."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import psutil
import pytest

from labctl.errors import LabError
from labctl.run.arrivals import Tide
from labctl.run.ledger import read_ledger
from labctl.run.load import Client, LoadPlan
from labctl.run.load_process import LoadProcess
from tests.user import until

HERE = "tests.unit.test_world_load"
ROOT = Path(__file__).resolve().parents[2]


class Hello(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        pass


async def session(client: Client) -> None:
    await client.ask("get", "GET", "/")


async def buggy(client: Client) -> None:
    raise KeyError("bug")


def plan(url: str, seed: int) -> LoadPlan:
    return LoadPlan(url=url, tide=Tide(rate_per_s=30), seed=seed, session=session, first="get", timeout_s=1.0)


def buggy_plan(url: str, seed: int) -> LoadPlan:
    return LoadPlan(url=url, tide=Tide(rate_per_s=30), seed=seed, session=buggy, first="get", timeout_s=1.0)


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], LoadProcess]]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hello)
    Thread(target=server.serve_forever, daemon=True).start()
    made: list[LoadProcess] = []

    def make(name: str) -> LoadProcess:
        url = f"http://127.0.0.1:{server.server_port}"
        made.append(LoadProcess(f"{HERE}:{name}", lambda: url, 7, tmp_path / "ledger.jsonl", timeout_s=1.0))
        return made[-1]

    yield make
    for one in made:
        one.stop()
    server.shutdown()
    server.server_close()


def test_its_lines_come_and_are_all_there_in_the_end(load: Callable[[str], LoadProcess], tmp_path: Path) -> None:
    mine = load("plan")
    mine.start()
    until("lines come", lambda: len(mine.lines()) >= 20)
    assert 0 < mine.lines()[0].due_s < mine.now_s() and {line.answer for line in mine.lines()} == {"ok"}
    assert psutil.pid_exists(mine.pid) and mine.pid != os.getpid()
    mine.stop()
    mine.stop()
    assert tuple(read_ledger(tmp_path / "ledger.jsonl")) == tuple(mine.lines())
    assert mine.tampering() == () and not psutil.pid_exists(mine.pid)


@pytest.mark.parametrize("edit", ["more", "less", "gone"])
def test_an_edited_ledger_is_seen_and_changes_nothing(
    edit: str, load: Callable[[str], LoadProcess], tmp_path: Path
) -> None:
    mine, file = load("plan"), tmp_path / "ledger.jsonl"
    mine.start()
    until("lines come", lambda: len(mine.lines()) >= 5)
    assert mine.tampering() == ()
    if edit == "more":
        with file.open("a") as out:
            out.write(mine.lines()[0].model_dump_json() + "\n")
    elif edit == "less":
        os.truncate(file, 10)
    else:
        file.unlink()
    assert [(one.aspect, one.reason) for one in mine.tampering()] == [("integrity", "the ledger was edited")]
    assert len(mine.lines()) >= 5


def test_a_load_that_somebody_kills(load: Callable[[str], LoadProcess]) -> None:
    mine = load("plan")
    mine.start()
    until("lines come", lambda: bool(mine.lines()))
    os.kill(mine.pid, signal.SIGKILL)
    until("it is seen", lambda: bool(mine.tampering()))
    assert [(one.aspect, one.reason) for one in mine.tampering()] == [("scope", "the load was ended by SIGKILL")]
    count = len(mine.lines())
    mine.stop()
    assert len(mine.lines()) >= count and mine.tampering()


def test_a_load_that_breaks_is_no_tampering(load: Callable[[str], LoadProcess]) -> None:
    mine = load("buggy_plan")
    mine.start()

    def broken() -> bool:
        try:
            mine.lines()
        except LabError as error:
            return "KeyError" in error.message
        return False

    until("it breaks", broken)
    assert mine.tampering() == ()


def test_a_load_that_does_not_start(load: Callable[[str], LoadProcess]) -> None:
    with pytest.raises(LabError, match=r"the load generator did not start: .*no_such_plan"):
        load("no_such_plan").start()
