"""Says how much of all that runs out is used: memory, disk, descriptors, processes, connections, ports, CPU."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

PSI = ("cpu", "memory", "io")


def text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def share(used: str, most: str) -> float:
    """Used of most, 0 where there is no such thing or no end of it."""
    if not used.strip().isdigit() or not most.strip().isdigit() or int(most) == 0:
        return 0.0
    return round(int(used) / int(most), 4)


def memory() -> dict[str, float]:
    lines = (line.split(":") for line in text("/proc/meminfo").splitlines())
    kib = {name: int(rest.split()[0]) for name, rest in lines}
    swap = kib["SwapTotal"]
    return {
        "memory_available_mib": round(kib["MemAvailable"] / 1024, 1),
        "memory_used": round(1 - kib["MemAvailable"] / kib["MemTotal"], 4),
        "swap_used": round(1 - kib["SwapFree"] / swap, 4) if swap else 0.0,
    }


def disks(paths: list[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for path in paths:
        if os.path.exists(path):  # noqa: PTH110 - one idea of paths here
            at = os.statvfs(path)
            # As df has it: what only root may use counts as used.
            space = at.f_blocks - at.f_bfree + at.f_bavail
            found[f"disk_used {path}"] = round(1 - at.f_bavail / space, 4) if space else 0.0
            found[f"inodes_used {path}"] = round(1 - at.f_favail / at.f_files, 4) if at.f_files else 0.0
    return found


def ports() -> float:
    """The share of the ephemeral range that TCP holds."""
    low, high = (int(n) for n in text("/proc/sys/net/ipv4/ip_local_port_range").split())
    held = set()
    for family in ("tcp", "tcp6"):
        for line in text(f"/proc/net/{family}").splitlines()[1:]:
            port = int(line.split()[1].rpartition(":")[2], 16)
            if low <= port <= high:
                held.add(port)
    return round(len(held) / (high - low + 1), 4)


def stalls() -> dict[str, int]:
    """Microseconds that somebody has waited for each, since the boot."""
    found = {}
    for what in PSI:
        for line in text(f"/proc/pressure/{what}").splitlines():
            kind, *fields = line.split()
            if (kind == "some") == (what == "cpu"):
                found[what] = int(fields[-1].partition("=")[2])
    return found


def cpu() -> list[int]:
    return [int(n) for n in text("/proc/stat").splitlines()[0].split()[1:]]


def units(names: list[str]) -> dict[str, float]:
    """The fullest of each unit's limits: tasks, memory, and descriptors of one of its processes."""
    found: dict[str, float] = {}
    for unit in names:
        group = next(iter(Path("/sys/fs/cgroup/system.slice").glob(f"**/{unit}")), None)
        if group is None:
            continue
        tasks = share(text(f"{group}/pids.current"), text(f"{group}/pids.max"))
        held = share(text(f"{group}/memory.current"), text(f"{group}/memory.max"))
        stat = dict(line.split() for line in text(f"{group}/memory.stat").splitlines())
        cache = int(stat.get("inactive_file", 0)) + int(stat.get("active_file", 0))
        most = text(f"{group}/memory.max").strip()
        if most.isdigit():  # the kernel takes cache back before anything runs out
            held = round(held - min(held, cache / int(most)), 4)
        files = 0.0
        for pid in text(f"{group}/cgroup.procs").split():
            limit = next((x.split()[3] for x in text(f"/proc/{pid}/limits").splitlines() if "open files" in x), "")
            try:
                files = max(files, share(str(len(os.listdir(f"/proc/{pid}/fd"))), limit))  # noqa: PTH208
            except OSError:
                continue
        found |= {f"tasks_used {unit}": tasks, f"memory_used {unit}": held, f"descriptors_used {unit}": files}
    return found


def main() -> None:
    given = json.loads(sys.argv[1])
    before, waited, began = cpu(), stalls(), time.monotonic()
    opened = text("/proc/sys/fs/file-nr").split()
    threads = text("/proc/loadavg").split()[3].partition("/")[2]
    found = {
        **memory(),
        **disks(given["paths"]),
        **units(given["units"]),
        "files_used": share(opened[0], opened[2]),
        "pids_used": max(share(threads, text("/proc/sys/kernel/pid_max")),
                         share(threads, text("/proc/sys/kernel/threads-max"))),
        "conntrack_used": share(text("/proc/sys/net/netfilter/nf_conntrack_count"),
                                text("/proc/sys/net/netfilter/nf_conntrack_max")),
        "ports_used": ports(),
        "cpus": os.cpu_count() or 0,
    }  # fmt: skip
    time.sleep(max(0.0, began + given["sample_s"] - time.monotonic()))
    spent, took = [b - a for a, b in zip(before, cpu(), strict=True)], time.monotonic() - began
    total = sum(spent[:8]) or 1
    found |= {"stolen": round(spent[7] / total, 4), "idle": round((spent[3] + spent[4]) / total, 4)}
    found |= {f"stalled_{k}": round((v - waited[k]) / 1e6 / took, 4) for k, v in stalls().items() if k in waited}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
