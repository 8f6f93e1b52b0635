"""`labctl node install` and `remove`: the agent's coming and going."""

from __future__ import annotations

import datetime as dt
import getpass
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from labctl.cli.base import pass_session
from labctl.cli.fleet import ask_all, warn_all
from labctl.cli.lab import take_inventory
from labctl.cli.node import node_group
from labctl.cli.options import complete_nodes, node_argument
from labctl.cli.session import Session
from labctl.errors import ExitCode, UsageError
from labctl.lab.install import ARCHITECTURES, PYTHON_VERSIONS
from labctl.lab.model import Node, Ready
from labctl.report.injections import recovered_line
from node_agent.api.views import InjectionList, NodeFacts
from node_agent.version import VERSION

if TYPE_CHECKING:
    from labctl.lab.root import Root
    from labctl.transport.base import Kind
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
        return certificates_of(session, node)

    with session.tools.remote(found, session.trusts) as remote:
        root = Root(remote, session.password)
        with session.progress.task(f"installing the agent on {node}") as task:
            agent, ready = _AgentOverSsh(root), _ready(session, root)
            install(
                root, files=files, bundler=build_bundle, agent=agent, ready=ready, task=task, who=myself(),
                take_over=take_over, recover=recover,
            )  # fmt: skip
        facts_now = _facts(session, root)
    _has_list(session, [node])
    version, doctor = facts_now.agent_version, session.command(f"doctor --node {node}")
    session.answer(
        {"node": node, "agent_version": version}, f"{node} has agent {version}, and it answers; next: {doctor}"
    )


def certificates_of(session: Session, node: str) -> dict[str, bytes]:
    """New ones for a node, and who is let in no more."""
    from labctl import operators
    from labctl.lab.footprint import REVOKED

    authority = session.tools.authority(session.lab)
    return authority.node_files(node) | {REVOKED: operators.read(authority).revoked_list()}


def _has_list(session: Session, nodes: Sequence[str]) -> None:
    from labctl import operators

    authority = session.tools.authority(session.lab)
    operators.write(authority, operators.read(authority).having(nodes))


def _ready(session: Session, root: Root) -> Ready:
    """The lab's own machines also get their clock set; machines that somebody owns do not.

    Where agents are reached over SSH, the login that is open is the way: its password was given.
    """
    if session.provider().kind != "ssh":
        return session.tools.ready(session.lab)
    if _by(session, root) == "grpc":
        return session.tools.answering(session.lab)
    from labctl.cli.world import ANSWER_TIMEOUT_S
    from labctl.lab.answering import make_answering
    from labctl.lab.root_transport import RootTransport

    return make_answering(lambda node: RootTransport(root), ANSWER_TIMEOUT_S)


def _by(session: Session, root: Root) -> Kind:
    return session.transport or root.remote.node.transport


def _facts(session: Session, root: Root) -> NodeFacts:
    from labctl.lab.root_transport import RootTransport
    from labctl.transport.client import AgentClient

    if _by(session, root) == "ssh":
        return AgentClient(RootTransport(root)).facts()
    return session.agent(root.remote.node).facts()


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


@node_group.command("adopt")
@node_argument()
@click.option(
    "--inventory",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Take this inventory into the lab first (provider ssh).",
)
@click.option("--renew", is_flag=True, help="Give it new certificates where its own are not right.")
@pass_session
def adopt_command(session: Session, node: str, inventory: Path | None, renew: bool) -> None:
    """Take in a node that another tool gave its agent.

    A playbook, say: `labctl node files` and `labctl node bundle` make what it needs. Looks whether program, unit,
    name and certificates are right, and changes nothing but the list of who is let in no more. Everything that is
    wrong is told at once.
    """
    from labctl import operators
    from labctl.lab import renewal
    from labctl.lab.root import Root

    if inventory:
        take_inventory(session, inventory)
    found, authority = session.node(node), session.tools.authority(session.lab)
    with session.tools.remote(found, session.trusts) as remote:
        root = Root(remote, session.password)
        with session.progress.task(f"looking at {node}"):
            seen = renewal.examine(root, authority, dt.datetime.now(dt.UTC))
            problems = (*seen.wrong, *(() if renew else seen.certificates))
            if problems:
                hint = f"labctl node install {node} puts all of it right"
                if not seen.wrong:
                    hint = f"labctl node adopt {node} --renew gives it new certificates; or {hint}"
                raise UsageError(f"{node} cannot be taken as it is: {'; '.join(problems)}", hint)
            if seen.certificates:
                renewal.renew(root, certificates_of(session, node))
            renewal.push_revoked(root, operators.read(authority).revoked_list())
            _ready(session, root)(found)
            facts_now = _facts(session, root)
    if authority.may_issue:
        _has_list(session, [node])
    version = facts_now.agent_version
    other = "" if version == VERSION else f" (this labctl is {VERSION})"
    renewed = ", with new certificates" if seen.certificates else ""
    session.answer(
        {"node": node, "agent_version": version, "renewed": bool(seen.certificates)},
        f"{node} is taken in: agent {version}{other}{renewed}; next: {session.command(f'doctor --node {node}')}",
    )


@node_group.command("renew")
@click.argument("names", nargs=-1, required=True, metavar="NODE...", shell_complete=complete_nodes)
@pass_session
def renew_command(session: Session, names: tuple[str, ...]) -> int:
    """New certificates for agents, while they run: injections stay."""
    from labctl.lab import renewal
    from labctl.lab.root import Root

    nodes = session.nodes(names)

    def one(node: Node) -> str:
        with session.tools.remote(node) as remote:
            root = Root(remote, session.password)
            renewal.renew(root, certificates_of(session, node.name))
            if _by(session, root) == "grpc":
                session.tools.answering(session.lab)(node)
        shown = session.tools.certificate(session.lab, node)
        return f"{shown.not_valid_after_utc:%Y-%m-%d}" if shown else ""

    answers = ask_all(nodes, one)
    if answers.good:
        _has_list(session, list(answers.good))
    warn_all(answers.bad)
    lines = [
        f"{name} has new certificates" + (f", until {end}" if end else "") for name, end in answers.good.items()
    ]
    code = ExitCode.LAB_BROKE if answers.bad else ExitCode.PASS
    bad = {name: error.message for name, error in answers.bad.items()}
    session.answer({"renewed": dict(answers.good), "failed": bad, "exit_code": int(code)}, "\n".join(lines))
    return code


@node_group.command("files")
@node_argument()
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="Where they go; it must not be there yet.",
)
@pass_session
def files_command(session: Session, node: str, out: Path) -> None:
    """Certificates of a node, for a tool that provisions it.

    They belong to /etc/groundfault/tls, mode 0600. Then: labctl node adopt.
    """  # fmt: skip
    from labctl.pki import write_all

    session.node(node)
    write_all(out, certificates_of(session, node))
    session.answer({"node": node, "directory": str(out)}, f"{out} has the certificates of {node}")


@node_group.command("bundle")
@click.option("--python", "python", type=click.Choice(PYTHON_VERSIONS), required=True, help="The node's Python.")
@click.option("--arch", type=click.Choice(ARCHITECTURES), default="x86_64", show_default=True, help="Its machine.")
@pass_session
def bundle_command(session: Session, python: str, arch: str) -> None:
    """The agent with its packages, for a tool that provisions nodes.

    A tar archive that is unpacked at /.
    """
    from labctl.lab.bundle import build_bundle

    made = build_bundle(python, arch, session.progress)
    session.answer({"bundle": str(made), "python": python, "arch": arch}, str(made))


def myself() -> str:
    """Who works here, for others to read: "alice@desk"."""
    return f"{getpass.getuser()}@{socket.gethostname()}"
