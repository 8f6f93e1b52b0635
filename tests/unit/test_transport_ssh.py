"""SSH: the real client against a small server, with `node-agent call` behind it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import paramiko
import pytest

from labctl.errors import UsageError
from labctl.lab.model import Node
from labctl.transport.base import AgentFailedError, Cause, ConnectError, NoAnswerError
from labctl.transport.connect import AgentClient, connect, node_clock_by_ssh
from labctl.transport.ssh import SshTransport
from node_agent.local import LocalServer
from tests.unit.agents import WALL, FakeAgent, view
from tests.unit.sshd import SshServer

ROOT = Path(__file__).parents[2]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[FakeAgent]:
    found = FakeAgent()
    server = LocalServer(found.service, tmp_path / "run" / "agent.sock")
    server.start()
    yield found
    found.service.close()
    server.stop()


@pytest.fixture
def program(tmp_path: Path) -> tuple[str, ...]:
    script = tmp_path / "node-agent.py"
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom node_agent.main import main\n"
        f"sys.argv += ['--socket', {str(tmp_path / 'run' / 'agent.sock')!r}]\nsys.exit(main())\n"
    )
    return (sys.executable, "-I", "-S", str(script))


def answering(status: int, out: bytes = b"", err: bytes = b"") -> Any:
    return lambda argv, stdin: (status, out, err)


def facts_of(tmp_path: Path, status: int, out: bytes = b"", err: bytes = b"") -> str:
    with SshServer(tmp_path, answering(status, out, err)) as server, SshTransport(server.node()) as transport:
        return AgentClient(transport).facts(5).node


def test_a_session_of_calls_is_one_login(tmp_path: Path, agent: FakeAgent, program: tuple[str, ...]) -> None:
    agent.injector.live["inj-1"] = view("inj-1")
    with SshServer(tmp_path) as server, SshTransport(server.node(), program) as transport:
        client = AgentClient(transport)
        assert client.facts().clock_unix_s == WALL
        assert client.apply("inj-2", "slow_disk", {"delay_ms": 7}, lease_s=60).parameters == {"delay_ms": 7}
        with pytest.raises(UsageError, match="w1: no injection inj-9"):
            list(client.watch("inj-9"))
        assert len(server._transports) == 1
        assert server.commands[0].endswith("call Facts --node w1")


def test_watch(tmp_path: Path, agent: FakeAgent, program: tuple[str, ...]) -> None:
    agent.injector.live["inj-1"] = view("inj-1")
    with SshServer(tmp_path) as server, SshTransport(server.node(), program) as transport:
        seen = []
        for one in AgentClient(transport).watch("inj-1", 0.2):
            seen.append((one.state, one.evidence))
            agent.injector.recover(None, "expired")
    assert seen == [(state, view("inj-1").evidence) for state in ("active", "recovered")], "hits and all"


def test_a_request_for_another_node_is_not_served(
    tmp_path: Path, agent: FakeAgent, program: tuple[str, ...]
) -> None:
    with SshServer(tmp_path) as server, SshTransport(server.node(name="w2"), program) as transport:
        with pytest.raises(UsageError, match="this node is w1, not w2"):
            AgentClient(transport).recover(everything=True)
    assert agent.injector.asked == []


def test_sudo_for_users_other_than_root() -> None:
    command = SshTransport(Node(name="w1", address="x")).command("Facts")
    assert command == ("/opt/groundfault/bin/node-agent", "call", "Facts", "--node", "w1")
    assert SshTransport(Node(name="w1", address="x", ssh_user="ops")).command("Facts") == (
        "sudo",
        "-n",
        "--",
        *command,
    )


@pytest.mark.parametrize(
    ("status", "out", "err", "error", "words"),
    [
        (70, b"", b"the agent does not answer at X\n", ConnectError, "w1: the agent does not answer at X"),
        (127, b"", b"sh: node-agent: not found\n", ConnectError, "w1 has no agent: sh: node-agent: not found"),
        (1, b"", b"sudo: a password is required\n", ConnectError, "w1: sudo: a password is required"),
        (2, b"", b"Traceback\nOSError: broken\n", AgentFailedError, "status 2: OSError: broken"),
        (0, b"", b"", AgentFailedError, "status 0: no message"),
        (0, b"Welcome to w1!\n", b"", AgentFailedError, "answered by 'Welcome to w1!'"),
        (0, b'{"reply":{"node":3}}\n', b"", AgentFailedError, "was answered by"),
        (0, b"[]\n", b"", AgentFailedError, "was answered by"),
        (-1, b"", b"", NoAnswerError, "SSH was lost during Facts"),
    ],
)
def test_what_is_no_answer(
    tmp_path: Path, status: int, out: bytes, err: bytes, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        facts_of(tmp_path, status, out, err)


def test_a_newer_agent_may_say_more(tmp_path: Path) -> None:
    reply = {"node": "w1", "contract": 1, "colour": "red"}
    assert facts_of(tmp_path, 0, json.dumps({"reply": reply}).encode() + b"\n") == "w1"


def test_a_node_that_takes_too_long(tmp_path: Path) -> None:
    with SshServer(tmp_path) as server:
        node = server.node()
        with SshTransport(node, (sys.executable, "-c", "import time; time.sleep(9)")) as transport:
            with pytest.raises(NoAnswerError, match=r"did not answer Facts within 0\.4 s"):
                AgentClient(transport).facts(0.4)


def test_a_login_that_has_died_is_made_anew(tmp_path: Path) -> None:
    reply = b'{"reply":{"node":"w1","contract":1}}\n'
    with SshServer(tmp_path, answering(0, reply)) as server, SshTransport(server.node()) as transport:
        assert AgentClient(transport).facts().node == "w1"
        server.hang_up()
        assert AgentClient(transport).facts().node == "w1"


@pytest.mark.parametrize("lost", [EOFError(), OSError("reset"), paramiko.SSHException("not active")])
@pytest.mark.parametrize("where", ["open_session", "exec_command"])
def test_however_a_login_dies_it_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: Exception, where: str
) -> None:
    owner = paramiko.Transport if where == "open_session" else paramiko.Channel
    whole = getattr(owner, where)
    calls = []

    def dies_once(self: object, *arguments: object, **options: object) -> object:
        calls.append(where)
        if len(calls) == 1:
            raise lost
        return whole(self, *arguments, **options)

    monkeypatch.setattr(owner, where, dies_once)
    reply = b'{"reply":{"node":"w1","contract":1}}\n'
    with SshServer(tmp_path, answering(0, reply)) as server, SshTransport(server.node()) as transport:
        assert AgentClient(transport).facts().node == "w1"
    assert len(calls) == 2


def _refused(node: Node) -> ConnectError:
    with pytest.raises(ConnectError) as refused, connect(node, None, "ssh") as transport:
        AgentClient(transport).facts(5)
    assert "\n" not in refused.value.message
    return refused.value


@pytest.mark.parametrize(
    ("changes", "cause", "words"),
    [
        ({"known_hosts": "empty"}, "host_key", "is not known"),
        ({"known_hosts": "wrong"}, "host_key", "another SSH host key"),
        ({"known_hosts": "absent"}, "host_key", "cannot be read"),
        ({"ssh_key": "stranger"}, "login", "does not let root in"),
        ({"ssh_key": "absent"}, "login", "cannot be read"),
        ({"ssh_key": "empty"}, "login", "it is not a private key"),
        ({"ssh_user": "nobody"}, "login", "does not let nobody in"),
    ],
)
def test_logins_that_fail(tmp_path: Path, changes: dict[str, str], cause: Cause, words: str) -> None:
    with SshServer(tmp_path, answering(0)) as server:
        (tmp_path / "empty").touch()
        stranger = paramiko.ECDSAKey.generate()
        stranger.write_private_key_file(str(tmp_path / "stranger"))
        name = f"[127.0.0.1]:{server.port}"
        (tmp_path / "wrong").write_text(f"{name} {stranger.get_name()} {stranger.get_base64()}\n")
        paths = {k: tmp_path / v if k != "ssh_user" else v for k, v in changes.items()}
        refused = _refused(server.node(**paths))
    assert refused.cause == cause and words in refused.message
    assert server.commands == []


def test_no_ssh_server(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as unused:
        port = unused.getsockname()[1]
    with SshServer(tmp_path) as server:
        node = server.node(ssh_port=port)
        assert _refused(node).cause == "refused"
        assert node_clock_by_ssh(node) is None


def test_a_port_that_hangs_up(tmp_path: Path) -> None:
    with SshServer(tmp_path) as server, closing(socket.create_server(("127.0.0.1", 0))) as rude:

        def hang_up() -> None:
            while True:
                try:
                    rude.accept()[0].close()
                except OSError:
                    return

        threading.Thread(target=hang_up, daemon=True).start()
        assert _refused(server.node(ssh_port=rude.getsockname()[1])).cause == "closed"
        rude.shutdown(socket.SHUT_RDWR)


def test_paramiko_keeps_its_log_to_itself(tmp_path: Path) -> None:
    code = (
        "import sys; from labctl.lab.model import Node; from labctl.transport.connect import node_clock_by_ssh\n"
        "print(node_clock_by_ssh(Node(name='w1', address='127.0.0.1', ssh_port=int(sys.argv[1]))))"
    )
    with closing(socket.create_server(("127.0.0.1", 0))) as rude:
        hang_up = threading.Thread(target=lambda: rude.accept()[0].close())  # noqa: PLW0108
        hang_up.start()
        port = str(rude.getsockname()[1])
        done = subprocess.run([sys.executable, "-c", code, port], cwd=ROOT, capture_output=True, text=True)
        hang_up.join()
    assert (done.stdout, done.stderr) == ("None\n", "")


def test_the_clock_of_a_node(tmp_path: Path) -> None:
    reply = json.dumps({"reply": {"node": "w1", "contract": 1, "clock_unix_s": 1.5e9}}).encode()
    with SshServer(tmp_path, answering(0, reply + b"\n")) as server:
        assert node_clock_by_ssh(server.node()) == 1.5e9
