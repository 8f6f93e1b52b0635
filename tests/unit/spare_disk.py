"""A simulated machine with a spare disk, and the commands that preparing a disk runs on it."""

from __future__ import annotations

import json
from typing import Any

from node_agent.host import CommandError, FileInfo
from tests.contract.simulated import Kernel, SimFile, SimulatedHost, fresh_kernel

DISK, LINK = "/dev/sdb", "/dev/disk/by-id/scsi-spare"
SECTORS = 64 * 2048
_SYS = "/sys/class/block"


def machine() -> Kernel:
    """The root disk vda, the data disk sda under `data`, and nothing on sdb."""
    kernel = fresh_kernel()
    kernel.texts |= {
        "/proc/swaps": "Filename Type Size Used Priority\n",
        f"{_SYS}/vda/dev": "8:0\n", f"{_SYS}/vda/size": "4000000\n", f"{_SYS}/vda/ro": "0\n",
        f"{_SYS}/sdb/dev": "8:16\n", f"{_SYS}/sdb/size": f"{SECTORS}\n", f"{_SYS}/sdb/ro": "0\n",
        "/dev/vda": "", DISK: "", LINK: "", "/usr/sbin/mkfs.ext4": "", "/usr/sbin/mkfs.xfs": "",
    }  # fmt: skip
    kernel.files["/srv"] = SimFile(4096, [], kind="directory", device="8:0")
    kernel.files["/var/lib/groundfault"] = SimFile(4096, [], kind="directory", device="8:0")
    return kernel


class SpareHost(SimulatedHost):
    """`marks`: what wipefs finds on the spare disk. `fails`: a program that ends with status 1."""

    def __init__(self, kernel: Kernel, die_at: int = 0, fails: str = "") -> None:
        super().__init__(kernel, die_at)
        self.fails = fails
        self.ran: list[tuple[str, ...]] = []

    def realpath(self, path: str) -> str:
        return DISK if path == LINK else path

    def _loop_text(self, path: str) -> str | None:
        for loop in self.kernel.loops.values():
            if path == f"{_SYS}/{loop.path.removeprefix('/dev/')}/size":
                return f"{self.kernel.files[loop.backing].size // 512}\n"
            if path == f"{_SYS}/{loop.path.removeprefix('/dev/')}/dev":
                return f"{loop.number}\n"
        return None

    def read_text(self, path: str) -> str:
        self.alive()
        return self._loop_text(path) or super().read_text(path)

    def exists(self, path: str) -> bool:
        if path.startswith("/dev/mapper/"):
            return path.removeprefix("/dev/mapper/") in self.kernel.dm
        return path == "/usr/lib/udev/rules.d/55-dm.rules" or super().exists(path)

    def file_info(self, path: str) -> FileInfo | None:
        if path in self.kernel.texts:
            return FileInfo("file", len(self.kernel.texts[path]), "8:0", 1)
        return super().file_info(path)

    def remove_file(self, path: str) -> None:
        super().remove_file(path)
        self.kernel.files.pop(path, None)

    def query(self, argv: tuple[str, ...], *, timeout_s: float = 10.0) -> str | None:
        self.alive()
        if argv[0] == "stat":
            return "4096 250000 1000000 ext2/ext3\n"
        if argv[0] == "rmdir":
            self.change()
            self.kernel.files.pop(argv[1], None)
            return ""
        return None

    def run(self, argv: tuple[str, ...], *, timeout_s: float = 30.0) -> str:
        if argv[0] == "wipefs" and "--json" in argv:
            self.alive()
            return json.dumps({"signatures": self._marks(argv[-1])})
        self.change()
        self.ran.append(argv)
        if argv[0] == self.fails:
            raise CommandError(argv, 1, "it does not work")
        action = getattr(self, "_" + argv[0].replace(".", "_"), None)
        if action is not None:
            action(argv)
        return ""

    def _marks(self, path: str) -> list[dict[str, Any]]:
        kinds = self.kernel.texts.get(f"marks:{path}", "").split()
        return [{"type": kind, "uuid": f"{kind}-uuid", "label": ""} for kind in kinds]

    def _base(self, node: str) -> str:
        args = self.kernel.dm[node.removeprefix("/dev/mapper/")][1][0].args
        return DISK if args.startswith("8:16") else "file"

    def _fallocate(self, argv: tuple[str, ...]) -> None:
        size = int(argv[2].removesuffix("MiB")) * 2**20
        self.kernel.files[argv[3]] = SimFile(size, [], device="8:0")

    def _mkfs_ext4(self, argv: tuple[str, ...]) -> None:
        self.kernel.texts[f"marks:{self._base(argv[-1])}"] = "ext4"

    _mkfs_xfs = _mkfs_ext4

    def _wipefs(self, argv: tuple[str, ...]) -> None:
        self.kernel.texts.pop(f"marks:{self._base(argv[-1])}", None)

    def _mkdir(self, argv: tuple[str, ...]) -> None:
        if not argv[-1].startswith("/etc/"):
            self.kernel.files[argv[-1]] = SimFile(4096, [], kind="directory", device="8:0")

    def _mount(self, argv: tuple[str, ...]) -> None:
        number = self.kernel.dm[argv[3].removeprefix("/dev/mapper/")][0]
        self.kernel.texts["/proc/self/mountinfo"] += f"9 1 {number} / {argv[4]} rw - {argv[2]} {argv[3]} rw\n"
        self.kernel.texts["/proc/self/mounts"] += f"{argv[3]} {argv[4]} {argv[2]} rw 0 0\n"

    def _umount(self, argv: tuple[str, ...]) -> None:
        for path in ("/proc/self/mountinfo", "/proc/self/mounts"):
            lines = self.kernel.texts[path].splitlines(keepends=True)
            self.kernel.texts[path] = "".join(line for line in lines if f" {argv[1]} " not in line)

    def _ln(self, argv: tuple[str, ...]) -> None:
        self.kernel.texts[argv[3]] = argv[2]
