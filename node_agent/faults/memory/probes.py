"""What the kernel can do about memory and processes, tried."""

from __future__ import annotations

from node_agent.host import CommandError, Host
from node_agent.probe import Lacking, capability
from node_agent.steps.poisoned_page import POISON, UNPOISON

_V2 = "boot with systemd.unified_cgroup_hierarchy=1, with the controllers memory and pids"


def _files(host: Host, name: str) -> None:
    if not host.glob(f"/sys/fs/cgroup/*/{name}"):
        raise Lacking(f"no control group of version 2 has {name}")


@capability("cgroup.memory", remedy=_V2)
def memory(host: Host) -> None:
    """Control groups have limits of memory."""
    _files(host, "memory.high")


@capability("cgroup.pids", remedy=_V2)
def pids(host: Host) -> None:
    """Control groups have limits of processes."""
    _files(host, "pids.max")


@capability(
    "memory.poison", remedy="a kernel with CONFIG_MEMORY_FAILURE and CONFIG_HWPOISON_INJECT, and debugfs mounted"
)
def poison(host: Host) -> None:
    """A frame of RAM can be declared broken, and well again."""
    if not host.exists(UNPOISON):
        try:
            host.run(("modprobe", "hwpoison-inject"))
        except CommandError as error:
            raise Lacking(f"no module hwpoison-inject: {error.stderr.strip() or error}") from error
    for path in (POISON, UNPOISON):
        if not host.exists(path):
            raise Lacking(f"there is no {path}")


@capability("memory.swap", remedy="a kernel with CONFIG_SWAP, and the commands mkswap and swapon")
def swap(host: Host) -> None:
    """The kernel can swap, and the commands are there."""
    if not host.exists("/proc/swaps"):
        raise Lacking("the kernel cannot swap")
    for command in ("mkswap", "swapon", "swapoff", "fallocate"):
        if host.query((command, "--version")) is None:
            raise Lacking(f"there is no {command}", "install util-linux")
