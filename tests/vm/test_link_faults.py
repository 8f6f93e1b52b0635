"""link_down, link_flap, arp_poison and route_loss on a real kernel, by ping, ip and the kernel's own files."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from labctl.errors import LabctlError
from labctl.transport.client import AgentClient
from labctl.transport.connect import connect
from tests.lab import LabUnderTest
from tests.user import until
from tests.vm.net_bench import NetBench

pytestmark = pytest.mark.vm

_NUMBERS = itertools.count(1)

FAR4, OTHER4, BEHIND4, ELSEWHERE4 = "10.77.0.2", "10.77.0.102", "10.9.0.1", "10.8.0.1"
FAR6, OTHER6, BEHIND6 = "fd77::2", "fd77::102", "fd09::1"
AS_EVER = (
    "ip addr | sed 's/valid_lft .*//; s/^[0-9]*: //'; ip -4 route show table all; ip -6 route show table all|sort"
    "; ip nexthop; ip neigh show nud permanent; ip neigh show proxy; nft list ruleset; cat /sys/class/net/*/flags"
)
"""Everything these faults change. The order of IPv6 routes of one network is that in which interfaces came up."""
SETUP = f"""
ip addr add fd77::1/64 dev lan nodad; ip addr add 10.77.0.11/24 dev lan label lan:x
ip route add 10.9.0.0/16 via {FAR4} dev lan metric 77 proto static src 10.77.0.11 mtu 1400
ip route add 10.8.0.0/16 via {FAR4} dev lan
ip route add 10.7.0.0/16 nexthop via {FAR4} dev lan weight 3 nexthop via {OTHER4} dev lan
ip route add 10.6.0.0/16 via {FAR4} dev lan table 77
ip -6 route add fd09::/64 via {FAR6} src fd77::1 metric 5; ip -6 route add fd08::/64 via {FAR6} dev lan
ip nexthop add id 7 via {FAR4} dev lan; ip nexthop add id 8 via {OTHER4} dev lan
ip nexthop add id 9 group 7/8,2; ip route add 10.5.0.0/16 nhid 9
ip neigh add 10.77.0.50 lladdr 02:00:00:00:00:50 dev lan nud permanent; ip neigh add proxy 10.77.0.60 dev lan
ip link add spare type dummy; ip link set spare up; ip addr add 10.66.0.1/24 dev spare
ip addr add fd66::1/64 dev spare nodad; ip link set spare carrier off; ip link set spare carrier on
ip link add link lan name lan.5 type vlan id 5; ip link set lan.5 up; ip addr add 10.55.0.1/24 dev lan.5
ip addr add fd05::1/64 dev lan.5 nodad; ip route add 10.50.0.0/16 via 10.55.0.9 dev lan.5
"""
FAR_SETUP = f"""
ip addr add {OTHER4}/24 dev lan; ip addr add 10.9.0.1/16 dev lan; ip addr add 10.8.0.1/16 dev lan
for a in {FAR6}/64 {OTHER6}/64 fd09::1/64; do ip addr add $a dev lan nodad; done
"""


@pytest.fixture(scope="module")
def bench(lab: LabUnderTest) -> Iterator[NetBench]:
    lab.reset()
    with ExitStack() as stack:
        sockets = stack.enter_context(TemporaryDirectory(prefix="net-"))
        agent = AgentClient(stack.enter_context(connect(lab.node("w1"), lab.authority)))
        one = NetBench(lab.node("w1"), lab.node("w2"), agent, sockets)
        one.sh(FAR_SETUP, one.far)
        one.sh(SETUP)
        until("the far node answers", lambda: set(answers(one, *ALL)) == {"yes"})
        until("its addresses are checked", lambda: "tentative" not in one.sh("ip addr"))
        yield one
    lab.reset()


ALL = (FAR4, OTHER4, BEHIND4, ELSEWHERE4, FAR6, OTHER6, BEHIND6)


@pytest.fixture(autouse=True)
def nothing_stays(bench: NetBench) -> Iterator[None]:
    """Around each test: everything as before by the node's own tools, the far node answers, no residue."""
    before, counts = bench.sh(AS_EVER), bench.sh("cat /sys/class/net/mgmt/carrier_changes")
    bench.mine.clear()
    yield
    live = tuple(view.id for view in bench.agent.list().injections if view.id in bench.mine)
    if live:
        bench.agent.recover(live)
    assert bench.agent.residue() == ()
    assert bench.sh(AS_EVER) == before
    assert bench.sh("cat /sys/class/net/mgmt/carrier_changes") == counts, "another interface is left alone"
    until("everything answers again", lambda: set(answers(bench, *ALL)) == {"yes"})


def answers(bench: NetBench, *addresses: str) -> list[str]:
    """What ping says of each: yes, silence, or the error."""
    ask = (
        "ask() { if said=$(ping -n -c 2 -i 0.2 -W 2 $1 2>&1); then echo yes; else case $said in "
        "*' received'*errors*) echo errors;; *' received'*) echo silence;; *) echo ${said##*: };; esac; fi; }; "
    )
    each = " ".join(f"ask {a} > /run/said.{n} &" for n, a in enumerate(addresses))
    script = f"{ask}{each} wait; cat {' '.join(f'/run/said.{n}' for n in range(len(addresses)))}"
    return bench.sh(script).splitlines()


def refused(bench: NetBench, fault: str, **parameters: Any) -> str:
    """What is said when a fault is not planted."""
    with pytest.raises(LabctlError) as refusal:
        bench.agent.apply(f"refused-{next(_NUMBERS)}", fault, parameters, 60)
    return str(refusal.value)


def look_anew(bench: NetBench) -> None:
    """Interfaces that a test has taken away are not missed: the first of some injections sees what there is."""
    bench.recover(bench.inject("route_loss", destination="10.8.0.0/16"))


def number(bench: NetBench, name: str, interface: str = "lan") -> int:
    return int(bench.sh(f"cat /sys/class/net/{interface}/{name}"))


def test_a_link_that_is_down_and_all_that_went_with_it(bench: NetBench) -> None:
    before, losses = bench.sh(AS_EVER), number(bench, "carrier_down_count")
    view = bench.inject("link_down", interface="lan")
    (shown,) = json.loads(bench.sh("ip -j link show lan"))
    assert shown["operstate"] == "DOWN" and "UP" not in shown["flags"]
    assert "fd77::1" not in bench.sh("ip addr show dev lan") and bench.sh("ip route show dev lan") == ""
    assert set(answers(bench, FAR4, FAR6)) == {"Network is unreachable"}
    assert answers(bench, "10.0.2.2", "10.66.0.1") == ["yes", "yes"], "other interfaces"
    found = bench.evidence(view)
    assert found.hits == number(bench, "carrier_down_count") - losses == 1
    assert set(bench.seen(view).values()) == {True}
    assert {one.injection for one in bench.agent.residue()} == {view.id}, "each difference is told as this one's"
    bench.recover(view)
    assert bench.sh(AS_EVER) == before


def test_a_lost_carrier_keeps_addresses_and_routes(bench: NetBench) -> None:
    before = bench.sh("ip addr show dev spare | grep inet; ip route show dev spare")
    view = bench.inject("link_down", interface="spare")
    (shown,) = json.loads(bench.sh("ip -j link show spare"))
    assert shown["operstate"] == "DOWN" and {"UP", "NO-CARRIER"} <= set(shown["flags"])
    after = bench.sh("ip addr show dev spare | grep inet; ip route show dev spare")
    assert after.replace(" linkdown", "") == before
    assert bench.evidence(view).hits == 1 and set(bench.seen(view).values()) == {True}
    assert set(answers(bench, FAR4, FAR6)) == {"yes"}
    bench.recover(view)


def test_a_link_that_flaps(bench: NetBench) -> None:
    losses = number(bench, "carrier_down_count")
    bench.sh("setsid ping -n -q -i 0.1 fd77::2 > /run/pinged 2>&1 < /dev/null & echo $! > /run/pinging")
    view = bench.inject("link_flap", interface="lan", down_s=1, up_s=3, seed=5)
    said = bench.sh("cd /sys/class/net/lan; ip -ts -o monitor link dev lan > /run/monitored & looking=$!; "
                    "a=$(cat carrier_down_count); n=0; "
                    "while [ $(($(cat carrier_down_count) - a)) -lt 4 ] && [ $n -lt 300 ]; do "
                    "ip route show 10.9.0.0/16 >> /run/routed; sleep 0.2; n=$((n + 1)); done; "
                    "kill $looking; kill -INT $(cat /run/pinging); sleep 0.5; "
                    "grep -o '[0-9.]*% packet' /run/pinged; sort -u /run/routed; "
                    "cat /run/monitored; cd /run; rm monitored ping* routed")  # fmt: skip
    loss, *_ = said.split("%")
    assert 3 <= float(loss) <= 70, "a quarter of the time, and until addresses are checked; not before"
    assert "proto static src 10.77.0.11 metric 77 mtu 1400" in said, "what it forgets comes back each time"
    down, up = phases(said)
    assert down and up and min(down) >= 0.95 and min(up) >= 2.8, (down, up)
    assert sorted(down)[0] < 2.5 and sorted(up)[0] < 6, (down, up)
    assert answers(bench, "10.66.0.1") == ["yes"]
    found = bench.evidence(view)
    assert found.hits >= len(down) and found.armed and set(bench.seen(view).values()) == {True}
    bench.recover(view)
    gone = number(bench, "carrier_down_count")
    assert gone > losses and bench.sh("sleep 2; cat /sys/class/net/lan/carrier_down_count") == str(gone)


def phases(monitored: str) -> tuple[list[float], list[float]]:
    """How long the link was down each time, and up in between, in seconds, by `ip monitor` from a change on."""
    events = re.findall(r"^\[(\S+?)\] .*\bstate (UP|DOWN)\b", monitored, re.MULTILINE)
    changes = [(dt.datetime.fromisoformat(at), state) for at, state in events]
    kept = [one for before, one in itertools.pairwise([(dt.datetime.min, ""), *changes]) if one[1] != before[1]]
    spans = [((b[0] - a[0]).total_seconds(), a[1]) for a, b in itertools.pairwise(kept[1:])]
    return [s for s, state in spans if state == "DOWN"], [s for s, state in spans if state == "UP"]


@pytest.mark.thorough
def test_a_killed_agent_leaves_the_link_up(bench: NetBench) -> None:
    view = bench.inject("link_flap", interface="lan", down_s=5, up_s=0.3)
    until("it is down", lambda: not bench.sh("cat /sys/class/net/lan/carrier", check=False).startswith("1"))
    bench.sh("systemctl kill --signal=KILL groundfault-agent")
    until("the next agent has ended it", lambda: ended(bench, view.id), 120)
    assert bench.sh("cat /sys/class/net/lan/carrier") == "1"


def ended(bench: NetBench, name: str) -> bool:
    try:
        (now,) = bench.agent.list(ids=(name,), ended=True).injections
    except LabctlError:
        return False
    return now.state == "recovered"


def test_a_wrong_link_layer_address(bench: NetBench) -> None:
    answers(bench, FAR4, FAR6)
    known = (
        'ip -j neigh show dev lan | python3 -c \'import json, sys; [print(n["dst"], n.get("lladdr")) '
        f'for n in json.load(sys.stdin) if n["dst"] in ("{FAR4}", "{FAR6}", "10.77.0.50")]\' | sort'
    )
    right = bench.sh(known)
    view = bench.inject("arp_poison", peers=[FAR4, FAR6, "10.77.0.50"], seed=3)
    wrong = {line.split()[1] for line in bench.sh(known).splitlines()}
    assert len(wrong) == 1 and not wrong & {line.split()[1] for line in right.splitlines()}
    sent = bench.evidence(view).hits
    assert answers(bench, FAR4, FAR6, OTHER4, OTHER6) == ["silence", "silence", "yes", "yes"]
    assert 4 <= bench.evidence(view).hits - sent <= 12, "two pings to each"
    bench.sh(f"busybox arping -q -U -c 1 -I lan {FAR4}", bench.far)
    assert {line.split()[1] for line in bench.sh(known).splitlines()} == wrong, "nothing that arrives corrects it"
    bench.recover(view)
    assert answers(bench, FAR4, FAR6) == ["yes", "yes"] and bench.sh(known) == right


def test_a_neighbour_that_takes_over_an_address(bench: NetBench) -> None:
    """Who asks again finds the right one; who believes what it knows does not."""
    answers(bench, FAR4)
    bench.sh(f"ip neigh replace {OTHER4} lladdr 02:00:00:00:01:02 dev lan nud stale")
    view = bench.inject("arp_poison", peers=[FAR4], holder=OTHER4)
    assert "02:00:00:00:01:02" in bench.sh(f"ip neigh show {FAR4} dev lan")
    assert answers(bench, FAR4) == ["silence"]
    bench.sh(f"ip neigh del {FAR4} dev lan; ip neigh del {OTHER4} dev lan")
    assert answers(bench, FAR4) == ["yes"], "somebody has mended it"
    assert "not believed" in " ".join(bench.evidence(view).notes)
    bench.recover(view)


@pytest.mark.parametrize(
    ("how", "said4", "said6"),
    [
        ("gone", "Network is unreachable", "Network is unreachable"),
        ("blackhole", "Invalid argument", "Invalid argument"),
        ("unreachable", "No route to host", "No route to host"),
        ("wrong_gateway", "", ""),
    ],
)
def test_a_route_that_goes(bench: NetBench, how: str, said4: str, said6: str) -> None:
    losses = [bench.inject("route_loss", destination=one, how=how) for one in ("10.9.0.0/16", "fd09::/64")]
    found = answers(bench, BEHIND4, BEHIND6, ELSEWHERE4, FAR4, FAR6)
    assert found[2:] == ["yes", "yes", "yes"], "other routes, and the machine itself"
    assert "yes" not in found[:2]
    assert said4 in found[0] and said6 in found[1]
    if how == "gone":
        assert bench.evidence(losses[0]).hits >= 1 and set(bench.seen(losses[0]).values()) == {True}
    assert all(bench.evidence(view).armed for view in losses)
    bench.recover(*losses)
    assert answers(bench, BEHIND4, BEHIND6) == ["yes", "yes"]


def test_routes_come_back_with_all_they_had(bench: NetBench) -> None:
    before = bench.sh("ip route show table all")
    losses = [
        bench.inject("route_loss", destination="10.7.0.0/16"),
        bench.inject("route_loss", destination="10.6.0.0/16", table=77, how="blackhole"),
        bench.inject("route_loss", destination="10.5.0.0/16", how="wrong_gateway", gateway="10.77.0.99"),
        bench.inject("route_loss", peers=[FAR4], how="blackhole"),
    ]
    assert answers(bench, FAR4, OTHER4) == ["Invalid argument", "yes"]
    assert "nhid" not in (now := bench.sh("ip route show table all")) and "blackhole 10.6.0.0/16 table 77" in now
    bench.sh("ip route add 10.7.0.0/16 via 10.77.0.3 metric 9")  # somebody else's, beside the lost one
    for view in (losses[2], losses[0], losses[3], losses[1]):
        bench.recover(view)
    bench.sh("ip route del 10.7.0.0/16 metric 9")
    assert bench.sh("ip route show table all") == before
    view = bench.inject("route_loss", destination="10.8.0.0/16", how="blackhole")
    bench.sh(f"ip route del blackhole 10.8.0.0/16; ip route add 10.8.0.0/16 via {OTHER4} dev lan")
    assert "removed" in " ".join(bench.evidence(view).notes)
    bench.recover(view)
    assert OTHER4 in bench.sh("ip route show 10.8.0.0/16"), "what somebody has set instead stays"
    bench.sh(f"ip route del 10.8.0.0/16; ip route add 10.8.0.0/16 via {FAR4} dev lan")


def test_what_control_needs_is_refused(bench: NetBench) -> None:
    for fault in ("link_down", "link_flap"):
        assert "never a target" in refused(bench, fault, interface="mgmt")
        assert "lo has no link" in refused(bench, fault, interface="lo")
        assert "there is no lna" in refused(bench, fault, interface="lna")
    assert "3 to choose from" in refused(bench, "link_down")
    assert "10.0.2.2" in refused(bench, "arp_poison", peers=["10.0.2.2"])
    assert "node itself" in refused(bench, "arp_poison", peers=["10.77.0.1"])
    assert "not on the network" in refused(bench, "arp_poison", peers=[BEHIND4])
    assert "no single address" in refused(bench, "arp_poison", peers=["10.77.0.0/24"])
    assert "control traffic" in refused(bench, "route_loss", destination="10.0.2.0/24")
    assert "control traffic" in refused(bench, "route_loss", peers=["10.0.2.2"], how="blackhole")
    assert "is not there" in refused(bench, "route_loss", destination="10.99.0.0/16")
    assert "has host bits" in refused(bench, "route_loss", destination="10.9.0.1/16")
    view = bench.inject("link_down", interface="lan")
    assert view.id in refused(bench, "link_flap", interface="lan")
    bench.recover(view)
    view = bench.inject("route_loss", destination="10.9.0.0/16")
    assert view.id in refused(bench, "link_down", interface="lan"), "two would put back what each remembers"
    bench.recover(view)


@pytest.mark.thorough
def test_interfaces_that_are_renamed_moved_or_deleted(bench: NetBench) -> None:
    names = ("renamed", "moved", "deleted", "flapping")
    bench.sh("; ".join(f"ip link add {n} type dummy; ip link set {n} up; ip addr add fd6{i}::1/64 dev {n} nodad"
                       for i, n in enumerate(names)) + "; ip netns add elsewhere")  # fmt: skip
    view = {n: bench.inject("link_down", interface=n, way="down") for n in names[:3]}
    view["flapping"] = bench.inject("link_flap", interface="flapping", down_s=0.3, up_s=0.3)
    bench.sh("ip link set renamed name another; ip link set moved netns elsewhere; ip link del deleted; "
             "ip link del flapping")  # fmt: skip
    assert "is called another now" in " ".join(bench.evidence(view["renamed"]).notes)
    assert [bench.evidence(view[n]).armed for n in names] == [True, False, False, False]
    bench.recover(*view.values())
    shown = bench.sh("ip addr show dev another; ip netns exec elsewhere ip link show moved")
    assert "UP" in shown and "fd60::1/64" in shown and "moved" in shown
    bench.sh("ip link del another; ip netns del elsewhere")
    look_anew(bench)


@pytest.mark.thorough
def test_networkd_restarts_while_a_link_is_down(bench: NetBench) -> None:
    bench.sh("mkdir -p /run/systemd/networkd.conf.d; printf '[Network]\\nManageForeignRoutes=no\\n"
             "ManageForeignNextHops=no\\n' > /run/systemd/networkd.conf.d/others.conf")  # fmt: skip
    bench.sh("mkdir -p /run/systemd/network; printf '[Match]\\nName=managed\\n[Network]\\nAddress=10.67.0.1/24\\n"
             "Address=fd67::1/64\\n[Route]\\nDestination=10.68.0.0/16\\nGateway=10.67.0.9\\n' "
             "> /run/systemd/network/10-managed.network; systemctl unmask systemd-networkd; "
             "ip link add managed type dummy; systemctl start systemd-networkd")  # fmt: skip
    look = "ip addr show managed | sed 's/valid_lft .*//'; ip route show dev managed; ip -6 route show dev managed"
    until("networkd has set it up", lambda: "10.68.0.0/16" in (now := bench.sh(look)) and "tentative" not in now)
    before = bench.sh(look)
    view = bench.inject("link_down", interface="managed", way="down")
    bench.sh("systemctl restart systemd-networkd")
    bench.evidence(view)  # networkd may have brought it up again: that is told, and allowed
    bench.agent.recover((view.id,))
    until("nothing is left", lambda: ended(bench, view.id), 60)
    until("it is as before", lambda: bench.sh(look) == before, 60)
    bench.sh("systemctl stop systemd-networkd; systemctl mask systemd-networkd; ip link del managed; "
             "cd /run/systemd; rm -rf network/10-managed.network netif networkd.conf.d")  # fmt: skip
    look_anew(bench)
