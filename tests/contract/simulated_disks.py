"""Device mapper, loop devices and disks of the simulated machine.

Reads go through the tables like a kernel's do, so that a fault which is not wired up right does not bite here.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from node_agent.host import SECTOR, DmInfo, DmTarget, Extent, LogRecord, LoopInfo

if TYPE_CHECKING:
    from tests.contract.simulated import SimulatedHost

BASE = "8:16"
BASE_SECTORS = 8192
KINDS = ("linear", "error", "zero", "snapshot", "flakey", "delay", "writecache")
PLAIN = (DmTarget(0, BASE_SECTORS, "linear", f"{BASE} 0"),)


class SimulatedDm:
    def __init__(self, host: SimulatedHost) -> None:
        self._h = host

    def _info(self, name: str) -> DmInfo:
        number, _ = self._h.kernel.dm[name]
        users = [n for n, (_, table) in self._h.kernel.dm.items() if any(number in t.args.split() for t in table)]
        loops = [i for i in self._h.kernel.loops.values() if i.backing == f"/dev/dm-{number.split(':')[1]}"]
        return DmInfo(name, number, len(users) + len(loops), False)

    def list(self) -> Sequence[DmInfo]:
        self._h.alive()
        return [self._info(name) for name in self._h.kernel.dm]

    def info(self, name: str) -> DmInfo | None:
        self._h.alive()
        return self._info(name) if name in self._h.kernel.dm else None

    def table(self, name: str) -> tuple[DmTarget, ...]:
        self._h.alive()
        if name not in self._h.kernel.dm:
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO), name)
        return self._h.kernel.dm[name][1]

    def status(self, name: str) -> tuple[DmTarget, ...]:
        answers = []
        for target in self.table(name):
            used = sum(1 for device, _ in self._h.kernel.healed if device == self._h.kernel.dm[name][0])
            answers.append(
                DmTarget(
                    target.start,
                    target.length,
                    target.kind,
                    f"{used * 8}/8 0" if target.kind == "snapshot" else "",
                )
            )
        return tuple(answers)

    def has_target(self, kind: str) -> bool:
        return kind in KINDS

    def create(self, name: str, table: Sequence[DmTarget], *, public: bool = False) -> DmInfo:
        self._h.change()
        kernel = self._h.kernel
        if name in kernel.dm:
            if kernel.dm[name][1] == tuple(table):
                return self._info(name)
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), name)
        numbers = {number for number, _ in kernel.dm.values()} | {i.number for i in kernel.loops.values()} | {BASE}
        for target in table:
            for word in target.args.split():
                if ":" in word and word not in numbers:
                    raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), word)
        kernel.dm[name] = (f"252:{kernel.next_minor}", tuple(table))
        kernel.next_minor += 1
        return self._info(name)

    def swap(self, name: str, table: Sequence[DmTarget]) -> None:
        self._h.change()
        number, old = self._h.kernel.dm[name]
        if sum(t.length for t in table) != sum(t.length for t in old):
            raise OSError(errno.EINVAL, "the size changed")
        self._h.kernel.dm[name] = (number, tuple(table))

    def message(self, name: str, sector: int, text: str) -> str:
        self._h.change()
        return ""

    def remove(self, name: str) -> None:
        self._h.change()
        if name in self._h.kernel.dm:
            if self._info(name).open_count:
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), name)
            del self._h.kernel.dm[name]


class SimulatedLoops:
    def __init__(self, host: SimulatedHost) -> None:
        self._h = host

    def list(self) -> Sequence[LoopInfo]:
        self._h.alive()
        return list(self._h.kernel.loops.values())

    def attach(self, backing: str, *, direct_io: bool, read_only: bool = False) -> LoopInfo:
        self._h.change()
        loops = self._h.kernel.loops
        if backing not in loops:
            taken = {i.number for i in loops.values()}
            minor = next(n for n in range(100) if f"7:{n}" not in taken)
            loops[backing] = LoopInfo(f"/dev/loop{minor}", f"7:{minor}", backing)
        return loops[backing]

    def detach(self, backing: str) -> None:
        self._h.change()
        info = self._h.kernel.loops.get(backing)
        if info:
            if any(info.number in t.args.split() for _, table in self._h.kernel.dm.values() for t in table):
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), backing)
            del self._h.kernel.loops[backing]


class SimulatedDisks:
    def __init__(self, host: SimulatedHost) -> None:
        self._h = host

    def extents(self, path: str, *, sync: bool = True) -> Sequence[Extent]:
        self._h.alive()
        return list(self._h.kernel.files[path].extents)

    def block_size(self, path: str) -> int:
        return 4096

    def size_sectors(self, number: str) -> int:
        for device, table in self._h.kernel.dm.values():
            if device == number:
                return sum(t.length for t in table)
        return BASE_SECTORS

    def direct_read(self, path: str, offset: int, length: int) -> bytes:
        self._h.alive()
        if path in self._h.kernel.files:
            file = self._h.kernel.files[path]
            extent = next(e for e in file.extents if e.logical <= offset < e.logical + e.length)
            number, sector = file.device, (extent.physical + offset - extent.logical) // SECTOR
        else:
            number, sector = self._number(path), offset // SECTOR
        return b"".join(self._read(number, sector + n) for n in range(length // SECTOR))

    def _number(self, path: str) -> str:
        if path.startswith("/dev/dm-"):
            return f"252:{path.removeprefix('/dev/dm-')}"
        return self._h.kernel.dm[path.removeprefix("/dev/mapper/")][0]

    def _read(self, number: str, sector: int) -> bytes:
        """What a sector has: zeros, but where flakey changes a byte."""
        kernel = self._h.kernel
        kernel.reads[number] = kernel.reads.get(number, 0) + 1
        loop = next((i for i in kernel.loops.values() if i.number == number), None)
        if loop:
            try:
                return self._read(self._number(loop.backing), sector)
            except OSError:
                text = f"I/O error, dev {loop.path.rsplit('/', 1)[1]}, sector {sector} op 0x0:(READ) flags 0x0"
                kernel.log.append(LogRecord(len(kernel.log), int(kernel.clock * 1e6), 3, text))
                raise
        table = next((t for n, t in kernel.dm.values() if n == number), ())
        target = next((t for t in table if t.start <= sector < t.start + t.length), None)
        if target is None:
            return bytes(SECTOR)
        words = target.args.split()
        match target.kind:
            case "error":
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            case "flakey" if "error_reads" in words:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            case "snapshot" if (number, sector // 8) not in kernel.healed:
                return self._read(words[0], sector)
            case "linear" | "delay":  # of a delay the first three words are for reads
                return self._read(words[0], int(words[1]) + sector - target.start)
            case "flakey":
                content = bytearray(self._read(words[0], int(words[1]) + sector - target.start))
                if words[5:6] == ["corrupt_bio_byte"] and words[7] == "r":
                    content[int(words[6]) - 1] = int(words[8])
                return bytes(content)
        return bytes(SECTOR)

    def rewrite(self, path: str, offset: int) -> None:
        """What a write of a block of a file does to a snapshot in its way: later reads come from the copy."""
        file = self._h.kernel.files[path]
        extent = next(e for e in file.extents if e.logical <= offset < e.logical + e.length)
        sector = (extent.physical + offset - extent.logical) // SECTOR
        number = file.device
        while True:
            table = next((t for n, t in self._h.kernel.dm.values() if n == number), ())
            target = next((t for t in table if t.start <= sector < t.start + t.length), None)
            if target is None:
                return
            if target.kind == "snapshot":
                self._h.kernel.healed.add((number, sector // 8))
                return
            if target.kind != "linear":
                return
            words = target.args.split()
            number, sector = words[0], int(words[1]) + sector - target.start

    def cached(self, path: str, ranges: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
        self._h.alive()
        return ()

    def drop_pages(self, path: str, ranges: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
        self._h.change()
        return ()
