"""Swap in a file on a data disk, on for the length of an injection."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from node_agent.errors import ApplyError
from node_agent.host import CommandError, Host, Reader
from node_agent.steps.base import Resource, Undo
from node_agent.steps.marked_place import MarkedPlace

MIB = 1 << 20
SWAPS = "/proc/swaps"
OFF_S, ON_S = 170.0, 30.0
"""Taking swap away reads all back that is in it: below the watchdog of the agent's unit, and then tried again."""


class SwapFile(MarkedPlace):
    """Makes a file of `size_mib` and lets the kernel swap to it, before all other swap; reverting takes it away.

    Its blocks are all there, as swapon(8) wants. Where there is no memory for what is in it, taking it away fails
    and is tried again. A reboot ends its use, but the file stays until then: it is removed at the next start.
    """

    kind: Literal["swap_file"] = "swap_file"
    size_mib: int = Field(ge=8, le=1 << 16)

    def describe(self) -> str:
        return f"swap to {self.path}, {self.size_mib} MiB"

    def resources(self) -> tuple[Resource, ...]:
        return (Resource("swap", self.path),)

    def apply(self, host: Host) -> None:
        try:
            host.run(("fallocate", "--length", str(self.size_mib * MIB), self.path), timeout_s=ON_S)
            host.run(("mkswap", self.path), timeout_s=ON_S)
            host.run(("swapon", "--priority", "32767", self.path), timeout_s=ON_S)
        except CommandError as error:
            raise ApplyError(f"no swap to {self.path}: {error}") from error

    def revert(self, host: Host, undo: Undo | None) -> None:
        if self.used_kib(host) is not None:
            host.run(("swapoff", self.path), timeout_s=OFF_S)
        super().revert(host, undo)

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        on = (f"the kernel swaps to {self.path}",) if self.used_kib(reader) is not None else ()
        return (*on, *super().leftovers(reader, undo))

    def used_kib(self, reader: Reader) -> int | None:
        """How much is in it; None where it is off."""
        for line in reader.read_text(SWAPS).splitlines()[1:] if reader.exists(SWAPS) else ():
            name, _, _, used, *_ = line.split()
            if name == self.path:
                return int(used)
        return None
