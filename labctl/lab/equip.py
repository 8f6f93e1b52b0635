"""What a new machine of a lab gets from here: the agent, and a table under its spare disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from labctl.errors import LabError
from labctl.lab import footprint as at
from labctl.lab.model import Node, Ready
from labctl.lab.remote import LogIn
from labctl.pki import LabAuthority
from labctl.progress import Task
from labctl.transport.host_keys import nobody

SPARE = "gfdata"
"""The serial number of the disk that is meant, where whoever makes the machine can say one."""

MOUNT = "/srv/data"
_LSBLK = ("lsblk", "--json", "--bytes", "--output", "NAME,TYPE,SIZE,SERIAL,FSTYPE,PTTYPE,MOUNTPOINT,RO")
_SMALLEST = 16 << 20


def spare_disk(listing: Mapping[str, Any]) -> str:
    """The disk that is meant for faults, in what lsblk lists: by its serial number, or the only empty one.

    Empty where there is none, or it cannot be told which.
    """
    disks = [one for one in listing.get("blockdevices", ()) if one.get("type") == "disk" and _empty(one)]
    named = [one for one in disks if one.get("serial") == SPARE]
    found = named or disks
    return f"/dev/{found[0]['name']}" if len(found) == 1 else ""


def _empty(disk: Mapping[str, Any]) -> bool:
    used = any(disk.get(key) for key in ("fstype", "pttype", "mountpoint", "children", "ro"))
    return not used and int(disk.get("size") or 0) >= _SMALLEST


class Equip(Protocol):
    """:func:`equip`, or what takes its place in tests."""

    def __call__(
        self,
        node: Node,
        *,
        authority: LabAuthority,
        ready: Ready,
        task: Task,
        login: LogIn,
        filesystem: str,
        who: str,
    ) -> None: ...


def equip(
    node: Node,
    *,
    authority: LabAuthority,
    ready: Ready,
    task: Task,
    login: LogIn,
    filesystem: str,
    who: str,
) -> None:
    """Put the agent on a node that has none, and its spare disk under device mapper at /srv/data.

    Safe to repeat. Raises a :class:`labctl.errors.LabctlError` that says what stands in the way.
    """
    from labctl import operators
    from labctl.lab.bundle import build_bundle
    from labctl.lab.install import install
    from labctl.lab.root import Root
    from labctl.lab.root_agent import RootAgent
    from labctl.lab.root_transport import RootTransport
    from labctl.transport.client import AgentClient
    from node_agent.prepare.model import Request

    def files() -> Mapping[str, bytes]:
        return authority.node_files(node.name) | {at.REVOKED: operators.read(authority).revoked_list()}

    with login(node, nobody) as remote:
        root = Root(remote)
        if root.ask("test", "-e", at.UNIT_FILE).status != 0:
            agent = RootAgent(root)
            install(root, files=files, bundler=build_bundle, agent=agent, ready=ready, task=task, who=who)
        client = AgentClient(RootTransport(root))
        if client.prepare_disk(Request()).disks:
            return
        listed = root.ask(*_LSBLK)
        if listed.status != 0:
            raise LabError(f"{node.name}: its disks cannot be listed: {listed.stderr.strip()}")
        if disk := spare_disk(json.loads(listed.stdout)):
            task.update(f"preparing {disk}")
            client.prepare_disk(Request(device=disk, mount=MOUNT, format=filesystem))
