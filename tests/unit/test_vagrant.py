"""The provider `vagrant`: what it asks of Vagrant, what it believes of it, and how it knows its machines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from labctl.errors import LabctlError, LabError, UnsupportedError, UsageError
from labctl.lab import vagrant_tool
from labctl.lab.accelerator import Accelerator, emulation
from labctl.lab.equip import spare_disk
from labctl.lab.model import LabOptions, Node
from labctl.lab.ports import choose
from labctl.lab.remote import connected
from labctl.lab.store import create_lab, open_lab
from labctl.lab.vagrant import VagrantLab
from labctl.lab.vagrant_files import vagrantfile
from labctl.lab.vagrant_finding import Finder
from labctl.lab.vagrant_record import Record
from labctl.lab.vagrant_tool import Vagrant
from labctl.progress import SilentProgress
from tests.unit.fake_vagrant import FakeVagrant, fake_vagrant
from tests.unit.sshd import SshServer

RECORDED = """Host w1
  HostName 192.168.121.37
  User root
  Port 22
  UserKnownHostsFile /dev/null
  StrictHostKeyChecking no
  PasswordAuthentication no
  IdentityFile {key}
  IdentitiesOnly yes
  LogLevel FATAL
"""
TWO = LabOptions(nodes=2)


@pytest.fixture
def vagrant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeVagrant]:
    with fake_vagrant(tmp_path, monkeypatch) as fake:
        yield fake


@dataclass
class Lab:
    """A lab, and what was done to its nodes."""

    provider: VagrantLab
    equipped: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def up(self, options: LabOptions | None = None) -> None:
        self.provider.up(options, self.ready, SilentProgress())

    def reset(self) -> None:
        self.provider.reset(self.ready, SilentProgress())

    def ready(self, node: Node) -> None:
        self.asked.append(node.name)

    def record(self) -> Any:
        return json.loads((self.provider.directory / "lab.json").read_text())


@pytest.fixture
def lab(vagrant: FakeVagrant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.setattr("labctl.lab.vagrant.driver_here", lambda progress: "")

    def equip(node: Node, **_: Any) -> None:
        made.equipped.append(node.name)

    (tmp_path / "labs").mkdir()
    made = Lab(VagrantLab(tmp_path / "labs" / "vg", equip=equip))
    return made


def test_up_makes_machines_installs_agents_and_takes_snapshots(lab: Lab, vagrant: FakeVagrant) -> None:
    lab.up(LabOptions(nodes=2, memory_mib=900, data_mib=128))
    assert vagrant.calls() == [
        "plugin list",
        "status --machine-readable",
        "up --no-provision",
        "ssh-config w1",
        "ssh-config w2",
        "snapshot save --force w1 golden",
        "snapshot save --force w2 golden",
    ]
    assert lab.equipped == ["w1", "w2"]
    assert sorted(lab.asked) == ["w1", "w1", "w2", "w2"]
    settings = json.loads((lab.provider.directory / "vagrant" / "settings.json").read_text())
    ports = settings.pop("AGENT_PORTS").split(",")
    assert settings == {"LAB": "vg", "NODES": 2, "MEMORY_MIB": 900, "CPUS": 1, "DATA_MIB": 128}
    assert (lab.provider.directory / "vagrant" / "Vagrantfile").read_bytes() == vagrantfile()
    one, two = lab.provider.nodes()
    assert (one.ssh_port, one.ssh_user, one.lab_addresses) == (vagrant.servers["w1"].port, "root", ("10.77.0.11",))
    assert [str(one.agent_port), str(two.agent_port)] == ports, "what is forwarded has a port of its own"
    assert [status.running for status in lab.provider.status()] == [True, True]


def test_what_leads_vagrant_elsewhere_is_left_out(
    lab: Lab, vagrant: FakeVagrant, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GROUNDFAULT_NODES", "GROUNDFAULT_LAB", "VAGRANT_DOTFILE_PATH", "VAGRANT_VAGRANTFILE"):
        monkeypatch.setenv(name, "5")
    lab.up(TWO)
    assert vagrant.read()["environment"] == {
        "VAGRANT_CWD": str(lab.provider.directory / "vagrant"),
        "VAGRANT_DEFAULT_PROVIDER": "libvirt",
        "VAGRANT_CHECKPOINT_DISABLE": "1",
    }


def test_down_and_up_again_go_back_to_the_snapshot(lab: Lab, vagrant: FakeVagrant) -> None:
    lab.up(TWO)
    lab.provider.down(SilentProgress())
    assert vagrant.calls()[-1] == "halt --force"
    lab.equipped.clear()
    lab.up()
    restored = [call for call in vagrant.calls() if call.startswith(("snapshot", "up"))]
    assert sorted(restored) == [f"snapshot restore --no-provision {name} golden" for name in ("w1", "w2")]
    assert lab.equipped == []


def test_up_of_a_lab_that_runs_boots_only_what_is_off(lab: Lab, vagrant: FakeVagrant) -> None:
    lab.up(TWO)
    vagrant.calls()
    lab.up()
    assert not [call for call in vagrant.calls() if call.startswith(("up", "snapshot"))]
    vagrant.move("w2", state="shutoff")
    lab.up()
    assert [call for call in vagrant.calls() if call.startswith(("up", "snapshot"))] == ["up --no-provision w2"]


def test_an_up_that_was_cut_goes_on(lab: Lab, vagrant: FakeVagrant) -> None:
    vagrant.change(errors={"up": "Waiting for domain to get an IP address..."})
    with pytest.raises(LabError) as caught:
        lab.up(TWO)
    assert "making the machines: vagrant ended with 1" in caught.value.message
    assert "Waiting for domain to get an IP address" in caught.value.hint
    vagrant.change(errors={})
    lab.up()
    assert lab.equipped == ["w1", "w2"]
    assert lab.record()["golden"]


def test_other_options_need_other_machines(lab: Lab) -> None:
    lab.up(TWO)
    with pytest.raises(LabError, match="has other options"):
        lab.up(LabOptions(nodes=2, memory_mib=2048))


def test_a_provider_without_snapshots(lab: Lab, vagrant: FakeVagrant) -> None:
    vagrant.change(errors={"snapshot": "This provider doesn't support snapshots."})
    lab.up(TWO)
    assert not lab.record()["golden"]
    with pytest.raises(LabError, match="has no snapshot to go back to"):
        lab.reset()
    vagrant.calls()
    lab.provider.down(SilentProgress())
    assert vagrant.calls() == ["halt"], "what cannot be restored is shut down in good order"


def test_reset_asks_again_where_the_machines_are(lab: Lab, vagrant: FakeVagrant, tmp_path: Path) -> None:
    lab.up(TWO)
    old = vagrant.servers["w1"]
    (tmp_path / "moved").mkdir()
    with SshServer(tmp_path / "moved", lambda argv, stdin: (0, b"w1\n", b"")) as moved:
        moved.host_key, moved.user_key = old.host_key, old.user_key
        moved.user_key.write_private_key_file(str(moved.key_file))
        vagrant.lead_to("w1", moved)
        lab.reset()
        assert lab.provider.nodes()[0].ssh_port == moved.port
    hosts = (lab.provider.directory / "known_hosts").read_text()
    assert f"[127.0.0.1]:{moved.port} " in hosts and f"]:{old.port} " not in hosts


def test_a_host_key_that_changed_is_refused(lab: Lab, vagrant: FakeVagrant, tmp_path: Path) -> None:
    lab.up(TWO)
    (tmp_path / "other").mkdir()
    with SshServer(tmp_path / "other", lambda argv, stdin: (0, b"w1\n", b"")) as other:
        other.user_key = vagrant.servers["w1"].user_key
        vagrant.move("w1", port=other.port)
        with pytest.raises(LabctlError) as caught:
            lab.reset()
    assert "has another SSH host key than the one recorded" in caught.value.message


def test_a_machine_that_was_made_anew_has_a_new_key(lab: Lab, vagrant: FakeVagrant, tmp_path: Path) -> None:
    lab.up(TWO)
    before = lab.record()["known"]
    vagrant.move("w1", state="not_created")
    (tmp_path / "new").mkdir()
    with SshServer(tmp_path / "new", lambda argv, stdin: (0, b"w1\n", b"")) as new:
        vagrant.lead_to("w1", new)
        lab.up()
    after = lab.record()["known"]
    assert after["w2"] == before["w2"]
    assert after["w1"]["machine"] != before["w1"]["machine"]
    assert after["w1"]["host_key"] == f"{new.host_key.get_name()} {new.host_key.get_base64()}"


def test_a_machine_of_another_name_is_not_our_node(lab: Lab, vagrant: FakeVagrant) -> None:
    vagrant.names["w2"] = "somebody"
    with pytest.raises(LabError, match="is not w2: it calls itself somebody"):
        lab.up(TWO)
    assert lab.equipped == []


def test_a_machine_without_an_address_is_waited_for_and_told(lab: Lab, vagrant: FakeVagrant) -> None:
    lab.up(TWO)
    vagrant.change(errors={"ssh-config w2": "not yet ready for SSH"})
    record = Record.model_validate(lab.record())
    times = iter(range(0, 10_000, 100))
    finder = Finder(
        Vagrant(lab.provider.directory / "vagrant", "libvirt"), lab.provider.directory, connected,
        lambda: float(next(times)), lambda seconds: None,
    )  # fmt: skip
    with pytest.raises(LabError, match="w2 has no address that Vagrant knows of, 180 s after") as caught:
        finder.find(record)
    assert "not yet ready for SSH" in caught.value.hint


def test_destroy_takes_machines_and_state(lab: Lab, vagrant: FakeVagrant) -> None:
    lab.up(TWO)
    lab.provider.destroy(SilentProgress())
    assert vagrant.calls()[-1] == "destroy --force"
    assert not lab.provider.directory.exists()
    assert lab.provider.nodes() == () and lab.provider.status() == ()


def test_status_says_what_vagrant_says_of_a_silent_machine(
    lab: Lab, vagrant: FakeVagrant, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.up(TWO)
    record, file = lab.record(), lab.provider.directory / "lab.json"
    (closed,) = choose(1)
    record["nodes"][1]["ssh_port"] = closed
    file.write_text(json.dumps(record))
    vagrant.move("w2", state="shutoff")
    assert [(one.running, one.detail) for one in lab.provider.status()] == [
        (True, "libvirt"), (False, "libvirt: shutoff"),
    ]  # fmt: skip
    monkeypatch.setenv("PATH", "/nonexistent")
    (_, two) = lab.provider.status()
    assert not two.running and "vagrant" in two.detail


def test_power(lab: Lab, vagrant: FakeVagrant) -> None:
    lab.up(TWO)
    switch = lab.provider.power("w2")
    with SilentProgress().task("") as task:
        assert switch.state() == "on"
        assert switch.off(False, task) and switch.state() == "off"
        assert switch.on(task) and switch.state() == "on"
        vagrant.calls()
        assert switch.off(True, task)
    assert "halt w2" in vagrant.calls()


def test_labels_outlive_a_reset(lab: Lab) -> None:
    lab.up(TWO)
    lab.provider.set_labels("w1", {"role": "db"})
    lab.reset()
    assert [dict(node.labels) for node in lab.provider.nodes()] == [{"role": "db"}, {}]


def test_the_lab_is_found_again(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = create_lab("vg", "vagrant")
    assert made.kind == "vagrant" and made.nodes() == () and made.status() == ()
    made.up(LabOptions(nodes=2, agent=False), lambda node: None, SilentProgress())
    assert [node.name for node in open_lab("vg").nodes()] == ["w1", "w2"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (LabOptions(kernel="lab"), "--kernel"),
        (LabOptions(packages=("gdb",)), "--package"),
        (LabOptions(workload="booking"), "--workload"),
        (LabOptions(internet=True), "--internet"),
        (LabOptions(kernel_arguments=("quiet",)), "--kernel-argument"),
    ],
)
def test_what_shapes_the_embedded_image_is_refused(lab: Lab, options: LabOptions, told: str) -> None:
    with pytest.raises(UsageError, match=f"{told}: provider vagrant takes its box as it is"):
        lab.up(options)
    assert not (lab.provider.directory / "lab.json").exists()


def test_nothing_is_made_where_vagrant_is_missing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(LabError, match="vagrant is not installed") as caught:
        lab.up(TWO)
    assert "apt-get install vagrant vagrant-libvirt" in caught.value.hint
    assert not (lab.provider.directory / "lab.json").exists()


def test_the_plugin_is_missing(vagrant: FakeVagrant, monkeypatch: pytest.MonkeyPatch) -> None:
    vagrant.change(plugins=[])
    with pytest.raises(UnsupportedError, match="neither the plugin vagrant-libvirt nor VirtualBox"):
        vagrant_tool.choose_backend()
    monkeypatch.setenv("VAGRANT_DEFAULT_PROVIDER", "libvirt")
    with pytest.raises(UnsupportedError, match="the plugin vagrant-libvirt is missing"):
        vagrant_tool.choose_backend()
    monkeypatch.setenv("VAGRANT_DEFAULT_PROVIDER", "virtualbox")
    with pytest.raises(UnsupportedError, match="VBoxManage is missing"):
        vagrant_tool.choose_backend()
    monkeypatch.setenv("VAGRANT_DEFAULT_PROVIDER", "docker")
    with pytest.raises(UsageError, match="'docker' is not supported"):
        vagrant_tool.choose_backend()


def test_virtualbox_where_it_is(vagrant: FakeVagrant, tmp_path: Path) -> None:
    vagrant.change(plugins=[])
    (tmp_path / "bin" / "VBoxManage").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "VBoxManage").chmod(0o755)
    assert vagrant_tool.choose_backend() == "virtualbox"


def test_what_vagrant_prints_of_a_way(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.touch()
    text = RECORDED.format(key=key)
    login = vagrant_tool.login_in(text, "w1")
    assert (login.address, login.port, login.user, login.key) == ("192.168.121.37", 22, "root", key)
    for changed, told in (
        (text.replace("192.168.121.37", "127.0.0.1"), "names the SSH server of this machine"),
        (text.replace("Host w1", "Host w7"), "knows nothing of w1"),
        (text + "  ProxyCommand ssh -W %h:%p far\n", "ProxyCommand"),
        (RECORDED.format(key=tmp_path / "gone"), "the key that Vagrant names is not there"),
    ):
        with pytest.raises(LabError, match=told):
            vagrant_tool.login_in(changed, "w1")


def test_a_box_by_name_or_file(tmp_path: Path) -> None:
    assert vagrant_tool.box_named("debian/trixie64") == ("debian/trixie64", "")
    file = tmp_path / "node.box"
    file.write_bytes(b"x" * 7)
    name, url = vagrant_tool.box_named(str(file))
    assert re.fullmatch(r"groundfault-node-7-\d+", name) and url == f"file://{file}"
    with pytest.raises(UsageError, match=r"GROUNDFAULT_BOX: /gone/a\.box: No such file"):
        vagrant_tool.box_named("/gone/a.box")


def test_the_vagrantfile_takes_every_setting_that_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROUNDFAULT_BOX", "debian/trixie64")
    monkeypatch.setenv("GROUNDFAULT_LIBVIRT_DRIVER", "qemu")
    written = set(vagrant_tool.settings("vg", LabOptions(), (1, 2, 3))) | {"BOX_URL", "HALT_S"}
    taken = set(re.findall(r'setting\.call\("(\w+)"', vagrantfile().decode()))
    assert taken == written
    monkeypatch.setenv("GROUNDFAULT_LIBVIRT_DRIVER", "xen")
    with pytest.raises(UsageError, match="GROUNDFAULT_LIBVIRT_DRIVER: 'xen'"):
        vagrant_tool.settings("vg", LabOptions(), ())


@pytest.mark.parametrize(
    ("opens", "found", "driver"),
    [
        (True, emulation("it hangs"), "qemu"),
        (True, Accelerator(name="kvm", cpu_model="host", reason="works"), ""),
        (True, None, ""),
        (False, emulation("no permission"), ""),
    ],
)
def test_libvirt_does_not_use_a_kvm_that_was_tried_in_vain(
    opens: bool, found: Accelerator | None, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GROUNDFAULT_LIBVIRT_DRIVER", raising=False)
    monkeypatch.setattr("os.access", lambda path, mode: opens)
    monkeypatch.setattr(vagrant_tool, "accelerator_here", lambda progress: found)
    assert vagrant_tool.driver_here(SilentProgress()) == driver
    assert vagrant_tool.settings("vg", LabOptions(), (), driver).get("LIBVIRT_DRIVER", "") == driver
    monkeypatch.setenv("GROUNDFAULT_LIBVIRT_DRIVER", "kvm")
    assert vagrant_tool.settings("vg", LabOptions(), (), driver)["LIBVIRT_DRIVER"] == "kvm", "the user's word"


DISK = {"name": "vdb", "type": "disk", "size": 512 << 20, "serial": None, "fstype": None, "pttype": None,
        "mountpoint": None, "ro": False}  # fmt: skip


@pytest.mark.parametrize(
    ("disks", "found"),
    [
        ([DISK], "/dev/vdb"),
        ([DISK, DISK | {"name": "vdc"}], ""),
        ([DISK, DISK | {"name": "vdc", "serial": "gfdata"}], "/dev/vdc"),
        ([DISK | {"pttype": "dos"}], ""),
        ([DISK | {"fstype": "ext4"}], ""),
        ([DISK | {"mountpoint": "/srv"}], ""),
        ([DISK | {"children": [{"name": "vdb1"}]}], ""),
        ([DISK | {"ro": True}], ""),
        ([DISK | {"type": "rom"}], ""),
        ([DISK | {"size": 1024}], ""),
        ([], ""),
    ],
)
def test_the_spare_disk_is_an_empty_one(disks: list[dict[str, Any]], found: str) -> None:
    assert spare_disk({"blockdevices": disks}) == found
