"""One installer a node: two operators who install at once would write over each other.

The lock is the kernel's and ends with the connection, however that ends; it leaves no file.
"""

from __future__ import annotations

import getpass
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from labctl.errors import UsageError
from labctl.lab.root import Root

PYTHON = "/usr/bin/python3"
NAME = "groundfault-install"
HOLD = """
import fcntl, glob, os, sys
lock = os.open("/etc", os.O_RDONLY)
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            words = open(path).read().split("\\0")
        except OSError:
            continue
        if words[3:4] == [sys.argv[1]] and path != "/proc/%d/cmdline" % os.getpid():
            sys.exit(print("busy", *words[4:5]))
    sys.exit(print("busy"))
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held(root: Root, who: str) -> Iterator[None]:
    """Keep others from changing the agent of a node meanwhile. Raises :class:`UsageError` where one does.

    `who` is told to them. Where the node has no Python nothing is held: what follows says so.
    """
    running = root.start(PYTHON, "-c", HOLD, NAME, who)
    try:
        word, _, other = running.line().partition(" ")
        if word == "busy":
            whoever = other or "somebody else"
            raise UsageError(
                f"{root.name}: {whoever} is installing or removing the agent; nothing was changed",
                "try again when that has ended; where a connection was lost, the node may notice late: there, "
                f"pkill -f {NAME}",
            )
        yield
    finally:
        running.end()


def myself() -> str:
    """Who works here, for others to read: "alice@desk"."""
    return f"{getpass.getuser()}@{socket.gethostname()}"
