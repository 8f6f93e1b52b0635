"""The booking API, a WSGI application. `gunicorn 'service.api:make()'` serves it.

    POST   /sessions                     {"user"}                 a token for what follows
    GET    /flights?origin=&destination=                          flights with seats left
    PUT    /bookings/REFERENCE           {"flight", "passenger"}  book
    GET    /bookings/REFERENCE
    PATCH  /bookings/REFERENCE           {"flight", "version"}    move to another flight
    DELETE /bookings/REFERENCE?version=                           cancel
    GET    /health                                                whether the database answers

Statuses: 401 no or bad token, 404 no such booking, 409 no and meant so, 400 nonsense, 503 try again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qs

from . import store, tokens

LOG = logging.getLogger("booking.api")
_STATUS = {200: "OK", 201: "Created", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found",
           405: "Method Not Allowed", 409: "Conflict", 503: "Service Unavailable"}  # fmt: skip
_REFERENCE = re.compile(r"^/bookings/([0-9A-Za-z-]{4,40})$")
_LONGEST_BODY = 4096
CACHED_S = 2


class Cache(Protocol):
    """Answers that may be a little old. Raises OSError where it is away."""

    def get(self, key: str) -> bytes | None: ...
    def put(self, key: str, value: bytes, seconds: int) -> None: ...


class Bad(Exception):
    """A request that makes no sense."""


class Api:
    """The application. `database` gives a connection; its errors are told apart by `is_unavailable`."""

    def __init__(
        self,
        database: Callable[[], AbstractContextManager[store.Connection]],
        cache: Cache,
        secret: bytes,
        unavailable: tuple[type[Exception], ...],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database, self._cache, self._secret = database, cache, secret
        self._unavailable, self._clock = unavailable, clock

    def __call__(self, environ: Mapping[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        try:
            status, data = self._answer(environ)
        except (Bad, ValueError, KeyError, TypeError) as error:
            status, data = 400, {"error": str(error)}
        except tokens.TokenError as error:
            LOG.warning("401 %s: %s", environ["PATH_INFO"], error)
            status, data = 401, {"error": str(error)}
        except store.NotThere as error:
            status, data = 404, {"error": f"there is no booking {error}"}
        except store.Refused as error:
            status, data = 409, {"error": str(error)}
        except self._unavailable as error:
            LOG.warning("503 %s: %s: %s", environ["PATH_INFO"], type(error).__name__, str(error).strip())
            status, data = 503, {"error": "the database does not answer"}
        text = json.dumps(data).encode()
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(text)))]
        start_response(f"{status} {_STATUS[status]}", headers)
        return [text]

    def _answer(self, environ: Mapping[str, Any]) -> tuple[int, Any]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        query = {key: values[0] for key, values in parse_qs(environ.get("QUERY_STRING", "")).items()}
        if path == "/health":
            with self._database() as db:
                db.execute("SELECT 1").fetchone()
            return 200, {"status": "ok"}
        if (method, path) == ("POST", "/sessions"):
            return 201, {"token": tokens.issue(self._secret, str(_body(environ)["user"]), self._clock())}
        tokens.check(self._secret, environ.get("HTTP_AUTHORIZATION", "").removeprefix("Bearer "), self._clock())
        if (method, path) == ("GET", "/flights"):
            return 200, self._flights(query["origin"], query["destination"])
        found = _REFERENCE.match(path)
        if found is None:
            return 404, {"error": f"there is no {path}"}
        return self._booking(method, found[1], environ, query)

    def _booking(
        self, method: str, reference: str, environ: Mapping[str, Any], query: Mapping[str, str]
    ) -> tuple[int, Any]:
        with self._database() as db:
            if method == "GET":
                return 200, store.read(db, reference)._asdict()
            if method == "PUT":
                body = _body(environ)
                return 201, store.book(db, reference, int(body["flight"]), str(body["passenger"]))._asdict()
            if method == "PATCH":
                body = _body(environ)
                return 200, store.change(db, reference, int(body["version"]), int(body["flight"]))._asdict()
            if method == "DELETE":
                return 200, store.cancel(db, reference, int(query["version"]))._asdict()
        return 405, {"error": f"{method} is not possible here"}

    def _flights(self, origin: str, destination: str) -> Any:
        """From the cache where it has them; a cache that is away costs time, no answers."""
        key = f"flights:{origin}:{destination}"
        try:
            known = self._cache.get(key)
            if known is not None:
                return json.loads(known)
        except OSError as error:
            LOG.warning("the cache does not answer: %s", error)
        with self._database() as db:
            found = store.flights(db, origin, destination)
        with contextlib.suppress(OSError):  # said above
            self._cache.put(key, json.dumps(found).encode(), CACHED_S)
        return found


def _body(environ: Mapping[str, Any]) -> dict[str, Any]:
    length = int(environ.get("CONTENT_LENGTH") or 0)
    if not 0 < length <= _LONGEST_BODY:
        raise Bad("a body of JSON is needed")
    data = json.loads(environ["wsgi.input"].read(length))
    if not isinstance(data, dict):
        raise Bad("a JSON object is needed")
    return data


class _Valkey:
    """The cache in Valkey; the library's errors are told as OSError."""

    def __init__(self, client: Any, error: type[Exception]) -> None:
        self._client, self._error = client, error

    def get(self, key: str) -> bytes | None:
        try:
            found: bytes | None = self._client.get(key)
        except self._error as error:
            raise OSError(str(error)) from error
        return found

    def put(self, key: str, value: bytes, seconds: int) -> None:
        try:
            self._client.set(key, value, ex=seconds)
        except self._error as error:
            raise OSError(str(error)) from error


def make() -> Api:
    """The application as `/etc/booking/booking.env` describes it: BOOKING_DSN, BOOKING_CACHE, BOOKING_SECRET."""
    import psycopg
    import redis
    from psycopg_pool import ConnectionPool, PoolTimeout

    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    pool = ConnectionPool(
        os.environ["BOOKING_DSN"], min_size=4, max_size=4, timeout=3, max_lifetime=3600, open=True,
        check=ConnectionPool.check_connection,  # after a restart of the database no request meets a dead one
        kwargs={"connect_timeout": 3, "autocommit": True},
    )  # fmt: skip
    host, _, port = os.environ["BOOKING_CACHE"].partition(":")
    client = redis.Redis(host=host, port=int(port), socket_timeout=0.5, socket_connect_timeout=0.5)
    secret = Path(os.environ["BOOKING_SECRET"]).read_bytes().strip()
    return Api(pool.connection, _Valkey(client, redis.RedisError), secret, (psycopg.Error, PoolTimeout))
