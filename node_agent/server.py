"""The edge that labctl reaches over the network: gRPC with mutual TLS.

Only a certificate of the lab's own authority, made for clients, gets as far as a request: BoringSSL checks the
chain, the dates and the purpose during the handshake, and gRPC core writes a line to standard error for each
client it turns away.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, cast

import grpc
from google.protobuf.message import Message

from node_agent.api import agent_pb2 as pb
from node_agent.api.convert import error_message
from node_agent.api.methods import ERROR_METADATA, METHODS, SERVICE, Method
from node_agent.errors import AgentError
from node_agent.service import Service

DEFAULT_LISTEN = "[::]:7443"
"""All addresses, IPv4 too. Where the kernel has no IPv6, gRPC listens on 0.0.0.0 instead."""

MAX_REQUESTS = 32
MAX_REQUEST_BYTES = 1 << 20
MAX_REPLY_BYTES = 8 << 20

_STATUS = {
    "refused": grpc.StatusCode.INVALID_ARGUMENT,
    "not_found": grpc.StatusCode.NOT_FOUND,
    "conflict": grpc.StatusCode.ABORTED,
    "unsupported": grpc.StatusCode.FAILED_PRECONDITION,
    "stopped": grpc.StatusCode.FAILED_PRECONDITION,
}
"""Everything else is INTERNAL. The code that counts is the one in the metadata."""

_OPTIONS = (
    ("grpc.so_reuseport", 0),  # a second agent must fail, not share the port
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.max_send_message_length", MAX_REPLY_BYTES),
    ("grpc.max_concurrent_streams", MAX_REQUESTS),
    ("grpc.server_handshake_timeout_ms", 20_000),
    # A client that vanished (a restored snapshot, a cut network) is noticed within half a minute.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
)


@dataclass(frozen=True)
class TlsFiles:
    """The lab's authority, this node's certificate and its key, in PEM."""

    authority: bytes
    certificate: bytes
    key: bytes

    @classmethod
    def read(cls, directory: Path) -> TlsFiles | None:
        """The files ca.pem, node.pem and node.key; None where there are none at all.

        Raises OSError where only some are there, ValueError where they do not fit together.
        """
        paths = [directory / name for name in ("ca.pem", "node.pem", "node.key")]
        if not any(path.exists() for path in paths):
            return None
        files = cls(*(path.read_bytes() for path in paths))
        check = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            check.load_verify_locations(paths[0])
            check.load_cert_chain(paths[1], paths[2])
        except ssl.SSLError as error:
            raise ValueError(f"the certificates in {directory} cannot be used: {error}") from None
        return files


def start_server(service: Service, tls: TlsFiles, listen: str = DEFAULT_LISTEN) -> tuple[grpc.Server, int]:
    """Listen and serve; returns the server and its port. Raises OSError where the address cannot be bound.

    There are as many threads as requests are let in, so a request never waits for another's thread; one more is
    answered RESOURCE_EXHAUSTED. Watching is bounded further by the service, so recovery always gets through.
    """
    threads = ThreadPoolExecutor(MAX_REQUESTS, thread_name_prefix="grpc")
    server = grpc.server(threads, options=_OPTIONS, maximum_concurrent_rpcs=MAX_REQUESTS)
    handlers = {name: _handler(service, method) for name, method in METHODS.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE.full_name, handlers),))
    credentials = grpc.ssl_server_credentials(
        [(tls.key, tls.certificate)], root_certificates=tls.authority, require_client_auth=True
    )
    try:
        port = server.add_secure_port(listen, credentials)
    except RuntimeError as error:
        threads.shutdown()
        raise OSError(f"cannot listen on {listen}: {error}") from None
    server.start()
    return server, port


def _handler(service: Service, method: Method) -> grpc.RpcMethodHandler[Any, Any]:
    def one(request: Message, context: grpc.ServicerContext) -> Message:
        try:
            return service.call(method.name, request, _caller(context))
        except AgentError as error:
            _abort(context, error)

    def many(request: Message, context: grpc.ServicerContext) -> Iterator[Message]:
        try:
            yield from service.watch(cast("pb.WatchRequest", request), _caller(context), _until_gone(context))
        except AgentError as error:
            _abort(context, error)

    wire: dict[str, Any] = {
        "request_deserializer": method.request.FromString,
        "response_serializer": method.reply.SerializeToString,
    }
    if method.streams:
        return grpc.unary_stream_rpc_method_handler(many, **wire)
    return grpc.unary_unary_rpc_method_handler(one, **wire)


def _until_gone(context: grpc.ServicerContext) -> Callable[[float], bool]:
    gone = threading.Event()
    if not context.add_callback(gone.set):
        gone.set()
    return gone.wait


def _caller(context: grpc.ServicerContext) -> str:
    names = cast("Mapping[str, Iterable[bytes]]", context.auth_context()).get("x509_common_name", ())
    name = b",".join(names).decode(errors="replace") or "nobody"
    return f"{name} at {context.peer()}"


def _abort(context: grpc.ServicerContext, error: AgentError) -> NoReturn:
    message = error_message(error)
    context.set_trailing_metadata(((ERROR_METADATA, message.SerializeToString()),))
    context.abort(_STATUS.get(error.code, grpc.StatusCode.INTERNAL), message.message[:200])
