"""What each method of the contract does: one dispatcher behind both edges of the agent.

A refusal or a failure is an :class:`AgentError`. Anything else is a bug: it is logged with its traceback and
answered as `internal`, so that one bad request never ends the agent.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, cast

from google.protobuf.message import Message

from node_agent import signs
from node_agent.api import agent_pb2 as pb
from node_agent.api import convert
from node_agent.api.methods import find_method
from node_agent.audit import AuditLog, NoAudit
from node_agent.caller import Caller
from node_agent.errors import (
    AgentError,
    ConflictError,
    NotFoundError,
    Refusal,
    StoppedError,
    UnsupportedError,
)
from node_agent.facts import gather_facts
from node_agent.fault import Capability, Missing
from node_agent.forestalled import Forestalled
from node_agent.host import CommandError, Host
from node_agent.host.mounting import Repair
from node_agent.injection import ENDED, InjectionView, Plan
from node_agent.prepare.disks import Preparer
from node_agent.prepare.messages import reply_message, request_of
from node_agent.residue import Difference

log = logging.getLogger(__name__)

MAX_WATCHERS = 8
AUDIT_ENTRIES, MAX_AUDIT_ENTRIES = 100, 2000
WATCH_INTERVAL_S = (0.2, 60.0)
CLOCK_BOUNDS_UNIX_S = (1577836800.0, 4102444800.0)
"""From 2020 to 2100: a clock outside breaks more than the lab."""


class InjectorApi(Protocol):
    """The part of :class:`node_agent.injector.Injector` that requests reach."""

    @property
    def stopped(self) -> bool: ...
    def capabilities(self, again: bool = False) -> Mapping[str, Capability]: ...
    def support(self) -> tuple[tuple[str, tuple[Missing, ...]], ...]: ...
    def plan(self, injection_id: str, fault_name: str, parameters: Mapping[str, Any]) -> Plan: ...
    def apply(
        self, injection_id: str, fault_name: str, parameters: Mapping[str, Any], lease_s: float = 0
    ) -> InjectionView: ...
    def extend(self, injection_id: str, lease_s: float) -> InjectionView: ...
    def recover(self, ids: tuple[str, ...] | None, why: str) -> tuple[InjectionView, ...]: ...
    def set_clock(self, unix_s: float) -> None: ...
    def set_stopped(self, stopped: bool) -> None: ...
    def injections(self, ended: bool = False, ids: tuple[str, ...] = ()) -> tuple[InjectionView, ...]: ...
    def view(self, injection_id: str) -> InjectionView: ...
    def residue(self) -> tuple[Difference, ...]: ...
    def repair_disk(self, injection_id: str, disk: str) -> Repair: ...


class Service:
    """The contract's methods. Safe to call from many threads at once, as the injector is."""

    def __init__(
        self,
        injector: InjectorApi,
        host: Host,
        node: str,
        clock: Callable[[], float] = time.time,
        *,
        preparer: Preparer | None = None,
        audit: AuditLog | NoAudit | None = None,
    ) -> None:
        self._preparer, self.audit = preparer, audit or NoAudit()
        self._injector, self._host, self.node, self._clock = injector, host, node, clock
        self._forestalled = Forestalled(host.boottime)
        self._closing = threading.Event()
        self._watchers = threading.BoundedSemaphore(MAX_WATCHERS)
        self._handlers: Mapping[str, Callable[[Any], Message]] = {
            "Facts": self._facts,
            "Probe": self._probe,
            "Plan": self._plan,
            "Apply": self._apply,
            "Extend": self._extend,
            "Recover": self._recover,
            "List": self._list,
            "Residue": self._residue,
            "SetClock": self._set_clock,
            "Observe": self._observe,
            "PrepareDisk": self._prepare_disk,
            "RepairDisk": self._repair_disk,
            "Audit": self._audit,
        }

    def close(self) -> None:
        """Plant nothing more and end all watching, because the agent is about to go."""
        self._closing.set()

    def call(self, method: str, request: Message, caller: Caller) -> Message:
        """Answer one request. Raises :class:`AgentError`, never anything else."""
        handler = self._handlers.get(find_method(method).name)
        if handler is None:
            raise Refusal(f"{method} answers with a stream", field="method")
        with self.audit.request(method, request, caller), _one_log_line(method, request, caller):
            return handler(request)

    def watch(
        self, request: pb.WatchRequest, caller: Caller, wait: Callable[[float], bool]
    ) -> Iterator[pb.Injection]:
        """An injection now and at each interval until it has ended.

        `wait` sleeps and says whether the client has left. Raises :class:`AgentError`, never anything else.
        """
        with _one_log_line("Watch", request, caller):
            interval = _watch_interval(request.interval_s)
            if not self._watchers.acquire(blocking=False):
                raise ConflictError("too many clients are watching", allowed=f"{MAX_WATCHERS} at a time")
            try:
                while True:
                    view = self._injector.view(request.id)
                    yield convert.injection_message(view)
                    if view.state in ENDED or self._left(wait, interval):
                        return
            finally:
                self._watchers.release()

    def _left(self, wait: Callable[[float], bool], interval: float) -> bool:
        end = time.monotonic() + interval
        while not self._closing.is_set():
            rest = end - time.monotonic()
            if rest <= 0:
                return False
            if wait(min(rest, 1.0)):
                return True
        return True

    def _facts(self, request: pb.FactsRequest) -> Message:
        # Not the injector's facts: those wait for the probes, and being asked who it is must be quick.
        facts = gather_facts(self._host, self.node, {})
        return convert.facts_message(
            facts,
            stopped=self._injector.stopped,
            boottime_s=self._host.boottime(),
            clock_unix_s=self._clock(),
        )

    def _probe(self, request: pb.ProbeRequest) -> Message:
        capabilities = self._injector.capabilities(request.again)
        return convert.probe_message(capabilities.values(), self._injector.support())

    def _plan(self, request: pb.PlanRequest) -> Message:
        parameters = convert.parameters_of(request.parameters_json)
        return convert.plan_message(self._injector.plan(request.id, request.fault, parameters))

    def _apply(self, request: pb.ApplyRequest) -> Message:
        parameters = convert.parameters_of(request.parameters_json)
        if self._closing.is_set():
            raise StoppedError("the agent is ending", allowed="it starts again within seconds")
        self._forestalled.refuse(request.id)
        view = self._injector.apply(request.id, request.fault, parameters, request.lease_s)
        if request.id in self._forestalled:  # recovered while it waited for its turn
            self._injector.recover((request.id,), "recover")
            self._forestalled.refuse(request.id)
        return convert.injection_message(view)

    def _extend(self, request: pb.ExtendRequest) -> Message:
        return convert.injection_message(self._injector.extend(request.id, request.lease_s))

    def _recover(self, request: pb.RecoverRequest) -> Message:
        stop = request.stop == pb.RecoverRequest.SET
        clear = request.stop == pb.RecoverRequest.CLEAR
        if request.ids and (request.all or stop):
            raise Refusal("ids and all exclude each other", field="ids", allowed="either ids or all")
        if not (request.ids or request.all or stop or clear):
            raise Refusal("nothing was named", field="ids", allowed="ids, or all")
        if stop or clear:
            self._injector.set_stopped(stop)
        views: tuple[InjectionView, ...] = ()
        if request.ids or request.all or stop:
            ids = tuple(request.ids) or None
            try:
                views = self._injector.recover(ids, "stop" if stop else "recover")
            except NotFoundError:
                if ids is not None and len(ids) == 1:
                    self._forestalled.add(ids[0])
                raise
        return pb.RecoverReply(
            injections=[convert.injection_message(v) for v in views], stopped=self._injector.stopped
        )

    def _list(self, request: pb.ListRequest) -> Message:
        views = self._injector.injections(request.ended, tuple(request.ids))
        return pb.ListReply(
            injections=[convert.injection_message(v) for v in views], stopped=self._injector.stopped
        )

    def _residue(self, request: pb.ResidueRequest) -> Message:
        return convert.residue_message(self._injector.residue())

    def _observe(self, request: pb.ObserveRequest) -> Message:
        wanted = signs.signs_of(convert.json_of(request.signs_json, "signs"))
        if not request.mark_json:
            return pb.ObserveReply(mark_json=signs.mark(self._host, wanted).model_dump_json())
        since = signs.mark_of(convert.json_of(request.mark_json, "mark"))
        found = signs.seen(self._host, wanted, since)
        return pb.ObserveReply(mark_json=request.mark_json, signs=convert.sign_messages(found))

    def _set_clock(self, request: pb.SetClockRequest) -> Message:
        low, high = CLOCK_BOUNDS_UNIX_S
        if not low <= request.unix_s <= high:  # also refuses NaN
            raise Refusal(
                f"unix_s: {request.unix_s:g}", field="unix_s", allowed=f"Unix seconds from {low:.0f} to {high:.0f}"
            )
        before = self._clock()
        self._injector.set_clock(request.unix_s)
        return pb.SetClockReply(before_unix_s=before, after_unix_s=self._clock())

    def _prepare_disk(self, request: pb.PrepareDiskRequest) -> Message:
        if self._preparer is None:
            raise UnsupportedError("this agent prepares no disks", allowed="an agent that serves a node")
        self._injector.capabilities()  # probes make devices, too, and they go while somebody looks at all of them
        return reply_message(*self._preparer.do(request_of(request)))

    def _repair_disk(self, request: pb.RepairDiskRequest) -> Message:
        repair = self._injector.repair_disk(request.id, request.disk)
        return pb.RepairDiskReply(done=repair.done, lost=repair.lost)

    def _audit(self, request: pb.AuditRequest) -> Message:
        limit = min(request.limit or AUDIT_ENTRIES, MAX_AUDIT_ENTRIES)
        return convert.audit_message(*self.audit.read(request.after, limit))


def _watch_interval(interval_s: float) -> float:
    low, high = WATCH_INTERVAL_S
    if interval_s == 0:
        return 1.0
    if not low <= interval_s <= high:
        raise Refusal(
            f"interval_s: {interval_s:g}", field="interval_s", allowed=f"{low:g} to {high:g}, or 0 for 1"
        )
    return interval_s


@contextmanager
def _one_log_line(method: str, request: Message, caller: Caller) -> Iterator[None]:
    """Log who asked what and how it ended; turn a bug into an :class:`AgentError`."""
    began = time.monotonic()
    ids = _ids_of(request)
    what = f"{method}{' ' + ids if ids else ''} from {caller}"

    def ended(result: str, level: int = logging.INFO) -> None:
        log.log(level, "%s: %s in %.0f ms", what, result, (time.monotonic() - began) * 1000)

    try:
        yield
    except AgentError as error:
        ended(f"{error.code}: {error.message}", logging.WARNING)
        raise
    except GeneratorExit:
        ended("left")
        raise
    except (OSError, CommandError) as error:
        log.exception("%s: the machine refused", what)
        raise AgentError(f"the machine refused: {error}", allowed="the agent's log has the details") from error
    except Exception as error:
        log.exception("%s: a bug in the agent", what)
        raise AgentError(
            f"a bug in the agent: {type(error).__name__}: {error}", allowed="the agent's log has the details"
        ) from error
    else:
        ended("ok")


def _ids_of(request: Message) -> str:
    single = getattr(request, "id", "")
    many = cast("list[str]", getattr(request, "ids", ()))
    text = str(single) or ",".join(many)
    return text if len(text) <= 200 and text.isprintable() else repr(text[:200])
