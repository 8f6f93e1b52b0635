"""The life of a prepared disk: refuse, record, make; and back. One thing at a time, and each can be done again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from node_agent.baseline import Baseline
from node_agent.errors import AgentError, ApplyError, ConflictError, Refusal, UnsupportedError
from node_agent.host import CommandError, Host
from node_agent.host.holders import holders as real_holders
from node_agent.prepare import unit
from node_agent.prepare.looking import Holders, check_mount, check_room, examine
from node_agent.prepare.making import base_of, bring_up, problem, refuse_use, take_down
from node_agent.prepare.model import Prepared, Request
from node_agent.prepare.records import Records
from node_agent.residue import CATEGORIES

log = logging.getLogger(__name__)

FOLDER = "disks"
"""Below the agent's state directory."""

WAIT_S = 60.0
_TOUCHED = ("dm", "loop", "mount")
_PROGRAMS = ("/usr/sbin", "/sbin", "/usr/bin", "/bin")


@dataclass(frozen=True)
class View:
    """A prepared disk as it is now. `device`: what its source is called; `problem`: why it is not up."""

    record: Prepared
    device: str
    problem: str


@dataclass
class Preparer:
    """Prepares the disks of one node. `live` gives the ids of injections that hold something."""

    host: Host
    state_dir: Path
    live: Callable[[], Sequence[str]]
    holders: Holders = real_holders
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    @property
    def records(self) -> Records:
        return Records(self.state_dir / FOLDER)

    def do(self, request: Request) -> tuple[tuple[View, ...], bool]:
        """What was asked for: the disks there are then (only the one, where one was asked for), and whether
        anything changed. Raises an :class:`AgentError`; the node is then as it was, or the next call cleans up."""
        wanted = request.checked() if not request.only_looks else request
        if request.only_looks:
            return tuple(self._view(record) for record in self.records.all()), False
        with self._alone():
            if wanted.undo:
                return (), self._undo(wanted.name)
            changed = self._prepare(wanted)
            record = self.records.get(wanted.name)
            assert record is not None
            return (self._view(record),), changed

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._lock.acquire(timeout=WAIT_S):
            raise ConflictError("another disk is being prepared", allowed="wait until that is done")
        try:
            yield
        finally:
            self._lock.release()

    def _view(self, record: Prepared) -> View:
        return View(record, base_of(self.host, record), problem(self.host, record))

    # -- there -----------------------------------------------------------------------------------------------

    def _prepare(self, wanted: Request) -> bool:
        old = self.records.get(wanted.name)
        formatting = old is not None and old.format and old.state == "preparing"
        if old and old.state == "ready":
            return self._again(old, wanted)
        if old:
            log.info("what was left of %s (%s) is cleaned up first", old.name, old.state)
            self._clean(old)
        for other in self.records.all():
            if other.source == wanted.file or (wanted.device and base_of(self.host, other) == self._real(wanted)):
                raise ConflictError(f"{other.source} is prepared as {other.name}", allowed=f"--name {other.name}")
        if self.host.dm.info(wanted.name) is not None:
            raise ConflictError(
                f"there is a device-mapper device {wanted.name} already", allowed="another name: --name"
            )
        if not self.host.dm.has_target("linear"):
            raise UnsupportedError("this kernel has no dm-linear", allowed="a kernel with CONFIG_BLK_DEV_DM")
        same = old is not None and wanted.device != "" and self.host.realpath(old.source) == self._real(wanted)
        record = self._plan(wanted, erase=wanted.erase or (formatting and same))
        self.records.write(record)
        try:
            if record.kind == "file":
                self.host.run(("fallocate", "--length", f"{wanted.size_mib}MiB", record.source), timeout_s=600.0)
                self.host.run(("chmod", "600", record.source))
            bring_up(self.host, record, erase=bool(record.format and record.kind == "device"))
            ready = record.model_copy(update={"state": "ready"})
            unit.settle(self.host, [r for r in self.records.all() if r.name != record.name] + [ready])
        except (OSError, CommandError, AgentError) as error:
            self._clean(record)
            said = error.message if isinstance(error, AgentError) else str(error)
            raise ApplyError(f"{said}; everything done so far was undone") from error
        self.records.write(ready)
        self._adopt(record)
        return True

    def _real(self, wanted: Request) -> str:
        return self.host.realpath(wanted.device)

    def _again(self, old: Prepared, wanted: Request) -> bool:
        """The same once more: bring up what is not up. Anything else is another disk."""
        same = wanted.mount == old.mount and wanted.format in ("", old.filesystem)
        if old.kind == "file":
            same = same and (wanted.file, wanted.size_mib * 2048) == (old.source, old.sectors)
        else:
            same = same and base_of(self.host, old) == self._real(wanted)
        if not same:
            at = f" at {old.mount}" if old.mount else ""
            raise ConflictError(
                f"{old.name} is {old.source}{at} already",
                allowed=f"first --undo --name {old.name}, or another --name",
            )
        changed = bring_up(self.host, old)
        unit.settle(self.host, self.records.all())
        if changed:
            self._adopt(old)
        return changed

    def _plan(self, wanted: Request, erase: bool) -> Prepared:
        """What will be recorded. Every refusal comes from here, before anything is changed."""
        if wanted.format and not any(self.host.exists(f"{d}/mkfs.{wanted.format}") for d in _PROGRAMS):
            package = "xfsprogs" if wanted.format == "xfs" else "e2fsprogs"
            raise UnsupportedError(f"this node has no mkfs.{wanted.format}", allowed=f"install {package} on it")
        if wanted.mount:
            check_mount(self.host, wanted.mount)
        made_mount = bool(wanted.mount) and self.host.file_info(wanted.mount) is None
        if not wanted.device:
            check_room(self.host, wanted)
            return Prepared(
                name=wanted.name, source=wanted.file, kind="file", sectors=wanted.size_mib * 2048,
                filesystem=wanted.format, mount=wanted.mount, made_mount=made_mount, format=True,
            )  # fmt: skip
        disk = examine(self.host, self.holders, wanted)
        if wanted.format and disk.signatures and not erase:
            found = ", ".join(one.kind + (f" ({one.label})" if one.label else "") for one in disk.signatures)
            raise Refusal(
                f"format: {wanted.device} holds {found}", field="format",
                allowed="without a format its data stays as it is; --yes-erase destroys it",
            )  # fmt: skip
        kind = wanted.format or disk.filesystem
        if wanted.mount and not kind:
            raise Refusal(
                f"mount: {wanted.device} has no file system", field="mount", allowed="add --format ext4 or xfs"
            )
        return Prepared(
            name=wanted.name, source=disk.source, kind="device", sectors=disk.sectors, filesystem=kind,
            mount=wanted.mount, made_mount=made_mount, format=bool(wanted.format),
        )  # fmt: skip

    # -- and back --------------------------------------------------------------------------------------------

    def _undo(self, name: str) -> bool:
        record = self.records.get(name)
        if record is None:
            unit.settle(self.host, self.records.all())
            return False
        if record.state == "ready":
            refuse_use(self.host, record, self.holders, self.live())
        undoing = record.model_copy(update={"state": "undoing"})
        self.records.write(undoing)
        try:
            take_down(self.host, undoing, self.holders)
        except Refusal:
            if record.state == "ready":
                self.records.write(record)
                bring_up(self.host, record)  # it may be unmounted by now
            raise
        self._forget(record)
        return True

    def _clean(self, record: Prepared) -> None:
        """What a call that did not end has left."""
        take_down(self.host, record, self.holders)
        self._forget(record)

    def _forget(self, record: Prepared) -> None:
        self.records.remove(record.name)
        unit.settle(self.host, self.records.all())
        self._adopt(record)

    def _adopt(self, record: Prepared) -> None:
        """A prepared disk is how the node is now: no residue of any fault, whether it came or went."""
        states = {category: CATEGORIES[category](self.host) for category in _TOUCHED}
        loops = (item for item, backing in states["loop"].items() if backing == record.source)
        items = {"dm": (record.name,), "loop": tuple(loops), "mount": (record.mount,) if record.mount else ()}
        gone = record.source if record.kind == "file" else ""
        Baseline(self.state_dir / "baseline.json").adopt(self.host.boot_id(), states, items, gone)


def bring_up_all(host: Host, records: Records, wait_for: Callable[[Prepared], bool]) -> tuple[str, ...]:
    """At boot: every disk that is recorded as ready. Returns what did not come up, one line each."""
    problems = []
    for record in records.all():
        if record.state != "ready":
            problems.append(f"{record.name}: {problem(host, record)}")
            continue
        try:
            if record.kind == "device" and not wait_for(record):
                problems.append(f"{record.name}: {record.source} is not there")
                continue
            bring_up(host, record)
            log.info("%s is up", record.name)
        except (OSError, CommandError, AgentError) as error:
            problems.append(f"{record.name}: {getattr(error, 'message', '') or error}")
    return tuple(problems)
