"""What makes one node of a lab different from the others: names, addresses, keys, certificates.

It reaches the node as a tar archive through QEMU's firmware configuration device, and the initramfs unpacks it on
the first boot (docs/specs/fw_cfg in QEMU; `qemu_fw_cfg` in Linux).
"""

from __future__ import annotations

import hashlib
import io
import ipaddress
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from labctl.lab.bundle import add_file
from labctl.lab.files import write_atomic
from labctl.lab.model import LabOptions

MGMT_ADDRESS, MGMT_GATEWAY, MGMT_RESOLVER = "10.0.2.15", "10.0.2.2", "10.0.2.3"
"""QEMU's user network is the same in each node; only the forwarded ports differ."""


def node_names(count: int) -> tuple[str, ...]:
    """w1, w2, w3 …"""
    return tuple(f"w{number}" for number in range(1, count + 1))


def lan_address(index: int) -> str:
    """The address on the lab network of the node with this number, counted from 1."""
    return f"10.77.0.{index}"


def lan_addresses(index: int) -> tuple[str, ...]:
    """All its addresses there: IPv4, and the link-local one made of the card's (RFC 4291, appendix A)."""
    octets = [int(part, 16) for part in mac(index, lan=True).split(":")]
    interface = bytes((octets[0] ^ 2, *octets[1:3], 0xFF, 0xFE, *octets[3:]))
    return lan_address(index), str(ipaddress.IPv6Address(b"\xfe\x80" + bytes(6) + interface))


def mac(index: int, *, lan: bool) -> str:
    """The image's udev rules name the cards by the fifth byte."""
    return f"52:54:00:67:{'02' if lan else '01'}:{index:02x}"


def machine_id(lab: str, name: str) -> str:
    """A node keeps its machine-id when its disks are made anew."""
    return hashlib.sha256(f"groundfault\0{lab}\0{name}".encode()).hexdigest()[:32]


@dataclass(frozen=True)
class KeyPair:
    """An ed25519 key in OpenSSH's formats. `public` is one line without a comment."""

    private: bytes
    public: str


def new_key() -> KeyPair:
    """A fresh SSH key."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return KeyPair(private, public.decode())


def kept_key(path: Path) -> KeyPair:
    """The SSH key in `path`, made there the first time."""
    if not path.is_file():
        write_atomic(path, new_key().private)
    private = path.read_bytes()
    key = serialization.load_ssh_private_key(private, None)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return KeyPair(private, public.decode())


def known_hosts(hosts: Sequence[tuple[str, int, str]]) -> bytes:
    """OpenSSH's known_hosts for (address, port, public key)."""
    return "".join(f"[{address}]:{port} {public}\n" for address, port, public in hosts).encode()


def _hosts(count: int) -> str:
    names = "".join(f"{lan_address(i)} {name}\n" for i, name in enumerate(node_names(count), 1))
    return f"127.0.0.1 localhost\n::1 localhost ip6-localhost\n{names}"


def _network(index: int, internet: bool) -> str:
    gateway = MGMT_GATEWAY if internet else ""
    return f"MGMT={MGMT_ADDRESS}/24\nLAN={lan_address(index)}/24\nGATEWAY={gateway}\n"


def identity_files(
    lab: str, index: int, options: LabOptions, *, login: str, host_key: KeyPair, tls: Mapping[str, bytes]
) -> dict[str, tuple[bytes, int]]:
    """The files of a node by path, each with its mode. `login` is the public key that may log in as root."""
    name = node_names(options.nodes)[index - 1]
    # Without a resolver a look-up fails at once, which is what a machine without a network should do.
    resolver = f"nameserver {MGMT_RESOLVER}\n" if options.internet else ""
    files = {
        "etc/hostname": (f"{name}\n".encode(), 0o644),
        "etc/hosts": (_hosts(options.nodes).encode(), 0o644),
        "etc/resolv.conf": (resolver.encode(), 0o644),
        "etc/groundfault/lab": (f"{lab}\n".encode(), 0o644),
        "etc/groundfault/network": (_network(index, options.internet).encode(), 0o644),
        "etc/groundfault/data-filesystem": (f"{options.data_filesystem}\n".encode(), 0o644),
        "etc/ssh/ssh_host_ed25519_key": (host_key.private, 0o600),
        "etc/ssh/ssh_host_ed25519_key.pub": (f"{host_key.public}\n".encode(), 0o644),
        "root/.ssh/authorized_keys": (f"{login}\n".encode(), 0o600),
    }
    if options.agent:
        files["etc/groundfault/node"] = (f"{name}\n".encode(), 0o644)
    for file, content in tls.items():
        files[f"etc/groundfault/tls/{file}"] = (content, 0o600 if file.endswith(".key") else 0o644)
    return files


def identity_tar(files: Mapping[str, tuple[bytes, int]]) -> bytes:
    """The archive that a node unpacks over its root."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        directories = {"root/.ssh": 0o700, "etc/groundfault": 0o755}
        if any(name.startswith("etc/groundfault/tls/") for name in files):
            directories["etc/groundfault/tls"] = 0o700
        for directory, mode in directories.items():
            entry = tarfile.TarInfo(directory)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            tar.addfile(entry)
        for name, (content, mode) in sorted(files.items()):
            add_file(tar, name, content, mode)
    return out.getvalue()
