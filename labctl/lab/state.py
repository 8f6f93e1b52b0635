"""What a QEMU lab remembers between commands, and where its files are."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from labctl.errors import LabError
from labctl.lab.accelerator import Accelerator
from labctl.lab.files import write_atomic
from labctl.lab.model import Labels, LabOptions


class Ports(BaseModel):
    """The ports of 127.0.0.1 that lead to a node."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ssh: int
    agent: int
    web: int = 0
    """To the service that clients use; 0 where the node has none."""

    @property
    def used(self) -> tuple[int, ...]:
        """All of them that lead somewhere."""
        return tuple(port for port in (self.ssh, self.agent, self.web) if port)

    @classmethod
    def of(cls, numbers: Sequence[int]) -> Ports:
        """Two or three free ports, in the order of :attr:`used`."""
        return cls(ssh=numbers[0], agent=numbers[1], web=numbers[2] if len(numbers) > 2 else 0)


class Record(BaseModel):
    """The content of lab.json."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    provider: Literal["qemu"] = "qemu"
    name: str
    run_dir: Path
    options: LabOptions
    image: str
    qemu: str
    accelerator: Accelerator
    ports: tuple[Ports, ...]
    shape: int = 1
    """Of the machines when they were made: :data:`labctl.lab.machine.SHAPE`."""
    labels: Mapping[str, Labels] = Field(default_factory=dict)
    """What an operator says of each node."""

    workload_key: str = ""
    """The content hash of the workload that is deployed; "" for none."""

    golden: bool = False
    """Whether all nodes have the golden snapshot. False while the first boot is under way."""


def read_record(path: Path) -> Record | None:
    """What is recorded; None where nothing is. LabError where it cannot be understood."""
    try:
        return Record.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise LabError(
            f"{path} is not what this version of labctl writes ({error.errors()[0]['msg']})",
            f"end the lab's processes by hand and delete {path.parent}",
        ) from None


def write_record(path: Path, record: Record) -> None:
    """Record the lab's state, all or nothing."""
    # What nobody uses is nothing an older labctl has to know.
    unset: dict[str, Any] = {} if record.labels else {"labels": True}
    if not record.options.workload:
        unset |= {"workload_key": True, "options": {"workload"}, "ports": {"__all__": {"web"}}}
    write_atomic(path, record.model_dump_json(indent=1, exclude=unset).encode())


def run_dir(lab_dir: Path, name: str) -> Path:
    """A short directory for the lab's sockets: a path to a socket may have 107 bytes (unix(7))."""
    chosen = os.environ.get("XDG_RUNTIME_DIR", "")
    base = Path(chosen) / "groundfault" if chosen.startswith("/") else Path(f"/tmp/groundfault-{os.getuid()}")  # noqa: S108 - checked by private_dir
    key = hashlib.sha256(str(lab_dir).encode()).hexdigest()[:8]
    return base / f"{name}-{key}"


def private_dir(path: Path) -> None:
    """Make a directory, and its parent, that only we can enter. LabError where someone else made it before us."""
    for each in (path.parent, path):
        each.mkdir(mode=0o700, exist_ok=True, parents=each == path.parent)
        found = each.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise LabError(
                f"{each} is not a directory of our own that nobody else can enter", f"look at it: ls -ld {each}"
            )
