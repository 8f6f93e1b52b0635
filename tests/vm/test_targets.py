"""Labels, two groups and limits on real nodes: a partition under one id, measured from both sides and beside."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.lab import LabUnderTest, ssh
from tests.user import labctl, labctl_json

pytestmark = pytest.mark.vm

PORT = 9


@pytest.fixture
def clean(lab: LabUnderTest) -> Iterator[LabUnderTest]:
    """The lab as it was made, before and after."""
    lab.reset()
    yield lab
    labctl("recover", "--all")
    labctl("limits", "--default")
    for node in lab.nodes:
        labctl("node", "label", node.name, "role-", "quorum-")


def reaches(lab: LabUnderTest, source: str, *targets: str) -> dict[str, bool]:
    """Which of these nodes answer a ping from the lab network, over IPv4 and over IPv6: "w2/4", "w2/6"."""
    lines = []
    for name in targets:
        v4, v6 = lab.node(name).lab_addresses
        lines += [f"p {name}/4 {v4} &", f"p {name}/6 {v6}%lan &"]
    script = 'p() { ping -q -c 3 -i 0.4 -W 3 "$2" >/dev/null && echo "$1 yes" || echo "$1 no"; }\n'
    out = ssh(lab.node(source), script + "\n".join([*lines, "wait"])).stdout
    return {name: answer == "yes" for name, answer in (line.split() for line in out.splitlines())}


def no_ports(lab: LabUnderTest, name: str) -> int:
    """Datagrams that arrived for a port where nobody listens: counted by the kernel."""
    text = ssh(lab.node(name), "grep ^Udp: /proc/net/snmp").stdout
    head, values = (line.split() for line in text.splitlines())
    return int(values[head.index("NoPorts")])


def send(lab: LabUnderTest, source: str, target: str, count: int) -> None:
    """Datagrams to a port where nobody listens. The sender may hear of it as an error, which says nothing here."""
    address = lab.node(target).lab_addresses[0]
    one = f"bash -c 'echo x > /dev/udp/{address}/{PORT}' 2>/dev/null"
    ssh(lab.node(source), f"for n in $(seq {count}); do {one}; done; true")


def test_a_partition_of_two_groups_and_its_limits(clean: LabUnderTest) -> None:
    lab = clean
    assert all(reaches(lab, "w1", "w2", "w3").values()), "the lab network works"
    labctl("node", "label", "w1", "role=db")
    for name in ("w2", "w3"):
        labctl("node", "label", name, "role=web")

    labctl("limits", "--nodes", "2")
    refused = labctl("inject", "partition", "--groups", "role=db/role=web", status=64).stderr
    assert "0 of 2, 3 with this: exceeded" in refused and "--exceed-limits" in refused
    assert labctl_json("injections")["injections"] == []
    labctl("limits", "--nodes", "none")

    done = labctl_json("inject", "partition", "--groups", "role=db/role=web")
    assert done["groups"] == [["w1"], ["w2", "w3"]]
    assert {one["node"]: one["id"] for one in done["injections"]} == dict.fromkeys(("w1", "w2", "w3"), done["id"])
    assert reaches(lab, "w1", "w2", "w3") == dict.fromkeys(("w2/4", "w2/6", "w3/4", "w3/6"), False)
    assert reaches(lab, "w2", "w1", "w3") == {"w1/4": False, "w1/6": False, "w3/4": True, "w3/6": True}
    assert len(labctl_json("injections", "--nodes-labelled", "role=web")["injections"]) == 2

    labctl("recover", done["id"])
    assert all(reaches(lab, "w1", "w2", "w3").values())
    residue = labctl_json("node", "residue", "w1", "w2", "w3")["nodes"]
    assert [one["entries"] for one in residue] == [[], [], []]


@pytest.mark.thorough
def test_one_way_and_by_lot(clean: LabUnderTest) -> None:
    lab = clean
    done = labctl_json("inject", "partition", "--groups", "one/all", "--one-way", "--seed", "11")
    (alone,), others = done["groups"]
    assert done["nodes"] == [alone] and len(others) == 2
    plan = labctl("inject", "partition", "--groups", "one/all", "--one-way", "--seed", "11", "--plan").stdout
    assert plan.startswith(f"groups {alone} / {', '.join(others)}, one way, seed 11")
    before = {name: no_ports(lab, name) for name in (alone, others[0])}
    send(lab, alone, others[0], 5)
    send(lab, others[0], alone, 5)
    came = {name: no_ports(lab, name) - before[name] for name in before}
    assert came == {alone: 5, others[0]: 0}, "only what the first group sends is lost"
    assert all(reaches(lab, others[0], others[1]).values())
    labctl("recover", "--node", alone)
    send(lab, alone, others[0], 5)
    assert no_ports(lab, others[0]) - before[others[0]] == 5


def test_labels_outlive_reset_and_name_a_quorum(clean: LabUnderTest) -> None:
    for node in clean.nodes:
        labctl("node", "label", node.name, "quorum=etcd")
    clean.reset()
    assert "quorum=etcd" in labctl("status").stdout
    first = labctl_json("inject", "partition", "--node", "minority", "--peers", "192.0.2.1", "--seed", "2")
    (broken,) = first["nodes"]
    other = next(node.name for node in clean.nodes if node.name != broken)
    words = ("inject", "partition", "--node", other, "--peers", "192.0.2.1")
    refused = labctl(*words, status=64).stderr
    assert re.search(r"broken nodes of quorum=etcd, which needs 2 of 3: 1 of 1, 2 with this: exceeded", refused)
    assert labctl_json(*words, "--exceed-limits")["nodes"] == [other]
    used = labctl_json("limits")["used"]
    assert [(one["used"], one["limit"]) for one in used] == [(2, 1)]
