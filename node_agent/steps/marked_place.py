"""A file or directory on a data disk that an injection fills up: where it is, and how it is taken away."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator

from node_agent.errors import ConflictError
from node_agent.host import Host, Reader
from node_agent.steps.base import Step, Undo

_MARK = "groundfault-"


def _bears_the_mark(path: str) -> str:
    if not path.startswith("/") or ".." in path.split("/") or _MARK not in PurePosixPath(path).name:
        raise ValueError(f"{path!r} is no absolute path whose last part bears the mark of an injection")
    return path


class MarkedPlace(Step):
    """Base of the steps that make something at `path`, on the file system that disk `device` has at `mount`.

    It is on a disk, so a reboot does not undo it. Taking it away twice equals once, and gone already is fine; so
    is a disk that is gone. A file system that is not mounted where it was hides what is on it: that is left over.
    """

    volatile = False
    path: Annotated[str, AfterValidator(_bears_the_mark)]
    mount: str
    device: str

    def capture(self, reader: Reader) -> Undo:
        if reader.exists(self.path):
            raise ConflictError(f"{self.path} is there already")
        return {}

    def revert(self, host: Host, undo: Undo | None) -> None:
        if not self._hidden(host) and host.dm.info(self.device) is not None:
            host.space.clear(self.path)

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        if reader.dm.info(self.device) is None:
            return ()
        if self._hidden(reader):
            return (f"{self.mount} is not mounted from {self.device}: {self.path} may still be on it",)
        return (f"{self.path} is still there",) if reader.exists(self.path) else ()

    def _hidden(self, reader: Reader) -> bool:
        info, mounted = reader.dm.info(self.device), reader.filesystems.mounted(self.mount)
        return info is not None and (mounted is None or mounted.device != info.number)
