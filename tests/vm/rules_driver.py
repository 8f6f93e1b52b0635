"""Runs on a guest: puts rules in and out of an engine of its own, and prints what is left of it, as JSON.

rules_driver.py leak CYCLES HOOKS: that many additions and removals while another rule keeps the hook attached,
then HOOKS with attaching and detaching. rules_driver.py many COUNT: that many rules at once, and what one costs.
"""

from __future__ import annotations

import gc
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, "/opt/groundfault/lib")

from ebpf.loader.engine import Engine
from node_agent.rules import Hook, Rule, Scope

HOOK = Hook(name="file_permission", flavour="lsm")


def rule(number: int) -> Rule:
    """A rule for a control group of its own, which need not exist."""
    scope = Scope(kind="unit", name=f"unit {number}", cgroup=f"/system.slice/nobody-{number}.service")
    return Rule(operations=(1,), hooks=(HOOK,), scope=scope, errno=5)


def things() -> dict[str, Any]:
    """What may leak: objects in the kernel (by an independent tool), descriptors and memory of this process."""
    gc.collect()
    count = {kind: len(_bpftool(kind, "list")) for kind in ("prog", "map", "link")}
    entries = {name: len(_bpftool("map", "dump", "name", name)) for name in ("bindings", "awaited", "cgroups")}
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    open_files = len(list(Path("/proc/self/fd").iterdir()))
    return {**count, "fds": open_files, "kib": pages * resource.getpagesize() // 1024, "entries": entries}


def _bpftool(*words: str) -> list[Any]:
    done = subprocess.run(("/usr/sbin/bpftool", "-j", *words), capture_output=True, check=False, text=True)
    found: list[Any] = json.loads(done.stdout or "[]")
    return found


def leak(cycles: int, hooks: int) -> dict[str, Any]:
    engine = Engine()
    engine.add("groundfault-keeper", rule(0))
    for number in range(50):
        engine.add("groundfault-warm", rule(number % 7))
        engine.remove("groundfault-warm")
    before = things()
    began = time.monotonic()
    for number in range(cycles):
        engine.add("groundfault-turn", rule(number % 100))
        engine.remove("groundfault-turn")
    each_ms = (time.monotonic() - began) / cycles * 1000
    after = things()
    engine.remove("groundfault-keeper")
    for number in range(hooks):
        engine.add("groundfault-turn", rule(number))
        engine.remove("groundfault-turn")
    links = things()["link"]
    return {"before": before, "after": after, "each_ms": each_ms, "links_at_end": links}


def many(count: int) -> dict[str, Any]:
    engine = Engine()
    engine.add("groundfault-first", rule(count))
    times = []
    for number in range(count):
        began = time.monotonic()
        engine.add(f"groundfault-{number}", rule(number))
        times.append((time.monotonic() - began) * 1000)
    there = len(engine.tags())
    state = engine.state("groundfault-7")
    for number in range(count):
        engine.remove(f"groundfault-{number}")
    return {"there": there, "attached": state.attached if state else False, "left": len(engine.tags()),
            "first_ms": sorted(times[:50])[25], "last_ms": sorted(times[-50:])[25]}  # fmt: skip


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[2:]]
    print(json.dumps(leak(*numbers) if sys.argv[1] == "leak" else many(*numbers)))
