"""The provider `ssh`: hosts that somebody owns, taken into a lab from an inventory.

They are never reset or given a new clock, and only `labctl power` starts or stops them; the lab knows how to reach
them.
"""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, runtime_checkable

from labctl.errors import LabctlError, LabError, UnsupportedError
from labctl.lab import footprint as at
from labctl.lab.files import write_atomic
from labctl.lab.model import LabOptions, Node, NodeStatus, Ready
from labctl.lab.remote import Remote, connected
from labctl.power.model import Power
from labctl.progress import Progress

PROBE_TIMEOUT_S = 5.0
RECORD = "lab.json"

AT_ONCE = 64
"""How many hosts are logged in to, or looked at, at the same time."""

NAMED = 8
"""More hosts than these are counted, not named."""


def provider(directory: Path) -> SshLab:
    """The lab kept in `directory`, whose name is the lab's (see :mod:`labctl.lab.store`)."""
    return SshLab(directory)


@runtime_checkable
class TakesHosts(Protocol):
    """A provider that is told its nodes."""

    def set_hosts(self, nodes: Sequence[Node]) -> None:
        """These are the nodes from now on."""


class SshLab:
    """A lab of real hosts, kept in `directory`."""

    kind = "ssh"

    def __init__(
        self,
        directory: Path,
        login: Callable[[Node], AbstractContextManager[Remote]] = connected,
    ) -> None:
        self.name = directory.name
        self._directory, self._login = directory, login

    def set_hosts(self, nodes: Sequence[Node]) -> None:
        """These are the nodes from now on. Makes the lab, and its certificates, where they are not there yet."""
        from labctl.operators import own_name
        from labctl.pki import LabAuthority

        LabAuthority.ensure(self._directory / "pki", self.name, operator=own_name())
        record = {"provider": self.kind, "nodes": [node.model_dump(mode="json") for node in nodes]}
        write_atomic(self._directory / RECORD, json.dumps(record, indent=2).encode())

    def nodes(self) -> tuple[Node, ...]:
        """The hosts of the inventory, in its order."""
        try:
            record = json.loads((self._directory / RECORD).read_text())
        except FileNotFoundError:
            return ()
        return tuple(Node.model_validate(item) for item in record["nodes"])

    def up(self, options: LabOptions | None, ready: Ready, progress: Progress) -> None:
        """Log in to every host, all at once, and wait for the agents that are there.

        Raises :class:`LabError` naming every host that cannot be used. `ready` is called for hosts with an agent.
        """
        nodes = self.nodes()
        names = ", ".join(node.name for node in nodes) if len(nodes) <= NAMED else f"{len(nodes)} hosts"
        with progress.task(f"logging in to {names}"):
            with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
                found = list(pool.map(self._look, nodes))
        bad = [error.message for error in found if isinstance(error, LabctlError)]
        if bad:
            hint = next((e.hint for e in found if isinstance(e, LabctlError) and e.hint), "")
            raise LabError("; ".join(bad), hint)
        for node, has_agent in zip(nodes, found, strict=True):
            if has_agent:
                with progress.task(f"waiting for the agent of {node.name}"):
                    ready(node)
            else:
                progress.note(f"{node.name} has no agent yet: labctl --lab {self.name} node install {node.name}")

    def _look(self, node: Node) -> bool | LabctlError:
        """Whether the agent's program is on a host, or why it cannot be told."""
        try:
            with self._login(node) as remote:
                return remote.run(("test", "-e", at.UNIT_FILE)).status == 0
        except LabctlError as error:
            return error

    def _ours(self, node: Node) -> bool | LabctlError:
        """Whether a host has an agent that obeys this lab, or why it cannot be told. In doubt it does."""
        from labctl.lab.belonging import same_authority
        from labctl.lab.root import Root

        there = self._look(node)
        if there is not True:
            return there
        try:
            with self._login(node) as remote:
                theirs = Root(remote).ask("cat", f"{at.TLS}/ca.pem")
        except LabctlError:
            return True
        ours = (self._directory / "pki" / "ca.pem").read_bytes()
        return theirs.status != 0 or same_authority(theirs.stdout, ours)

    def reset(self, ready: Ready, progress: Progress) -> None:
        """Not possible: a real host has no snapshot."""
        raise UnsupportedError(
            "provider ssh cannot reset: real hosts have no snapshot to go back to",
            "labctl recover --all takes every fault back",
        )

    def down(self, progress: Progress) -> None:
        """Nothing runs here for this lab; the hosts are left as they are."""
        progress.note("the hosts and their agents are left as they are")

    def destroy(self, progress: Progress) -> None:
        """Forget the hosts and the certificates. Refused while one of them still has the agent."""
        with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
            found = dict(zip((n.name for n in self.nodes()), pool.map(self._ours, self.nodes()), strict=True))
        with_agent = [name for name, answer in found.items() if answer is True]
        if with_agent:
            raise LabError(
                f"lab {self.name}: {', '.join(with_agent)} would be left with an agent that nothing can command",
                f"labctl node remove {with_agent[0]}",
            )
        for name, answer in found.items():
            if isinstance(answer, LabctlError):
                progress.note(f"{name} could not be asked whether it has an agent: {answer.message}")
        shutil.rmtree(self._directory)

    def status(self) -> tuple[NodeStatus, ...]:
        """Whether each host's SSH port answers."""
        nodes = self.nodes()
        with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
            return tuple(pool.map(self._status, nodes))

    def _status(self, node: Node) -> NodeStatus:
        if not node.jumps:
            return _status(node)
        try:  # its port leads nowhere from here
            with self._login(node):
                return NodeStatus(node=node, running=True)
        except LabctlError as error:
            return NodeStatus(node=node, running=False, detail=error.message)

    def set_labels(self, name: str, labels: Mapping[str, str]) -> None:
        """Not here: the inventory says them, and would say otherwise the next time it is read."""
        raise UnsupportedError(
            f"{name}: provider ssh takes labels from the inventory",
            f"labels = {{ … }} in [nodes.{name}], then: labctl up --inventory FILE",
        )

    def console(self, name: str) -> Path | None:
        """None: the console of a real host is not ours to read."""
        return None

    def power(self, name: str) -> Power:
        """By the host's management controller. Raises :class:`UnsupportedError` where the inventory has none."""
        from labctl.power.redfish import RedfishPower

        bmc = next(node.bmc for node in self.nodes() if node.name == name)
        if bmc is None:
            raise UnsupportedError(
                f"{name}: the inventory names no management controller that could switch its power",
                f"add bmc = {{ url, user, password_file }} to nodes.{name}, then: labctl up --inventory FILE",
            )
        return RedfishPower(name, bmc)


def _status(node: Node) -> NodeStatus:
    try:
        with socket.create_connection((node.address, node.ssh_port), timeout=PROBE_TIMEOUT_S):
            return NodeStatus(node=node, running=True)
    except OSError as error:
        return NodeStatus(node=node, running=False, detail=f"port {node.ssh_port}: {error.strerror or error}")
