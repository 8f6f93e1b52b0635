"""Who holds a block device open: other devices by sysfs, processes by their open files."""

from __future__ import annotations

import os
from pathlib import Path

from node_agent.host import LoopInfo

_PARTITIONS = Path("/proc/partitions")
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

    Those with a size are all that count, and /proc/partitions lists them without those that are free: this is
    asked a dozen times while a fault is planted, and a node may have had many.
    """
    found = []
    lines = (line.split() for line in _PARTITIONS.read_text().splitlines())
    for name in sorted(words[3] for words in lines if len(words) == 4 and words[3].startswith("loop")):
        backing = read_line(_SYS_BLOCK / name / "loop" / "backing_file")
        if backing:  # a partition of a loop device has none
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
