"""What is asked for, and what is recorded of a disk that was prepared."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from node_agent.errors import Refusal
from node_agent.fault import TAG_PREFIX

NAME = r"^[a-z][a-z0-9_-]{0,30}$"
MIN_MIB = {"": 16, "ext4": 16, "xfs": 300}
"""Smallest disk by the file system it is to get: mkfs.xfs makes none below 300 MiB (xfsprogs 5.19)."""

SYSTEM = frozenset(
    ("/", *(f"/{top}" for top in (
        "bin", "boot", "dev", "etc", "home", "lib", "lib64", "media", "mnt", "opt", "proc", "root", "run", "sbin",
        "srv", "sys", "tmp", "usr", "var",
    )))
)  # fmt: skip
"""Folders that no disk is mounted over."""

_SYSTEM_BELOW = ("/boot/", "/dev/", "/proc/", "/run/", "/sys/", "/usr/", "/var/")
_MAX_PATH = 200


class Request(BaseModel):
    """What is asked for. With neither `device` nor `size_mib` nor `undo`: only what there is."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = "data"
    device: str = ""
    size_mib: int = Field(default=0, ge=0)
    file: str = ""
    mount: str = ""
    format: str = ""
    erase: bool = False
    undo: bool = False

    @property
    def only_looks(self) -> bool:
        return not (self.device or self.size_mib or self.undo)

    def checked(self) -> Request:
        """The same with defaults filled in. Raises :class:`Refusal` naming the field."""
        if not re.match(NAME, self.name) or self.name.startswith(TAG_PREFIX):
            raise _refused("name", self.name, f"pattern {NAME}, not {TAG_PREFIX}…")
        if self.undo:
            if self.device or self.size_mib or self.file or self.mount or self.format or self.erase:
                raise Refusal("undo: goes with nothing but a name", field="undo", allowed="--undo, --name")
            return self
        if self.device and self.size_mib:
            raise Refusal("size_mib: a device has its size", field="size_mib", allowed="a device, or a size")
        if self.format not in MIN_MIB:
            raise _refused("format", self.format, "ext4, xfs")
        if self.erase and not self.format:
            raise Refusal("erase: nothing would be written", field="erase", allowed="together with a format")
        if self.device:
            if self.file:
                raise Refusal("file: goes with a size", field="file", allowed="a device, or a size with a file")
            if not self.device.startswith("/dev/"):
                raise _refused("device", self.device, "a path below /dev")
            made = self
        else:
            made = self._file_defaults()
        if made.mount:
            _check_path("mount", made.mount)
            if made.mount in SYSTEM or made.mount.startswith(_SYSTEM_BELOW):
                raise _refused(
                    "mount", made.mount, "a place for data, such as /srv/data: faults leave the system's alone"
                )
        return made

    def _file_defaults(self) -> Request:
        kind = self.format or "ext4"
        if self.size_mib < MIN_MIB[kind]:
            raise Refusal(
                f"size_mib: {self.size_mib} MiB is too small for {kind}", field="size_mib",
                allowed=f"{MIN_MIB[kind]} MiB or more",
            )  # fmt: skip
        file = self.file or f"/var/lib/groundfault/{self.name}.img"
        _check_path("file", file)
        if file.startswith(("/dev/", "/proc/", "/sys/", "/run/")):
            raise _refused("file", file, "a file on a disk")
        return self.model_copy(update={"file": file, "format": kind, "mount": self.mount or f"/srv/{self.name}"})


class Prepared(BaseModel):
    """A disk as it is recorded. `source`: a name that outlives a reboot, or the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    source: str
    kind: Literal["device", "file"]
    sectors: int
    filesystem: str = ""
    mount: str = ""
    made_mount: bool = False
    """Whether the folder it is mounted on was made for it, and goes with it."""
    format: bool = False
    """Whether a file system was, or is being, made on it."""
    state: Literal["preparing", "ready", "undoing"] = "preparing"


def _refused(field: str, value: str, allowed: str) -> Refusal:
    return Refusal(f"{field}: {value!r}", field=field, allowed=allowed)


def _check_path(field: str, path: str) -> None:
    """Absolute, in its shortest form, and of characters that mount tables and units take as they are."""
    plain = re.fullmatch(r"(/[A-Za-z0-9._+@-]+)+", path) is not None and len(path) <= _MAX_PATH
    if not plain or str(PurePosixPath(path)) != path or "/../" in f"{path}/":
        raise _refused(field, path, "an absolute path of letters, digits and ._+@-")
