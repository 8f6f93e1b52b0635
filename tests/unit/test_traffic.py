"""From what a user types to the traffic that is selected; and what is refused, by the name of the field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from node_agent.errors import Refusal
from node_agent.facts import gather_facts
from node_agent.fault import Facts
from node_agent.guard import guarded_ports
from node_agent.host.links import Interface
from node_agent.host.routing import Link
from node_agent.traffic import Selection, TrafficFields, find_peers, find_traffic, parse_ports
from tests.contract.simulated import SimulatedHost, fresh_kernel
from tests.contract.simulated_links import LAN, MGMT

ANSWERS: dict[tuple[str, ...], str] = {
    ("getent", "ahosts", "w2"): "10.77.0.2       STREAM w2\n10.77.0.2       DGRAM\nfe80::2%lan STREAM\n",
    ("getent", "ahosts", "me"): "127.0.1.1       STREAM me\n",
}


class Asked(SimulatedHost):
    """A simulated machine whose programs answer what a test says."""

    answers: dict[tuple[str, ...], str]
    spaces: dict[str, str]

    def query(self, argv: tuple[str, ...], *, timeout_s: float = 10.0) -> str | None:
        return self.answers.get(argv) or super().query(argv)

    def realpath(self, path: str) -> str:
        return self.spaces.get(path, path)


@pytest.fixture
def host() -> Asked:
    one = Asked(fresh_kernel())
    one.answers, one.spaces = dict(ANSWERS), {}
    return one


@pytest.fixture
def facts(host: Asked) -> Facts:
    return gather_facts(host, "w1", {})


def found(host: Asked, facts: Facts, **given: Any) -> Selection:
    return find_traffic(host, facts, TrafficFields(**given))


def refused(host: Asked, facts: Facts, **given: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        found(host, facts, **given)
    assert "\n" not in caught.value.message and caught.value.allowed
    return caught.value


def test_nothing_given_is_all_of_the_lab_network(host: Asked, facts: Facts) -> None:
    one = found(host, facts)
    assert (one.interface, one.index, one.mtu, one.v4, one.v6) == ("lan", LAN, 1500, (), ())
    assert one.direction == "both" and one.directions == ("out", "in") and {22, 7443} <= set(one.guard)
    assert one.describe() == "all traffic with everybody on lan"


def test_peers_by_name_address_and_network(host: Asked, facts: Facts) -> None:
    peers = ("w2", "10.77.0.3", "10.77.1.0/24", "fd00::/64", "10.77.1.9")
    one = found(host, facts, interface="lan", peers=peers, direction="out")
    assert one.v4 == ("10.77.0.2/31", "10.77.1.0/24") and one.v6 == ("fd00::/64", "fe80::2/128")
    assert one.describe() == "all traffic to 10.77.0.2/31, 10.77.1.0/24, fd00::/64, fe80::2/128 on lan"


def test_the_interface_is_that_to_the_peers(host: Asked, facts: Facts) -> None:
    assert found(host, facts, peers=("10.0.2.2",)).interface == "mgmt"
    assert found(host, facts, peers=("10.77.0.9",)).interface == "lan"
    assert refused(host, facts, peers=("10.77.0.9", "10.0.2.2")).field == "interface"
    assert found(host, facts, peers=("10.77.0.9", "10.0.2.2"), interface="mgmt").interface == "mgmt"


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"peers": ("nobody",)}, "peers"),
        ({"peers": ("10.77.0.999",)}, "peers"),
        ({"peers": ("$(reboot)",)}, "peers"),
        ({"peers": ("me",)}, "peers"),
        ({"interface": "lna"}, "interface"),
        ({"ports": "0"}, "ports"),
        ({"ports": "80-70"}, "ports"),
        ({"ports": "http"}, "ports"),
        ({"ports": "80,"}, "ports"),
        ({"ports": "80", "protocol": "icmp"}, "ports"),
        ({"unit": "web", "container": "c"}, "unit"),
        ({"unit": "web"}, "direction"),
        ({"unit": "web", "direction": "in"}, "direction"),
    ],
)
def test_what_is_wrong_is_named(host: Asked, facts: Facts, given: dict[str, Any], field: str) -> None:
    assert refused(host, facts, **given).field == field


def test_an_interface_of_the_lab_itself_is_no_target(host: Asked, facts: Facts) -> None:
    host.kernel.shaping.made["gf0123456789ab"] = Interface(
        9, "gf0123456789ab", "ifb", "lan out groundfault-x", 1500, True
    )
    assert refused(host, facts, interface="gf0123456789ab").allowed == "lo, mgmt, lan"


def test_without_a_lab_network_the_only_card_counts(host: Asked, facts: Facts) -> None:
    del host.kernel.net.links[LAN]
    assert found(host, facts).interface == "mgmt"
    host.kernel.net.links[7] = Link(7, "eth1", up=True, carrier=True)
    assert refused(host, facts).allowed == "lo, mgmt, eth1"


def test_ports() -> None:
    assert parse_ports("") == () and parse_ports("5432") == ((5432, 5432),)
    assert parse_ports(" 8000-8100, 80,81,8050-8200") == ((80, 81), (8000, 8200))


def test_peers_of_other_faults(host: Asked) -> None:
    assert [str(n) for n in find_peers(host, ["10.0.0.0/25", "10.0.0.128/25"])] == ["10.0.0.0/24"]
    assert [str(n) for n in find_peers(host, ["fe80::1%lan"])] == ["fe80::1/128"]


def test_a_unit_is_known_by_its_control_group(host: Asked, facts: Facts) -> None:
    shown = ("LoadState=loaded\nControlGroup=/system.slice/web.service\nSlice=system.slice\nType=simple\n"
             "ConsistsOf=\n")  # fmt: skip
    asked = ("systemctl", "show", *(f"--property={w}" for w in ("LoadState", "ControlGroup", "Slice", "Type",
             "ConsistsOf")), "--", "web.service")  # fmt: skip
    host.answers[asked] = shown
    assert refused(host, facts, unit="web", direction="out").field == "unit", "it does not run"
    host.kernel.texts["/sys/fs/cgroup/system.slice/web.service/cgroup.procs"] = "77"
    one = found(host, facts, unit="web", direction="out", ports="80")
    assert one.cgroups == ("/system.slice/web.service",) and one.owner == "unit web.service"


def test_a_container_with_a_network_of_its_own_is_met_from_outside(host: Asked, facts: Facts) -> None:
    host.kernel.texts["/sys/fs/cgroup/system.slice/docker-abc123.scope/cgroup.procs"] = "4711\n4712\n"
    inside = ("nsenter", "--net=/proc/4711/ns/net", "ip", "-j", "link", "show")
    host.answers[inside] = json.dumps(
        [{"ifindex": 1, "ifname": "lo"}, {"ifindex": 2, "ifname": "eth0", "link_index": 12}]
    )
    host.spaces = {"/proc/self/ns/net": "/proc/1/ns/net:[1]", "/proc/4711/ns/net": "/proc/4711/ns/net:[2]"}
    for index, peer in ((12, 2), (13, 3)):
        host.kernel.shaping.made[f"veth{index}"] = Interface(index, f"veth{index}", "veth", "", 1450, True, peer)
    one = found(host, facts, container="abc123", direction="out", peers=("10.9.0.1",))
    assert (one.interface, one.mtu, one.direction, one.cgroups) == ("veth12", 1450, "in", ())
    del host.kernel.shaping.made["veth12"]
    assert refused(host, facts, container="abc123").field == "container"
    host.spaces["/proc/4711/ns/net"] = "/proc/4711/ns/net:[1]"
    one = found(host, facts, container="abc123", direction="out")
    assert one.interface == "lan" and one.cgroups == ("/system.slice/docker-abc123.scope",)


def test_ports_of_sshd_and_of_the_agent_are_let_through(host: Asked) -> None:
    assert guarded_ports(host) == (22, 7443)
    agent = host.read_text("/proc/self/stat").split()[0]
    host.answers[("ss", "-Hltnp")] = (
        'LISTEN 0 128 0.0.0.0:2222 0.0.0.0:* users:(("sshd",pid=400,fd=3))\n'
        'LISTEN 0 128 [::]:2223 [::]:* users:(("sshd",pid=400,fd=4))\n'
        f'LISTEN 0 128 *:9443 *:* users:(("python3",pid={agent},fd=9))\n'
        'LISTEN 0 128 127.0.0.1:5432 0.0.0.0:* users:(("postgres",pid=401,fd=3))\n'
    )
    host.answers[("systemctl", "show", "--property=ActiveState,Listen", "--", "ssh.socket", "sshd.socket")] = (
        "ActiveState=active\nListen=0.0.0.0:2022 (Stream)\nListen=[::]:2022 (Stream)\n\n"
        "ActiveState=inactive\nListen=[::]:2023 (Stream)\n"
    )
    assert guarded_ports(host) == (22, 2022, 2222, 2223, 7443, 9443)


def test_the_management_network_may_be_named(host: Asked, facts: Facts) -> None:
    one = found(host, facts, interface="mgmt")
    assert one.index == MGMT and {22, 7443} <= set(one.guard)
