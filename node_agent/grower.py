"""A process that lets a file grow, as a log does that nobody rotates. Run as a script by an injection.

Its first line of standard input is JSON: `path` of an empty file that is there, `uid` and `gid` to work as,
`mib_s`, and `leave` in bytes. It writes until that little is left or the kernel says ENOSPC, and goes on trying,
so what others free is taken again. It ends with its standard input. Only the standard library.
"""

from __future__ import annotations

import errno
import json
import os
import select
import sys
import time

MIB = 1 << 20
_TURN_S = 0.1
_SMALLEST = 4096
_LINE = b"%-62s\n" % b"worker: queue is not drained, retrying; nothing was dropped"
_CHUNK = (_LINE * (MIB // len(_LINE) + 1))[:MIB]


def main() -> int:
    """Grow until standard input ends."""
    wanted = json.loads(sys.stdin.readline())
    fd = os.open(wanted["path"], os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
    os.setgroups([])
    os.setresgid(wanted["gid"], wanted["gid"], wanted["gid"])
    os.setresuid(wanted["uid"], wanted["uid"], wanted["uid"])
    # The kernel forgets at a change of the user who is to be told of the parent's death; the end of our standard
    # input tells us.
    print("ready", flush=True)
    began, written = time.monotonic(), 0
    while not select.select([sys.stdin], [], [], _TURN_S)[0]:
        due = int((time.monotonic() - began) * wanted["mib_s"] * MIB) - written
        took = grow(fd, due, wanted["leave"])
        # What could not be written is not made up for later: a log that cannot be written is lost.
        written += took if took == due else due
    return 0


def grow(fd: int, due: int, leave: int) -> int:
    """Write up to `due` bytes, as long as more than `leave` are available; how many there was room for."""
    took = 0
    while took < due:
        room = os.fstatvfs(fd)
        size = min(due - took, MIB)
        if leave:
            size = min(size, room.f_bavail * room.f_frsize - leave)
        while size > 0:
            try:
                took += os.write(fd, _CHUNK[:size])
                break
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                size = size // 2 if size >= 2 * _SMALLEST else 0
        if size <= 0:
            break
    return took


if __name__ == "__main__":
    sys.exit(main())
