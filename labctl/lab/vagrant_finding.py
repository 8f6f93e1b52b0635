"""Where Vagrant's machines are, and that they are who they should be.

Vagrant checks no host keys. Here the key of a machine that was just made is learned, because nobody else can know
it yet, and from then on it has to stay: a machine at that address with another key is refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from labctl.errors import LabctlError, LabError
from labctl.lab.files import write_atomic
from labctl.lab.model import Login, Node
from labctl.lab.remote import LogIn
from labctl.lab.vagrant_record import Known, Record
from labctl.lab.vagrant_tool import Vagrant, is_loopback
from labctl.transport.host_keys import Trusts, name_in_file, nobody

AGENT_PORT = 7443
_WAY_S, _LOGIN_S, _PAUSE_S = 180.0, 180.0, 1.0


class Finder:
    """Finds the machines of one Vagrant environment. `directory`: the lab's, where the host keys are kept."""

    def __init__(
        self,
        vagrant: Vagrant,
        directory: Path,
        login: LogIn,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._vagrant, self._directory, self._login = vagrant, directory, login
        self._clock, self._sleep = clock, sleep

    @property
    def _known_hosts(self) -> Path:
        return self._directory / "known_hosts"

    def find(self, record: Record) -> Record:
        """Where the machines are now, by keys that are known, or learned from machines that are new."""
        vagrant = self._vagrant
        known = {name: one for name, one in record.known.items() if vagrant.machine_id(name) == one.machine}
        logins = {name: self._way(name) for name in record.names}
        for name in record.names:
            if name not in known:
                known[name] = Known(machine=vagrant.machine_id(name), host_key=self._learn(name, logins[name]))
        nodes = tuple(
            _node(name, index, logins[name], record.agent_ports[index - 1], self._known_hosts)
            for index, name in enumerate(record.names, 1)
        )
        hosts = "".join(f"{name_in_file(logins[name])} {known[name].host_key}\n" for name in record.names)
        write_atomic(self._known_hosts, hosts.encode())
        for node in nodes:
            self._check(node)
        return record.model_copy(update={"nodes": nodes, "known": known})

    def _way(self, name: str) -> Login:
        """Ask until the machine has an address: a lease may take its time."""
        deadline = self._clock() + _WAY_S
        while True:
            try:
                return self._vagrant.login(name)
            except LabError as error:
                if self._clock() >= deadline:
                    hint = error.hint.splitlines()[0] if error.hint else ""
                    late = f"{name} has no address that Vagrant knows of, {_WAY_S:.0f} s after its start"
                    raise LabError(late, hint) from None
            self._sleep(_PAUSE_S)

    def _learn(self, name: str, login: Login) -> str:
        """The host key of a machine that Vagrant has just made: nobody else knows it yet."""
        file = self._directory / "first-contact"
        file.unlink(missing_ok=True)
        node = _node(name, 1, login, AGENT_PORT, file)
        try:
            self._patient(node, lambda where, kind, fingerprint: True)
            return " ".join(file.read_text().split()[1:3])
        finally:
            file.unlink(missing_ok=True)

    def _check(self, node: Node) -> None:
        """Who answers there is the node of that name: an address may have come to another machine."""
        said = self._patient(node, nobody)
        if said != node.name:
            raise LabError(
                f"{node.address}:{node.ssh_port} is not {node.name}: it calls itself {said or 'nothing'}",
                f"vagrant reload {node.name}, or labctl down --destroy",
            )

    def _patient(self, node: Node, trusts: Trusts) -> str:
        """Log in on a machine that may still be booting; the name that it has."""
        deadline = self._clock() + _LOGIN_S
        while True:
            try:
                with self._login(node, trusts) as remote:
                    return remote.run(("uname", "-n")).stdout.strip().partition(".")[0]
            except LabctlError as error:
                hopeless = getattr(error, "cause", "") in ("host_key", "login")
                if hopeless or self._clock() >= deadline:
                    raise
            self._sleep(_PAUSE_S)


def _node(name: str, index: int, login: Login, agent_port: int, known_hosts: Path) -> Node:
    """A node as the control side reaches it. What is forwarded from the loopback has a port of its own."""
    return Node(
        name=name,
        address=login.address,
        ssh_port=login.port,
        ssh_user=login.user,
        ssh_key=login.key,
        known_hosts=known_hosts,
        agent_port=agent_port if is_loopback(login.address) else AGENT_PORT,
        lab_addresses=(f"10.77.0.{10 + index}",),
    )
