"""The edge that `node-agent call` reaches: a Unix socket that only root can open.

One connection, one request: a line `{"method": …, "node": …, "request": {…}}` is answered by a line
`{"reply": {…}}` or `{"error": {…}}`, in the JSON of protobuf. Watch answers with many lines until the client
leaves. `node` is optional: when given it must be this node's name, so that a request never reaches another
machine behind a reused address.
"""

from __future__ import annotations

import json
import logging
import pwd
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from google.protobuf import json_format
from google.protobuf.message import Message

from node_agent.api import agent_pb2 as pb
from node_agent.api.convert import error_message
from node_agent.api.methods import find_method
from node_agent.caller import Caller
from node_agent.errors import AgentError, ConflictError, Refusal, UnsupportedError
from node_agent.service import Service
from node_agent.version import CONTRACT, VERSION

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 24
MAX_LINE_BYTES = 1 << 20
LINE_TIMEOUT_S = 10.0
LINGER_S = 0.5


class LocalServer:
    """Serves a :class:`Service` on a Unix socket at `path`, mode 0600, from :meth:`start` to :meth:`stop`."""

    def __init__(self, service: Service, path: Path) -> None:
        self._service, self._path = service, path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._open: set[socket.socket] = set()
        self._threads = ThreadPoolExecutor(MAX_CONNECTIONS, thread_name_prefix="local")
        self._accepting = threading.Thread(target=self._accept, name="local-accept", daemon=True)

    def start(self) -> None:
        """Listen. An old socket of that name is replaced. Raises OSError."""
        fresh = self._path.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._socket.bind(str(fresh))
        fresh.chmod(0o600)
        self._socket.listen(MAX_CONNECTIONS)
        fresh.rename(self._path)
        self._accepting.start()

    def stop(self) -> None:
        """Accept nothing more, wait for no more requests, and let those who are being answered finish."""
        self._path.unlink(missing_ok=True)
        self._socket.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._socket.close()
        for connection in tuple(self._open):
            with suppress(OSError):  # it may have ended meanwhile
                connection.shutdown(socket.SHUT_RD)
        self._threads.shutdown()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # stop() has shut the socket down
                return
            if len(self._open) < MAX_CONNECTIONS:
                self._open.add(connection)
                self._threads.submit(self._converse, connection).add_done_callback(_report_bug)
            else:
                with connection:
                    _send(connection, _error_line(ConflictError("too many local clients at once")))
                    _let_go(connection)

    def _converse(self, connection: socket.socket) -> None:
        try:
            with connection:
                if all(_send(connection, line) for line in self._answers(connection)):
                    _let_go(connection)
        finally:
            self._open.discard(connection)

    def _answers(self, connection: socket.socket) -> Iterator[bytes]:
        caller = _caller(connection)
        try:
            name, request = self._parse(_read_line(connection))
            if find_method(name).streams:
                watching = cast("pb.WatchRequest", request)
                for reply in self._service.watch(watching, caller, lambda s: _has_left(connection, s)):
                    yield _reply_line(reply)
            else:
                yield _reply_line(self._service.call(name, request, caller))
        except AgentError as error:
            yield _error_line(error)

    def _parse(self, line: bytes) -> tuple[str, Message]:
        try:
            data = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise Refusal(f"the request is not JSON: {error}", field="request") from None
        if not isinstance(data, dict) or not set(data) <= {"method", "node", "contract", "request"}:
            raise Refusal("the request is not understood", allowed='{"method": …, "node": …, "request": {…}}')
        node = data.get("node", self._service.node)
        if node != self._service.node:
            raise ConflictError(f"this node is {self._service.node}, not {node}", field="node")
        contract = data.get("contract", CONTRACT)
        if contract != CONTRACT:
            raise UnsupportedError(
                f"the agent (version {VERSION}) speaks contract {CONTRACT}, not {contract}",
                field="contract",
                allowed=f"labctl node install {self._service.node}, or the labctl of its version",
            )
        method = find_method(str(data.get("method", "")))
        try:
            return method.name, json_format.ParseDict(data.get("request", {}), method.request())
        except (json_format.ParseError, TypeError, AttributeError) as error:
            raise Refusal(f"the request does not fit {method.name}: {error}", field="request") from None


def _report_bug(done: Future[None]) -> None:
    error = done.exception()
    if error is not None:
        log.error("a bug in the local socket", exc_info=error)


def _read_line(connection: socket.socket) -> bytes:
    """Up to the first line feed, bounded in size and time. Raises :class:`Refusal`."""
    data = b""
    deadline = time.monotonic() + LINE_TIMEOUT_S
    while b"\n" not in data:
        rest = deadline - time.monotonic()
        if rest <= 0 or not select.select([connection], [], [], rest)[0]:
            raise Refusal(f"no request within {LINE_TIMEOUT_S:g} s", field="request")
        piece = connection.recv(65536)
        if not piece or len(data) > MAX_LINE_BYTES:
            raise Refusal(
                "no whole request", field="request", allowed=f"one line of {MAX_LINE_BYTES} bytes at most"
            )
        data += piece
    return data[: data.index(b"\n")]


def _has_left(connection: socket.socket, seconds: float) -> bool:
    """Wait, and say whether the client has closed the connection."""
    readable = select.select([connection], [], [], seconds)[0]
    return bool(readable) and not connection.recv(65536)


def _send(connection: socket.socket, line: bytes) -> bool:
    connection.settimeout(LINE_TIMEOUT_S)
    try:
        connection.sendall(line)
    except OSError as error:
        log.info("a local client left before its answer: %s", error)
        return False
    return True


def _let_go(connection: socket.socket) -> None:
    """Read what a client says beyond its request: closing on it would take the answer away from the client."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(LINGER_S)
        for _ in range(2 * MAX_LINE_BYTES // 65536):
            if not connection.recv(65536):
                return


def _caller(connection: socket.socket) -> Caller:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", raw)
    return Caller(f"{_user(uid, pid)} by SSH", f"uid {uid} pid {pid}")


def _user(uid: int, pid: int) -> str:
    """Who became root by sudo, or the name of the user. Only root can open the socket, so it is not made up."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # it has ended already
        environment = []
    by_sudo = [line.partition(b"=")[2] for line in environment if line.startswith(b"SUDO_USER=")]
    if by_sudo:
        return by_sudo[0].decode(errors="replace")
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _reply_line(message: Message) -> bytes:
    return _line("reply", message)


def _error_line(error: AgentError) -> bytes:
    return _line("error", error_message(error))


def _line(kind: str, message: Message) -> bytes:
    # The kind comes first: `node-agent call` tells them apart without parsing.
    fields: dict[str, Any] = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return (json.dumps({kind: fields}, separators=(",", ":")) + "\n").encode()
