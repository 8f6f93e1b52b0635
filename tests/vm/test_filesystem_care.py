"""File systems that stopped are brought back, what was lost is named, and what is well is not touched."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from labctl.errors import UsageError
from labctl.lab.model import Node
from labctl.transport.client import AgentClient
from labctl.transport.ssh import SshTransport
from node_agent.host.mounting import Repair
from tests.lab import LabUnderTest, ssh, ssh_argv
from tests.user import until

pytestmark = pytest.mark.vm
DRIVER = Path(__file__).with_name("care_driver.py")
UNIT = "care-writer"


class Care:
    """A process on a node that captures and heals one file system."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, request: str) -> dict[str, Any]:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(f"{request}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        return dict(json.loads(line)) if line else {"gone": True}


@contextmanager
def care(node: Node, device: str, mount: str, name: str) -> Iterator[Care]:
    ssh(node, f"cat > /tmp/care.py <<'END'\n{DRIVER.read_text()}\nEND")
    argv = ssh_argv(node, f"python3 /tmp/care.py {device} {mount} {name}")
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Care(process)
    finally:
        assert process.stdin
        process.stdin.close()
        process.wait(30)


def sh(node: Node, script: str, check: bool = True) -> str:
    return ssh(node, script, check=check).stdout.strip()


def swap(device: str, table: str) -> str:
    """The commands that put another table under a device in use."""
    return (
        f"dmsetup suspend --noflush --nolockfs {device} && echo '{table}' | dmsetup load {device} "
        f"&& dmsetup resume {device}"
    )


def stop_it(node: Node, device: str, mount: str) -> None:
    """All I/O fails while something is written, until the file system has noticed; then the disk is well again.

    Nothing is dirty beforehand, so that the file written in vain gets into the journal's last transaction.
    """
    table = sh(node, f"dmsetup table {device}")
    error = swap(device, f"0 {table.split()[1]} error")
    sh(node, f"sync -f {mount}; {error}; echo gone > {mount}/written-in-vain; sync; touch {mount}/too-late", False)
    until("it has stopped", lambda: sh(node, f"touch {mount}/late 2>&1", check=False) != "", 30)
    sh(node, swap(device, table))
    assert "rw" in sh(node, f"findmnt -no OPTIONS {mount}").split(","), "what /proc/mounts goes on to say"


def start_writer(node: Node, mount: str) -> str:
    """A service, made at run time, that holds a file open; its process id."""
    sh(node, f"systemd-run --quiet --unit={UNIT} sh -c 'exec 3>>{mount}/held; exec sleep 10000'")
    pid = main_pid(node)
    until("it holds the file", lambda: sh(node, f"readlink /proc/{pid}/fd/3", check=False) == f"{mount}/held", 30)
    return pid


def main_pid(node: Node) -> str:
    return sh(node, f"systemctl show --property=MainPID --value {UNIT}")


def writes(node: Node, mount: str) -> str:
    return sh(node, f"echo it works > {mount}/new && sync -f {mount} && cat {mount}/new && rm {mount}/new")


@pytest.fixture(scope="module")
def node(lab: LabUnderTest) -> Iterator[Node]:
    lab.reset()
    yield lab.nodes[-1]
    lab.reset()


def test_ext4_that_aborted_its_journal(node: Node) -> None:
    mount, options = "/srv/data", sh(node, "findmnt -no OPTIONS /srv/data")
    sums = sh(node, f"sha256sum {mount}/seed/*")
    pid = start_writer(node, mount)
    with care(node, "data", mount, "groundfault-care-1") as mine:
        undo = mine.ask("capture")
        assert undo["ill"] == []
        assert mine.ask("heal") == {"lost": [], "left": []}
        assert main_pid(node) == pid, "nothing is ill: nothing is touched"

        stop_it(node, "data", mount)
        stranger = sh(node, f"cd {mount}; nohup sleep 10001 >/dev/null 2>&1 & echo $!")
        refused = mine.ask("heal")
        assert f"process {stranger} (sleep) uses it" in refused["error"]
        assert any("stopped" in line for line in refused["left"])
        assert (main_pid(node), sh(node, f"kill -0 {stranger} && echo lives")) == (pid, "lives")
        sh(node, f"kill {stranger}")

        healed = mine.ask("heal")
        assert healed["left"] == [], healed
        assert any("/srv/data/written-in-vain (5 bytes)" in line for line in healed["lost"]), healed
        assert any("not yet on the disk when ext4 stopped" in line for line in healed["lost"])
        assert mine.ask("heal") == healed, "twice equals once, and the losses are still told"
    assert writes(node, mount) == "it works"
    assert (sh(node, "findmnt -no OPTIONS /srv/data"), sh(node, f"sha256sum {mount}/seed/*")) == (options, sums)
    assert sh(node, "cat /sys/fs/ext4/dm-0/errors_count") == "0"
    header = sh(node, "dumpe2fs -h /dev/mapper/data 2>/dev/null")
    assert "Filesystem state:         clean\n" in header
    assert "FS Error count" not in header
    again = sh(node, f"systemctl show --property=ActiveState,Transient --value {UNIT}").split()
    assert (again, main_pid(node) != pid) == (["active", "yes"], True)
    assert sh(node, "systemctl list-units --no-legend 'groundfault-care*'") == ""
    sh(node, f"systemctl stop {UNIT}")


@pytest.mark.thorough
def test_killed_in_the_middle_of_a_repair(node: Node) -> None:
    mount = "/srv/data"
    start_writer(node, mount)
    with care(node, "data", mount, "groundfault-care-2") as mine:
        undo = mine.ask("capture")
        stop_it(node, "data", mount)
        mine.ask("die")
        assert mine.ask("heal") == {"gone": True}
    assert sh(node, "findmnt -n /srv/data", check=False) == ""
    assert sh(node, f"systemctl is-active {UNIT}", check=False) == "inactive"
    with care(node, "data", mount, "groundfault-care-2") as mine:
        mine.ask(f"undo {json.dumps(undo)}")
        healed = mine.ask("heal")
        assert healed["left"] == [], healed
        assert any("not yet on the disk when ext4 stopped" in line for line in healed["lost"])
    assert (writes(node, mount), sh(node, f"systemctl is-active {UNIT}")) == ("it works", "active")
    assert undo["mounted"]["options"].split(",")[0] == "rw"
    sh(node, f"systemctl stop {UNIT}")


def test_errors_that_ext4_counted(node: Node) -> None:
    """Without a stop: e2fsck clears the count, and nothing is called lost."""
    with care(node, "data", "/srv/data", "groundfault-care-3") as mine:
        mine.ask("capture")
        sh(node, "echo trigger > /sys/fs/ext4/dm-0/trigger_fs_error")
        assert sh(node, "cat /sys/fs/ext4/dm-0/errors_count") == "1"
        assert mine.ask("heal") == {"lost": [], "left": []}
    assert sh(node, "cat /sys/fs/ext4/dm-0/errors_count") == "0"


XFS = """truncate -s 320M /var/tmp/xfs.img && loop=$(losetup --find --show /var/tmp/xfs.img) &&
echo "0 $(blockdev --getsz $loop) linear $loop 0" | dmsetup create other &&
mkfs.xfs -q /dev/mapper/other && mkdir -p /srv/other && mount -o noatime /dev/mapper/other /srv/other &&
echo kept > /srv/other/kept && sync -f /srv/other"""


@pytest.mark.thorough
def test_xfs_that_shut_down(node: Node) -> None:
    mount = "/srv/other"
    sh(node, XFS)
    pid = start_writer(node, mount)
    options = sh(node, f"findmnt -no OPTIONS {mount}")
    with care(node, "other", mount, "groundfault-care-4") as mine:
        mine.ask("capture")
        stop_it(node, "other", mount)
        assert "Input/output error" in sh(node, f"ls {mount} 2>&1", check=False)
        healed = mine.ask("heal")
        assert healed["left"] == [], healed
        assert any("not yet on the disk when xfs stopped" in line for line in healed["lost"])
        assert not any("could not be replayed" in line for line in healed["lost"])
        assert (writes(node, mount), sh(node, f"cat {mount}/kept")) == ("it works", "kept")
        assert (sh(node, f"findmnt -no OPTIONS {mount}"), main_pid(node) != pid) == (options, True)

        # A log that cannot be replayed: its only cure costs what is in it, and that is said.
        sh(node, f"systemctl stop {UNIT}; for n in $(seq 50); do echo x > {mount}/f$n; done; "
                 f"xfs_io -x -c 'shutdown -f' {mount}; umount {mount}")  # fmt: skip
        where = "xfs_db -r -c 'sb 0' -c 'print logstart agblocks agblklog blocksize logblocks' /dev/mapper/other"
        words = dict(line.split(" = ") for line in sh(node, where).splitlines())
        start, blocks, log2, size, length = (
            int(words[k]) for k in ("logstart", "agblocks", "agblklog", "blocksize", "logblocks")
        )
        at = (start >> log2) * blocks + (start & ((1 << log2) - 1))
        spoil = f"dd if=/dev/urandom of=/dev/mapper/other bs={size} seek={at} count={length // 2} conv=notrunc"
        sh(node, f"{spoil} 2>/dev/null; sync; ! mount {mount} 2>/dev/null")
        healed = mine.ask("heal")
        assert healed["left"] == [], healed
        assert any("could not be replayed" in line for line in healed["lost"])
    assert (writes(node, mount), sh(node, f"cat {mount}/kept")) == ("it works", "kept")
    assert sh(node, f"umount {mount} && xfs_repair -n /dev/mapper/other >/dev/null 2>&1 && echo sound") == "sound"


@pytest.mark.thorough
def test_a_disk_that_was_pulled_out_and_put_back(lab: LabUnderTest, node: Node) -> None:
    """It comes back under another number: the table has to lead there, and ext4 to be repaired."""
    mount, table = "/srv/data", sh(node, "dmsetup table data")
    sums = sh(node, f"sha256sum {mount}/seed/*")
    start_writer(node, mount)
    with SshTransport(node) as transport, lab.provider.qmp(node.name) as qmp:
        agent = AgentClient(transport)
        assert agent.repair_disk("pulled-1") == Repair((), ()), "nothing is wrong: nothing is done"
        sh(node, f"sync -f {mount}")
        qmp.execute("device_del", id="datadev")
        assert qmp.wait_event("DEVICE_DELETED", 30, device="datadev")
        sh(node, f"echo gone > {mount}/written-in-vain; sync; touch {mount}/too-late", check=False)
        until("ext4 has noticed", lambda: sh(node, f"touch {mount}/late 2>&1", check=False) != "", 30)
        with pytest.raises(UsageError, match="no unused disk has the file system"):
            agent.repair_disk("pulled-1", "data")
        data = {"driver": "scsi-hd", "drive": "data0", "id": "datadev", "bus": "scsi0.0", "serial": "gfdata"}
        qmp.send("device_add", data)
        until("it is back", lambda: sh(node, "ls /dev/disk/by-id | grep gfdata", check=False) != "", 60)
        repair = agent.repair_disk("pulled-1", "/srv/data")
        assert any(f"{mount}/written-in-vain (5 bytes)" in line for line in repair.lost), repair
        assert f"started {UNIT}.service" in repair.done
        assert agent.repair_disk("pulled-1", "data") == Repair((), repair.lost), "the same id, the same losses"
    number = sh(node, "lsblk -dno MAJ:MIN $(readlink -f /dev/disk/by-id/*gfdata)")
    assert sh(node, "dmsetup table data") == table.replace("8:0", number) != table
    assert (writes(node, mount), sh(node, f"sha256sum {mount}/seed/*")) == ("it works", sums)
    assert sh(node, f"systemctl is-active {UNIT}") == "active"
    assert sh(node, "cat /sys/fs/ext4/dm-0/errors_count") == "0"
