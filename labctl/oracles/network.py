"""Whether nodes reach each other: loss, delay and size of packets between each pair, links, names, services.

Each node pings each other one with full packets that must not be cut, and with small ones. Both directions of a
link are in a round trip. The numbers are so that a loss of 5 % is seen in all but 3 of 1000 looks (of 200 packets
three or more are lost), and a healthy link hardly ever loses as many.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from labctl.oracles.nodes import on_each, python, watched
from labctl.run.oracle import Lookout, Oracle, Seen, Window
from labctl.run.verdict import Aspect, Finding, Outcome


class Network(Oracle):
    """The network of `addresses` (node to address) over `interface`.

    Of `count` full packets per peer, `interval_s` apart, at most `may_lose` are lost; the fastest takes at most
    `least_ms` for its round trip, and on average they take `mean_ms` at most. `names` stand for what they are said
    to, on each node; connections of `connects` (from node, host, port) open. The link is up, has not lost its
    carrier during the look, and has the MTU of the gate. Nodes of `without` are left out.
    """

    addresses: Mapping[str, str]
    interface: str = "lan"
    names: Mapping[str, str] = {}
    connects: tuple[tuple[str, str, int], ...] = ()
    count: int = 200
    interval_s: float = 0.02
    may_lose: int = 2
    least_ms: float = 15.0
    mean_ms: float = 120.0
    without: tuple[str, ...] = ()
    as_aspect: Aspect = "integrity"

    @property
    def name(self) -> str:
        return "network"

    @property
    def aspect(self) -> Aspect:
        return self.as_aspect

    @property
    def turn(self) -> int:
        return 1

    def look(self, lab: Lookout) -> Seen:
        nodes = [node for node in watched(lab, self.without) if node in self.addresses]
        return on_each(nodes, lambda node: self._look(lab, node, nodes))

    def _look(self, lab: Lookout, node: str, nodes: list[str]) -> Seen:
        arguments = {
            "interface": self.interface,
            "peers": {n: self.addresses[n] for n in nodes if n != node},
            "count": self.count,
            "interval_s": self.interval_s,
            "names": sorted(self.names),
            "connects": [[host, port] for source, host, port in self.connects if source == node],
            "within_s": 5.0,
        }
        seen: Seen = python(lab, node, "network", arguments, timeout_s=self.count * self.interval_s + 90.0)
        return seen

    def judge(self, before: Seen, after: Seen, window: Window) -> Finding:
        bad: list[str] = []
        lost, slowest = 0, 0.0
        for node, seen in sorted(after.items()):
            bad += self._link(node, before[node], seen)
            for peer in sorted(seen["big"]):
                big, small = seen["big"][peer], seen["small"][peer]
                bad += self._pair(f"{node} to {peer}", big, small)
                lost += int(big["sent"] - big["got"])
                slowest = max(slowest, float(big["mean_ms"]))
            bad += [f"{node}: {host}:{port}: {why}" for host, port, why in seen["connects"] if why]
            for name, found in sorted(seen["names"].items()):
                if found != [self.names[name]]:
                    bad.append(f"{node}: {name} is {', '.join(found)}, should be {self.names[name]}")
        return self.found(Outcome.FAIL if bad else Outcome.PASS, *bad, lost=lost, slowest_mean_ms=slowest)

    def _link(self, node: str, before: Seen, seen: Seen) -> Iterator[str]:
        last = seen["last"]
        if last.get("operstate") != "up":
            yield f"{node}: {self.interface} is {last.get('operstate', 'not there')}"
        if last.get("carrier_changes") != seen["first"].get("carrier_changes"):
            yield f"{node}: {self.interface} lost its carrier during the look"
        if last.get("mtu") != before["last"].get("mtu"):
            yield f"{node}: {self.interface} has MTU {last.get('mtu')}, had {before['last'].get('mtu')}"

    def _pair(self, pair: str, big: Mapping[str, float], small: Mapping[str, float]) -> Iterator[str]:
        lost = big["sent"] - big["got"]
        if not big["got"]:
            yield f"{pair}: {'full packets do not arrive' if small['got'] else 'nothing arrives'}"
            return
        if lost > self.may_lose:
            yield f"{pair}: {lost:.0f} of {big['sent']:.0f} full packets lost"
        if small["sent"] - small["got"] > max(2, self.may_lose):
            yield f"{pair}: {small['sent'] - small['got']:.0f} of {small['sent']:.0f} small packets lost"
        if big["min_ms"] > self.least_ms:
            yield f"{pair}: the fastest round trip takes {big['min_ms']:.1f} ms, allowed {self.least_ms:g} ms"
        if big["mean_ms"] > self.mean_ms:
            yield f"{pair}: a round trip takes {big['mean_ms']:.1f} ms on average, allowed {self.mean_ms:g} ms"
