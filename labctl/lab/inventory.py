"""The inventory of real hosts, a TOML file:

[nodes.w9]
address = "192.0.2.9"
user = "ops"                       # default: root
key = "~/.ssh/id_ed25519"          # default: what ssh would use
known_hosts = "known_hosts"        # default: ~/.ssh/known_hosts; relative to the inventory
port = 22
agent_port = 7443
lab_address = "10.0.0.9"           # or a list; where the other nodes reach it, default: address
labels = { rack = "b2", quorum = "etcd" }
# Its management controller, for `labctl power`; the password stays out of this file
bmc = { url = "https://db1-bmc.example", user = "lab", password_file = "~/.bmc", verify = "bmc-ca.pem" }
"""

from __future__ import annotations

import ipaddress
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from labctl.errors import UsageError
from labctl.invalid import first_problem
from labctl.lab.model import NODE_NAME, Labels, Node
from labctl.power.model import Bmc


class HostEntry(BaseModel):
    """One `[nodes.NAME]` table."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    address: str = Field(min_length=1, max_length=253)
    port: int = Field(default=22, ge=1, le=65535)
    user: str = Field(default="root", pattern=r"^[a-z_][a-z0-9_.-]{0,31}\$?$")
    key: Path | None = None
    known_hosts: Path | None = None
    agent_port: int = Field(default=7443, ge=1, le=65535)
    lab_address: tuple[str, ...] = Field(default=(), max_length=16)
    labels: Labels = Field(default_factory=dict)
    bmc: Bmc | None = None

    @field_validator("lab_address", mode="before")
    @classmethod
    def _one_or_several(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @field_validator("lab_address")
    @classmethod
    def _addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(str(ipaddress.ip_address(one)) for one in value)

    @field_validator("address")
    @classmethod
    def _no_option(cls, value: str) -> str:
        if value.startswith("-") or re.search(r"[\s@]", value):
            raise ValueError("should be a host name or an address, without user, spaces or a leading hyphen")
        return value


class Inventory(BaseModel):
    """The whole file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    nodes: Mapping[str, HostEntry] = Field(min_length=1)

    @field_validator("nodes")
    @classmethod
    def _names(cls, value: Mapping[str, HostEntry]) -> Mapping[str, HostEntry]:
        for name in value:
            if not re.match(NODE_NAME, name):
                raise ValueError(f"{name!r} is no node name; allowed: lower-case letters, digits and hyphens")
        return value


def parse_inventory(text: str, source: Path) -> tuple[Node, ...]:
    """The nodes of an inventory. Raises :class:`UsageError` naming the field and what is allowed."""
    try:
        inventory = Inventory.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{source}: not TOML: {error}") from None
    except ValidationError as error:
        keys = ", ".join(HostEntry.model_fields)
        raise UsageError(
            f"{source}: {first_problem(error)}", f"the file has [nodes.NAME] tables with: {keys}"
        ) from None
    _refuse_twins(inventory, source)
    return tuple(_node(name, entry, source.parent) for name, entry in inventory.nodes.items())


def read_inventory(path: Path) -> tuple[Node, ...]:
    """Read and check an inventory file. Raises :class:`UsageError`."""
    try:
        text = path.read_text("utf8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the inventory {path} cannot be read: {error}") from None
    return parse_inventory(text, path.absolute())


def _refuse_twins(inventory: Inventory, source: Path) -> None:
    seen: dict[tuple[str, int], str] = {}
    for name, entry in inventory.nodes.items():
        twin = seen.setdefault((entry.address, entry.port), name)
        if twin != name:
            raise UsageError(
                f"{source}: nodes.{name}.address: {entry.address} port {entry.port} is node {twin} already",
                "one host is one node: a fault on it would count twice",
            )


def _node(name: str, entry: HostEntry, base: Path) -> Node:
    return Node(
        name=name,
        address=entry.address,
        ssh_port=entry.port,
        ssh_user=entry.user,
        ssh_key=_beside(entry.key, base),
        known_hosts=_beside(entry.known_hosts, base),
        agent_port=entry.agent_port,
        lab_addresses=entry.lab_address,
        labels=dict(entry.labels),
        bmc=entry.bmc.beside(base) if entry.bmc else None,
    )


def _beside(path: Path | None, base: Path) -> Path | None:
    """Paths in the file are relative to it, and `~` is the user's home."""
    return base / path.expanduser() if path else None
