"""The certificates and kubeconfigs of a cluster: one authority, and a key for each of its parts."""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
import json
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
_DAY = dt.timedelta(days=1)


class Authority:
    """Makes the certificates, each a pair of files NAME.crt and NAME.key in `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("kubernetes-ca", "")
        builder = self._builder(self._name, self._key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self._write("ca", builder.sign(self._key, hashes.SHA256()), self._key)
        tokens = rsa.generate_private_key(public_exponent=65537, key_size=2048)  # signs what service accounts show
        (directory / "tokens.key").write_bytes(_private(tokens))
        public = tokens.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        (directory / "tokens.pub").write_bytes(public)

    def issue(self, file: str, name: str, group: str = "", reached_as: Sequence[str] = ()) -> None:
        """A certificate for a part of the cluster, which is `name` of `group` to the API, by its own words."""
        key = ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        builder = self._builder(_name(name, group), key.public_key())
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        if reached_as:
            names = [_reached_as(one) for one in reached_as]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        self._write(file, builder.sign(self._key, hashes.SHA256()), key)

    def kubeconfig(self, file: str, server: str, namespace: str = "default") -> Path:
        """A kubeconfig for the holder of a certificate, beside it."""
        pem = {end: base64.b64encode((self.directory / end).read_bytes()).decode() for end in
               ("ca.crt", f"{file}.crt", f"{file}.key")}  # fmt: skip
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "bed",
            "clusters": [
                {"name": "bed", "cluster": {"server": server, "certificate-authority-data": pem["ca.crt"]}}
            ],
            "users": [{"name": file, "user": {"client-certificate-data": pem[f"{file}.crt"],
                                              "client-key-data": pem[f"{file}.key"]}}],
            "contexts": [{"name": "bed", "context": {"cluster": "bed", "user": file, "namespace": namespace}}],
        }  # fmt: skip
        path = self.directory / f"{file}.conf"
        path.write_text(json.dumps(config))
        return path

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + 30 * _DAY)
        )

    def _write(self, file: str, certificate: x509.Certificate, key: Key) -> None:
        (self.directory / f"{file}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        (self.directory / f"{file}.key").write_bytes(_private(key))


def _name(name: str, group: str) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group)] if group else []
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _reached_as(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _private(key: Key) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
