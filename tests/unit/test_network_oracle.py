"""The oracle of the network: what ping says, what it accepts, and what it must not accept."""

from __future__ import annotations

import json
import random
import socket
from typing import Any

import pytest

from labctl.oracles.booking import ADDRESSES, CONNECTS, NAMES
from labctl.oracles.network import Network
from labctl.oracles.on_node import network as on_node
from labctl.run.verdict import Outcome

from .lookouts import WINDOW, Told

ORACLE = Network(addresses=ADDRESSES, names=NAMES, connects=CONNECTS)
LINK = {"operstate": "up", "mtu": "1500", "carrier_changes": "2"}
BIG = {"sent": 200, "got": 200, "min_ms": 1.2, "mean_ms": 4.0, "max_ms": 31.0}
SMALL = {"sent": 50, "got": 50, "min_ms": 1.0, "mean_ms": 3.5, "max_ms": 20.0}
HEALTHY: dict[str, Any] = {
    node: {
        "first": LINK, "last": LINK, "names": {name: [address] for name, address in NAMES.items()},
        "connects": [[host, port, ""] for source, host, port in CONNECTS if source == node],
        "big": {peer: BIG for peer in ADDRESSES if peer != node},
        "small": {peer: SMALL for peer in ADDRESSES if peer != node},
    }
    for node in ADDRESSES
}  # fmt: skip


def with_(node: str, part: str, item: str, value: Any) -> Any:
    after = json.loads(json.dumps(HEALTHY))
    after[node][part][item] = value
    return after


def judged(after: Any, **changed: Any) -> Any:
    return ORACLE.model_copy(update=changed).judge(HEALTHY, after, WINDOW)


def test_a_network_that_is_well() -> None:
    found = judged(HEALTHY)
    assert (found.outcome, found.reasons) == (Outcome.PASS, ())
    assert found.measures == {"lost": 0, "slowest_mean_ms": 4.0}
    assert judged(with_("w1", "big", "w2", {**BIG, "got": 198})).outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (with_("w1", "big", "w2", {**BIG, "got": 190}), "w1 to w2: 10 of 200 full packets lost"),
        (with_("w1", "big", "w2", {**BIG, "got": 0}), "w1 to w2: full packets do not arrive"),
        (with_("w3", "small", "w2", {**SMALL, "got": 40}), "w3 to w2: 10 of 50 small packets lost"),
        (with_("w2", "big", "w3", {**BIG, "min_ms": 41.0}),
         "w2 to w3: the fastest round trip takes 41.0 ms, allowed 15 ms"),
        (with_("w2", "big", "w3", {**BIG, "mean_ms": 190.0}),
         "w2 to w3: a round trip takes 190.0 ms on average, allowed 120 ms"),
        (with_("w2", "last", "operstate", "down"), "w2: lan is down"),
        (with_("w2", "last", "carrier_changes", "4"), "w2: lan lost its carrier during the look"),
        (with_("w2", "last", "mtu", "1400"), "w2: lan has MTU 1400, had 1500"),
        (with_("w3", "names", "db.booking", ["10.77.0.9"]), "w3: db.booking is 10.77.0.9, should be 10.77.0.2"),
        (with_("w3", "names", "db.booking", ["none: no answer"]),
         "w3: db.booking is none: no answer, should be 10.77.0.2"),
    ],
)  # fmt: skip
def test_what_it_rejects(after: Any, reason: str) -> None:
    assert (judged(after).outcome, judged(after).reasons) == (Outcome.FAIL, (reason,))


def test_nothing_arrives_and_a_port_that_is_cut_off() -> None:
    after = with_("w1", "big", "w2", {**BIG, "got": 0, "min_ms": -1})
    after["w1"]["small"]["w2"] = {**SMALL, "got": 0}
    assert judged(after).reasons == ("w1 to w2: nothing arrives",)
    after = json.loads(json.dumps(HEALTHY))
    after["w1"]["connects"][0][2] = "Connection timed out"
    assert judged(after).reasons == ("w1: 10.77.0.2:5432: Connection timed out",)


def test_a_loss_of_five_percent_is_hardly_ever_missed() -> None:
    rng = random.Random(6)
    missed = 0
    for _ in range(2000):
        got = sum(rng.random() >= 0.05 for _ in range(200))
        missed += judged(with_("w1", "big", "w2", {**BIG, "got": got})).outcome is Outcome.PASS
    assert missed / 2000 < 0.006


def test_a_node_that_is_gone_is_nobodys_peer() -> None:
    lab = Told([("*", "END-OF-PROGRAM", json.dumps(HEALTHY["w1"]))])
    less = ORACLE.model_copy(update={"without": ("w3",)})
    assert [*less.look(lab)] == ["w1", "w2"]
    assert '"peers": {"w2": "10.77.0.2"}' in next(script for node, script in lab.asked if node == "w1")


def test_what_ping_says() -> None:
    said = """PING 10.77.0.2 (10.77.0.2) from 10.77.0.1 lan: 1472(1500) bytes of data.

--- 10.77.0.2 ping statistics ---
200 packets transmitted, 191 received, 4.5% packet loss, time 4102ms
rtt min/avg/max/mdev = 0.912/2.407/24.513/2.020 ms, pipe 2
"""
    assert on_node.told(said) == {"sent": 200, "got": 191, "min_ms": 0.912, "mean_ms": 2.407, "max_ms": 24.513}
    errors = """From 10.77.0.1 icmp_seq=1 Frag needed and DF set (mtu = 1400)
--- 10.77.0.2 ping statistics ---
200 packets transmitted, 0 received, +200 errors, 100% packet loss, time 4102ms
"""
    assert on_node.told(errors)["got"] == 0 and on_node.told("ping: lan: no such device")["sent"] == 0


def test_connections_and_names_of_this_machine() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert on_node.connects("127.0.0.1", port, 5) == ""
    assert on_node.connects("127.0.0.1", port, 5) == "Connection refused"
    assert on_node.all_of(["localhost"], 5) == {"localhost": ["127.0.0.1"]}
    assert on_node.carrier("lo")["mtu"] == "65536"


def test_a_look_without_a_packet_is_no_pass() -> None:
    after = with_("w1", "big", "w2", {"sent": 0, "got": 0, "min_ms": -1, "mean_ms": -1, "max_ms": -1})
    assert judged(after).outcome is Outcome.FAIL
