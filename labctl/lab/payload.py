"""What nodes get, as a directory for a tool that provisions them: the files, the places and modes of an install.

The tool finds everything in it (`payload.json`) and knows no path by itself, so that there is one list.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cryptography import x509
from pydantic import BaseModel, ConfigDict

from labctl.errors import LabError, UsageError
from labctl.lab import code, holding
from labctl.lab import footprint as at
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
_UNIT_IN_PROGRAM = at.UNIT_SOURCE.removeprefix(f"{at.PROGRAM}/lib/")


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Placed(_Frozen):
    """A file of the payload (`source`) and where it goes, with its mode. It is root's."""

    source: str
    path: str
    mode: str


class Program(_Frozen):
    """The agent for one kind of node: an archive to unpack, and the key that is in `paths.key` then."""

    archive: str
    key: str


class ForNode(_Frozen):
    """What one node alone gets. Its clock has to lie between the two times, in seconds since 1970."""

    certificates: tuple[Placed, ...]
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

    program: str = at.PROGRAM
    unpacked: str = at.STAGING + at.PROGRAM
    staging: str = at.STAGING
    retired: str = at.RETIRED
    key: str = at.KEY_FILE
    agent: str = f"{at.PROGRAM}/bin/node-agent"
    config: str = at.CONFIG
    unit_in_program: str = at.UNIT_SOURCE.removeprefix(f"{at.PROGRAM}/")
    tls: str = at.TLS
    name: str = at.NODE_FILE


class Payload(_Frozen):
    """What `payload.json` says.

    `authority`: the certificate (PEM) of who commands the nodes. `look`: a program for the node's Python that
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
    modes: Mapping[str, str] = at.MODES
    unit: str = at.UNIT
    unit_file: Placed = Placed(source=at.UNIT, path=at.UNIT_FILE, mode=at.MODES[at.UNIT_FILE])
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
    made = Payload(
        lab=authority.lab, authority=authority.own_pem().decode(), programs=programs,
        nodes={name: _for_node(name, certificates) for name, certificates in files.items()},
    )  # fmt: skip
    for name, certificates in files.items():
        (fresh / _folder(name)).mkdir(parents=True)
        for file, content in certificates.items():
            _write(fresh / _folder(name) / file, content)
    shutil.copyfile(code.node_files()[_UNIT_IN_PROGRAM], fresh / made.unit_file.source)
    _write(fresh / made.look, (holding.HOLD + look_script()).encode())
    _write(fresh / FILE, made.model_dump_json(indent=1).encode())
    return made


def _for_node(name: str, files: Mapping[str, bytes]) -> ForNode:
    dates = x509.load_pem_x509_certificate(files["node.pem"])
    placed = (
        Placed(source=f"{_folder(name)}/{file}", path=f"{at.TLS}/{file}", mode=at.CERTIFICATE_MODE)
        for file in files
    )
    return ForNode(
        certificates=tuple(placed),
        not_before_unix_s=int(dates.not_valid_before_utc.timestamp()),
        not_after_unix_s=int(dates.not_valid_after_utc.timestamp()),
    )


def _folder(node: str) -> str:
    return f"nodes/{node}"


def _write(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)
