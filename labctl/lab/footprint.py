"""Every path that the agent has on a node, in one place: what `install` writes, `remove` deletes.

Only what is listed is deleted.
"""

from __future__ import annotations

PROGRAM = "/opt/groundfault"
KEY_FILE = f"{PROGRAM}/key"
"""Which program that is: the key of its bundle (:func:`labctl.lab.bundle.bundle_key`)."""

CONFIG = "/etc/groundfault"
TLS = f"{CONFIG}/tls"
FRESH = f"{TLS}/.new"
"""What an interrupted install leaves there goes with the certificates."""

REVOKED = "revoked"
"""In TLS: the certificates of operators that are let in no more."""

NODE_FILE = f"{CONFIG}/node"
STATE = "/var/lib/groundfault"
JOURNAL = f"{STATE}/journal"
"""Open journals lie here as ID.journal, closed ones in a directory below."""

RUN = "/run/groundfault"

UNIT = "groundfault-agent.service"
UNIT_FILE = f"/etc/systemd/system/{UNIT}"
UNIT_SOURCE = f"{PROGRAM}/lib/node_agent/systemd/{UNIT}"

MODES = {CONFIG: "0755", TLS: "0700", NODE_FILE: "0644", UNIT_FILE: "0644"}
CERTIFICATE_MODE = "0600"
"""Of each file in TLS."""

DISKS = f"{STATE}/disks"
"""A record of each disk that `labctl node prepare-disk` put under device mapper, as NAME.json."""

DISKS_UNIT = "/etc/systemd/system/groundfault-disks.service"
DISKS_WANTED = "/etc/systemd/system/local-fs.target.wants/groundfault-disks.service"
"""What brings those up at boot. Goes with the last of them."""

STAGING = "/opt/.groundfault-new"
RETIRED = "/opt/.groundfault-old"
"""Where a new program is unpacked, and where the one it replaces goes; left only by an interrupted install."""

OWNED = (UNIT_FILE, DISKS_WANTED, DISKS_UNIT, RUN, STATE, TLS, NODE_FILE, STAGING, RETIRED, PROGRAM)
"""Deleted by `remove`, in this order: the program last, so that an interrupted removal is seen and goes on.
Lines in the journal of systemd are the node's own history and stay."""

SIGNS = frozenset(OWNED) - {TLS, NODE_FILE}
"""Where one of these is, an agent is or was. Name and certificates may also come from a lab's own image."""

SHARED = (CONFIG,)
"""Removed when nothing is left in it: a lab's own image keeps its network configuration there."""

OF_THE_LAB = tuple(f"{CONFIG}/{name}" for name in ("lab", "network", "data-filesystem", "identity-installed"))
"""What the image of a virtual lab has there, with or without an agent: nothing that anybody left."""
