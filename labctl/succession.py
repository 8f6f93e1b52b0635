"""Another authority for a lab, while its agents serve and injections are live.

Three steps, each safe to repeat: every agent trusts the old authority and the new one; this machine turns to the
new one; every agent gets a certificate of the new one and trusts it alone. No agent is out of reach in between:
who could not be told in the first step still obeys the old one, and then nobody turns.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from labctl import operators
from labctl.lab.files import write_atomic
from labctl.pki import LabAuthority, common_name

_NEXT = "next"


def next_authority(authority: LabAuthority) -> LabAuthority:
    """The one to come, made the first time. Raises :class:`labctl.errors.LabError` where this machine may not."""
    operators.keeper_only(authority)
    name = common_name(authority.client_certificate())
    return LabAuthority.ensure(authority.directory / _NEXT, authority.lab, operator=name)


def both(authority: LabAuthority, coming: LabAuthority) -> bytes:
    """What agents trust in the first step."""
    if _has_turned(authority, coming):
        return authority.ca_file.read_bytes()
    return _alone(authority) + _alone(coming)


def turn(authority: LabAuthority, coming: LabAuthority) -> LabAuthority:
    """Use the new one here, and trust agents of both. All agents have to trust both already.

    Agents take either certificate meanwhile. A crash in between is mended by doing it again.
    """
    directory = authority.directory
    if not _has_turned(authority, coming):
        write_atomic(directory / "ca.pem", _alone(authority) + _alone(coming))
        files = coming.client_files()
        authority.replace_client(files["client.pem"], files["client.key"])
        write_atomic(directory / "ca.key", (coming.directory / "ca.key").read_bytes())
        write_atomic(directory / "ca.pem", _alone(coming) + _alone(authority))
    turned = LabAuthority.load(directory)
    # Certificates of the old authority are worth nothing to agents that trust the new one alone.
    operators.write(turned, operators.Register())
    operators.write(turned, operators.read(turned))
    shutil.rmtree(coming.directory)
    return turned


def settle(authority: LabAuthority) -> None:
    """Trust the new one alone, here too: all agents have certificates of it."""
    write_atomic(authority.ca_file, _alone(authority))


def is_under_way(directory: Path) -> bool:
    """Whether a succession was begun and has not turned yet."""
    return (directory / _NEXT).is_dir()


def _has_turned(authority: LabAuthority, coming: LabAuthority) -> bool:
    """Where the last turn was cut at its end."""
    return authority.lab_id == coming.lab_id


def _alone(authority: LabAuthority) -> bytes:
    return authority.own_pem()
