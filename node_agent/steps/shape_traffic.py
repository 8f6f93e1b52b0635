"""Shaping of some of the traffic of an interface, beside other shapes and whatever else is set up there."""

from __future__ import annotations

from typing import Literal

from node_agent.host import Host, Reader
from node_agent.shape import Shape
from node_agent.steps.base import Resource, Step, Undo
from node_agent.traffic import Selection


class ShapeTraffic(Step):
    """Does `shape` to the traffic that `selection` names. Composes with other shapes of the interface."""

    kind: Literal["shape_traffic"] = "shape_traffic"
    tag: str
    selection: Selection
    shape: Shape

    def describe(self) -> str:
        return f"shape {self.selection.describe()}"

    def resources(self) -> tuple[Resource, ...]:
        return ()

    def capture(self, reader: Reader) -> Undo:
        raise NotImplementedError

    def apply(self, host: Host) -> None:
        raise NotImplementedError

    def revert(self, host: Host, undo: Undo | None) -> None:
        raise NotImplementedError

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        raise NotImplementedError
