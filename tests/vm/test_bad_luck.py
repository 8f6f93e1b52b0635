"""What can go wrong around a fault that stands, on a real node, typed as a user types it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from labctl.progress import PlainProgress
from tests.lab import LabUnderTest, ssh
from tests.user import labctl, labctl_json, until

pytestmark = pytest.mark.vm
FILE = "/srv/data/seed/2.bin"
INJECT = ("inject", "latent_sector_error", "--backend", "dm", "--node", "w2", "--file", FILE)


@pytest.fixture
def healthy(lab: LabUnderTest) -> Iterator[LabUnderTest]:
    """A lab fresh from its snapshot, which must be healthy again in the end."""
    lab.reset()
    node = lab.node("w2")
    before = ssh(node, "sha256sum", FILE).stdout
    yield lab
    lab.ready(node)
    labctl("recover", "--all")
    assert labctl_json("node", "residue", "w2")["entries"] == []
    assert ssh(node, "sha256sum", FILE).stdout == before
    assert "groundfault-" not in ssh(node, "dmsetup", "ls").stdout


def readable(lab: LabUnderTest) -> bool:
    ssh(lab.node("w2"), "sysctl", "-q", "vm.drop_caches=3")
    return ssh(lab.node("w2"), "cat", FILE, ">/dev/null", check=False).returncode == 0


def states() -> list[tuple[str, str]]:
    """State and reason of each injection, as far as agents answer."""
    found = labctl_json("injections", "--all", status=None)["injections"]
    return [(i["state"], i["reason"]) for i in found]


def test_the_agent_is_killed(healthy: LabUnderTest) -> None:
    labctl(*INJECT)
    assert not readable(healthy)
    ssh(healthy.node("w2"), "systemctl", "kill", "--signal=KILL", "groundfault-agent")
    until("the restarted agent has healed the file", lambda: readable(healthy), 120)
    until("it says so", lambda: ("recovered", "restart") in states(), 60)


@pytest.mark.thorough
def test_the_agent_is_stopped_and_started(healthy: LabUnderTest) -> None:
    labctl(*INJECT)
    ssh(healthy.node("w2"), "systemctl", "stop", "groundfault-agent")
    assert readable(healthy), "an agent that ends takes its faults with it"
    ssh(healthy.node("w2"), "systemctl", "start", "groundfault-agent")


def test_power_is_cut_and_comes_back(healthy: LabUnderTest) -> None:
    node = healthy.node("w2")
    ssh(node, "sync")
    labctl(*INJECT)
    healthy.provider.power_off("w2")
    healthy.provider.power_on("w2", PlainProgress())
    healthy.ready(node)
    assert readable(healthy)
    assert ("recovered", "restart") in states()


def test_the_controller_is_gone_until_the_lease_ends(healthy: LabUnderTest) -> None:
    labctl(*INJECT, "--for", "20s")
    assert not readable(healthy)
    until("the lease has ended", lambda: readable(healthy), 60)
    until("it says so", lambda: ("recovered", "expired") in states())


def test_the_clock_is_set_back_an_hour_while_a_lease_runs(healthy: LabUnderTest) -> None:
    labctl(*INJECT, "--for", "20s")
    ssh(healthy.node("w2"), "date", "-s", "'1 hour ago'")
    until("the lease has ended by the boot clock", lambda: readable(healthy), 60)
    healthy.ready(healthy.node("w2"))
    until("it says so", lambda: ("recovered", "expired") in states())


def test_the_root_disk_is_full(healthy: LabUnderTest) -> None:
    node = healthy.node("w2")
    labctl(*INJECT)
    ssh(
        node,
        "sh",
        "-c",
        "'fallocate -l 100G /var/tmp/fill; cat /dev/zero > /var/tmp/fill2'",
        check=False,
        timeout=300,
    )
    assert ssh(node, "sh", "-c", "'echo x > /var/tmp/probe && sync'", check=False).returncode != 0, (
        "the disk is full"
    )
    labctl("recover", "--all")
    assert readable(healthy)
    refused = labctl(*INJECT, status=None)
    assert refused.returncode == 70 and "nothing was changed" in refused.stderr
    ssh(node, "rm", "-f", "/var/tmp/fill", "/var/tmp/fill2", "/var/tmp/probe")
    labctl(*INJECT)


def test_twenty_at_once_with_one_id(healthy: LabUnderTest) -> None:
    command = (*INJECT, "--id", "twenty", "--seed", "3")
    with ThreadPoolExecutor(20) as pool:
        done = list(pool.map(lambda _: labctl(*command, status=None).returncode, range(20)))
    assert done == [0] * 20
    assert len(labctl_json("injections")["injections"]) == 1


def test_two_faults_on_one_disk_compose_and_end_in_any_order(healthy: LabUnderTest) -> None:
    other = "/srv/data/seed/3.bin"
    labctl(*INJECT, "--id", "first")
    labctl("inject", "latent_sector_error", "--backend", "dm", "--node", "w2", "--file", other, "--id", "second")
    clash = labctl(*INJECT, "--id", "third", "--seed", _seed("first"), status=None)
    assert clash.returncode == 64 and "first" in clash.stderr
    labctl("recover", "first")
    assert readable(healthy)
    assert ssh(healthy.node("w2"), "cat", other, ">/dev/null", check=False).returncode != 0
    labctl("recover", "second")
    assert ssh(healthy.node("w2"), "cat", other, ">/dev/null").returncode == 0


def _seed(injection: str) -> str:
    found = labctl_json("injections")["injections"]
    return str(next(i["parameters"]["seed"] for i in found if i["id"] == injection))


def test_stop_heals_everything_and_refuses_until_cleared(healthy: LabUnderTest) -> None:
    labctl(*INJECT)
    labctl("stop")
    assert readable(healthy)
    assert labctl(*INJECT, status=None).returncode != 0
    labctl("stop", "--clear")
    labctl(*INJECT)


@pytest.mark.thorough
def test_a_corrupted_journal_line(healthy: LabUnderTest) -> None:
    node = healthy.node("w2")
    labctl(*INJECT, "--id", "corrupt")
    ssh(node, "systemctl", "kill", "--signal=STOP", "groundfault-agent")
    ssh(node, "sed", "-i", "'3s/./#/20'", "/var/lib/groundfault/journal/corrupt.journal")
    ssh(node, "systemctl", "kill", "--signal=KILL", "groundfault-agent")
    until("the file is healed", lambda: readable(healthy), 120)
    until("it says so", lambda: ("recovered", "restart") in states(), 60)


def test_recover_twice_and_what_never_was(healthy: LabUnderTest) -> None:
    labctl(*INJECT, "--id", "once")
    labctl("recover", "once")
    labctl("recover", "once")
    assert "nothing to recover" in labctl("recover", "never").stdout


def test_over_ssh_it_is_the_same(healthy: LabUnderTest) -> None:
    labctl("--transport", "ssh", *INJECT)
    assert not readable(healthy)
    assert labctl_json("--transport", "ssh", "injections")["injections"][0]["state"] == "active"
    labctl("--transport", "ssh", "recover", "--all")
    assert readable(healthy)
