"""Whose the agent on a node is, and whether our certificates can be valid there."""

from __future__ import annotations

import datetime as dt
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from labctl.errors import LabError, UsageError
from labctl.lab import footprint as at

if TYPE_CHECKING:
    from labctl.lab.install import Machine

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----")


def same_authority(theirs: str, ours: bytes) -> bool:
    """Whether two files of authorities (PEM) have one in common."""

    def blocks(text: str) -> set[str]:
        return {"".join(found.split()) for found in _CERTIFICATE.findall(text)}

    return bool(blocks(theirs) & blocks(ours.decode(errors="replace")))


def refuse_another(name: str, machine: Machine, files: Mapping[str, bytes]) -> None:
    """Raises :class:`UsageError` where the agent there is another node's, or obeys another lab."""
    if not at.SIGNS.intersection(machine.present):
        return
    if machine.name and machine.name != name:
        raise UsageError(
            f"{name}: that host is node {machine.name} already; nothing was changed",
            f"correct the inventory, or where the node was renamed: labctl node install {name} --take-over",
        )
    if machine.authority and not same_authority(machine.authority, files["ca.pem"]):
        raise UsageError(
            f"{name}: the agent there obeys another lab; nothing was changed",
            f"remove it with that lab, or: labctl node install {name} --take-over",
        )


def refuse_clock(name: str, machine: Machine, files: Mapping[str, bytes]) -> None:
    """Raises :class:`LabError` where the node's clock lies outside the dates of its certificate."""
    if machine.clock_unix_s is None:
        return
    told = clock_told(machine.clock_unix_s, files["node.pem"])
    if told:
        raise LabError(
            f"{name}: {told}; nothing was changed", "set the node's clock (timedatectl set-ntp true), then again"
        )


def clock_told(clock_unix_s: float, certificate: bytes) -> str:
    """What is wrong with a node's clock for a certificate; empty where nothing is."""
    from cryptography import x509

    dates = x509.load_pem_x509_certificate(certificate)
    first, last = dates.not_valid_before_utc.timestamp(), dates.not_valid_after_utc.timestamp()
    if first <= clock_unix_s <= last:
        return ""
    days = (clock_unix_s - time.time()) / 86400
    says = dt.datetime.fromtimestamp(clock_unix_s, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    side = f"{abs(days):.0f} days {'ahead of' if days > 0 else 'behind'} the one here"
    return f"the node's clock is {says}, {side}: our certificates are {_state(clock_unix_s, first)} there"


def _state(clock_unix_s: float, first: float) -> str:
    return "not yet valid" if clock_unix_s < first else "expired"
