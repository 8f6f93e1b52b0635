"""The lab itself: bring it up, take it back, end it, look at it."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import click
from pydantic import ValidationError

from labctl.cli.base import LabCommand, pass_session
from labctl.cli.fleet import ask_all, some
from labctl.cli.options import labels_option, nodes_option
from labctl.cli.session import Session
from labctl.errors import ExitCode, LabctlError, UsageError
from labctl.invalid import first_problem
from labctl.lab.footprint import UNIT_FILE
from labctl.lab.inventory import read_inventory
from labctl.lab.model import LAB_NAME, KernelName, LabOptions, Node, NodeStatus, Provider
from labctl.lab.ssh import TakesHosts
from labctl.lab.store import KINDS
from labctl.report.status import NodeReport, reports_table
from labctl.report.text import PlainTable

STATUS_TIMEOUT_S = 10.0
"""How long `labctl status` waits for an agent before it calls it silent."""

_OPTION_NAMES = {"memory_mib": "--memory", "data_mib": "--data-size", "nodes": "--nodes", "cpus": "--cpus",
                 "packages": "--package", "kernel_arguments": "--kernel-argument",
                 "workload": "--workload"}  # fmt: skip


def _shown(field: str) -> str:
    """Default and range of a field of :class:`LabOptions`, for help texts."""
    schema = LabOptions.model_json_schema()["properties"][field]
    return f"[default: {schema['default']}; {schema['minimum']} to {schema['maximum']}]"


@click.command("up", cls=LabCommand)
@click.option("--nodes", type=int, metavar="N", help=f"How many nodes.  {_shown('nodes')}")
@click.option("--memory", "memory_mib", type=int, metavar="MIB", help=f"Memory of a node.  {_shown('memory_mib')}")
@click.option("--data-size", "data_mib", type=int, metavar="MIB", help=f"Its data disk.  {_shown('data_mib')}")
@click.option("--cpus", type=int, metavar="N", help=f"Its processors.  {_shown('cpus')}")
@click.option(
    "--filesystem",
    "data_filesystem",
    type=click.Choice(["ext4", "xfs"]),
    help="File system of the data disk.  [default: ext4]",
)
@click.option(
    "--kernel",
    type=click.Choice(get_args(KernelName)),
    help="Debian 13's, Debian 12's, or the lab's own with every fault facility.  [default: debian13]",
)
@click.option(
    "--package",
    "packages",
    multiple=True,
    metavar="NAME",
    help="Debian package that the nodes have, too, such as python3-bpfcc; may be repeated.",
)
@click.option(
    "--kernel-argument",
    "kernel_arguments",
    multiple=True,
    metavar="WORD",
    help="Word for the kernel's command line, such as lockdown=integrity; may be repeated.",
)
@click.option("--workload", metavar="NAME", help="Service that runs on the nodes, such as booking.")
@click.option("--internet", is_flag=True, help="Let the nodes reach the internet.")
@click.option("--bare", is_flag=True, help="Without the agent, for `labctl node install`.")
@click.option("--provider", "kind", type=click.Choice(KINDS), help="Where nodes come from.  [default: qemu]")
@click.option(
    "--inventory",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Hosts of provider ssh (TOML).",
)
@pass_session
def up(session: Session, /, kind: str | None, inventory: Path | None, **given: Any) -> int:
    """Bring the lab up.

    From its snapshot in seconds where there is one, by booting the nodes where not.

    With --provider ssh: take the hosts of an inventory into the lab and check that they can be reached.

    With --provider vagrant: have Vagrant make the nodes (docs/vagrant.md), and put the agents on them.
    """  # fmt: skip
    options = lab_options(given)
    provider = _provider(session, kind, inventory, options)
    # The clock of a machine that somebody owns is theirs.
    ready = session.tools.answering if provider.kind == "ssh" else session.tools.ready
    provider.up(options, ready(session.lab), session.progress)
    return show_status(session, provider.status())


def lab_options(given: Mapping[str, Any]) -> LabOptions | None:
    """The options of `labctl up`; None where none was given. Raises :class:`UsageError` naming the option."""
    wanted = {k: v for k, v in given.items() if k != "bare" and v not in (None, False, ())}
    if given.get("bare"):
        wanted["agent"] = False
    try:
        options = LabOptions(**wanted) if wanted else None
    except ValidationError as error:
        raise UsageError(first_problem(error, _OPTION_NAMES), "see: labctl up --help") from None
    if options and options.workload:
        from labctl.lab import workload  # of no use to other commands

        workload.check(options)
    return options


def _provider(session: Session, kind: str | None, inventory: Path | None, options: LabOptions | None) -> Provider:
    """The lab to bring up: the one there is, or a new one. Nothing is made before all input is good."""
    known = session.lab in session.tools.list_labs()
    has = session.provider().kind if known else kind or ("ssh" if inventory else "qemu")
    if kind and kind != has:
        raise UsageError(f"--provider {kind}: lab {session.lab!r} has provider {has}", "choose another --lab NAME")
    if has != "ssh":
        if inventory:
            raise UsageError("--inventory is for provider ssh", "add --provider ssh, and a --lab NAME of its own")
        return session.provider() if known else _new_lab(session, has)
    if options is not None:
        raise UsageError("provider ssh takes its nodes as they are", "leave out the options that shape machines")
    if inventory is None:
        if known:
            return session.provider()
        raise UsageError(
            "--inventory: a lab of provider ssh needs one",
            "a TOML file with [nodes.NAME] tables: address, user, key, known_hosts, port",
        )
    return take_inventory(session, inventory)


def take_inventory(session: Session, inventory: Path) -> Provider:
    """Make the hosts of an inventory the nodes of the lab, which is made where it is not there yet."""
    hosts = read_inventory(inventory)
    known = session.lab in session.tools.list_labs()
    provider = session.provider() if known else _new_lab(session, "ssh")
    if not isinstance(provider, TakesHosts):
        raise UsageError(
            f"--inventory: lab {session.lab!r} has provider {provider.kind}", "choose another --lab NAME"
        )
    provider.set_hosts(hosts)
    _meet(session, hosts)
    return provider


def _meet(session: Session, hosts: Sequence[Node]) -> None:
    """The first contact: ask about each host key that is not known, where somebody is there to say."""
    if not session.can_ask:
        return
    from labctl.transport.host_keys import is_known

    for host in hosts:
        if all(is_known(login) or login.fingerprints for login in (*host.jumps, host.login)):
            continue
        with suppress(LabctlError):  # `up` says what is wrong with each host
            with session.tools.remote(host, session.trusts):
                pass


def _new_lab(session: Session, kind: str) -> Provider:
    if not re.match(LAB_NAME, session.lab):
        raise UsageError(
            f"--lab: {session.lab!r} is no lab name", "allowed: up to 31 lower-case letters, digits, hyphens"
        )
    return session.tools.create_lab(session.lab, kind)


@click.command("reset", cls=LabCommand)
@pass_session
def reset(session: Session) -> int:
    """Take all nodes back to the golden snapshot: memory and disks."""
    provider = session.provider()
    provider.reset(session.tools.ready(session.lab), session.progress)
    _tell_again(session)
    return show_status(session, provider.status())


def _tell_again(session: Session) -> None:
    """Snapshots know nothing of who was let in no more since."""
    from labctl import operators
    from labctl.cli.operator import tell

    if not (session.tools.pki_dir(session.lab) / operators.FILE).exists():
        return
    register = operators.read(session.tools.authority(session.lab))
    if register.revoked_list():
        tell(session, register.model_copy(update={"pushed": {}}), session.nodes())


@click.command("down", cls=LabCommand)
@click.option("--destroy", is_flag=True, help="Also delete the lab: disks, snapshot, certificates.")
@pass_session
def down(session: Session, destroy: bool) -> None:
    """End everything the lab runs.

    Disks and snapshot stay: `labctl up` goes on from there.
    """
    provider = session.provider()
    if destroy:
        provider.destroy(session.progress)
    else:
        provider.down(session.progress)
    done = "destroyed" if destroy else "down"
    session.answer({"lab": session.lab, "state": done}, f"lab {session.lab} is {done}")


@click.command("status", cls=LabCommand)
@nodes_option(required=False, help="Only this node; may be repeated.")
@labels_option()
@pass_session
def status(session: Session, nodes: tuple[str, ...], labels: tuple[str, ...]) -> int:
    """Show every node: agent, live injections, clock."""
    wanted = {node.name for node in session.nodes(nodes, labels)}
    return show_status(session, [one for one in session.provider().status() if one.node.name in wanted])


def show_status(session: Session, nodes: Sequence[NodeStatus]) -> int:
    """Print the state of all nodes. 75 where a node is stuck, 70 where one that runs does not answer."""
    running = {one.node.name: one for one in nodes if one.running}
    machines = [one.node for one in running.values()]
    with session.patience(f"asking {some(running)}"):
        answers = ask_all(machines, lambda node: _report(session, running[node.name]))
    off = {one.node.name: _off(session, one) for one in nodes if not one.running}
    reports = [answers.good.get(one.node.name) or off[one.node.name] for one in nodes]
    data = {"lab": session.lab, "provider": session.provider().kind, "nodes": [one.data() for one in reports]}
    session.answer(data, reports_table(reports))
    if any(one.stuck for one in reports):
        return ExitCode.NODE_DIRTY
    return ExitCode.LAB_BROKE if any(one.agent == "silent" for one in reports) else ExitCode.PASS


def _report(session: Session, one: NodeStatus) -> NodeReport:
    if session.injections(one.node).silent is not None:
        return _held(session, one)
    try:
        return replace(_ask(session, one.node), web=one.web)
    except LabctlError as error:
        return _silent(session, one, error)


def _off(session: Session, one: NodeStatus) -> NodeReport:
    if session.injections(one.node).silent is not None:
        return _held(session, one)
    problem = "" if one.detail == "off" else one.detail
    return NodeReport(
        name=one.node.name, address=one.node.address, labels=one.node.labels, running=False, problem=problem
    )


def _held(session: Session, one: NodeStatus) -> NodeReport:
    """A node whose agent cannot answer because of a fault in its hardware: nobody has to be asked."""
    below = session.injections(one.node).below
    stuck = sum(each.state == "stuck" for each in below)
    return NodeReport(
        name=one.node.name,
        address=one.node.address,
        labels=one.node.labels,
        running=one.running,
        live=len(below) - stuck,
        stuck=stuck,
        problem="; ".join(f"{each.fault}, injection {each.id}" for each in below),
    )


def _ask(session: Session, node: Node) -> NodeReport:
    agent = session.agent(node)
    above = agent.list(timeout_s=STATUS_TIMEOUT_S).injections  # also makes the connection, which takes its time
    asked = time.time()
    facts = agent.facts(timeout_s=STATUS_TIMEOUT_S)
    answered = time.time()
    live = (*above, *session.injections(node).below)
    stuck = sum(one.state == "stuck" for one in live)
    return NodeReport(
        name=node.name,
        address=node.address,
        labels=node.labels,
        running=True,
        agent="answers",
        agent_version=facts.agent_version,
        live=len(live) - stuck,
        stuck=stuck,
        stopped=facts.stopped,
        clock_offset_s=round(facts.clock_unix_s - (asked + answered) / 2, 3),
        clock_uncertainty_s=round((answered - asked) / 2, 3),
    )


def _silent(session: Session, one: NodeStatus, error: LabctlError) -> NodeReport:
    """A node that runs and whose agent did not answer: perhaps it has none."""
    none = has_agent(session, one.node) is False
    install = "put one there: " + session.command(f"node install {one.node.name}")
    return NodeReport(
        name=one.node.name,
        address=one.node.address,
        labels=one.node.labels,
        running=True,
        agent="none" if none else "silent",
        problem=install if none else error.message,
    )


def has_agent(session: Session, node: Node) -> bool | None:
    """Whether the agent is installed on a node, looked up over SSH; None where that cannot be told."""
    try:
        with session.tools.remote(node) as remote:
            return remote.run(("test", "-e", UNIT_FILE)).status == 0
    except LabctlError:
        return None


@click.command("labs", cls=LabCommand)
@pass_session
def labs(session: Session) -> None:
    """List the labs on this machine."""
    rows = [_lab_row(session, name) for name in session.tools.list_labs()]
    table = PlainTable(
        ("LAB", "PROVIDER", "NODES", "RUNNING", ""), [[str(value) for value in row.values()] for row in rows]
    )
    session.answer({"labs": rows}, table if rows else "no labs yet; make one with: labctl up")


def _lab_row(session: Session, name: str) -> dict[str, str | int]:
    """One lab in a line; a damaged one says so instead of hiding the others."""
    try:
        provider = session.tools.open_lab(name)
        nodes = provider.status()
    except LabctlError as error:
        return {"lab": name, "provider": "-", "nodes": 0, "running": 0, "problem": error.message}
    running = sum(one.running for one in nodes)
    return {"lab": name, "provider": provider.kind, "nodes": len(nodes), "running": running, "problem": ""}


COMMANDS = (up, reset, down, status, labs)
