"""`labctl node install` and `remove`: the agent's coming and going."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from labctl.cli.base import pass_session
from labctl.cli.fleet import Answers, ask_all, names_of, with_node
from labctl.cli.lab import take_inventory
from labctl.cli.node import node_group
from labctl.cli.options import complete_nodes, inventory_option, labels_option
from labctl.cli.session import Session
from labctl.errors import ExitCode, UsageError
from labctl.lab.holding import myself
from labctl.lab.model import Node, Ready
from labctl.progress import Progress, SilentProgress
from node_agent.api.views import NodeFacts

if TYPE_CHECKING:
    from labctl.lab.root import Root
    from labctl.transport.base import Kind

T = TypeVar("T")


@node_group.command("install")
@click.argument("names", nargs=-1, metavar="NODE...", shell_complete=complete_nodes)
@labels_option()
@inventory_option()
@click.option("--recover", is_flag=True, help="Recover what is live on the node first.")
@click.option("--take-over", is_flag=True, help="Also where the agent there is another node's, or another lab's.")
@pass_session
def install_command(
    session: Session, /, names: tuple[str, ...], labels: tuple[str, ...], inventory: Path | None, **how: bool
) -> int:
    """Put the agent on nodes over SSH, or update the one there.

    The node downloads nothing. Refused while injections are live on it. Where a new agent does not answer, the one
    of before is put back.
    """
    if inventory:
        take_inventory(session, inventory)

    def one(node: Node, progress: Progress) -> str:
        return _install(session, node, progress, **how)

    answers = _each(session, _chosen(session, names, labels), one)
    if answers.good:
        has_list(session, list(answers.good))
    if len(answers.good) + len(answers.bad) == 1:
        ((name, version),) = answers.good.items()
        doctor = session.command(f"doctor --node {name}")
        text = f"{name} has agent {version}, and it answers; next: {doctor}"
        session.answer({"node": name, "agent_version": version}, text)
        return ExitCode.PASS
    lines = [f"{name} has agent {version}, and it answers" for name, version in answers.good.items()]
    return _several(session, answers, "installed", lines)


def _install(session: Session, node: Node, progress: Progress, *, recover: bool, take_over: bool) -> str:
    """Returns the version of the agent that answers."""
    from labctl.lab.bundle import build_bundle
    from labctl.lab.install import install
    from labctl.lab.root import Root
    from labctl.lab.root_agent import RootAgent

    def files() -> Mapping[str, bytes]:
        return certificates_of(session, node.name)

    with session.tools.remote(node, session.trusts) as remote:
        root = Root(remote, session.password)
        with progress.task(f"installing the agent on {node.name}") as task:
            agent, ready = RootAgent(root), ready_of(session, root)
            install(
                root, files=files, bundler=build_bundle, agent=agent, ready=ready, task=task, who=myself(),
                take_over=take_over, recover=recover,
            )  # fmt: skip
        return facts_of(session, root).agent_version


def _chosen(session: Session, names: Sequence[str], labels: Sequence[str]) -> tuple[Node, ...]:
    if not names and not labels:
        raise UsageError("NODE is missing", "names of nodes, or --nodes-labelled KEY=VALUE")
    return session.nodes(names, labels)


def _each(session: Session, nodes: Sequence[Node], act: Callable[[Node, Progress], T]) -> Answers[T]:
    """Do it on each node, on several at once. One node alone has a bar, and its error is raised."""
    if len(nodes) == 1:
        return Answers({nodes[0].name: act(nodes[0], session.progress)}, {})
    session.progress.note(f"at work on {names_of(nodes)}")
    return ask_all(nodes, lambda node: act(node, SilentProgress()))


def _several(session: Session, answers: Answers[Any], what: str, lines: Sequence[str]) -> int:
    """Tell how it went on several nodes."""
    code = max((error.exit_code for error in answers.bad.values()), default=ExitCode.PASS)
    bad = {name: error.message for name, error in answers.bad.items()}
    session.answer({what: dict(answers.good), "failed": bad, "exit_code": int(code)}, "\n".join(lines))
    for name, error in answers.bad.items():
        hint = f"; {session.for_this_lab(error.hint)}" if error.hint else ""
        click.echo(f"warning: {with_node(name, error)}{hint}", err=True)
    return code


def certificates_of(session: Session, node: str) -> dict[str, bytes]:
    """New ones for a node, and who is let in no more."""
    from labctl import operators
    from labctl.lab.footprint import REVOKED

    authority = session.tools.authority(session.lab)
    return authority.node_files(node) | {REVOKED: operators.read(authority).revoked_list()}


def has_list(session: Session, nodes: Sequence[str]) -> None:
    """These nodes have the list of revoked certificates as it is now."""
    from labctl import operators

    authority = session.tools.authority(session.lab)
    operators.write(authority, operators.read(authority).having(nodes))


def ready_of(session: Session, root: Root) -> Ready:
    """The lab's own machines also get their clock set; machines that somebody owns do not.

    Where agents are reached over SSH, the login that is open is the way: its password was given.
    """
    if session.provider().kind != "ssh":
        return session.tools.ready(session.lab)
    if way_of(session, root) == "grpc":
        return session.tools.answering(session.lab)
    from labctl.cli.world import ANSWER_TIMEOUT_S
    from labctl.lab.answering import make_answering
    from labctl.lab.root_transport import RootTransport

    return make_answering(lambda node: RootTransport(root), ANSWER_TIMEOUT_S)


def way_of(session: Session, root: Root) -> Kind:
    """How the agent of a node is reached."""
    return session.transport or root.remote.node.transport


def facts_of(session: Session, root: Root) -> NodeFacts:
    """Who answers there, by the way that its agent is reached."""
    from labctl.lab.root_transport import RootTransport
    from labctl.transport.client import AgentClient

    if way_of(session, root) == "ssh":
        return AgentClient(RootTransport(root)).facts()
    return session.agent(root.remote.node).facts()


@node_group.command("remove")
@click.argument("names", nargs=-1, metavar="NODE...", shell_complete=complete_nodes)
@labels_option()
@pass_session
def remove_command(session: Session, names: tuple[str, ...], labels: tuple[str, ...]) -> int:
    """Recover everything on nodes, then take the agent off them.

    With all its files. Ends with 75, and removes nothing, where something cannot be undone.
    """
    nodes = _chosen(session, names, labels)
    answers = _each(session, nodes, lambda node, progress: _remove(session, node, progress))
    each = {
        name: {"node": name, "removed": kept is not None, "kept": list(kept or ())}
        for name, kept in answers.good.items()
    }
    lines = [_removed(name, kept) for name, kept in answers.good.items()]
    if len(nodes) == 1:
        session.answer(each[nodes[0].name], lines[0])
        return ExitCode.PASS
    return _several(session, Answers(each, answers.bad), "nodes", lines)


def _remove(session: Session, node: Node, progress: Progress) -> tuple[str, ...] | None:
    from labctl.lab.install import remove
    from labctl.lab.root import Root
    from labctl.lab.root_agent import RootAgent

    with session.tools.remote(node, session.trusts) as remote:
        root = Root(remote, session.password)
        with progress.task(f"removing the agent from {node.name}") as task:
            return remove(root, RootAgent(root), task, who=myself())


def _removed(node: str, kept: Sequence[str] | None) -> str:
    if kept is None:
        return f"{node} has no agent: nothing to remove"
    others = f"; not the agent's, kept: {', '.join(kept)}" if kept else ""
    return f"{node}: the agent and all its files are gone{others}"
