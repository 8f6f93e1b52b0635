"""What every way to an agent offers, and how what goes wrong on it is told to people."""

from __future__ import annotations

from collections.abc import Generator
from types import TracebackType
from typing import Literal, Protocol, Self

from google.protobuf.message import Message

from labctl.errors import LabctlError, LabError, NodeDirtyError, NotThereError, UnsupportedError, UsageError
from labctl.lab.model import Node
from node_agent.api import agent_pb2 as pb
from node_agent.version import CONTRACT

Kind = Literal["grpc", "ssh"]

Cause = Literal[
    "refused", "unreachable", "timeout", "closed", "not_an_agent", "other_ca", "expired", "not_yet_valid",
    "wrong_name", "client_refused", "node_clock", "host_key", "login", "not_running",
]  # fmt: skip
"""Why no agent could be reached. `closed`: something accepts and hangs up, as a forwarded port does while the
node behind it boots. `node_clock`: the node finds our certificate outside its dates."""


NEVER_ASKED: tuple[Cause, ...] = (
    "not_an_agent", "other_ca", "expired", "not_yet_valid", "wrong_name", "client_refused", "node_clock",
    "host_key", "login",
)  # fmt: skip


class ConnectError(LabError):
    """No agent can be reached. With a cause of :data:`NEVER_ASKED` it has not been asked anything either."""

    def __init__(self, cause: Cause, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.cause = cause


class NoAnswerError(LabError):
    """The agent was asked and gave no answer: whether it did it is not known."""


class AgentFailedError(LabError):
    """The agent answered that it could not. `code` is the contract's: stopped, storage, apply_failed, internal."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.code = code


class Transport(Protocol):
    """A way to one agent. Connects when first used."""

    @property
    def node(self) -> Node: ...
    def call(self, method: str, request: Message, timeout_s: float) -> Message:
        """Ask and wait for the answer. Raises a :class:`LabctlError` within about `timeout_s`."""

    def watch(self, request: pb.WatchRequest) -> Generator[pb.Injection]:
        """The answers of Watch until the injection ends. Close the generator to leave it. Raises as `call`."""

    def close(self) -> None:
        """End the connection. Using the transport again connects anew."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class ClosingTransport:
    """The context manager of a transport."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_OTHER_VERSION = "its agent is older than this labctl: labctl node install puts this version there"


def unknown_method(node: str, method: str) -> UnsupportedError:
    """The agent does not know the method, or nothing of this version of the contract; it has done nothing."""
    return UnsupportedError(f"{node}: its agent does not know {method} of contract {CONTRACT}", _OTHER_VERSION)


def answered_error(node: str, error: pb.Error) -> LabctlError:
    """The error of an agent, as the control side's: bad input, unsupported, a dirty node, or a broken lab."""
    message = f"{node}: {error.message}"
    if error.code == "not_found" and error.field == "method":
        return UnsupportedError(message, _OTHER_VERSION)
    match error.code:
        case "refused" | "not_found" | "conflict":
            kind = NotThereError if error.code == "not_found" else UsageError
            return kind(message, error.allowed or (f"the field is {error.field}" if error.field else ""))
        case "unsupported":
            return UnsupportedError(message, error.allowed)
        case "stuck":
            return NodeDirtyError(message, error.allowed or f"labctl node residue {node} shows what is left")
        case "stopped":
            return AgentFailedError(
                error.code, message, error.allowed or "labctl stop --clear allows faults again"
            )
        case "revoked":
            return ConnectError(
                "client_refused", f"{node} refuses our certificate: {error.message}", error.allowed
            )
    return AgentFailedError(error.code or "internal", message, error.allowed)
