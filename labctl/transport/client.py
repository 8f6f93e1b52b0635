"""The contract with types: what the rest of labctl calls, over any transport."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from typing import Any, Literal, TypeVar, cast

from google.protobuf.message import Message

from labctl.errors import LIES, LabctlError, LabError, NodeDirtyError
from labctl.transport.base import NEVER_ASKED, AgentFailedError, ConnectError, NoAnswerError, Transport
from node_agent.api import agent_pb2 as pb
from node_agent.api import convert
from node_agent.api.views import AuditReport, ClockChange, InjectionList, NodeFacts, PlanView, ProbeReport
from node_agent.host.mounting import Repair
from node_agent.injection import ENDED, InjectionView
from node_agent.prepare.messages import PrepareResult, request_message, result_of
from node_agent.prepare.model import Request
from node_agent.residue import Difference
from node_agent.signs import Sign, SignSeen
from node_agent.version import CONTRACT

Stop = Literal["keep", "set", "clear"]
Reply = TypeVar("Reply", bound=Message)
View = TypeVar("View")

QUICK_S = 15.0
CHANGE_S = 180.0
REPAIR_S = 1200.0
PROBE_S = 300.0
FORMAT_S = 2000.0
"""How long making a file system on a large disk may take."""

POLL_S = 0.2


class AgentClient:
    """One agent. Every method raises a :class:`labctl.errors.LabctlError`; times in seconds."""

    def __init__(
        self,
        transport: Transport,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        within_s: float | None = None,
    ) -> None:
        """`within_s`: no request waits longer, whatever it would be given otherwise."""
        self._transport, self._clock, self._sleep, self._within_s = transport, clock, sleep, within_s

    @property
    def node_name(self) -> str:
        """The node that is meant."""
        return self._transport.node.name

    def facts(self, timeout_s: float = QUICK_S) -> NodeFacts:
        """Who it is. Raises :class:`LabError` where that is another node, or it speaks another contract."""
        facts = self._understood(
            convert.node_facts, self._ask("Facts", pb.FactsRequest(), pb.FactsReply, timeout_s)
        )
        if facts.node != self.node_name:
            raise LabError(f"what answers as {self.node_name} is node {facts.node}", "is the address right?")
        if facts.contract != CONTRACT:
            raise LabError(
                f"the agent of {facts.node} (version {facts.agent_version}) speaks contract {facts.contract}, "
                f"this labctl speaks {CONTRACT}",
                "install the agent of this version on the node",
            )
        return facts

    def probe(self, again: bool = False, timeout_s: float = PROBE_S) -> ProbeReport:
        """What the node's kernel can do; `again` tries it all anew."""
        return self._understood(
            convert.probe_report, self._ask("Probe", pb.ProbeRequest(again=again), pb.ProbeReply, timeout_s)
        )

    def plan(
        self, injection_id: str, fault: str, parameters: Mapping[str, Any], timeout_s: float = CHANGE_S
    ) -> PlanView:
        """What :meth:`apply` would do now."""
        request = pb.PlanRequest(id=injection_id, fault=fault, parameters_json=json.dumps(dict(parameters)))
        return self._understood(convert.plan_view, self._ask("Plan", request, pb.PlanReply, timeout_s))

    def apply(
        self,
        injection_id: str,
        fault: str,
        parameters: Mapping[str, Any],
        lease_s: float = 0,
        timeout_s: float = CHANGE_S,
    ) -> InjectionView:
        """Plant a fault; `lease_s` 0: the agent's default. Asks what became of the id when the answer is lost."""
        request = pb.ApplyRequest(
            id=injection_id, fault=fault, parameters_json=json.dumps(dict(parameters)), lease_s=lease_s
        )
        try:
            return self._own(
                self._understood(convert.injection_view, self._ask("Apply", request, pb.Injection, timeout_s)),
                [injection_id],
            )
        except (NoAnswerError, ConnectError) as lost:
            if isinstance(lost, ConnectError) and lost.cause in NEVER_ASKED:
                raise
            return self._what_became_of(injection_id, lost, timeout_s)

    def extend(self, injection_id: str, lease_s: float, timeout_s: float = QUICK_S) -> InjectionView:
        """A new lease for an active injection, counted from now."""
        request = pb.ExtendRequest(id=injection_id, lease_s=lease_s)
        return self._understood(convert.injection_view, self._ask("Extend", request, pb.Injection, timeout_s))

    def recover(
        self,
        ids: tuple[str, ...] = (),
        everything: bool = False,
        stop: Stop = "keep",
        timeout_s: float = CHANGE_S,
    ) -> InjectionList:
        """End injections: those of `ids`, or all. `stop="set"` ends all and refuses new ones until "clear".

        The answer has the state of each: one that is `stuck` has left residue. What is recovered is looked for
        once more in the list of the agent.
        """
        request = pb.RecoverRequest(ids=ids, all=everything, stop=stop.upper())
        found = self._understood(convert.injection_list, self._ask("Recover", request, pb.RecoverReply, timeout_s))
        for one in found.injections:
            self._own(one, ids)
        self._refuse_lies(found.injections)
        if untold := [i for i in ids if i not in {one.id for one in found.injections}]:
            raise LabError(f"{self.node_name}: its agent does not say what became of {', '.join(untold)}", LIES)
        return found

    def list(self, ended: bool = False, ids: tuple[str, ...] = (), timeout_s: float = QUICK_S) -> InjectionList:
        """Injections with evidence read now; `ended` adds those that are over, `ids` picks."""
        request = pb.ListRequest(ended=ended, ids=ids)
        found = self._understood(convert.injection_list, self._ask("List", request, pb.ListReply, timeout_s))
        for one in found.injections:
            self._own(one, ids)
        return found

    def watch(self, injection_id: str, interval_s: float = 0) -> Generator[InjectionView]:
        """An injection at each interval (0: a second) until it has ended. Close the generator to stop."""
        request = pb.WatchRequest(id=injection_id, interval_s=interval_s)
        with closing(self._transport.watch(request)) as messages:
            for message in messages:
                yield self._understood(convert.injection_view, message)

    def residue(self, timeout_s: float = 60.0) -> tuple[Difference, ...]:
        """What differs from before the first live injection."""
        return self._understood(
            convert.residue_entries, self._ask("Residue", pb.ResidueRequest(), pb.ResidueReply, timeout_s)
        )

    def set_clock(self, unix_s: float, timeout_s: float = QUICK_S) -> ClockChange:
        """Set the node's wall clock."""
        request = pb.SetClockRequest(unix_s=unix_s)
        return convert.clock_change(self._ask("SetClock", request, pb.SetClockReply, timeout_s))

    def observe(
        self, signs: Sequence[Sign], mark: Mapping[str, Any] | None = None, timeout_s: float = QUICK_S
    ) -> tuple[Mapping[str, Any], tuple[SignSeen, ...]]:
        """The mark to begin from, or with a mark which of the signs there were since."""
        request = pb.ObserveRequest(
            signs_json=json.dumps([one.model_dump(mode="json") for one in signs]),
            mark_json=json.dumps(dict(mark)) if mark else "",
        )
        reply = self._ask("Observe", request, pb.ObserveReply, timeout_s)
        return json.loads(reply.mark_json), convert.signs_seen(reply.signs)

    def audit(self, after: int = 0, limit: int = 0, timeout_s: float = QUICK_S) -> AuditReport:
        """Who asked it for changes: the newest `limit` requests (0: 100) with a number beyond `after`."""
        request = pb.AuditRequest(after=after, limit=limit)
        return self._understood(convert.audit_report, self._ask("Audit", request, pb.AuditReply, timeout_s))

    def prepare_disk(self, request: Request, timeout_s: float = FORMAT_S) -> PrepareResult:
        """Put a disk under device mapper, take it away again, or see what there is."""
        message = request_message(request)
        return result_of(self._ask("PrepareDisk", message, pb.PrepareDiskReply, timeout_s))

    def repair_disk(self, injection_id: str, disk: str = "", timeout_s: float = REPAIR_S) -> Repair:
        """Bring a data disk back that was away or failed below the system; `disk` "": the only mounted one.

        Raises :class:`labctl.errors.UsageError` while the disk is not back. The same id tells the same losses.
        """
        request = pb.RepairDiskRequest(id=injection_id, disk=disk)
        reply = self._ask("RepairDisk", request, pb.RepairDiskReply, timeout_s)
        return Repair(tuple(reply.done), tuple(reply.lost))

    def _understood(self, convert_it: Callable[[Reply], View], message: Reply) -> View:
        """An answer as a value. Raises :class:`LabError` where this version does not know the words in it."""
        try:
            return convert_it(message)
        except ValueError as error:  # also pydantic's
            what = str(error).splitlines()[0]
            raise LabError(
                f"{self.node_name}: this labctl does not understand its agent's answer: {what}",
                f"is the agent newer? labctl node install {self.node_name} puts this version there",
            ) from None

    def _refuse_lies(self, told: Sequence[InjectionView]) -> None:
        """Raises :class:`LabError` where what it says is recovered stands in its own list as live."""
        over = tuple(one.id for one in told if one.state in ENDED)
        live = [one for one in self.list(ids=over).injections if one.state not in ENDED] if over else []
        if live:
            what = ", ".join(f"{one.id} ({one.state})" for one in live)
            raise LabError(f"{self.node_name}: says that it has recovered {what}, and lists it as live", LIES)

    def _own(self, view: InjectionView, ids: Sequence[str]) -> InjectionView:
        """The injection, which is of this node and one of those asked for. Raises :class:`LabError` otherwise."""
        if view.node != self.node_name or (ids and view.id not in ids):
            asked = f", asked for {', '.join(ids)}" if ids else ""
            raise LabError(
                f"{self.node_name}: its agent answers with injection {view.id} of {view.node}{asked}", LIES
            )
        return view

    def _ask(self, method: str, request: Message, reply: type[Reply], timeout_s: float) -> Reply:
        if self._within_s is not None:
            timeout_s = min(timeout_s, self._within_s)
        return cast("Reply", self._transport.call(method, request, timeout_s))

    def _what_became_of(self, injection_id: str, lost: LabError, timeout_s: float) -> InjectionView:
        """The injection whose Apply was not answered, once it is decided. Raises `lost` where there is none."""
        deadline = self._clock() + min(timeout_s, self._within_s or timeout_s)
        unknown = f"{lost.hint}; " if lost.hint else ""
        while True:
            try:
                found = self.list(ended=True, ids=(injection_id,)).injections
            except LabctlError:
                raise _hinted(lost, f"{unknown}whether {injection_id} was planted is not known") from None
            if not found:
                raise _hinted(lost, f"{unknown}{injection_id} was not planted") from None
            if found[0].state not in ("planned", "applying"):
                return _decided(found[0])
            if self._clock() >= deadline:
                raise _hinted(lost, f"{unknown}{injection_id} is still being planted") from None
            self._sleep(POLL_S)


def _hinted(lost: LabError, hint: str) -> LabError:
    lost.hint = hint
    return lost


def _decided(view: InjectionView) -> InjectionView:
    if view.state == "stuck":
        raise NodeDirtyError(
            f"{view.node}: {view.id} could not be undone: {'; '.join(view.residue)}",
            f"labctl node residue {view.node} shows what is left",
        )
    if view.error:
        raise AgentFailedError("apply_failed", f"{view.node}: {view.error}")
    return view
