"""Sends a confirmation for every change of a booking, each exactly once, from whichever instance leads.

The outbox is written in the transaction of the change. The leader takes what is not sent, hands it over under a
name of its own that the receiver takes once (`SET … NX`), and marks it. A leader that dies in between hands the
same over again, and it is not taken twice.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Callable
from typing import Any

LOG = logging.getLogger("booking.worker")
LEASE_S = 12
RENEW_S = 3.0
PAUSE_S = 1.0
BATCH = 20
_KEY = base64.b64encode(b"booking/leader").decode()


class Election:
    """Leadership by a key in etcd under a lease (JSON gateway, version 3). Raises OSError where etcd is away."""

    def __init__(self, endpoints: list[str], name: str, post: Callable[[str, Any], Any] | None = None) -> None:
        self._endpoints, self._name = endpoints, name
        self._post = post or self._http
        self._lease = ""

    def leads(self) -> bool:
        """Renew or try to win; whether this instance leads for the next seconds."""
        if self._lease and self._renewed():
            return True
        self._lease = ""
        if self._taken():
            return False
        lease = self._post("/v3/lease/grant", {"TTL": LEASE_S})["ID"]
        value = base64.b64encode(self._name.encode()).decode()
        won = self._post("/v3/kv/txn", {
            "compare": [{"key": _KEY, "target": "CREATE", "createRevision": "0"}],
            "success": [{"requestPut": {"key": _KEY, "value": value, "lease": lease}}],
        }).get("succeeded", False)  # fmt: skip
        if won:
            LOG.info("%s leads", self._name)
            self._lease = lease
        else:
            self._post("/v3/lease/revoke", {"ID": lease})
        return bool(won)

    def resign(self) -> None:
        """Let another one lead at once."""
        if self._lease:
            self._post("/v3/lease/revoke", {"ID": self._lease})
            self._lease = ""

    def _taken(self) -> bool:
        """Whether another one leads. To look costs little; a try is written down by all members."""
        return int(self._post("/v3/kv/range", {"key": _KEY, "serializable": True}).get("count", 0)) > 0

    def _renewed(self) -> bool:
        answer = self._post("/v3/lease/keepalive", {"ID": self._lease})
        if int(answer.get("result", {}).get("TTL", 0)) > 0:
            return True
        LOG.warning("%s leads no longer: the lease has ended", self._name)
        return False

    def _http(self, path: str, body: Any) -> Any:
        problem: OSError = OSError("no endpoints")
        for endpoint in self._endpoints:
            request = urllib.request.Request(f"{endpoint}{path}", json.dumps(body).encode())  # noqa: S310
            try:
                with urllib.request.urlopen(request, timeout=2) as reply:  # noqa: S310
                    return json.loads(reply.read())
            except OSError as error:
                problem = error
        raise problem


def send_batch(db: Any, deliver: Callable[[str, str], None]) -> int:
    """Hand over what is not sent yet, oldest first; how many. `deliver` takes each name once, with its text."""
    with db.transaction():
        rows = db.execute(
            "SELECT id, reference, version, kind FROM outbox WHERE sent IS NULL ORDER BY id LIMIT %s"
            " FOR UPDATE SKIP LOCKED",
            (BATCH,),
        ).fetchall()
        for number, reference, version, kind in rows:
            text = json.dumps({"reference": reference, "version": version, "kind": kind})
            deliver(f"confirmation:{reference}:{version}", text)
            db.execute("UPDATE outbox SET sent = now() WHERE id = %s", (number,))
    return len(rows)


class Worker:
    """Leads where it can, and sends while it leads. `unavailable`: errors of what is away, and is waited for."""

    def __init__(
        self,
        election: Election,
        connect: Callable[[], Any],
        deliver: Callable[[str, str], None],
        unavailable: tuple[type[Exception], ...],
    ) -> None:
        self._election, self._connect, self._deliver = election, connect, deliver
        self._unavailable = unavailable
        self._db: Any = None
        self._leads, self._renew_at = False, 0.0

    def turn(self) -> bool:
        """One round; whether there may be more to send at once."""
        try:
            if time.monotonic() >= self._renew_at:
                self._leads = self._election.leads()
                self._renew_at = time.monotonic() + RENEW_S
            if not self._leads:
                return False
            self._db = self._db or self._connect()
            return send_batch(self._db, self._deliver) > 0
        except self._unavailable as error:
            LOG.warning("waiting: %s: %s", type(error).__name__, str(error).strip())
            self._leads, self._db, self._renew_at = False, None, 0.0
            return False

    def run(self, over: threading.Event) -> None:
        """Rounds until `over`; then another instance may lead at once."""
        while not over.is_set():
            if not self.turn():
                over.wait(PAUSE_S)
        self._election.resign()


def main() -> None:
    """As `/etc/booking/booking.env` describes it: BOOKING_DSN, BOOKING_CACHE, BOOKING_ETCD, BOOKING_NAME."""
    import psycopg
    import redis

    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    host, _, port = os.environ["BOOKING_CACHE"].partition(":")
    sink = redis.Redis(host=host, port=int(port), socket_timeout=2, socket_connect_timeout=2)
    election = Election(os.environ["BOOKING_ETCD"].split(","), os.environ["BOOKING_NAME"])

    def connect() -> Any:
        return psycopg.connect(os.environ["BOOKING_DSN"], connect_timeout=3, autocommit=True)

    def deliver(name: str, text: str) -> None:
        sink.set(name, text, nx=True)

    Worker(election, connect, deliver, (psycopg.Error, redis.RedisError, OSError)).run(over)


if __name__ == "__main__":
    main()
