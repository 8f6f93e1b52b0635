"""The lab's own commands: up, reset, down, status, labs, ssh, logs, power."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from labctl.cli.access import console_text, log_command
from labctl.errors import LabError
from labctl.lab.model import LabOptions, NodeStatus
from labctl.report.status import NodeReport, clock_text
from tests.unit.cli_world import ToyLab, World


def raising(error: Exception) -> Callable[[], tuple[NodeStatus, ...]]:
    def status() -> tuple[NodeStatus, ...]:
        raise error

    return status


def test_up_makes_a_lab_and_shows_its_nodes(empty_world: World) -> None:
    done = empty_world.run(
        "up", "--nodes", "2", "--memory", "1024", "--filesystem", "xfs", "--bare", "--kernel", "lab"
    )
    assert done.code == 0
    assert [line.split()[0] for line in done.out.splitlines()] == ["NODE", "w1", "w2"]
    assert empty_world.lab.made == LabOptions(
        nodes=2, memory_mib=1024, data_filesystem="xfs", agent=False, kernel="lab"
    )


def test_up_of_a_lab_that_is_there_keeps_its_options(world: World) -> None:
    world.run("up")
    assert world.lab.calls == ["up None"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--nodes", "33"), "--nodes: input should be less than or equal to 32 (got 33)"),
        (("--nodes", "x"), "'--nodes': 'x' is not a valid integer"),
        (("--memory", "12"), "--memory: input should be greater than or equal to 384 (got 12)"),
        (("--data-size", "1"), "--data-size: input should be greater than or equal to 64"),
        (("--kernel", "7.0"), "'--kernel': '7.0' is not one of 'debian13', 'debian12', 'lab'"),
        (("--workload", "nothing"), "--workload: no workload 'nothing'; there are: booking"),
        (("--workload", "booking", "--nodes", "2"), "--nodes: workload booking needs w3"),
        (("--provider", "aws"), "'--provider': 'aws' is not one of 'qemu', 'ssh', 'vagrant'"),
        (("--provider", "ssh"), "--inventory: a lab of provider ssh needs one"),
        (("--provider", "qemu", "--inventory", "x.toml"), "--inventory is for provider ssh"),
        (("--provider", "ssh", "--nodes", "2"), "provider ssh takes its nodes as they are"),
        (("--inventory", "absent.toml"), "the inventory absent.toml cannot be read"),
        (("--lab", "Not_A_Name"), "'Not_A_Name' is no lab name"),
    ],
)
def test_bad_input_makes_no_lab(empty_world: World, argv: tuple[str, ...], message: str) -> None:
    done = empty_world.run("up", *argv)
    assert done.code == 64
    assert message in done.err
    assert empty_world.labs == {}


def test_a_lab_keeps_its_provider(world: World) -> None:
    done = world.run("up", "--provider", "ssh")
    assert done.code == 64
    assert "lab 'default' has provider qemu" in done.err


def test_reset_down_and_destroy(world: World) -> None:
    assert world.run("reset").code == 0
    assert world.run("down").out == "lab default is down\n"
    assert world.run("down", "--destroy").out == "lab default is destroyed\n"
    assert world.lab.calls == ["reset", "down", "destroy"]


def test_status_tells_nodes_that_are_off_and_silent_apart(world: World) -> None:
    world.run("inject", "toy_delay", "--node", "w1")
    world.lab.off.add("w2")
    world.down["w3"] = "off"
    done = world.run("status")
    rows = {line.split()[0]: line for line in done.out.splitlines()}
    assert done.code == 70
    assert "1 live" in rows["w1"]
    assert "in step" in rows["w1"]
    assert "off" in rows["w2"]
    assert "silent" in rows["w3"]
    assert "nothing listens there" in rows["w3"]


def test_status_says_where_the_service_of_a_workload_is(world: World) -> None:
    world.lab.web["w1"] = "http://127.0.0.1:4711"
    rows = world.run("status").out.splitlines()
    assert [row.endswith("http://127.0.0.1:4711") for row in rows] == [False, True, *[False] * (len(rows) - 2)]
    assert world.run("status", "--json").data["nodes"][0]["web"] == "http://127.0.0.1:4711"


def test_a_lab_that_is_down_is_not_broken(world: World) -> None:
    world.run("down")
    assert world.run("status").code == 0


def test_clocks_are_told_as_exactly_as_they_are_known() -> None:
    def told(offset: float | None, doubt: float = 0.0) -> str:
        return clock_text(NodeReport("w1", "", True, clock_offset_s=offset, clock_uncertainty_s=doubt))

    assert told(None) == "-"
    assert told(0.05) == "in step"
    assert told(0.3, doubt=0.3) == "in step"
    assert told(-2.34) == "2.3s behind"
    assert told(86400.0) == "24h ahead"


def test_labs_are_listed(world: World) -> None:
    world.labs["other"] = ToyLab()
    assert [row["lab"] for row in world.run("labs", "--json").data["labs"]] == ["default", "other"]
    world.labs["bad"] = ToyLab()
    world.labs["bad"].status = raising(LabError("lab.json is damaged"))  # type: ignore[method-assign]
    damaged = world.run("labs")
    assert damaged.code == 0
    assert "lab.json is damaged" in damaged.out
    world.labs.clear()
    assert world.run("labs").out == "no labs yet; make one with: labctl up\n"


@pytest.mark.parametrize(
    "argv",
    [("w1", "--", "cat", "--json", "a b"), ("w1", "cat", "--json", "a b"), ("--", "w1", "cat", "--json", "a b")],
)
def test_ssh_becomes_openssh_and_passes_words_and_status_on(world: World, argv: tuple[str, ...]) -> None:
    assert world.run("ssh", *argv).code == 7
    assert world.executed[0][0] == "ssh"
    assert world.executed[0][-1] == "cat --json 'a b'"


def test_ssh_without_a_command_is_a_login(world: World) -> None:
    world.run("ssh", "w2")
    assert world.executed[0][-2:] == ["--", "127.0.0.1"]


def test_the_console_is_shown_without_what_paints(world: World, tmp_path: Path) -> None:
    file = tmp_path / "console"
    file.write_bytes(b"\x1b[!p\x1b]104\x1b\\one\r\n\x1b[0;32mtwo\x1b[0m\r\n\x1bcthree\xff\r\n")
    assert console_text(file) == "one\ntwo\nthree�\n"
    assert console_text(tmp_path / "absent") == ""
    world.lab.console_file = file
    assert world.run("logs", "w1", "--console", "--lines", "2").out == "two\nthree�\n"
    world.lab.console_file = None
    assert world.run("logs", "w1", "--console").code == 3


def test_logs_are_followed(world: World, tmp_path: Path) -> None:
    world.lab.console_file = tmp_path / "console"
    for source in ("agent", "kernel", "console"):
        assert world.run("logs", "w1", f"--{source}", "-f", "--lines", "5").code == 7
    agent, kernel, console = world.executed
    assert agent[-1].startswith("journalctl --unit groundfault-agent.service --namespace=+groundfault --lines 5")
    assert agent[-1].endswith("--follow")
    assert kernel[-1] == "dmesg --time-format iso --follow"
    assert console == ["tail", "--follow=name", "--lines", "5", "--", str(tmp_path / "console")]


def test_logs_are_asked_for_without_a_shell() -> None:
    assert log_command("agent", 5)[:3] == ("journalctl", "--unit", "groundfault-agent.service")
    assert log_command("kernel", 5)[0] == "dmesg"


def test_power(world: World) -> None:
    assert world.run("power", "w1", "off").out == "w1 is off\n"
    assert world.run("power", "w1", "cycle").out == "w1 is on\n"
    assert world.lab.calls == ["off w1", "off w1", "on w1"]
    assert world.run("power", "w1", "sideways").code == 64
