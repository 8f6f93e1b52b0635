"""Prepared disks on the wire, both ways."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, ValidationError

from node_agent.api import agent_pb2 as pb
from node_agent.errors import Refusal
from node_agent.prepare.disks import View
from node_agent.prepare.model import Request


class DiskView(BaseModel):
    """A prepared disk as labctl sees it. `device`: what its source is called now; `problem`: why it is not up."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    source: str
    device: str
    sectors: int
    filesystem: str
    mount: str
    file: bool
    problem: str


class PrepareResult(BaseModel):
    """The disks that are prepared, and whether this call changed anything."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    disks: tuple[DiskView, ...]
    changed: bool


def request_of(message: pb.PrepareDiskRequest) -> Request:
    """What was asked for. Raises :class:`Refusal` naming the field."""
    given = {field: getattr(message, field) for field in Request.model_fields if getattr(message, field)}
    try:
        return Request.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise Refusal(f"{field}: {first['msg']}", field=field) from None


def request_message(request: Request) -> pb.PrepareDiskRequest:
    """The other way."""
    return pb.PrepareDiskRequest(**request.model_dump())


def reply_message(views: Sequence[View], changed: bool) -> pb.PrepareDiskReply:
    """The answer."""
    disks = [
        pb.PreparedDisk(
            name=v.record.name, source=v.record.source, device=v.device, sectors=v.record.sectors,
            filesystem=v.record.filesystem, mount=v.record.mount, file=v.record.kind == "file", problem=v.problem,
        )
        for v in views
    ]  # fmt: skip
    return pb.PrepareDiskReply(disks=disks, changed=changed)


def result_of(message: pb.PrepareDiskReply) -> PrepareResult:
    """The other way."""
    disks = tuple(DiskView(**{name: getattr(d, name) for name in DiskView.model_fields}) for d in message.disks)
    return PrepareResult(disks=disks, changed=message.changed)
