"""The inventory, and the provider of hosts that somebody owns."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from labctl.errors import LabError, UnsupportedError, UsageError
from labctl.lab.inventory import parse_inventory
from labctl.lab.model import Login, Node, Provider
from labctl.lab.openssh import ssh_argv
from labctl.lab.remote import Output, Remote, Running
from labctl.lab.ssh import SshLab
from labctl.pki import LabAuthority
from labctl.progress import SilentProgress
from tests.unit.cli_world import World

HOSTS = Path("/inv/hosts.toml")
FULL = """
[nodes.db1]
address = "db1.example"
port = 2222
user = "ops"
key = "keys/id"
known_hosts = "/etc/hosts.known"
agent_port = 7000
lab_address = ["10.0.0.1", "fd00::1"]
labels = { rack = "b2" }
[nodes.db2]
address = "192.0.2.9"
lab_address = "10.0.0.2"
"""


def test_an_inventory_is_read() -> None:
    one, two = parse_inventory(FULL, HOSTS)
    assert one == Node(
        name="db1", address="db1.example", ssh_port=2222, ssh_user="ops", ssh_key=Path("/inv/keys/id"),
        known_hosts=Path("/etc/hosts.known"), agent_port=7000, labels={"rack": "b2"},
        lab_addresses=("10.0.0.1", "fd00::1"),
    )  # fmt: skip
    assert two == Node(name="db2", address="192.0.2.9", lab_addresses=("10.0.0.2",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "nodes: field required"),
        ("[nodes]", "nodes: "),
        ("nodes = [", "not TOML"),
        ("[nodes.a]", "nodes.a.address: field required"),
        ('[nodes.a]\naddress = "h"\nprot = 22', "nodes.a.prot: there is no such key"),
        ('[hosts.a]\naddress = "h"', "nodes: field required"),
        ('[nodes.a]\naddress = "h"\n[other]', "other: there is no such key"),
        ('[nodes.a]\naddress = "h"\nport = 0', "nodes.a.port: input should be greater than or equal to 1 (got 0)"),
        ('[nodes.a]\naddress = "h"\nport = "22x"', "nodes.a.port: input should be a valid integer"),
        ('[nodes.a]\naddress = "-oProxyCommand=x"', "nodes.a.address: should be a host name or an address"),
        ('[nodes.a]\naddress = "root@h"', "nodes.a.address: should be"),
        ('[nodes.a]\naddress = "h"\nuser = "-x"', "nodes.a.user: string should match"),
        ('[nodes.a]\naddress = "h"\nlab_address = "h"', "nodes.a.lab_address: 'h' does not appear to be"),
        ('[nodes.a]\naddress = "h"\nlabels = { role = "a/b" }', "nodes.a.labels.role: string should match"),
        ('[nodes.a]\naddress = "h"\nlabels = { "a b" = "c" }', "nodes.a.labels.a b"),
        ('[nodes.A_1]\naddress = "h"', "'A_1' is no node name"),
        ('[nodes.a]\naddress = "h"\n[nodes.b]\naddress = "h"', "nodes.b.address: h port 22 is node a already"),
    ],
)
def test_a_wrong_inventory_names_the_field(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_inventory(text, HOSTS)
    assert str(HOSTS) in caught.value.message
    assert message in caught.value.message


WHOLE = """
ssh_config = "ssh.conf"
[groups.rack]
user = "ops"
jump = "bastion"
sudo_password_env = "OPS_SUDO"
labels = { rack = "b2", role = "none" }
[groups.db]
user = "postgres"
agent_port = 7001
labels = { role = "db" }
[jumps.bastion]
address = "bastion.example"
user = "jumper"
key = "keys/jump"
jump = "door"
[jumps.door]
address = "door.example"
port = 222
fingerprint = "SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
[nodes.db1]
address = "10.0.0.1"
groups = ["db", "rack"]
labels = { quorum = "pg" }
[nodes.db2]
address = "10.0.0.2"
groups = ["rack"]
user = "root"
jump = []
fingerprint = ["SHA256:BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB"]
[nodes.db3]
address = "10.0.0.3"
jump = "db2"
transport = "grpc"
sudo_password_file = "secret"
"""


def test_groups_and_jump_hosts() -> None:
    one, two, three = parse_inventory(WHOLE, HOSTS)
    door = Login(address="door.example", port=222, fingerprints=("SHA256:" + 43 * "A",))
    bastion = Login(address="bastion.example", user="jumper", key=Path("/inv/keys/jump"))
    assert one.jumps == (door, bastion)
    assert (one.ssh_user, one.agent_port, one.transport) == ("postgres", 7001, "ssh")
    assert one.labels == {"rack": "b2", "role": "db", "quorum": "pg"}
    assert one.sudo_password_env == "OPS_SUDO"
    assert (two.ssh_user, two.jumps, two.transport) == ("root", (), "grpc")
    assert two.fingerprints == ("SHA256:" + 43 * "B",)
    assert three.jumps == (two.login,)
    assert (three.transport, three.sudo_password_file) == ("grpc", Path("/inv/secret"))


SSH_CONFIG = """
Host *
  ServerAliveInterval 30
Host rack-*
  User ops
  ProxyJump jumper@bastion:2201
Host rack-db1
  HostName 10.1.0.1
  Port 2222
  IdentityFile {key}
  UserKnownHostsFile {known}
Host bastion
  HostName bastion.example
  User nobody
Host by-program
  HostName 10.1.0.2
  ProxyCommand nc %h %p
Host round
  HostName 10.1.0.3
  ProxyJump round
"""


@pytest.fixture
def ssh_config(tmp_path: Path) -> Path:
    (tmp_path / "key").touch()
    file = tmp_path / "ssh.conf"
    file.write_text(SSH_CONFIG.format(key=tmp_path / "key", known=tmp_path / "known"))
    return tmp_path


def aliased(ssh_config: Path, table: str) -> Node:
    text = f'ssh_config = "ssh.conf"\n[nodes.a]\n{table}'
    return parse_inventory(text, ssh_config / "hosts.toml")[0]


def test_names_of_the_ssh_configuration(ssh_config: Path) -> None:
    node = aliased(ssh_config, 'ssh_alias = "rack-db1"')
    assert (node.address, node.ssh_port, node.ssh_user) == ("10.1.0.1", 2222, "ops")
    assert (node.ssh_key, node.known_hosts) == (ssh_config / "key", ssh_config / "known")
    assert node.jumps == (Login(address="bastion.example", port=2201, user="jumper"),)
    assert node.transport == "ssh"
    changed = aliased(ssh_config, f'ssh_alias = "rack-db1"\nuser = "root"\nfingerprint = "SHA256:{43 * "C"}"')
    assert (changed.ssh_user, changed.fingerprints) == ("root", (f"SHA256:{43 * 'C'}",))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('ssh_alias = "absent"', "has no host 'absent'"),
        ('ssh_alias = "by-program"', "is reached by ProxyCommand"),
        ('ssh_alias = "round"', "the jump hosts of round never end"),
        ('ssh_alias = "rack-db1"\njump = "b"', "leave out jump and port"),
        ('ssh_alias = "rack-db1"\naddress = "h"', "address and ssh_alias exclude each other"),
        ('ssh_alias = "rack-*"', "nodes.a.ssh_alias: string should match"),
        ("port = 3", "nodes.a.address: field required"),
    ],
)
def test_a_wrong_name_of_the_ssh_configuration(ssh_config: Path, table: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        aliased(ssh_config, table)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[nodes.a]\naddress = "h"\ngroups = ["x"]', "there is no group 'x'"),
        ('[nodes.a]\naddress = "h"\njump = "x"', "nodes.a.jump: there is no jump host 'x'"),
        ('[nodes.a]\naddress = "h"\njump = "a"', "go round in a ring: nodes.a -> nodes.a"),
        ('[nodes.a]\naddress = "h"\nfingerprint = "aa:bb"', "nodes.a.fingerprint.0: string should match"),
        ('[nodes.a]\naddress = "h"\n[groups.g]\naddress = "x"', "groups.g.address: there is no such key"),
        ('[nodes.a]\naddress = "h"\ntransport = "telnet"', "nodes.a.transport: input should be 'grpc' or 'ssh'"),
        ('ssh_config = "absent"\n[nodes.a]\nssh_alias = "h"', "/inv/absent cannot be read"),
    ],
)
def test_a_wrong_group_or_jump_names_the_field(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_inventory(text, HOSTS)
    assert message in caught.value.message


def test_a_password_in_the_inventory_is_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError, match="a password does not belong in the inventory") as caught:
        parse_inventory('[nodes.a]\naddress = "h"\nsudo_password = "hunter2"', HOSTS)
    assert "hunter2" not in caught.value.message + caught.value.hint


def test_ssh_goes_the_same_way() -> None:
    door = Login(address="door.example", port=222, key=Path("/k/my key"), known_hosts=Path("/k/kh"))
    node = Node(name="a", address="10.0.0.1", jumps=(door, Login(address="bastion", user="ops")))
    argv = ssh_argv(node, ("true",))
    way = next(word for word in argv if word.startswith("ProxyCommand="))
    assert way.startswith("ProxyCommand=ssh -p 22 -l ops ") and "-W %h:%p -- bastion" in way
    assert "ProxyCommand=ssh -p 222" in way and "-W %%h:%%p -- door.example" in way
    inner = shlex.split(way.partition("=")[2].replace("%%", "%"))
    nested = next(word for word in inner if word.startswith("ProxyCommand="))
    assert shlex.split(nested.partition("=")[2])[:7] == ["ssh", "-p", "222", "-l", "root", "-o",
                                                         "ConnectTimeout=20"]  # fmt: skip
    assert "/k/my key" in shlex.split(nested.partition("=")[2])


class ScriptedHost:
    """Answers whether the agent's unit is there, and whom it obeys."""

    authority = ""

    def __init__(self, node: Node, has_agent: bool) -> None:
        self.node, self._has_agent = node, has_agent

    def run(self, argv: Sequence[str], *, stdin: IO[bytes] | None = None, timeout_s: float = 1.0) -> Output:
        if argv[0] == "id":
            return Output(0, "0", "")
        if argv[0] == "cat":
            return Output(0 if self.authority else 1, self.authority, "")
        return Output(0 if self._has_agent else 1, "", "")

    def start(self, argv: Sequence[str], first: bytes = b"") -> Running:
        raise NotImplementedError


def lab_of(directory: Path, hosts: dict[str, bool | None]) -> SshLab:
    """Hosts by name: with the agent, without, or (None) out of reach."""

    @contextmanager
    def login(node: Node) -> Iterator[Remote]:
        answer = hosts[node.name]
        if answer is None:
            raise LabError(f"{node.name} cannot be reached", "is it up?")
        yield ScriptedHost(node, answer)

    lab = SshLab(directory, login)
    lab.set_hosts([Node(name=name, address=f"{name}.example") for name in hosts])
    return lab


class Notes(SilentProgress):
    """Keeps what was said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, message: str) -> None:
        self.said.append(message)


def test_hosts_and_certificates_outlive_the_command(tmp_path: Path) -> None:
    lab_of(tmp_path / "rack", {"a": True, "b": False})
    again: Provider = SshLab(tmp_path / "rack")
    assert [node.name for node in again.nodes()] == ["a", "b"]
    assert LabAuthority.load(tmp_path / "rack" / "pki").lab == "rack"


def test_new_hosts_keep_the_certificates(tmp_path: Path) -> None:
    lab = lab_of(tmp_path / "rack", {"a": True})
    before = LabAuthority.load(tmp_path / "rack" / "pki").lab_id
    lab.set_hosts([Node(name="c", address="c.example")])
    assert [node.name for node in lab.nodes()] == ["c"]
    assert LabAuthority.load(tmp_path / "rack" / "pki").lab_id == before


def test_up_waits_for_agents_and_says_where_there_is_none(tmp_path: Path) -> None:
    waited: list[str] = []
    notes = Notes()
    lab_of(tmp_path / "rack", {"a": True, "b": False}).up(None, lambda node: waited.append(node.name), notes)
    assert waited == ["a"]
    assert notes.said == ["b has no agent yet: labctl --lab rack node install b"]


def test_up_names_every_host_out_of_reach(tmp_path: Path) -> None:
    lab = lab_of(tmp_path / "rack", {"a": None, "b": True, "c": None})
    with pytest.raises(LabError, match="a cannot be reached; c cannot be reached"):
        lab.up(None, lambda node: None, Notes())


def test_real_hosts_are_not_reset_and_not_stopped(tmp_path: Path) -> None:
    lab = lab_of(tmp_path / "rack", {"a": True})
    with pytest.raises(UnsupportedError, match="no snapshot") as caught:
        lab.reset(lambda node: None, Notes())
    assert "recover --all" in caught.value.hint
    assert lab.console("a") is None
    lab.down(Notes())
    assert len(lab.nodes()) == 1


def test_a_lab_is_not_destroyed_under_its_agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = lab_of(tmp_path / "rack", {"a": True, "b": None})
    with pytest.raises(LabError, match="a would be left with an agent") as caught:
        lab.destroy(Notes())
    assert caught.value.hint == "labctl node remove a"
    monkeypatch.setattr(
        ScriptedHost, "authority", LabAuthority.load(tmp_path / "rack" / "pki").ca_file.read_text()
    )
    with pytest.raises(LabError, match="a would be left with an agent"):
        lab.destroy(Notes())
    notes = Notes()
    lab_of(tmp_path / "rack", {"a": False, "b": None}).destroy(notes)
    assert not (tmp_path / "rack").exists()
    assert notes.said == ["b could not be asked whether it has an agent: b cannot be reached"]


def test_a_lab_whose_hosts_another_lab_has_taken_over_can_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = lab_of(tmp_path / "rack", {"a": True})
    other = LabAuthority.create(tmp_path / "other", "rack")
    monkeypatch.setattr(ScriptedHost, "authority", other.ca_file.read_text())
    lab.destroy(Notes())
    assert not (tmp_path / "rack").exists()


def test_up_takes_an_inventory_and_says_which_hosts_cannot_be_used(world: World, tmp_path: Path) -> None:
    file = tmp_path / "hosts.toml"
    file.write_text('[nodes.db1]\naddress = "127.0.0.1"\nport = 1\nknown_hosts = "absent"\n')
    done = world.run("--lab", "rack", "up", "--provider", "ssh", "--inventory", str(file))
    assert done.code == 70
    assert "db1" in done.err
    assert [node.name for node in world.labs["rack"].nodes()] == ["db1"]
    assert world.run("--lab", "rack", "reset").code == 3
    assert world.run("--lab", "rack", "logs", "db1", "--console").code == 3
    assert world.run("--lab", "rack", "power", "db1", "off").code == 3
    refused = world.run("--lab", "rack", "node", "label", "db1", "role=db")
    assert refused.code == 3 and "in [nodes.db1]" in refused.err
    assert world.run("--lab", "rack", "limits", "--json").data["limits"]["quorum"] == "lab"
