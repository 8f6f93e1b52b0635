"""The life of a hardware injection on one node: plan, journal, plant, prove, hold, heal, look again.

The same life as an agent's injection (docs/architecture.md), led from the control side. Whoever holds the
node's lock changes its hardware; a record whose maker died is healed by the next who looks, or by the lab's
watchdog.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from labctl.errors import LabctlError, LabError, NodeDirtyError, UsageError
from labctl.hardware.bench import LOST, Bench, Memory
from labctl.hardware.catalog import hardware_catalog
from labctl.hardware.fault import HardwareFault, Place
from labctl.hardware.journal import Journal, Record, RecordMemory, boot_clock, boot_id
from node_agent.api.views import PlanView, StepView
from node_agent.errors import Refusal
from node_agent.fault import Evidence, build_fault
from node_agent.injection import InjectionView
from node_agent.leases import DEFAULT_LEASE_S

FIRST_RETRY_S, LONGEST_RETRY_S = 2.0, 60.0

BenchFor = Callable[[str, Memory], Bench]
"""Makes the bench of this node for an injection id."""


class _Forgetful:
    """Memory of a plan, which changes nothing."""

    def get(self, name: str) -> str:
        return ""

    def put(self, name: str, value: str) -> None:
        raise RuntimeError("a plan changes nothing")


class HardwareInjector:
    """The hardware of one node. Every method raises :class:`labctl.errors.LabctlError`; times in seconds.

    `lab_lock` holds the lab, for faults that give power; `wake_watchdog` sees to it that somebody watches the
    leases.
    """

    def __init__(
        self,
        node: str,
        journal: Journal,
        bench: BenchFor,
        *,
        lab_lock: Callable[[], AbstractContextManager[None]],
        wake_watchdog: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = boot_clock,
        boot: Callable[[], str] = boot_id,
    ) -> None:
        self.node, self.journal = node, journal
        self._bench, self._lab_lock, self._wake = bench, lab_lock, wake_watchdog
        self._clock, self._boot = clock, boot

    # -- asked by labctl ------------------------------------------------------------------------------------------

    def plan(self, injection_id: str, name: str, parameters: Mapping[str, Any]) -> PlanView:
        """What :meth:`apply` would do now."""
        fault = _fault(name, parameters)
        bench = self._bench(injection_id, _Forgetful())
        self._need_process(bench)
        return plan_view(fault, fault.locate(bench))

    def apply(
        self, injection_id: str, name: str, parameters: Mapping[str, Any], lease_s: float = 0
    ) -> InjectionView:
        """Plant a fault. The same id with the same parameters again is the same injection."""
        fault = _fault(name, parameters)
        with self._power_lock(fault), self.journal.lock():
            known = self.journal.find(injection_id)
            if known is not None:
                return self._again(known, name, fault)
            self._refuse(fault)
            memory = self._begin(injection_id, fault, lease_s or DEFAULT_LEASE_S)
            self._wake()
            bench = self._bench(injection_id, memory)
            place = fault.place.model_validate(memory.record.place)
            try:
                self._plant(fault, bench, place, memory)
            except BaseException as error:
                self._take_back(fault, memory, error)
                raise
            return self._view(memory.record, memory.record.evidence)

    def list(self, ended: bool = False, ids: tuple[str, ...] = ()) -> tuple[InjectionView, ...]:
        """Injections with evidence read now; `ended` adds those that are over, `ids` picks."""
        self._close_gone()
        if self.journal.live():
            self._wake()  # whoever watched may have been killed
        wanted = [one for one in self.journal.records() if (ended or one.live) and (not ids or one.id in ids)]
        return tuple(self._view(one, self._evidence_now(one)) for one in wanted)

    def recover(
        self, ids: tuple[str, ...] = (), everything: bool = False, reason: str = "recover"
    ) -> tuple[InjectionView, ...]:
        """End injections, the youngest first; one that cannot be undone is `stuck`."""
        wanted = [one for one in self.journal.records() if (one.live if everything else one.id in ids)]
        return tuple(self._recover_one(one.id, reason) for one in reversed(wanted))

    def extend(self, injection_id: str, lease_s: float) -> InjectionView:
        """A new lease, counted from now."""
        with self.journal.lock():
            record = self.journal.find(injection_id)
            if record is None or record.state != "active":
                raise UsageError(f"{self.node}: {injection_id} is not active", "labctl injections shows what is")
            memory = RecordMemory(self.journal, record)
            return self._view(memory.change(lease_s=lease_s, expires=self._clock() + lease_s), record.evidence)

    def known(self) -> tuple[InjectionView, ...]:
        """Live injections as they are recorded; nobody is asked."""
        return tuple(self._view(one, one.evidence) for one in self.journal.live())

    def holder_of(self, parts: Collection[str]) -> str:
        """The id of a live injection that holds one of these parts of the machine; empty where nobody does."""
        known = hardware_catalog()
        return next((one.id for one in self.journal.live() if set(parts) & set(known[one.fault].holds)), "")

    @property
    def silent(self) -> InjectionView | None:
        """The live injection that keeps the node's agent from answering."""
        faults = hardware_catalog()
        live = [one for one in self.journal.live() if one.fault in faults and faults[one.fault].silences]
        return self._view(live[-1], live[-1].evidence) if live else None

    # -- asked by the watchdog ------------------------------------------------------------------------------------

    def tend(self) -> bool:
        """Heal what is due or orphaned, move what comes and goes. True while anything is live."""
        self._close_gone()
        for record in self.journal.live():
            if record.state == "active" and not record.expired(self._clock(), self._boot()):
                self._move(record)
            elif self._due(record):
                self._heal_due(record)
        return bool(self.journal.live())

    def _heal_due(self, record: Record) -> None:
        """Whoever holds the node's lock is still at work on it: leave it to them."""
        with contextlib.suppress(LabError):
            reason = "expired" if record.state == "active" else "restart"
            self._recover_one(record.id, reason, patience=0.2, wanted=self._due)

    def _due(self, record: Record) -> bool:
        """Expired, to be tried again, or left half way. Asked again under the locks, when its maker is done."""
        if record.state == "active":
            return record.expired(self._clock(), self._boot())
        return record.state != "stuck" or self._clock() >= record.next_try

    def _move(self, record: Record) -> None:
        fault, place = self._read(record)
        with self.journal.lock():
            now = self.journal.find(record.id)
            if now is not None and now.state == "active":
                bench = self._bench(record.id, RecordMemory(self.journal, now))
                fault.phase(bench, place, self._clock() - now.began)

    # -- how ------------------------------------------------------------------------------------------------------

    def _begin(self, injection_id: str, fault: HardwareFault, lease_s: float) -> RecordMemory:
        """Locate, mark where evidence begins, and write it all down."""
        bench = self._bench(injection_id, _Forgetful())
        self._need_process(bench)
        place = fault.locate(bench)
        mark = None
        if signs := fault.signs(place):
            with contextlib.suppress(LabctlError):  # a node that does not answer has no marks to begin from
                mark = bench.agent().observe(signs)[0]
        now = self._clock()
        return RecordMemory(
            self.journal,
            self.journal.write(
                Record(
                    id=injection_id, node=self.node, fault=fault.name, parameters=fault.model_dump(mode="json"),
                    state="applying", place=place.model_dump(mode="json"), target=place.describe(),
                    backend=fault.notes(place).backend, boot=self._boot(), began=now, lease_s=lease_s,
                    expires=now + lease_s, process=bench.power.process(), mark=mark,
                )
            ),
        )  # fmt: skip

    def _plant(self, fault: HardwareFault, bench: Bench, place: Place, memory: RecordMemory) -> None:
        fault.plant(bench, place)
        fault.prove(bench, place)
        evidence = self._evidence(fault, bench, place, memory.record)
        if not evidence.armed:
            why = f": {'; '.join(evidence.notes)}" if evidence.notes else ""
            raise LabError(f"{self.node}: {fault.name} was planted, but QEMU does not show it{why}")
        memory.change(state="active", evidence=evidence)

    def _take_back(self, fault: HardwareFault, memory: RecordMemory, error: BaseException) -> None:
        """Planting failed or was interrupted. Raises where it cannot be undone."""
        text = str(error) or type(error).__name__
        memory.change(state="recovering", reason="apply_failed", error=text)
        after = self._heal(memory)
        if after.state == "stuck":
            raise NodeDirtyError(
                f"{self.node}: {text}, and {memory.record.id} could not be undone: {'; '.join(after.residue)}",
                "it is tried again; labctl injections shows it",
            ) from error

    def _recover_one(
        self, injection_id: str, reason: str, patience: float = 600.0,
        wanted: Callable[[Record], bool] = lambda record: True,
    ) -> InjectionView:  # fmt: skip
        record = self.journal.find(injection_id)
        if record is None or not record.live:
            return self._gone(injection_id, record)
        fault, _ = self._read(record)
        with self._power_lock(fault), self.journal.lock(patience):
            record = self.journal.find(injection_id)
            if record is None or not record.live or not wanted(record):
                return self._gone(injection_id, record)
            memory = RecordMemory(self.journal, record)
            if not fault.silences and record.state == "active":
                memory.change(evidence=self._evidence_now(record))
            memory.change(state="recovering", reason=record.reason or reason)
            after = self._heal(memory)
            self.journal.prune()
            return self._view(after, after.evidence)

    def _gone(self, injection_id: str, record: Record | None) -> InjectionView:
        if record is None:
            raise UsageError(f"{self.node}: there is no hardware injection {injection_id}")
        return self._view(record, record.evidence)

    def _heal(self, memory: RecordMemory) -> Record:
        """Under the locks: undo, look again, and write down how it ended."""
        fault, place = self._read(memory.record)
        bench = self._bench(memory.record.id, memory)
        left: tuple[str, ...]
        try:
            if self._process_gone(fault, bench, memory.record):
                fault.settle(bench.files, place, keep=True)
                left = ()
            else:
                fault.heal(bench, place)
                left = fault.leftovers(bench, place)
        except LabctlError as error:
            left = (f"{fault.name}: {error.message}",)
        if left:
            pause = min(FIRST_RETRY_S * 2**memory.record.tries, LONGEST_RETRY_S)
            tries = memory.record.tries + 1
            return memory.change(state="stuck", residue=left, tries=tries, next_try=self._clock() + pause)
        return memory.change(
            state="recovered", residue=(), evidence=self._last_look(fault, bench, place, memory.record)
        )

    def _last_look(self, fault: HardwareFault, bench: Bench, place: Place, record: Record) -> Evidence:
        """What was seen while it stood, with the signs that came with its end, and what it cost."""
        before = record.evidence or Evidence(armed=False, hits=0)
        known = {(one.kind, one.what): one for one in before.signs if one.seen}
        signs = self._signs(fault, bench, place, record) or before.signs
        lost = tuple(text for text in record.memory.get(LOST, "").split("\n") if text)
        seen = tuple(known.get((one.kind, one.what), one) for one in signs)
        return before.model_copy(update={"signs": seen, "armed": False, "lost": lost})

    def _close_gone(self) -> None:
        """Faults live in a process of QEMU. Where that is gone, what is left are files."""
        gone = []
        for record in self.journal.live():
            fault, _ = self._read(record)
            bench = self._bench(record.id, _Forgetful())
            if record.state != "stuck" and self._process_gone(fault, bench, record):
                gone.append(record)
        for record in gone:
            with contextlib.suppress(LabError):
                self._recover_one(record.id, "power lost", patience=5.0)

    def _process_gone(self, fault: HardwareFault, bench: Bench, record: Record) -> bool:
        """A fault that ends the process is not over with it; with this computer's boot everything is."""
        if record.boot != self._boot():
            return True
        return not fault.powers and bench.power.process() != record.process

    def _evidence_now(self, record: Record) -> Evidence | None:
        """What there is to see; the last look where it is over or cannot be seen."""
        if record.state not in ("active", "stuck"):
            return record.evidence
        fault, place = self._read(record)
        bench = self._bench(record.id, RecordMemory(self.journal, record))
        try:
            return self._evidence(fault, bench, place, record)
        except LabctlError as error:
            known = record.evidence or Evidence(armed=False, hits=0)
            return known.model_copy(update={"armed": False, "notes": (*known.notes, error.message)})

    def _evidence(self, fault: HardwareFault, bench: Bench, place: Place, record: Record) -> Evidence:
        found = fault.evidence(bench, place)
        if fault.silences:
            return found
        return found.model_copy(update={"signs": self._signs(fault, bench, place, record)})

    def _signs(self, fault: HardwareFault, bench: Bench, place: Place, record: Record) -> tuple[Any, ...]:
        signs = fault.signs(place)
        if not signs or record.mark is None:
            return ()
        mark = {"log": 0, "counters": {}} if fault.powers else record.mark  # a machine that booted begins anew
        try:
            return bench.agent().observe(signs, mark)[1]
        except LabctlError:
            return ()

    def _refuse(self, fault: HardwareFault) -> None:
        if self.journal.stopped:
            raise LabError(f"{self.node}: labctl stop is in force", "labctl stop --clear allows faults again")
        known = hardware_catalog()
        for record in self.journal.live():
            if shared := set(fault.holds) & set(known[record.fault].holds):
                raise UsageError(
                    f"{self.node}: the {' and the '.join(sorted(shared))} is held by {record.fault}, {record.id}",
                    f"labctl recover {record.id}",
                )

    def _again(self, record: Record, name: str, fault: HardwareFault) -> InjectionView:
        if record.fault != name or dict(record.parameters) != fault.model_dump(mode="json"):
            raise UsageError(f"{self.node}: {record.id} is another injection, of {record.fault}", "another --id")
        return self._view(record, self._evidence_now(record))

    def _need_process(self, bench: Bench) -> None:
        if not bench.power.process():
            raise LabError(f"{self.node} is off", f"labctl power {self.node} on")

    @contextlib.contextmanager
    def _power_lock(self, fault: HardwareFault) -> Iterator[None]:
        """The lab's lock goes before the node's."""
        with self._lab_lock() if fault.powers else contextlib.nullcontext():
            yield

    def _read(self, record: Record) -> tuple[HardwareFault, Place]:
        fault = _fault(record.fault, record.parameters)
        return fault, fault.place.model_validate(record.place)

    def _view(self, record: Record, evidence: Evidence | None) -> InjectionView:
        return record.view(self._clock(), evidence)


def _fault(name: str, parameters: Mapping[str, Any]) -> HardwareFault:
    cls = hardware_catalog().get(name)
    if cls is None:
        raise UsageError(f"there is no hardware fault called {name!r}", "labctl faults list")
    try:
        return build_fault(cls, parameters)
    except Refusal as refusal:
        raise UsageError(refusal.message, refusal.allowed) from None


def plan_view(fault: HardwareFault, place: Place) -> PlanView:
    """A plan as `labctl` shows it."""
    notes = fault.notes(place)
    steps = tuple(
        StepView(kind="qemu", description=text, resources=fault.holds, data={}) for text in fault.actions(place)
    )
    return PlanView(
        fault=fault.name, parameters=fault.model_dump(mode="json"), target=place.describe(), backend=notes.backend,
        steps=steps, covers=notes.covers, not_covered=notes.not_covered, warnings=notes.warnings,
        operator_sees=fault.operator_sees, reversible=fault.reversible, missing=(), risks=notes.risks,
        target_data=place.model_dump(mode="json"),
    )  # fmt: skip
