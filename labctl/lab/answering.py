"""Waiting for an agent that was just started on a machine that somebody owns.

Unlike the readiness of a lab's own virtual machines this changes nothing there: above all not the clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from labctl.errors import LabError
from labctl.lab.model import Node, Ready
from labctl.transport.base import ConnectError, NoAnswerError, Transport
from labctl.transport.client import AgentClient

ATTEMPT_S = 15.0
PAUSE_S = 0.5
_HOPELESS = ("other_ca", "expired", "not_yet_valid", "wrong_name", "client_refused", "node_clock")
"""Causes that waiting does not mend."""


def make_answering(
    connect: Callable[[Node], Transport],
    timeout_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Ready:
    """A wait for a node's agent. Raises :class:`LabError` after `timeout_s`, or at once where it is hopeless."""

    def ready(node: Node) -> None:
        deadline = clock() + timeout_s
        while True:
            try:
                with connect(node) as transport:
                    AgentClient(transport).facts(ATTEMPT_S)
                return
            except (ConnectError, NoAnswerError) as error:
                if isinstance(error, ConnectError) and error.cause in _HOPELESS:
                    raise
                if clock() >= deadline:
                    late = f"{node.name}: the agent did not answer within {timeout_s:g} s: {error.message}"
                    raise LabError(late, error.hint or f"labctl logs {node.name} --agent") from None
            sleep(PAUSE_S)

    return ready
