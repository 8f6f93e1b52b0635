"""The provider `vagrant`: machines that Vagrant makes, by libvirt or VirtualBox, with agents that labctl installs.

Vagrant knows the machines, and labctl what is on them.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from labctl.errors import LabctlError, LabError
from labctl.lab import fleet, ports
from labctl.lab.equip import Equip, equip
from labctl.lab.files import lab_locked, write_atomic
from labctl.lab.holding import myself
from labctl.lab.model import LabOptions, Node, NodeStatus, Ready
from labctl.lab.remote import LogIn, connected
from labctl.lab.vagrant_files import vagrantfile
from labctl.lab.vagrant_finding import Finder
from labctl.lab.vagrant_record import Record, refuse_foreign
from labctl.lab.vagrant_tool import Backend, Vagrant, choose_backend, driver_here, settings
from labctl.operators import own_name
from labctl.pki import LabAuthority
from labctl.power.qemu import QemuPower
from labctl.progress import Progress, SilentProgress, Task

SNAPSHOT = "golden"
_LOCK_S = 3600.0
_UP_S, _PER_NODE_S = 900.0, 900.0
_SNAPSHOT_S = 600.0
_PROBE_S = 3.0
_RUNNING = "running"
_NOT_MADE = "not_created"


def provider(directory: Path) -> VagrantLab:
    """The lab kept in `directory`, whose name is the lab's (see :mod:`labctl.lab.store`)."""
    return VagrantLab(directory)


class VagrantLab:
    """See :class:`labctl.lab.model.Provider`. One lab is worked on by one process at a time; others wait."""

    kind = "vagrant"

    def __init__(self, directory: Path, login: LogIn = connected, equip: Equip = equip) -> None:
        self.name, self.directory, self._login, self._equip = directory.name, directory, login, equip

    def up(self, options: LabOptions | None, ready: Ready, progress: Progress) -> None:
        """Bring the machines up: from their snapshots, or by `vagrant up`, an install and a first snapshot."""
        with self._locked(progress):
            record = self._record()
            wanted = options or (record.options if record else LabOptions())
            refuse_foreign(wanted)
            if record is None:
                record = self._new(wanted, progress)
            vagrant = self._vagrant(record)
            states = vagrant.states()
            made = [name for name in record.names if states.get(name, _NOT_MADE) != _NOT_MADE]
            if record.options != wanted:
                if made:
                    raise LabError(f"lab {self.name} has other options", "labctl down --destroy, then labctl up")
                record = self._new(wanted, progress)
            if record.golden and len(made) == len(record.names):
                if any(states[name] == _RUNNING for name in record.names):
                    self._go_on(record, states, ready, progress)
                else:
                    self._restore(record, ready, progress)
                return
            self._make(record, ready, progress)

    def reset(self, ready: Ready, progress: Progress) -> None:
        """Take memory and disks of all machines back to their snapshots."""
        with self._locked(progress):
            record = self._known()
            if not record.golden:
                raise LabError(
                    f"lab {self.name} has no snapshot to go back to",
                    "labctl up takes one where Vagrant's provider can; labctl recover --all takes faults back",
                )
            self._restore(record, ready, progress)

    def down(self, progress: Progress) -> None:
        """End the machines. Disks and snapshots stay; without snapshots they are shut down in good order."""
        with self._locked(progress):
            record = self._record()
            if record is None:
                return
            with progress.task(f"ending {' '.join(record.names)}"):
                self._vagrant(record).halt(force=record.golden, what="ending the machines", timeout_s=_UP_S)

    def destroy(self, progress: Progress) -> None:
        """Delete the machines with their disks and snapshots, and the lab's keys and certificates."""
        with self._locked(progress):
            record = self._record()
            if record is not None:
                with progress.task(f"deleting {' '.join(record.names)}"):
                    self._vagrant(record).ask("destroy", "--force", what="deleting the machines", timeout_s=_UP_S)
            # lab.json last: until then an interrupted destroy can be found and repeated.
            for path in sorted(self.directory.iterdir(), key=lambda path: path.name == "lab.json"):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
            self.directory.rmdir()

    def nodes(self) -> tuple[Node, ...]:
        """The nodes in order, as they were reached last; none before the first `up`."""
        record = self._record()
        if record is None:
            return ()
        return tuple(node.model_copy(update={"labels": record.labels.get(node.name, {})}) for node in record.nodes)

    def status(self) -> tuple[NodeStatus, ...]:
        """Which machines run. Vagrant, which takes seconds, is asked only where no SSH port answers."""
        record = self._record()
        if record is None:
            return ()
        nodes = self.nodes()
        silent = {node.name for node in nodes if not _listens(node)}
        states = self._told(record) if silent else {}
        return tuple(
            _status(node, record.backend, states.get(node.name, "nothing") if node.name in silent else _RUNNING)
            for node in nodes
        )

    def set_labels(self, name: str, labels: Mapping[str, str]) -> None:
        """These are the labels of a node from now on. They go with the lab."""
        with self._locked(SilentProgress()):
            record = self._known()
            self._write(record.model_copy(update={"labels": {**record.labels, name: labels}}))

    def console(self, name: str) -> Path | None:
        """None: Vagrant's providers keep no file of it."""
        return None

    def power(self, name: str) -> QemuPower:
        """The power switch of a machine, by Vagrant."""
        record = self._known()

        def shut_down() -> None:
            self._vagrant(record).halt(name, force=False, what=f"shutting {name} down", timeout_s=_UP_S)

        return QemuPower(self, name, shut_down)

    def runs(self, name: str) -> bool:
        """Whether a machine runs, as Vagrant says."""
        return self._vagrant(self._known()).states().get(name) == _RUNNING

    def power_off(self, name: str) -> None:
        """Pull the plug of a machine."""
        vagrant = self._vagrant(self._known())
        vagrant.halt(name, force=True, what=f"pulling the plug of {name}", timeout_s=_UP_S)

    def power_on(self, name: str, progress: Progress | None = None) -> None:
        """Boot a machine from its disks as they are."""
        with self._locked(progress or SilentProgress()):
            record = self._known()
            self._vagrant(record).ask("up", "--no-provision", name, what=f"booting {name}", timeout_s=_UP_S)
            self._find(record)

    def _new(self, options: LabOptions, progress: Progress) -> Record:
        """What the Vagrantfile needs is written down; no machine is made yet."""
        backend = choose_backend()
        agent_ports = ports.choose(options.nodes)
        driver = driver_here(progress) if backend == "libvirt" else ""
        chosen = settings(self.name, options, agent_ports, driver)
        LabAuthority.ensure(self.directory / "pki", self.name, operator=own_name())
        write_atomic(self._environment / "Vagrantfile", vagrantfile(), 0o644)
        write_atomic(self._environment / "settings.json", json.dumps(chosen, indent=1).encode(), 0o644)
        record = Record(options=options, backend=backend, agent_ports=agent_ports)
        self._write(record)
        return record

    def _make(self, record: Record, ready: Ready, progress: Progress) -> None:
        """`vagrant up`, host keys, agents, spare disks, snapshot: what a cut run has done is not done again."""
        vagrant, count = self._vagrant(record), len(record.names)
        with progress.task(f"vagrant up, by {record.backend}"):
            vagrant.ask("up", "--no-provision", what="making the machines", timeout_s=_UP_S + count * _PER_NODE_S)
        with progress.task("looking for the machines"):
            record = self._find(record)
        if not record.options.agent:
            self._write(record.model_copy(update={"golden": self._snapshot(record, progress)}))
            return
        with progress.task("installing the agents") as task:
            self._equip_all(record, ready, task)
        with progress.task("waiting for the agents"):
            fleet.each(record.nodes, ready)
        self._write(record.model_copy(update={"golden": self._snapshot(record, progress)}))
        fleet.each(record.nodes, ready)  # the machines stood still for the snapshot, and their clocks with them

    def _equip_all(self, record: Record, ready: Ready, task: Task) -> None:
        authority = LabAuthority.load(self.directory / "pki")
        filesystem = record.options.data_filesystem
        for node in record.nodes:  # one at a time: the first builds the bundle that all get
            task.update(node.name)
            self._equip(
                node, authority=authority, ready=ready, task=task, login=self._login, filesystem=filesystem,
                who=myself(),
            )  # fmt: skip

    def _snapshot(self, record: Record, progress: Progress) -> bool:
        """Take one of each machine; whether that worked."""
        vagrant = self._vagrant(record)
        try:
            with progress.task("taking the snapshots"):
                for name in record.names:
                    vagrant.ask(
                        "snapshot", "save", "--force", name, SNAPSHOT,
                        what=f"taking a snapshot of {name}", timeout_s=_SNAPSHOT_S,
                    )  # fmt: skip
        except LabError as error:
            said = error.hint.splitlines()
            progress.note(f"no snapshots, so no `labctl reset`: {said[-1] if said else error.message}")
            return False
        return True

    def _go_on(self, record: Record, states: Mapping[str, str], ready: Ready, progress: Progress) -> None:
        """`up` on a lab that runs, as a whole or in part."""
        off = [name for name in record.names if states[name] != _RUNNING]
        if off:
            progress.note(f"{', '.join(off)} did not run and is booted from its disks")
            with progress.task(f"booting {' '.join(off)}"):
                self._vagrant(record).ask(
                    "up", "--no-provision", *off, what=f"booting {' '.join(off)}", timeout_s=_UP_S
                )
        self._ready(self._find(record), ready)
        progress.note(f"lab {self.name} is up already; `labctl reset` takes it back to its snapshot")

    def _restore(self, record: Record, ready: Ready, progress: Progress) -> None:
        vagrant = self._vagrant(record)

        def one(name: str) -> None:
            vagrant.ask(
                "snapshot", "restore", "--no-provision", name, SNAPSHOT,
                what=f"restoring {name}", timeout_s=_SNAPSHOT_S,
            )  # fmt: skip

        with progress.task(f"restoring lab {self.name}") as task:
            fleet.each(record.names, one)
            task.update("looking for the machines")
            record = self._find(record)
            task.update("waiting for the agents")
            self._ready(record, ready)

    def _ready(self, record: Record, ready: Ready) -> None:
        if record.options.agent:
            fleet.each(record.nodes, ready)

    def _find(self, record: Record) -> Record:
        """Where the machines are now. Recorded."""
        found = Finder(self._vagrant(record), self.directory, self._login).find(record)
        self._write(found)
        return found

    def _told(self, record: Record) -> Mapping[str, str]:
        """What Vagrant says of the machines; what is wrong with it where it says nothing."""
        try:
            return self._vagrant(record).states()
        except LabctlError as error:
            return dict.fromkeys(record.names, error.message)

    def _vagrant(self, record: Record) -> Vagrant:
        return Vagrant(self._environment, record.backend)

    @property
    def _environment(self) -> Path:
        return self.directory / "vagrant"

    @property
    def _file(self) -> Path:
        return self.directory / "lab.json"

    def _write(self, record: Record) -> None:
        write_atomic(self._file, record.model_dump_json(indent=1).encode())

    def _record(self) -> Record | None:
        try:
            return Record.model_validate_json(self._file.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise LabError(
                f"{self._file} is not what this version of labctl writes ({error.errors()[0]['msg']})",
                f"end the machines by hand: VAGRANT_CWD={self._environment} vagrant destroy",
            ) from None

    def _known(self) -> Record:
        record = self._record()
        if record is None:
            raise LabError(f"no lab {self.name}", f"start it with: labctl up --provider vagrant --lab {self.name}")
        return record

    def _locked(self, progress: Progress) -> contextlib.AbstractContextManager[None]:
        return lab_locked(self.directory, _LOCK_S, progress.note)


def _listens(node: Node) -> bool:
    try:
        with socket.create_connection((node.address, node.ssh_port), timeout=_PROBE_S):
            return True
    except OSError:
        return False


def _status(node: Node, backend: Backend, state: str) -> NodeStatus:
    running = state == _RUNNING
    return NodeStatus(node=node, running=running, detail=backend if running else f"{backend}: {state}")
