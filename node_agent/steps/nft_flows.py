"""The TCP connections there are at one moment, put into sets of a table of the injection's."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from typing import Literal

from node_agent.errors import ApplyError
from node_agent.host import Host, Reader
from node_agent.steps.base import Step, Undo
from node_agent.steps.nft_table import FAMILY, NftSet, has_table
from node_agent.workers.socket_diag import Connection

SETS = ("flows4", "flows6")
"""Sets of what a packet has in this order: source address and port, target address and port."""

_TYPES = {"flows4": "ipv4_addr", "flows6": "ipv6_addr"}
_AT_ONCE = 2000


def flow_sets() -> tuple[NftSet, ...]:
    """The sets that this step fills, empty."""
    return tuple(NftSet(name=n, of=f"{of} . inet_service . {of} . inet_service") for n, of in _TYPES.items())


class NftFlows(Step):
    """Puts the packets of the connections that fit into the sets of `table`, in both directions.

    `remotes` are networks of the far end and `ports` ranges of ports of either end, empty for all; `cgroups` are
    folders of control groups whose sockets are meant, with those below them, empty for all. Connections within
    the node and those of the ports in `guard` are left out. `provoke`: both ends are then made to send something,
    so that the rules see a packet of a connection that is idle, too.

    What is found at the moment of applying counts; without any connection it fails. Reverting empties the sets,
    which go with the table; a table that is gone is fine, so twice equals once.
    """

    kind: Literal["nft_flows"] = "nft_flows"
    table: str
    remotes: tuple[str, ...] = ()
    ports: tuple[tuple[int, int], ...] = ()
    cgroups: tuple[str, ...] = ()
    guard: tuple[int, ...] = ()
    provoke: bool = False
    needed: bool = True

    def describe(self) -> str:
        ending = ", and make both ends send something" if self.provoke else ""
        return f"put the connections that fit into sets of {FAMILY} {self.table}{ending}"

    def capture(self, reader: Reader) -> Undo:
        return {}

    def apply(self, host: Host) -> None:
        found = self.fitting(host)
        if not found and self.needed:
            raise ApplyError("no connection fits any more")
        for script in self.scripts(found):
            host.network.load_rules(script)
        if self.provoke:
            host.flows.provoke(found)

    def scripts(self, found: Sequence[Connection]) -> tuple[str, ...]:
        """What nft is told, some thousand connections at a time. Pure."""
        scripts = []
        for start in range(0, len(found), _AT_ONCE):
            part = found[start : start + _AT_ONCE]
            lines = []
            for name, version in zip(SETS, (4, 6), strict=True):
                chosen = [one for one in part if ipaddress.ip_address(one.local).version == version]
                elements = ", ".join(element for one in chosen for element in _elements(one))
                if elements:
                    lines.append(f"add element {FAMILY} {self.table} {name} {{ {elements} }}\n")
            scripts.append("".join(lines))
        return tuple(scripts)

    def revert(self, host: Host, undo: Undo | None) -> None:
        if has_table(host, self.table):
            host.network.load_rules("".join(f"flush set {FAMILY} {self.table} {name}\n" for name in SETS))

    def leftovers(self, reader: Reader, undo: Undo | None) -> tuple[str, ...]:
        return ()  # the sets are the table's

    def fitting(self, reader: Reader) -> list[Connection]:
        """The connections there are now that fit."""
        numbers = cgroup_numbers(reader, self.cgroups) if self.cgroups else None
        networks = [ipaddress.ip_network(one) for one in self.remotes]
        found = []
        for one in dict.fromkeys(reader.flows.connections()):
            remote = ipaddress.ip_address(one.remote)
            meant = not networks or any(remote in network for network in networks)
            meant = meant and (not self.ports or _in(self.ports, (one.local_port, one.remote_port)))
            within = remote.is_loopback or one.remote == one.local
            guarded = one.local_port in self.guard or one.remote_port in self.guard
            if meant and not within and not guarded and (numbers is None or one.cgroup in numbers):
                found.append(one)
        return found


def cgroup_numbers(reader: Reader, folders: Iterable[str]) -> set[int]:
    """The numbers of control groups and of all below them: those of their folders. None for one that is gone."""
    found = set()
    for folder in folders:
        below = (path.rpartition("/")[0] for path in reader.glob(f"{folder}/**/cgroup.procs"))
        found |= {info.inode for path in (folder, *below) if (info := reader.file_info(path))}
    return found


def _in(ranges: Iterable[tuple[int, int]], ports: Iterable[int]) -> bool:
    known = tuple(ports)
    return any(first <= port <= last for first, last in ranges for port in known)


def _elements(one: Connection) -> tuple[str, str]:
    local, remote = f"{one.local} . {one.local_port}", f"{one.remote} . {one.remote_port}"
    return f"{local} . {remote}", f"{remote} . {local}"
