"""Workloads: found, checked, hashed; what of them is in image, record and nodes; who may do what."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from pydantic import ValidationError

import problems.workloads
from labctl.errors import LabError, UsageError
from labctl.lab import image, provision, workload
from labctl.lab.accelerator import emulation
from labctl.lab.model import LabOptions, Node
from labctl.lab.remote import Output, Remote, Running
from labctl.lab.state import Ports, Record, read_record, write_record
from labctl.progress import SilentProgress
from problems.workloads import (
    Check,
    File,
    NoSuchWorkload,
    Step,
    Workload,
    files_below,
    find_workload,
    workload_names,
)
from problems.workloads.booking import WORKLOAD
from problems.workloads.booking.oncall import ALLOWED, DENIED, sudoers


def a_workload(**changed: object) -> Workload:
    given: dict[str, object] = {
        "name": "toy", "title": "a toy", "nodes": ("w1", "w2"), "memory_mib": 384, "secrets": ("PASSWORD",),
        "files": {"w1": (File(path="/etc/toy", text="secret=@PASSWORD@\n", mode=0o640, owner="root:toy"),)},
        "steps": (
            Step(title="one", scripts={"w1": "first", "w2": "first"}),
            Step(title="two", scripts={"w2": "second"}),
        ),
        "checks": (
            Check(node="w1", what="it runs", script="runs"),
            Check(node="w2", what="it follows", script="follows"),
        ),
        "ready_within_s": 2.0,
    }  # fmt: skip
    return Workload.model_validate(given | changed)


def test_workloads_are_found_by_name() -> None:
    assert "booking" in workload_names()
    assert find_workload("booking") is WORKLOAD
    with pytest.raises(NoSuchWorkload, match=r"no workload 'nothing'; there are: .*booking"):
        find_workload("nothing")


def test_a_package_beside_the_others_is_a_workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").write_text(
        "from problems.workloads import Workload\n"
        "WORKLOAD = Workload(name='shop', title='a shop', nodes=('w1',), memory_mib=384)\n"
    )
    monkeypatch.setattr(problems.workloads, "__path__", [*problems.workloads.__path__, str(tmp_path)])
    assert {"booking", "shop"} <= {*workload_names()}
    assert find_workload("shop").title == "a shop"


def test_everything_is_on_a_node_of_the_workload() -> None:
    with pytest.raises(ValidationError, match="w9: no node of toy"):
        a_workload(checks=(Check(node="w9", what="x", script="true"),))
    with pytest.raises(ValidationError, match="w3: no node of toy"):
        a_workload(steps=(Step(title="x", scripts={"w3": "true"}),))


@pytest.mark.parametrize(
    "changed",
    [
        {"title": "another toy"},
        {"packages": ("hello",)},
        {"image": "true"},
        {"steps": (Step(title="one", scripts={"w1": "other"}),)},
        {"files": {"w1": (File(path="/etc/toy", text="secret=@PASSWORD@\n", mode=0o600, owner="root:toy"),)}},
        {"files": {"w2": (File(path="/etc/toy", text="secret=@PASSWORD@\n", mode=0o640, owner="root:toy"),)}},
        {"checks": ()},
    ],
)
def test_the_key_is_of_all_that_is_deployed(changed: dict[str, object]) -> None:
    assert a_workload().key == a_workload().key
    assert a_workload(**changed).key != a_workload().key


def test_files_are_laid_out_like_a_node(tmp_path: Path) -> None:
    (tmp_path / "etc" / "__pycache__").mkdir(parents=True)
    (tmp_path / "etc" / "__pycache__" / "x.pyc").write_bytes(b"\xff")
    (tmp_path / "etc" / "b").write_text("b")
    (tmp_path / "etc" / "a").write_text("a")
    found = files_below(tmp_path, {"/etc/b": (0o600, "toy:toy")})
    assert [(f.path, f.mode, f.owner) for f in found] == [
        ("/etc/a", 0o644, "root:root"),
        ("/etc/b", 0o600, "toy:toy"),
    ]


def test_the_image_of_a_workload_is_another_one_and_the_plain_one_stays() -> None:
    plain, options = LabOptions(), LabOptions(workload="booking", packages=("hello",))
    assert (workload.packages(plain), workload.finish(plain), workload.key("")) == ((), "", "")
    assert {"hello", "postgresql-17", "nginx-light"} <= {*workload.packages(options)}
    assert image.image_key(True, "debian13", (), "") == image.image_key(True)
    packages, finish = workload.packages(options), workload.finish(options)
    assert (
        len(
            {
                image.rootfs_key(),
                image.rootfs_key("trixie", packages),
                image.rootfs_key("trixie", packages, finish),
            }
        )
        == 3
    )
    assert image.rootfs_key("trixie", packages, finish) != image.rootfs_key(
        "trixie", packages, finish + "\n# more"
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (LabOptions(workload="nothing"), "--workload: no workload 'nothing'"),
        (LabOptions(workload="booking", nodes=2), "--nodes: workload booking needs w3"),
        (LabOptions(workload="booking", memory_mib=512), "--memory: workload booking needs 768 MiB a node"),
        (LabOptions(workload="booking", kernel="debian12"), "--kernel: workload booking is made of Debian 13"),
    ],
)
def test_a_lab_that_cannot_have_it_is_refused(options: LabOptions, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        workload.check(options)


def test_options_without_a_workload_are_as_they_were() -> None:
    workload.check(LabOptions(nodes=1, memory_mib=384))
    assert LabOptions.model_validate({"nodes": 3}) == LabOptions(workload="")
    with pytest.raises(ValidationError):
        LabOptions(workload="../booking")


def a_record(options: LabOptions) -> Record:
    return Record(
        name="x", run_dir=Path("/run/x"), options=options, image="key", qemu="QEMU 1",
        accelerator=emulation("because"), ports=provision.choose_ports(options),
        workload_key=workload.key(options.workload),
    )  # fmt: skip


def test_the_record_keeps_the_workload_and_says_nothing_of_none(tmp_path: Path) -> None:
    path = tmp_path / "lab.json"
    write_record(path, a_record(LabOptions()))
    assert "workload" not in path.read_text() and '"web"' not in path.read_text()
    assert read_record(path) is not None
    booking = a_record(LabOptions(workload="booking"))
    write_record(path, booking)
    assert read_record(path) == booking and booking.workload_key == WORKLOAD.key


def test_one_port_more_leads_to_the_web_node() -> None:
    record = a_record(LabOptions(workload="booking"))
    assert [bool(each.web) for each in record.ports] == [True, False, False]
    assert provision.web_url(record) == f"http://127.0.0.1:{record.ports[0].web}"
    assert (record.ports[0].web, 80) in provision.forwards(record.ports[0], record.options)
    assert len(provision.forwards(record.ports[1], record.options)) == 2
    assert provision.web_url(a_record(LabOptions())) == ""
    assert Ports.of((1, 2)).used == (1, 2) and Ports.of((1, 2, 3)).used == (1, 2, 3)


def test_secrets_are_in_the_files_that_name_them() -> None:
    packed = workload.archive(a_workload().files["w1"], {"PASSWORD": "s3cret"})
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        (entry,) = tar.getmembers()
        file = tar.extractfile(entry)
        assert file is not None and file.read() == b"secret=s3cret\n"
    assert (entry.name, entry.mode, entry.uname, entry.gname) == ("etc/toy", 0o640, "root", "toy")


class Nodes:
    """Nodes that note what they are told; `failing` scripts end with 1, so many times."""

    def __init__(self, **failing: int) -> None:
        self.told: list[tuple[str, str]] = []
        self.open = 0
        self._failing = failing

    def ask(self, node: str, argv: Sequence[str]) -> Output:
        self.told.append((node, argv[-1]))
        if self._failing.get(argv[-1], 0) > 0:
            self._failing[argv[-1]] -= 1
            return Output(1, "", f"{argv[-1]}: it did not\n")
        return Output(0, "", "")

    @contextmanager
    def login(self, node: Node) -> Iterator[Remote]:
        nodes = self

        class One:
            @property
            def node(self) -> Node:
                return node

            def run(self, argv: Sequence[str], *, stdin: IO[bytes] | None = None, timeout_s: float = 0) -> Output:
                return nodes.ask(node.name, argv)

            def start(self, argv: Sequence[str], first: bytes = b"") -> Running:
                raise NotImplementedError

        self.open += 1
        try:
            yield One()
        finally:
            self.open -= 1


def named(*names: str) -> list[Node]:
    return [Node(name=name, address="127.0.0.1") for name in names]


def test_a_step_begins_when_the_one_before_it_has_ended_everywhere() -> None:
    nodes = Nodes()
    workload.deploy(a_workload(), named("w1", "w2", "w3"), SilentProgress(), nodes.login)
    assert nodes.open == 0, "a connection would hang in the snapshot"
    scripts = [told for told in nodes.told if told[1] in ("first", "second")]
    assert {*scripts[:2]} == {("w1", "first"), ("w2", "first")} and scripts[2:] == [("w2", "second")]
    assert {node for node, _ in nodes.told} == {"w1", "w2"}


def test_a_step_that_fails_is_told_with_what_it_said() -> None:
    nodes = Nodes(second=1)
    with pytest.raises(LabError, match="w2: setting up two failed with status 1") as caught:
        workload.deploy(a_workload(), named("w1", "w2"), SilentProgress(), nodes.login)
    assert caught.value.hint == "second: it did not" and nodes.open == 0


def waited(nodes: Nodes, step_s: float) -> Callable[[], None]:
    now = [0.0]

    def sleep(_: float) -> None:
        now[0] += step_s

    def wait() -> None:
        with nodes.login(named("w1")[0]) as w1, nodes.login(named("w2")[0]) as w2:
            workload.wait_ready(a_workload(), {"w1": w1, "w2": w2}, lambda: now[0], sleep)

    return wait


def test_what_is_ready_is_not_asked_again_and_what_is_not_is_named() -> None:
    nodes = Nodes(follows=2)
    waited(nodes, 0.5)()
    assert [script for _, script in nodes.told].count("runs") == 1
    assert [script for _, script in nodes.told].count("follows") == 3
    with pytest.raises(LabError, match="toy is not ready after 2 s: no w2: it follows: follows: it did not"):
        waited(Nodes(follows=99), 0.5)()


MAY = """
systemctl restart nginx
systemctl stop booking-api.service
systemctl status --no-pager postgresql@17-main
systemctl daemon-reload
systemctl reboot
systemctl kill -s SIGKILL etcd.service
systemctl list-units --failed
journalctl -u nginx -n 50
journalctl --since -10min -p err
journalctl -k
journalctl -b -o cat --no-pager
dmesg
dmesg -T
smartctl -a /dev/sda
mount /dev/mapper/data /srv/data
mount -o remount,rw /srv/data
umount /srv/data
fsck.ext4 -f -y /dev/mapper/data
e2fsck -fy /dev/mapper/data
mkfs.ext4 -q /dev/mapper/data
debugfs -R icheck 123 /dev/mapper/data
badblocks -sv /dev/mapper/data
dd if=/dev/zero of=/dev/mapper/data bs=4096 seek=99 count=1 conv=notrunc oflag=direct
dd if=/dev/mapper/data of=/dev/null bs=1M
filefrag -v /srv/data/postgresql/17/main/base/5/1259
tee /etc/postgresql/17/main/conf.d/booking.conf
tee -a /etc/nginx/nginx.conf
cat /etc/booking/booking.env
install -o postgres -g postgres -m 640 /tmp/pg_hba.conf /etc/postgresql/17/main/pg_hba.conf
tee /etc/systemd/system/booking-api.service.d/limits.conf
tee /etc/resolv.conf
rm -rf /srv/data/postgresql/17/main
mkdir -p /srv/data/postgresql/17/main
rm /etc/cron.d/report
chown -R postgres:postgres /srv/data/postgresql
chmod 700 /srv/data/postgresql/17/main
ss -tpn
ss -ltn sport = :5432
tcpdump -ni lan -c 20 port 5432
ip link set lan mtu 1500
ip link set dev lan up
tc -s qdisc show dev lan
nft list ruleset
ethtool lan
ethtool -S lan
ping -c 3 -M do -s 1472 10.77.0.2
pkill -9 -x stress-ng
sysctl -w net.ipv4.ip_local_port_range=32768 60999
sysctl net.netfilter.nf_conntrack_max=65536
date -s @1900000000
date --set 2030-01-01 10:00
pg_ctlcluster 17 main restart
lsof -p 42
"""

MAY_NOT = """
systemctl stop groundfault-agent
systemctl cat groundfault-agent.service
systemctl stop nginx groundfault-agent
systemctl stop g*
systemctl stop *
systemctl stop system.slice
systemctl isolate rescue.target
systemctl stop basic.target
systemctl stop systemd-journald
systemctl stop ssh
systemctl status 1234
systemctl status
systemctl edit nginx
systemctl --root=/tmp enable x
systemctl -M x stop nginx
journalctl -u groundfault-agent
journalctl --namespace=groundfault
journalctl --namespac * -n 5
journalctl -D /var/log/journal
journalctl -rm
journalctl --merge
journalctl --rotate
journalctl -t node-agent
journalctl --vacuum-size=1
journalctl -i x
dmesg -C
dmesg --clear
smartctl -a /dev/vda
mount /dev/vda /mnt
mkfs.ext4 /dev/vda
dd if=/dev/zero of=/dev/vda
dmsetup table
dmsetup remove data
bpftool prog
nft flush ruleset
nft delete table inet x
tc qdisc del dev lan root
ip link set mgmt down
cat /etc/shadow
cat /opt/groundfault/lib/x
ls /var/lib/groundfault
cat /etc/nginx/../shadow
cat /etc/nginx/x /etc/shadow
tee /etc/sudoers.d/oncall
tee /etc/systemd/system/groundfault-agent.service.d/x.conf
install /var/lib/groundfault/x /etc/nginx/x
rm -rf /etc
rm -rf /srv
pkill -x node-agent
pkill -9 -x systemd
pkill -9 node
pkill -x python3
kill -9 1
bash
sysctl -w kernel.core_pattern=|/tmp/x
tcpdump -z reboot -i lan
tcpdump -i lan -w /etc/passwd
pg_ctlcluster 18 other stop
python3
"""


def decided(line: str) -> bool:
    """What sudo would say: the last rule that matches decides."""
    name, _, words = line.partition(" ")

    def matches(rule: tuple[str, str]) -> bool:
        command, regex = rule
        return command.rpartition("/")[2] == name and (
            re.fullmatch(regex, words) is not None if regex else not words
        )

    return any(matches(rule) for rule in ALLOWED) and not any(matches(rule) for rule in DENIED)


def test_who_is_on_call_may_do_what_an_operator_does() -> None:
    assert [line for line in MAY.strip().splitlines() if not decided(line)] == []


def test_who_is_on_call_may_not_look_at_or_end_what_the_lab_does() -> None:
    assert [line for line in MAY_NOT.strip().splitlines() if decided(line)] == []


def test_the_rules_are_lines_of_sudoers() -> None:
    text = sudoers()
    assert text.count("NOPASSWD:") == len(ALLOWED) + 1 and text.count("(root) !") == len(DENIED)
    assert not re.search(r"[#\\]", text.partition("\n")[2]), "neither needs what sudoers(5) would want escaped"
    (file,) = [f for f in WORKLOAD.files["w1"] if f.path == "/etc/sudoers.d/oncall"]
    assert (file.text, file.mode) == (text, 0o440)


def test_every_secret_of_booking_is_used_and_nothing_is_left_open() -> None:
    texts = [file.text for files in WORKLOAD.files.values() for file in files]
    assert {word for text in texts for word in re.findall(r"@([A-Z_]{4,})@", text)} == {*WORKLOAD.secrets}
    for files in WORKLOAD.files.values():
        for file in files:
            if any(f"@{name}@" in file.text for name in WORKLOAD.secrets):
                assert file.mode & 0o007 == 0, f"{file.path} has a password and is for all to read"
