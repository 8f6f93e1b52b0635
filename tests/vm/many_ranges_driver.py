"""Runs on a node as root: makes many ranges of a disk bad for good, until told to end.

Arguments: the disk's device-mapper name, how many ranges, the sector of the first, sectors from one to the next.
Prints seconds and memory as JSON once they are bad; after a line on standard input takes all back, prints again.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, "/opt/groundfault/lib")

from disk_faults.bad_sectors import BadSectors, steps_for
from disk_faults.places import Piece
from node_agent.host.real import RealHost

TAG = "groundfault-many"


def available_kib() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))


def main() -> None:
    disk, count, first, step = sys.argv[1], *(int(word) for word in sys.argv[2:])
    host = RealHost()
    (line,), info = host.dm.table(disk), host.dm.info(disk)
    assert info is not None
    base, at = line.args.split()
    pieces = tuple(
        Piece(start=first + n * step, length=8, base=base, base_start=int(at) + first + n * step)
        for n in range(count)
    )
    place = BadSectors(
        disk=disk, number=info.number, size=line.length, fstype="", mounted_at="", pieces=pieces,
        backend="flakey", on_s=0, off_s=0,
    )  # fmt: skip
    before, began = available_kib(), time.monotonic()
    steps = steps_for(place, TAG)
    took = {"plan": time.monotonic() - began}
    undone = []
    for one in steps:
        start = time.monotonic()
        undone.append((one, one.capture(host)))
        one.apply(host)
        kind = type(one).model_fields["kind"].default
        took[kind] = took.get(kind, 0) + time.monotonic() - start
    lines = len(host.dm.table(disk))
    print(json.dumps({
        "took_s": took, "lines": lines, "kernel_mib": (before - available_kib()) / 1024,
        "agent_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }), flush=True)  # fmt: skip
    sys.stdin.readline()
    began = time.monotonic()
    for one, undo in reversed(undone):
        one.revert(host, undo)
    reverted = time.monotonic() - began
    left = [text for one, undo in undone for text in one.leftovers(host, undo)]
    print(json.dumps({"took_s": reverted, "left": left}), flush=True)


main()
