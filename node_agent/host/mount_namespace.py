"""In whose mount namespace the agent works: that of the node, whatever its unit says.

Options of a unit that are meant well (PrivateTmp=, ProtectSystem=, LogNamespace=, …) give its processes mounts of
their own, from which nothing comes back: what is unmounted or mounted there stays as it was for everybody else.
Sources: systemd.exec(5), setns(2).
"""

from __future__ import annotations

import os
from pathlib import Path

from node_agent.host.libc import check, libc

CLONE_NEWNS = 0x00020000


def join_mounts_of(process: Path) -> bool:
    """Go where another process is (`/proc/1`); False where we are there already.

    One with another root than ours is left alone: it is of a container, and our files are not there. Raises
    OSError. Call it before there are threads: the kernel refuses it then (EINVAL).
    """
    theirs, ours = process / "ns/mnt", Path("/proc/self/ns/mnt")
    if theirs.readlink() == ours.readlink() or not (process / "root").samefile("/"):
        return False
    where = Path.cwd()
    with theirs.open("rb") as namespace:
        check(libc().setns(namespace.fileno(), CLONE_NEWNS), str(theirs))
    os.chdir(where if where.is_dir() else "/")
    return True
