"""List, watch, recover, extend, stop; residue; doctor: what they say, and how they end."""

from __future__ import annotations

import json

import pytest

from labctl.lab.selfcheck import Check, available_mib
from node_agent.fault import Missing
from node_agent.injection import InjectionView
from node_agent.residue import Difference
from tests.unit.cli_world import World

ID = "abcd2345"


def plant(world: World, *nodes: str, injection_id: str = ID) -> None:
    words = [word for node in nodes for word in ("--node", node)]
    assert world.run("inject", "toy_error", "--file", "/a", "--id", injection_id, *words).code == 0


def test_injections_of_all_nodes_are_listed(world: World) -> None:
    plant(world, "w1", "w3")
    done = world.run("injections")
    assert done.code == 0
    rows = [line.split() for line in done.out.splitlines()]
    assert rows[0] == ["ID", "NODE", "FAULT", "STATE", "HITS", "LEASE", "TARGET"]
    assert [row[:4] for row in rows[1:]] == [[ID, n, "toy_error", "active"] for n in ("w1", "w3")]
    assert "15m left, until" in done.out
    assert len(world.run("injections", "--node", "w1", "--json").data["injections"]) == 1


def test_ended_ones_are_listed_on_request(world: World) -> None:
    plant(world, "w1")
    world.run("recover", ID)
    assert world.run("injections").out == "no live injections\n"
    assert "over, on request" in world.run("injections", "--all").out


def test_nodes_that_do_not_answer_are_said(world: World) -> None:
    plant(world, "w1")
    world.down["w2"] = "off"
    done = world.run("injections")
    assert done.code == 70
    assert ID in done.out
    assert "warning: w2" in done.err
    world.run("recover", ID)
    assert world.run("injections").out == "no live injections on the nodes that answered\n"
    world.down.update(w1="off", w3="off")
    assert world.run("injections").out == "no live injections known: no node answered\n"
    assert "w2" in world.run("injections", "--json").data["unreachable"]


def test_an_id_is_recovered_wherever_it_is(world: World) -> None:
    plant(world, "w1", "w3")
    done = world.run("recover", ID)
    assert done.code == 0
    assert done.out.splitlines() == [
        f"{ID} (toy_error on {node}): recovered, 0 hits, nothing left behind" for node in ("w1", "w3")
    ]


def test_recovering_twice_or_what_never_was_is_fine_and_says_so(world: World) -> None:
    plant(world, "w1")
    world.run("recover", ID)
    again = world.run("recover", ID, "never234")
    assert again.code == 0
    assert "never234: nothing to recover, no such injection on any node" in again.out
    nothing = world.run("recover", "--all")
    assert (nothing.code, nothing.out) == (0, "nothing to recover: no live injections\n")


def test_one_node_is_recovered_and_the_others_are_not(world: World) -> None:
    plant(world, "w1", "w2")
    assert world.run("recover", "--node", "w1").code == 0
    assert [one.node for name in ("w1", "w2") for one in world.injectors[name].injections()] == ["w2"]


def test_a_stuck_injection_ends_with_75_and_says_what_is_left(world: World) -> None:
    plant(world, "w1")
    world.injector("w1").sticks = "dm data: suspended"
    done = world.run("recover", "--all")
    assert done.code == 75
    assert "STUCK, left behind: dm data: suspended" in done.out
    assert "LEFT: dm data: suspended" in world.run("injections").out
    assert world.run("status").code == 75


def test_a_node_that_cannot_be_asked_ends_with_75(world: World) -> None:
    plant(world, "w1")
    world.down["w2"] = "off"
    done = world.run("recover", ID, "--json")
    assert done.code == done.data["exit_code"] == 75
    assert [one["node"] for one in done.data["recovered"]] == ["w1"]
    assert "its faults heal when their leases end" in world.run("recover", "--all").err


@pytest.mark.parametrize("argv", [(), (ID, "--all"), ("--all", "--node", "w1"), (ID, "--node", "w1")])
def test_what_to_recover_is_said_once(world: World, argv: tuple[str, ...]) -> None:
    assert world.run("recover", *argv).code == 64


def test_a_lease_is_extended_from_now(world: World) -> None:
    plant(world, "w1", "w2")
    done = world.run("extend", ID, "--for", "1h")
    assert done.code == 0
    assert done.out.count("1h left, until") == 2
    assert world.injectors["w2"].known[ID].lease_s == 3600
    assert world.run("extend", "never234", "--for", "1h").code == 64
    world.run("recover", ID)


def test_stop_heals_everything_and_says_how_to_go_on(world: World) -> None:
    plant(world, "w1", "w2")
    done = world.run("stop")
    assert done.code == 0
    assert done.out.count("recovered") == 2
    assert "new faults are refused on w1, w2, w3 until: labctl stop --clear" in done.out
    assert "labctl stop is in force" in world.run("status").out
    assert "new faults are allowed on w1, w2, w3" in world.run("stop", "--clear").out


def watching(world: World, looks: int) -> None:
    """The injection on w1 ends by its lease when it has been looked at that many times."""
    injector = world.injector("w1")
    seen: list[int] = []

    def looked(injection_id: str) -> InjectionView:
        seen.append(1)
        over = {"state": "recovered", "reason": "expired"} if len(seen) > looks else {}
        return injector.known[injection_id].model_copy(update=over)

    injector.view = looked  # type: ignore[method-assign]


def test_a_watch_is_a_line_a_look_until_the_end(world: World) -> None:
    plant(world, "w1")
    world.trouble = lambda node, method: watching(world, 2) if method == "Watch" else None
    done = world.run("watch", ID, "--interval", "0.2")
    lines = done.out.splitlines()
    assert done.code == 0
    assert all(f"w1  {ID}  active  hits=0  seen=0" in line for line in lines[:-1])
    assert lines[-1].endswith("recovered  hits=0  seen=0  over, its lease ran out")


def test_a_watch_under_json_is_json_lines(world: World) -> None:
    plant(world, "w1", "w2")
    world.run("recover", ID)
    done = world.run("watch", ID, "--json")
    assert sorted(json.loads(line)["node"] for line in done.out.splitlines()) == ["w1", "w2"]


def test_a_watch_of_a_lost_node_ends_with_70(world: World) -> None:
    plant(world, "w1")

    def lose(node: str, method: str) -> None:
        if method == "Watch":
            world.down["w1"] = "lost"
            world._before(node, method)

    world.trouble = lose
    done = world.run("watch", ID)
    assert done.code == 70
    assert "no longer watched" in done.err


def test_nothing_to_watch(world: World) -> None:
    done = world.run("watch", "never234")
    assert done.code == 64
    assert "no node of lab 'default' has an injection 'never234'" in done.err
    world.down["w3"] = "off"
    lost = world.run("watch", "never234")
    assert lost.code == 70
    assert "injection never234 is not on the nodes that answered" in lost.err


def test_residue_says_whose_it_is(world: World) -> None:
    assert world.run("node", "residue", "w1").out == "w1: no residue, everything is as it was\n"
    mine = Difference(category="dm", item="data", before="a", after="b", injection=ID)
    world.injector("w1").differences = (mine,)
    held = world.run("node", "residue", "w1")
    assert (held.code, f"live injection {ID}" in held.out) == (0, True)
    foreign = Difference(category="mounts", item="/mnt", before="", after="x", foreign=True)
    left = Difference(category="dm", item="groundfault-x", before="", after="b")
    world.injector("w1").differences = (mine, foreign, left)
    dirty = world.run("node", "residue", "w1")
    assert dirty.code == 75
    assert "somebody else's" in dirty.out
    assert "RESIDUE" in dirty.out


def test_doctor_gives_every_gap_a_reason_and_a_remedy(world: World) -> None:
    lack = Missing(capability="kprobe", reason="the kernel has no error injection", remedy="boot the lab kernel")
    world.injector("w1").lacks = world.injector("w2").lacks = (lack,)
    done = world.run("doctor")
    assert done.code == 0
    rows = {line.split("  ")[0]: line.split()[-3:] for line in done.out.splitlines() if "  " in line}
    assert rows["inject toy_error"] == ["no", "no", "yes"]
    assert rows["kprobe"] == ["no", "no", "-"]
    assert "kprobe (w1, w2): the kernel has no error injection; remedy: boot the lab kernel" in done.out
    assert list(world.run("doctor", "--node", "w3", "--json").data["nodes"]) == ["w3"]


def test_doctor_ends_with_what_is_wrong(world: World) -> None:
    world.checks = (Check(name="qemu", verdict="missing", detail="not installed", remedy="apt-get install qemu"),)
    gap = world.run("doctor")
    assert gap.code == 3
    assert "apt-get install qemu" in gap.out
    world.down["w1"] = "off"
    assert world.run("doctor").code == 70
    world.down.clear()
    world.lab.off.add("w2")
    assert "not running: w2" in world.run("doctor").out


def test_doctor_needs_no_lab(empty_world: World) -> None:
    done = empty_world.run("doctor")
    assert (done.code, "python" in done.out) == (0, True)


def test_available_memory_is_read() -> None:
    assert available_mib("MemTotal: 9 kB\nMemAvailable:   2097152 kB\n") == 2048
    assert available_mib("") == 0
