"""The inventory of real hosts, a TOML file:

[nodes.w9]
address = "192.0.2.9"              # or: ssh_alias = "w9", a Host of ~/.ssh/config
user = "ops"                       # default: root
key = "~/.ssh/id_ed25519"          # default: what ssh would use
known_hosts = "known_hosts"        # default: ~/.ssh/known_hosts; relative to the inventory
fingerprint = "SHA256:…"           # or a list; else known_hosts says, or you are asked
jump = "bastion"                   # or a list, the nearest first: [jumps.NAME] tables or other nodes
sudo_password_env = "OPS_SUDO"     # or sudo_password_file, where sudo wants one
groups = ["rack-b"]
port = 22
transport = "grpc"                 # default: ssh behind a jump host
agent_port = 7443
lab_address = "10.0.0.9"           # or a list; where the other nodes reach it, default: address
labels = { rack = "b2", quorum = "etcd" }
# Its management controller, for `labctl power`; the password stays out of this file
bmc = { url = "https://db1-bmc.example", user = "lab", password_file = "~/.bmc", verify = "bmc-ca.pem" }

[groups.rack-b]                    # what its nodes have unless they say otherwise; labels are added up
user = "ops"
jump = "bastion"

[jumps.bastion]
address = "bastion.example"        # user, port, key, known_hosts, fingerprint, jump as above
"""

from __future__ import annotations

import ipaddress
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from labctl.errors import UsageError
from labctl.invalid import first_problem
from labctl.lab.model import NODE_NAME, Fingerprint, Labels, Login, Node
from labctl.lab.ssh_alias import USER_CONFIG, read_config, resolve
from labctl.power.model import Bmc
from labctl.secret import VARIABLE

_USER = r"^[a-z_][a-z0-9_.-]{0,31}\$?$"
_GROUP = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"


class _Reached(BaseModel):
    """What a node, a group and a jump host may all say of how one logs in."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    port: int | None = Field(default=None, ge=1, le=65535)
    user: str | None = Field(default=None, pattern=_USER)
    key: Path | None = None
    known_hosts: Path | None = None
    jump: tuple[str, ...] | None = Field(default=None, max_length=8)

    @field_validator("jump", mode="before")
    @classmethod
    def _one_or_several(cls, value: object) -> object:
        return _several(value)


class _Somewhere(BaseModel):
    """A host: by its address, or by its name in the SSH configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    address: str = Field(default="", min_length=1, max_length=253)
    ssh_alias: str | None = Field(default=None, min_length=1, max_length=253, pattern=r"^[^\s*?!-][^\s*?!]*$")
    fingerprint: tuple[Fingerprint, ...] = Field(default=(), max_length=16)

    @model_validator(mode="before")
    @classmethod
    def _a_place(cls, given: Any) -> Any:
        if isinstance(given, dict):
            if "address" in given and "ssh_alias" in given:
                raise ValueError("address and ssh_alias exclude each other")
            if "ssh_alias" in given and ("jump" in given or "port" in given):
                raise ValueError("the SSH configuration says the way to an ssh_alias: leave out jump and port")
        return given

    @field_validator("fingerprint", mode="before")
    @classmethod
    def _prints(cls, value: object) -> object:
        return _several(value)

    @field_validator("address")
    @classmethod
    def _no_option(cls, value: str) -> str:
        if value.startswith("-") or re.search(r"[\s@]", value):
            raise ValueError("should be a host name or an address, without user, spaces or a leading hyphen")
        return value


class JumpEntry(_Somewhere, _Reached):
    """One `[jumps.NAME]` table."""


class _Kept(_Reached):
    """What a node and a group may say beyond the login."""

    sudo_password_file: Path | None = None
    sudo_password_env: str | None = Field(default=None, pattern=VARIABLE)
    transport: Literal["grpc", "ssh"] | None = None
    agent_port: int | None = Field(default=None, ge=1, le=65535)
    labels: Labels = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _no_secret(cls, given: Any) -> Any:
        # Here and not in a field's validator: their errors quote what was given.
        if isinstance(given, dict) and {"password", "sudo_password"} & given.keys():
            raise ValueError(
                "a password does not belong in the inventory: name sudo_password_file or sudo_password_env"
            )
        return given


class GroupEntry(_Kept):
    """One `[groups.NAME]` table."""


class HostEntry(_Somewhere, _Kept):
    """One `[nodes.NAME]` table."""

    groups: tuple[str, ...] = Field(default=(), max_length=16)
    lab_address: tuple[str, ...] = Field(default=(), max_length=16)
    bmc: Bmc | None = None

    @field_validator("lab_address", "groups", mode="before")
    @classmethod
    def _lists(cls, value: object) -> object:
        return _several(value)

    @field_validator("lab_address")
    @classmethod
    def _addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(str(ipaddress.ip_address(one)) for one in value)


class Inventory(BaseModel):
    """The whole file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    nodes: Mapping[str, HostEntry] = Field(min_length=1)
    groups: Mapping[str, GroupEntry] = Field(default_factory=dict)
    jumps: Mapping[str, JumpEntry] = Field(default_factory=dict)
    ssh_config: Path = USER_CONFIG

    @field_validator("nodes")
    @classmethod
    def _names(cls, value: Mapping[str, HostEntry]) -> Mapping[str, HostEntry]:
        for name in value:
            if not re.match(NODE_NAME, name):
                raise ValueError(f"{name!r} is no node name; allowed: lower-case letters, digits and hyphens")
        return value

    @field_validator("groups")
    @classmethod
    def _group_names(cls, value: Mapping[str, GroupEntry]) -> Mapping[str, GroupEntry]:
        for name in value:
            if not re.match(_GROUP, name):
                raise ValueError(f"{name!r} is no name of a group")
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
    reader = _Reader(inventory, source)
    nodes = tuple(reader.node(name) for name in inventory.nodes)
    _refuse_twins(nodes, source)
    return nodes


def read_inventory(path: Path) -> tuple[Node, ...]:
    """Read and check an inventory file. Raises :class:`UsageError`."""
    try:
        text = path.read_text("utf8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the inventory {path} cannot be read: {error}") from None
    return parse_inventory(text, path.absolute())


def _refuse_twins(nodes: tuple[Node, ...], source: Path) -> None:
    seen: dict[tuple[object, ...], str] = {}
    for node in nodes:
        # The same private address behind two jump hosts is two machines.
        twin = seen.setdefault((node.address, node.ssh_port, node.jumps), node.name)
        if twin != node.name:
            raise UsageError(
                f"{source}: nodes.{node.name}.address: {node.address} port {node.ssh_port} is node {twin} already",
                "one host is one node: a fault on it would count twice",
            )


class _Reader:
    """Puts together what groups, jump hosts and the SSH configuration say of each node."""

    def __init__(self, inventory: Inventory, source: Path) -> None:
        self._all, self._source, self._base = inventory, source, source.parent

    def node(self, name: str) -> Node:
        entry = self._all.nodes[name]
        login, jumps = self._login(f"nodes.{name}", entry, ())
        env, file = self._of(entry, "sudo_password_env"), self._of(entry, "sudo_password_file")
        return Node(
            name=name,
            address=login.address,
            ssh_port=login.port,
            ssh_user=login.user,
            ssh_key=login.key,
            known_hosts=login.known_hosts,
            fingerprints=login.fingerprints,
            jumps=jumps,
            sudo_password_env=env or "",
            sudo_password_file=None if env else self._beside(file),
            transport=self._of(entry, "transport") or ("ssh" if jumps else "grpc"),
            agent_port=self._of(entry, "agent_port") or 7443,
            lab_addresses=entry.lab_address,
            labels={k: v for table in reversed(self._tables(entry)) for k, v in table.labels.items()},
            bmc=entry.bmc.beside(self._base) if entry.bmc else None,
        )

    def _tables(self, entry: HostEntry | JumpEntry) -> tuple[Any, ...]:
        """The tables that speak of a host; the first that says something counts."""
        if isinstance(entry, JumpEntry):
            return (entry,)
        unknown = [name for name in entry.groups if name not in self._all.groups]
        if unknown:
            there = ", ".join(self._all.groups) or "none"
            raise UsageError(f"{self._source}: there is no group {unknown[0]!r}", f"groups of the file: {there}")
        return (entry, *(self._all.groups[name] for name in entry.groups))

    def _of(self, entry: HostEntry | JumpEntry, key: str) -> Any:
        said = (getattr(table, key) for table in self._tables(entry))
        return next((value for value in said if value is not None), None)

    def _login(
        self, where: str, entry: HostEntry | JumpEntry, above: tuple[str, ...]
    ) -> tuple[Login, tuple[Login, ...]]:
        """The login of a host, and those on the way. `above`: for whom it is asked, to find rings."""
        if where in above:
            ring = " -> ".join((*above, where))
            raise UsageError(f"{self._source}: jump hosts go round in a ring: {ring}")
        if entry.ssh_alias is not None:
            return self._by_alias(entry)
        if not entry.address:
            raise UsageError(f"{self._source}: {where}.address: field required", "or ssh_alias = … instead")
        way: tuple[Login, ...] = ()
        for name in self._of(entry, "jump") or ():
            found, before = self._jump(where, name, (*above, where))
            way += (*(before if not way else ()), found)
        login = Login(
            address=entry.address,
            port=self._of(entry, "port") or 22,
            user=self._of(entry, "user") or "root",
            key=self._beside(self._of(entry, "key")),
            known_hosts=self._beside(self._of(entry, "known_hosts")),
            fingerprints=entry.fingerprint,
        )
        return login, way

    def _by_alias(self, entry: HostEntry | JumpEntry) -> tuple[Login, tuple[Login, ...]]:
        file = self._base / self._all.ssh_config.expanduser()
        assert entry.ssh_alias is not None
        login, way = resolve(entry.ssh_alias, read_config(file), file)
        said = {"user": entry.user, "key": self._beside(entry.key), "known_hosts": self._beside(entry.known_hosts)}
        changes = {k: v for k, v in said.items() if v} | {"fingerprints": entry.fingerprint}
        return login.model_copy(update=changes), way

    def _jump(self, where: str, name: str, above: tuple[str, ...]) -> tuple[Login, tuple[Login, ...]]:
        if name in self._all.jumps:
            return self._login(f"jumps.{name}", self._all.jumps[name], above)
        if name in self._all.nodes:
            return self._login(f"nodes.{name}", self._all.nodes[name], above)
        there = ", ".join((*self._all.jumps, *self._all.nodes))
        raise UsageError(
            f"{self._source}: {where}.jump: there is no jump host {name!r}", f"[jumps.NAME] or a node: {there}"
        )

    def _beside(self, path: Path | None) -> Path | None:
        """Paths in the file are relative to it, and `~` is the user's home."""
        return self._base / path.expanduser() if path else None


def _several(value: object) -> object:
    return (value,) if isinstance(value, str) else value
