"""The main job from the outside, as the README tells it."""

from __future__ import annotations

import re

import pytest

from tests.lab import LabUnderTest, ssh
from tests.user import labctl, labctl_json

pytestmark = pytest.mark.vm


def test_the_demo_plays_to_its_end(lab: LabUnderTest) -> None:
    lab.reset()
    shown = labctl("demo").stdout
    assert "Input/output error" in shown and "nothing left behind" in shown


def test_a_fault_with_no_more_said_than_the_node(lab: LabUnderTest) -> None:
    lab.reset()
    node = lab.node("w2")
    sums = ssh(node, "sha256sum", "/srv/data/seed/*").stdout
    said = labctl("inject", "latent_sector_error", "--node", "w2", "--backend", "dm").stdout
    found = re.search(r"(/srv/data/\S+) at byte \d+: sector (\d+)\+8", said)
    assert found and "dm-snapshot" in said and "15m" in said and re.search(r"hits +[1-9]", said)
    file, sector = found.groups()
    read = ssh(node, "cat", file, ">/dev/null", check=False)
    assert read.returncode != 0 and "Input/output error" in read.stderr
    assert re.search(rf"I/O error, dev \S+, sector {sector} op 0x0:\(READ\)", ssh(node, "dmesg").stdout)
    labctl("recover", "--all")
    ssh(node, "sysctl", "-q", "vm.drop_caches=3")
    assert ssh(node, "sha256sum", "/srv/data/seed/*").stdout == sums
    assert labctl_json("node", "residue", "w2")["entries"] == []
    assert ssh(node, "journalctl", "-k", "-q", "-p", "err", "-g", "dust", check=False).stdout == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("inject", "latent_sector_eror", "--node", "w2"), "did you mean latent_sector_error"),
        (("inject", "latent_sector_error", "--node", "w22"), "w2"),
        (("inject", "latent_sector_error", "--node", "w2", "--fiel", "/x"), "--file"),
        (("inject", "latent_sector_error", "--node", "w2", "--file", "/etc/passwd"), "below /srv/data"),
        (("inject", "latent_sector_error", "--node", "w2", "--file", "/srv/data/seed"), "is a directory"),
        (("inject", "latent_sector_error", "--node", "w2", "--file", "/srv/data/none"), "does not exist"),
        (("inject", "latent_sector_error", "--node", "w2", "--range", "99999999+8"), "the disk at"),
        (("inject", "latent_sector_error", "--node", "w2", "--schedule", "every:3"), "bad by its place"),
        (("inject", "latent_sector_error", "--node", "w2", "--for", "forever"), "--for"),
    ],
)
def test_bad_input_gets_one_line_and_changes_nothing(
    lab: LabUnderTest, arguments: tuple[str, ...], says: str
) -> None:
    done = labctl(*arguments, status=64)
    assert says in done.stderr, done.stderr
    assert labctl_json("injections")["injections"] == []


def test_the_doctor_shows_every_node_and_the_accelerator(lab: LabUnderTest) -> None:
    said = labctl("doctor").stdout
    assert all(word in said for word in ("w1", "w2", "w3", "dm.snapshot", "accelerator"))


def test_the_exit_status_of_a_command_on_a_node_is_passed_on(lab: LabUnderTest) -> None:
    assert labctl("ssh", "w1", "--", "sh", "-c", "exit 7", status=7).returncode == 7
    assert labctl("ssh", "w1", "--", "echo", "a b;c").stdout == "a b;c\n"
