"""A loop device over a device-mapper device of the injection.

Why one would want that: device mapper fails I/O without a word, while a loop device is a queue of the block layer,
which logs each failed request with its sector.
"""

from __future__ import annotations

import errno
import os
from typing import Literal

from node_agent.errors import ConflictError
from node_agent.host import Host, Reader
from node_agent.steps.base import Resource, Step, Undo
from node_agent.steps.dm_names import node_path


class LoopDevice(Step):
    """Binds a free loop device to device-mapper device `over`, with direct I/O; reverting unbinds it.

    Which loop device it is, is found by what it is bound to: `over` belongs to this injection and cannot go away
    while a loop device holds it. With `over` gone there is nothing to undo, so twice equals once.
    """

    kind: Literal["loop_device"] = "loop_device"
    over: str

    def describe(self) -> str:
        return f"bind a loop device to {self.over}"

    def resources(self) -> tuple[Resource, ...]:
        return (Resource("loop", self.over),)

    def capture(self, reader: Reader) -> Undo:
        if self._bound(reader):
            raise ConflictError(f"a loop device is bound to {self.over} already")
        return {}

    def apply(self, host: Host) -> None:
        info = host.dm.info(self.over)
        if info is None:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), self.over)
        host.loop.attach(node_path(info.number), direct_io=True)

    def revert(self, host: Host, undo: Undo | None) -> None:
        info = host.dm.info(self.over)
        if info is not None:
            host.loop.detach(node_path(info.number))

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        return tuple(f"{path} is still bound to {self.over}" for path in self._bound(reader))

    def _bound(self, reader: Reader) -> tuple[str, ...]:
        info = reader.dm.info(self.over)
        if info is None:
            return ()
        return tuple(loop.path for loop in reader.loop.list() if loop.backing == node_path(info.number))
