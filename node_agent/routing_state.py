"""Interfaces and what hangs on them, as residue compares them: category by category, item to text."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

from node_agent.fault import TAG_PREFIX
from node_agent.host import Reader
from node_agent.host.routing import Entry
from node_agent.host.rtmessages import by_hand, interfaces_of, item_of, learned, shown, without_numbers

MAX_ROUTES = 5000
"""A router with the whole Internet in its tables would spend its time with looking."""


def interfaces(reader: Reader) -> dict[str, str]:
    """Each interface that is not an injection's own: whether it is up and has a carrier."""
    states = {(True, True): "up", (True, False): "up, no carrier"}
    return {
        link.name: states.get((link.up, link.carrier), "down")
        for link in reader.routing.links()
        if TAG_PREFIX not in _text(reader, f"/sys/class/net/{link.name}/ifalias")
    }


def addresses(reader: Reader) -> dict[str, str]:
    """Addresses, without those that routers advertise."""
    return _items(reader, reader.routing.addresses())


def routes(reader: Reader) -> dict[str, str]:
    """Routes of all tables, without those that routers advertise; none where there are too many to look at."""
    return {} if _many(reader) else _items(reader, reader.routing.routes())


def neighbours(reader: Reader) -> dict[str, str]:
    """Neighbour entries that somebody made: the others come and go."""
    return _items(reader, [one for one in reader.routing.neighbours() if by_hand(one)])


def _items(reader: Reader, entries: Sequence[Entry]) -> dict[str, str]:
    names = {link.index: link.name for link in reader.routing.links()}
    found: dict[str, list[str]] = {}
    for entry in entries:
        if learned(entry):
            continue
        item = item_of(entry, names)[1]
        where = ", ".join(dict.fromkeys(names.get(i, str(i)) for i in interfaces_of(entry)))
        mark = (
            f"{zlib.crc32(without_numbers(entry).raw.encode()):08x}"  # what the words do not say, such as metrics
        )
        text = f"{shown(entry).partition(' ')[2]} dev {where} ({mark})"
        found.setdefault(item, []).append(text)
    # The same network on several interfaces: their order is that in which these came up last.
    return {item: "; ".join(sorted(texts)) for item, texts in found.items()}


def _many(reader: Reader) -> bool:
    """By the kernel's own counts, which cost nothing."""
    prefixes = re.findall(r"Prefixes:\s+(\d+)", _text(reader, "/proc/net/fib_triestat"))
    nodes = _text(reader, "/proc/net/rt6_stats").split()[:1]
    return sum(map(int, prefixes)) + sum(int(n, 16) for n in nodes) > MAX_ROUTES


def _text(reader: Reader, path: str) -> str:
    return reader.read_text(path) if reader.exists(path) else ""
