"""The methods of the contract, read from its descriptor: one table for both edges of the agent and for labctl."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from node_agent.api import agent_pb2
from node_agent.errors import NotFoundError

SERVICE = agent_pb2.DESCRIPTOR.services_by_name["Agent"]
ERROR_METADATA = "groundfault-error-bin"
"""The trailing metadata in which a gRPC answer carries the contract's Error."""


@dataclass(frozen=True)
class Method:
    """One method. `path` is its name on the wire; `streams` says that many replies follow."""

    name: str
    path: str
    request: type[Message]
    reply: type[Message]
    streams: bool


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        m.name: Method(
            name=m.name,
            path=f"/{SERVICE.full_name}/{m.name}",
            request=GetMessageClass(m.input_type),
            reply=GetMessageClass(m.output_type),
            streams=m.server_streaming,
        )
        for m in SERVICE.methods
    }
)


def find_method(name: str) -> Method:
    """The method of that name. Raises :class:`NotFoundError`."""
    method = METHODS.get(name)
    if method is None:
        raise NotFoundError(f"there is no method {name!r}", field="method", allowed=", ".join(METHODS))
    return method
