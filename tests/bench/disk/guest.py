"""Runs in a guest: what an I/O costs on the bare disk, through dm-linear, and through a FUSE file system.

Counted: the guest's clock ticks once an instruction. A process of the lowest class spins all the while, so that
the processor never idles: what fio costs is the time that passed without what the spinner had. A run of few I/Os
is taken off a run of many: fio's start and end are not in it. Timed, on a node of the lab: what fio says it moved
in a second. The ways take turns within a round, each round another one first. Prints a line of JSON a measurement.
The disk's content is lost.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DISK, MAPPED = "/dev/sda", "/dev/mapper/data"
BELOW, ABOVE = Path("/tmp/below"), Path("/tmp/above")


def run(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr}{done.stdout}")
    return done.stdout


def start_spinner() -> int:
    """A process that takes what nobody else wants; its number."""
    pid = os.fork()
    if pid == 0:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        while True:
            pass
    return pid


def spun_ns(pid: int) -> int:
    """Nanoseconds that it has run (Documentation/scheduler/sched-stats.rst)."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


@contextmanager
def mounted(device: str, where: Path) -> Iterator[None]:
    run("mount", "-t", "ext4", "-o", "noatime", device, str(where))
    try:
        yield
    finally:
        run("umount", str(where))


@contextmanager
def mapped() -> Iterator[None]:
    sectors = run("blockdev", "--getsz", DISK).strip()
    run("dmsetup", "create", "data", "--noudevsync", "--table", f"0 {sectors} linear {DISK} 0")
    run("dmsetup", "mknodes")
    try:
        yield
    finally:
        run("dmsetup", "remove", "--noudevsync", "data")


@contextmanager
def passed_through() -> Iterator[None]:
    """bindfs over the mounted file system, O_DIRECT handed on as it is."""
    run("bindfs", "--forward-odirect=4096", str(BELOW), str(ABOVE))
    try:
        yield
    finally:
        run("umount", str(ABOVE))


@contextmanager
def arm(name: str) -> Iterator[str]:
    """One way to the data: the path that fio is given."""
    if name == "bare disk":
        yield DISK
    elif name == "linear, disk":
        with mapped():
            yield MAPPED
    elif name == "bare":
        with mounted(DISK, BELOW):
            yield str(BELOW / "file")
    elif name == "linear":
        with mapped(), mounted(MAPPED, BELOW):
            yield str(BELOW / "file")
    else:
        with mounted(DISK, BELOW), passed_through():
            yield str(ABOVE / "file")


def fio(job: Mapping[str, Any], path: str, **bound: object) -> Mapping[str, Any]:
    """Run a job until its bound."""
    options = {
        "name": "job", "filename": path, "ioengine": "libaio", "direct": 1, "norandommap": 1, "randseed": 7,
        "output-format": "json", "rw": job["rw"], "bs": job["bs"], "iodepth": job["depth"],
        "size": f"{job['size_mib']}m", "thread": 1, **bound,
    }  # fmt: skip
    said = json.loads(run("fio", *(f"--{key}={value}" for key, value in options.items())))
    one: Mapping[str, Any] = said["jobs"][0]
    if one["error"]:
        raise RuntimeError(f"fio met error {one['error']}")
    return one


def cost(pid: int, job: Mapping[str, Any], path: str, ios: int) -> int:
    """Instructions of everything but the spinner."""
    start, spun = time.monotonic_ns(), spun_ns(pid)
    said = fio(job, path, io_size="1t", number_ios=ios)
    done = said["read"]["total_ios"] + said["write"]["total_ios"]
    if done != ios:
        raise RuntimeError(f"fio did {done} of {ios}")
    return time.monotonic_ns() - start - (spun_ns(pid) - spun)


def counted(pid: int, job: Mapping[str, Any], path: str) -> dict[str, float]:
    few, many = cost(pid, job, path, job["ios"] // 10), cost(pid, job, path, job["ios"])
    return {"instructions": round((many - few) / (job["ios"] - job["ios"] // 10), 1)}


def timed(job: Mapping[str, Any], path: str, seconds: float) -> dict[str, float]:
    said = fio(job, path, time_based=1, runtime=f"{round(seconds * 1000)}ms")
    return {"mib_s": round(sum(said[way]["bw_bytes"] for way in ("read", "write")) / 2**20, 3)}


def main() -> int:
    wanted = json.loads(Path(sys.argv[1]).read_text())
    for where in (BELOW, ABOVE):
        where.mkdir()
    run("mkfs.ext4", "-q", "-F", DISK)
    most = max(job["size_mib"] for job in wanted["jobs"])
    with mounted(DISK, BELOW):
        run("dd", "if=/dev/urandom", f"of={BELOW}/file", "bs=1M", f"count={most}", "conv=fsync", "status=none")
    print(json.dumps({"kernel": os.uname().release}), flush=True)
    pid = 0 if wanted["seconds"] else start_spinner()
    for number in range(wanted["rounds"] + 1):  # the first warms up and does not count
        for job in wanted["jobs"]:
            for name in job["arms"][number % len(job["arms"]) :] + job["arms"][: number % len(job["arms"])]:
                with arm(name) as path:
                    found = timed(job, path, wanted["seconds"]) if wanted["seconds"] else counted(pid, job, path)
                if number:
                    print(json.dumps({"job": job["name"], "arm": name, "round": number, **found}), flush=True)
    if pid:
        os.kill(pid, 9)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
