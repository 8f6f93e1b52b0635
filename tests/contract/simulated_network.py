"""Shaping on the simulated machine: IFBs with their qdiscs, and netfilter chains edited line by line."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from node_agent.host import CommandError
from node_agent.host.links import Interface, Qdisc, QdiscCounters
from node_agent.host.rtlinks import tc_words

if TYPE_CHECKING:
    from tests.contract.simulated import SimulatedHost

FIRST_INDEX = 100
_EDIT = re.compile(r"^(add|flush|delete) (chain|rule|counter) (\w+) (\S+) (\S+)\s*(.*)$")


@dataclass
class SimShaping:
    """Interfaces that are made at run time, and the qdiscs of each, by name."""

    made: dict[str, Interface] = field(default_factory=dict)
    qdiscs: dict[str, list[Qdisc]] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)
    next_index: int = FIRST_INDEX

    def at_rest(self) -> bool:
        """Whether nothing of the lab's is there."""
        return not self.made and not self.qdiscs


class SimulatedShaping:
    """`host.links` of one agent."""

    def __init__(self, host: SimulatedHost) -> None:
        self._h = host

    @property
    def _s(self) -> SimShaping:
        self._h.alive()
        return self._h.kernel.shaping

    def list(self) -> Sequence[Interface]:
        cards = [
            Interface(one.index, one.name, "", "", 65536 if one.loopback else 1500, one.up, loopback=one.loopback)
            for one in self._h.kernel.net.links.values()
        ]
        return [*cards, *self._s.made.values()]

    def qdiscs(self) -> Mapping[int, Sequence[Qdisc | str]]:
        return {one.index: list(self._s.qdiscs.get(name, ())) for name, one in self._s.made.items()}

    def counters(self) -> Mapping[int, Sequence[QdiscCounters]]:
        return {
            one.index: [QdiscCounters(q.handle, 0, 0, 0) for q in self._s.qdiscs.get(name, ())]
            for name, one in self._s.made.items()
        }

    def add_ifb(self, name: str) -> None:
        self._h.change()
        if any(one.name == name for one in self.list()):
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        self._s.made[name] = Interface(self._s.next_index, name, "ifb", "", 1500, False)
        self._s.next_index += 1

    def describe(self, name: str, alias: str, mtu: int) -> None:
        self._h.change()
        self._s.made[name] = replace(self._find(name), alias=alias, mtu=mtu)

    def add_qdiscs(self, name: str, qdiscs: Sequence[Qdisc]) -> None:
        for qdisc in qdiscs:
            self._add(name, qdisc)

    def _add(self, name: str, qdisc: Qdisc) -> None:
        self._h.change()
        self._find(name)
        there = self._s.qdiscs.setdefault(name, [])
        parents = {"root", *(f"{one.handle}1" for one in there)}
        if qdisc.parent not in parents or any(q.parent == qdisc.parent for q in there):
            raise CommandError(("tc", "qdisc", "add", "dev", name, *tc_words(qdisc)), 2, "Invalid argument")
        there.append(qdisc)

    def set_up(self, name: str) -> None:
        self._h.change()
        self._s.made[name] = replace(self._find(name), up=True)

    def drain(self, name: str, timeout_s: float) -> bool:
        self._h.alive()
        return True

    def delete(self, name: str) -> None:
        self._h.change()
        lost = f'fwd to "{name}"'
        led = [at for at, lines in self._h.kernel.netfilter.tables.items() if any(lost in line for line in lines)]
        assert not led, f"{name} goes while packets are led to it by {led}"
        self._s.made.pop(name, None)
        self._s.qdiscs.pop(name, None)

    def _find(self, name: str) -> Interface:
        if name not in self._s.made:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), name)
        return self._s.made[name]


def qdisc_lines(shaping: SimShaping) -> str:
    """What tc(8) says of qdiscs of IFBs."""
    return "".join(
        f"qdisc {q.kind} {q.handle} dev {name} {' '.join(w for w in tc_words(q) if w != 'handle')}\n"
        for name, found in shaping.qdiscs.items()
        for q in found
    )


def edit(host: SimulatedHost, line: str) -> bool:
    """Do one command of nft(8) that changes a part of a table; False where it is none. The table's text is that of
    `nft list`."""
    found = _EDIT.match(line)
    if not found or not found[4].startswith("groundfault."):
        return False
    verb, what, family, table, name, rest = found.groups()
    lines = host.kernel.netfilter.tables.get((family, table))
    if lines is None:
        raise CommandError(("nft", "-f", "-"), 1, f"{line}: No such file or directory")
    name = name.strip('"')
    {"chain": _chain, "rule": _rule, "counter": _counter}[what](host, lines, verb, name, rest)
    return True


def _block(lines: list[str], head: str) -> tuple[int, int] | None:
    """Where a block begins and ends."""
    if head not in lines:
        return None
    start = lines.index(head)
    return start, lines.index("\t}", start)


def _chain(host: SimulatedHost, lines: list[str], verb: str, name: str, rest: str) -> None:
    at = _block(lines, f"\tchain {name} {{")
    if verb == "add":
        if at is None:
            lines += [f"\tchain {name} {{", f"\t\t{rest.strip('{} ')};".replace(";;", ";"), "\t}"]
    elif at is None:
        raise CommandError(("nft", "-f", "-"), 1, f"{name}: No such file or directory")
    elif verb == "flush":
        lines[at[0] + 2 : at[1]] = []
    else:
        assert at[1] == at[0] + 2, f"chain {name} has rules"
        lines[at[0] : at[1] + 1] = []


def _rule(host: SimulatedHost, lines: list[str], verb: str, name: str, rest: str) -> None:
    at = _block(lines, f"\tchain {name} {{")
    device = re.search(r'fwd to "([^"]+)"', rest)
    there = at is not None and (device is None or device[1] in host.kernel.shaping.made)
    if not there or any(f"\tcounter {c} {{" not in lines for c in re.findall(r'counter name "([^"]+)"', rest)):
        raise CommandError(("nft", "-f", "-"), 1, f"{rest}: No such file or directory")
    assert at is not None
    lines.insert(at[1], f"\t\t{rest}")


def _counter(host: SimulatedHost, lines: list[str], verb: str, name: str, rest: str) -> None:
    at = _block(lines, f"\tcounter {name} {{")
    if verb == "add":
        if at is None:
            lines[:0] = [f"\tcounter {name} {{", "\t}"]
    elif at is None or any(f'counter name "{name}"' in line for line in lines):
        raise CommandError(("nft", "-f", "-"), 1, f"{name}: Device or resource busy")
    else:
        lines[at[0] : at[1] + 1] = []
