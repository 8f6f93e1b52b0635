"""Who holds a block device open: other devices by sysfs, processes by their open files."""

from __future__ import annotations

import os
from pathlib import Path

from node_agent.host import LoopInfo

_SYS_BLOCK = Path("/sys/block")
_SYS_DEV = Path("/sys/dev/block")


def read_line(path: Path) -> str:
    """The text of a sysfs attribute; empty where it has gone meanwhile."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def bound_loops() -> list[LoopInfo]:
    """Loop devices that have a backing file (Documentation/ABI/testing/sysfs-block-loop).

    Asked often while a fault is planted, and there may be many that are free: so a line read, not a tree walked.
    """
    found = []
    for name in sorted(entry.name for entry in os.scandir(_SYS_BLOCK) if entry.name.startswith("loop")):
        backing = read_line(_SYS_BLOCK / name / "loop" / "backing_file")
        if backing:
            found.append(LoopInfo(f"/dev/{name}", read_line(_SYS_BLOCK / name / "dev"), backing))
    return found


def holders(number: str) -> tuple[str, ...]:
    """One text for each holder of block device "major:minor"; empty when nobody is seen holding it."""
    folder = _SYS_DEV / number / "holders"
    names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    found = [f"device {read_line(_SYS_BLOCK / name / 'dm' / 'name') or name}" for name in names]
    major, _, minor = number.partition(":")
    found += [f"{loop.path}" for loop in bound_loops() if loop.backing == f"/dev/dm-{minor}"]
    return (*found, *_processes(os.makedev(int(major), int(minor))))


def _processes(device: int) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        if _has_open(process / "fd", device):
            found.append(f"process {process.name} ({read_line(process / 'comm')})")
    return found


def _has_open(folder: Path, device: int) -> bool:
    try:
        entries = list(folder.iterdir())
    except OSError:
        return False
    for entry in entries:
        try:
            if entry.stat().st_rdev == device:
                return True
        except OSError:
            continue
    return False
