"""Interfaces and qdiscs as residue compares them: item to text. Lanes bear the marks of their injections."""

from __future__ import annotations

from node_agent.fault import TAG_PREFIX
from node_agent.host import Reader


def links(reader: Reader) -> dict[str, str]:
    """Each interface: its kind, its MTU and its alias; and whether it is up where it is an injection's own."""
    found = {}
    for one in reader.links.list():
        up = (" up" if one.up else " down") if TAG_PREFIX in one.alias else ""
        found[one.name] = f"{one.kind or 'card'} mtu {one.mtu}{up} {one.alias}".rstrip()
    return found


def qdiscs(reader: Reader) -> dict[str, str]:
    """What `tc qdisc show` says, a line each; behind those of a lane stands what its alias says."""
    marks = {one.name: one.alias for one in reader.links.list() if TAG_PREFIX in one.alias}
    found = {}
    for line in reader.network.qdiscs().splitlines():
        words = line.split()
        if words:
            device = words[words.index("dev") + 1] if "dev" in words[:-1] else ""
            found[" ".join(words[1:5])] = f"{line.strip()} {marks.get(device, '')}".rstrip()
    return found
