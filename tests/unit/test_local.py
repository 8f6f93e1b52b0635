"""The Unix socket and `node-agent call`, which imports next to nothing."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from node_agent.errors import ConflictError
from node_agent.local import MAX_LINE_BYTES, LocalServer
from node_agent.version import VERSION
from tests.unit.agents import FakeAgent, failing, view

ROOT = Path(__file__).parents[2]


@pytest.fixture
def agent() -> FakeAgent:
    return FakeAgent()


@pytest.fixture
def path(agent: FakeAgent, tmp_path: Path) -> Iterator[Path]:
    found = tmp_path / "run" / "agent.sock"
    server = LocalServer(agent.service, found)
    server.start()
    yield found
    agent.service.close()
    server.stop()
    assert not found.exists()


def exchange(path: Path, line: bytes) -> Any:
    with socket.socket(socket.AF_UNIX) as channel:
        channel.settimeout(5)
        channel.connect(str(path))
        channel.sendall(line)
        channel.shutdown(socket.SHUT_WR)
        lines = channel.makefile("rb").readlines()
    assert len(lines) == 1
    return json.loads(lines[0])


def call(path: Path, *arguments: str, request: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-S", "-c", "import sys; sys.path.insert(0, sys.argv.pop(1)); "
               "from node_agent.main import main; sys.exit(main())", str(ROOT)]  # fmt: skip
    return subprocess.run(
        [*command, "call", *arguments, "--socket", str(path)],
        input=request, capture_output=True, text=True, timeout=20,
    )  # fmt: skip


def test_only_the_owner_can_open_it(path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [p.name for p in path.parent.iterdir()] == ["agent.sock"]


def test_a_reply_has_all_fields_by_their_names_in_the_contract(path: Path) -> None:
    reply = exchange(path, b'{"method":"Facts","request":{}}\n')["reply"]
    assert reply["node"] == "w1" and reply["memory_mib"] == "2000" and reply["stopped"] is False


def test_requests_reach_the_service(path: Path, agent: FakeAgent) -> None:
    request = {"id": "inj-1", "fault": "slow_disk", "parameters_json": '{"delay_ms": 5}'}
    line = json.dumps({"method": "Apply", "node": "w1", "request": request})
    assert exchange(path, line.encode() + b"\n")["reply"]["state"] == "ACTIVE"
    assert agent.injector.asked == [("apply", "inj-1", "slow_disk", {"delay_ms": 5}, 0.0)]


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        (b"nonsense\n", "refused", "not JSON"),
        (b'"Facts"\n', "refused", "not understood"),
        (b'{"method":"Facts","extra":1}\n', "refused", "not understood"),
        (b'{"method":"Facts"', "refused", "no whole request"),
        (b"", "refused", "no whole request"),
        (b"x" * (MAX_LINE_BYTES + 100_000), "refused", "no whole request"),
        (b"[" * 200_000 + b"\n", "refused", "not JSON"),
        (b"\xff\xfe\n", "refused", "not JSON"),
        (b'{"method":"Burn"}\n', "not_found", "no method 'Burn'"),
        (b'{"method":["Facts"]}\n', "not_found", "no method"),
        (b'{"method":"Facts","node":"w2"}\n', "conflict", "this node is w1, not w2"),
        (b'{"method":"Apply","request":{"idd":"x"}}\n', "refused", "does not fit Apply"),
        (b'{"method":"Apply","request":{"lease_s":"soon"}}\n', "refused", "does not fit Apply"),
        (b'{"method":"Apply","request":[1]}\n', "refused", "does not fit Apply"),
        (b'{"method":"Apply","request":null}\n', "refused", "does not fit Apply"),
    ],
)
def test_bad_lines(path: Path, agent: FakeAgent, line: bytes, code: str, words: str) -> None:
    error = exchange(path, line)["error"]
    assert error["code"] == code and words in error["message"]
    assert agent.injector.asked == []


def test_errors_carry_everything(path: Path, agent: FakeAgent) -> None:
    agent.injector.fail["extend"] = failing(ConflictError)
    assert exchange(path, b'{"method":"Extend","request":{"id":"inj-1"}}\n')["error"] == {
        "code": "conflict", "message": "what went wrong", "field": "path", "allowed": "something else",
    }  # fmt: skip


def test_watch_gives_lines_until_the_client_leaves(path: Path, agent: FakeAgent) -> None:
    agent.injector.live["inj-1"] = view("inj-1")
    with socket.socket(socket.AF_UNIX) as channel:
        channel.settimeout(5)
        channel.connect(str(path))
        channel.sendall(b'{"method":"Watch","request":{"id":"inj-1","interval_s":0.2}}\n')
        lines = channel.makefile("rb")
        assert [json.loads(lines.readline())["reply"]["state"] for _ in range(2)] == ["ACTIVE", "ACTIVE"]
        lines.close()
    deadline = time.monotonic() + 5
    while agent.service._watchers._value < 8:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_client_that_says_nothing_keeps_nobody_from_being_served(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(path))
        assert exchange(path, b'{"method":"Facts"}\n')["reply"]["node"] == "w1"


def test_too_many_at_once_are_told(path: Path, agent: FakeAgent) -> None:
    silent = [socket.socket(socket.AF_UNIX) for _ in range(24)]
    for one in silent:
        one.connect(str(path))
    deadline = time.monotonic() + 5
    while "error" not in (answer := exchange(path, b'{"method":"Facts"}\n')):
        assert time.monotonic() < deadline
    assert "too many" in answer["error"]["message"]
    for one in silent:
        one.close()


def test_an_old_socket_is_replaced(agent: FakeAgent, tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    server = LocalServer(agent.service, path)
    server.start()
    assert exchange(path, b'{"method":"Facts"}\n')["reply"]["node"] == "w1"
    server.stop()


def test_call(path: Path) -> None:
    done = call(path, "Facts", "--node", "w1")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["reply"]["node"] == "w1"


def test_call_takes_json_of_many_lines(path: Path, agent: FakeAgent) -> None:
    agent.injector.live["inj-1"] = view("inj-1")
    done = call(path, "Recover", request='{\n  "ids": [\n"inj-1"]\n}\n')
    assert done.returncode == 0 and agent.injector.asked == [("recover", ("inj-1",), "recover")]


def test_call_of_an_error_exits_with_1(path: Path) -> None:
    done = call(path, "Facts", "--node=w2")
    assert done.returncode == 1 and json.loads(done.stdout)["error"]["code"] == "conflict"


def test_call_of_watch_writes_each_line_as_it_comes(path: Path, agent: FakeAgent) -> None:
    agent.injector.live["inj-1"] = view("inj-1")
    ending = threading.Timer(0.3, agent.injector.recover, (None, "expired"))
    ending.start()
    done = call(path, "Watch", request='{"id": "inj-1", "interval_s": 0.2}')
    states = [json.loads(line)["reply"]["state"] for line in done.stdout.splitlines()]
    assert done.returncode == 0 and states[0] == "ACTIVE" and states[-1] == "RECOVERED"


def test_call_ends_when_its_reader_leaves(path: Path, agent: FakeAgent) -> None:
    agent.injector.live["inj-1"] = view("inj-1")
    command = [sys.executable, "-m", "node_agent.main", "call", "Watch", "--socket", str(path)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as watching:  # fmt: skip
        assert watching.stdin and watching.stdout and watching.stderr
        watching.stdin.write(b'{"id": "inj-1", "interval_s": 0.2}')
        watching.stdin.close()
        watching.stdout.readline()
        watching.stdout.close()
        assert (watching.wait(5), watching.stderr.read()) == (0, b"")


def test_call_without_an_agent_is_one_line_and_70(tmp_path: Path) -> None:
    done = call(tmp_path / "none.sock", "Facts")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (70, "", 1)
    assert "the agent does not answer" in done.stderr


def test_call_of_an_agent_that_dies_is_70(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    with socket.socket(socket.AF_UNIX) as dying:
        dying.bind(str(path))
        dying.listen(1)
        hang_up = threading.Thread(target=lambda: dying.accept()[0].close())  # noqa: PLW0108
        hang_up.start()
        done = call(path, "Facts")
        hang_up.join()
    assert done.returncode == 70 and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [("call",), ("call", "Fa cts"), ("call", 'F","x":"'), ("call", "Facts", "--nod", "w1"),
     ("call", "Facts", "--node"), ("call", "Facts", "--node", 'w1"'), ("burn",), ("serve", "x"), ()],
)  # fmt: skip
def test_wrong_command_lines_are_64(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "node_agent.main", *arguments], cwd=ROOT, capture_output=True, text=True, input="",
    )  # fmt: skip
    assert done.returncode == 64 and done.stdout == "" and "Traceback" not in done.stderr


def test_version() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "node_agent.main", "version"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == VERSION


def test_call_imports_only_what_it_needs(path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); from node_agent.main import main; status = main()\n"
        "print(*sorted(m for m in sys.modules), file=sys.stderr); sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(ROOT), "call", "Facts", "--socket", str(path)],
        input="", capture_output=True, text=True, env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    assert done.returncode == 0
    loaded = set(done.stderr.split())
    assert not loaded & {"json", "re", "argparse", "typing", "grpc", "pydantic", "google", "logging", "subprocess"}
    ours = {m for m in loaded if m.startswith("node_agent")}
    assert ours == {"node_agent", "node_agent.main"}
