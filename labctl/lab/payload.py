"""What nodes get, as a directory for a tool that provisions them: the files, the places and modes of an install.

The tool finds everything in it (`payload.json`) and knows no path by itself, so that there is one list.
"""

from __future__ import annotations

import io
import json
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cryptography import x509
from pydantic import BaseModel, ConfigDict

from labctl.errors import LabError, UsageError
from labctl.lab import code, holding
from labctl.lab import footprint as at
from labctl.lab.bundle import add_file
from labctl.lab.install import (
    ARCHITECTURES,
    NEEDED_MIB,
    NEEDED_STATE_MIB,
    OLDEST_GLIBC,
    PYTHON,
    PYTHON_VERSIONS,
    look_script,
)
from labctl.pki import LabAuthority
from node_agent.version import VERSION

FORMAT = 1
"""Raised when what reads a payload has to be changed with it."""

FILE = "payload.json"
NEEDED_FILES = ("ca.pem", "node.pem", "node.key")
"""Without one of these in the agent's directory for certificates a node has none."""

_UNIT_IN_PROGRAM = at.UNIT_SOURCE.removeprefix(f"{at.PROGRAM}/lib/")


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Program(_Frozen):
    """The agent for one kind of node: an archive to unpack, and the key that is in `paths.key` then."""

    archive: str
    key: str


class ForNode(_Frozen):
    """What one node alone gets: an archive to unpack at `paths.root`, with its name, certificates and unit.

    The node's clock has to lie between the two times, in seconds since 1970.
    """

    archive: str
    not_before_unix_s: int
    not_after_unix_s: int


class Needs(_Frozen):
    """What a node has to have. Sizes are free space for /opt and /var/lib, in MiB."""

    pythons: tuple[str, ...] = PYTHON_VERSIONS
    architectures: tuple[str, ...] = ARCHITECTURES
    glibc: str = ".".join(map(str, OLDEST_GLIBC))
    program_mib: int = NEEDED_MIB
    state_mib: int = NEEDED_STATE_MIB


class Paths(_Frozen):
    """Where things are on a node: see :mod:`labctl.lab.footprint`."""

    root: str = "/"
    program: str = at.PROGRAM
    unpacked: str = at.STAGING + at.PROGRAM
    staging: str = at.STAGING
    retired: str = at.RETIRED
    agent: str = f"{at.PROGRAM}/bin/node-agent"
    config: str = at.CONFIG
    unit: str = at.UNIT_FILE
    unit_source: str = at.UNIT_SOURCE


class Payload(_Frozen):
    """What `payload.json` says.

    `authority`: the certificate (PEM) of who commands the nodes; `needed_files`: names of certificates that a node
    has to have; `certificates`: as they are called in the archives. `look`: a program for the node's Python that
    tells what is there, as :class:`labctl.lab.install.Machine`, after the line "held"; or only "busy WHO", where
    an installer is at work. Its arguments are `installer` and who looks. `programs`: by Python and architecture,
    "3.13-x86_64". `owned`: all that is to be deleted, in this order; `shared`: folders that go when they are
    empty; where one of `signs` is, an agent is or was.
    """

    format: int = FORMAT
    agent_version: str = VERSION
    lab: str
    authority: str
    python: str = PYTHON
    look: str = "look.py"
    installer: str = holding.NAME
    needs: Needs = Needs()
    paths: Paths = Paths()
    unit: str = at.UNIT
    unit_text: str
    unit_mode: str = at.MODES[at.UNIT_FILE]
    needed_files: tuple[str, ...] = NEEDED_FILES
    certificates: tuple[str, ...] = tuple(f"{at.TLS[1:]}/{name}" for name in (*NEEDED_FILES, at.REVOKED))
    programs: Mapping[str, Program]
    nodes: Mapping[str, ForNode]
    owned: tuple[str, ...] = at.OWNED
    shared: tuple[str, ...] = at.SHARED
    signs: tuple[str, ...] = tuple(sorted(at.SIGNS))


Kind = tuple[str, str]
"""A Python and an architecture."""


def write_payload(
    out: Path,
    authority: LabAuthority,
    bundles: Mapping[Kind, tuple[str, Path]],
    nodes: Sequence[str],
    files: Callable[[str], Mapping[str, bytes]],
) -> Payload:
    """Make the directory `out`, or replace the payload there, as a whole or not at all. It holds private keys.

    `bundles`: key and archive of the agent for each kind of node. `files` makes the certificates of a node.
    Raises :class:`UsageError` where there is something else, :class:`LabError` where it cannot be written.
    """
    if out.is_symlink() or (out.exists() and not is_payload(out)):
        raise UsageError(f"--out: {out} is there, and is no payload", "name a directory that is not there yet")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        # mkdtemp gives mode 0700.
        fresh = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
        try:
            made = _fill(fresh, authority, bundles, {name: files(name) for name in nodes})
            if out.exists():
                old = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
                out.rename(old)
                fresh.rename(out)
                shutil.rmtree(old)
            else:
                fresh.rename(out)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    except OSError as error:
        raise LabError(f"cannot write {out}: {error.strerror}", "name another directory with --out") from None
    return made


def is_payload(directory: Path) -> bool:
    """Whether that is a directory made by :func:`write_payload`, of any format."""
    try:
        found = json.loads((directory / FILE).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and {"format", "lab", "programs", "nodes"} <= found.keys()


def _fill(
    fresh: Path,
    authority: LabAuthority,
    bundles: Mapping[Kind, tuple[str, Path]],
    files: Mapping[str, Mapping[str, bytes]],
) -> Payload:
    programs = {}
    for (python, arch), (key, archive) in bundles.items():
        name = f"agent-{python}-{arch}.tar.gz"
        shutil.copyfile(archive, fresh / name)
        programs[f"{python}-{arch}"] = Program(archive=name, key=key)
    unit = code.node_files()[_UNIT_IN_PROGRAM].read_bytes()
    (fresh / "nodes").mkdir()
    for name, certificates in files.items():
        _write(fresh / _archive(name), _packed(name, certificates, unit))
    made = Payload(
        lab=authority.lab, authority=authority.own_pem().decode(), unit_text=unit.decode(), programs=programs,
        nodes={name: _for_node(name, certificates["node.pem"]) for name, certificates in files.items()},
    )  # fmt: skip
    _write(fresh / made.look, (holding.HOLD + look_script()).encode())
    _write(fresh / FILE, made.model_dump_json(indent=1).encode())
    return made


def _packed(name: str, certificates: Mapping[str, bytes], unit: bytes) -> bytes:
    """The archive for one node: what an install writes beside the program, with the same modes."""
    files = {f"{at.TLS}/{file}": (content, at.CERTIFICATE_MODE) for file, content in certificates.items()}
    files[at.NODE_FILE] = (f"{name}\n".encode(), at.MODES[at.NODE_FILE])
    files[at.UNIT_FILE] = (unit, at.MODES[at.UNIT_FILE])
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for directory in (at.CONFIG, at.TLS):
            entry = tarfile.TarInfo(directory[1:])
            entry.type, entry.mode, entry.uname, entry.gname = (
                tarfile.DIRTYPE,
                int(at.MODES[directory], 8),
                "root",
                "root",
            )
            tar.addfile(entry)
        for path, (content, mode) in files.items():
            add_file(tar, path[1:], content, int(mode, 8))
    return out.getvalue()


def _for_node(name: str, certificate: bytes) -> ForNode:
    dates = x509.load_pem_x509_certificate(certificate)
    return ForNode(
        archive=_archive(name),
        not_before_unix_s=int(dates.not_valid_before_utc.timestamp()),
        not_after_unix_s=int(dates.not_valid_after_utc.timestamp()),
    )


def _archive(node: str) -> str:
    return f"nodes/{node}.tar"


def _write(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)
