"""Runs on a guest: shapes in and out by an injector of its own, beside the agent; prints what it found as JSON.

shaping_driver.py random SEED MOVES: so many injections and recoveries at random; after each of them the
kernel's tree is compared with the desired one, and each fault that stands must be armed. shaping_driver.py probes:
what the probes of shaping say.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, "/opt/groundfault/lib")

from node_agent.catalog import catalog
from node_agent.errors import ConflictError
from node_agent.fault import Capability, tag_of
from node_agent.host.real import RealHost
from node_agent.injector import Injector
from node_agent.lanes.rules import measured_tables, table_of
from node_agent.lanes.sync import differences, lanes_there, live_shapes, wanted_tree
from node_agent.probe import Lacking, probes

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


def wrong(host: RealHost, injector: Injector, standing: list[str]) -> list[str]:
    """What is not as it should be now."""
    tables = measured_tables(host.network.ruleset())
    found: list[str] = []
    for interface in INTERFACES:
        tree = wanted_tree(host, interface)
        found += differences(host, tree)
        there = tables.get(("netdev", table_of(interface)))
        for chain in tree.chains:
            if there is None or there.chains.get(chain.name) != (chain.head, chain.rules):
                found.append(f"{interface} {chain.name} to the letter: {chain} {there}")
    shaped = {one.tag for one in live_shapes(host)}
    found += [f"{tag} has a file and does not stand" for tag in shaped - {tag_of(one) for one in standing}]
    views = injector.injections()
    found += [f"{v.id} is {v.state}" for v in views if v.state != "active"]
    found += [f"{v.id} ({v.fault}) is not armed" for v in views if not (v.evidence and v.evidence.armed)]
    return found


def at_random(seed: int, moves: int) -> dict[str, Any]:
    """A sequence of injections and recoveries, never more than six at once."""
    draw, host, began = random.Random(seed), RealHost(), time.monotonic()
    injector = Injector(host, Path(tempfile.mkdtemp(prefix="shaping-")), "w1")
    # The agent has probed this kernel already, and all probes together take half a minute.
    injector._capabilities = {n: Capability(name=n, available=True) for n in probes() if n.startswith("net")}
    known = [one for one in FAULTS if one[0] in catalog()]
    standing: list[str] = []
    told: dict[str, Any] = {"planted": 0, "refused": [], "wrong": [], "most": 0, "lanes": 0, "left": []}
    for number in range(moves):
        if standing and (len(standing) > 5 or draw.random() < 0.42):
            gone = standing.pop(draw.randrange(len(standing)))
            (view,) = injector.recover((gone,), "recover")
            told["left"] += [] if view.state == "recovered" else [f"{gone}: {view.state} {view.residue}"]
        else:
            fault, parameters = draw.choice(known)
            chosen = {**draw.choice(SELECTORS), **parameters, "seed": number}
            chosen["direction"] = draw.choice(["out", "in", "both"])
            if fault == "partition":
                chosen = {k: v for k, v in chosen.items() if k in ("peers", "direction", "seed")}
            try:
                injector.apply(f"rnd-{number}", fault, chosen, 600)
                standing.append(f"rnd-{number}")
                told["planted"] += 1
            except ConflictError as clash:
                told["refused"].append(clash.message)
        told["wrong"] += [f"move {number}: {text}" for text in wrong(host, injector, standing)]
        told["most"] = max(told["most"], len(standing))
        told["lanes"] = max(told["lanes"], sum(len(lanes_there(host, one)) for one in INTERFACES))
    injector.recover(None, "recover")
    told["left"] += [str(one) for one in injector.residue()]
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
