"""Schedules, kernel log records, mounts, resources, residue: the small values everything is made of."""

from __future__ import annotations

import pytest

from node_agent.facts import parse_mountinfo
from node_agent.host.log import parse_record
from node_agent.residue import compare, look, residue_of
from node_agent.schedule import parse_schedule
from node_agent.steps.base import Resource
from tests.contract.simulated import SimulatedHost, fresh_kernel


@pytest.mark.parametrize(
    "text", ["always", "probability:0.25", "every:3", "after:10", "first:5", "burst:2/8", "ratio:1/3"]
)
def test_a_schedule_prints_as_it_was_typed(text: str) -> None:
    assert str(parse_schedule(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sometimes",
        "always:1",
        "probability:0",
        "probability:2",
        "every:0",
        "every:1.5",
        "ratio:4/3",
        "burst:5",
    ],
)
def test_a_bad_schedule_says_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match=r"allowed|fit"):
        parse_schedule(text)


def test_kernel_log_record() -> None:
    record = parse_record(b"3,1042,5140900,-;I/O error, dev loop0; sector 8\n SUBSYSTEM=block\n")
    assert (record.sequence, record.time_us, record.level) == (1042, 5140900, 3)
    assert record.text == "I/O error, dev loop0; sector 8"
    assert parse_record(b"30,7,1,-,caller=T1;x").level == 6


def test_mountinfo_with_optional_fields_and_spaces() -> None:
    text = "36 35 98:0 /mnt1 /srv/my\\040data rw,noatime master:1 - ext3 /dev/root rw,errors=continue\ngarbage\n"
    (mount,) = parse_mountinfo(text)
    assert (mount.target, mount.fstype, mount.source, mount.device) == (
        "/srv/my data",
        "ext3",
        "/dev/root",
        "98:0",
    )


def test_resources_conflict_by_overlap_only() -> None:
    one = Resource("dm", "data", 100, 108)
    assert one.conflicts(Resource("dm", "data", 107, 120)) and one.conflicts(one)
    assert not one.conflicts(Resource("dm", "data", 108, 116))
    assert not one.conflicts(Resource("dm", "other", 100, 108))
    assert Resource("loop", "x").conflicts(Resource("loop", "x"))


def test_residue_is_told_from_foreign_changes_and_from_what_others_hold() -> None:
    before = {"dm": {"data": "0 9 linear"}, "mount": {}}
    after = {
        "dm": {"data": "0 9 linear", "groundfault-a-bad": "error", "groundfault-b-bad": "error"},
        "mount": {"/mnt": "x"},
    }
    found = {d.item: d for d in compare(before, after, ["b"])}
    assert found["groundfault-b-bad"].injection == "b"
    assert found["groundfault-a-bad"].injection == "" and not found["groundfault-a-bad"].foreign
    assert found["/mnt"].foreign
    assert residue_of("a", after) == ("dm groundfault-a-bad: error",)


def test_a_touched_item_is_not_foreign() -> None:
    before, after = {"sysctl": {"vm/swappiness": "60"}}, {"sysctl": {"vm/swappiness": "1"}}
    (left,) = compare(before, after, [], [("sysctl", "vm/swappiness")])
    assert str(left) == "sysctl vm/swappiness: 60 -> 1" and not left.foreign
    assert compare(before, after)[0].foreign


def test_a_shared_table_is_residue_of_those_whose_mark_it_bears() -> None:
    after = {"dm": {"data": "0 4 linear; 4 1 linear groundfault-b-snap0; 5 4 linear"}}
    assert residue_of("a", after) == () and len(residue_of("b", after)) == 1


def test_mounts_that_come_and_go_are_no_residue() -> None:
    kernel = fresh_kernel()
    before = look(SimulatedHost(kernel))
    kernel.texts["/proc/self/mounts"] += "tracefs /sys/kernel/debug/tracing tracefs rw 0 0\nx /mnt ext4 rw 0 0\n"
    (found,) = compare(before, look(SimulatedHost(kernel)))
    assert (found.category, found.item) == ("mount", "/mnt")
