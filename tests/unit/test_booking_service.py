"""The booking service's logic: bookings on a database of SQLite, tokens, the API, the worker and its election."""

from __future__ import annotations

import io
import json
import re
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from problems.workloads.booking.service import store, tokens, worker
from problems.workloads.booking.service.api import Api

SCHEMA = """
CREATE TABLE flights (
  id INTEGER PRIMARY KEY, origin, destination, departs, price_cents, free INTEGER CHECK (free >= 0)
);
CREATE TABLE bookings (reference PRIMARY KEY, flight, passenger, version, state, changed);
CREATE TABLE outbox (id INTEGER PRIMARY KEY, reference, version, kind, sent);
INSERT INTO flights VALUES (1, 'AMS', 'OSL', '2030-01-01', 100, 2), (2, 'AMS', 'OSL', '2030-01-02', 100, 1);
"""


class Away(Exception):
    """The database does not answer."""


class Sqlite:
    """SQLite with psycopg's manners. It has no row locks, and needs none with one connection."""

    def __init__(self) -> None:
        self._db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._db.executescript(SCHEMA)
        self.away = False

    def execute(self, query: str, params: Sequence[Any] = ()) -> Any:
        if self.away:
            raise Away("connection refused")
        query = re.sub(r" FOR UPDATE( SKIP LOCKED)?", "", query).replace("%s", "?").replace("::text", "")
        return self._db.execute(query.replace("now()", "CURRENT_TIMESTAMP"), params)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.execute("BEGIN")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def all(self, query: str) -> list[Any]:
        return [tuple(row) for row in self._db.execute(query)]


@pytest.fixture
def db() -> Sqlite:
    return Sqlite()


def seats(db: Sqlite) -> list[int]:
    return [row[0] for row in db.all("SELECT free FROM flights ORDER BY id")]


def test_booking_twice_books_once_and_the_last_seat_is_sold_once(db: Sqlite) -> None:
    one = store.book(db, "ref-1", 2, "Ada")
    assert store.book(db, "ref-1", 2, "Ada") == one and seats(db) == [2, 0]
    with pytest.raises(store.Refused, match="another booking"):
        store.book(db, "ref-1", 1, "Ada")
    with pytest.raises(store.Refused, match="flight 2 is sold out"):
        store.book(db, "ref-2", 2, "Bob")
    assert seats(db) == [2, 0] and len(db.all("SELECT * FROM bookings")) == 1
    assert db.all("SELECT reference, version, kind FROM outbox") == [("ref-1", 1, "booked")]


def test_the_same_change_again_is_the_same_answer(db: Sqlite) -> None:
    """The front asks the other instance where the first one's answer was lost."""
    store.book(db, "ref-1", 1, "Ada")
    moved = store.change(db, "ref-1", 1, 2)
    assert store.change(db, "ref-1", 1, 2) == moved and seats(db) == [2, 0]
    cancelled = store.cancel(db, "ref-1", 2)
    assert store.cancel(db, "ref-1", 2) == cancelled and seats(db) == [2, 1]
    assert db.all("SELECT version, kind FROM outbox") == [(1, "booked"), (2, "changed"), (3, "cancelled")]


def test_changes_build_on_a_version_and_seats_are_never_made_or_lost(db: Sqlite) -> None:
    store.book(db, "ref-1", 1, "Ada")
    moved = store.change(db, "ref-1", 1, 2)
    assert (moved.flight, moved.version, seats(db)) == (2, 2, [2, 0])
    with pytest.raises(store.Refused, match="ref-1 is booked in version 2"):
        store.change(db, "ref-1", 1, 1)
    with pytest.raises(store.Refused, match="ref-1 is booked in version 2"):
        store.cancel(db, "ref-1", 1)
    store.book(db, "ref-2", 1, "Bob")
    with pytest.raises(store.Refused, match="sold out"):
        store.change(db, "ref-2", 1, 2)
    assert seats(db) == [1, 0], "a move that fails changes nothing"
    assert store.cancel(db, "ref-1", 2).state == "cancelled" and seats(db) == [1, 1]
    with pytest.raises(store.Refused, match="ref-1 is cancelled in version 3"):
        store.cancel(db, "ref-1", 3)
    with pytest.raises(store.NotThere):
        store.cancel(db, "nobody", 1)
    told = db.all("SELECT reference, version, kind FROM outbox ORDER BY id")
    assert told == [
        ("ref-1", 1, "booked"),
        ("ref-1", 2, "changed"),
        ("ref-2", 1, "booked"),
        ("ref-1", 3, "cancelled"),
    ]


def test_tokens() -> None:
    token = tokens.issue(b"secret", "ada", 1000.0)
    assert tokens.check(b"secret", token, 1000.0 - tokens.LEEWAY_S) == "ada"
    assert tokens.check(b"secret", token, 1000.0 + tokens.LIFETIME_S) == "ada"
    for now, secret, text, reason in (
        (1000.0 - tokens.LEEWAY_S - 1, b"secret", token, "not yet valid"),
        (1000.0 + tokens.LIFETIME_S + tokens.LEEWAY_S, b"secret", token, "has expired"),
        (1000.0, b"other", token, "bad signature"),
        (1000.0, b"secret", "x" + token, "bad signature"),
        (1000.0, b"secret", "", "bad signature"),
    ):
        with pytest.raises(tokens.TokenError, match=reason):
            tokens.check(secret, text, now)


class Shelf:
    """A cache."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.away = False

    def get(self, key: str) -> bytes | None:
        if self.away:
            raise OSError("timed out")
        return self.kept.get(key)

    def put(self, key: str, value: bytes, seconds: int) -> None:
        if self.away:
            raise OSError("timed out")
        self.kept[key] = value


class Web:
    """Asks the application as gunicorn does."""

    def __init__(self, db: Sqlite) -> None:
        @contextmanager
        def connection() -> Iterator[Sqlite]:
            yield db

        self.cache, self.now, self.token = Shelf(), 1000.0, ""
        self._api = Api(connection, self.cache, b"secret", (Away,), clock=lambda: self.now)
        self.token = self("POST", "/sessions", {"user": "ada"})[1]["token"]

    def __call__(self, method: str, path: str, body: Any = None, text: bytes | None = None) -> tuple[int, Any]:
        data = text if text is not None else json.dumps(body).encode() if body is not None else b""
        path, _, query = path.partition("?")
        environ = {
            "REQUEST_METHOD": method, "PATH_INFO": path, "QUERY_STRING": query, "CONTENT_LENGTH": str(len(data)),
            "wsgi.input": io.BytesIO(data), "HTTP_AUTHORIZATION": f"Bearer {self.token}",
        }  # fmt: skip
        status: list[str] = []
        body_out = b"".join(self._api(environ, lambda line, headers: status.append(line)))
        return int(status[0].split()[0]), json.loads(body_out)


@pytest.fixture
def web(db: Sqlite) -> Web:
    return Web(db)


def test_the_life_of_a_booking(web: Web) -> None:
    assert web("GET", "/health") == (200, {"status": "ok"})
    status, found = web("GET", "/flights?origin=AMS&destination=OSL")
    assert status == 200 and [f["id"] for f in found] == [1, 2]
    status, made = web("PUT", "/bookings/ref-1", {"flight": 1, "passenger": "Ada"})
    assert (status, made["version"], made["state"]) == (201, 1, "booked")
    assert web("PATCH", "/bookings/ref-1", {"flight": 2, "version": 1})[1]["flight"] == 2
    assert web("GET", "/bookings/ref-1")[1]["version"] == 2
    assert web("DELETE", "/bookings/ref-1?version=1")[0] == 409
    assert web("DELETE", "/bookings/ref-1?version=2")[1]["state"] == "cancelled"


@pytest.mark.parametrize(
    ("method", "path", "body", "text", "status"),
    [
        ("GET", "/bookings/none", None, None, 404),
        ("GET", "/nowhere", None, None, 404),
        ("POST", "/bookings/ref-1", {}, None, 405),
        ("PUT", "/bookings/ref-1", {"flight": 1}, None, 400),
        ("PUT", "/bookings/ref-1", {"flight": "x", "passenger": "Ada"}, None, 400),
        ("PUT", "/bookings/ref-1", None, b"{", 400),
        ("PUT", "/bookings/ref-1", None, b"[]", 400),
        ("PUT", "/bookings/ref-1", None, b" " * 5000, 400),
        ("PUT", "/bookings/ref-1", None, None, 400),
        ("GET", "/flights?origin=AMS", None, None, 400),
        ("DELETE", "/bookings/ref-1", None, None, 400),
        ("PUT", "/bookings/ref-1", {"flight": 9, "passenger": "Ada"}, None, 409),
    ],
)
def test_what_is_answered_to_nonsense(
    web: Web, method: str, path: str, body: Any, text: bytes | None, status: int
) -> None:
    assert web(method, path, body, text)[0] == status


def test_a_token_of_an_instance_whose_clock_runs_away(web: Web) -> None:
    web.now -= 60
    assert web("GET", "/bookings/ref-1") == (401, {"error": "token is not yet valid"})
    web.now += 600
    assert web("GET", "/bookings/ref-1") == (401, {"error": "token has expired"})


def test_without_its_database_and_without_its_cache(web: Web, db: Sqlite) -> None:
    web.cache.away = True
    assert web("GET", "/flights?origin=AMS&destination=OSL")[0] == 200
    web.cache.away = False
    web("GET", "/flights?origin=AMS&destination=OSL")
    db.away = True
    assert web("GET", "/flights?origin=AMS&destination=OSL")[0] == 200, "from the cache"
    for method, path, body in (("GET", "/health", None), ("GET", "/bookings/ref-1", None),
                               ("PUT", "/bookings/ref-1", {"flight": 1, "passenger": "Ada"})):  # fmt: skip
        assert web(method, path, body)[0] == 503


class Etcd:
    """As much of etcd as an election needs, with a clock of its own."""

    def __init__(self) -> None:
        self.now, self.leases, self.holder, self.away = 0.0, dict[str, float](), "", False

    def post(self, path: str, body: Any) -> Any:
        if self.away:
            raise OSError("connection refused")
        self.leases = {lease: end for lease, end in self.leases.items() if end > self.now}
        self.holder = self.holder if self.holder in self.leases else ""
        if path == "/v3/lease/grant":
            lease = str(len(self.leases) + int(self.now * 1000) + 1)
            self.leases[lease] = self.now + body["TTL"]
            return {"ID": lease}
        if path == "/v3/lease/keepalive":
            if body["ID"] not in self.leases:
                return {"result": {"ID": body["ID"]}}
            self.leases[body["ID"]] = self.now + worker.LEASE_S
            return {"result": {"TTL": str(worker.LEASE_S)}}
        if path == "/v3/lease/revoke":
            self.leases.pop(body["ID"], None)
            return {}
        if path == "/v3/kv/range":
            return {"count": "1"} if self.holder else {}
        if self.holder:
            return {}
        self.holder = body["success"][0]["requestPut"]["lease"]
        return {"succeeded": True}


def test_one_leads_and_another_follows_when_its_lease_ends() -> None:
    etcd = Etcd()
    one, two = (worker.Election([], name, etcd.post) for name in ("w1", "w3"))
    assert one.leads() and not two.leads()
    for _ in range(5):
        etcd.now += worker.RENEW_S
        assert one.leads() and not two.leads()
    etcd.now += worker.LEASE_S + 1
    assert two.leads() and not one.leads(), "it was away too long, and sees it"
    two.resign()
    assert one.leads()


def test_each_confirmation_is_handed_over_once(db: Sqlite) -> None:
    for number in range(25):
        db.execute("INSERT INTO outbox (reference, version, kind) VALUES (%s, 1, 'booked')", (f"r{number:02}",))
    got: dict[str, str] = {}
    taken = 0

    def deliver(name: str, text: str) -> None:
        nonlocal taken
        taken += 1
        if taken == 7:
            raise Away("died in the middle of a batch")
        got.setdefault(name, text)

    with pytest.raises(Away):
        worker.send_batch(db, deliver)
    assert len(got) == 6 and db.all("SELECT count(*) FROM outbox WHERE sent IS NOT NULL") == [(0,)]
    assert (worker.send_batch(db, deliver), worker.send_batch(db, deliver), worker.send_batch(db, deliver)) == (
        20,
        5,
        0,
    )
    assert sorted(got) == [f"confirmation:r{number:02}:1" for number in range(25)]


def test_the_worker_waits_for_what_is_away(db: Sqlite) -> None:
    etcd, over = Etcd(), threading.Event()
    db.execute("INSERT INTO outbox (reference, version, kind) VALUES ('r', 1, 'booked')")
    sent: list[str] = []
    one = worker.Worker(
        worker.Election([], "w1", etcd.post), lambda: db, lambda n, _: sent.append(n), (Away, OSError)
    )
    etcd.away = True
    assert not one.turn() and sent == []
    etcd.away, db.away = False, True
    assert not one.turn() and sent == []
    db.away = False
    assert one.turn() and sent == ["confirmation:r:1"]
    assert not one.turn(), "nothing more to send"
    over.set()
    one.run(over)
    assert etcd.leases == {}, "it has resigned"
