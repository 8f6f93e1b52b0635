"""One virtual machine: its command line as a pure function, starting it, and waiting for it.

The devices that faults act on have fixed names: `datadev` (the data disk, on virtio-scsi, backed by block node
`data0`), `mgmt` and `lan` (network cards), `rp1` (the PCIe port of `lan`), `spare1` and `spare2` (empty PCIe
ports for hot-plugging).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from labctl.errors import LabError
from labctl.lab import identity, processes
from labctl.lab.accelerator import Accelerator
from labctl.lab.files import tail
from labctl.lab.qmp import Qmp, QmpError

DATA_SERIAL = "gfdata"
_ABSENT_LOOKS = 10
START_S = 30.0
SHAPE = 2
"""Counts up when the command line changes in a way that an older snapshot does not fit."""

_KERNEL_LINE = (
    "console=ttyS0 root=/dev/vda rw quiet mitigations=off fsck.mode=skip systemd.show_status=0"
    " systemd.firstboot=off random.trust_cpu=on"
)


class PortTakenError(LabError):
    """Another process took a forwarded port between our choice and QEMU's start."""


@dataclass(frozen=True)
class Places:
    """Where the files of one node are. Sockets and pidfiles are in the short run directory."""

    node: Path
    run: Path
    name: str

    @property
    def root_disk(self) -> Path:
        return self.node / "root.qcow2"

    @property
    def data_disk(self) -> Path:
        return self.node / "data.qcow2"

    @property
    def identity(self) -> Path:
        return self.node / "identity.tar"

    @property
    def console(self) -> Path:
        return self.node / "console.log"

    @property
    def log(self) -> Path:
        return self.node / "qemu.log"

    @property
    def host_key(self) -> Path:
        return self.node / "ssh_host_ed25519_key"

    @property
    def qmp(self) -> Path:
        return self.run / f"{self.name}.qmp"

    @property
    def pidfile(self) -> Path:
        return self.run / f"{self.name}.pid"

    @property
    def switch(self) -> Path:
        return self.run / "switch"


@dataclass(frozen=True)
class Machine:
    """All that decides a machine's command line."""

    lab: str
    index: int
    places: Places
    kernel: Path
    initrd: Path
    accelerator: Accelerator
    memory_mib: int
    cpus: int
    internet: bool
    forwards: tuple[tuple[int, int], ...]
    """Pairs of a port of 127.0.0.1 and the node's port that it leads to."""
    arguments: tuple[str, ...] = ()
    """Added to the kernel's command line."""

    @property
    def name(self) -> str:
        return self.places.name


def argv(machine: Machine, *, paused: bool) -> tuple[str, ...]:
    """The command line. `paused` starts with the processors stopped, for a snapshot to be loaded."""
    at = machine.places
    forwards = "".join(f",hostfwd=tcp:127.0.0.1:{port}-:{guest}" for port, guest in machine.forwards)
    restrict = "" if machine.internet else ",restrict=on"
    ids = f"systemd.hostname={machine.name} systemd.machine_id={identity.machine_id(machine.lab, machine.name)}"
    line = " ".join((_KERNEL_LINE, ids, *machine.arguments))
    return (
        "qemu-system-x86_64",
        *("-name", f"guest={machine.lab}-{machine.name}", "-nodefaults", "-no-user-config", "-display", "none"),
        *("-machine", "q35", "-accel", machine.accelerator.accel, "-cpu", machine.accelerator.cpu_model),
        *("-smp", _processors(machine.cpus), "-m", str(machine.memory_mib)),
        *("-kernel", str(machine.kernel), "-initrd", str(machine.initrd), "-append", line),
        *("-blockdev", _disk("root0", at.root_disk), "-device", "virtio-blk-pci,drive=root0,id=rootdev"),
        *("-blockdev", _disk("data0", at.data_disk), "-device", "virtio-scsi-pci,id=scsi0"),
        *("-device", f"scsi-hd,drive=data0,id=datadev,bus=scsi0.0,serial={DATA_SERIAL}"),
        *(word for number, port in enumerate(("rp1", "spare1", "spare2"), 1) for word in _pcie_port(port, number)),
        *("-netdev", f"user,id=mgmtnet,ipv6=off{restrict}{forwards}"),
        *(
            "-device",
            f"virtio-net-pci,netdev=mgmtnet,id=mgmt,romfile=,mac={identity.mac(machine.index, lan=False)}",
        ),
        *("-netdev", f"vde,id=lannet,sock={at.switch}"),
        *(
            "-device",
            f"virtio-net-pci,netdev=lannet,id=lan,bus=rp1,romfile=,mac={identity.mac(machine.index, lan=True)}",
        ),
        *("-fw_cfg", f"name=opt/org.groundfault/identity,file={at.identity}"),
        *("-chardev", f"file,id=console,path={at.console},append=on", "-serial", "chardev:console"),
        *("-qmp", f"unix:{at.qmp},server=on,wait=off", "-pidfile", str(at.pidfile)),
        *(("-S",) if paused else ()),
    )


def _processors(cpus: int) -> str:
    """Room for a second one, always.

    QEMU 7.2 leaves memory barriers out of what it translates for a machine that can have only one processor,
    although its own threads serve the disks. Requests were lost that way, and I/O hung for ever.
    """
    return f"cpus={cpus},maxcpus={max(cpus, 2)}"


def _disk(node: str, path: Path) -> str:
    # no-flush: a flush still reaches the host's page cache, which outlives a killed QEMU (the lab's power cut),
    # but does not wait for the host's disk. A crash of the host may cost the lab, which can be made anew.
    return (
        f"driver=qcow2,node-name={node},discard=unmap,cache.no-flush=on,"
        f"file.driver=file,file.filename={path},file.discard=unmap"
    )


def _pcie_port(name: str, number: int) -> tuple[str, str]:
    return ("-device", f"pcie-root-port,id={name},chassis={number},slot={number}")


def pid(machine: Machine) -> int | None:
    """The pid of the running machine; None where it does not run."""
    return processes.recorded(machine.places.pidfile, str(machine.places.run))


def start(machine: Machine, *, paused: bool) -> None:
    """Start the machine and wait until QEMU answers. The process outlives us; its pidfile is at a known place.

    Raises :class:`PortTakenError` where a forwarded port is not free any more.
    """
    at = machine.places
    at.log.unlink(missing_ok=True)
    at.qmp.unlink(missing_ok=True)
    at.pidfile.unlink(missing_ok=True)
    processes.spawn(argv(machine, paused=paused), at.log)
    deadline = time.monotonic() + START_S
    absent = 0
    while True:
        try:
            with Qmp(at.qmp):
                return
        except QmpError:
            # Between fork and exec, and within exec, a process shows no command line for a moment.
            absent = 0 if processes.sweep(str(at.qmp)) else absent + 1
        if absent > _ABSENT_LOOKS:
            said = tail(at.log)
            if "host forwarding" in said:
                raise PortTakenError(f"{machine.name}: a forwarded port was taken", said)
            raise LabError(f"{machine.name}: QEMU ended at its start", said or "it said nothing")
        if time.monotonic() > deadline:
            raise LabError(f"{machine.name}: QEMU did not answer within {START_S:.0f} s", tail(at.log))
        time.sleep(0.05)


def wait_booted(machines: Mapping[Machine, int], timeout: float, say: Callable[[str], None]) -> None:
    """Wait until each machine's console says that it is up. The value is where in the console log to begin.

    Raises LabError with the end of the console log where a machine ends, gives up or takes too long.
    """
    waiting = dict(machines)
    deadline = time.monotonic() + timeout
    while waiting:
        for machine, offset in tuple(waiting.items()):
            said = _said(machine.places.console, offset)
            if "groundfault: booted" in said:
                del waiting[machine]
            elif "groundfault: LOST" in said or "Kernel panic" in said:
                raise LabError(f"{machine.name} could not boot", tail(machine.places.console))
            elif pid(machine) is None:
                raise LabError(f"{machine.name}: QEMU ended while it booted", tail(machine.places.log))
        if not waiting:
            return
        say("waiting for " + ", ".join(f"{m.name} ({_stage(m, offset)})" for m, offset in waiting.items()))
        if time.monotonic() > deadline:
            late = next(iter(waiting))
            raise LabError(
                f"{late.name} did not boot within {timeout:.0f} s ({_stage(late, waiting[late])})",
                f"end of {late.places.console}:\n{tail(late.places.console)}",
            )
        time.sleep(0.1)


def console_size(machine: Machine) -> int:
    """Where the console log ends now."""
    return machine.places.console.stat().st_size if machine.places.console.exists() else 0


def _said(console: Path, offset: int) -> str:
    if not console.exists():
        return ""
    with console.open("rb") as handle:
        handle.seek(offset)
        return handle.read().decode(errors="replace")


def _stage(machine: Machine, offset: int) -> str:
    said = _said(machine.places.console, offset)
    for mark, stage in (
        ("groundfault: data disk mounted", "starting services"),
        ("groundfault: identity installed", "starting systemd"),
        ("groundfault: initramfs", "initramfs"),
    ):
        if mark in said:
            return stage
    return "kernel"
