"""Runs on a guest: rules for control groups inside control groups, by an engine of its own.

Prints, as JSON, how many of ten reads failed in each case, and how many control groups a rule has.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, "/opt/groundfault/lib")

from ebpf.loader.engine import Engine
from node_agent.rules import Hook, Rule, Scope

SLICE = Path("/sys/fs/cgroup/nested.slice")
UNIT = "a.service"
READS = 10
FILE = Path("/run/nested")


class Reader:
    """A process in a control group that has a file open. It reads when asked, so that its own start is spared."""

    def __init__(self, group: str) -> None:
        told, self._tell = os.pipe()
        self._answer, answer = os.pipe()
        ready, readied = os.pipe()
        if (pid := os.fork()) == 0:
            with (SLICE / group / "cgroup.procs").open("w") as procs:
                procs.write(str(os.getpid()))
            fd = os.open(FILE, os.O_RDONLY)
            os.write(readied, b"x")
            os.set_blocking(told, False)
            while not _come(told):
                time.sleep(0.01)
            failed = sum(_fails(fd) for _ in range(READS))
            os.write(answer, str(failed).encode())
            os._exit(0)
        os.read(ready, 1)
        self._pid = pid

    def failed(self) -> int:
        os.write(self._tell, b"x")
        os.waitpid(self._pid, 0)
        return int(os.read(self._answer, 16))


def _come(fd: int) -> bool:
    """Whether there is something to read, asked by a call that no rule here is about."""
    there = ctypes.c_int(0)
    ctypes.CDLL(None).ioctl(fd, 0x541B, ctypes.byref(there))  # FIONREAD
    return there.value > 0


def _fails(fd: int) -> int:
    try:
        os.pread(fd, 1, 0)
    except OSError:
        return 1
    return 0


def rule(scope: str, group: str, operation: int = 1) -> Rule:
    found = Scope.model_validate({"kind": scope, "name": group, "cgroup": f"/{SLICE.name}/{group}".rstrip("/")})
    return Rule(
        operations=(operation,), hooks=(Hook(name="file_permission", flavour="lsm"),), scope=found, errno=5
    )


def members(engine: Engine, tag: str) -> int:
    state = engine.state(tag)
    return state.members if state else -1


def make(group: str) -> None:
    (SLICE / group).mkdir(parents=True, exist_ok=True)


def main() -> dict[str, Any]:
    FILE.write_text("x")
    said: dict[str, Any] = {}
    engine = Engine()
    for group in (f"{UNIT}/sub/deep", "b.service"):
        make(group)
    there = {group: Reader(group) for group in (UNIT, f"{UNIT}/sub", f"{UNIT}/sub/deep", "b.service")}
    engine.add("unit", rule("unit", UNIT))
    said["was there before the rule"] = {group: reader.failed() for group, reader in there.items()}
    said["cgroups"] = members(engine, "unit")

    make(f"{UNIT}/late/later")
    engine.hold("unit", 0)
    late = Reader(f"{UNIT}/late/later")
    engine.hold("unit", time.clock_gettime(time.CLOCK_BOOTTIME) + 600)
    said["made below it"] = late.failed()

    for group in ("late/later", "late", "sub/deep", "sub", ""):
        (SLICE / UNIT / group).rmdir()
    said["cgroups when it is gone"] = members(engine, "unit")
    engine.hold("unit", 0)
    make(UNIT)
    again = Reader(UNIT)
    engine.hold("unit", time.clock_gettime(time.CLOCK_BOOTTIME) + 600)
    said["made again"] = again.failed()

    engine.add("slice", rule("cgroup", "", operation=2))
    engine.add("awaited", rule("unit", "c.service"))
    for tag in ("slice", "awaited"):
        engine.hold(tag, 0)
    make("c.service")
    awaited = Reader("c.service")
    engine.hold("awaited", time.clock_gettime(time.CLOCK_BOOTTIME) + 600)
    said["awaited in a scope"] = awaited.failed()
    said["cgroups of the scope"] = members(engine, "slice")

    last = Reader(UNIT)
    for tag in ("unit", "slice", "awaited"):
        engine.remove(tag)
    said["after the rules"] = last.failed()
    assert engine._table is not None
    said["left in the map"] = len(list(engine._table.maps["cgroups"].keys(ctypes.c_uint64)))
    engine.close()
    for group in (UNIT, "b.service", "c.service", ""):
        (SLICE / group).rmdir()
    return said


if __name__ == "__main__":
    print(json.dumps(main()))
