"""Who may command the nodes of a lab: each operator has a certificate of their own, which can be revoked.

The register lies beside the authority's key. Agents learn of a revocation from a list that is pushed to each node;
the register knows which nodes have the newest one.
"""

from __future__ import annotations

import datetime as dt
import getpass
import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from labctl.errors import LabError, UsageError
from labctl.lab.files import write_atomic
from labctl.pki import (
    BACKDATED,
    DEFAULT_OPERATOR,
    OPERATOR_NAME,
    LabAuthority,
    common_name,
    fingerprint,
    write_all,
)

FILE = "operators.json"
SOON = dt.timedelta(days=30)
"""A certificate that ends sooner is warned of."""

DEFAULT_DAYS = 90
_BLOCK = re.compile(rb"-----BEGIN ([A-Z ]+)-----[^-]+-----END \1-----\n?")

State = Literal["valid", "ends soon", "expired", "revoked"]


class Operator(BaseModel):
    """One certificate that was given to somebody. `fingerprint`: its SHA-256."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    fingerprint: str
    not_before: dt.datetime
    not_after: dt.datetime
    revoked: dt.datetime | None = None

    def state(self, now: dt.datetime) -> State:
        """What it is worth now."""
        if self.revoked:
            return "revoked"
        return state_of(self.not_after, now)


class Register(BaseModel):
    """All operators of a lab; `pushed`: which list of revoked certificates each node has, by its sum."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    operators: tuple[Operator, ...] = ()
    pushed: Mapping[str, str] = Field(default_factory=dict)

    def revoked_list(self) -> bytes:
        """What goes to the nodes: see :mod:`node_agent.revoked`."""
        lines = (f"{o.fingerprint} {o.name} {o.revoked:%Y-%m-%d}\n" for o in self.operators if o.revoked)
        return "".join(sorted(lines)).encode()

    def lacking(self, nodes: Sequence[str]) -> tuple[str, ...]:
        """The nodes that do not have the list as it is now; nobody lacks an empty one they never had."""
        now = _sum(self.revoked_list())
        empty = _sum(b"")
        return tuple(name for name in nodes if self.pushed.get(name, empty) != now)

    def having(self, nodes: Sequence[str]) -> Register:
        """With these nodes having the list."""
        now = _sum(self.revoked_list())
        return self.model_copy(update={"pushed": {**self.pushed, **dict.fromkeys(nodes, now)}})


def _sum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def state_of(not_after: dt.datetime, now: dt.datetime) -> State:
    """What a certificate with this end is worth."""
    if not_after <= now:
        return "expired"
    return "ends soon" if not_after - now < SOON else "valid"


def left(not_after: dt.datetime, now: dt.datetime) -> str:
    """How long a certificate is valid yet, in words."""
    days = (not_after - now).total_seconds() / 86400
    return f"ended {-days:.0f} days ago" if days < 0 else f"{days:.0f} days left"


def own_name() -> str:
    """The name for whoever makes a lab of real hosts: their login's."""
    try:
        name = getpass.getuser().lower()
    except (KeyError, OSError):  # no entry in the password database
        return DEFAULT_OPERATOR
    return name if re.match(OPERATOR_NAME, name) else DEFAULT_OPERATOR


def read(authority: LabAuthority) -> Register:
    """The register of a lab; this machine's own certificate is always in it."""
    path = authority.directory / FILE
    try:
        found = Register.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        found = Register()
    except (OSError, ValidationError) as error:
        raise LabError(f"{path} cannot be read: {str(error).splitlines()[0]}") from None
    own = _operator(authority.client_certificate())
    if own.fingerprint in {one.fingerprint for one in found.operators}:
        return found
    return found.model_copy(update={"operators": (own, *found.operators)})


def write(authority: LabAuthority, register: Register) -> None:
    """Keep the register."""
    write_atomic(authority.directory / FILE, register.model_dump_json(indent=1).encode())


def _operator(certificate: x509.Certificate) -> Operator:
    return Operator(
        name=common_name(certificate), fingerprint=fingerprint(certificate),
        not_before=certificate.not_valid_before_utc, not_after=certificate.not_valid_after_utc,
    )  # fmt: skip


def add(authority: LabAuthority, name: str, days: int, now: dt.datetime) -> bytes:
    """Let somebody in: their certificate, its key and the authority's certificate, as one PEM file."""
    if not re.match(OPERATOR_NAME, name):
        raise UsageError(f"NAME: {name!r}", "up to 32 lower-case letters, digits, dots, hyphens, underscores")
    register = read(authority)
    if any(one.name == name and one.state(now) in ("valid", "ends soon") for one in register.operators):
        raise UsageError(f"NAME: {name} has a certificate that is valid", f"labctl operator revoke {name}, first")
    certificate, key = authority.issue_client(now - BACKDATED, now + dt.timedelta(days=days), name)
    given = _operator(x509.load_pem_x509_certificate(certificate))
    write(authority, register.model_copy(update={"operators": (*register.operators, given)}))
    return authority.ca_file.read_bytes() + certificate + key


def revoke(authority: LabAuthority, name: str, now: dt.datetime) -> Register:
    """Take all certificates of a name back. The nodes have to be told. Raises :class:`UsageError`."""
    keeper_only(authority)
    register = read(authority)
    own = fingerprint(authority.client_certificate())
    known = dict.fromkeys(one.name for one in register.operators)
    if name not in known:
        raise UsageError(f"NAME: there is no operator {name!r}", f"operators: {', '.join(known)}")
    if any(one.name == name and one.fingerprint == own for one in register.operators):
        raise UsageError(f"NAME: {name} is who works here", "labctl operator renew gives you another certificate")
    changed = tuple(
        one.model_copy(update={"revoked": now}) if one.name == name and not one.revoked else one
        for one in register.operators
    )
    after = register.model_copy(update={"operators": changed})
    write(authority, after)
    return after


def renew(authority: LabAuthority, days: int, now: dt.datetime) -> Register:
    """Another certificate for this machine; the one of before is revoked. The nodes have to be told."""
    register = read(authority)
    old = authority.client_certificate()
    certificate, key = authority.issue_client(now - BACKDATED, now + dt.timedelta(days=days), common_name(old))
    given = _operator(x509.load_pem_x509_certificate(certificate))
    changed = tuple(
        one.model_copy(update={"revoked": now}) if one.fingerprint == fingerprint(old) else one
        for one in register.operators
    )
    after = register.model_copy(update={"operators": (*changed, given)})
    # In this order: a crash between leaves a certificate in the register that nobody has.
    write(authority, after.model_copy(update={"operators": (*register.operators, given)}))
    authority.replace_client(certificate, key)
    write(authority, after)
    return after


def take(directory: Path, pem: bytes, lab: str) -> None:
    """Become the operator whose file this is: `directory` is the lab's for certificates, and not there yet."""
    blocks = [(match[1], match[0]) for match in _BLOCK.finditer(pem)]
    if [kind for kind, _ in blocks] != [b"CERTIFICATE", b"CERTIFICATE", b"PRIVATE KEY"]:
        raise UsageError("FILE is not what labctl operator add writes", "the authority, a certificate, its key")
    ca, certificate, key = (text for _, text in blocks)
    named = x509.load_pem_x509_certificate(ca)
    theirs = LabAuthority(directory, None, named).lab
    if theirs != lab:
        raise UsageError(f"FILE is for lab {theirs}, not {lab}", f"labctl --lab {theirs} operator use FILE")
    try:
        x509.load_pem_x509_certificate(certificate).verify_directly_issued_by(named)
    except (ValueError, TypeError, InvalidSignature):
        raise UsageError("FILE: the certificate is not of its authority", "ask for another one") from None
    write_all(directory, {"ca.pem": ca, "client.pem": certificate, "client.key": key})


def keeper_only(authority: LabAuthority) -> None:
    """Raises :class:`LabError` where this machine has not the key of the authority."""
    if not authority.may_issue:
        raise LabError(
            f"this machine may command lab {authority.lab}, and not say who else may", "who keeps the lab does"
        )
