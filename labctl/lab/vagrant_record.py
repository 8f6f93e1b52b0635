"""What a lab of provider `vagrant` remembers between commands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from labctl.errors import UsageError
from labctl.lab import identity
from labctl.lab.model import Labels, LabOptions, Node
from labctl.lab.vagrant_tool import Backend


class Known(BaseModel):
    """One machine: Vagrant's id of it, and the SSH host key that it had when it was made."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    machine: str
    host_key: str


class Record(BaseModel):
    """The content of lab.json."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    provider: Literal["vagrant"] = "vagrant"
    options: LabOptions
    backend: Backend
    agent_ports: tuple[int, ...]
    nodes: tuple[Node, ...] = ()
    known: Mapping[str, Known] = Field(default_factory=dict)
    labels: Mapping[str, Labels] = Field(default_factory=dict)
    golden: bool = False
    """Whether all machines have the snapshot."""

    @property
    def names(self) -> tuple[str, ...]:
        return identity.node_names(self.options.nodes)


def refuse_foreign(options: LabOptions) -> None:
    """Options that shape the image of the embedded lab mean nothing to a box. Raises :class:`UsageError`."""
    default = LabOptions()
    for field, option in (("kernel", "--kernel"), ("packages", "--package"), ("workload", "--workload"),
                          ("kernel_arguments", "--kernel-argument"), ("internet", "--internet")):  # fmt: skip
        if getattr(options, field) != getattr(default, field):
            raise UsageError(f"{option}: provider vagrant takes its box as it is", "GROUNDFAULT_BOX names the box")
