"""fds_exhausted_system: the whole system has as many open files as it may have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from node_agent.errors import Refusal
from node_agent.fault import Evidence, Facts, Fault, PlanNotes, Target
from node_agent.host import Reader
from node_agent.signs import Sign, in_log
from node_agent.steps import Step
from node_agent.steps.file_value import FileValue

from .groups import answers_of, end_of_helper, helpers_root, number, stressor

MOST, STATE = "/proc/sys/fs/file-max", "/proc/sys/fs/file-nr"
_NOBODY = 65534


class OpenFiles(Target):
    """How many the system may have, and had before."""

    value: int
    before: int
    used: int
    root: str

    def describe(self) -> str:
        return f"open files of the whole system: {self.value}, {self.used} are open"


class FdsExhaustedSystem(Fault):
    """open, socket, pipe, accept and all else that makes an open file answer ENFILE, for everybody but root.

    fs.file-max is set to what is open now and `leak` more, and a process of this injection, of user nobody, opens
    files until the kernel refuses it, and takes what others close. Processes with CAP_SYS_ADMIN are never refused.
    """

    name: ClassVar[str] = "fds_exhausted_system"
    summary: ClassVar[str] = "the system has no more open files for anybody but root"
    operator_sees: ClassVar[str] = (
        "'Too many open files in system' (ENFILE) from services that do not run as root, while all goes well for "
        "root; 'VFS: file-max limit … reached' in the kernel log, the first number of /proc/sys/fs/file-nr at the "
        "third; the limits of each process are far away"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({}, {"leak": 4000})

    leak: int = Field(default=1024, ge=256, le=1 << 18, description="open files that this injection holds, about")

    def locate(self, reader: Reader, facts: Facts) -> OpenFiles:
        used, before = files_of(reader), number(reader, MOST)
        value = used + self.leak
        if value > before:
            raise Refusal(
                f"leak: the system has {used} of {before} files open already", field="leak",
                allowed=f"at most {max(0, before - used)}",
            )  # fmt: skip
        return OpenFiles(value=value, before=before, used=used, root=helpers_root(facts))

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        assert isinstance(target, OpenFiles)
        payload = {"mode": "files", "uid": _NOBODY, "gid": _NOBODY}
        return (
            FileValue(path=MOST, value=str(target.value), default=str(target.before)),
            stressor(tag, "limits", f"open about {self.leak} files", payload),
        )

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        return PlanNotes(
            backend="fs.file-max, real open files",
            covers=("every call that makes an open file, of processes without CAP_SYS_ADMIN",),
            not_covered=("root, and whatever else has CAP_SYS_ADMIN", "duplicates of a descriptor: no new file"),
            warnings=("the system's own services that are not root are refused as well",),
        )

    def signs(self, target: Target | None) -> tuple[Sign, ...]:
        when = "when more files are open than ever were when the kernel last said so"
        return (in_log("the kernel's line", "VFS: file-max limit", when),)

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        assert isinstance(target, OpenFiles)
        most, ended = number(reader, MOST), end_of_helper(reader, target.root, tag)
        notes = [ended] if ended else []
        notes += [] if most == target.value else [f"somebody has changed {MOST}"]
        held = answers_of(reader, tag)
        counters = {"open_files": files_of(reader), "file_max": most, "held": held.get("held", 0)}
        return Evidence(armed=not notes, hits=0, counters=counters, notes=tuple(notes))


def files_of(reader: Reader) -> int:
    """How many are open: the first number of /proc/sys/fs/file-nr (proc_sys_fs(5))."""
    return int(reader.read_text(STATE).split()[0])
