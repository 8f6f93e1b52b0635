"""The agent as one archive with all it needs, for nodes that have no internet and no compiler.

`opt/groundfault/lib` has the Python packages, `opt/groundfault/bin/node-agent` starts the agent with the node's
own Python, `opt/groundfault/key` tells which bundle it is. Cached by content in two stages, so that a change of
our code downloads nothing.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import sys
import tarfile
from pathlib import Path

from labctl import paths
from labctl.errors import LabError
from labctl.lab import code
from labctl.lab.files import locked, prune, scratch
from labctl.lab.footprint import KEY_FILE
from labctl.lab.tools import run
from labctl.progress import Progress, SilentProgress

PYTHON_VERSION = "3.13"
"""CPython of Debian 13, which most of the lab's nodes have."""

_LAUNCHER = """#!/usr/bin/python3 -I
import sys
sys.path.insert(0, "/opt/groundfault/lib")
from node_agent.main import main
sys.exit(main())
"""
LOCK = Path(__file__).with_name("node-packages.lock")
"""Every package that a node gets, pinned by hash: `scripts/lock-node-packages` writes it."""

_KEPT = 12
_LOCK_S = 900.0


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def packages_key(python_version: str, arch: str) -> str:
    """The key of the third-party packages."""
    return _digest("2", python_version, arch, LOCK.read_text())


def pip_target(python_version: str, arch: str) -> tuple[str, ...]:
    """pip's options for wheels that are for a node and not for this machine."""
    platforms = (f"--platform={tag}_{arch}" for tag in ("manylinux_2_28", "manylinux_2_17", "manylinux2014"))
    return (f"--python-version={python_version}", "--implementation=cp", *platforms)


def bundle_key(python_version: str = PYTHON_VERSION, arch: str = "x86_64") -> str:
    """The key of the whole bundle; reads the project's files, and no network."""
    return _digest("3", packages_key(python_version, arch), code.code_key(), _LAUNCHER)


def build_bundle(
    python_version: str = PYTHON_VERSION, arch: str = "x86_64", progress: Progress | None = None
) -> Path:
    """The agent's archive (tar.gz) for nodes with this CPython and machine type, built where it is not cached.

    Raises LabError where a package has no wheel for them or cannot be downloaded.
    """
    progress = progress or SilentProgress()
    directory = paths.cache_dir() / "bundles"
    key = bundle_key(python_version, arch)
    target = directory / f"{key}.tar.gz"
    with locked(directory / "lock", "the agent's bundle", _LOCK_S, progress.note):
        if target.is_file():
            os.utime(target)
            return target
        packages = _packages(python_version, arch, progress)
        with progress.task("packing the agent"), scratch(directory) as work:
            lib = work / "lib"
            shutil.copytree(packages, lib)
            code.place(lib, work)
            _pack(lib, key, work / "bundle.tar.gz")
            if bundle_key(python_version, arch) != key:
                raise LabError("the agent's code changed while it was packed", "run it again")
            (work / "bundle.tar.gz").replace(target)
        prune(directory.glob("*.tar.gz"), _KEPT)
    return target


def _packages(python_version: str, arch: str, progress: Progress) -> Path:
    """Third-party packages as pip lays them out for the node, not for this machine."""
    directory = paths.cache_dir() / "packages"
    target = directory / packages_key(python_version, arch)
    if target.is_dir():
        os.utime(target)
        return target
    directory.mkdir(parents=True, exist_ok=True)
    with progress.task("downloading the agent's packages"), scratch(directory) as work:
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--only-binary=:all:")
        where = (f"--target={work / 'lib'}", *pip_target(python_version, arch))
        run(
            (*pip, *where, "--require-hashes", "--no-deps", f"--requirement={LOCK}"),
            f"downloading the agent's packages for Python {python_version}",
            timeout=600,
        )
        shutil.rmtree(work / "lib" / "bin", ignore_errors=True)  # scripts for this machine's Python
        (work / "lib").rename(target)
    prune(directory.glob("[0-9a-f]*"), _KEPT)
    return target


def _pack(lib: Path, key: str, target: Path) -> None:
    """An archive whose bytes depend on the contents alone. The key comes last: where it is, all is."""
    with gzip.GzipFile(target, "wb", compresslevel=6, mtime=0) as packed:
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar:
            for path in sorted(lib.rglob("*")):
                if path.is_file():
                    name = f"opt/groundfault/lib/{path.relative_to(lib).as_posix()}"
                    add_file(tar, name, path.read_bytes(), 0o644)
            add_file(tar, "opt/groundfault/bin/node-agent", _LAUNCHER.encode(), 0o755)
            add_file(tar, KEY_FILE.lstrip("/"), f"{key}\n".encode(), 0o644)


def add_file(tar: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    """Add a file that belongs to root. Parent directories are left to whoever unpacks."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.uid, entry.gid, entry.uname, entry.gname = (
        len(content),
        mode,
        0,
        0,
        "root",
        "root",
    )
    tar.addfile(entry, io.BytesIO(content))
