"""What others have set up at an interface that a lane cannot live with. Only looks.

Root qdiscs of any kind stay and work: what comes out of a lane goes through them as if it came from the stack. Two
things do not go together with a lane, and are found before anything changes. A netfilter chain of the same hook
that itself forwards packets takes them away before ours is asked. And the kernel skips the actions of tc filters
once for a packet that an IFB gives back (`tc_skip_classify` in drivers/net/ifb.c and net/sched/act_api.c), so a
policer or a redirect there would be passed by; filters that only classify work, and so do those at the ingress,
which come first.
"""

from __future__ import annotations

import re

from node_agent.errors import ConflictError
from node_agent.host import Reader
from node_agent.lanes.rules import measured_tables, table_of
from node_agent.traffic import Selection

_TAKES = re.compile(r"\bfwd\b|\bflow (?:add|offload)\b|\bqueue\b")


def refuse_foreign(reader: Reader, selection: Selection) -> None:
    """Raises :class:`ConflictError` naming what is in the way, and whose it is."""
    interface = selection.interface
    hooks = {"out": "egress", "in": "ingress"}
    wanted = {hooks[direction] for direction in selection.directions}
    own = ("netdev", table_of(interface))
    for (family, name), table in measured_tables(reader.network.ruleset()).items():
        for chain, (head, rules) in table.chains.items():
            on = re.search(r"hook (\S+) devices? =? ?\{? ?(.*?) ?\}? priority", head)
            if (family, name) == own or on is None or on[1] not in wanted or interface not in _devices(on[2]):
                continue
            if any(_TAKES.search(rule) for rule in rules):
                raise ConflictError(
                    f"chain {chain} of netfilter table {family} {name} takes packets of {interface} away itself",
                    field="interface", allowed=f"nft delete chain {family} {name} {chain}, or another interface",
                )  # fmt: skip
    if "egress" in wanted:
        _refuse_actions(reader, selection)


def _devices(text: str) -> tuple[str, ...]:
    return tuple(word.strip(' ",') for word in text.split())


def _refuse_actions(reader: Reader, selection: Selection) -> None:
    interface = selection.interface
    there = reader.links.qdiscs().get(selection.index, ())
    named = [one.split() if isinstance(one, str) else [one.kind, one.handle] for one in there]
    asks: list[tuple[str, ...]] = []
    for kind, handle in named:
        if kind == "clsact":
            asks.append(("tc", "filter", "show", "dev", interface, "egress"))
        elif kind not in ("ingress", "noqueue", "mq") and handle != "0:":
            asks.append(("tc", "filter", "show", "dev", interface, "parent", handle))
    for argv in asks:
        text = reader.query(argv) or ""
        if "action order" in text:
            first = next(line for line in text.splitlines() if line.startswith("filter "))
            raise ConflictError(
                f"{interface} has tc filters with actions that shaped packets would pass by: {first.strip()}",
                field="interface", allowed="direction in, another interface, or take the filter away meanwhile",
            )  # fmt: skip
