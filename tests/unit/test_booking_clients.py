"""Clients of the booking service against the service's own code, behind a real HTTP server on loopback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import pytest

from labctl.run.arrivals import Tide
from labctl.run.ledger import against, replay
from labctl.run.load import HttpLoad
from problems.workloads.booking import clients
from tests.user import until

from .test_booking_service import Sqlite, Web


class Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class Quiet(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def service() -> Iterator[tuple[Sqlite, str]]:
    db, lock = Sqlite(), threading.Lock()
    for number, (origin, destination) in enumerate(clients.ROUTES, 10):
        db.execute("INSERT INTO flights VALUES (%s, %s, %s, '2030-01-01', 100, 3)", (number, origin, destination))
    web = Web(db)
    web.now = 1000.0

    def one_by_one(environ: dict[str, object], start_response: object) -> object:
        with lock:  # one connection of SQLite
            return web._api(environ, start_response)  # type: ignore[arg-type]

    with make_server("127.0.0.1", 0, one_by_one, Server, Quiet) as server:  # type: ignore[arg-type]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield db, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_what_clients_were_told_is_what_the_database_has(service: tuple[Sqlite, str]) -> None:
    db, url = service
    load = HttpLoad(clients.load_plan(url, 5, Tide(rate_per_s=8, swing=0)))
    load.start()
    wanted = {"session", "search", "book", "read", "change", "cancel"}
    until("all is asked", lambda: {line.operation for line in load.lines()} >= wanted, 120)
    until("flights are sold out", lambda: any(line.answer == "refused" for line in load.lines()), 120)
    load.stop()
    lines = load.lines()
    assert {"ok", "refused"} <= {line.answer for line in lines}  # and what a busy machine makes of some
    rows = db.all("SELECT reference, flight, version, state FROM bookings")
    found = {r: clients.value_of({"flight": f, "version": v, "state": s}) for r, f, v, s in rows}
    held = {key: value for key, value in found.items() if value}
    possible, wrong = replay(lines)
    assert (wrong, against(possible, held)) == ((), ())
    told = next(key for key in held if "" not in possible[key])
    assert [p.kind for p in against(possible, {k: v for k, v in held.items() if k != told})] == ["lost"]
    free = dict(db.all("SELECT id, free FROM flights"))
    for flight, count in free.items():
        assert count + sum(value.startswith(f"{flight}/") for value in held.values()) == {1: 2, 2: 1}.get(
            flight, 3
        )
