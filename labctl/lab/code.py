"""The project's own code as it is carried to a node: where it comes from, and a key for what it says."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import re
import shutil
import sys
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

import labctl
from labctl.errors import LabError
from labctl.lab.tools import run

DISTRIBUTION = "groundfault"
NODE_PACKAGES = ("node_agent", "disk_faults", "ebpf")
"""All that a node gets. Never `labctl` or `problems`: nothing on a node may name a problem."""

_EXTRA = re.compile(r"""extra\s*==\s*['"]node['"]""")


def checkout() -> Path | None:
    """The source tree that this process runs from; None where it runs from an installed wheel."""
    root = Path(labctl.__file__).resolve().parents[1]
    project = root / "pyproject.toml"
    if not project.is_file():
        return None
    named = tomllib.loads(project.read_text()).get("project", {}).get("name")
    return root if named == DISTRIBUTION else None


def node_requirements() -> tuple[str, ...]:
    """What the `node` extra asks for, from the project's metadata."""
    root = checkout()
    if root is not None:
        project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
        return tuple(sorted(project["optional-dependencies"]["node"]))
    wanted = importlib.metadata.requires(DISTRIBUTION) or []
    return tuple(sorted(line.split(";")[0].strip() for line in wanted if _EXTRA.search(line)))


def version() -> str:
    """The version of the project."""
    root = checkout()
    if root is not None:
        return str(tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"])
    return importlib.metadata.version(DISTRIBUTION)


def node_files() -> dict[str, Path]:
    """The files of the node packages, by their path below the library directory."""
    root = checkout() or Path(str(importlib.metadata.distribution(DISTRIBUTION).locate_file("")))
    found: dict[str, Path] = {}
    for package in NODE_PACKAGES:
        for path in sorted((root / package).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and path.suffix not in (".pyc", ".pyo"):
                found[path.relative_to(root).as_posix()] = path
    if "node_agent/main.py" not in found:
        raise LabError("the agent's code is not beside labctl", f"reinstall {DISTRIBUTION}")
    return found


def code_key() -> str:
    """Changes when anything that goes to a node from the project itself changes."""
    digest = hashlib.sha256(version().encode())
    root = checkout()
    if root is not None:
        digest.update((root / "pyproject.toml").read_bytes())
    for name, path in node_files().items():
        digest.update(f"\0{name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def place(target: Path, scratch: Path) -> None:
    """Put the node packages into `target`: out of the project's wheel, or of the installed distribution."""
    root = checkout()
    if root is None:
        for name, path in node_files().items():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / name)
    else:
        with zipfile.ZipFile(_build_wheel(root, scratch)) as wheel:
            wheel.extractall(target, [n for n in wheel.namelist() if n.split("/")[0] in NODE_PACKAGES])
    # Only what tells the version: the real metadata lists every file of the project, problems too.
    info = target / f"{DISTRIBUTION}-{version()}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: {version()}\n")


def _build_wheel(root: Path, scratch: Path) -> Path:
    """Build the project's wheel: with this environment's hatchling, or in an isolated environment of pip's."""
    isolation: Sequence[str] = ()
    if importlib.util.find_spec("hatchling"):
        isolation = ("--no-build-isolation",)
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", *isolation)
    run((*pip, "--wheel-dir", str(scratch), str(root)), "building the project's wheel", timeout=300)
    return next(scratch.glob(f"{DISTRIBUTION}-*.whl"))
