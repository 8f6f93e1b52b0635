"""The playbooks, run by Ansible on machines that are directories, and the payload that they read."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509

import node_agent
from labctl.lab import footprint as at
from labctl.lab.bundle import bundle_key
from labctl.lab.install import PYTHON_VERSIONS, install
from labctl.lab.install import Machine as Look
from labctl.lab.model import Node
from labctl.lab.payload import FILE, Payload
from labctl.lab.root import Root
from labctl.pki import LabAuthority, names_in, node_id
from node_agent.prepare.model import Request
from tests.unit.cli_world import World
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
    """A program of this version that is there already."""
    unpacked = archive(machine.root.parent / f"put-{version}.tar.gz", version)
    target = machine.path(where)
    with tarfile.open(unpacked) as tar, tempfile.TemporaryDirectory(dir=machine.root.parent) as scratch:
        tar.extractall(scratch, filter="data")
        (Path(scratch) / at.PROGRAM[1:]).rename(target)


@pytest.mark.timeout(600)
def test_agents_come_whatever_was_there_and_go_without_a_trace(site: Site) -> None:
    """A fresh machine, one cut while it unpacked what was to replace a program that never answered, one cut before
    the start, and one whose new agent does not answer: all at once, because Ansible takes its time."""
    never = site.machine("never")
    put(never, "half", at.STAGING)
    put(never, "old", at.RETIRED)
    put(never, "bad")
    unstarted = site.machine("unstarted")
    put(unstarted, "old", at.RETIRED)
    put(unstarted, "one")
    worse = site.machine("worse", MUTE)
    put(worse, "old")
    disks = site.machine("disks", groundfault_agent_disks=[{"name": "spare", "size_mib": 64}])

    first = site.play("install.yml")
    assert first.failed == {"worse"}, first.text
    told = "worse: Wait for its answer: the agent does not answer; the agent of before is back"
    assert told in first.said("worse")
    assert worse.path(at.KEY_FILE).read_text() == "old\n" and site.active(worse)
    assert not worse.path(at.RETIRED).exists()
    wanted = by_labctl(site, "one")
    assert tree(never) == wanted
    spare = {name for name in tree(disks) if name.startswith(at.STATE[1:])}
    assert {name: text for name, text in tree(disks).items() if name not in spare} == wanted
    assert set(tree(unstarted)) == set(wanted), "what was retired is gone"
    assert all(site.active(one) for one in (never, unstarted, disks))

    kept = disks.path(f"{at.TLS}/node.key").read_bytes()
    site.pack(disks, "one")  # with other certificates: those that are there stay
    disks.variables["groundfault_agent_disks"].append({"name": "tiny", "size_mib": 1})
    again = site.play("install.yml", only="disks")
    assert again.changed == {"disks": 0} and again.failed == {"disks"}, again.text
    assert "disk tiny: size_mib: 1 MiB is too small for ext4" in again.said("disks")
    assert disks.path(f"{at.TLS}/node.key").read_bytes() == kept

    unstarted.write(f"{at.JOURNAL}/abcd2345.journal")
    unstarted.write(f"{at.PROGRAM}/lib/version", MUTE)
    before = unstarted.tree()
    never.write(f"{at.DISKS}/spare.json")
    never.variables["groundfault_agent_undo_disks"] = True
    site.machine("nothing")
    gone = site.play("uninstall.yml", only="disks,unstarted,never,nothing")
    assert gone.failed == {"disks", "unstarted"}, gone.text
    assert "disks are under device mapper: spare; nothing was removed" in gone.said("disks")
    assert "could not be undone: abcd2345; nothing was removed" in gone.said("unstarted")
    assert unstarted.tree() == before and disks.path(at.PROGRAM).exists()
    assert gone.changed["nothing"] == 0
    assert {*never.tree(), *site.machines["nothing"].tree()} == EMPTY and not site.active(never)


@pytest.mark.timeout(300)
def test_what_cannot_be_is_refused_and_told(site: Site) -> None:
    """Nothing is changed then, on any of them."""
    wanted: dict[str, tuple[str, ...]] = {}

    def case(name: str, *words: str, **variables: Any) -> Machine:
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


def test_who_installs_is_seen(site: Site) -> None:
    machine = site.machine("db1")
    data = json.loads((machine.payload / FILE).read_text())
    look = (sys.executable, "-c", (machine.payload / data["look"]).read_text(), data["installer"])

    def see() -> list[str]:
        return subprocess.run(
            (*look, "me"), input="", capture_output=True, text=True, check=True
        ).stdout.splitlines()

    held, found = see()
    assert held == "held" and Look.model_validate_json(found).present == ()
    with subprocess.Popen(
        (*look, "alice@desk"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout and other.stdout.readline() == "held\n"
        assert see() == ["busy alice@desk"]


def test_the_role_knows_no_path_of_a_node() -> None:
    """They are in the payload alone, so that there is one list."""
    for file in ROLE.rglob("*.*"):
        assert not re.search(r"/(etc|run|usr|opt|var/lib)/", file.read_text()), file


def test_each_variable_is_checked_has_a_default_and_is_told() -> None:
    specs = yaml.safe_load((ROLE / "meta" / "argument_specs.yml").read_text())["argument_specs"]
    variables = set(specs["main"]["options"])
    assert variables == set(yaml.safe_load((ROLE / "defaults" / "main.yml").read_text()))
    page = (ANSIBLE.parent / "docs" / "ansible.md").read_text()
    assert variables == set(re.findall(r"^\| `(groundfault_agent_\w+)`", page, re.M))
    example = (ANSIBLE / "inventory.example.yml").read_text()
    assert set(re.findall(r"(groundfault_agent_\w+):", example)) <= variables
    disk = set(specs["main"]["options"]["groundfault_agent_disks"]["options"])
    assert disk == set(Request.model_fields) - {"undo"}, "what the agent is asked for"


def test_a_payload_has_what_an_install_puts_there(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = LabAuthority.create(world.pki_dir("default"), "default")
    asked: list[tuple[str, ...]] = []

    def bundler(python: str, arch: str, progress: object) -> Path:
        asked.append((python, arch))
        return archive(tmp_path / f"{python}-{arch}.tar.gz", python)

    monkeypatch.setattr("labctl.lab.bundle.build_bundle", bundler)
    out = tmp_path / "payload"
    assert world.run("node", "payload", "w1", "w2", "--out", str(out)).code == 0
    assert asked == [(python, "x86_64") for python in PYTHON_VERSIONS]
    assert out.stat().st_mode & 0o777 == 0o700
    made = Payload.model_validate_json((out / FILE).read_bytes())
    assert {*made.nodes} == {"w1", "w2"} and made.authority.encode() == authority.own_pem()
    assert made.programs["3.13-x86_64"].key == bundle_key("3.13", "x86_64")
    archive_of = out / made.nodes["w1"].archive
    assert archive_of.stat().st_mode & 0o777 == 0o600
    with tarfile.open(archive_of) as tar:
        modes = {entry.name: f"{entry.mode:04o}" for entry in tar}
        certificate, unit = (tar.extractfile(name) for name in (f"{at.TLS[1:]}/node.pem", at.UNIT_FILE[1:]))
        assert certificate and unit
        assert node_id("w1", "default") in names_in(x509.load_pem_x509_certificate(certificate.read()))
        source = Path(node_agent.__file__).parent / "systemd" / at.UNIT
        assert unit.read() == source.read_bytes() == made.unit_text.encode()
    certificates = {f"{at.TLS}/{name}" for name in ("ca.pem", "node.pem", "node.key", at.REVOKED)}
    assert {f"/{name}" for name in made.certificates} == certificates
    wanted = {**at.MODES, **dict.fromkeys(certificates, at.CERTIFICATE_MODE)}
    assert {f"/{name}": mode for name, mode in modes.items()} == wanted

    again = ("node", "payload", "w1", "--python", "3.12", "--arch", "aarch64", "--out", str(out))
    assert world.run(*again).code == 0
    made = Payload.model_validate_json((out / FILE).read_bytes())
    assert ({*made.programs}, {*made.nodes}) == ({"3.12-aarch64"}, {"w1"}), "replaced as a whole"
    assert [path.name for path in tmp_path.glob(".payload*")] == []
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("mine")
    for target in (tmp_path / "other", tmp_path / "3.12-aarch64.tar.gz"):
        refused = world.run("node", "payload", "w1", "--out", str(target))
        assert refused.code == 64, refused.err
    assert (tmp_path / "other" / "file").read_text() == "mine"
    assert world.run("node", "payload", "--out", str(out)).code == 64
    assert world.run("node", "payload", "w9", "--out", str(out)).code == 64
