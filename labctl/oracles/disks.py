"""Whether a disk is well: every file of it can be read, it takes writes, and nothing it or the kernel says is bad.

A mount table that says `rw` says nothing (a journal that was aborted leaves it so), and a file in the page cache
reads well from a disk that is gone: so every byte is read past the cache, and something is really written.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from labctl.errors import LabError
from labctl.oracles.nodes import python, run, sections
from labctl.run.oracle import Lookout, Oracle, Seen, Window
from labctl.run.verdict import Aspect, Finding, Outcome

_KERNEL = re.compile(
    r"I/O error|critical (medium|target|space allocation) error|Medium Error|lost async page write|rejecting I/O"
    r"|EXT4-fs error|EXT4-fs \(.*\): (error|Remounting|shut down|failed)|JBD2: (Error|Detected)"
    r"|[Aa]bort(ing|ed) journal|blocked for more than|DID_(BAD_TARGET|NO_CONNECT|TIME_OUT)"
)
_ASK = r"""
echo "## smart"
for disk in $(lsblk -snro NAME,TYPE "$source" | awk '$2 == "disk" { print $1 }' | sort -u); do
  said=$(timeout 10 smartctl -H "/dev/$disk" | grep -iE 'overall-health|SMART Health Status') || continue
  echo "$disk: $said"
done
echo "## superblock"
timeout 10 dumpe2fs -h "$source" 2>/dev/null | grep -E '^(Filesystem state|FS Error count):' || :
echo "## kernel"
cut -d' ' -f1 /proc/uptime
echo "## lines"
journalctl -k -b -o short-monotonic --no-pager -q -n 2000
"""


class Disks(Oracle):
    """The file system at `path` of `node`, and the disk it is on.

    All files below it are read past the page cache, within `within_s` seconds or nothing is known; a file without
    a name is written there and synced. The file system must be mounted as it was, its superblock clean and without
    errors, SMART well, and the kernel must not have complained of a disk or file system in the window.
    `as_aspect`: "cause" where that is what a problem plants.
    """

    node: str
    path: str = "/srv/data"
    within_s: float = 60.0
    as_aspect: Aspect = "integrity"

    @property
    def name(self) -> str:
        return f"disks_{self.node}{self.path.replace('/', '_') if self.path != '/srv/data' else ''}"

    @property
    def aspect(self) -> Aspect:
        return self.as_aspect

    def look(self, lab: Lookout) -> Seen:
        arguments = {"path": self.path, "within_s": self.within_s}
        seen = python(lab, self.node, "disks", arguments, timeout_s=self.within_s + 60.0)
        told = run(lab, self.node, f"source={shlex.quote(seen['source'])}\n{_ASK}", timeout_s=90.0)
        parts = sections(told)
        if not parts.get("kernel"):
            raise LabError(f"{self.node}: its kernel log could not be read")
        return {
            **seen,
            "smart": parts.get("smart", ()),
            "superblock": parts.get("superblock", ()),
            "complaints": tuple(complaints(parts.get("lines", ()), float(parts["kernel"][0]))),
        }

    def judge(self, before: Seen, after: Seen, window: Window) -> Finding:
        bad, unsure = [], []
        if (before["source"], before["type"]) != (after["source"], after["type"]):
            bad.append(
                f"{self.path} is {after['source']} {after['type']}, was {before['source']} {before['type']}"
            )
        if "ro" in after["options"] or "emergency_ro" in after["options"]:
            bad.append(f"{self.path} is mounted read-only")
        if after["write"] is None:
            bad.append(f"a write to {self.path} hangs")
        elif after["write"]:
            bad.append(f"a write to {self.path}: {after['write']}")
        read = after["read"]
        if read is None:
            bad.append(f"reading the files of {self.path} hangs")
        else:
            bad += [f"reading {file}: {error}" for file, error in read["errors"]]
            if read["unread"]:
                unsure.append(f"{read['unread']} files were not read within {self.within_s:g} s")
        bad += self._said(before, after)
        since = window.looked - window.begin_s
        fresh = [text for age, text in after["complaints"] if age <= since]
        if fresh:
            bad.append(f"{len(fresh)} complaints of the kernel in the window, such as: {fresh[-1]}")
        outcome = Outcome.FAIL if bad else Outcome.UNKNOWN if unsure else Outcome.PASS
        measures = {"files": read["files"], "bytes": read["bytes"]} if read else {}
        return self.found(outcome, *bad, *unsure, complaints=len(fresh), **measures)

    @staticmethod
    def _said(before: Seen, after: Seen) -> Iterator[str]:
        """What the superblock, the file system's counters and SMART say."""
        for line in after["superblock"]:
            key, _, value = line.partition(":")
            if (key, value.strip()) not in (("Filesystem state", "clean"), ("FS Error count", "0")):
                yield f"superblock: {key} is {value.strip()}"
        if before["superblock"] and not after["superblock"]:
            yield "its superblock cannot be read"
        if after["errors_count"] not in ("", "0"):
            yield f"the file system has counted {after['errors_count']} errors"
        for line in after["smart"]:
            if not re.search(r"(PASSED|OK)\s*$", line):
                yield f"SMART: {line}"
        if len(after["smart"]) < len(before["smart"]):
            yield "a disk that had SMART health says nothing of it"


def complaints(lines: tuple[str, ...], uptime_s: float) -> Iterator[tuple[float, str]]:
    """Lines of `journalctl -k -o short-monotonic` that tell of a bad disk, and how many seconds ago."""
    for line in lines:
        said = re.match(r"\[\s*([0-9.]+)\] \S+ kernel: (.*)", line)
        if said and _KERNEL.search(said[2]):
            yield round(uptime_s - float(said[1]), 3), said[2]
