"""Every path that the agent has on a node, in one place: what `install` writes, `remove` deletes.

Only what is listed is deleted. The directories that hold it go when they are empty, so that what somebody else
keeps there (a lab's own image does) stays.
"""

from __future__ import annotations

PROGRAM = "/opt/groundfault"
CONFIG = "/etc/groundfault"
TLS = f"{CONFIG}/tls"
NODE_FILE = f"{CONFIG}/node"
STATE = "/var/lib/groundfault"
JOURNAL = f"{STATE}/journal"
"""Open journals lie here as ID.journal, closed ones in a directory below."""

UNIT = "groundfault-agent.service"
UNIT_FILE = f"/etc/systemd/system/{UNIT}"
UNIT_SOURCE = f"{PROGRAM}/lib/node_agent/systemd/{UNIT}"

STAGING = "/opt/.groundfault-new"
RETIRED = "/opt/.groundfault-old"
"""Where a new program is unpacked, and where the one it replaces goes; left only by an interrupted install."""

OWNED = (
    UNIT_FILE,
    PROGRAM,
    STAGING,
    RETIRED,
    TLS,
    NODE_FILE,
    JOURNAL,
    f"{STATE}/stopped",
    f"{STATE}/baseline.json",
    f"{STATE}/agent.lock",
    "/run/groundfault",
)
"""Deleted by `remove`, in this order. Lines in the journal of systemd are the node's own history and stay."""

SHARED = (CONFIG, STATE)
"""Directories that are removed when nothing is left in them."""
