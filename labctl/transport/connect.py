"""Choosing the way to an agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labctl.errors import LabctlError, UsageError
from labctl.lab.model import Node
from labctl.pki import LabAuthority
from labctl.transport.base import Kind, Transport
from labctl.transport.client import AgentClient
from labctl.transport.grpc import GrpcTransport, credentials_of
from labctl.transport.ssh import SshTransport

__all__ = ["AgentClient", "connect", "credentials_of", "node_clock_by_ssh"]

if TYPE_CHECKING:
    import grpc

CLOCK_TIMEOUT_S = 20.0


def connect(
    node: Node,
    authority: LabAuthority | None,
    kind: Kind = "grpc",
    credentials: grpc.ChannelCredentials | None = None,
) -> Transport:
    """A transport to the agent of `node`, to be closed or used as a context manager. Connects when first used.

    `credentials`: those of :func:`credentials_of`, for who talks to many nodes.
    """
    if kind == "ssh":
        return SshTransport(node)
    if authority is None:
        raise UsageError(f"gRPC to {node.name} needs the lab's certificates", "use the ssh transport")
    return GrpcTransport(node, authority, node_clock_by_ssh, credentials)


def node_clock_by_ssh(node: Node) -> float | None:
    """The wall clock of a node in Unix seconds; None where SSH does not get there either."""
    try:
        with SshTransport(node) as ssh:
            return AgentClient(ssh).facts(CLOCK_TIMEOUT_S).clock_unix_s
    except LabctlError:
        return None
