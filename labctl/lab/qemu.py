"""The provider `qemu`: real virtual machines on this computer, made, snapshotted and restored without root."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from labctl.errors import LabError, UsageError
from labctl.hardware.journal import Journal
from labctl.hardware.settling import settle
from labctl.lab import fleet, identity, machine, memory, ports, provision, state, workload
from labctl.lab.accelerator import accelerator, qemu_version
from labctl.lab.files import lab_locked
from labctl.lab.image import ensure_image, image_key
from labctl.lab.machine import Machine, Places, PortTakenError
from labctl.lab.model import LabOptions, Node, NodeStatus, Ready
from labctl.lab.qmp import Qmp
from labctl.lab.remote import connected
from labctl.lab.state import Ports, Record
from labctl.lab.tools import need
from labctl.power.qemu import QemuPower
from labctl.progress import Progress, SilentProgress

_LOCK_S = 1800.0
_BOOT_S, _BOOT_PER_NODE_S = 240.0, 60.0
_PORT_TRIES = 5


def provider(directory: Path) -> QemuLab:
    """The QEMU lab that lives, or is to live, in this directory."""
    return QemuLab(directory)


class QemuLab:
    """See :class:`labctl.lab.model.Provider`. One lab is worked on by one process at a time; others wait."""

    kind = "qemu"

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.name = directory.name

    def up(self, options: LabOptions | None, ready: Ready, progress: Progress) -> None:
        """Bring the nodes up: from the golden snapshot in seconds, or by making, booting and snapshotting them.

        Nodes that run are left as they are. Raises LabError where memory or a tool is missing or a node does not
        come up, with the end of its console log.
        """
        need("qemu-system-x86_64", "qemu-img", "vde_switch", "setsid")
        with self._locked(progress):
            record = self._record()
            wanted = options or (record.options if record else LabOptions())
            workload.check(wanted)
            if record and record.golden and self._running(record):
                self._keep(record, wanted, ready, progress)
                return
            if record:
                self._end(record)
            memory.check(wanted, psutil.virtual_memory().available // 2**20)
            if record and record.golden:
                reason = self._outdated(record, wanted)
                if not reason:
                    self._from_golden(record, ready, progress)
                    return
                progress.note(f"lab {self.name} is made anew: {reason}")
            self._make(wanted, ready, progress)

    def reset(self, ready: Ready, progress: Progress) -> None:
        """Take all nodes back to the golden snapshot; those that ended are started."""
        with self._locked(progress):
            record = self._known()
            if not record.golden:
                raise LabError(f"lab {self.name} has no golden snapshot yet", f"labctl up --lab {self.name}")
            self._from_golden(record, ready, progress)

    def down(self, progress: Progress) -> None:
        """End everything that this lab runs, also what a killed labctl left. Disks and snapshot stay."""
        with self._locked(progress):
            self._end(self._record())

    def destroy(self, progress: Progress) -> None:
        """`down`, and delete disks, snapshot, keys and certificates."""
        with self._locked(progress):
            self._end(self._record(), keep=False)
            # lab.json last: until then an interrupted destroy can be found and repeated.
            for path in sorted(self.directory.iterdir(), key=lambda path: path.name == "lab.json"):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
            self.directory.rmdir()

    def nodes(self) -> tuple[Node, ...]:
        """The nodes in order, running or not; none before the first `up`."""
        record = self._record()
        return provision.nodes(self.directory, record) if record else ()

    def status(self) -> tuple[NodeStatus, ...]:
        """Which machines run. Asks the kernel, not the nodes."""
        record = self._record()
        if record is None:
            return ()
        found = zip(self.nodes(), provision.machines(self.directory, record), record.ports, strict=True)
        return tuple(_status(node, machine.pid(each), record, at.web) for node, each, at in found)

    def set_labels(self, name: str, labels: Mapping[str, str]) -> None:
        """These are the labels of a node from now on. They outlive its disks, and go with the lab."""
        with self._locked(SilentProgress()):
            record = self._known()
            self._machine(name)
            state.write_record(self._file, record.model_copy(update={"labels": {**record.labels, name: labels}}))

    def console(self, name: str) -> Path | None:
        """The file with the serial console of a node."""
        return self._machine(name).places.console

    def qmp(self, name: str) -> Qmp:
        """A connection to the QEMU of a running node: a context manager, to be closed soon (QEMU serves one)."""
        return Qmp(self._machine(name).places.qmp)

    def power(self, name: str) -> QemuPower:
        """The power switch of a node."""

        def shut_down() -> None:
            # Not by the power button: a node has no logind, which would be what listens to it.
            with connected(next(node for node in self.nodes() if node.name == name)) as remote:
                remote.run(("systemctl", "poweroff", "--no-block"))

        return QemuPower(self, name, shut_down)

    def runs(self, name: str) -> bool:
        """Whether a node's machine runs. Asks the kernel."""
        return machine.pid(self._machine(name)) is not None

    def process(self, name: str) -> int | None:
        """The pid of a node's QEMU; None where it does not run."""
        return machine.pid(self._machine(name))

    def places(self, name: str) -> Places:
        """Where a node's files are."""
        return self._machine(name).places

    @contextlib.contextmanager
    def locked(self, progress: Progress) -> Iterator[None]:
        """Hold the lab: nobody else brings it up, takes it back or ends it meanwhile."""
        self._known()
        with self._locked(progress):
            yield

    def power_off(self, name: str) -> None:
        """Pull the plug of a node: its process is killed, and what it had not flushed is lost."""
        fleet.end_one(self._machine(name))

    def power_on(self, name: str, progress: Progress | None = None) -> None:
        """Boot a node that is off from its disks as they are, and wait until systemd has brought it up."""
        progress = progress or SilentProgress()
        with self._locked(progress):
            self.boot_node(name, progress)

    def boot_node(self, name: str, progress: Progress, healer: str = "") -> None:
        """`power_on` for a caller that holds the lab: see :meth:`locked`. `healer`: see :func:`settle`."""
        if machine.pid(self._machine(name)) is not None:
            return
        self._prepare_run(self._with_free_ports(self._known()))
        self._boot((self._machine(name),), progress, healer)

    def _keep(self, record: Record, wanted: LabOptions, ready: Ready, progress: Progress) -> None:
        """`up` on a running lab."""
        if wanted != record.options:
            raise LabError(
                f"lab {self.name} runs with other options",
                f"end it first: labctl down --lab {self.name}; or take another --lab NAME",
            )
        dead = [m for m in provision.machines(self.directory, record) if machine.pid(m) is None]
        if dead:
            progress.note(f"{', '.join(m.name for m in dead)} did not run and is booted from its disks")
            fleet.start_switch(record.run_dir, self.directory / "switch.log")
            self._boot(dead, progress)
        self._ready(record, ready)
        progress.note(f"lab {self.name} is up already; `labctl reset` takes it back to its snapshot")
        if reason := self._outdated(record, wanted):
            progress.note(f"{reason}: labctl down, then labctl up makes the lab anew")

    def _outdated(self, record: Record, wanted: LabOptions) -> str:
        """Why the golden snapshot is of no use any more; empty where it is."""
        if wanted != record.options:
            return "its options changed"
        packages, finish = workload.packages(wanted), workload.finish(wanted)
        if record.image != image_key(wanted.agent, wanted.kernel, packages, finish):
            return "the node image or the agent changed since its snapshot"
        if record.workload_key != workload.key(wanted.workload):
            return f"workload {wanted.workload} changed since its snapshot"
        if record.qemu != qemu_version():
            return "QEMU changed since its snapshot"
        if record.shape != machine.SHAPE:
            return "its machines are made in another way now"
        if not all(m.places.root_disk.exists() for m in provision.machines(self.directory, record)):
            return "its disks are gone"
        return ""

    def _from_golden(self, record: Record, ready: Ready, progress: Progress) -> None:
        with progress.task(f"restoring lab {self.name}") as task:
            record = self._with_free_ports(record)
            self._prepare_run(record)
            self._end_faulty(record)
            for attempt in range(_PORT_TRIES):
                try:
                    fleet.restore(provision.machines(self.directory, record))
                    break
                except PortTakenError:
                    if attempt == _PORT_TRIES - 1:
                        raise
                    record = self._with_free_ports(record)
            task.update("waiting for the agents" if record.options.agent else "")
            self._ready(record, ready)
            if url := provision.web_url(record):
                task.update(f"waiting for {record.options.workload}")
                workload.wait_serving(url, record.options.workload)

    def _make(self, options: LabOptions, ready: Ready, progress: Progress) -> None:
        """Image, disks, first boot, golden snapshot."""
        packages, finish = workload.packages(options), workload.finish(options)
        image = ensure_image(options.agent, progress, options.kernel, packages, finish)
        chosen = accelerator(image.kernel, image.initrd, progress)
        progress.note(f"nodes run with {'KVM' if chosen.name == 'kvm' else 'emulation'}: {chosen.reason}")
        before = self._record()
        record = Record(
            name=self.name,
            run_dir=state.run_dir(self.directory, self.name),
            options=options,
            image=image.key,
            qemu=qemu_version(),
            shape=machine.SHAPE,
            accelerator=chosen,
            labels=before.labels if before else {},
            ports=provision.choose_ports(options),
            workload_key=workload.key(options.workload),
        )
        state.write_record(self._file, record)
        provision.make_nodes(self.directory, record, image)
        self._prepare_run(record)
        record = self._first_boot(record, progress)
        with progress.task("waiting for the agents" if options.agent else "checking the nodes"):
            self._ready(record, ready)
        if options.workload:
            workload.deploy(workload.find(options.workload), provision.nodes(self.directory, record), progress)
        if url := provision.web_url(record):
            workload.wait_serving(url, options.workload)
        with progress.task("taking the golden snapshot"):
            fleet.wait_quiet([port for each in record.ports for port in each.used])
            fleet.take_golden(provision.machines(self.directory, record))
            state.write_record(self._file, record.model_copy(update={"golden": True}))
        self._ready(record, ready)  # the nodes stood still for the snapshot, and their clocks with them

    def _first_boot(self, record: Record, progress: Progress) -> Record:
        for _ in range(_PORT_TRIES - 1):
            try:
                self._boot(provision.machines(self.directory, record), progress)
                return record
            except PortTakenError:
                self._end(record)
                record = self._with_free_ports(record)
                self._prepare_run(record)
        self._boot(provision.machines(self.directory, record), progress)
        return record

    def _boot(self, them: Sequence[Machine], progress: Progress, healer: str = "") -> None:
        with progress.task(f"booting {' '.join(m.name for m in them)}") as task:
            for each in them:  # what a fault below the disk left in files is newer than the disk
                self._settle(each, "power on", keep=True, healer=healer)
            since = {m: machine.console_size(m) for m in them}
            fleet.each(them, lambda m: machine.start(m, paused=False))
            machine.wait_booted(since, _BOOT_S + _BOOT_PER_NODE_S * len(them), task.update)

    def _with_free_ports(self, record: Record) -> Record:
        """The record with other ports for nodes that do not run and whose ports are taken by now."""
        kept: list[Ports] = []
        for one, old in zip(provision.machines(self.directory, record), record.ports, strict=True):
            if machine.pid(one) is None and not all(ports.is_free(port) for port in old.used):
                kept.append(Ports.of(ports.choose(len(old.used))))
            else:
                kept.append(old)
        record = record.model_copy(update={"ports": tuple(kept)})
        state.write_record(self._file, record)
        return record

    def _prepare_run(self, record: Record) -> None:
        state.private_dir(record.run_dir)
        provision.write_known_hosts(self.directory, record)
        fleet.start_switch(record.run_dir, self.directory / "switch.log")

    def _ready(self, record: Record, ready: Ready) -> None:
        """Ask the caller's `ready` of all nodes at once. A node without the agent is ready when it has booted."""

        def ask(node: Node) -> None:
            try:
                ready(node)
            except LabError as error:
                error.hint = "; ".join(
                    filter(None, (error.hint, f"the node's console: {self.console(node.name)}"))
                )
                raise

        if record.options.agent:
            fleet.each(provision.nodes(self.directory, record), ask)

    def _end(self, record: Record | None, *, keep: bool = True) -> None:
        run_dir = record.run_dir if record else state.run_dir(self.directory, self.name)
        there = provision.machines(self.directory, record) if record else ()
        fleet.end_all(there, run_dir)
        for each in there:
            self._settle(each, "down", keep=keep)
        shutil.rmtree(run_dir, ignore_errors=True)

    def _end_faulty(self, record: Record) -> None:
        """Machines with faults in their hardware end before their disks go back to the snapshot."""
        for each in provision.machines(self.directory, record):
            if Journal(self.directory, each.name).live():
                fleet.end_one(each)
                self._settle(each, "reset", keep=False)
            Journal(self.directory, each.name).set_stopped(False)

    def _settle(self, one: Machine, reason: str, *, keep: bool, healer: str = "") -> None:
        settle(self.directory, one.places, reason, keep=keep, healer=healer)

    def _running(self, record: Record) -> bool:
        return any(machine.pid(m) is not None for m in provision.machines(self.directory, record))

    def _machine(self, name: str) -> Machine:
        record = self._known()
        for one in provision.machines(self.directory, record):
            if one.name == name:
                return one
        there = ", ".join(identity.node_names(record.options.nodes))
        raise UsageError(f"lab {self.name} has no node {name!r}; its nodes: {there}")

    @property
    def _file(self) -> Path:
        return self.directory / "lab.json"

    def _record(self) -> Record | None:
        return state.read_record(self._file)

    def _known(self) -> Record:
        record = self._record()
        if record is None:
            raise LabError(f"no lab {self.name}", f"start it with: labctl up --lab {self.name}")
        return record

    def _locked(self, progress: Progress) -> contextlib.AbstractContextManager[None]:
        return lab_locked(self.directory, _LOCK_S, progress.note)


def _status(node: Node, pid: int | None, record: Record, web: int) -> NodeStatus:
    url = provision.url(web)
    if pid is None:
        return NodeStatus(node=node, running=False, detail="off", web=url)
    detail = f"{record.accelerator.name}, {record.options.memory_mib} MiB"
    return NodeStatus(node=node, running=True, pid=pid, detail=detail, web=url)
