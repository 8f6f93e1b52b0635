"""Certificates of nodes that have an agent: checked, renewed, and told who is let in no more."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from labctl.errors import UsageError
from labctl.lab import footprint as at
from labctl.lab.belonging import clock_told, same_authority
from labctl.lab.install import Machine, look, write_certificates
from labctl.lab.root import Root
from labctl.operators import state_of
from labctl.pki import LabAuthority, describe_issuer, names_in, node_id


@dataclass(frozen=True)
class Found:
    """What a node has that somebody else provisioned. `wrong` is about its program, `certificates` about those."""

    machine: Machine
    wrong: tuple[str, ...]
    certificates: tuple[str, ...]


def push_revoked(root: Root, revoked: bytes) -> bool:
    """Tell a node's agent who is let in no more, from the next request on. False: there is no agent."""
    if root.ask("test", "-d", at.TLS).status != 0 or root.ask("test", "-e", at.PROGRAM).status != 0:
        return False
    root.write(f"{at.TLS}/{at.REVOKED}", revoked, "0600", beside=at.FRESH)
    return True


def trust(root: Root, authorities: bytes) -> bool:
    """Let a node's agent take operators of these authorities (PEM) from now on. False: there is no agent."""
    if root.ask("test", "-e", at.PROGRAM).status != 0:
        return False
    root.write(f"{at.TLS}/ca.pem", authorities, "0600", beside=at.FRESH)
    return True


def renew(root: Root, files: Mapping[str, bytes]) -> None:
    """Give a node's agent new certificates. It takes them while it runs: injections stay.

    Raises :class:`UsageError` where there is no agent.
    """
    if root.ask("test", "-e", at.PROGRAM).status != 0:
        raise UsageError(f"{root.name} has no agent", f"labctl node install {root.name}")
    write_certificates(root, files)
    root.run("sync", "-f", at.CONFIG)


def examine(root: Root, authority: LabAuthority, now: dt.datetime) -> Found:
    """Look at an agent that another tool put on a node. Changes nothing.

    Raises :class:`UsageError` where there is none.
    """
    machine = look(root)
    if at.PROGRAM not in machine.present or at.UNIT_FILE not in machine.present:
        lacking = at.PROGRAM if at.PROGRAM not in machine.present else at.UNIT_FILE
        raise UsageError(
            f"{root.name} has no agent: there is no {lacking}", f"labctl node install {root.name} puts one there"
        )
    wrong = []
    if machine.name != root.name:
        wrong.append(f"{at.NODE_FILE} says {machine.name or 'nothing'}, not {root.name}")
    for word, wanted in (("is-enabled", "enabled"), ("is-active", "active")):
        said = root.ask("systemctl", word, at.UNIT).stdout.strip()
        if said != wanted:
            wrong.append(f"{at.UNIT} is {said or 'not known'}, not {wanted}")
    if root.ask("cmp", "-s", at.UNIT_SOURCE, at.UNIT_FILE).status != 0:
        wrong.append(f"{at.UNIT_FILE} is not the one of the program there")
    return Found(machine, tuple(wrong), tuple(_certificates(root, machine, authority, now)))


def _certificates(root: Root, machine: Machine, authority: LabAuthority, now: dt.datetime) -> list[str]:
    """What is wrong with the certificates of a node."""
    found = _modes(root)
    if not same_authority(machine.authority, authority.ca_file.read_bytes()):
        found.append(f"{at.TLS}/ca.pem is not of lab {authority.lab} ({authority.lab_id})")
    shown = root.ask("cat", f"{at.TLS}/node.pem")
    try:
        certificate = x509.load_pem_x509_certificate(shown.stdout.encode())
    except ValueError:
        return [*found, f"{at.TLS}/node.pem is no certificate"]
    try:
        certificate.verify_directly_issued_by(authority.certificate)
    except (ValueError, TypeError, InvalidSignature):
        found.append(f"{at.TLS}/node.pem is of {describe_issuer(certificate)}")
    wanted = node_id(root.name, authority.lab)
    if wanted not in names_in(certificate):
        found.append(f"{at.TLS}/node.pem names {', '.join(names_in(certificate)) or 'nobody'}, not {wanted}")
    if state_of(certificate.not_valid_after_utc, now) == "expired":
        found.append(f"{at.TLS}/node.pem expired on {certificate.not_valid_after_utc:%Y-%m-%d}")
    if machine.clock_unix_s is not None and (told := clock_told(machine.clock_unix_s, shown.stdout.encode())):
        found.append(told)
    return found


def _modes(root: Root) -> list[str]:
    """Keys that others can read."""
    paths = (at.TLS, f"{at.TLS}/node.key")
    done = root.ask("stat", "--format", "%a %U %n", "--", *paths)
    lines = [line.split(" ", 2) for line in done.stdout.splitlines()]
    there = {path for _, _, path in lines}
    found = [f"there is no {path}" for path in paths if path not in there]
    return found + [
        f"{path} is {owner}'s with mode {mode}: others may read it"
        for mode, owner, path in lines
        if owner != "root" or int(mode, 8) & 0o077
    ]
