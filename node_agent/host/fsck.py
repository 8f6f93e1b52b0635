"""What the checkers of file systems do, and what their words mean for the data.

Source: e2fsck(8) with its problem texts (e2fsprogs, e2fsck/problem.c), xfs_repair(8) with its messages.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from node_agent.host.tool import Ended, run_tool

CHECK_S, MOUNT_S, UMOUNT_S = 900.0, 60.0, 10.0
_SHOWN = 20

_E2FSCK_UNREPAIRED = 4 | 8 | 16 | 32 | 128
_XFS_LOG_IS_DIRTY = 2

_ANSWER = re.compile(r"^(?P<text>.*?)\s*(?P<question>[A-Z][^.?]*)\? yes\s*$")
_COSTS_DATA = re.compile(
    r"^(clear( inode)?|truncate|delete file|salvage|connect to /lost\+found|force rewrite|recreate|"
    r"clone multiply-claimed blocks|clear the deleted entry)$",
    re.IGNORECASE,
)
_COSTS_NONE = re.compile(
    r"^(orphan file|.*orphan(ed)? inode|journal superblock|.*HTREE|.*resize inode)", re.IGNORECASE
)
_E2FSCK_SAYS_LOST = re.compile(r"journal transaction \d+ was corrupt, replay was aborted|JOURNAL CHECKSUM", re.I)
_XFS_SAYS_LOST = re.compile(
    r"moving to lost\+found|clear(ed|ing) inode|junking|destroyed because|will be destroyed|cleared root|"
    r"bad (data|attr) fork",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Findings:
    """What a checker did, in lines for people, and which data are gone."""

    done: tuple[str, ...]
    lost: tuple[str, ...]


def shortened(lines: Iterable[str]) -> tuple[str, ...]:
    """Each line once, and of a long list the first ones and how many there are more."""
    kept = tuple(dict.fromkeys(lines))
    return kept if len(kept) <= _SHOWN else (*kept[:_SHOWN], f"and {len(kept) - _SHOWN} more")


def read_e2fsck(text: str) -> Findings:
    """What the output of `e2fsck -f -y` tells. A question stands on the line of its problem or on the next one."""
    done: list[str] = []
    lost: list[str] = []
    previous = ""
    for line in (one.strip() for one in text.splitlines()):
        if _E2FSCK_SAYS_LOST.search(line):
            lost.append(line)
        answer = _ANSWER.match(line)
        if answer:
            problem = answer["text"].strip() or previous
            said = f"{problem} {answer['question']}: yes"
            done.append(said)
            if _COSTS_DATA.match(answer["question"].strip()) and not _COSTS_NONE.match(problem):
                lost.append(said)
            previous = ""
        elif line.endswith("recovering journal"):
            done.append("journal replayed")
        else:
            previous = line or previous
    return Findings(shortened(done), shortened(lost))


def read_xfs_repair(text: str) -> Findings:
    """What the output of `xfs_repair` tells: its phases say nothing, its lines about inodes and entries do."""
    lost = [line.strip() for line in text.splitlines() if _XFS_SAYS_LOST.search(line)]
    return Findings((), shortened(lost))


def check(device: str, fstype: str, scratch: Path) -> Findings:
    """Bring an unmounted file system in order. `scratch` is a directory to mount it on for a moment.

    Raises OSError where its checker cannot, CommandError where it does not end.
    """
    if fstype == "xfs":
        return _check_xfs(device, scratch)
    ended = run_tool(("e2fsck", "-f", "-y", device), CHECK_S)
    if ended.status is None or ended.status & _E2FSCK_UNREPAIRED:
        raise _unrepaired(ended)
    found = read_e2fsck(ended.text)
    return Findings((f"e2fsck of {device} ended with {ended.status}", *found.done), found.lost)


def _check_xfs(device: str, scratch: Path) -> Findings:
    """The kernel replays the log when it mounts; xfs_repair never does. Without its log changes are lost."""
    done: list[str] = []
    lost: list[str] = []
    scratch.mkdir(parents=True, exist_ok=True)
    mounted = run_tool(("mount", "-t", "xfs", device, str(scratch)), MOUNT_S)
    if mounted.status == 0:
        run_tool(("umount", str(scratch)), UMOUNT_S).checked()
        done.append(f"log of {device} replayed")
    scratch.rmdir()
    ended = run_tool(("xfs_repair", device), CHECK_S)
    if ended.status == _XFS_LOG_IS_DIRTY and mounted.status is not None:
        lost.append(f"changes in the log of {device}, which could not be replayed: {_last(mounted.text)}")
        ended = run_tool(("xfs_repair", "-L", device), CHECK_S)
    if ended.status != 0:
        raise _unrepaired(ended)
    found = read_xfs_repair(ended.text)
    return Findings((*done, f"{' '.join(ended.argv)} ended with 0"), (*lost, *found.lost))


def _last(text: str) -> str:
    return text.splitlines()[-1] if text else "no message"


def _unrepaired(ended: Ended) -> OSError:
    how = "did not end in time" if ended.status is None else f"ended with {ended.status}"
    return OSError(errno.EIO, f"{' '.join(ended.argv)} {how}: {_last(ended.text)}")
