"""The bench of a fleet: its arithmetic, and a small fleet with real gRPC in which some are sick."""

from __future__ import annotations

from tests.bench.fleet.__main__ import Bench, named, several, sick, verdict
from tests.bench.fleet.fleet import Run, fleet


def run(wall_s: float, rss_mib: float) -> Run:
    return Run(0, {}, "", wall_s, 1.0, 2.0, rss_mib)


def test_who_is_sick_is_always_the_same() -> None:
    names = [f"n{n}" for n in range(1, 1001)]
    moods = list(sick(names).values())
    assert [moods.count(mood) for mood in ("silent", "late", "liar")] == [50, 50, 10]
    assert sick(names) == sick(names)


def test_what_was_named() -> None:
    assert named({"a": "", "c": ""}, {"a", "b"}) == {"right": 1, "missed": ["b"], "wrong": ["c"]}


def test_what_is_reached() -> None:
    healthy = {"inject": several([run(4, 100), run(6, 120), run(4, 299)]), "recover": several([run(5.1, 90)])}
    assert healthy["inject"]["wall_s"] == {"median": 4, "worst": 6}
    part = {"named": named(["a"], ["a"])}
    assert verdict({"healthy": healthy, "part": part, "nodes": 3}) == {
        "inject_within_5_s": True,
        "recover_within_5_s": False,
        "memory_within_300_mib": True,
        "every_late_or_lost_node_named": True,
    }
    assert not verdict({"healthy": healthy, "part": {"named": named([], ["a"])}})["every_late_or_lost_node_named"]


def test_a_small_fleet_in_which_some_are_sick_is_left_clean() -> None:
    with fleet(12, 1) as under:
        assert under.labctl("limits", "--quorum", "off").code == 0
        bench = Bench(under, ["disk_slow"], within_s=2.0)
        found = bench.sick_while_planting()
        assert found["sick"] == 3 and found["named"]["missed"] == []
        assert found["live_afterwards"] == 0, "a late request was not forestalled, or something was not taken back"
