"""`labctl node install` and `remove`: the agent's coming and going."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from labctl.cli.base import pass_session
from labctl.cli.lab import take_inventory
from labctl.cli.node import node_group
from labctl.cli.options import node_argument
from labctl.cli.session import Session
from labctl.lab.model import Ready
from labctl.report.injections import recovered_line
from node_agent.api.views import InjectionList

if TYPE_CHECKING:
    from labctl.lab.root import Root
    from labctl.transport.client import AgentClient


class _AgentOverSsh:
    """:class:`labctl.lab.install.Agent`: asked over SSH, the way that is open anyway."""

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


@node_group.command("install")
@node_argument()
@click.option(
    "--inventory",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Take this inventory into the lab first (provider ssh).",
)
@click.option("--recover", is_flag=True, help="Recover what is live on the node first.")
@click.option("--take-over", is_flag=True, help="Also where the agent there is another node's, or another lab's.")
@pass_session
def install_command(session: Session, node: str, inventory: Path | None, recover: bool, take_over: bool) -> None:
    """Put the agent on a node over SSH, or update the one there.

    The node downloads nothing. Refused while injections are live on it. Where a new agent does not answer, the one
    of before is put back.
    """
    from labctl.lab.bundle import build_bundle
    from labctl.lab.install import install
    from labctl.lab.root import Root

    if inventory:
        take_inventory(session, inventory)
    found = session.node(node)

    def files() -> Mapping[str, bytes]:
        return session.tools.authority(session.lab).node_files(node)

    with session.tools.remote(found, session.trusts) as remote:
        root = Root(remote, session.password)
        with session.progress.task(f"installing the agent on {node}") as task:
            agent, ready = _AgentOverSsh(root), _ready(session)
            install(
                root, files=files, bundler=build_bundle, agent=agent, ready=ready, task=task, who=myself(),
                take_over=take_over, recover=recover,
            )  # fmt: skip
    facts_now = session.agent(found).facts()
    version, doctor = facts_now.agent_version, session.command(f"doctor --node {node}")
    session.answer(
        {"node": node, "agent_version": version}, f"{node} has agent {version}, and it answers; next: {doctor}"
    )


def _ready(session: Session) -> Ready:
    """The lab's own machines also get their clock set; machines that somebody owns do not."""
    real = session.provider().kind == "ssh"
    return session.tools.answering(session.lab) if real else session.tools.ready(session.lab)


@node_group.command("remove")
@node_argument()
@pass_session
def remove_command(session: Session, node: str) -> None:
    """Recover everything on a node, then take the agent off it.

    With all its files. Ends with 75, and removes nothing, where something cannot be undone.
    """
    from labctl.lab.install import remove
    from labctl.lab.root import Root

    found = session.node(node)
    with session.tools.remote(found, session.trusts) as remote:
        root = Root(remote, session.password)
        with session.progress.task(f"removing the agent from {node}") as task:
            kept = remove(root, _AgentOverSsh(root), task, who=myself())
    data = {"node": node, "removed": kept is not None, "kept": list(kept or ())}
    if kept is None:
        text = f"{node} has no agent: nothing to remove"
    else:
        text = f"{node}: the agent and all its files are gone"
        text += f"; not the agent's, kept: {', '.join(kept)}" if kept else ""
    session.answer(data, text)


def myself() -> str:
    """Who works here, for others to read: "alice@desk"."""
    return f"{getpass.getuser()}@{socket.gethostname()}"
