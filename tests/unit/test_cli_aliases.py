"""Other names of faults, and the short words for a schedule, on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from click.shell_completion import ShellComplete

from labctl.cli.completion import PROGRAM, VARIABLE
from labctl.cli.main import build_cli
from labctl.cli.schedules import accepted_forms
from labctl.cli.session import Session
from node_agent import aliases
from node_agent.aliases import Alias
from tests.unit.cli_world import World
from tests.unit.toys import ToyDelay, ToyLoss

TOYS: Mapping[str, Alias] = {
    "toy_reads": Alias("toy_error", "toys cannot be read", {"file": "/a", "mode": "write"}, "other toys can"),
    "toy_drops": Alias("toy_loss", "toys get lost", {"schedule": "every:3"}),
    "toy_loss": Alias("toy_loss", "toys get lost"),
    "toy_later": Alias("toy_drift", "toys drift"),
}


@pytest.fixture
def world(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(aliases, "ALIASES", TOYS)
    return world


def planted(world: World, *argv: str) -> dict[str, Any]:
    done = world.run("inject", *argv, "--node", "w1", "--seed", "1", "--json")
    assert done.code == 0, done.out
    (one,) = done.data["injections"]
    return {"fault": one["fault"], **one["parameters"]}


def test_an_alias_plants_its_fault_and_what_the_user_says_goes_first(world: World) -> None:
    given = planted(world, "toy_reads")
    assert (given["fault"], given["file"], given["mode"]) == ("toy_error", "/a", "write")
    assert planted(world, "toy-reads", "--mode", "read", "--file", "/b")["mode"] == "read"
    assert planted(world, "toy_drops")["schedule"] == "every:3"
    assert planted(world, "toy_drops", "--first", "2")["schedule"] == "first:2"


def test_an_alias_s_options_are_those_of_the_fault_with_its_presets(world: World) -> None:
    page = world.run("inject", "toy_reads", "--help").out
    for words in ("toys cannot be read", "The same as: toy_error --file /a --mode write", "other toys can",
                  "--permanent", "default: /a", "labctl inject toy_reads --node NODE"):  # fmt: skip
        assert words in " ".join(page.split())
    refused = world.run("inject", "toy_reads", "--sectors", "65", "--node", "w1")
    assert (refused.code, "'--sectors': 65" in refused.err) == (64, True)


def test_what_is_pending_ends_with_3(world: World) -> None:
    for argv in (("inject", "toy_later", "--node", "w1"), ("inject", "toy-later", "--help"),
                 ("faults", "show", "toy_later")):  # fmt: skip
        done = world.run(*argv)
        assert (done.code, done.out) == (3, "")
        assert "toy_later is pending: toy_drift is not built yet (toys drift)" in done.err
    assert world.run("faults", "show", "toy_later", "--json").data["exit_code"] == 3


def test_the_list_has_other_names_apart_from_those_that_wait(world: World) -> None:
    for argv in (("faults",), ("faults", "list")):
        tables = [[line.split() for line in part.splitlines()] for part in world.run(*argv).out.split("\n\n")]
        assert [table[0][0] for table in tables] == ["FAULT", "OTHER", "NOT"]
        assert tables[1][1:] == [["toy_error", "toy_reads"], ["toy_loss", "toy_drops"]]
        assert tables[2][1:] == [["toy_drift", "toy_later"]]
    listed = {one["name"]: one for one in world.run("faults", "--json").data["aliases"]}
    assert set(listed) == {"toy_reads", "toy_drops", "toy_later"}, "a fault's own name is no alias"
    assert listed["toy_later"]["pending"] and not listed["toy_reads"]["pending"]
    assert listed["toy_reads"]["parameters"] == {"file": "/a", "mode": "write"}


def test_show_says_what_a_name_stands_for(world: World) -> None:
    page = world.run("faults", "show", "toy_reads").out
    assert page.startswith("toy_reads: toys cannot be read; stands for toy_error\n")
    assert "the same as  labctl inject toy_error --node NODE --file /a --mode write" in page
    assert "--file  (string; default: /a)" in page
    data = world.run("faults", "show", "toy-reads", "--json").data
    assert (data["name"], data["alias"]["name"], data["alias"]["limits"]) == (
        "toy_error", "toy_reads", "other toys can",
    )  # fmt: skip
    assert data["schema"]["properties"]["file"]["default"] == "/a"
    assert "file" not in data["schema"].get("required", [])
    assert not world.run("faults", "show", "toy_loss").out.startswith("toy_loss: toys get lost; stands")


def test_a_misspelt_alias_is_answered_with_the_nearest(world: World) -> None:
    for argv in (("inject", "toy_read"), ("faults", "show", "toy_read")):
        done = world.run(*argv)
        assert done.code == 64 and "toy_reads" in done.err


def test_a_shell_completes_aliases_whose_fault_is_built(world: World) -> None:
    def words(line: list[str], incomplete: str) -> set[str]:
        complete = ShellComplete(build_cli(), {"obj": Session(world)}, PROGRAM, VARIABLE)
        return {item.value for item in complete.get_completions(line, incomplete)}

    assert words(["inject"], "toy_") == {
        "toy_error",
        "toy_delay",
        "toy_loss",
        "toy_stall",
        "toy_partition",
        "toy_reads",
        "toy_drops",
    }
    assert words(["faults", "show"], "toy_r") == {"toy_reads"}
    assert "--mode" in words(["inject", "toy_reads"], "--m")
    assert words(["inject", "toy_later"], "--m") == set()


def test_help_of_inject_tells_of_the_other_names(world: World) -> None:
    page = world.run("inject", "--help").out
    assert "labctl faults list" in page and "toy_reads" not in page


@pytest.mark.parametrize(
    ("words", "schedule"),
    [
        ((), "always"),
        (("--ratio", "1/3"), "ratio:1/3"),
        (("--probability", "0.25"), "probability:0.25"),
        (("--every", "4"), "every:4"),
        (("--after", "10"), "after:10"),
        (("--first", "3"), "first:3"),
        (("--schedule", "first:3"), "first:3"),
    ],
)
def test_a_schedule_in_short(world: World, words: tuple[str, ...], schedule: str) -> None:
    assert planted(world, "toy_loss", *words)["schedule"] == schedule


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--ratio", "1/3", "--every", "2"), "--ratio and --every exclude each other"),
        (("--schedule", "always", "--first", "2"), "--schedule and --first exclude each other"),
        (("--ratio", "4/3"), "'--ratio': '4/3'; allowed: A/B, exactly A of every B"),
        (("--ratio", "1"), "'--ratio': '1'; allowed"),
        (("--every", "0"), "'--every': '0'; allowed: K, each K-th"),
        (("--every", "2/3"), "'--every': '2/3'; allowed"),
        (("--probability", "1.5"), "'--probability': '1.5'; allowed: P with 0 < P <= 1"),
        (("--first", "many"), "'--first': 'many'; allowed"),
        (("--first", "1001"), "--first: at most 1000"),
        (("--burst", "1/1"), "No such option '--burst'"),
    ],
)
def test_a_bad_schedule_is_a_usage_error(world: World, words: tuple[str, ...], message: str) -> None:
    done = world.run("inject", "toy_loss", *words, "--node", "w1")
    assert done.code == 64
    assert message in done.err
    assert not world.injectors or not world.injector("w1").known


def test_help_lists_the_forms_that_the_fault_takes(world: World) -> None:
    page = " ".join(world.run("inject", "toy_loss", "--help").out.split())
    assert "--ratio A/B Bite exactly A of every B times; short for --schedule ratio:A/B" in page
    assert "--burst" not in page
    assert "or in short: --ratio A/B --probability P --every K --after N --first N" in world.run(
        "faults", "show", "toy_loss"
    ).out  # fmt: skip
    assert "--ratio" not in world.run("inject", "toy_delay", "--help").out


def test_a_field_of_that_name_is_the_fault_s(toy_faults: None) -> None:
    class Counting(ToyLoss):
        first: int = 3

    assert accepted_forms(Counting) == ("ratio", "probability", "every", "after")
    assert accepted_forms(ToyDelay) == ()


def test_an_example_is_what_one_types(world: World) -> None:
    for name in ("toy_error", "toy_reads"):
        text = world.run("inject", name, "--help").out
        examples = [line for line in text.splitlines() if "labctl inject" in line and "--node NODE" in line]
        assert examples and all(line.split()[:2] == ["labctl", "inject"] for line in examples)
        assert not any(line.count("labctl") > 1 for line in examples)
