"""What every network fault lets through, whatever it is told: the way in for the people who would mend it.

TCP of sshd and of the agent in both directions, address resolution (ARP, IPv6 neighbour discovery) and DHCP, so
that a node keeps its address. All of `lo` is let through unless a fault names it.
"""

from __future__ import annotations

import re

from node_agent.host import Reader

SSH_PORT, AGENT_PORT = 22, 7443
DHCP_PORTS = (67, 68, 546, 547)
NEIGHBOUR_DISCOVERY = (133, 134, 135, 136, 137)
"""ICMPv6 types of RFC 4861: router and neighbour solicitations and advertisements, redirects."""

_SOCKET_UNITS = ("ssh.socket", "sshd.socket")
_LISTENER = re.compile(r"^\S+\s+\d+\s+\d+\s+\S*:(\d+)\s.*users:\((.*)\)")
_HOLDER = re.compile(r'\("([^"]*)",pid=(\d+),')


def guarded_ports(reader: Reader) -> tuple[int, ...]:
    """TCP ports of sshd and of the agent on this node, sorted; 22 and 7443 are among them whoever listens."""
    ports = {SSH_PORT, AGENT_PORT}
    agent = reader.read_text("/proc/self/stat").split()[0]
    for line in (reader.query(("ss", "-Hltnp")) or "").splitlines():
        found = _LISTENER.match(line)
        if found and any(n.startswith("sshd") or p == agent for n, p in _HOLDER.findall(found[2])):
            ports.add(int(found[1]))
    shown = reader.query(("systemctl", "show", "--property=ActiveState,Listen", "--", *_SOCKET_UNITS)) or ""
    for unit in shown.split("\n\n"):
        if "ActiveState=active" in unit:
            ports |= {int(port) for port in re.findall(r"Listen=\S*?:?(\d+) \(Stream\)", unit)}
    return tuple(sorted(ports))


def netdev_guard(ports: tuple[int, ...], comment: str) -> tuple[str, ...]:
    """Rules for a chain of family netdev that accept the control traffic, in nft's own words."""
    listed = ", ".join(str(port) for port in ports)
    leases = ", ".join(str(port) for port in DHCP_PORTS)
    types = ", ".join(_TYPE_NAMES[number] for number in NEIGHBOUR_DISCOVERY)
    return (
        f'meta protocol != {{ ip, ip6 }} accept comment "{comment}"',
        f"tcp sport {{ {listed} }} accept",
        f"tcp dport {{ {listed} }} accept",
        f"udp dport {{ {leases} }} accept",
        f"icmpv6 type {{ {types} }} accept",
    )


def inet_guard(ports: tuple[int, ...]) -> tuple[str, ...]:
    """The same for a chain of family inet, which never sees ARP; `lo` is let through too."""
    listed = ", ".join(str(port) for port in ports)
    leases = ", ".join(str(port) for port in DHCP_PORTS)
    types = ", ".join(_TYPE_NAMES[number] for number in NEIGHBOUR_DISCOVERY)
    return (
        f"tcp sport {{ {listed} }} accept",
        f"tcp dport {{ {listed} }} accept",
        f"udp dport {{ {leases} }} accept",
        f"icmpv6 type {{ {types} }} accept",
    )


_TYPE_NAMES = {
    133: "nd-router-solicit", 134: "nd-router-advert", 135: "nd-neighbor-solicit", 136: "nd-neighbor-advert",
    137: "nd-redirect",
}  # fmt: skip
