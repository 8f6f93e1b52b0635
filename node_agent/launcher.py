"""What a helper process is before it becomes its program: bound to the agent's life, in its own control group.

Run as a script, `launcher.py CGROUP PARENT PROGRAM ARGUMENT…`, with nothing but the standard library. It is a
process of its own because the agent has threads: nothing may run between fork and exec there.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
"""include/uapi/linux/prctl.h; kept by execve unless the program has set-id bits or capabilities (prctl(2))."""

NOT_STARTED = 127


def die_with_parent(number: signal.Signals, parent: int) -> bool:
    """Ask the kernel for a signal when the parent's thread ends; False where the parent has ended already."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0) != 0:
        return False
    return os.getppid() == parent


def main(arguments: list[str]) -> int:
    """Become the program. Returns only where that fails."""
    group, parent, *command = arguments
    if not die_with_parent(signal.SIGKILL, int(parent)):
        return NOT_STARTED
    try:
        if group:
            _write(f"{group}/cgroup.procs", "0")
        # The agent goes before others, and is the last that the kernel should kill when memory is short; what it
        # starts does not and is not.
        _write("/proc/self/oom_score_adj", "0")
        os.setpriority(os.PRIO_PROCESS, 0, 0)
        os.execv(command[0], command)  # noqa: S606
    except OSError as error:
        print(f"{error.filename or command[0]}: {error.strerror}", file=sys.stderr)
    return NOT_STARTED


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:  # noqa: PTH123  (pathlib takes longer to import than all of this)
        file.write(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
