"""Waiting for a node that was booted or restored: its agent answers, its clock is right, its kernel is probed."""

from __future__ import annotations

import time
from collections.abc import Callable

from labctl.errors import LabctlError, LabError
from labctl.lab.model import Node, Ready
from labctl.pki import LabAuthority
from labctl.transport.base import ConnectError, NoAnswerError, Transport
from labctl.transport.client import AgentClient
from labctl.transport.grpc import GrpcTransport
from labctl.transport.ssh import SshTransport

MAX_OFFSET_S = 0.5
GOOD_OFFSET_S = 0.05
CLOCK_TRIES = 4
FIRST_ATTEMPT_S = 2.0
LONGEST_ATTEMPT_S = 10.0
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 0.3
SSH_TIMEOUT_S = 40.0

_HOPELESS = ("other_ca", "expired", "not_yet_valid", "wrong_name")
"""Causes that no waiting mends."""


def make_ready(
    authority: LabAuthority,
    timeout_s: float,
    *,
    clock: Callable[[], float] = time.time,
    by_grpc: Callable[[Node, LabAuthority], Transport] = GrpcTransport,
    by_ssh: Callable[[Node], Transport] = SshTransport,
) -> Ready:
    """What a provider calls for each node it has booted or restored.

    Returns once the agent answers, the node's wall clock is within 0.5 s of ours, and the probes are done; no
    connection is left open, since a snapshot may follow. Raises :class:`LabError` after `timeout_s`, or at once
    where waiting cannot help. All is well with one handshake and four short calls.
    """

    def ready(node: Node) -> None:
        deadline = time.monotonic() + timeout_s
        attempt, pause, ssh_tried = FIRST_ATTEMPT_S, FIRST_PAUSE_S, False
        while True:
            rest = deadline - time.monotonic()
            try:
                with by_grpc(node, authority) as transport:
                    _settle(AgentClient(transport), clock, max(0.1, min(attempt, rest)), deadline)
                return
            except ConnectError as error:
                if error.cause in _HOPELESS:
                    raise
                if error.cause == "client_refused":
                    if ssh_tried:
                        raise
                    ssh_tried = True
                    _set_clock_by_ssh(error, by_ssh(node), clock)
                    continue
                last: LabError = error
            except NoAnswerError as error:
                last = error
            if time.monotonic() >= deadline:
                raise LabError(
                    f"{node.name} was not ready within {timeout_s:g} s: {last.message}", last.hint
                ) from None
            time.sleep(pause)
            attempt, pause = min(attempt * 1.5, LONGEST_ATTEMPT_S), min(pause * 1.5, LONGEST_PAUSE_S)

    return ready


def _settle(agent: AgentClient, clock: Callable[[], float], timeout_s: float, deadline: float) -> None:
    """Set the clock with the time read after the node has answered, and look whether it is right."""
    agent.facts(timeout_s)
    one_way = 0.0
    for _ in range(CLOCK_TRIES):
        sent = clock()
        change = agent.set_clock(sent + one_way)
        back = clock()
        one_way = (back - sent) / 2
        if abs(change.after_unix_s - (sent + one_way)) <= GOOD_OFFSET_S:
            break
    offset, doubt = _offset(agent, clock)
    if abs(offset) + doubt > MAX_OFFSET_S:
        raise NoAnswerError(
            f"the clock of {agent.node_name} is {offset:+.2f} s off (known to {doubt:.2f} s) after it was set",
            "does something else set the node's clock?",
        )
    agent.probe(timeout_s=max(1.0, deadline - time.monotonic()))


def _offset(agent: AgentClient, clock: Callable[[], float]) -> tuple[float, float]:
    """How far the node's clock is ahead of ours, and how exactly that is known, in seconds."""
    sent = clock()
    read = agent.facts().clock_unix_s
    back = clock()
    return read - (sent + back) / 2, (back - sent) / 2


def _set_clock_by_ssh(refused: ConnectError, transport: Transport, clock: Callable[[], float]) -> None:
    """A node that lives in the past finds our certificate not yet valid: set its clock another way.

    Roughly right is enough: certificates become valid, and gRPC sets it exactly.
    """
    try:
        with transport as ssh:
            AgentClient(ssh).set_clock(clock(), SSH_TIMEOUT_S)
    except LabctlError as error:
        raise ConnectError(
            refused.cause,
            f"{refused.message}, and its clock cannot be set over SSH: {error.message}",
            error.hint or refused.hint,
        ) from None
