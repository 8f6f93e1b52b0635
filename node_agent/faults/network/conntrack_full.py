"""conntrack_full: the connection tracking table is full. Entries of our own, kept by a process."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

import node_agent
from node_agent.errors import Refusal
from node_agent.fault import Evidence, Facts, Fault, Missing, PlanNotes, Target
from node_agent.guard import guarded_ports, inet_guard
from node_agent.host import Reader
from node_agent.signs import Sign, in_log
from node_agent.steps import Step
from node_agent.steps.conntrack_entries import ConntrackEntries
from node_agent.steps.helper_process import HelperProcess
from node_agent.steps.nft_table import NftChain, NftTable
from node_agent.workers.conntrack import COUNT, MOST

from .netfilter import EARLY, table_evidence

_STATISTICS = "/proc/net/stat/nf_conntrack"
_ENTRY_BYTES = 400
"""What an entry takes of the kernel's memory, its extensions and its place in the table included, rounded up."""
_READY_S = 110
_SLACK = 8


class TrackingTable(Target):
    """The table as it was: entries, the most it may have (0: not known), and packets dropped so far."""

    entries: int
    most: int
    dropped: int
    guard: tuple[int, ...]

    def describe(self) -> str:
        return f"the connection tracking table: {self.entries} of {self.most or 'an unknown number of'} entries"


class ConntrackFull(Fault):
    """The table really is full: packets that would begin a connection are dropped, whoever sends or forwards them.

    Connections that have an entry go on. As in a real overflow it does not matter who used the table up: entries
    are made by netlink, of addresses that nobody has, and made again when others become free.
    """

    name: ClassVar[str] = "conntrack_full"
    summary: ClassVar[str] = "the connection tracking table is full: new connections are dropped"
    operator_sees: ClassVar[str] = (
        "connections that stand are well and new ones time out, in and out, for every service; 'nf_conntrack: "
        "table full, dropping packet' in the kernel log; nf_conntrack_count is nf_conntrack_max"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({}, {"leave": 3, "loopback": True})

    leave: int = Field(default=0, ge=0, le=1 << 20, description="entries that others can still have")
    loopback: bool = Field(default=False, description="connections within the node, over lo, are dropped, too")

    def requires(self, facts: Facts) -> tuple[Missing, ...]:
        return facts.missing("netfilter.tables", "netfilter.conntrack")

    def locate(self, reader: Reader, facts: Facts) -> TrackingTable:
        most, entries = _number(reader, MOST), _number(reader, COUNT)
        needed_kib = max(0, most - entries) * _ENTRY_BYTES >> 10
        memory = dict(line.split(":", 1) for line in reader.read_text("/proc/meminfo").splitlines() if ":" in line)
        available_kib = int(memory.get("MemAvailable", memory["MemTotal"]).split()[0])
        if needed_kib > available_kib // 2:
            raise Refusal(
                f"leave: filling the table takes {needed_kib >> 10} MiB, more than half of what is available",
                field="leave", allowed="a node with a smaller nf_conntrack_max, or more memory",
            )  # fmt: skip
        if most and self.leave >= most - entries:
            raise Refusal(
                f"leave: the table has {most - entries} free entries", field="leave", allowed="fewer than that"
            )
        return TrackingTable(entries=entries, most=most, dropped=_dropped(reader), guard=guarded_ports(reader))

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        assert isinstance(target, TrackingTable)
        tracking = ("ct state new counter name new_connections",)
        table = NftTable(
            name=tag, title="control needs no entry of the table", counters=("new_connections",),
            chains=(
                NftChain(name="received", hook="prerouting", priority=EARLY,
                         rules=self._untracked("iifname", target.guard)),
                NftChain(name="sent", hook="output", priority=EARLY,
                         rules=self._untracked("oifname", target.guard)),
                NftChain(name="tracked_in", hook="prerouting", priority=0, rules=tracking),
                NftChain(name="tracked_out", hook="output", priority=0, rules=tracking),
            ),
        )  # fmt: skip
        script = Path(node_agent.__file__).parent / "workers" / "conntrack_worker.py"
        worker = HelperProcess(
            name=tag, title="keep the connection table full", argv=(sys.executable, "-I", "-S", str(script)),
            payload=json.dumps({"leave": self.leave}), ready_s=_READY_S,
        )  # fmt: skip
        return (table, ConntrackEntries(name=tag), worker)

    def _untracked(self, way: str, guard: tuple[int, ...]) -> tuple[str, ...]:
        loopback = () if self.loopback else (f'{way} "lo" accept',)
        return tuple(f"{rule.removesuffix(' accept')} notrack" for rule in (*loopback, *inet_guard(guard)))

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        assert isinstance(target, TrackingTable)
        warnings = ["connections are tracked while it stands, also where nobody else asks for that"]
        if not self.loopback:
            warnings.append(
                "what goes over lo is not tracked while it stands, so its addresses are not translated"
            )
        return PlanNotes(
            backend="netlink",
            covers=("the table of this network namespace, IPv4 and IPv6, own and forwarded connections",),
            not_covered=(
                "containers with a network of their own, for what they do within it",
                f"TCP ports {', '.join(map(str, target.guard))} (sshd and the agent) need no entry then",
            ),
            warnings=tuple(warnings),
        )

    def signs(self, target: Target | None) -> tuple[Sign, ...]:
        what = "the kernel says that the connection table is full"
        return (in_log(what, r"nf_conntrack: table full.*dropping packet", when="once a connection is begun"),)

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        assert isinstance(target, TrackingTable)
        found = table_evidence(reader, tag, ())
        most, entries = _number(reader, MOST), _number(reader, COUNT)
        alive = bool(reader.helpers.pids(tag))
        notes = found.notes if alive else (*found.notes, "the process that keeps the table full has ended")
        full = entries >= most - self.leave - _SLACK
        counters = {**found.counters, "entries": entries, "most": most}
        return found.model_copy(update={
            "armed": found.armed and alive and full, "hits": max(0, _dropped(reader) - target.dropped),
            "counters": counters, "notes": notes,
        })  # fmt: skip


def _number(reader: Reader, path: str) -> int:
    with suppress(OSError):  # before the first table that tracks connections, the module is not there
        return int(reader.read_text(path))
    return 0


def _dropped(reader: Reader) -> int:
    """Packets dropped because there was no entry to be had, all CPUs together; the numbers are hexadecimal."""
    with suppress(OSError):
        head, *cpus = reader.read_text(_STATISTICS).splitlines()
        column = head.split().index("drop")
        return sum(int(line.split()[column], 16) for line in cpus)
    return 0
