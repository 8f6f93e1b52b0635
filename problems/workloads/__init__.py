"""Services that problems run on: each a package with a `WORKLOAD`, deployed as an operator would run it.

A workload is data: what goes into the node image, files, setup steps, checks. The lab's provider does the deeds.
"""

from __future__ import annotations

import hashlib
import importlib
import pkgutil
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, model_validator


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class File(_Value):
    """A file of a node. In its text, `@NAME@` stands for the secret of that name."""

    path: str = Field(pattern=r"^/")
    text: str
    mode: int = Field(default=0o644, ge=0, le=0o7777)
    owner: str = Field(default="root:root", pattern=r"^[a-z0-9_-]+:[a-z0-9_-]+$")


class Step(_Value):
    """What is done once all steps before it are: a POSIX script for each node, on all of them at once."""

    title: str
    scripts: Mapping[str, str] = Field(min_length=1)
    timeout_s: float = Field(default=600.0, gt=0)


class Check(_Value):
    """What has to be true of a node before the workload is called ready: `script` ends with 0."""

    node: str
    what: str
    script: str


class Web(_Value):
    """Where clients reach it, and the page whose 200 says that it serves."""

    node: str
    port: int = Field(default=80, gt=0, lt=65536)
    health: str = "/health"


class Workload(_Value):
    """A service on the nodes of a lab.

    `image` is a script that shapes the node image (its tree is `$1`) once `packages` are in it. `files` has
    those of each node; secrets in them are drawn anew for each deployment. `memory_mib`: what a node needs.
    """

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{1,30}$")
    title: str
    nodes: tuple[str, ...] = Field(min_length=1)
    memory_mib: int = Field(gt=0)
    packages: tuple[str, ...] = ()
    image: str = ""
    secrets: tuple[str, ...] = ()
    files: Mapping[str, tuple[File, ...]] = Field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    checks: tuple[Check, ...] = ()
    ready_within_s: float = Field(default=600.0, gt=0)
    web: Web | None = None

    @model_validator(mode="after")
    def _on_its_nodes(self) -> Workload:
        named = {
            *self.files,
            *(node for step in self.steps for node in step.scripts),
            *(c.node for c in self.checks),
        }
        named |= {self.web.node} if self.web else set()
        if strange := sorted(named - {*self.nodes}):
            raise ValueError(f"{', '.join(strange)}: no node of {self.name}")
        return self

    @property
    def key(self) -> str:
        """The content hash of all that decides what is deployed."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]


class NoSuchWorkload(LookupError):
    """There is no workload of that name; its text says which there are."""


def workload_names() -> tuple[str, ...]:
    """The names of all workloads, found as the packages of this one."""
    return tuple(sorted(found.name for found in pkgutil.iter_modules(__path__) if found.ispkg))


def find_workload(name: str) -> Workload:
    """The workload of that name. Raises :class:`NoSuchWorkload`."""
    if name not in workload_names():
        raise NoSuchWorkload(f"no workload {name!r}; there are: {', '.join(workload_names()) or 'none'}")
    found = importlib.import_module(f"{__name__}.{name}").WORKLOAD
    if not isinstance(found, Workload) or found.name != name:
        raise TypeError(f"{__name__}.{name}.WORKLOAD is no workload of that name")
    return found


def files_below(root: Path, modes: Mapping[str, tuple[int, str]] | None = None) -> tuple[File, ...]:
    """A directory laid out like a node's root. `modes` has mode and owner of paths that are not 0644 root:root."""
    modes = modes or {}
    found = []
    for path in sorted(path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        at = f"/{path.relative_to(root).as_posix()}"
        mode, owner = modes.get(at, (0o644, "root:root"))
        found.append(File(path=at, text=path.read_text(), mode=mode, owner=owner))
    return tuple(found)
