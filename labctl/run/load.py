"""Clients of a service: an open loop of sessions, each a row of requests, every request a line of the ledger.

Sessions arrive when the tide says, whether the service answers or not. Within a session a request is due when the
one before it has ended and the client has thought for a while, as with people. More sessions at once than `most`
are not begun; that is counted, and says that the numbers are the load generator's and not the service's.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from labctl.errors import LabError
from labctl.run.arrivals import Tide, arrivals
from labctl.run.ledger import Answer, Line

_STOP_S = 10.0
_LOOK_S = 0.2


@dataclass(frozen=True)
class Reply:
    """What came back. `status` 0 and no body where nothing did."""

    answer: Answer
    status: int = 0
    body: Any = None

    @property
    def ok(self) -> bool:
        return self.answer == "ok"


class _Over(Exception):
    """The load ends: no further request is begun."""


class Client:
    """One session's way to the service. Each request it makes is one line, written when it has ended."""

    def __init__(self, web: httpx.AsyncClient, ledger: _Ledger, over: threading.Event, rng: random.Random) -> None:
        self._web, self._ledger, self._over = web, ledger, over
        self.rng = rng
        self.name = f"{rng.getrandbits(48):012x}"
        self.headers: dict[str, str] = {}

    async def think(self, seconds: float) -> None:
        """As long as people do: exponentially distributed about a mean."""
        end = time.monotonic() + self.rng.expovariate(1 / seconds)
        while (left := end - time.monotonic()) > 0 and not self._over.is_set():
            await asyncio.sleep(min(left, _LOOK_S))

    async def ask(
        self,
        operation: str,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        refused: Sequence[int] = (),
        key: str = "",
        value: str | None = None,
        saw: Callable[[Reply], str | None] | None = None,
    ) -> Reply:
        """Make a request. Statuses below 400 are ok, those of `refused` a no that is meant, others errors.

        `key` and `value` say what a write means, `saw` takes from a reply what a read saw of `key`.
        """
        if self._over.is_set():
            raise _Over
        sent = self._ledger.now_s()
        reply = await self._try(method, path, body, refused)
        self._ledger.add(
            Line(
                due_s=sent, sent_s=sent, latency_s=self._ledger.now_s() - sent, operation=operation,
                answer=reply.answer, status=reply.status, key=key, value=value, saw=saw(reply) if saw else None,
            )
        )  # fmt: skip
        return reply

    async def _try(self, method: str, path: str, body: Mapping[str, Any] | None, refused: Sequence[int]) -> Reply:
        try:
            found = await self._web.request(method, path, json=body, headers=self.headers)
            data = found.json() if found.content else None
        except httpx.TimeoutException:
            return Reply("timeout")
        except httpx.TransportError:
            return Reply("unreachable")
        except ValueError:  # an answer that is cut short or no JSON
            return Reply("error", found.status_code)
        if found.status_code < 400:
            return Reply("ok", found.status_code, data)
        return Reply("refused" if found.status_code in refused else "error", found.status_code, data)


Session = Callable[[Client], Awaitable[None]]
"""What one client does, from its arrival on."""


@dataclass(frozen=True)
class LoadPlan:
    """Where the service is, when sessions come, and how patient clients are, in seconds."""

    url: str
    tide: Tide
    seed: int
    session: Session
    first: str
    """The operation of a session's first request: the line of a session that is not begun has it."""

    timeout_s: float = 5.0
    most: int = 200


@dataclass
class _Ledger:
    """Lines in the order in which their requests ended. Kept in this process, where no solver can edit them."""

    began: float = 0.0
    _lines: list[Line] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def now_s(self) -> float:
        return time.monotonic() - self.began

    def add(self, line: Line) -> None:
        with self._lock:
            self._lines.append(line)

    def lines(self) -> tuple[Line, ...]:
        with self._lock:
            return tuple(self._lines)


class HttpLoad:
    """The load, in a thread of its own. Start it once; `stop` waits until the last request has ended."""

    def __init__(self, plan: LoadPlan) -> None:
        self._plan, self._ledger = plan, _Ledger()
        self._over = threading.Event()
        self._crash = ""
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="load", daemon=True)

    def start(self) -> None:
        """Begin: the first sessions come soon."""
        self._ledger.began = time.monotonic()
        self._thread.start()

    def now_s(self) -> float:
        """Seconds since the start."""
        return self._ledger.now_s()

    def lines(self) -> Sequence[Line]:
        """The ledger so far. Raises :class:`LabError` where the load generator is broken."""
        if self._crash or (not self._thread.is_alive() and not self._over.is_set()):
            raise LabError(f"the load generator is broken: {self._crash or 'it has ended'}")
        return self._ledger.lines()

    def stop(self) -> None:
        """No more sessions; those that run end at their next request. Twice is fine."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(self._plan.timeout_s + _STOP_S)

    async def _run(self) -> None:
        plan = self._plan
        limits = httpx.Limits(max_connections=plan.most, max_keepalive_connections=20)
        running: set[asyncio.Task[None]] = set()
        web = httpx.AsyncClient(base_url=plan.url, timeout=plan.timeout_s, limits=limits, trust_env=False)
        async with web:
            for number, due in enumerate(arrivals(plan.tide, plan.seed)):
                while (wait := due - self.now_s()) > 0 and not self._over.is_set():
                    await asyncio.sleep(min(wait, _LOOK_S))
                if self._over.is_set():
                    break
                if len(running) >= plan.most:
                    self._ledger.add(
                        Line(due_s=due, sent_s=due, latency_s=0, operation=plan.first, answer="dropped")
                    )
                    continue
                rng = random.Random(f"{plan.seed}/{number}")  # noqa: S311 - what clients do, no secret
                task = asyncio.create_task(self._session(Client(web, self._ledger, self._over, rng)))
                running.add(task)
                task.add_done_callback(running.discard)
            # What is on its way has to end, or nobody could say whether it happened.
            await asyncio.gather(*running)

    async def _session(self, client: Client) -> None:
        try:
            with contextlib.suppress(_Over):
                await self._plan.session(client)
        except Exception as error:  # noqa: BLE001 - a bug in a session must not look like an outage
            self._crash = f"{type(error).__name__}: {error}"
