"""The playbooks, run by Ansible on machines that are directories, and the payload that they read."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from labctl.lab import footprint as at
from labctl.lab.install import install
from labctl.lab.model import Node
from labctl.lab.root import Root
from tests.unit.playbooks import ANSIBLE, MUTE, PYTHON, Machine, Site, archive
from tests.unit.test_node_install import Quiet, ToyAgent, ToyNode

ROLE = ANSIBLE / "roles" / "groundfault_agent"
OTHER_PYTHON = next(version for version in ("3.12", "3.13") if version != PYTHON)
YEAR_S = 365 * 86400
EMPTY = {
    "opt",
    "etc",
    "etc/systemd",
    "etc/systemd/system",
    "var",
    "var/lib",
    "run",
    "run/systemd",
    "run/systemd/system",
}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def by_labctl(site: Site, version: str) -> dict[str, str]:
    """The tree that `labctl node install` leaves."""
    node = ToyNode(site.directory / "by-labctl" / "node", Node(name="db1", address="h"))
    bundle = archive(site.directory / "labctl.tar.gz", version)
    files = site.authority.node_files("db1") | {at.REVOKED: b""}
    install(
        Root(node), files=lambda: files, bundler=lambda **kind: bundle, agent=ToyAgent(),
        ready=lambda node: None, task=Quiet(),
    )  # fmt: skip
    made = Machine("db1", node.root, node.root)
    return {name: told for name, told in made.tree().items() if name not in EMPTY}


def tree(machine: Machine) -> dict[str, str]:
    """As :func:`by_labctl`: name and unit are what they would be on db1."""
    unit = f"etc/systemd/system/{machine.name}.service"
    found = {name.replace(unit, at.UNIT_FILE[1:]): told for name, told in machine.tree().items()}
    return {
        name: told.replace(f" {machine.name}\n", " db1\n") for name, told in found.items() if name not in EMPTY
    }


def put(machine: Machine, version: str, where: str = at.PROGRAM) -> None:
    """A program that is there already."""
    for name in ("bin/node-agent", "key", f"lib/{version}.py", f"lib/node_agent/systemd/{at.UNIT}"):
        machine.write(f"{where}/{name}", f"{version}\n")


@pytest.mark.timeout(600)
def test_agents_come_whatever_was_there_and_go_without_a_trace(site: Site) -> None:
    """Each place where an install can be cut, upgrades, disks, an agent that never answers: all at once."""
    between = site.machine("between")
    put(between, "half", at.STAGING)
    put(between, "old", at.RETIRED)
    upgraded = site.machine("upgraded")
    put(upgraded, "old")
    unstarted = site.machine("unstarted")
    put(unstarted, "old", at.RETIRED)
    put(unstarted, "one")
    unstarted.write(f"{at.PROGRAM}/bin/node-agent", "#!/bin/sh\necho '{\"reply\":{}}'\n")
    unstarted.path(f"{at.PROGRAM}/bin/node-agent").chmod(0o755)
    never = site.machine("never")
    put(never, "old", at.RETIRED)
    put(never, "bad")
    disks = site.machine("disks", groundfault_agent_disks=[{"name": "spare", "size_mib": 64}])
    site.machine("tiny", groundfault_agent_disks=[{"name": "spare", "size_mib": 1}])
    worse = site.machine("worse", MUTE)
    put(worse, "old")
    worse.write(f"{at.PROGRAM}/lib/version", "old")
    worse.path(f"{at.PROGRAM}/bin/node-agent").chmod(0o755)

    first = site.play("install.yml")
    assert first.failed == {"tiny", "worse"}, first.text
    assert "disk spare: size_mib: 1 MiB is too small for ext4" in first.said("tiny")
    assert "worse: Wait for its answer: the agent does not answer; the agent of before is back" in first.said(
        "worse"
    )
    assert worse.path(at.KEY_FILE).read_text() == "old\n" and site.active(worse)
    wanted = by_labctl(site, "one")
    for name in ("tiny", "between", "upgraded", "never"):
        assert tree(site.machines[name]) == wanted, name
        assert site.active(site.machines[name]), name
    assert set(tree(unstarted)) <= set(wanted) and at.RETIRED[1:] not in tree(unstarted)
    assert site.active(unstarted)
    keys = {path: path.read_bytes() for one in site.machines.values() for path in one.root.rglob("node.key")}
    assert len(keys) == len(site.machines)

    site.pack(upgraded, "one")  # with other certificates: those that are there stay
    again = site.play("install.yml", only="disks,upgraded")
    assert again.status == 0 and set(again.changed.values()) == {0}, again.text
    assert {path: path.read_bytes() for path in keys} == keys

    upgraded.write(f"{at.JOURNAL}/abcd2345.journal")
    upgraded.write(f"{at.PROGRAM}/lib/version", MUTE)
    before = upgraded.tree()
    never.write(f"{at.DISKS}/spare.json")
    never.variables["groundfault_agent_undo_disks"] = True
    site.machine("nothing")
    gone = site.play("uninstall.yml", only="disks,upgraded,nothing,between,never")
    assert gone.failed == {"disks", "upgraded"}, gone.text
    assert "disks are under device mapper: spare; nothing was removed" in gone.said("disks")
    assert "could not be undone: abcd2345; nothing was removed" in gone.said("upgraded")
    assert upgraded.tree() == before and disks.path(at.PROGRAM).exists()
    assert gone.changed["nothing"] == 0
    for name in ("nothing", "between", "never"):
        assert set(site.machines[name].tree()) == EMPTY, name
        assert not site.active(site.machines[name])


@pytest.mark.timeout(300)
def test_what_cannot_be_is_refused_and_told(site: Site) -> None:
    """Nothing is changed then, on any of them."""
    wanted: dict[str, tuple[str, ...]] = {}

    def case(name: str, *words: str, **variables: object) -> Machine:
        wanted[name] = words
        return site.machine(name, **variables)

    case("old", "Python 3.9, supported are 3.11", "not booted with systemd", "3 MiB free for /opt, needed are 200",
         "C library glibc 2.17, needed is glibc 2.28").finds(
        python="3.9", systemd=False, free_mib=3, libc="glibc 2.17")  # fmt: skip
    case("musl", "C library musl 1.2").finds(libc="musl 1.2")
    case("pypy", "PyPy 3.11").finds(implementation="PyPy", python="3.11")
    case("small", "2 MiB free for /var/lib, needed are 64").finds(state_mib=2)
    case("riscv", "architecture riscv64").finds(arch="riscv64")
    case("newer", f"no agent for Python {OTHER_PYTHON} on").finds(python=OTHER_PYTHON)
    case("late", "its clock is", "outside the dates of its certificate").finds(clock_unix_s=time.time() - YEAR_S)
    renamed = case("renamed", "that host is node db9 already", "groundfault_agent_take_over")
    renamed.finds(name="db9", present=[str(renamed.path(at.PROGRAM))])
    foreign = case("foreign", "the agent there obeys another lab")
    foreign.finds(authority="another's", present=[str(foreign.path(at.PROGRAM))])
    case("live", "injections are live: abcd2345", "labctl recover --node live").finds(live=["abcd2345"])
    (case("busy", "busy: bob@desk is installing or removing the agent").payload / "look.py").write_text(
        'print("busy bob@desk")\n'
    )
    case("unnamed", "db7 is not in the payload, which has unnamed", groundfault_agent_node="db7")
    case("absent", "/nowhere is no payload; labctl node payload").payload = Path("/nowhere")
    case("unset", "groundfault_agent_payload: nothing is no payload", groundfault_agent_payload="")
    case("format", "its format is 2, and this role reads 1").says(format=2)
    disk = {"name": "data", "device": "/dev/sdb"}
    case(
        "ntfs",
        "value of format must be one of: ext4, xfs, got: ntfs",
        groundfault_agent_disks=[disk | {"format": "ntfs"}],
    )
    case("big", "size_mib", "big", groundfault_agent_disks=[{"name": "data", "size_mib": "big"}])
    case("typo", "divice", groundfault_agent_disks=[{"name": "data", "divice": "/dev/sdb"}])
    case("nameless", "missing required arguments: name", groundfault_agent_disks=[{"device": "/dev/sdb"}])
    case("perhaps", "groundfault_agent_take_over", groundfault_agent_take_over="perhaps")

    done = site.play("install.yml")
    assert done.failed == set(wanted), done.text
    for name, words in wanted.items():
        said = done.said(name)
        assert [word for word in words if word not in said] == [], said
        assert set(site.machines[name].tree()) == EMPTY, name
    assert set(done.changed.values()) == {0}
