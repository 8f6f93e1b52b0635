"""The load generator against a real HTTP server on loopback."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from labctl.errors import LabError
from labctl.run.arrivals import Tide
from labctl.run.ledger import Line, against, replay
from labctl.run.load import Client, HttpLoad, LoadPlan
from tests.user import until


class Service(BaseHTTPRequestHandler):
    """Keys and values; how it misbehaves is in the path."""

    store: dict[str, str]
    hang: threading.Event
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.store[self.path[1:]] = body["value"]  # type: ignore[attr-defined]
        self._say(200, {})

    def do_GET(self) -> None:
        if self.path == "/hang":
            self.server.hang.wait(10)  # type: ignore[attr-defined]
        elif self.path == "/cut":
            self.close_connection = True
            return
        elif self.path == "/garbage":
            self._say(200, None)
            return
        elif self.path.startswith("/status/"):
            self._say(int(self.path[8:]), {})
            return
        self._say(200, {"value": self.server.store.get(self.path[1:], "")})  # type: ignore[attr-defined]

    def _say(self, status: int, data: Any) -> None:
        text = json.dumps(data).encode() if data is not None else b"<html>"
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients go away when they like."""


@pytest.fixture
def service() -> Iterator[ThreadingHTTPServer]:
    with Server(("127.0.0.1", 0), Service) as server:
        server.store, server.hang = {}, threading.Event()  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.hang.set()  # type: ignore[attr-defined]
        server.shutdown()


def plan(server: ThreadingHTTPServer, session: Any, **more: Any) -> LoadPlan:
    tide = Tide(rate_per_s=more.pop("rate", 40), swing=0)
    fields = {"seed": 1, "first": "write", "timeout_s": 10.0, **more}
    return LoadPlan(url=f"http://127.0.0.1:{server.server_address[1]}", tide=tide, session=session, **fields)


def lines_of(load: HttpLoad, count: int) -> tuple[Line, ...]:
    load.start()
    until("there are enough lines", lambda: len(load.lines()) >= count, 20)
    load.stop()
    return tuple(load.lines())


async def write_and_read(client: Client) -> None:
    key, value = client.name, str(client.rng.randrange(100))
    await client.ask("write", "PUT", f"/{key}", body={"value": value}, key=key, value=value)
    await client.think(0.01)
    await client.ask("read", "GET", f"/{key}", key=key, saw=lambda r: r.body["value"] if r.ok else None)


def test_what_was_asked_is_what_is_there(service: ThreadingHTTPServer) -> None:
    lines = lines_of(HttpLoad(plan(service, write_and_read)), 60)
    possible, wrong = replay(lines)
    assert (wrong, against(possible, service.store)) == ((), ())  # type: ignore[attr-defined]
    assert {line.operation for line in lines} == {"write", "read"} and {line.answer for line in lines} == {"ok"}
    victim = next(iter(service.store))  # type: ignore[attr-defined]
    del service.store[victim]  # type: ignore[attr-defined]
    assert [p.kind for p in against(possible, service.store)] == ["lost"]  # type: ignore[attr-defined]


def test_the_same_seed_asks_the_same(service: ThreadingHTTPServer) -> None:
    one, two = ({line.key: line.value for line in lines_of(HttpLoad(plan(service, write_and_read)), 40)
                 if line.is_write} for _ in range(2))  # fmt: skip
    both = one.keys() & two.keys()
    assert len(both) > 10 and all(one[key] == two[key] for key in both)


@pytest.mark.parametrize(
    ("path", "answer", "status"),
    [
        ("/status/503", "error", 503), ("/status/409", "refused", 409), ("/status/404", "error", 404),
        ("/hang", "timeout", 0), ("/cut", "unreachable", 0), ("/garbage", "error", 200),
    ],
)  # fmt: skip
def test_answers(service: ThreadingHTTPServer, path: str, answer: str, status: int) -> None:
    async def session(client: Client) -> None:
        await client.ask("get", "GET", path, refused=(409,))

    line = lines_of(HttpLoad(plan(service, session, timeout_s=1.0 if path == "/hang" else 10.0)), 1)[0]
    assert (line.answer, line.status) == (answer, status)
    assert answer != "timeout" or 0.9 < line.latency_s < 2


def test_nobody_there(service: ThreadingHTTPServer) -> None:
    quiet = plan(service, write_and_read)
    service.server_close()
    assert lines_of(HttpLoad(quiet), 1)[0].answer == "unreachable"


def test_a_service_that_hangs_gets_no_fewer_requests(service: ThreadingHTTPServer) -> None:
    async def session(client: Client) -> None:
        await client.ask("write", "GET", "/hang")

    load = HttpLoad(plan(service, session, most=20, timeout_s=5.0))
    load.start()
    until("it drops what it cannot send", lambda: sum(n.answer == "dropped" for n in load.lines()) > 20, 10)
    began = time.monotonic()
    service.hang.set()  # type: ignore[attr-defined]
    load.stop()
    assert time.monotonic() - began < 6
    assert all(line.operation == "write" for line in load.lines())


def test_a_bug_in_a_session_is_no_outage(service: ThreadingHTTPServer) -> None:
    async def session(client: Client) -> None:
        raise KeyError(client.name)

    load = HttpLoad(plan(service, session))
    load.start()
    with pytest.raises(LabError, match="the load generator is broken: KeyError"):
        until("it crashes", lambda: bool(load.lines()), 10)
    load.stop()


def test_stopping_twice_and_before_the_start(service: ThreadingHTTPServer) -> None:
    load = HttpLoad(plan(service, write_and_read))
    load.stop()
    load.stop()
    assert load.lines() == ()
