"""Under which addresses the nodes of a lab reach each other."""

from __future__ import annotations

import ipaddress
import socket

from labctl.errors import UsageError
from labctl.lab.model import Node


def lab_addresses(node: Node) -> tuple[str, ...]:
    """The addresses of a node on the lab's network, v4 and v6: those that are known, or those of its address.

    Raises :class:`UsageError` where its address leads to this computer or has no address at all.
    """
    if node.lab_addresses:
        return node.lab_addresses
    hint = f'lab_address = "…" in [nodes.{node.name}] of the inventory, then: labctl up --inventory FILE'
    try:
        found = socket.getaddrinfo(node.address, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UsageError(f"{node.name}: {node.address} has no address: {error}", hint) from None
    addresses = tuple(dict.fromkeys(str(one[4][0]).partition("%")[0] for one in found))
    if any(ipaddress.ip_address(one).is_loopback for one in addresses):
        raise UsageError(f"{node.name}: {node.address} is this computer, not where other nodes reach it", hint)
    return addresses


def known_addresses(node: Node) -> tuple[str, ...]:
    """All addresses by which a node may be known elsewhere: as written, and looked up; none of this computer."""
    try:
        found = socket.getaddrinfo(node.address, None, type=socket.SOCK_STREAM)
    except OSError:
        found = []
    looked_up = (str(one[4][0]).partition("%")[0] for one in found)
    several = dict.fromkeys((*node.lab_addresses, node.address, *looked_up))
    return tuple(one for one in several if one != "localhost" and not _is_loopback(one))


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:  # a name
        return False
