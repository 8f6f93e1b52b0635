"""Choosing nodes: by name, by label, by lot, in two groups."""

from __future__ import annotations

import pytest

from labctl.cli.targets import choose, draw, how_many, labelled, split_groups
from labctl.errors import UsageError
from labctl.lab.addresses import lab_addresses
from labctl.lab.model import Node


def lab(count: int, **labels: str) -> tuple[Node, ...]:
    """Nodes w1, w2 …; `w2="role=db,rack=b"` labels one."""
    return tuple(
        Node(name=f"w{n}", address="192.0.2.1", labels=dict(p.split("=") for p in pairs.split(",") if p))
        for n in range(1, count + 1)
        for pairs in [labels.get(f"w{n}", "")]
    )


def names(nodes: tuple[Node, ...]) -> list[str]:
    return [node.name for node in nodes]


def test_how_many_a_word_means() -> None:
    table = {word: [how_many(word, of) for of in range(1, 7)] for word in ("one", "minority", "majority", "all")}
    assert table == {
        "one": [1, 1, 1, 1, 1, 1],
        "minority": [0, 0, 1, 1, 2, 2],
        "majority": [1, 2, 2, 3, 3, 4],
        "all": [1, 2, 3, 4, 5, 6],
    }
    assert all(how_many("minority", of) + how_many("majority", of) == of for of in range(3, 100))


def test_a_seed_always_draws_the_same_and_larger_lots_hold_smaller_ones() -> None:
    nodes = lab(7)
    for seed in range(50):
        one, few, many = (draw(nodes, count, seed) for count in (1, 3, 4))
        assert draw(nodes, 3, seed) == few
        assert set(names(one)) < set(names(few)) < set(names(many))
        assert names(many) == sorted(names(many))
    assert {names(draw(nodes, 1, seed))[0] for seed in range(200)} == {f"w{n}" for n in range(1, 8)}


def test_a_lot_is_about_fair() -> None:
    counts = dict.fromkeys(names(lab(3)), 0)
    for seed in range(3000):
        counts[draw(lab(3), 1, seed)[0].name] += 1
    assert all(900 < count < 1100 for count in counts.values())  # 1000 expected, 4 standard deviations are 103


def test_a_node_that_joins_takes_no_more_than_its_share() -> None:
    moved = sum(draw(lab(9), 1, seed) != draw(lab(10), 1, seed) for seed in range(1000))
    assert moved < 160


def test_names_keep_their_order_and_are_counted_once() -> None:
    assert names(choose(lab(3), ["w3", "w1", "w3"], [], 1).nodes) == ["w3", "w1"]
    assert choose(lab(3), ["w3"], [], 1).how == ""


def test_a_node_that_is_called_one_is_meant_by_its_name() -> None:
    nodes = (*lab(3), Node(name="one", address="192.0.2.9"))
    for seed in range(20):
        assert names(choose(nodes, ["one"], [], seed).nodes) == ["one"]
    assert names(choose(nodes, ["one", "w2"], [], 1).nodes) == ["one", "w2"]
    assert len(choose(nodes, ["majority"], [], 1).nodes) == 3
    assert names(split_groups(nodes, "one/w1", [], 1)[0]) == ["one"]


def test_labels_narrow_names_and_lots() -> None:
    nodes = lab(5, w1="role=db", w2="role=db,rack=b", w3="role=db,rack=b", w5="role=web,rack=b")
    assert names(labelled(nodes, ["role=db"])) == ["w1", "w2", "w3"]
    assert names(choose(nodes, [], ["role=db", "rack=b"], 1).nodes) == ["w2", "w3"]
    assert names(choose(nodes, ["w5", "w3"], ["role=db"], 1).nodes) == ["w3"]
    few = choose(nodes, ["minority"], ["role=db"], 1)
    assert len(few.nodes) == 1 and few.nodes[0].labels["role"] == "db"
    assert few.how == "minority of 3 nodes with role=db, drawn with seed 1"


@pytest.mark.parametrize(
    ("words", "labels", "message"),
    [
        (["w9"], [], "has no node 'w9'"),
        (["one", "w1"], [], "--node one: stands alone"),
        (["one", "minority"], [], "stands alone"),
        (["minority"], ["role=db"], "of 2 nodes with role=db no minority can be drawn"),
        ([], ["role=web"], "no node has role=web"),
        ([], ["role"], "'role' is no label"),
        (["w3"], ["role=db"], "w3 has not role=db"),
    ],
)
def test_what_cannot_be_chosen_is_said(words: list[str], labels: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        choose(lab(3, w1="role=db", w2="role=db"), words, labels, 1)
    assert message in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "first", "second"),
    [
        ("w1/w2,w3", ["w1"], ["w2", "w3"]),
        ("w3, w2/w1", ["w2", "w3"], ["w1"]),
        ("w1/all", ["w1"], ["w2", "w3", "w4", "w5"]),
        ("all/w5", ["w1", "w2", "w3", "w4"], ["w5"]),
        ("role=db/role=web", ["w1", "w2"], ["w4"]),
        ("role=db/w4,w5", ["w1", "w2"], ["w4", "w5"]),
    ],
)
def test_groups_by_name_and_label(text: str, first: list[str], second: list[str]) -> None:
    nodes = lab(5, w1="role=db", w2="role=db", w4="role=web")
    found = split_groups(nodes, text, [], 1)
    assert (names(found[0]), names(found[1])) == (first, second)


@pytest.mark.parametrize(("text", "sizes"), [("minority/majority", (2, 3)), ("majority/minority", (3, 2)),
                                             ("one/all", (1, 4)), ("minority/all", (2, 3)),
                                             ("one/one", (1, 1)), ("w1/minority", (1, 2))])  # fmt: skip
def test_groups_by_lot_share_no_node_and_follow_the_seed(text: str, sizes: tuple[int, int]) -> None:
    nodes = lab(5)
    seen = set()
    for seed in range(30):
        a, b = split_groups(nodes, text, [], seed)
        assert (len(a), len(b)) == sizes and not set(names(a)) & set(names(b))
        assert (a, b) == split_groups(nodes, text, [], seed)
        seen.add((*names(a), "/", *names(b)))
    assert len(seen) > 3


def test_groups_are_drawn_among_nodes_with_a_label() -> None:
    nodes = lab(5, w2="quorum=etcd", w3="quorum=etcd", w5="quorum=etcd")
    a, b = split_groups(nodes, "minority/majority", ["quorum=etcd"], 3)
    assert sorted(names(a) + names(b)) == ["w2", "w3", "w5"] and len(a) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("w1", "is not two groups"),
        ("w1/", "is not two groups"),
        ("w1/w2/w3", "is not two groups"),
        ("w1/w9", "--groups: the lab has no node 'w9'"),
        ("w1,w2/w2,w3", "w2 is in both groups"),
        ("majority/majority", "majority of 3 nodes are 2, and 1 are left for it"),
        ("all/all", "and 0 are left for it"),
        ("w1,w2,w3/all", "and 0 are left for it"),
        ("role=db/w1", "no node has role=db"),
        ("one,w1/w2", "has no node 'one'"),
    ],
)
def test_groups_that_cannot_be_are_said(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        split_groups(lab(3), text, [], 1)
    assert message in caught.value.message


def test_addresses_on_the_labs_network() -> None:
    assert lab_addresses(Node(name="a", address="x", lab_addresses=("10.0.0.1", "fd00::1"))) == (
        "10.0.0.1",
        "fd00::1",
    )
    assert lab_addresses(Node(name="a", address="192.0.2.7")) == ("192.0.2.7",)
    with pytest.raises(UsageError, match="is this computer") as caught:
        lab_addresses(Node(name="a", address="127.0.0.1", ssh_port=2222))
    assert "lab_address" in caught.value.hint
