"""`labctl inject`: on all nodes or on none, whatever goes wrong."""

from __future__ import annotations

from typing import Any

import pytest

from node_agent.fault import Missing
from tests.unit.cli_world import World

TOY = ("inject", "toy_error", "--file", "/srv/data/a")


def on(*nodes: str) -> tuple[str, ...]:
    return tuple(word for node in nodes for word in ("--node", node))


def live(world: World) -> dict[str, list[str]]:
    found = {name: [one.id for one in i.injections()] for name, i in world.injectors.items()}
    return {name: ids for name, ids in found.items() if ids}


def test_it_says_what_happened_and_how_to_go_on(world: World) -> None:
    world.injector("w2").hits = 3
    done = world.run(*TOY, *on("w2"), "--for", "10m", "--id", "abcd2345", "--seed", "7")
    assert done.code == 0
    for words in (
        "toy_error is active on w2, injection abcd2345",
        "target         /srv/data/a on w2",
        "backend        toy",
        "lease          10m, ends at",
        "heals by itself",
        "hits           3 so far: it bites",
        "operator sees  I/O error, dev toy",
        "covers         read",
        "not covered    mmap",
        "warning        it is a toy",
        "I/O error [sda]",
        "labctl watch abcd2345",
        "labctl recover abcd2345",
        "seed=7",
    ):
        assert words in done.out
    assert live(world) == {"w2": ["abcd2345"]}


def test_without_hits_it_says_that_it_waits(world: World) -> None:
    assert "0 so far: armed, it bites when its target is used" in world.run(*TOY, *on("w1")).out


def test_the_words_to_go_on_name_another_lab(world: World) -> None:
    world.labs["rack"] = world.labs["default"]
    assert "labctl --lab rack watch" in world.run("--lab", "rack", *TOY, *on("w1")).out


def test_several_nodes_share_an_id_and_a_seed(world: World) -> None:
    done = world.run(*TOY, *on("w3", "w1", "w3"), "--json")
    ids = {one["id"] for one in done.data["injections"]}
    assert [one["node"] for one in done.data["injections"]] == ["w3", "w1"]
    assert ids == {done.data["id"]}
    assert len({one["parameters"]["seed"] for one in done.data["injections"]}) == 1
    assert done.data["plans"][0]["covers"] == ["read"]


def test_what_is_the_same_on_all_nodes_is_told_once(world: World) -> None:
    out = world.run(*TOY, *on("w1", "w2", "w3")).out
    assert out.count("toy_error is active on") == 3
    assert out.count("it is a toy") == 1


def test_every_kind_of_option_reaches_the_agent(world: World) -> None:
    options = ("--sectors", "8", "--loss-percent", "12.5", "--mode", "write", "--when", "every:3", "--ports", "1",
               "--ports", "2", "--permanent")  # fmt: skip
    done = world.run(*TOY, *options, *on("w1"), "--json")
    got = done.data["injections"][0]["parameters"]
    seed = got.pop("seed")
    assert 0 <= seed < 2**32
    assert got == {"file": "/srv/data/a", "sectors": 8, "loss_percent": 12.5, "mode": "write", "when": "every:3",
                   "ports": [1, 2], "permanent": True}  # fmt: skip


def test_a_name_may_be_typed_with_hyphens(world: World) -> None:
    assert world.run("inject", "toy-delay", *on("w1")).code == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--sectors", "65"), "'--sectors': 65 is not in the range 1<=x<=64"),
        (("--sectors", "many"), "'--sectors': 'many' is not a valid integer"),
        (("--loss-percent", "0"), "'--loss-percent': 0.0 is not in the range 0<x<=100"),
        (("--mode", "sideways"), "'--mode': 'sideways' is not one of 'read', 'write'"),
        (("--when", "sometimes"), "--when: 'sometimes' is not a schedule; allowed: always; probability:P"),
        (("--for", "forever"), "'--for': 'forever' is refused: every fault ends by itself"),
        (("--for", "25h"), "'--for': '25h' is out of range"),
        (("--id", "X"), "'--id': 'X'; allowed: 3 to 32 lower-case letters"),
        (("--seed", "-1"), "'--seed': -1 is not in the range x>=0"),
        (("--speed", "1"), "No such option '--speed'"),
    ],
)
def test_a_bad_option_is_named_with_what_is_allowed(world: World, options: tuple[str, ...], message: str) -> None:
    done = world.run(*TOY, *options, *on("w1"))
    assert done.code == 64
    assert message in done.err
    assert world.injectors == {}


def test_a_missing_option_is_named(world: World) -> None:
    assert "Missing option '--file'" in world.run("inject", "toy_error", *on("w1")).err
    assert "Missing option '--node'" in world.run(*TOY).err


def test_a_plan_changes_nothing(world: World) -> None:
    done = world.run(*TOY, *on("w1", "w2"), "--plan")
    assert done.code == 0
    assert "toy_error on w1: only planned, nothing was changed" in done.out
    assert "toy_error on w2" in done.out
    assert live(world) == {}
    assert world.run(*TOY, *on("w1"), "--plan", "--json").data["changed"] is False


LACK = Missing(capability="dm", reason="no such module", remedy="apt-get install a kernel")


def test_what_cannot_be_done_says_why_and_what_would_help(world: World) -> None:
    world.injector("w2").lacks = (LACK,)
    done = world.run(*TOY, *on("w1", "w2"))
    assert done.code == 3
    assert "w2 lacks dm (no such module); nothing was changed" in done.err
    assert "hint: apt-get install a kernel" in done.err
    assert live(world) == {}
    assert world.injectors["w1"].applied == []


def test_a_plan_of_what_cannot_be_done_is_shown_and_ends_with_3(world: World) -> None:
    world.injector("w1").lacks = (LACK,)
    done = world.run(*TOY, *on("w1"), "--plan")
    assert done.code == 3
    assert "dm: no such module; remedy: apt-get install a kernel" in done.out


def test_when_one_node_fails_the_others_are_taken_back(world: World) -> None:
    world.injector("w2").fails = "it did not bite"
    done = world.run(*TOY, *on("w1", "w2", "w3"), "--id", "abcd2345")
    assert done.code == 70
    assert "w2: it did not bite" in done.err
    assert "taken back on w1, w3" in done.err
    assert live(world) == {}


def test_a_refusal_of_one_node_is_a_usage_error(world: World) -> None:
    world.injector("w2").fails = "conflict"
    done = world.run(*TOY, *on("w1", "w2"))
    assert done.code == 64
    assert "w2: dm data is held by injection other123 (taken back on w1)" in done.err
    assert "labctl recover other123" in done.err


def test_a_node_that_cannot_be_planned_for_stops_everything(world: World) -> None:
    world.down["w2"] = "off"
    done = world.run(*TOY, *on("w1", "w2"))
    assert done.code == 70
    assert "nothing listens there (nothing was changed)" in done.err
    assert live(world) == {}


def test_a_node_that_is_lost_half_way_is_called_dirty(world: World) -> None:
    def lose(node: str, method: str) -> None:
        if (node, method) == ("w2", "Apply"):
            world.down["w2"] = "lost"
            world._before(node, method)

    world.trouble = lose
    done = world.run(*TOY, *on("w1", "w2"), "--for", "5m")
    assert done.code == 75
    assert "taken back on w1" in done.err
    assert "w2 cannot be asked: if the fault got there, it heals within 5m" in done.err
    assert live(world) == {}


def test_what_cannot_be_taken_back_ends_with_75(world: World) -> None:
    world.injector("w1").sticks = "dm data: suspended"
    world.injector("w2").fails = "it did not bite"
    done = world.run(*TOY, *on("w1", "w2"))
    assert done.code == 75
    assert "STUCK on w1: dm data: suspended" in done.err


def test_ctrl_c_while_planting_takes_everything_back(world: World) -> None:
    def interrupt(node: str, method: str) -> None:
        if (node, method) == ("w2", "Apply"):
            raise KeyboardInterrupt

    world.trouble = interrupt
    done = world.run(*TOY, *on("w1", "w2"), "--id", "abcd2345")
    assert done.code == 130
    assert "interrupted: taking abcd2345 back on w1, w2" in done.err
    assert live(world) == {}
    assert [one.state for one in world.injectors["w1"].known.values()] == ["recovered"]


def test_ctrl_c_and_a_node_that_does_not_answer_ends_with_75(world: World) -> None:
    def interrupt(node: str, method: str) -> None:
        if (node, method) == ("w2", "Apply"):
            world.down["w2"] = "lost"
            raise KeyboardInterrupt

    world.trouble = interrupt
    done = world.run(*TOY, *on("w1", "w2"))
    assert done.code == 75
    assert "w2 cannot be asked" in done.err
    assert live(world) == {}


def test_the_same_id_again_is_the_same_injection(world: World) -> None:
    argv = (*TOY, *on("w1"), "--id", "abcd2345")
    assert world.run(*argv).code == 0
    again = world.run(*argv, "--json")
    assert again.code == 0
    assert again.data["plans"] == []
    world.run("recover", "abcd2345")
    assert "toy_error on w1 is recovered: over, on request" in world.run(*argv).out


def test_stop_refuses_new_faults_until_cleared(world: World) -> None:
    world.run("stop")
    refused = world.run(*TOY, *on("w1"))
    assert refused.code == 70
    assert "labctl stop --clear" in refused.err
    world.run("stop", "--clear")
    assert world.run(*TOY, *on("w1")).code == 0


def test_a_fault_may_not_take_the_name_of_a_common_option(toy_faults: None) -> None:
    from labctl.cli.inject import fault_command
    from tests.unit.toys import ToyDelay

    class Bad(ToyDelay):
        plan: Any = None

    with pytest.raises(ValueError, match="'plan', which is an option of every fault"):
        fault_command(Bad)
