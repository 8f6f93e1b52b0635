"""What device mapper and loop devices can do on this kernel, tried on devices of a few sectors.

Asking for a kind of target loads its module, so the modules are tried too.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from node_agent.host import SECTOR, DmTarget, Host
from node_agent.probe import Lacking, capability
from node_agent.steps.dm_names import node_path
from node_agent.steps.io_cap import has_io

_SIZE = 64
_MODULES = "load the module, or install the kernel's package of extra modules (linux-modules-extra on Ubuntu)"


@contextmanager
def _device(host: Host, part: str, kind: str, args: str = "") -> Iterator[str]:
    """A device for the length of a probe; its number. A leftover of an earlier, killed probe goes first."""
    if not host.dm.has_target(kind):
        raise Lacking(f"this kernel has no device-mapper target {kind}")
    name = f"groundfault-probe-{part}"
    host.dm.remove(name)
    info = host.dm.create(name, [DmTarget(0, _SIZE, kind, args)])
    try:
        yield info.number
    finally:
        host.dm.remove(name)


def _must_fail(host: Host, number: str) -> None:
    try:
        host.disk.direct_read(node_path(number), 0, 8 * SECTOR)
    except OSError as error:
        if error.errno == errno.EIO:
            return
        raise
    raise Lacking("the table loads, but reads do not fail")


@contextmanager
def _loop_over(host: Host, number: str) -> Iterator[str]:
    path = node_path(number)
    info = host.loop.attach(path, direct_io=True)
    try:
        yield info.number
    finally:
        host.loop.detach(path)


@capability("dm.error", remedy="a kernel with device mapper (module dm_mod)")
def probe_error(host: Host) -> None:
    """A device of the error target fails reads."""
    with _device(host, "error", "error") as number:
        _must_fail(host, number)


@capability("loop.direct_io", remedy="a kernel with loop devices (module loop) and dm-zero")
def probe_loop(host: Host) -> None:
    """A loop device with direct I/O binds to a device of zeros."""
    with _device(host, "zero", "zero") as number, _loop_over(host, number) as loop:
        host.disk.size_sectors(loop)


@capability("dm.snapshot", remedy=f"module dm_snapshot: {_MODULES}")
def probe_snapshot(host: Host) -> None:
    """A snapshot of a device that fails reads fails them too."""
    with ExitStack() as stack:
        origin = stack.enter_context(_device(host, "origin", "error"))
        copies = stack.enter_context(_device(host, "copies", "zero"))
        number = stack.enter_context(_device(host, "snapshot", "snapshot", f"{origin} {copies} N 8"))
        _must_fail(host, number)


@capability("dm.flakey_error_reads", remedy=f"dm-flakey with error_reads, of Linux 6.6 or newer: {_MODULES}")
def probe_flakey(host: Host) -> None:
    """dm-flakey fails reads and leaves writes alone. Its version number does not tell."""
    with _device(host, "below", "zero") as below:
        with _device(host, "flakey", "flakey", f"{below} 0 0 1 1 error_reads") as number:
            _must_fail(host, number)


@capability("dm.dust", remedy="a kernel with CONFIG_DM_DUST; Debian's have none, the lab's own kernel has it")
def probe_dust(host: Host) -> None:
    """A dust device fails reads of the blocks it is told of."""
    with ExitStack() as stack:
        below = stack.enter_context(_device(host, "below", "zero"))
        number = stack.enter_context(_device(host, "dust", "dust", f"{below} 0 {SECTOR}"))
        for text in ("quiet", "addbadblock 0", "enable"):
            host.dm.message("groundfault-probe-dust", 0, text)
        _must_fail(host, number)


@capability("dm.flakey_error_writes", remedy=f"module dm_flakey: {_MODULES}")
def probe_flakey_writes(host: Host) -> None:
    """dm-flakey takes error_writes. The probe writes nothing: that writes fail is left to those of the fault."""
    with _device(host, "below", "zero") as below:
        with _device(host, "flakey", "flakey", f"{below} 0 0 1 1 error_writes"):
            return


@capability("dm.flakey_corrupt", remedy=f"module dm_flakey: {_MODULES}")
def probe_flakey_corrupt(host: Host) -> None:
    """dm-flakey changes one byte of what is read."""
    with _device(host, "below", "zero") as below:
        args = f"{below} 0 0 1 5 corrupt_bio_byte 1 r 1 0"
        with _device(host, "flakey", "flakey", args) as number:
            if host.disk.direct_read(node_path(number), 0, 8 * SECTOR)[0] != 1:
                raise Lacking("the table loads, but the byte stays as it is")


@capability("dm.writecache", remedy=f"module dm_writecache: {_MODULES}")
def probe_writecache(host: Host) -> None:
    """This kernel has the target. It is not tried: it wants a device of its own that keeps what is written."""
    if not host.dm.has_target("writecache"):
        raise Lacking("this kernel has no device-mapper target writecache")


@capability("dm.delay", remedy=f"module dm_delay: {_MODULES}")
def probe_delay(host: Host) -> None:
    """dm-delay sends reads one way and writes another: reads fail below it, or do not, as the table says."""
    with ExitStack() as stack:
        bad = stack.enter_context(_device(host, "error", "error"))
        good = stack.enter_context(_device(host, "below", "zero"))
        way = f"{good} 0 0"
        number = stack.enter_context(_device(host, "delay", "delay", f"{bad} 0 0 {way} {way}"))
        _must_fail(host, number)


@capability("cgroup.io", remedy="a system with control groups of version 2 and the controller io")
def probe_io(host: Host) -> None:
    """The system's control groups are those of version 2, and have the controller io."""
    if not has_io(host):
        raise Lacking("control groups have no controller io")
