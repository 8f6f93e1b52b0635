"""Warnings of certificates that end soon: of nodes, and of this machine."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from labctl.cli.fleet import ask_all
from labctl.cli.session import Session
from labctl.errors import LabctlError
from labctl.lab.model import Node


def ending(session: Session, nodes: Sequence[Node]) -> list[str]:
    """A line for each certificate that ends soon or has ended, with what helps."""
    return [*_own(session), *_of_nodes(session, nodes)]


def _own(session: Session) -> list[str]:
    try:
        own = session.tools.authority(session.lab).client_certificate()
    except LabctlError:
        return []
    remedy = session.command("operator renew")
    return [line] if (line := told("the certificate of this machine", own.not_valid_after_utc, remedy)) else []


def _of_nodes(session: Session, nodes: Sequence[Node]) -> list[str]:
    if not nodes:
        return []
    shown = ask_all(nodes, lambda node: session.tools.certificate(session.lab, node)).good
    lines = (
        told(f"the certificate of {name}", one.not_valid_after_utc, session.command(f"node renew {name}"))
        for name, one in shown.items()
        if one is not None
    )
    return [line for line in lines if line]


def told(whose: str, not_after: dt.datetime, remedy: str) -> str:
    """What to tell of a certificate; empty where it lasts."""
    from labctl.operators import left, state_of

    now = dt.datetime.now(dt.UTC)
    if state_of(not_after, now) == "valid":
        return ""
    return f"{whose} ends on {not_after:%Y-%m-%d} ({left(not_after, now)}); remedy: {remedy}"
