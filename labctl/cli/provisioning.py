"""Nodes that another tool provisions, and new certificates for nodes: adopt, renew, files, bundle, payload."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import click

from labctl.cli.base import pass_session
from labctl.cli.fleet import ask_all, warn_all
from labctl.cli.installing import certificates_of, facts_of, has_list, ready_of, way_of
from labctl.cli.lab import take_inventory
from labctl.cli.node import node_group
from labctl.cli.options import complete_nodes, inventory_option, labels_option, node_argument
from labctl.cli.session import Session
from labctl.errors import ExitCode, UsageError
from labctl.lab.install import ARCHITECTURES, PYTHON_VERSIONS
from labctl.lab.model import Node
from node_agent.version import VERSION


@node_group.command("adopt")
@node_argument()
@inventory_option()
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
            if authority.may_issue:  # others do not know who is let in no more
                renewal.push_revoked(root, operators.read(authority).revoked_list())
            ready_of(session, root)(found)
            facts_now = facts_of(session, root)
    if authority.may_issue:
        has_list(session, [node])
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
            if way_of(session, root) == "grpc":
                session.tools.answering(session.lab)(node)
        shown = session.tools.certificate(session.lab, node)
        return f"{shown.not_valid_after_utc:%Y-%m-%d}" if shown else ""

    answers = ask_all(nodes, one)
    if answers.good:
        has_list(session, list(answers.good))
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


@node_group.command("payload")
@click.argument("names", nargs=-1, metavar="NODE...", shell_complete=complete_nodes)
@labels_option()
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="Where it goes; a payload that is there is replaced.",
)
@click.option(
    "--python",
    "pythons",
    type=click.Choice(PYTHON_VERSIONS),
    multiple=True,
    help="The nodes' Pythons.  [default: all]",
)
@click.option(
    "--arch",
    "archs",
    type=click.Choice(ARCHITECTURES),
    multiple=True,
    default=("x86_64",),
    show_default=True,
    help="Their machines.",
)
@pass_session
def payload_command(
    session: Session,
    *,
    names: tuple[str, ...],
    labels: tuple[str, ...],
    out: Path,
    pythons: tuple[str, ...],
    archs: tuple[str, ...],
) -> None:
    """All that nodes get, as a directory for the Ansible role.

    The agent for each kind of node, certificates, unit, and the list of what goes where. Has private keys in it.
    """  # fmt: skip
    from labctl.lab.bundle import build_bundle, bundle_key
    from labctl.lab.payload import write_payload

    if not names and not labels:
        raise UsageError("NODE is missing", "names of nodes, or --nodes-labelled KEY=VALUE")
    nodes = [node.name for node in session.nodes(names, labels)]
    kinds = [
        (python, arch) for python in dict.fromkeys(pythons or PYTHON_VERSIONS) for arch in dict.fromkeys(archs)
    ]
    bundles = {kind: (bundle_key(*kind), build_bundle(*kind, session.progress)) for kind in kinds}
    made = write_payload(
        out, session.tools.authority(session.lab), bundles, nodes, lambda node: certificates_of(session, node)
    )
    session.answer(
        {"directory": str(out), "nodes": nodes, "programs": list(made.programs)},
        f"{out} has what {', '.join(nodes)} get{'s' if len(nodes) == 1 else ''}, private keys among it; "
        "next: ansible-playbook ansible/install.yml",
    )
