"""Reads every file below a directory past the page cache, and tries a write that leaves no name behind.

The reading is done by a process of its own: one that a disk never answers cannot be ended, only left alone.
"""

from __future__ import annotations

import json
import mmap
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

CHUNK = 1 << 20
PAGE = 4096


def read_whole(path: str, buffer: mmap.mmap, deadline: float) -> int:
    """Bytes of a file that could be read from its disk. Raises OSError; stops at the deadline."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_NOFOLLOW)
    done = 0
    try:
        size = os.fstat(fd).st_size
        # A read is short at the end, and before a sector that cannot be read: the next one has the error.
        while done < size and time.monotonic() < deadline:
            got = os.preadv(fd, [buffer], done)
            if not got:
                break
            done += got
    finally:
        os.close(fd)
    return done


def read_all(path: str, within_s: float) -> dict[str, Any]:
    """What could not be read below `path`, and how much could."""
    deadline = time.monotonic() + within_s
    errors, files, total, unread = [], 0, 0, 0
    device = Path(path).stat().st_dev
    buffer = mmap.mmap(-1, CHUNK)

    def told(error: OSError) -> None:
        errors.append([error.filename or path, os.strerror(error.errno or 0)])

    for where, below, names in os.walk(path, onerror=told):
        below[:] = [b for b in sorted(below) if os.lstat(os.path.join(where, b)).st_dev == device]  # noqa: PTH118
        for name in sorted(names):
            file = os.path.join(where, name)  # noqa: PTH118 - much faster than pathlib on an emulated node
            if time.monotonic() >= deadline:
                unread += 1
                continue
            try:
                if not os.path.isfile(file) or os.path.islink(file):  # noqa: PTH113,PTH114
                    continue
                total += read_whole(file, buffer, deadline)
                files += 1
            except FileNotFoundError:
                continue  # a file that came and went
            except OSError as error:
                errors.append([file, os.strerror(error.errno or 0)])
    return {"errors": errors[:20], "files": files, "bytes": total, "unread": unread}


def try_write(path: str) -> str:
    """Why nothing can be written there; "" where it can. The file never has a name."""
    try:
        fd = os.open(path, os.O_TMPFILE | os.O_WRONLY, 0o600)
        try:
            os.write(fd, b"0" * PAGE)
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        return os.strerror(error.errno or 0)
    return ""


def bounded(work: str, within_s: float, given: dict[str, Any]) -> Any:
    """What a child process says, or None where it says nothing in time."""
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(out)
        for fd in (0, 1, 2):
            os.close(fd)
        said = read_all(given["path"], given["within_s"]) if work == "read" else try_write(given["path"])
        os.write(into, json.dumps(said).encode()[:60_000])
        os._exit(0)
    os.close(into)
    deadline, text = time.monotonic() + within_s, b""
    while select.select([out], [], [], max(0.0, deadline - time.monotonic()))[0]:
        got = os.read(out, 65536)
        if not got:
            break
        text += got
    os.kill(child, signal.SIGKILL)
    return json.loads(text) if text else None


def first_line(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def mounted(path: str) -> tuple[str, str, str]:
    """Source, type and options of the file system that `path` is on."""
    best = ("", "", "", "")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        source, where, kind, options = line.split()[:4]
        if (path + "/").startswith(where.rstrip("/") + "/") and len(where) >= len(best[0]):
            best = (where, source, kind, options)
    return best[1], best[2], best[3]


def main() -> None:
    given = json.loads(sys.argv[1])
    path = given["path"]
    source, kind, options = mounted(path)
    real = os.path.realpath(source)
    sysfs = Path("/sys/fs/ext4") / os.path.basename(real)  # noqa: PTH119
    print(
        json.dumps(
            {
                "source": source,
                "type": kind,
                "options": options.split(","),
                "write": bounded("write", 15.0, given),
                "read": bounded("read", given["within_s"] + 10.0, given),
                "errors_count": first_line(sysfs / "errors_count"),
            }
        )
    )


if __name__ == "__main__":
    main()
