"""gRPC with mutual TLS: the normal way to an agent."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, cast

from google.protobuf.message import Message

from labctl.errors import LabctlError
from labctl.lab.model import Node
from labctl.pki import LabAuthority, node_id
from labctl.transport.base import (
    AgentFailedError,
    ClosingTransport,
    NoAnswerError,
    answered_error,
    unknown_method,
)
from labctl.transport.diagnose import NodeClock, why_not
from node_agent.api import agent_pb2 as pb
from node_agent.api.methods import ERROR_METADATA, Method, find_method

if TYPE_CHECKING:
    import grpc

DIAGNOSIS_TIMEOUT_S = 3.0
MAX_REPLY_BYTES = 8 << 20


class GrpcTransport(ClosingTransport):
    """A channel to the agent of one node. `node_clock` serves to explain refusals for the sake of the clock.

    `credentials` are those of :func:`credentials_of`, where many channels share them.
    """

    def __init__(
        self,
        node: Node,
        authority: LabAuthority,
        node_clock: NodeClock | None = None,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        self.node = node
        self._authority, self._node_clock, self._credentials = authority, node_clock, credentials
        self._open: grpc.Channel | None = None
        self._retired: list[grpc.Channel] = []

    def call(self, method: str, request: Message, timeout_s: float) -> Message:
        found = find_method(method)
        import grpc

        ask = self._channel().unary_unary(found.path, **_codec(found))
        try:
            return cast("Message", ask(request, timeout=timeout_s))
        except grpc.RpcError as error:
            raise self._explained(error, method, timeout_s) from None

    def watch(self, request: pb.WatchRequest) -> Generator[pb.Injection]:
        found = find_method("Watch")
        import grpc

        answers = self._channel().unary_stream(found.path, **_codec(found))(request)
        try:
            for answer in answers:
                yield cast("pb.Injection", answer)
        except grpc.RpcError as error:
            raise self._explained(error, "Watch", 0.0) from None
        finally:
            answers.cancel()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        self._retire()
        while self._retired:
            self._retired.pop().close()

    def _channel(self) -> grpc.Channel:
        if self._open is None:
            credentials = self._credentials or credentials_of(self._authority)
            self._open = _make_channel(self.node, self._authority.lab, credentials)
        return self._open

    def _retire(self) -> None:
        """Use a new channel next time: a broken one waits longer and longer before it connects again.

        It is closed later, since other threads may be waiting for answers on it.
        """
        if self._open is not None:
            self._retired.append(self._open)
            self._open = None

    def _explained(self, error: Any, method: str, timeout_s: float) -> LabctlError:
        import grpc

        for key, value in error.trailing_metadata() or ():
            if key == ERROR_METADATA:
                return answered_error(self.node.name, pb.Error.FromString(value))
        name, code = self.node.name, error.code()
        if code == grpc.StatusCode.UNIMPLEMENTED:
            return unknown_method(name, method)
        if code not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            return AgentFailedError(code.name.lower(), f"{name}: {method}: {error.details()}")
        self._retire()
        late = code == grpc.StatusCode.DEADLINE_EXCEEDED
        bound = min(DIAGNOSIS_TIMEOUT_S, timeout_s) if timeout_s else DIAGNOSIS_TIMEOUT_S
        found = why_not(self.node, self._authority, bound, self._node_clock)
        if found:
            return found
        if late:
            return NoAnswerError(
                f"{name} did not answer {method} within {timeout_s:g} s", "is the node overloaded?"
            )
        return NoAnswerError(f"{name}: the connection was lost during {method}", "its agent may have restarted")


def _codec(method: Method) -> dict[str, Callable[[Any], Any]]:
    return {
        "request_serializer": method.request.SerializeToString,
        "response_deserializer": method.reply.FromString,
    }


def credentials_of(authority: LabAuthority) -> grpc.ChannelCredentials:
    """What all channels to nodes of a lab can share: gRPC then parses keys and certificates once, not for each."""
    # gRPC core would write its own lines beside ours. It reads these when it is imported.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    import grpc

    files = authority.client_files()
    return grpc.ssl_channel_credentials(files["ca.pem"], files["client.key"], files["client.pem"])


def _make_channel(node: Node, lab: str, credentials: grpc.ChannelCredentials) -> grpc.Channel:
    import grpc

    address = f"[{node.address}]" if ":" in node.address else node.address
    options = (
        # The node id, never the address: an address is a forwarded port, or changes.
        ("grpc.ssl_target_name_override", node_id(node.name, lab)),
        ("grpc.use_local_subchannel_pool", 1),  # else a new channel inherits an old one's back-off
        ("grpc.enable_http_proxy", 0),
        ("grpc.enable_retries", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1_000),
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.max_receive_message_length", MAX_REPLY_BYTES),
    )
    return grpc.secure_channel(f"{address}:{node.agent_port}", credentials, options)
