"""Whether this machine can run labs of virtual machines: what is there, what is missing, what would help."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from labctl import paths
from labctl.errors import LabError
from labctl.lab import memory, tools
from labctl.lab.model import LabOptions
from labctl.progress import Progress

NEEDED_DISK_MIB = 6 * 1024
"""A root tar, a bundle, an image and three nodes with their snapshots."""

PROGRAMS = ("qemu-system-x86_64", "qemu-img", "mmdebstrap", "mke2fs", "vde_switch", "ssh")
ROOTLESS_PROGRAMS = ("unshare", "newuidmap")


class Check(BaseModel):
    """One thing that was looked at. `info` neither helps nor hinders."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    verdict: Literal["ok", "missing", "info"]
    detail: str
    remedy: str = ""


def check_machine(progress: Progress) -> tuple[Check, ...]:
    """Look at everything. Changes nothing; where an image is there already, KVM may be tried once."""
    return (
        Check(name="python", verdict="ok", detail=platform.python_version()),
        *_programs(),
        _memory(available_mib(Path("/proc/meminfo").read_text())),
        *(_disk(what, path) for what, path in (("cache", paths.cache_dir()), ("labs", paths.state_dir()))),
        _accelerator(progress),
    )


def _programs() -> Iterator[Check]:
    wanted = PROGRAMS if os.geteuid() == 0 else PROGRAMS + ROOTLESS_PROGRAMS
    for program in wanted:
        try:
            tools.need(program)
        except LabError as error:
            yield Check(name=program, verdict="missing", detail="not installed", remedy=error.hint)
        else:
            yield Check(name=program, verdict="ok", detail=tools.find(program) or "")


def available_mib(meminfo: str) -> int:
    """MemAvailable of /proc/meminfo (proc_meminfo(5)) in MiB; 0 where it is not told."""
    for line in meminfo.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) // 1024
    return 0


def _memory(available: int) -> Check:
    try:
        memory.check(LabOptions(), available)
    except LabError as error:
        return Check(name="memory", verdict="missing", detail=error.message, remedy=error.hint)
    return Check(name="memory", verdict="ok", detail=f"{available} MiB available, enough for three nodes")


def _disk(what: str, path: Path) -> Check:
    there = next(p for p in (path, *path.parents) if p.exists())
    free = shutil.disk_usage(there).free >> 20
    if free < NEEDED_DISK_MIB:
        variable = "XDG_CACHE_HOME" if what == "cache" else "XDG_STATE_HOME"
        detail = f"{free} MiB free at {path}, a first lab needs {NEEDED_DISK_MIB}"
        return Check(
            name=f"disk ({what})", verdict="missing", detail=detail, remedy=f"free some, or set {variable}"
        )
    return Check(name=f"disk ({what})", verdict="ok", detail=f"{free} MiB free at {path}")


def _accelerator(progress: Progress) -> Check:
    from labctl.lab.accelerator import accelerator_here

    if tools.find("qemu-system-x86_64") is None:
        return Check(name="accelerator", verdict="info", detail="not known without QEMU")
    found = accelerator_here(progress)
    if found is None:
        detail = "not known before there is an image to try KVM with"
        return Check(name="accelerator", verdict="info", detail=detail, remedy="labctl image, or labctl up")
    slow = "" if found.name == "kvm" else "; nodes are emulated, which works and is slower"
    return Check(name="accelerator", verdict="ok", detail=f"{found.name}: {found.reason}{slow}")
