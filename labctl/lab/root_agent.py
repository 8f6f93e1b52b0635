"""The agent that is there already, as an install or a removal asks it: over the login that is open anyway."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from labctl.report.injections import recovered_line
from node_agent.api.views import InjectionList

if TYPE_CHECKING:
    from labctl.lab.root import Root
    from labctl.transport.client import AgentClient


class RootAgent:
    """:class:`labctl.lab.install.Agent` over SSH."""

    def __init__(self, root: Root) -> None:
        self._root = root

    def _ask(self, question: Callable[[AgentClient], InjectionList]) -> InjectionList:
        from labctl.lab.root_transport import RootTransport
        from labctl.transport.client import AgentClient

        return question(AgentClient(RootTransport(self._root)))

    def live(self) -> Sequence[str]:
        """Ids of live injections."""
        return [one.id for one in self._ask(lambda agent: agent.list()).injections]

    def recover(self) -> Sequence[str]:
        """Recover everything; tells what is stuck."""
        answer = self._ask(lambda agent: agent.recover(everything=True))
        return [recovered_line(one) for one in answer.injections if one.state != "recovered"]

    def heal(self) -> Sequence[str]:
        """Recover everything and refuse new faults; tells what is stuck."""
        answer = self._ask(lambda agent: agent.recover(stop="set"))
        return [recovered_line(one) for one in answer.injections if one.state != "recovered"]
