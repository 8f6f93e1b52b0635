"""The injector: the only way a fault gets into a kernel, and out of it again.

plan → journal the undo → apply → verify it bites → hold the lease → recover in reverse → verify it is gone.
One lock serialises every change; reading what is there never waits for it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from node_agent.baseline import Baseline
from node_agent.catalog import catalog, make_fault, sample_fault
from node_agent.errors import (
    AgentError,
    ApplyError,
    ConflictError,
    NotFoundError,
    Refusal,
    StoppedError,
    StorageError,
    StuckError,
    UnsupportedError,
)
from node_agent.facts import gather_facts
from node_agent.fault import TAG_PREFIX, Capability, Facts, Missing, PlanNotes, tag_of
from node_agent.host import CommandError, Host
from node_agent.host.mounting import Repair
from node_agent.injection import ENDED, InjectionView, Live, Plan, checked_id
from node_agent.journal import KEEP_CLOSED, Entry, Journal, Record
from node_agent.leases import checked_lease
from node_agent.probing import Probing
from node_agent.residue import Difference, compare, look, residue_of
from node_agent.returned_disk import repair_disk
from node_agent.set_clock import set_wall_clock
from node_agent.showing import evidence_of_before, lost_by, read_evidence, refuse_unaccepted
from node_agent.signs import mark
from node_agent.undo import Applied, applied_steps, undo_all

log = logging.getLogger(__name__)


class Injector:
    """Faults in and out of one node. `state_dir` holds the journal. Nothing happens until :meth:`start`."""

    def __init__(
        self, host: Host, state_dir: Path, node: str, *, after_append: Callable[[str, int], None] | None = None
    ) -> None:
        self._host, self._node = host, node
        self._journal = Journal(state_dir / "journal", after_append)
        self._stop_file = state_dir / "stopped"
        self._baseline = Baseline(state_dir / "baseline.json")
        self._lock = threading.RLock()
        self.probing = Probing(host)
        self._live: dict[str, Live] = {}

    # -- looking ---------------------------------------------------------------------------------------------

    def capabilities(self, again: bool = False) -> Mapping[str, Capability]:
        """What this kernel can do, probed once a start, or `again`."""
        return self.probing.found(again)

    def facts(self) -> Facts:
        """The facts plans rest on."""
        return gather_facts(self._host, self._node, self.capabilities())

    def support(self) -> tuple[tuple[str, tuple[Missing, ...]], ...]:
        """Each fault of the catalogue with what this node lacks for it, at default parameters or an example's."""
        facts = self.facts()
        samples = ((name, sample_fault(cls)) for name, cls in catalog().items())
        return tuple((name, (one,) if isinstance(one, Missing) else one.requires(facts)) for name, one in samples)

    def plan(self, injection_id: str, fault_name: str, parameters: Mapping[str, Any]) -> Plan:
        """What :meth:`apply` would do now. Changes nothing. `fault_name` may be an alias."""
        fault = make_fault(fault_name, parameters)
        facts = self.facts()
        missing = fault.requires(facts)
        if missing:
            return Plan(fault=fault, facts=facts, target=None, notes=PlanNotes(backend="none"), steps=(),
                        missing=missing)  # fmt: skip
        target = fault.locate(self._host, facts)
        steps = fault.steps(facts, target, tag_of(injection_id))
        return Plan(fault=fault, facts=facts, target=target, notes=fault.notes(facts, target), steps=steps)

    @property
    def stopped(self) -> bool:
        """Whether `labctl stop` is in force. Survives restarts."""
        return self._stop_file.exists()

    def injections(self, ended: bool = False, ids: tuple[str, ...] = ()) -> tuple[InjectionView, ...]:
        """Injections, oldest first; `ended` includes those of this start that are over."""
        chosen = [x for x in list(self._live.values()) if not ids or x.id in ids]
        return tuple(self._view(x) for x in chosen if ended or x.state not in ENDED)

    def view(self, injection_id: str) -> InjectionView:
        """One injection with evidence read now. Raises :class:`NotFoundError`."""
        return self._view(self._find(injection_id))

    def residue(self) -> tuple[Difference, ...]:
        """What differs from the state before the first of the injections of this boot."""
        self.capabilities()  # what probes make while they run is nobody's residue
        with self._lock:
            baseline = self._baseline.read(self._host.boot_id())
            now = look(self._host)
            live = [x for x in self._live.values() if x.state not in ENDED]
            touched = {pair for x in self._live.values() for pair in x.touched}
        if baseline is None:
            baseline = {c: {i: t for i, t in items.items() if TAG_PREFIX not in f"{i} {t}"}
                        for c, items in now.items()}  # fmt: skip
        held = {pair: x.id for x in live for pair in x.touched}
        return compare(baseline, now, [x.id for x in live], touched, held)

    # -- changing --------------------------------------------------------------------------------------------

    def apply(
        self, injection_id: str, fault_name: str, parameters: Mapping[str, Any], lease_s: float = 0
    ) -> InjectionView:
        """Plant a fault and verify it. The same id again answers with the same injection, whatever became of it.

        Raises a subclass of :class:`AgentError`; afterwards the node is as it was, or the injection is stuck.
        """
        checked_id(injection_id)
        lease = checked_lease(lease_s)
        with self._lock:
            known = self._live.get(injection_id)
            if known:
                return self._same(known, fault_name, parameters)
            if self.stopped:
                raise StoppedError(
                    "new faults are refused on this node", allowed="labctl stop --clear allows them"
                )
            plan = self.plan(injection_id, fault_name, parameters)
            if plan.missing:
                raise UnsupportedError(
                    "; ".join(f"{m.capability}: {m.reason}" for m in plan.missing),
                    allowed="; ".join(m.remedy for m in plan.missing if m.remedy),
                )
            refuse_unaccepted(plan)
            self._refuse_conflicts(plan)
            live = self._begin(injection_id, plan, lease)
            with self._undone_unless_finished(live):
                self._carry_out(live, plan)
            return self._view(live)

    def extend(self, injection_id: str, lease_s: float) -> InjectionView:
        """Give an injection a new lease, from now. Raises where it is not active."""
        lease = checked_lease(lease_s)
        with self._lock:
            live = self._find(injection_id)
            if live.state != "active":
                raise Refusal(f"{injection_id} is {live.state}", field="id", allowed="an active injection")
            live.entry.append({"rec": "lease", "lease_s": lease})
            live.lease_s = lease
            self._hold(live)
            return self._view(live)

    def recover(self, ids: tuple[str, ...] | None, why: str) -> tuple[InjectionView, ...]:
        """End injections (None: all). One that is over already is fine, and answered as it is."""
        with self._lock:
            chosen = list(self._live.values()) if ids is None else [self._find(i) for i in ids]
            if ids is None:
                chosen = [x for x in chosen if x.state not in ENDED]
            for live in reversed(chosen):
                if live.state not in ENDED:
                    self._undo(live, why)
            return tuple(self._view(x) for x in chosen)

    def repair_disk(self, injection_id: str, disk: str) -> Repair:
        """Bring a disk back that failed below this system: :func:`node_agent.returned_disk.repair_disk`."""
        with self._lock:
            return repair_disk(self._host, f"disk-{checked_id(injection_id)}", disk)

    def set_clock(self, unix_s: float) -> None:
        """Set the wall clock: :func:`node_agent.set_clock.set_wall_clock`."""
        with self._lock:
            set_wall_clock(self._host, self._live.values(), self._baseline, unix_s)

    def set_stopped(self, stopped: bool) -> None:
        """Refuse new faults from now on, or allow them again."""
        try:
            if stopped:
                self._stop_file.parent.mkdir(parents=True, exist_ok=True)
                self._stop_file.touch()
            else:
                self._stop_file.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"{self._stop_file} cannot be written: {error}") from error

    def start(self) -> tuple[InjectionView, ...]:
        """Take back whatever an earlier process left, from its journal. Before anything else is served."""
        with self._lock:
            for injection_id, records in self._journal.closed_records():
                self._live[injection_id] = self._ended(injection_id, records)
            for entry, records, corrupt in self._journal.open_entries():
                live = self._remembered(entry, records, corrupt)
                self._live[live.id] = live
                if live.state != "stuck":
                    self._undo(live, "restart")
            return self.injections(ended=True)

    def tick(self) -> None:
        """End what has run out, and try again what is stuck. Called every half second or so."""
        for live in tuple(self._live.values()):
            if live.state not in ("active", "stuck"):
                continue
            with self._lock:
                try:
                    self._end_if_due(live)
                except Exception as bug:  # clean-up: a bug in undoing one must not keep the others from ending
                    live.state, live.left = "stuck", (f"undoing it raised {bug!r}",)
                    log.exception("injection %s cannot be ended", live.id)

    def _end_if_due(self, live: Live) -> None:
        now = self._host.boottime()
        if live.state == "active" and now >= live.expires:
            self._undo(live, "expired")
        elif live.state == "stuck" and live.applied and live.backoff.due(now):
            self._undo(live, live.reason)

    # -- the parts -------------------------------------------------------------------------------------------

    def _find(self, injection_id: str) -> Live:
        live = self._live.get(injection_id)
        if live is None:
            raise NotFoundError(f"no injection {injection_id} on this node", field="id")
        return live

    def _same(self, known: Live, fault_name: str, parameters: Mapping[str, Any]) -> InjectionView:
        wanted = make_fault(fault_name, parameters)
        if known.fault != wanted.name or dict(known.parameters) != wanted.model_dump(mode="json"):
            raise ConflictError(f"the id {known.id} belongs to another injection ({known.fault})", field="id")
        if known.error:
            raise self._failure(known)
        return self._view(known)

    def _refuse_conflicts(self, plan: Plan) -> None:
        for live in self._live.values():
            if live.state in ENDED:
                continue
            held = [r for one in live.applied for r in one.step.resources()]
            for resource in (r for step in plan.steps for r in step.resources()):
                clash = next((h for h in held if h.conflicts(resource)), None)
                if clash:
                    raise ConflictError(
                        f"{resource} is held by injection {live.id} ({live.fault}: {clash})",
                        allowed=f"labctl recover {live.id}, or another target",
                    )

    def _begin(self, injection_id: str, plan: Plan, lease: float) -> Live:
        before = look(self._host)
        over = [x.id for x in self._live.values() if x.state in ENDED]
        for old in over[: max(0, len(over) - KEEP_CLOSED)]:
            del self._live[old]
        if all(x.state in ENDED for x in self._live.values()):
            self._baseline.write(self._host.boot_id(), before)
        parameters = plan.fault.model_dump(mode="json")
        text = plan.target.describe() if plan.target else ""
        first: Record = {
            "rec": "plan", "id": injection_id, "fault": plan.fault.name, "parameters": parameters, "target": text,
            "backend": plan.notes.backend, "lease_s": lease, "boot_id": self._host.boot_id(),
            "steps": [step.model_dump(mode="json") for step in plan.steps], "risks": dict(plan.notes.risks),
        }  # fmt: skip
        now = self._host.boottime()
        signs = plan.fault.signs(plan.target)
        live = Live(
            id=injection_id, fault=plan.fault.name, parameters=parameters, lease_s=lease, began=now,
            expires=now + lease, entry=self._journal.create(injection_id, first), model=plan.fault,
            target=plan.target, target_text=text, backend=plan.notes.backend,
            risks=plan.notes.risks, mark=mark(self._host, signs),
        )  # fmt: skip
        self._live[injection_id] = live
        return live

    def _carry_out(self, live: Live, plan: Plan) -> None:
        live.state = "applying"
        for number, step in enumerate(plan.steps):
            one = Applied(number, step, step.capture(self._host))
            live.entry.append(
                {"rec": "will", "n": number, "step": step.model_dump(mode="json"), "undo": one.undo}
            )  # fmt: skip
            live.applied.append(one)
            step.apply(self._host)
            live.entry.append({"rec": "did", "n": number}, durable=False)
        if live.model and live.target:
            live.model.prove(self._host, live.target, tag_of(live.id))
        live.evidence = read_evidence(self._host, live)
        if live.evidence is None or not live.evidence.armed:
            raise ApplyError(f"{live.fault} was applied, but kernel state does not show it")
        live.entry.append({"rec": "active"}, durable=False)
        self._hold(live)
        live.state = "active"

    def _hold(self, live: Live) -> None:
        """The lease begins now; steps that the kernel can end by itself are told when."""
        live.expires = self._host.boottime() + live.lease_s
        for one in live.applied:
            one.step.hold(self._host, live.expires)

    @contextmanager
    def _undone_unless_finished(self, live: Live) -> Iterator[None]:
        """Whatever ends the block before its end, a bug included, the injection is undone."""
        try:
            yield
        except BaseException as error:
            live.error = getattr(error, "message", "") or f"{type(error).__name__}: {error}"
            self._undo(live, "apply_failed")
            if isinstance(error, (OSError, CommandError, AgentError)) and not isinstance(
                error, (ConflictError, StorageError)
            ):
                raise self._failure(live) from error
            raise

    def _failure(self, live: Live) -> AgentError:
        """What to tell of an injection that failed: a node left dirty is another thing than one that is well."""
        if live.state == "recovered":
            return ApplyError(f"{live.error}; everything done so far was undone")
        return StuckError(f"{live.error}; and it could not be undone: {'; '.join(live.left)}")

    def _undo(self, live: Live, why: str) -> None:
        live.evidence = read_evidence(self._host, live) or live.evidence
        live.state, live.reason = "recovering", why
        self._note(live, {"rec": "recovering", "why": why})
        undone = undo_all(
            self._host, live.applied, lambda one: self._note(live, {"rec": "undid", "n": one.number}),
            skip_volatile=live.rebooted,
        )  # fmt: skip
        marked = residue_of(
            live.id, look(self._host), tuple(i for i, x in self._live.items() if x.state not in ENDED)
        )
        live.left = tuple(dict.fromkeys((*undone.left, *marked)))
        live.lost = tuple(dict.fromkeys((*live.lost, *lost_by(live), *undone.lost)))
        if live.left:
            live.state = "stuck"
            self._note(live, {"rec": "stuck", "left": list(live.left)})
            log.error("injection %s is stuck: %s", live.id, "; ".join(live.left))
            return
        hits = live.evidence.hits if live.evidence else 0
        self._note(live, {"rec": "closed", "state": "recovered", "hits": hits, "lost": list(live.lost)})
        live.state = "recovered"
        if live.evidence:
            live.evidence = live.evidence.model_copy(update={"armed": False})
        try:
            self._journal.close(live.entry)
        except StorageError as error:  # gone from the kernel; the next start finds the file and closes it again
            log.warning("%s", error)

    def _note(self, live: Live, record: Record) -> None:
        """Journal a record of recovery. Undoing goes on without it: the next start may safely do it again."""
        try:
            live.entry.append(record, durable=record["rec"] == "closed")
        except StorageError as error:
            log.warning("%s", error)

    def _ended(self, injection_id: str, records: list[Record]) -> Live:
        """An injection of an earlier start that is over: its id stays taken, so a late retry plants nothing."""
        live = self._remembered(self._journal.closed_entry(injection_id), records, 0)
        reasons = [r["why"] for r in records if r.get("rec") == "recovering"]
        live.state, live.reason, live.applied = "recovered", reasons[-1] if reasons else "restart", []
        live.lost = tuple(text for r in records if r.get("rec") == "closed" for text in r.get("lost", ()))
        return live

    def _remembered(self, entry: Entry, records: list[Record], corrupt: int) -> Live:
        plan = next((r for r in records if r.get("rec") == "plan"), {})
        now = self._host.boottime()
        live = Live(
            id=entry.id, fault=plan.get("fault", "unknown"), parameters=plan.get("parameters", {}), entry=entry,
            lease_s=plan.get("lease_s", 0.0), began=now, expires=now, state="recovering",
            target_text=plan.get("target", ""), backend=plan.get("backend", ""), risks=plan.get("risks", {}),
            rebooted=plan.get("boot_id", self._host.boot_id()) != self._host.boot_id(),
            evidence=evidence_of_before(records, self._host.boot_id()),
        )  # fmt: skip
        try:
            live.applied = list(applied_steps(records, corrupt))
        except (ValueError, KeyError, TypeError) as error:
            live.state, live.error = "stuck", f"its journal makes no sense: {error}"
            live.left = (f"{entry.path}: {error}",)
        if not records:
            live.state, live.left = "stuck", (f"{entry.path} has no readable line",)
        if corrupt:
            log.warning(
                "the journal of %s has %d unreadable lines; every planned step is undone", entry.id, corrupt
            )
        return live

    def _view(self, live: Live) -> InjectionView:
        now = self._host.boottime()
        evidence = read_evidence(self._host, live) if live.state == "active" else live.evidence
        return InjectionView(
            id=live.id, node=self._node, fault=live.fault, parameters=live.parameters, state=live.state,
            target=live.target_text, backend=live.backend, lease_s=live.lease_s,
            expires_in_s=max(0.0, live.expires - now) if live.state == "active" else 0.0, age_s=now - live.began,
            evidence=evidence, residue=live.left, data_lost=live.lost, reason=live.reason, error=live.error,
        )  # fmt: skip
