"""The edge that labctl reaches over the network: gRPC with mutual TLS.

Only a certificate of the lab's own authority, made for clients, gets as far as a request: BoringSSL checks the
chain, the dates and the purpose during the handshake, and gRPC core writes a line to standard error for each
client it turns away.
"""

from __future__ import annotations

import logging
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
from node_agent.caller import Caller
from node_agent.errors import AgentError, RevokedError
from node_agent.revoked import FILE as REVOKED
from node_agent.revoked import Revoked
from node_agent.service import Service

log = logging.getLogger(__name__)

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
    "revoked": grpc.StatusCode.PERMISSION_DENIED,
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


def _never() -> None:
    """For certificates that nobody renews."""


class Renewed:
    """The certificates in a directory, as they are at each handshake.

    A change counts when all files fit together again; until then, and where they never do, the ones before go on.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen = self._look()

    def _look(self) -> tuple[tuple[int, ...], ...]:
        found = []
        for name in ("ca.pem", "node.pem", "node.key"):
            try:
                now = (self._directory / name).stat()
            except OSError:
                return ()
            found.append((now.st_mtime_ns, now.st_size, now.st_ino))
        return tuple(found)

    def __call__(self) -> Any:
        """What gRPC asks at each handshake: new certificates, or None where nothing is new."""
        now = self._look()
        if not now or now == self._seen:
            return None
        try:
            tls = TlsFiles.read(self._directory)
        except (OSError, ValueError) as error:
            log.warning("new certificates are not taken yet: %s", error)
            return None
        self._seen = now
        log.info("new certificates are in use")
        return _configuration(tls) if tls else None


def _configuration(tls: TlsFiles) -> Any:
    return grpc.ssl_server_certificate_configuration([(tls.key, tls.certificate)], root_certificates=tls.authority)


def start_server(
    service: Service, tls: TlsFiles, listen: str = DEFAULT_LISTEN, directory: Path | None = None
) -> tuple[grpc.Server, int]:
    """Listen and serve; returns the server and its port. Raises OSError where the address cannot be bound.

    `directory`: where `tls` came from, and new certificates and the list of those revoked will be found.
    There are as many threads as requests are let in, so a request never waits for another's thread; one more is
    answered RESOURCE_EXHAUSTED. Watching is bounded further by the service, so recovery always gets through.
    """
    threads = ThreadPoolExecutor(MAX_REQUESTS, thread_name_prefix="grpc")
    server = grpc.server(threads, options=_OPTIONS, maximum_concurrent_rpcs=MAX_REQUESTS)
    door = _Door(service, Revoked(directory / REVOKED) if directory else None)
    handlers = {name: _handler(door, method) for name, method in METHODS.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE.full_name, handlers),))
    renewed: Callable[[], Any] = Renewed(directory) if directory else _never
    credentials = grpc.dynamic_ssl_server_credentials(
        _configuration(tls), renewed, require_client_authentication=True
    )
    try:
        port = server.add_secure_port(listen, credentials)
    except RuntimeError as error:
        threads.shutdown()
        raise OSError(f"cannot listen on {listen}: {error}") from None
    server.start()
    return server, port


class _Door:
    """Who is let in to the service."""

    def __init__(self, service: Service, revoked: Revoked | None) -> None:
        self.service, self._revoked = service, revoked

    def let_in(self, context: grpc.ServicerContext) -> Caller:
        """Raises :class:`RevokedError`."""
        said = cast("Mapping[str, Iterable[bytes]]", context.auth_context())
        name = b",".join(said.get("x509_common_name", ())).decode(errors="replace") or "nobody"
        caller = Caller(name, str(context.peer()))
        if self._revoked is not None:
            try:
                self._revoked.check(b"".join(said.get("x509_pem_cert", ())))
            except RevokedError as error:
                self.service.audit.turned_away(caller, error.message)
                log.warning("%s is turned away: %s", caller, error.message)
                raise
        return caller


def _handler(door: _Door, method: Method) -> grpc.RpcMethodHandler[Any, Any]:
    def one(request: Message, context: grpc.ServicerContext) -> Message:
        try:
            return door.service.call(method.name, request, door.let_in(context))
        except AgentError as error:
            _abort(context, error)

    def many(request: Message, context: grpc.ServicerContext) -> Iterator[Message]:
        try:
            caller = door.let_in(context)
            for view in door.service.watch(cast("pb.WatchRequest", request), caller, _until_gone(context)):
                door.let_in(context)  # a watch is long: somebody may be let in no more meanwhile
                yield view
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


def _abort(context: grpc.ServicerContext, error: AgentError) -> NoReturn:
    message = error_message(error)
    context.set_trailing_metadata(((ERROR_METADATA, message.SerializeToString()),))
    context.abort(_STATUS.get(error.code, grpc.StatusCode.INTERNAL), message.message[:200])
