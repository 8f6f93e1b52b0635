"""The oracles of etcd and Valkey: what they accept, and what they must not accept."""

from __future__ import annotations

import json
import socket
import socketserver
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from labctl.oracles.on_node import stores as on_node
from labctl.oracles.stores import Stores, StoreScope
from labctl.run.verdict import Outcome

from .lookouts import WINDOW, Told

MEMBERS = {f"w{n}": f"{n}1 http://10.77.0.{n}:2380" for n in (1, 2, 3)}
ETCD = {"cluster": "99", "leader": "21", "version": "3.5.16", "members": MEMBERS, "alarms": []}
KEPT = {"aof_last_write_status": "ok", "aof_last_bgrewrite_status": "ok", "rdb_last_bgsave_status": "ok"}
VALKEY = {"settings": {"appendonly": "yes", "appendfsync": "always"}, "kept": KEPT}


def seen(node: str = "", part: str = "etcd", **changed: Any) -> Any:
    whole: Any = {n: {"etcd": dict(ETCD)} for n in MEMBERS}
    whole["w1"]["valkey"] = dict(VALKEY)
    if node:
        whole[node][part] |= changed
    return whole


def judged(after: Any, **more: Any) -> Any:
    return Stores(**more).judge(seen(), after, WINDOW)


def test_stores_that_are_whole() -> None:
    assert (judged(seen()).outcome, judged(seen()).reasons) == (Outcome.PASS, ())
    assert judged(seen("w2", leader="11")).outcome is Outcome.PASS, "a change of the leader is no failure"


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (seen("w2", error="timed out"), "w2: etcd: timed out"),
        (seen("w2", leader=""), "w2: etcd has no leader"),
        (seen("w2", alarms=["NOSPACE"]), "w2: etcd has the alarm NOSPACE"),
        (seen("w2", cluster="98"), "w2: etcd is of another cluster"),
        (seen("w2", members={**MEMBERS, "w3": "77 http://10.77.0.3:2380"}),
         "w2: the members of etcd are w1 (11), w2 (21), w3 (77), were w1 (11), w2 (21), w3 (31)"),
        (seen("w1", "valkey", error="Connection refused"), "w1: Valkey: Connection refused"),
        (seen("w1", "valkey", kept={**KEPT, "aof_last_write_status": "err"}),
         "w1: Valkey: aof_last_write_status is err"),
    ],
)  # fmt: skip
def test_what_it_rejects(after: Any, reason: str) -> None:
    assert (judged(after).outcome, judged(after).reasons) == (Outcome.FAIL, (reason,))


def test_a_member_that_was_added_again_where_that_is_permitted() -> None:
    again = {**MEMBERS, "w3": "77 http://10.77.0.3:2380"}
    after: Any = {n: {"etcd": {**ETCD, "members": again}, "valkey": VALKEY} for n in MEMBERS}
    assert judged(after).outcome is Outcome.FAIL and judged(after, rebuilt=True).outcome is Outcome.PASS
    less: Any = {n: {"etcd": {**ETCD, "members": {"w1": MEMBERS["w1"]}}, "valkey": VALKEY} for n in MEMBERS}
    assert judged(less, rebuilt=True).outcome is Outcome.FAIL


def test_settings_of_the_server_that_runs() -> None:
    after = seen("w1", "valkey", settings={**VALKEY["settings"], "appendfsync": "no"})
    found = StoreScope().judge(seen(), after, WINDOW)
    assert (found.outcome, found.reasons) == (Outcome.FAIL, ("w1:valkey appendfsync was always, is no",))
    assert StoreScope(permitted=("w1:valkey appendfsync",)).judge(seen(), after, WINDOW).outcome is Outcome.PASS
    assert StoreScope().judge(seen(), seen(), WINDOW).outcome is Outcome.PASS
    down = seen("w1", "valkey")
    down["w1"]["valkey"] = {"error": "Connection refused"}
    assert StoreScope().judge(seen(), down, WINDOW).outcome is Outcome.PASS
    assert StoreScope().judge(down, seen(), WINDOW).outcome is Outcome.UNKNOWN


def test_a_look_asks_each_node_for_what_it_has() -> None:
    lab = Told([("w1", "END", json.dumps(seen()["w1"])), ("*", "END", json.dumps({"etcd": ETCD}))])
    assert Stores().look(lab) == seen()
    assert '"etcd": false, "valkey": true' in (StoreScope().look(lab) and lab.asked[-1][1])


ANSWER = (
    b"*4\r\n$10\r\nappendonly\r\n$3\r\nyes\r\n$4\r\nsave\r\n$0\r\n\r\n"
    b"$98\r\n# Persistence\r\nloading:0\r\naof_last_write_status:ok\r\naof_last_bgrewrite_status:ok\r\n"
    b"rdb_last_bgsave_status:err\r\n\r\n+OK\r\n"
)


@pytest.fixture
def server() -> Iterator[socketserver.TCPServer]:
    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(4096)
            self.request.sendall(ANSWER)

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield found
        found.shutdown()
        thread.join(10)


def test_what_valkey_says(server: socketserver.TCPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = socket.create_connection
    address = cast("tuple[str, int]", server.server_address)
    monkeypatch.setattr(socket, "create_connection", lambda _, timeout: connect(address, timeout))
    assert on_node.valkey(5) == {
        "settings": {"appendonly": "yes", "save": ""}, "kept": {**KEPT, "rdb_last_bgsave_status": "err"},
    }  # fmt: skip


def test_nobody_there() -> None:
    assert "error" in on_node.etcd(2)
