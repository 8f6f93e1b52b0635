"""Whether this is a machine of its own: a container shares its kernel and its clock with others."""

from __future__ import annotations

from contextlib import suppress

from node_agent.host import Host, Reader
from node_agent.probe import Lacking, capability

_REMEDY = "install the agent on the host, and name that as the node"
_MARKS = ("/run/systemd/container", "/run/.containerenv", "/.dockerenv")
"""Files that systemd, Podman and Docker put into containers."""


def container_of(reader: Reader) -> str:
    """What kind of container this is; empty for a machine. Source: systemd's CONTAINER_INTERFACE."""
    with suppress(OSError):
        for word in reader.read_text("/proc/1/environ").split("\0"):
            if word.startswith("container=") and word != "container=":
                return word.removeprefix("container=")
    found = next((path for path in _MARKS if reader.exists(path)), "")
    return f"there is {found}" if found else ""


def refuse_container(reader: Reader, what: str) -> None:
    """Raise :class:`Lacking` where this is a container. `what` it shares with its host."""
    kind = container_of(reader)
    if kind:
        raise Lacking(f"this node is a container ({kind}): {what} is its host's", _REMEDY)


@capability("machine.own", remedy=_REMEDY)
def probe(host: Host) -> None:
    """This is a machine, whose kernel root may end (SysRq: Documentation/admin-guide/sysrq.rst)."""
    refuse_container(host, "the kernel")
    if not host.exists("/proc/sysrq-trigger"):
        raise Lacking("this kernel has no /proc/sysrq-trigger", "a kernel with CONFIG_MAGIC_SYSRQ")
