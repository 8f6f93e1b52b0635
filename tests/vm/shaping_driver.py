"""Runs on a guest: network faults in and out, beside the agent; prints what it found as JSON.

shaping_driver.py random SEED MOVES: so many injections and recoveries at random; after each of them the
kernel's tree is compared with the desired one, and each fault that stands must be armed. shaping_driver.py probes:
what the probes of shaping say.
"""

from __future__ import annotations

import json
import random
import sys
import time
from typing import Any

sys.path.insert(0, "/opt/groundfault/lib")

from node_agent.catalog import catalog, make_fault
from node_agent.errors import ConflictError
from node_agent.facts import gather_facts
from node_agent.fault import Facts, Fault, tag_of
from node_agent.host.real import RealHost
from node_agent.lanes import is_armed
from node_agent.lanes.rules import measured_tables, table_of
from node_agent.lanes.sync import differences, lanes_there, live_shapes, wanted_tree
from node_agent.probe import Lacking, probes
from node_agent.residue import compare, look
from node_agent.undo import Applied, undo_all

INTERFACES = ("lan", "mgmt", "shp0")
FAULTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("packet_loss", {"loss_percent": 10}),
    ("packet_loss", {"loss_percent": 20, "burst_packets": 4}),
    ("packet_delay", {"delay_ms": 30}),
    ("packet_delay", {"delay_ms": 30, "jitter_ms": 5, "distribution": "normal"}),
    ("packet_jitter", {"jitter_ms": 10}),
    ("packet_reorder", {"reorder_percent": 20, "delay_ms": 10}),
    ("packet_duplicate", {"duplicate_percent": 5}),
    ("packet_corrupt", {"corrupt_percent": 2}),
    ("bandwidth_limit", {}),
    ("mtu_blackhole", {}),
    ("partition", {"peers": ["10.77.0.9"]}),
)
SELECTORS: tuple[dict[str, Any], ...] = (
    {}, {"peers": ["10.77.0.2"]}, {"peers": ["10.77.0.0/24", "fd77::/64"]}, {"ports": "80,443", "protocol": "tcp"},
    {"protocol": "udp"}, {"peers": ["10.77.0.2"], "protocol": "icmp"}, {"interface": "mgmt", "protocol": "udp"},
    {"interface": "shp0"},
)  # fmt: skip


class Host(RealHost):
    """Asks who listens once: nobody comes or goes while this runs, and each answer takes a quarter of a second."""

    def __init__(self) -> None:
        super().__init__()
        self._heard: dict[tuple[str, ...], str | None] = {}

    def query(self, argv: tuple[str, ...], *, timeout_s: float = 10.0) -> str | None:
        if argv[0] not in ("ss", "systemctl"):
            return super().query(argv, timeout_s=timeout_s)
        if argv not in self._heard:
            self._heard[argv] = super().query(argv, timeout_s=timeout_s)
        return self._heard[argv]


def wrong(host: RealHost, standing: dict[str, list[Applied]]) -> list[str]:
    """What is not as it should be now."""
    tables = measured_tables(host.network.ruleset())
    shaped = live_shapes(host)
    found: list[str] = []
    for interface in INTERFACES:
        tree = wanted_tree(host, interface)
        found += differences(host, tree)
        there = tables.get(("netdev", table_of(interface)))
        for chain in tree.chains:
            if there is None or there.chains.get(chain.name) != (chain.head, chain.rules):
                found.append(f"{interface} {chain.name} to the letter: {chain} {there}")
    found += [f"{one.tag} has a file and does not stand" for one in shaped if one.tag not in standing]
    return found + [f"{one.tag} is not armed" for one in shaped if not is_armed(host, one.tag)]


def plant(host: RealHost, facts: Facts, fault: Fault, tag: str) -> list[Applied]:
    """What the injector does, without its journal and without looking at the whole node each time."""
    done = []
    for number, step in enumerate(fault.steps(facts, fault.locate(host, facts), tag)):
        done.append(Applied(number, step, step.capture(host)))
        step.apply(host)
        step.hold(host, host.boottime() + 600)
    return done


def at_random(seed: int, moves: int) -> dict[str, Any]:
    """A sequence of injections and recoveries, never more than six at once."""
    draw, host, began = random.Random(seed), Host(), time.monotonic()
    facts, before = gather_facts(host, "w1", {}), look(host)
    known = [one for one in FAULTS if one[0] in catalog()]
    standing: dict[str, list[Applied]] = {}
    told: dict[str, Any] = {"planted": 0, "refused": [], "wrong": [], "most": 0, "lanes": 0, "left": []}
    for number in range(moves):
        tag = tag_of(f"rnd-{number}")
        if standing and (len(standing) > 5 or draw.random() < 0.42):
            gone = draw.choice(sorted(standing))
            told["left"] += undo_all(host, standing.pop(gone), lambda one: None).left
        else:
            fault, parameters = draw.choice(known)
            chosen = {**draw.choice(SELECTORS), **parameters, "seed": number}
            chosen["direction"] = draw.choice(["out", "in", "both"])
            if fault == "partition":
                chosen = {k: v for k, v in chosen.items() if k in ("peers", "direction", "seed")}
            try:
                standing[tag] = plant(host, facts, make_fault(fault, chosen), tag)
                told["planted"] += 1
            except ConflictError as clash:
                told["refused"].append(clash.message)
        told["wrong"] += [f"move {number}: {text}" for text in wrong(host, standing)]
        told["most"] = max(told["most"], len(standing))
        told["lanes"] = max(told["lanes"], sum(len(lanes_there(host, one)) for one in INTERFACES))
    for applied in standing.values():
        told["left"] += undo_all(host, applied, lambda one: None).left
    told["left"] += [str(one) for one in compare(before, look(host))]
    return told | {"seconds": round(time.monotonic() - began, 1)}


def probed() -> dict[str, Any]:
    """The answers of the probes that shaping needs."""
    found: dict[str, Any] = {}
    for name in ("net.ifb", "net.netem", "net.nft_fwd"):
        try:
            probes()[name][0](RealHost())
            found[name] = "available"
        except Lacking as lack:
            found[name] = f"{lack.reason}; {lack.remedy}"
    return found


if __name__ == "__main__":
    print(json.dumps(probed() if sys.argv[1] == "probes" else at_random(int(sys.argv[2]), int(sys.argv[3]))))
