"""The words every lab provider shares: a node, what a lab is asked to be, and the provider itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from labctl.power.model import Bmc, Power
from labctl.progress import Progress

NODE_NAME = r"^[a-z][a-z0-9-]{0,30}$"
KernelName = Literal["debian13", "debian12", "lab"]
"""Debian 13's stock kernel (6.12), Debian 12's (6.1), or the lab's own with every kernel-side fault facility."""

ExportFormat = Literal["vagrant-libvirt", "qcow2", "raw"]
"""What the node image is made into for machines that others run."""

PackageName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9+.-]+$", max_length=100)]
"""The name of a Debian package, by Debian's policy."""

KernelArgument = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.,:=/+-]*$", max_length=200)]
"""One word for the kernel's command line."""

WorkloadName = Annotated[str, Field(pattern=r"^([a-z][a-z0-9_]{1,30})?$")]
"""The name of a workload of `problems.workloads`; "" for none."""

LAB_NAME = r"^[a-z0-9][a-z0-9-]{0,30}$"

LabelKey = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]
LabelValue = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:-]{0,63}$")]
"""What an operator says of a node: role = db. Neither has a character that separates labels on a command line."""

Labels = Mapping[LabelKey, LabelValue]


Fingerprint = Annotated[str, Field(pattern=r"^SHA256:[A-Za-z0-9+/]{43}$")]
"""Of an SSH host key, as `ssh-keygen -l` prints it."""


class Login(BaseModel):
    """One SSH server, and as whom one gets in: a node, or a jump host on the way to it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    address: str
    port: int = 22
    user: str = "root"
    key: Path | None = None
    known_hosts: Path | None = None
    fingerprints: tuple[Fingerprint, ...] = ()


class Node(BaseModel):
    """One machine of a lab and how the control side reaches it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=NODE_NAME)
    address: str
    ssh_port: int = 22
    ssh_user: str = "root"
    ssh_key: Path | None = None
    known_hosts: Path | None = None
    fingerprints: tuple[Fingerprint, ...] = ()
    """Host keys that are right, whatever known_hosts lacks; none: known_hosts alone says."""
    jumps: tuple[Login, ...] = ()
    """The logins on the way, the nearest first."""
    sudo_password_file: Path | None = None
    sudo_password_env: str = ""
    """Where the password for sudo is, for users that need one."""
    transport: Literal["grpc", "ssh"] = "grpc"
    """How its agent is reached where the user does not say."""
    agent_port: int = 7443
    lab_addresses: tuple[str, ...] = ()
    """Its addresses, v4 and v6, on the network over which nodes talk to each other; none: that of `address`."""

    labels: Labels = Field(default_factory=dict)
    bmc: Bmc | None = None
    """Its management controller, where the inventory names one."""

    @property
    def login(self) -> Login:
        """The last of the logins: the node's own."""
        return Login(
            address=self.address, port=self.ssh_port, user=self.ssh_user, key=self.ssh_key,
            known_hosts=self.known_hosts, fingerprints=self.fingerprints,
        )  # fmt: skip


class LabOptions(BaseModel):
    """What `labctl up` is asked for. Sizes in MiB."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    nodes: int = Field(default=3, ge=1, le=32)
    memory_mib: int = Field(default=768, ge=384, le=65536)
    data_mib: int = Field(default=512, ge=64, le=1048576)
    cpus: int = Field(default=1, ge=1, le=64)
    internet: bool = False
    agent: bool = True
    data_filesystem: Literal["ext4", "xfs"] = "ext4"
    kernel: KernelName = "debian13"
    packages: Annotated[tuple[PackageName, ...], Field(max_length=100)] = ()
    """Debian packages that the nodes have besides those of every node, with what these depend on."""
    kernel_arguments: Annotated[tuple[KernelArgument, ...], Field(max_length=50)] = ()
    """Words added to the kernel's command line: lsm=…, lockdown=…, systemd.unified_cgroup_hierarchy=…"""
    workload: WorkloadName = ""
    """The service that runs on the nodes when the golden snapshot is taken."""


class NodeStatus(BaseModel):
    """What a provider knows of one node without asking its agent."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    node: Node
    running: bool
    pid: int | None = None
    detail: str = ""
    web: str = ""
    """Where a service that the lab deployed on this node is reached from here: a URL."""


Ready = Callable[[Node], None]
"""Called for a node that has been booted or restored: returns once its agent answers and its clock is
set, raises :class:`labctl.errors.LabError` otherwise. Supplied by the caller, so that providers know
nothing of transports."""


class Provider(Protocol):
    """A way to have nodes. Each method is safe to repeat, and safe to interrupt."""

    kind: str

    def up(self, options: LabOptions | None, ready: Ready, progress: Progress) -> None:
        """Bring the nodes up: from the golden snapshot where there is one, by booting and taking one where not."""

    def reset(self, ready: Ready, progress: Progress) -> None:
        """Take memory and disks of all nodes back to the golden snapshot."""

    def down(self, progress: Progress) -> None:
        """End everything this lab runs. Leaves disks and the golden snapshot."""

    def destroy(self, progress: Progress) -> None:
        """`down`, and delete the lab's state."""

    def nodes(self) -> tuple[Node, ...]:
        """The nodes, in order, running or not."""

    def status(self) -> tuple[NodeStatus, ...]: ...

    def set_labels(self, name: str, labels: Mapping[str, str]) -> None:
        """These are the labels of a node from now on, through `reset`, `down` and `up`.

        Raises :class:`labctl.errors.UnsupportedError` where somebody else keeps them.
        """

    def console(self, name: str) -> Path | None:
        """The file with the serial console of a node, where the provider has one."""

    def power(self, name: str) -> Power:
        """A node's power switch. Raises :class:`labctl.errors.UnsupportedError` where it has none."""
