"""`labctl doctor --all`: a mixed fleet told by kinds of nodes; certificates that end soon."""

from __future__ import annotations

import datetime as dt

import pytest
from cryptography import x509

from labctl.cli.certificates import told
from labctl.lab import footprint as at
from labctl.lab.model import Node
from labctl.pki import LabAuthority
from labctl.report.fleet import Seen, by_kind, kinds
from node_agent.api.views import NodeFacts, ProbeReport
from node_agent.fault import Capability
from tests.unit.cli_world import World
from tests.unit.test_node_install import ToyNode

NOW = dt.datetime.now(dt.UTC)
DAY = dt.timedelta(days=1)


def seen(kernel: str, bpf: bool, **changes: str) -> Seen:
    facts = NodeFacts(
        node="n", kernel=kernel, boot_id="", os="Debian", python="3.13", agent_version="1", contract=1,
        cpus=1, memory_mib=1, clock_unix_s=1, boottime_s=1, stopped=False, machine="x86_64",
    )  # fmt: skip
    capability = Capability(name="bpf.lsm", available=bpf)
    return Seen(facts.model_copy(update=changes), ProbeReport(capabilities=(capability,), faults=()))


def test_nodes_that_are_alike_are_one_kind() -> None:
    fleet = {"a": seen("6.12", True), "b": seen("6.1", False), "c": seen("6.12", True), "d": seen("6.12", False)}
    groups = kinds(fleet)
    assert groups == {"a +1": ["a", "c"], "b": ["b"], "d": ["d"]}
    assert list(by_kind(fleet, groups)) == ["a +1", "b", "d"]
    assert by_kind(fleet, groups)["b"].capabilities[0].available is False
    other = {"a": seen("6.12", True), "b": seen("6.12", True, agent_version="2")}
    assert len(kinds(other)) == 2


def test_a_fleet_in_which_some_have_no_agent(world: World) -> None:
    world.lab.count = 4
    world.lab.off = {"w4"}
    world.down["w2"], world.down["w3"] = "off", "off"
    world.logins["w2"] = ToyNode(world.directory / "w2", Node(name="w2", address="h"))
    done = world.run("doctor", "--all")
    assert done.code == 70
    assert "without an agent: w2" in done.out and "not running: w4" in done.out
    assert "warning: w3 at 127.0.0.1" in done.err and "warning: w2" not in done.err
    assert done.out.splitlines()[0].split() == ["KIND", "SYSTEM", "KERNEL", "MACHINE", "PYTHON", "AGENT", "NODES"]
    data = world.run("doctor", "--all", "--json").data
    assert (data["kinds"], data["without_agent"], data["not_running"]) == ([["w1"]], ["w2"], ["w4"])
    assert list(data["unreachable"]) == ["w3"] and data["facts"]["w1"]["contract"] == 1
    file = ToyNode(world.directory / "w3", Node(name="w3", address="h"))
    file.path(at.UNIT_FILE).write_text("x")
    world.logins["w3"] = file
    assert list(world.run("doctor", "--all", "--json").data["unreachable"]) == ["w3"], "an agent that is silent"


def test_a_fleet_of_one_kind_is_one_column(world: World) -> None:
    done = world.run("doctor", "--all")
    assert done.code == 0
    assert done.out.splitlines()[1].split()[:2] == ["w1", "+2"]
    assert done.out.splitlines()[1].endswith("w1, w2, w3")
    assert done.out.splitlines()[3].split() == ["CAN", "w1", "+2"]


@pytest.mark.parametrize(("days", "words"), [(400, ""), (31, ""), (12, "12 days left"), (-5, "ended 5 days ago")])
def test_what_ends_soon_is_told_with_the_remedy(days: int, words: str) -> None:
    line = told("the certificate of w1", NOW + days * DAY + DAY / 24, "labctl node renew w1")
    assert words in line and bool(line) == bool(words)
    assert not line or line.endswith("remedy: labctl node renew w1")


def test_the_doctor_warns_of_certificates(world: World) -> None:
    authority = LabAuthority.create(world.pki_dir("default"), "default")
    assert "certificate" not in world.run("doctor").err
    soon = authority.node_files("w2", NOW - DAY, NOW + 5 * DAY)["node.pem"]
    world.certificates["w2"] = x509.load_pem_x509_certificate(soon)
    authority.replace_client(*authority.issue_client(NOW - DAY, NOW + 3 * DAY))
    for words in ((), ("--all",)):
        err = world.run("doctor", *words).err
        assert "warning: the certificate of w2 ends on" in err and "labctl node renew w2" in err
        assert "warning: the certificate of this machine ends on" in err and "labctl operator renew" in err
    assert len(world.run("doctor", "--json").data["certificates"]) == 2
