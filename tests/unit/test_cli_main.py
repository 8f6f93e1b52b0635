"""The frame of the command line: global options, errors, exit codes, discovery, completion."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable

import click
import pytest

from labctl import cli
from labctl.cli.base import LabCommand, LabGroup
from labctl.cli.main import build_cli, main
from labctl.cli.session import Session
from labctl.errors import LabError
from tests.unit.cli_world import ToyLab, World


def all_commands(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group, info_name=path[-1] if path else "labctl")
    found: list[tuple[tuple[str, ...], click.Command]] = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        found.append(((*path, name), command))
        if isinstance(command, click.Group):
            found += all_commands(command, (*path, name))
    return found


def test_every_command_has_the_global_options_and_a_help(toy_faults: None) -> None:
    commands = all_commands(build_cli())
    assert len(commands) > 20
    for path, command in commands:
        assert isinstance(command, LabCommand | LabGroup), path
        assert command.help, path
        assert len(command.get_short_help_str(80)) <= 66, path
        for param in command.params:
            assert isinstance(param, click.Argument) or param.help, (path, param.name)


def test_every_module_that_offers_commands_is_found() -> None:
    files = {info.name for info in pkgutil.iter_modules(cli.__path__)}
    root = build_cli()
    homes = {
        command.callback.__module__.rsplit(".", 1)[-1] for command in root.commands.values() if command.callback
    }
    assert homes <= files
    assert {"lab", "injection", "watch", "fault", "doctor", "node", "access", "completion"} <= homes


def test_version(world: World) -> None:
    done = world.run("--version")
    assert (done.code, done.out.split()[0]) == (0, "labctl")


@pytest.mark.parametrize("argv", [("--json", "status"), ("status", "--json")])
def test_json_stands_on_either_side(world: World, argv: tuple[str, ...]) -> None:
    done = world.run(*argv)
    assert done.code == 0
    assert [node["name"] for node in done.data["nodes"]] == ["w1", "w2", "w3"]
    assert done.err == ""


def test_the_lab_comes_from_the_line_or_the_environment(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.labs["other"] = ToyLab()
    assert world.run("status", "--lab", "other", "--json").data["lab"] == "other"
    monkeypatch.setenv("GROUNDFAULT_LAB", "other")
    assert world.run("status", "--json").data["lab"] == "other"
    assert world.run("--lab", "default", "status", "--json").data["lab"] == "default"
    assert world.run("status", "--lab", "default", "--json").data["lab"] == "default"


@pytest.mark.parametrize(
    ("argv", "message", "hint"),
    [
        (("injekt",), "there is no command called 'injekt'", "did you mean inject"),
        (("node", "fact", "w1"), "there is no command called 'fact'", "did you mean facts?"),
        (("inject", "toy_eror"), "there is no fault called 'toy_eror'", "did you mean toy_error"),
        (("faults", "show", "toy_err"), "there is no fault called 'toy_err'", "did you mean toy_error"),
        (("--lab", "defualt", "status"), "there is no lab called 'defualt'", "did you mean default?"),
        (("node", "facts", "w11"), "has no node 'w11'", "did you mean w1"),
        (("status", "--jsn"), "No such option '--jsn'", "see: labctl status --help"),
        (("extend", "abc"), "Missing option '--for'", "see: labctl extend --help"),
        (("--transport", "smoke", "status"), "'smoke' is not one of", "see: labctl --help"),
        (("recover",), "give injection ids, or --node, or --all", "labctl recover --help"),
    ],
)
def test_a_wrong_word_is_named_with_what_is_near(
    world: World, argv: tuple[str, ...], message: str, hint: str
) -> None:
    done = world.run(*argv)
    assert (done.code, done.out) == (64, "")
    first, second = done.err.splitlines()
    assert first.startswith("error: ")
    assert message in first
    assert second.startswith("hint: ")
    assert hint in second


def test_an_error_under_json_is_an_object_on_standard_output(world: World) -> None:
    for argv in (("node", "facts", "w9", "--json"), ("status", "--json", "--jsn")):
        done = world.run(*argv)
        assert done.code == 64
        assert done.data["exit_code"] == 64
        assert set(done.data) == {"error", "hint", "exit_code"}
        assert done.err == ""


def test_a_word_after_a_double_dash_asks_for_nothing(world: World) -> None:
    done = world.run("ssh", "w9", "--", "ls", "--json")
    assert (done.code, done.out) == (64, "")


def test_a_lab_that_broke_ends_with_70(world: World) -> None:
    world.down["w1"] = "off"
    done = world.run("node", "facts", "w1")
    assert done.code == 70
    assert done.err == "error: w1 at 127.0.0.1:7443: nothing listens there\nhint: is the node up?\n"


def test_commands_in_hints_go_to_the_lab_in_hand(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.labs["rack"] = ToyLab()
    world.run("stop")
    inject = ("inject", "toy_delay", "--node", "w1")
    assert "hint: labctl stop --clear" in world.run(*inject).err
    assert "hint: labctl --lab rack stop --clear" in world.run(*inject, "--lab", "rack").err
    monkeypatch.setenv("GROUNDFAULT_LAB", "rack")
    assert "hint: labctl stop --clear" in world.run(*inject).err
    assert "hint: labctl --lab default stop --clear" in world.run(*inject, "--lab", "default").err


def test_nothing_to_do_shows_the_help_and_is_a_usage_error(world: World) -> None:
    for argv in ((), ("inject",), ("node",)):
        done = world.run(*argv)
        assert (done.code, done.out) == (64, "")
        assert "Commands:" in done.err


def raising(error: BaseException) -> Callable[[str, str], None]:
    def trouble(node: str, method: str) -> None:
        raise error

    return trouble


def test_ctrl_c_is_quiet(world: World) -> None:
    world.trouble = raising(KeyboardInterrupt())
    done = world.run("node", "facts", "w1")
    assert (done.code, done.out, done.err.strip()) == (130, "", "")


def test_a_bug_is_not_hidden(world: World) -> None:
    world.trouble = raising(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        world.run("injections")


def test_without_a_lab_the_way_to_one_is_told(empty_world: World) -> None:
    done = empty_world.run("status")
    assert done.code == 64
    assert "make it with: labctl up" in done.err
    assert "labctl --lab rack up" in empty_world.run("--lab", "rack", "status").err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed(world: World, shell: str) -> None:
    done = world.run("completion", shell)
    assert done.code == 0
    assert "_LABCTL_COMPLETE" in done.out


def complete(world: World, monkeypatch: pytest.MonkeyPatch, line: str) -> list[str]:
    words = line.split(" ")
    monkeypatch.setenv("_LABCTL_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    with pytest.raises(SystemExit):
        main([], Session(world))
    return [row.split(",", 1)[1] for row in world.capsys.readouterr().out.split()]


def test_a_shell_completes_nodes_faults_ids_and_labs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.run("inject", "toy_delay", "--node", "w2", "--id", "abcd2345")
    world.labs["demo"] = ToyLab()
    assert complete(world, monkeypatch, "labctl inject toy_e") == ["toy_error"]
    assert complete(world, monkeypatch, "labctl inject toy_error --node w") == ["w1", "w2", "w3"]
    assert complete(world, monkeypatch, "labctl recover ") == ["abcd2345"]
    assert complete(world, monkeypatch, "labctl watch ab") == ["abcd2345"]
    assert complete(world, monkeypatch, "labctl --lab d") == ["default", "demo"]
    assert complete(world, monkeypatch, "labctl --lab nowhere ssh ") == []
    assert complete(world, monkeypatch, "labctl faults show toy_d") == ["toy_delay"]


def test_completion_is_silent_where_agents_are(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.trouble = raising(LabError("w1 is gone"))
    assert complete(world, monkeypatch, "labctl recover ") == []
