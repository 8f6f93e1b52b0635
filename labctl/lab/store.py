"""Labs by name. A lab is a directory with a `lab.json`, whose field `provider` says who runs it."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import cast

from labctl import paths
from labctl.errors import LabError, UsageError
from labctl.lab.model import LAB_NAME, Provider

_MODULES = {"qemu": "labctl.lab.qemu", "ssh": "labctl.lab.ssh", "vagrant": "labctl.lab.vagrant"}
"""Each has `provider(directory: Path) -> Provider`; the lab's name is the directory's."""

KINDS = tuple(_MODULES)


def lab_dir(name: str) -> Path:
    """Where a lab keeps its state; its certificates are in `pki` below it. UsageError for an impossible name."""
    if not re.match(LAB_NAME, name):
        raise UsageError(f"lab name {name!r}: lower-case letters, digits and hyphens, at most 31")
    return paths.state_dir() / "labs" / name


def list_labs() -> tuple[str, ...]:
    """The names of all labs on this machine for this user."""
    base = paths.state_dir() / "labs"
    return tuple(sorted(path.parent.name for path in base.glob("*/lab.json")))


def open_lab(name: str) -> Provider:
    """The provider of an existing lab. Raises LabError, naming the labs there are, where there is none."""
    directory = lab_dir(name)
    try:
        kind = json.loads((directory / "lab.json").read_bytes())["provider"]
    except FileNotFoundError:
        there = ", ".join(list_labs()) or "none"
        raise LabError(f"no lab {name}; labs: {there}", f"start it with: labctl up --lab {name}") from None
    except (ValueError, KeyError, TypeError):
        raise LabError(
            f"{directory / 'lab.json'} is damaged", f"delete {directory} when nothing runs in it"
        ) from None
    return _provider(kind, directory)


def create_lab(name: str, kind: str = "qemu") -> Provider:
    """The provider for a new lab, or for the one that exists with this kind. Writes nothing: `up` does."""
    directory = lab_dir(name)
    if (directory / "lab.json").exists():
        there = open_lab(name)
        if there.kind != kind:
            raise LabError(f"lab {name} exists with provider {there.kind}", "choose another --lab NAME")
        return there
    return _provider(kind, directory)


def _provider(kind: str, directory: Path) -> Provider:
    if kind not in _MODULES:
        raise UsageError(f"provider {kind!r}: allowed are {', '.join(_MODULES)}")
    return cast(Provider, importlib.import_module(_MODULES[kind]).provider(directory))
