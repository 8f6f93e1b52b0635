"""`labctl inject` on nodes by lot, by label and in two groups; labels; limits."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from labctl.limits import Limits, Use, gauges, quorum_groups
from tests.unit.cli_world import Done, World
from tests.unit.test_targets import lab

TOY = ("inject", "toy_error", "--file", "/a")
CUT = ("inject", "toy_partition")


def live(world: World) -> dict[str, Mapping[str, object]]:
    """Parameters of what is live, by node."""
    return {name: one.parameters for name, i in sorted(world.injectors.items()) for one in i.injections()}


def test_a_lot_is_drawn_by_the_seed_and_told(world: World) -> None:
    drawn = set()
    for seed in range(12):
        planned = world.run(*TOY, "--node", "one", "--seed", str(seed), "--plan", "--json").data
        assert live(world) == {} and planned["chosen"] == f"one of 3 nodes, drawn with seed {seed}"
        done = world.run(*TOY, "--node", "one", "--seed", str(seed), "--json").data
        assert (
            done["nodes"] == planned["nodes"] == [one["node"] for one in done["injections"]] == list(live(world))
        )
        drawn.add(done["nodes"][0])
        world.run("recover", "--all")
    assert drawn == {"w1", "w2", "w3"}


def test_without_a_seed_the_id_decides_and_the_plan_names_what_to_give_again(world: World) -> None:
    first = world.run(*TOY, "--node", "majority", "--id", "abcd2345", "--json").data
    again = world.run(*TOY, "--node", "majority", "--id", "abcd2345", "--json").data
    assert first["nodes"] == again["nodes"] and len(first["nodes"]) == 2
    assert len(live(world)) == 2
    world.run("recover", "--all")
    seed = first["injections"][0]["parameters"]["seed"]
    assert world.run(*TOY, "--node", "majority", "--seed", str(seed), "--json").data["nodes"] == first["nodes"]
    assert f"majority of 3 nodes, drawn with seed {seed}: " in world.run(*TOY, "--node", "majority", "--plan",
                                                                        "--seed", str(seed)).out  # fmt: skip


def test_all_and_labels(world: World) -> None:
    for node in ("w1", "w3"):
        assert world.run("node", "label", node, "role=db").out == f"{node}: role=db\n"
    world.run(*TOY, "--nodes-labelled", "role=db")
    assert list(live(world)) == ["w1", "w3"]
    assert len(world.run("injections", "--nodes-labelled", "role=db", "--json").data["injections"]) == 2
    world.run("recover", "--nodes-labelled", "role=db")
    assert live(world) == {}
    world.run(*TOY, "--node", "all")
    assert len(live(world)) == 3
    assert world.run("recover", "--node", "w1", "--nodes-labelled", "role=db").code == 0
    assert list(live(world)) == ["w2", "w3"]
    table = world.run("status", "--nodes-labelled", "role=db").out
    assert "LABELS" in table and "role=db" in table and "w2" not in table
    assert list(world.run("doctor", "--nodes-labelled", "role=db", "--json").data["nodes"]) == ["w1", "w3"]
    nodes = world.run("node", "residue", "--nodes-labelled", "role=db", "--json").data["nodes"]
    assert nodes == [{"node": "w1", "entries": []}, {"node": "w3", "entries": []}]
    assert world.run("node", "label", "w1", "role-", "rack=b2").out == "w1: rack=b2\n"
    assert world.run("node", "label", "w1", "role").code == 64
    assert world.run("node", "label", "w1", "a=" + "x" * 64).code == 64
    assert world.run("node", "residue").code == 64


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((), "Missing option '--node': which nodes?"),
        (("--node", "two"), "has no node 'two'"),
        (("--node", "one", "--node", "w1"), "--node one: stands alone"),
        (("--nodes-labelled", "role=db"), "no node has role=db"),
        (("--groups", "w1/w2"), "No such option '--groups'"),
    ],
)
def test_wrong_targets_plant_nothing(world: World, argv: tuple[str, ...], message: str) -> None:
    done = world.run(*TOY, *argv)
    assert (done.code, message in done.err, world.injectors) == (64, True, {}), done.err


def test_two_groups_have_each_other_for_peers_under_one_id(world: World) -> None:
    done = world.run(*CUT, "--groups", "w1/w2,w3", "--json").data
    assert done["groups"] == [["w1"], ["w2", "w3"]]
    assert {one["id"] for one in done["injections"]} == {done["id"]}
    found = live(world)
    assert found["w1"]["peers"] == ["10.77.0.2", "fe80::2", "10.77.0.3", "fe80::3"]
    assert found["w2"]["peers"] == found["w3"]["peers"] == ["10.77.0.1", "fe80::1"]
    assert {one["direction"] for one in found.values()} == {"both"}
    world.run("recover", done["id"])
    assert live(world) == {}


def test_one_way_is_planted_where_it_is_sent(world: World) -> None:
    done = world.run(*CUT, "--groups", "w2,w3/w1", "--one-way", "--json").data
    assert done["groups"] == [["w2", "w3"], ["w1"]] and done["nodes"] == ["w2", "w3"]
    assert {name: (one["direction"], one["peers"]) for name, one in live(world).items()} == {
        "w2": ("out", ["10.77.0.1", "fe80::1"]),
        "w3": ("out", ["10.77.0.1", "fe80::1"]),
    }


def test_a_group_by_lot_follows_the_seed_and_is_told(world: World) -> None:
    plan = world.run(*CUT, "--groups", "minority/majority", "--seed", "4", "--plan")
    small, large = (part.strip(" ,") for part in plan.out.splitlines()[0].removeprefix("groups ").split("/"))
    assert "seed 4" in plan.out
    done = world.run(*CUT, "--groups", "minority/majority", "--seed", "4", "--json").data
    assert [", ".join(group) for group in done["groups"]] == [small, large.partition(", seed")[0]]


def test_groups_by_label(world: World) -> None:
    world.run("node", "label", "w1", "role=db")
    world.run("node", "label", "w3", "role=web")
    assert world.run(*CUT, "--groups", "role=db/role=web").code == 0
    assert list(live(world)) == ["w1", "w3"]


def test_peers_may_be_nodes_and_labels_of_the_lab(world: World) -> None:
    world.run("node", "label", "w3", "role=web")
    done = world.run(
        *CUT, "--node", "w1", "--peers", "w2", "--peers", "role=web", "--peers", "192.0.2.0/24", "--json"
    )
    assert done.data["injections"][0]["parameters"]["peers"] == [
        "10.77.0.2", "fe80::2", "10.77.0.3", "fe80::3", "192.0.2.0/24"]  # fmt: skip


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((), "Missing option '--node'"),
        (("--node", "w1"), "--peers: Field required"),
        (("--node", "w1", "--one-way", "--peers", "w2"), "--one-way: is for two groups"),
        (("--groups", "w1/w2", "--node", "w1"), "--groups and --node exclude each other"),
        (("--groups", "w1/w2", "--peers", "w3"), "--groups and --peers exclude each other"),
        (("--groups", "w1/w2", "--one-way", "--direction", "in"), "--one-way and --direction exclude each other"),
        (("--groups", "w1/w1"), "w1 is in both groups"),
        (("--groups", "w1"), "is not two groups"),
        (("--node", "w1", "--peers", "role=none"), "--peers: no node has role=none"),
    ],
)
def test_wrong_groups_plant_nothing(world: World, argv: tuple[str, ...], message: str) -> None:
    done = world.run(*CUT, *argv)
    assert done.code == 64 and message in done.err, done.err
    assert world.injectors == {}


def test_a_group_that_fails_on_one_node_is_taken_back_on_all(world: World) -> None:
    world.injector("w3").fails = "it did not bite"
    done = world.run(*CUT, "--groups", "w1/w2,w3")
    assert done.code == 70
    assert "w3: it did not bite" in done.err and "taken back on w1, w2" in done.err
    assert live(world) == {}


def many(world: World, count: int) -> None:
    """A lab of so many nodes."""
    assert world.run("down").code == 0
    world.lab.off.clear()
    world.lab.count = count


def test_a_large_lab_fails_in_few_words_and_names_everybody(world: World) -> None:
    many(world, 120)
    broken = [f"w{n}" for n in range(1, 121) if n % 4 == 0]
    for name in broken:
        world.injector(name).fails = "it did not bite"
    done = world.run(*TOY, "--node", "all", "--exceed-limits")
    assert done.code == 70
    lines = done.err.splitlines()
    error, everybody = lines[next(n for n, line in enumerate(lines) if line.startswith("error: ")) :][:2]
    assert (
        "w4: it did not bite" in error and "and 22 more (taken back on w1, w2" in error and "and 82 more" in error
    )
    assert len(error) < 900
    assert everybody == f"all 30 nodes: {' '.join(broken)}"
    assert live(world) == {}
    data = world.run(*TOY, "--node", "all", "--json").data
    assert list(data["nodes"]) == broken


def test_silent_nodes_of_a_large_lab_are_counted_and_named(world: World) -> None:
    many(world, 100)
    world.down.update({f"w{n}": "lost" for n in range(1, 13)})
    done = world.run(*TOY, "--node", "all")
    assert done.code == 70 and "and 4 more (nothing was changed)" in done.err
    assert live(world) == {}
    done = world.run("recover", "--all")
    assert done.code == 75
    assert done.err.count("warning:") == 9 and "w9 w10 w11 w12" in done.err


# -- limits


def refused(done: Done, *words: str) -> None:
    assert done.code == 64, done.err
    assert all(word in done.err for word in words), done.err
    assert "--exceed-limits" in done.err


def test_a_lab_of_virtual_machines_limits_nothing_at_first(world: World) -> None:
    assert world.run(*TOY, "--node", "all").code == 0
    shown = world.run("limits")
    assert (shown.code, "nothing is limited now" in shown.out) == (0, True)
    assert world.run("limits", "--json").data["limits"]["quorum"] == "labels"


def test_nodes_at_once(world: World) -> None:
    world.run("limits", "--nodes", "2")
    world.run(*TOY, "--node", "w1")
    assert world.run("limits").out.splitlines()[1].split() == ["nodes", "with", "a", "fault", "1", "of", "2"]
    refused(world.run(*TOY, "--node", "w2", "--node", "w3"), "nodes with a fault: 1 of 2, 3 with this: exceeded",
            "nothing was changed")  # fmt: skip
    assert list(live(world)) == ["w1"]
    assert world.run(*TOY, "--node", "w2").code == 0
    assert world.run("inject", "toy_delay", "--node", "w2").code == 0  # no further node
    plan = world.run(*TOY, "--node", "w3", "--plan")
    assert plan.code == 64 and "2 of 2, 3 with this: exceeded" in plan.out
    assert world.run(*TOY, "--node", "w3", "--exceed-limits").code == 0


def test_faults_at_once(world: World) -> None:
    world.run("limits", "--faults", "2", "--faults-per-node", "1")
    assert world.run(*TOY, "--node", "w1", "--node", "w2").code == 0  # one fault, on two nodes
    refused(world.run("inject", "toy_delay", "--node", "w2"), "faults on w2: 1 of 1, 2 with this")
    assert world.run("inject", "toy_delay", "--node", "w3").code == 0
    world.run("limits", "--faults-per-node", "none")
    refused(world.run("inject", "toy_delay", "--node", "w2"), "faults in the lab: 2 of 2, 3 with this")
    shown = world.run("limits", "--default", "--json").data
    assert shown["limits"] == Limits().model_dump()


def test_the_majority_of_a_quorum_is_kept(world: World) -> None:
    for node in ("w1", "w2", "w3"):
        world.run("node", "label", node, "quorum=etcd")
    plan = world.run(*TOY, "--node", "w1", "--plan")
    assert plan.code == 0 and "broken nodes of quorum=etcd, which needs 2 of 3  0 of 1, 1 with this" in plan.out
    assert world.run(*TOY, "--node", "w1").code == 0
    refused(world.run(*TOY, "--node", "w2"), "quorum=etcd", "1 of 1, 2 with this")
    assert world.run("inject", "toy_delay", "--node", "w1").code == 0
    world.run("limits", "--quorum", "off")
    assert world.run(*TOY, "--node", "w2").code == 0


def test_a_partition_breaks_the_nodes_it_is_planted_on(world: World) -> None:
    world.run("limits", "--quorum", "lab")
    refused(world.run(*CUT, "--groups", "w1/w2,w3"), "the lab", "3 with this")
    assert world.run(*CUT, "--groups", "w1/w2,w3", "--exceed-limits").code == 0
    world.run("recover", "--all")
    assert world.run(*CUT, "--groups", "w1/w2,w3", "--one-way").code == 0


def test_nodes_that_do_not_answer_count_as_broken(world: World) -> None:
    world.run("limits", "--nodes", "1")
    world.down["w3"] = "off"
    refused(world.run(*TOY, "--node", "w1"), "1 of 1, 2 with this")
    shown = world.run("limits", "--json")
    assert shown.data["silent"] == ["w3"]
    assert "it counts as broken" in world.run("limits").err


def test_what_is_over_its_limit_already_may_get_no_worse(world: World) -> None:
    world.run(*TOY, "--node", "all")
    world.run("limits", "--nodes", "1")
    assert world.run("inject", "toy_delay", "--node", "w1").code == 0


def test_the_same_id_again_is_no_further_fault(world: World) -> None:
    world.run("limits", "--nodes", "1", "--faults-per-node", "1")
    assert world.run(*TOY, "--node", "w1", "--id", "abcd2345").code == 0
    assert world.run(*TOY, "--node", "w1", "--id", "abcd2345").code == 0


def test_two_who_plant_at_once_both_look_again(world: World) -> None:
    """Another labctl plants on w2 after we have counted: what is too much is taken back."""
    world.run("limits", "--nodes", "1")

    def somebody(node: str, method: str) -> None:
        if (node, method) == ("w1", "Apply"):
            world.injector("w2").apply("other234", "toy_delay", {})

    world.trouble = somebody
    done = world.run(*TOY, "--node", "w1")
    refused(done, "nodes with a fault: 1 of 1, 2 with this: exceeded", "taken back on w1")
    assert list(live(world)) == ["w2"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--nodes", "0"), "'0'; allowed: a number from 1, or none"),
        (("--faults", "-1"), "'-1'; allowed"),
        (("--quorum", "most"), "'most' is not one of 'off', 'labels', 'lab'"),
        (("--default", "--nodes", "1"), "--default stands alone"),
    ],
)
def test_wrong_limits(world: World, argv: tuple[str, ...], message: str) -> None:
    done = world.run("limits", *argv)
    assert done.code == 64 and message in done.err
    assert not world.limits_file("default").exists()


def test_damaged_limits_are_told(world: World) -> None:
    world.limits_file("default").write_text(json.dumps({"nodes": 0}))
    done = world.run(*TOY, "--node", "w1")
    assert done.code == 70 and "limits-default.json is damaged" in done.err
    assert live(world) == {}


def test_groups_that_are_guarded() -> None:
    nodes = lab(7, w1="quorum=etcd", w2="quorum=etcd", w3="quorum=etcd", w4="quorum=db", w5="quorum=db")
    assert quorum_groups(Limits(quorum="off"), nodes) == {}
    assert quorum_groups(Limits(), nodes) == {"quorum=etcd": ("w1", "w2", "w3")}
    assert list(quorum_groups(Limits(quorum="lab"), nodes)) == ["quorum=etcd", "the lab"]
    assert quorum_groups(Limits(quorum="lab"), lab(2)) == {}


def test_the_fullest_node_that_changes_is_told() -> None:
    now = Use({"w1": frozenset("abc"), "w2": frozenset("ab"), "w3": frozenset()})
    (one,) = gauges(Limits(faults_per_node=2, quorum="off"), lab(3), now, now.with_one("new", ["w2", "w3"]))
    assert (one.what, one.used, one.would_be, one.exceeded) == ("faults on w2", 2, 3, True)
