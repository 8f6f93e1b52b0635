"""`labctl operator`: who may command the nodes of a lab."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from labctl.cli.base import LabGroup, pass_session
from labctl.cli.fleet import ask_all, failure, some, warn_all
from labctl.cli.session import Session
from labctl.errors import ExitCode, UsageError
from labctl.lab.model import Node
from labctl.report.text import PlainTable

if TYPE_CHECKING:
    from labctl.operators import Operator, Register

DAYS = click.IntRange(1, 3650)


@click.group("operator", cls=LabGroup)
def operator_group() -> None:
    """Who may command the nodes: certificates, and taking them back."""


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


@operator_group.command("list")
@pass_session
def list_command(session: Session) -> None:
    """Every certificate that was given, and what it is worth."""
    from labctl import operators
    from labctl.pki import fingerprint

    authority = session.tools.authority(session.lab)
    register = operators.read(authority)
    own = fingerprint(authority.client_certificate())
    lacking = register.lacking([node.name for node in session.nodes()])
    rows = [_row(one, one.fingerprint == own, lacking) for one in register.operators]
    data = {
        "operators": [{**one.model_dump(mode="json"), "state": one.state(_now())} for one in register.operators],
        "this_machine": own,
        "nodes_without_the_list": lacking,
    }
    session.answer(data, PlainTable(("NAME", "CERTIFICATE", "UNTIL", "STATE"), rows))


def _row(one: Operator, own: bool, lacking: Sequence[str]) -> tuple[str, str, str, str]:
    from labctl.operators import left

    state = one.state(_now())
    if state == "revoked" and one.revoked:
        state_text = f"revoked on {one.revoked:%Y-%m-%d}" + (f"; not yet on {some(lacking)}" if lacking else "")
    else:
        state_text = f"{state}, {left(one.not_after, _now())}"
    return one.name, one.fingerprint[:16], f"{one.not_after:%Y-%m-%d}", state_text + (" (here)" if own else "")


@operator_group.command("add")
@click.argument("name", metavar="NAME")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    metavar="FILE",
    help="Where their certificate and key go; only you can read it.",
)
@click.option("--days", type=DAYS, default=90, show_default=True, help="How long it is valid.")
@pass_session
def add_command(session: Session, name: str, out: Path, days: int) -> None:
    """Let somebody in: a certificate of their own.

    They take it with `labctl operator use FILE`. What they do is in `labctl audit` under this name.
    """  # fmt: skip
    from labctl import operators

    if out.exists():
        raise UsageError(f"--out: {out} is there already", "another name")
    authority = session.tools.authority(session.lab)
    content = operators.add(authority, name, days, _now())
    try:
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise UsageError(
            f"--out: {out} cannot be made: {error.strerror}", f"labctl operator revoke {name}"
        ) from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    session.answer(
        {"name": name, "file": str(out), "days": days},
        f"{out} lets {name} in for {days} days; with the inventory and this file they do: "
        f"labctl --lab {session.lab} operator use {out.name}",
    )


@operator_group.command("use")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE")
@pass_session
def use_command(session: Session, file: Path) -> None:
    """Become an operator of a lab that somebody else keeps.

    FILE is what `labctl operator add` wrote. Then: labctl up --provider ssh --inventory FILE. Nodes cannot be
    installed from here.
    """
    from labctl import operators

    try:
        content = file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None
    operators.take(session.tools.pki_dir(session.lab), content, session.lab)
    session.answer(
        {"lab": session.lab},
        f"lab {session.lab} can be commanded from here; next: "
        f"labctl --lab {session.lab} up --provider ssh --inventory FILE",
    )


@operator_group.command("revoke")
@click.argument("name", metavar="NAME")
@pass_session
def revoke_command(session: Session, name: str) -> int:
    """Let somebody in no more, and tell every node.

    A node that cannot be reached lets them in until it is told: `labctl operator push`. Ends with 70 then.
    """
    from labctl import operators

    register = operators.revoke(session.tools.authority(session.lab), name, _now())
    return _tell(session, register, f"{name} is let in no more")


@operator_group.command("push")
@pass_session
def push_command(session: Session) -> int:
    """Tell every node who is let in no more, again."""
    from labctl import operators

    return _tell(session, operators.read(session.tools.authority(session.lab)), "told")


@operator_group.command("renew")
@click.option("--days", type=DAYS, default=365, show_default=True, help="How long it is valid.")
@pass_session
def renew_command(session: Session, days: int) -> int:
    """Another certificate for this machine, the old one revoked."""
    from labctl import operators

    authority = session.tools.authority(session.lab)
    register = operators.renew(authority, days, _now())
    return _tell(session, register, f"the certificate here is new, for {days} days")


@operator_group.command("new-authority")
@pass_session
def new_authority_command(session: Session) -> int:
    """Another authority for the lab, while its agents serve.

    Every node has to be within reach; where one is not nothing is turned, and the command is repeated later. Other
    operators need new certificates afterwards: `labctl operator add`.
    """
    from labctl import succession
    from labctl.cli.installing import certificates_of
    from labctl.lab import renewal
    from labctl.lab.root import Root

    authority = session.tools.authority(session.lab)
    coming = succession.next_authority(authority)
    trusted = succession.both(authority, coming)

    def at(node: Node, act: Callable[[Root], bool]) -> bool:
        with session.tools.remote(node) as remote:
            return act(Root(remote, session.password))

    told = ask_all(session.nodes(), lambda node: at(node, lambda root: renewal.trust(root, trusted)))
    if told.bad:
        raise failure(told, "the old authority goes on; nothing was turned")
    turned = succession.turn(authority, coming)
    nodes = [node for node in session.nodes() if told.good[node.name]]

    def renewed(root: Root) -> bool:
        renewal.renew(root, certificates_of(session, root.name))
        return True

    answers = ask_all(nodes, lambda node: at(node, renewed))
    warn_all(answers.bad)
    if not answers.bad:
        succession.settle(turned)
    late = f"; NOT on {some(answers.bad)}: labctl node renew {' '.join(answers.bad)}" if answers.bad else ""
    code = ExitCode.LAB_BROKE if answers.bad else ExitCode.PASS
    data = {"authority": turned.lab_id, "renewed": list(answers.good), "failed": list(answers.bad)}
    on = f", on {some(answers.good)} too" if answers.good else ""
    text = f"lab {session.lab} has a new authority ({turned.lab_id}){on}{late}"
    session.answer({**data, "exit_code": int(code)}, session.for_this_lab(text))
    return code


def _tell(session: Session, register: Register, what: str) -> int:
    told, untold = tell(session, register, session.nodes())
    on = f"; on {some(told)}" if told else ""
    later = f"; NOT on {some(untold)}: labctl operator push" if untold else ""
    code = ExitCode.LAB_BROKE if untold else ExitCode.PASS
    data = {"told": told, "not_told": untold, "exit_code": int(code)}
    session.answer(data, session.for_this_lab(f"{what}{on}{later}"))
    return code


def tell(session: Session, register: Register, nodes: Sequence[Node]) -> tuple[list[str], list[str]]:
    """Push the list of revoked certificates: the nodes that have it, and those that could not be told.

    A node without an agent gets it with the agent. Only who keeps the lab has the list: others would push an empty
    one.
    """
    from labctl import operators
    from labctl.lab.renewal import push_revoked
    from labctl.lab.root import Root

    authority = session.tools.authority(session.lab)
    operators.keeper_only(authority)

    def push(node: Node) -> bool:
        with session.tools.remote(node) as remote:
            return push_revoked(Root(remote, session.password), register.revoked_list())

    answers = ask_all(nodes, push)
    warn_all(answers.bad)
    told = [name for name, has_agent in answers.good.items() if has_agent]
    operators.write(authority, register.having(told))
    return told, list(answers.bad)


COMMANDS = (operator_group,)
