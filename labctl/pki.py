"""A lab's own certificate authority: who may command the agents, and which machine is which node.

Every lab has its own authority, with a random id in its subject, so that a node of another lab of the same
name is told apart. Certificates begin two days in the past, because a restored guest lives in the past
until its clock is set. Keys are ECDSA P-256, which BoringSSL (inside gRPC) and OpenSSL both take.
"""

from __future__ import annotations

import datetime as dt
import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from labctl.errors import LabError
from labctl.lab.files import write_atomic

SERVICE_NAME = "node.groundfault"
"""The name every node's certificate carries beside its own."""

BACKDATED = dt.timedelta(days=2)
LIFETIME = dt.timedelta(days=3653)

_FILES = ("ca.pem", "ca.key", "client.pem", "client.key")
_NEEDED = ("ca.pem", "client.pem", "client.key")
"""What an operator has who may command the nodes, and not name other operators."""

DEFAULT_OPERATOR = "labctl"
OPERATOR_NAME = r"^[a-z0-9][a-z0-9_.-]{0,31}$"


def node_id(node: str, lab: str) -> str:
    """The name of a node in its certificate: stable, whatever address or forwarded port leads to it."""
    return f"{node}.{lab}.groundfault"


class LabAuthority:
    """The authority of one lab, kept in a directory that only its owner can read."""

    def __init__(
        self, directory: Path, key: ec.EllipticCurvePrivateKey | None, certificate: x509.Certificate
    ) -> None:
        self.directory = directory
        self._key, self._certificate = key, certificate

    @classmethod
    def create(
        cls, directory: Path, lab: str, now: dt.datetime | None = None, operator: str = DEFAULT_OPERATOR
    ) -> Self:
        """Make a new authority, all files at once or none. Raises :class:`LabError` where there is one already.

        `operator`: the name in the certificate that this machine shows to agents.
        """
        now = now or _now()
        key, name = _new_key(), _authority_name(lab)
        certificate = _sign_authority(key, name, now - BACKDATED, now + LIFETIME)
        authority = cls(directory, key, certificate)
        client_certificate, client_key = authority.issue_client(now - BACKDATED, now + LIFETIME, operator)
        contents = (_pem(certificate), _key_pem(key), client_certificate, client_key)
        write_all(directory, dict(zip(_FILES, contents, strict=True)))
        return authority

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read the authority back. Raises :class:`LabError` where it is absent or unreadable."""
        try:
            missing = [name for name in _NEEDED if not (directory / name).is_file()]
            if missing:
                raise ValueError(f"{missing[0]} is missing")
            own = directory / "ca.key"
            key = serialization.load_pem_private_key(own.read_bytes(), None) if own.is_file() else None
            certificate = x509.load_pem_x509_certificate((directory / "ca.pem").read_bytes())
        except (OSError, ValueError) as error:
            raise LabError(
                f"cannot read the lab's certificates in {directory}: {error}", "has the lab been brought up?"
            ) from None
        if key is not None and not isinstance(key, ec.EllipticCurvePrivateKey):
            raise LabError(f"{directory / 'ca.key'} is not a key that labctl made")
        return cls(directory, key, certificate)

    @classmethod
    def ensure(cls, directory: Path, lab: str, operator: str = DEFAULT_OPERATOR) -> Self:
        """Load the authority, or create it where there is none."""
        return cls.load(directory) if directory.is_dir() else cls.create(directory, lab, operator=operator)

    @property
    def lab(self) -> str:
        """The lab's name."""
        return _attribute(self._certificate.subject, NameOID.ORGANIZATIONAL_UNIT_NAME)

    @property
    def lab_id(self) -> str:
        """The random id that tells this lab from others of its name."""
        return _attribute(self._certificate.subject, NameOID.SERIAL_NUMBER)

    @property
    def may_issue(self) -> bool:
        """Whether this machine has the authority's key: an operator who was let in has not."""
        return self._key is not None

    @property
    def certificate(self) -> x509.Certificate:
        """The authority's own."""
        return self._certificate

    def own_pem(self) -> bytes:
        """The authority's certificate alone: its file may name another one besides."""
        return _pem(self._certificate)

    def client_certificate(self) -> x509.Certificate:
        """What this machine shows to agents, as it is now."""
        return x509.load_pem_x509_certificate(self.client_certificate_file.read_bytes())

    def replace_client(self, certificate: bytes, key: bytes) -> None:
        """Show another certificate from now on. The key first: a pair that does not fit is refused at once."""
        write_atomic(self.client_key_file, key)
        write_atomic(self.client_certificate_file, certificate)

    @property
    def ca_file(self) -> Path:
        """The authority's certificate, as a file."""
        return self.directory / "ca.pem"

    @property
    def client_certificate_file(self) -> Path:
        return self.directory / "client.pem"

    @property
    def client_key_file(self) -> Path:
        return self.directory / "client.key"

    def client_files(self) -> dict[str, bytes]:
        """What labctl shows to agents: "ca.pem", "client.pem", "client.key"."""
        return {name: (self.directory / name).read_bytes() for name in ("ca.pem", "client.pem", "client.key")}

    def node_files(
        self, node: str, not_before: dt.datetime | None = None, not_after: dt.datetime | None = None
    ) -> dict[str, bytes]:
        """A fresh key and certificate for a node: "ca.pem", "node.pem", "node.key". Nothing is kept."""
        names = (node_id(node, self.lab), SERVICE_NAME)
        certificate, key = self._issue(names[0], names, ExtendedKeyUsageOID.SERVER_AUTH, not_before, not_after)
        return {"ca.pem": _pem(self._certificate), "node.pem": certificate, "node.key": key}

    def issue_client(
        self,
        not_before: dt.datetime | None = None,
        not_after: dt.datetime | None = None,
        name: str = DEFAULT_OPERATOR,
    ) -> tuple[bytes, bytes]:
        """A fresh client certificate and its key, in PEM. The one that labctl uses is in the directory."""
        return self._issue(name, (), ExtendedKeyUsageOID.CLIENT_AUTH, not_before, not_after)

    def _issue(
        self,
        name: str,
        dns: Sequence[str],
        usage: x509.ObjectIdentifier,
        not_before: dt.datetime | None,
        not_after: dt.datetime | None,
    ) -> tuple[bytes, bytes]:
        if self._key is None:
            raise LabError(
                f"this machine may command lab {self.lab}, and not make certificates for it",
                "who keeps the lab does: labctl operator add, labctl node install",
            )
        key = _new_key()
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])]))
            .issuer_name(self._certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(not_before or _now() - BACKDATED)
            .not_valid_after(not_after or _now() + LIFETIME)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(sign_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
        )
        if dns:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([x509.DNSName(n) for n in dns]), critical=False
            )
        return _pem(builder.sign(self._key, hashes.SHA256())), _key_pem(key)


def write_all(directory: Path, files: Mapping[str, bytes]) -> None:
    """Make a directory of private files, all at once. Raises :class:`LabError` where it is there already."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    # mkdtemp gives mode 0700, and the rename makes all files appear at once.
    fresh = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        for file, content in files.items():
            _write_new(fresh / file, content)
        fresh.rename(directory)
    except OSError as error:
        shutil.rmtree(fresh)
        raise LabError(
            f"cannot write the lab's certificates to {directory}: {error.strerror}",
            "destroy the lab that holds them first, or choose another name",
        ) from None


def fingerprint(certificate: x509.Certificate) -> str:
    """The SHA-256 of a certificate: what an agent knows a revoked one by."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def common_name(certificate: x509.Certificate) -> str:
    """The name of an operator in a certificate."""
    return _attribute(certificate.subject, NameOID.COMMON_NAME)


def describe_issuer(certificate: x509.Certificate) -> str:
    """Which lab's authority signed a certificate, for people: "lab demo (1a2b3c4d)"."""
    lab = _attribute(certificate.issuer, NameOID.ORGANIZATIONAL_UNIT_NAME)
    return f"lab {lab} ({_attribute(certificate.issuer, NameOID.SERIAL_NUMBER)})" if lab else "no lab"


def names_in(certificate: x509.Certificate) -> tuple[str, ...]:
    """The DNS names of a certificate; its common name where it has none."""
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        common = _attribute(certificate.subject, NameOID.COMMON_NAME)
        return (common,) if common else ()
    return tuple(extension.value.get_values_for_type(x509.DNSName))


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def _authority_name(lab: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "groundfault"),
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, lab),
            x509.NameAttribute(NameOID.SERIAL_NUMBER, secrets.token_hex(4)),
            x509.NameAttribute(NameOID.COMMON_NAME, f"groundfault lab {lab}"),
        ]
    )


def _sign_authority(
    key: ec.EllipticCurvePrivateKey, name: x509.Name, not_before: dt.datetime, not_after: dt.datetime
) -> x509.Certificate:
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(not_before)
        .not_valid_after(not_after)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(sign_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _key_usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _attribute(name: x509.Name, oid: x509.ObjectIdentifier) -> str:
    found = name.get_attributes_for_oid(oid)
    return str(found[0].value) if found else ""


def _write_new(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
