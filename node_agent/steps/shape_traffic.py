"""Shaping of some of the traffic of an interface, beside other shapes and whatever else is set up there."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from node_agent.host import Host, Reader
from node_agent.lanes import refuse_unmergeable
from node_agent.lanes.sync import differences, file_of, live_shapes, sync, wanted_tree
from node_agent.lanes.tree import LiveShape
from node_agent.shape import Shape
from node_agent.steps.base import Resource, Step, Undo
from node_agent.traffic import Selection


class ShapeTraffic(Step):
    """Does `shape` to the traffic that `selection` names. Composes with other shapes of the interface.

    The shape is written to a file first, then the kernel's tree is made that of all files. Reverting removes the
    file and does the same, so twice equals once, and half is like whole. An interface that is gone, or has another
    number, has no tree: then what is left of the lab's is cleared away.
    """

    kind: Literal["shape_traffic"] = "shape_traffic"
    tag: str = Field(pattern=r"^groundfault-[a-z0-9-]{3,32}$")
    selection: Selection
    shape: Shape

    def describe(self) -> str:
        return f"lead {self.selection.describe()} through lanes of {self.tag}"

    def resources(self) -> tuple[Resource, ...]:
        return (Resource("file", file_of(self.tag)),)

    def capture(self, reader: Reader) -> Undo:
        refuse_unmergeable(reader, self.selection, self.shape, self.tag)
        return {}

    def apply(self, host: Host) -> None:
        live = LiveShape(tag=self.tag, selection=self.selection, shape=self.shape)
        host.write_text(file_of(self.tag), live.model_dump_json())
        sync(host, self.selection.interface)

    def revert(self, host: Host, undo: Undo | None) -> None:
        host.remove_file(file_of(self.tag))
        sync(host, self.selection.interface)

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        if any(one.tag == self.tag for one in live_shapes(reader)):
            return (f"{file_of(self.tag)} is still there",)
        return differences(reader, wanted_tree(reader, self.selection.interface))
