"""Pages about other people's machines: their inventories are inventories, their commands are commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import click
import pytest

from labctl.cli.main import build_cli
from labctl.lab.inventory import parse_inventory
from tests.terminal import blocks, desk, shown, typed
from tests.unit.sshd import SshServer

PAGES = ("real-hosts.md", "access.md", "ansible.md", "vagrant.md")


def commands() -> Iterator[str]:
    """Every labctl command line in the blocks, without its comment."""
    for page in PAGES:
        for _, text in blocks(page):
            for line in text.splitlines():
                found = re.match(r"\$ (?:[A-Z_]+=\S+ )?(labctl .*)", line)
                if found:
                    yield found[1].partition("  #")[0].strip()


def test_the_reference_inventory(tmp_path: Path) -> None:
    (text,) = (text for kind, text in blocks("real-hosts.md") if kind == "toml")
    (tmp_path / "config").write_text("Host rack-db2\n  HostName 192.0.2.2\n")
    text = text.replace("SHA256:…", "SHA256:" + 43 * "A").replace("~/.ssh/config", str(tmp_path / "config"))
    one, two = parse_inventory(text.replace(', "db"]', "]"), tmp_path / "hosts.toml")
    assert (one.name, one.jumps[0].address, one.labels) == ("db1", "bastion.example", {"rack": "b2"})
    assert (two.address, two.name) == ("192.0.2.2", "db2")


def test_the_first_inventory() -> None:
    text = next(text for _, text in blocks("real-hosts.md") if "$ cat hosts.toml" in text)
    nodes = parse_inventory(shown(text).files["hosts.toml"], Path("/hosts.toml"))
    assert [node.name for node in nodes] == ["db1", "db2", "db3"]
    assert {(node.ssh_user, node.sudo_password_env, node.transport) for node in nodes} == {
        ("ops", "OPS_SUDO", "grpc")
    }


@pytest.mark.parametrize("line", list(dict.fromkeys(commands())))
def test_a_command_of_the_page_is_one(line: str) -> None:
    """Each word leads to a command, and each option is one of its own."""
    command: click.Command = build_cli()
    words = [word for word in shlex.split(line)[1:] if word not in ("|", ">")]
    context = click.Context(command, info_name="labctl")
    rest = words
    while isinstance(command, click.Group):
        while rest and rest[0] == "--lab":
            rest = rest[2:]
        found = command.get_command(context, rest[0])
        assert found, f"{rest[0]} is no command"
        command, rest = found, rest[1:]
        context = click.Context(command, info_name=command.name, parent=context)
    known = {option for param in command.get_params(context) for option in param.opts}
    assert {word for word in rest if word.startswith("--")} <= known


def test_the_first_contact_is_asked_about_at_a_terminal(tmp_path: Path) -> None:
    """The first commands of the page, as they stand there, with SSH servers that have no agent."""
    page = shown(next(text for _, text in blocks("real-hosts.md") if "$ cat hosts.toml" in text))
    upto = next(number for number, line in enumerate(page.commands, 1) if line.startswith("labctl up"))
    (tmp_path / ".ssh").mkdir(mode=0o700)
    with ExitStack() as stack:
        servers = []
        for name in ("db1", "db2", "db3"):
            (tmp_path / name).mkdir()
            servers.append(stack.enter_context(SshServer(tmp_path / name, lambda argv, stdin: (1, b"", b""))))
            servers[-1].users, servers[-1].user_key = ["ops"], servers[0].user_key
        servers[0].user_key.write_private_key_file(str(tmp_path / ".ssh" / "id_ecdsa"))
        inventory = page.files["hosts.toml"]
        for number, server in enumerate(servers, 1):
            place = f'"db{number}.example"'
            assert place in inventory
            inventory = inventory.replace(place, f'"127.0.0.1"\nport = {server.port}')
        (tmp_path / "hosts.toml").write_text(inventory)
        answers = {"password of ops for sudo: ": "secret", "Is that the right key": "y"}
        env = desk(tmp_path, tmp_path / "cache")
        status, said = typed(page.commands[:upto], answers, env, tmp_path, 120.0)
        known = (tmp_path / ".ssh" / "known_hosts").read_text()
    assert said.count("the SSH host key is not known") == 3, said
    assert all(f"db{number} has no agent yet" in said for number in (1, 2, 3)), said
    assert status == 0 and "secret" not in said
    assert all(f"[127.0.0.1]:{server.port} {server.host_key.get_name()}" in known for server in servers)
