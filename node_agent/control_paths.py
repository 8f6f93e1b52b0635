"""By which interfaces and to whom control traffic runs just now: what no fault below TCP may cut.

Sources: proc_net_tcp (Documentation/networking/proc_net_tcp.rst), sysfs-class-net for the stacking of interfaces.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass

from node_agent.guard import guarded_ports
from node_agent.host import Reader
from node_agent.host.rtmessages import MAIN_TABLE, address_of, interfaces_of, route_of

_ESTABLISHED = "01"
_DEFAULT = ("0.0.0.0/0", "::/0")


@dataclass(frozen=True)
class ControlPath:
    """One connection of sshd or of the agent."""

    local: str
    peer: str


def control_paths(reader: Reader) -> tuple[ControlPath, ...]:
    """The established connections of sshd and of the agent that leave the machine."""
    ports = guarded_ports(reader)
    found: dict[ControlPath, None] = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        lines = reader.read_text(table).splitlines()[1:] if reader.exists(table) else ()
        for words in (line.split() for line in lines):
            local, port = _end(words[1])
            peer, _ = _end(words[2])
            if words[3] == _ESTABLISHED and port in ports and not ipaddress.ip_address(peer).is_loopback:
                found[ControlPath(local, peer)] = None
    return tuple(found)


def _end(text: str) -> tuple[str, int]:
    """Address and port: each 32 bits of an address are a number in the machine's order."""
    address, _, port = text.partition(":")
    words = (address[at : at + 8] for at in range(0, len(address), 8))
    where = ipaddress.ip_address(b"".join(bytes.fromhex(word)[::-1] for word in words))
    inner = where.ipv4_mapped if isinstance(where, ipaddress.IPv6Address) else None
    return str(inner or where), int(port, 16)


def management_links(reader: Reader) -> dict[int, str]:
    """The interfaces that carry control traffic, by number, and why; also those that they are stacked on."""
    names = {link.index: link.name for link in reader.routing.links()}
    numbers = {name: index for index, name in names.items()}
    found: dict[int, str] = {}
    for index, why in _direct(reader):
        for name in (names[index], *_below(reader, names[index])) if index in names else ():
            found.setdefault(numbers[name], why)
    return found


def _direct(reader: Reader) -> Iterator[tuple[int, str]]:
    holders = {address_of(one): interfaces_of(one)[0] for one in reader.routing.addresses()}
    for path in control_paths(reader):
        if path.local in holders:
            yield holders[path.local], f"control traffic with {path.peer} goes through it"
        if not ipaddress.ip_address(path.peer).is_link_local:
            route = reader.routing.route_to(path.peer, path.local)
            for index in interfaces_of(route) if route else ():
                yield index, f"control traffic with {path.peer} goes through it"
    for entry in reader.routing.routes():
        route_said = route_of(entry)
        if route_said.destination in _DEFAULT and route_said.table == MAIN_TABLE:
            for index in interfaces_of(entry):
                yield index, "the default route goes through it"


def _below(reader: Reader, name: str) -> Iterator[str]:
    """The interfaces that one is stacked on: the card of a VLAN, the ports of a bridge."""
    for entry in reader.listdir(f"/sys/class/net/{name}"):
        if entry.startswith("lower_"):
            yield entry.removeprefix("lower_")
            yield from _below(reader, entry.removeprefix("lower_"))


def stacked_on(reader: Reader, name: str) -> tuple[str, ...]:
    """The interfaces that are stacked on one, nearest first."""
    found: dict[str, None] = {}
    for entry in reader.listdir(f"/sys/class/net/{name}"):
        if entry.startswith("upper_"):
            upper = entry.removeprefix("upper_")
            found |= dict.fromkeys((upper, *stacked_on(reader, upper)))
    return tuple(found)
