"""Programs of a node that ask for what is exhausted: independent of the agent, and small. Run as a script.

forks SECONDS: processes until the kernel refuses, which then stay for so long; prints the errno and how many.
opens: as user nobody, a file and a socket; prints what each answers.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
import time
from collections.abc import Callable

MOST = 300


def forks(seconds: float) -> None:
    """Each child only waits."""
    children = []
    answer = "none"
    for _ in range(MOST):
        try:
            child = os.fork()
        except OSError as error:
            answer = errno.errorcode[error.errno or 0]
            break
        if not child:
            signal.pause()
            os._exit(0)
        children.append(child)
    print(answer, len(children), flush=True)
    time.sleep(seconds)
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def opens() -> None:
    """All is imported before: nobody can load a library then."""
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)

    def file() -> None:
        os.close(os.open("/etc/hostname", os.O_RDONLY))

    def connection() -> None:
        socket.socket().close()

    print(*(said(work) for work in (file, connection)), flush=True)


def said(work: Callable[[], None]) -> str:
    """The errno by name; "well" where there is none."""
    try:
        work()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "well"


if __name__ == "__main__":
    if sys.argv[1] == "forks":
        forks(float(sys.argv[2]))
    else:
        opens()
