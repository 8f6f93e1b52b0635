"""file_error: reads, writes and other uses of files below a path or on a device answer an errno."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from ebpf.paths import kernel_device, path_match
from ebpf.placing import RuleFault, place
from node_agent.errnos import ErrnoName
from node_agent.errors import Refusal
from node_agent.fault import Facts, Fault, Target
from node_agent.host import Reader
from node_agent.rules import Match

_FLAGS = {"O_WRONLY": 0o1, "O_RDWR": 0o2, "O_DIRECT": 0o40000, "O_SYNC": 0o4000000, "O_APPEND": 0o2000,
          "O_DSYNC": 0o10000, "O_CREAT": 0o100}  # fmt: skip
"""include/uapi/asm-generic/fcntl.h, as x86-64 has them."""


class FileError(RuleFault, Fault):
    """Operations on files answer an errno; sockets, pipes and directories never match.

    A path without wildcards that is a file means that file under all its names (hard links); one that is a
    directory means everything below it, mounts included. Files that were opened before the fault are covered: the
    name they were opened by is looked at when they are used.
    """

    name: ClassVar[str] = "file_error"
    summary: ClassVar[str] = "reads, writes or opens of chosen files answer an errno, for one unit or process"
    operator_sees: ClassVar[str] = (
        "the program reports the errno for these files while other programs use them well; no line in the kernel "
        "log, no error counted by the disk"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {"unit": "cron", "path": "/srv/data", "operation": "read", "errno": "EIO", "schedule": "ratio:1/3"},
        {"cgroup": "/work", "path": "/srv/data/*.wal", "operation": "write", "errno": "ENOSPC"},
    )

    operation: Literal[
        "read", "write", "open", "create", "unlink", "rename", "stat", "fsync", "mmap", "lock", "ioctl", "exec"
    ] = Field(default="read", description="what fails")  # fmt: skip
    errno: ErrnoName = Field(default="EIO", description="what it answers")
    path: str = Field(default="", description="only files of this path, or below it; * ? ** are wildcards")
    device: str = Field(default="", description="only files on this mounted device, or the device itself: /dev/…")
    kind: Literal["regular", "block", "any"] = Field(
        default="any", description="regular files, block devices, both"
    )
    open_flags: tuple[
        Literal["O_WRONLY", "O_RDWR", "O_DIRECT", "O_SYNC", "O_APPEND", "O_DSYNC", "O_CREAT"], ...
    ] = Field(default=(), description="only files opened with one of these flags")

    def locate(self, reader: Reader, facts: Facts) -> Target:
        match = path_match(reader, facts, self.path) if self.path else Match()
        where = f" below {self.path}" if self.path else ""
        named = self.operation in ("create", "unlink", "rename", "stat")
        kinds = ("regular", "block") if self.kind == "any" else (self.kind,)
        match = match.model_copy(
            update={
                "kinds": () if named and self.kind == "any" else kinds,
                "device": self._device(reader) if self.device else None,
                "open_flags": sum(_FLAGS[flag] for flag in self.open_flags),
            }
        )
        return place(
            reader, facts, operations=(self.operation,), fault=self, seed=self.seed, match=match,
            what=f"{self.operation} of files{where} answers {self.errno}", errno=self.errno,
        )  # fmt: skip

    def _device(self, reader: Reader) -> int:
        path = reader.realpath(self.device)
        name = path.removeprefix("/dev/")
        try:
            return kernel_device(reader.read_text(f"/sys/class/block/{name}/dev").strip())
        except OSError:
            raise Refusal(
                f"device: {self.device} is no block device", field="device", allowed="a device below /dev"
            ) from None
