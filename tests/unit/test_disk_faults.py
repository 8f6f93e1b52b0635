"""Disk faults of data on a simulated machine: the tables they make, what is refused, what is counted."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest

from node_agent.catalog import find_fault
from node_agent.errors import ConflictError, Refusal
from node_agent.facts import gather_facts
from node_agent.fault import Evidence, Facts, Fault, Target, build_fault
from node_agent.host import DmTarget
from node_agent.probe import run_probes
from tests.contract.simulated import SimulatedHost, fresh_kernel

TAG = "groundfault-inj-1"
ACCEPT = {"accept_data_loss": True}
RANGE = {"range": "2048+16"}

UNDER = ("0 2048 error", "2048 16 linear disk 2048", "2064 6128 error")
"""What leads to the true places of the range."""


UNDER_BLOCK = ("0 2048 error", "2048 8 linear disk 2048", "2056 6136 error")


def around(line: str) -> tuple[str, ...]:
    """The table of the disk with a line in place of the range."""
    return ("0 2048 linear disk 0", line, "2064 6128 linear disk 2064")


def whole(kind: str, over: str = "") -> tuple[str, ...]:
    return (f"0 8192 {kind} {over}".rstrip(),)


def rot(way: str) -> tuple[str, ...]:
    """Byte 84 of the seventh sector of the block becomes another one."""
    flip = f"2054 1 flakey gate 2054 0 1 5 corrupt_bio_byte 84 {way} 64 0"
    return ("0 2048 error", "2048 6 linear under 2048", flip, "2055 1 linear under 2055", "2056 6136 error")


GOLDEN: tuple[tuple[str, Mapping[str, Any], Mapping[str, tuple[str, ...]]], ...] = (
    (
        "write_error",
        RANGE,
        {
            "data": around("2048 16 delay under 2048 0 loop-gate 2048 0 under 2048 0"),
            "under": UNDER,
            "nil": whole("zero"),
            "media": whole("flakey", "nil 0 0 1 1 error_writes"),
            "gate": whole("linear", "media 0"),
        },
    ),
    (
        "write_error",
        {},
        {
            "data": whole("delay", "below 0 0 loop-gate 0 0 below 0 0"),
            "below": whole("linear", "disk 0"),
            "nil": whole("zero"),
            "media": whole("flakey", "nil 0 0 1 1 error_writes"),
            "gate": whole("linear", "media 0"),
        },
    ),
    (
        "flush_error",
        {},
        {
            "data": whole("delay", "below 0 0 below 0 0 loop-gate 0 0"),
            "below": whole("linear", "disk 0"),
            "nil": whole("zero"),
            "media": (
                "0 4096 linear nil 0",
                "4096 8 flakey below 4096 0 1 1 error_writes",
                "4104 4088 linear nil 4104",
            ),
            "gate": whole("linear", "media 0"),
        },
    ),
    (
        "torn_write",
        RANGE | ACCEPT | {"arriving": 3},
        {
            "data": around("2048 16 linear torn 2048"),
            "under": UNDER,
            "nil": whole("zero"),
            "gate": whole("linear", "nil 0"),
            "keep": whole("delay", "under 0 0 gate 0 0 under 0 0"),
            "torn": (
                "0 2048 error",
                "2048 3 linear under 2048",
                "2051 5 linear keep 2051",
                "2056 3 linear under 2056",
                "2059 5 linear keep 2059",
                "2064 6128 error",
            ),
        },
    ),
    (
        "torn_write",
        {"range": "2050+4", "arriving": 0} | ACCEPT,
        {
            "data": ("0 2050 linear disk 0", "2050 4 linear torn 2050", "2054 6138 linear disk 2054"),
            "under": ("0 2050 error", "2050 4 linear disk 2050", "2054 6138 error"),
            "nil": whole("zero"),
            "gate": whole("linear", "nil 0"),
            "keep": whole("delay", "under 0 0 gate 0 0 under 0 0"),
            "torn": ("0 2050 error", "2050 4 linear keep 2050", "2054 6138 error"),
        },
    ),
    (
        "misdirected_write",
        RANGE | ACCEPT | {"to": 4096},
        {
            "data": around("2048 16 linear astray 2048"),
            "under": UNDER,
            "gate": ("0 2048 error", "2048 16 linear disk 4096", "2064 6128 error"),
            "astray": whole("delay", "under 0 0 gate 0 0 under 0 0"),
        },
    ),
    (
        "silent_corruption",
        {"range": "2048+8", "permanent": True},
        {
            "data": ("0 2048 linear disk 0", "2048 8 linear rot 2048", "2056 6136 linear disk 2056"),
            "under": UNDER_BLOCK,
            "gate": whole("linear", "under 0"),
            "rot": rot("r"),
        },
    ),
    (
        "silent_corruption",
        {"range": "2048+8"},
        {
            "data": ("0 2048 linear disk 0", "2048 8 linear snap-0 2048", "2056 6136 linear disk 2056"),
            "under": UNDER_BLOCK,
            "gate": whole("linear", "under 0"),
            "rot": rot("r"),
            "cow-0": ("0 8 linear disk 2048",),
            "snap-0": whole("snapshot", "rot cow-0 N 8"),
        },
    ),
    (
        "silent_corruption",
        {"range": "2048+8", "what": "writes"} | ACCEPT,
        {
            "data": ("0 2048 linear disk 0", "2048 8 linear astray 2048", "2056 6136 linear disk 2056"),
            "under": UNDER_BLOCK,
            "gate": whole("linear", "under 0"),
            "rot": rot("w"),
            "astray": whole("delay", "under 0 0 rot 0 0 under 0 0"),
        },
    ),
    (
        "lost_flush",
        {"cache_mib": 16} | ACCEPT,
        {"data": whole("writecache", "s below loop-cache 4096 0"), "below": whole("linear", "disk 0")},
    ),
)


@pytest.fixture
def host() -> SimulatedHost:
    return SimulatedHost(fresh_kernel())


def facts_of(host: SimulatedHost) -> Facts:
    return gather_facts(host, "w2", dict(run_probes(host)))


def build(name: str, parameters: Mapping[str, Any]) -> Fault:
    fault = build_fault(find_fault(name), parameters)
    assert isinstance(fault, Fault)
    return fault


@dataclass(frozen=True)
class Planted:
    """A fault whose steps have been applied."""

    host: SimulatedHost
    fault: Fault
    target: Target

    def evidence(self) -> Evidence:
        return self.fault.evidence(self.host, self.target, TAG, 0)

    def passed(self, part: str, *, reads: int = 0, writes: int = 0, sectors: int = 0, flushes: int = 0) -> None:
        """What the kernel shows of one of its devices, as Documentation/block/stat.rst orders it."""
        info = self.host.dm.info(f"{TAG}-{part}")
        assert info is not None
        text = f"{reads} 1 2 3 {writes} 5 {sectors} 7 0 9 10 11 12 13 14 {flushes} 16\n"
        self.host.kernel.texts[f"/sys/dev/block/{info.number}/stat"] = text


def plant(host: SimulatedHost, name: str, **parameters: Any) -> Planted:
    fault, facts = build(name, parameters), facts_of(host)
    assert fault.requires(facts) == ()
    target = fault.locate(host, facts)
    for step in fault.steps(facts, target, TAG):
        step.capture(host)
        step.apply(host)
    return Planted(host, fault, target)


def tables(host: SimulatedHost) -> dict[str, tuple[str, ...]]:
    """All tables, with names for numbers: the parts of the injection, `loop-PART` above one, `disk` below all."""
    names = {number: name.removeprefix(f"{TAG}-") for name, (number, _) in host.kernel.dm.items()} | {
        "8:16": "disk"
    }
    for loop in host.kernel.loops.values():
        over = next((n for n in names if loop.backing == f"/dev/dm-{n.partition(':')[2]}"), "")
        names[loop.number] = f"loop-{names.get(over, loop.backing.rpartition('-')[2])}"

    def text(line: DmTarget) -> str:
        words = (names.get(word, word) for word in line.args.split())
        return " ".join((str(line.start), str(line.length), line.kind, *words))

    return {
        name.removeprefix(f"{TAG}-"): tuple(text(line) for line in table)
        for name, (_, table) in host.kernel.dm.items()
    }


@pytest.mark.parametrize(
    ("name", "parameters", "golden"), GOLDEN, ids=lambda one: one if isinstance(one, str) else ""
)
def test_tables(
    host: SimulatedHost, name: str, parameters: Mapping[str, Any], golden: Mapping[str, tuple[str, ...]]
) -> None:
    before = tables(host)
    planted = plant(host, name, **parameters)
    assert tables(host) == golden
    seen = planted.evidence()
    assert (seen.armed, seen.hits, seen.lost) == (True, 0, ())
    steps = planted.fault.steps(facts_of(host), planted.target, TAG)
    for step in reversed(steps):
        step.revert(host, {})
        assert step.leftovers(host, {}) == ()
    assert tables(host) == before and host.kernel.loops == {}
    assert not planted.evidence().armed


@pytest.mark.parametrize(
    ("name", "parameters", "field", "text"),
    [
        ("write_error", {"file": "/srv/data/a", "range": "0+8"}, "range", "exclude each other"),
        ("write_error", {"range": "8"}, "range", "START+COUNT"),
        ("write_error", {"range": "8190+8"}, "range", "ends at sector 8198"),
        ("write_error", {"file": "/etc/passwd"}, "file", "disk of the system"),
        ("write_error", {"file": "/srv/data/a", "disk": "sdb"}, "disk", "no data disk"),
        ("flush_error", {"range": "0+8"}, "range", "a flush is of a whole disk"),
        ("flush_error", {"file": "/srv/data/a"}, "file", "a flush is of a whole disk"),
        ("torn_write", {"arriving": 8}, "arriving", "less than or equal to 7"),
        ("torn_write", {"file": "/srv/data/b", "sectors": 72}, "sectors", "has 64 sectors of its own"),
        ("misdirected_write", {"sectors": 0}, "sectors", "greater"),
        ("misdirected_write", {"range": "2048+16"}, "to", "no place outside of the range"),
        ("misdirected_write", {"range": "2048+16", "to": 2056}, "to", "no place outside of the range"),
        ("misdirected_write", {"range": "2048+16", "to": 8184}, "range", "ends at sector 8200"),
        ("misdirected_write", {"file": "/srv/data/b", "sectors": 40}, "sectors", "64 sectors of its own"),
        ("silent_corruption", {"what": "both"}, "what", "'reads' or 'writes'"),
        ("silent_corruption", {"range": "0+520"}, "range", "too many"),
        ("lost_flush", {"cache_mib": 3}, "cache_mib", "greater"),
        ("lost_flush", {"cache_mib": 500}, "cache_mib", "500 MiB of a node that has 976 MiB"),
        ("lost_flush", {"range": "0+8"}, "range", "a flush is of a whole disk"),
    ],
)  # fmt: skip
def test_bad_input_names_the_field(
    host: SimulatedHost, name: str, parameters: Mapping[str, Any], field: str, text: str
) -> None:
    before = tables(host)
    with pytest.raises(Refusal) as refused:
        build(name, parameters).locate(host, facts_of(host))
    assert refused.value.field == field and text in refused.value.message
    assert tables(host) == before


def test_each_part_is_counted_where_it_passes(host: SimulatedHost) -> None:
    planted = plant(host, "write_error", **RANGE)
    planted.passed("gate", reads=9, writes=3, sectors=40)
    seen = planted.evidence()
    assert (seen.hits, dict(seen.counters)) == (3, {"failed_writes": 3, "failed_sectors": 40})
    assert seen.lost == ("3 writes of 40 sectors in all failed, and are not on the disk",)


def test_flushes_are_counted_apart_from_data(host: SimulatedHost) -> None:
    planted = plant(host, "flush_error")
    planted.passed("gate", reads=9, flushes=4)
    seen = planted.evidence()
    assert (seen.hits, dict(seen.counters), seen.lost) == (4, {"failed_flushes": 4}, ())


def test_torn_and_misdirected_writes(host: SimulatedHost) -> None:
    torn = plant(host, "torn_write", **RANGE, **ACCEPT)
    torn.passed("gate", writes=2, sectors=8)
    seen = torn.evidence()
    assert (seen.hits, dict(seen.counters)) == (2, {"torn_writes": 2, "sectors_that_did_not_arrive": 8})
    assert seen.lost == ("8 sectors of 2 writes did not arrive",)
    other = SimulatedHost(fresh_kernel())
    astray = plant(other, "misdirected_write", **RANGE, **ACCEPT, to=4096)
    astray.passed("gate", writes=1, sectors=16)
    seen = astray.evidence()
    assert (seen.hits, dict(seen.counters)) == (1, {"misdirected_writes": 1, "misdirected_sectors": 16})
    assert seen.lost == ("16 sectors were overwritten by writes meant for another place",)


@pytest.mark.parametrize("what", ["reads", "writes"])
def test_changed_bytes_are_lost_only_where_they_are_written(host: SimulatedHost, what: str) -> None:
    planted = plant(host, "silent_corruption", range="2048+8", what=what, **ACCEPT)
    planted.passed("gate", reads=5, writes=6)
    seen = planted.evidence()
    hits = 5 if what == "reads" else 6
    assert (seen.hits, dict(seen.counters)) == (hits, {f"changed_{what}": hits})
    assert seen.lost == (() if what == "reads" else ("6 writes were changed on their way to the disk",))


def test_the_changed_byte_is_never_the_one_that_is_there(host: SimulatedHost) -> None:
    places = set()
    for seed in range(40):
        fault = build("silent_corruption", {"range": "2048+8", "seed": seed})
        target = fault.locate(host, facts_of(host))
        assert target == fault.locate(host, facts_of(host)), "the same seed, the same bytes"
        sector, nth, value = target.model_dump()["detail"]
        assert 2048 <= sector < 2056 and 1 <= nth <= 512 and value.bit_count() == 1, "the disk has zeros"
        places.add((sector, nth, value))
    assert len(places) > 35
    planted = plant(host, "silent_corruption", range="2048+8", seed=3)
    sector, nth, value = planted.target.model_dump()["detail"]
    content = host.disk.direct_read("/dev/mapper/data", sector * 512, 512)
    assert [(n, byte) for n, byte in enumerate(content) if byte] == [(nth - 1, value)]
    (warning,) = planted.fault.notes(facts_of(host), planted.target).warnings
    assert warning == f"byte {nth - 1} of sector {sector} of data reads as {value:#04x}"


def test_misdirected_blocks_of_a_file_come_in_pairs(host: SimulatedHost) -> None:
    for seed in range(20):
        fault = build("misdirected_write", {"file": "/srv/data/a", "sectors": 24, "seed": seed} | ACCEPT)
        found = fault.locate(host, facts_of(host)).model_dump()
        meant = {piece["base_start"] for piece in found["pieces"]}
        lands = set(found["detail"][2::3])
        assert len(meant) == len(lands) == 3 and not meant & lands
        assert all(1024 <= sector < 1152 and sector % 8 == 0 for sector in meant | lands)


@pytest.mark.parametrize("name", ["write_error", "torn_write", "silent_corruption"])
def test_a_place_that_is_held_is_refused_naming_the_holder(host: SimulatedHost, name: str) -> None:
    plant(host, "write_error", **RANGE)
    before = tables(host)
    with pytest.raises(ConflictError, match=f"sector 2056 is held by {TAG}-under"):
        build(name, {"range": "2056+16"}).locate(host, facts_of(host))
    build(name, {"range": "2064+16"}).locate(host, facts_of(host))
    assert tables(host) == before


def test_risks_are_in_the_plan_where_data_may_be_lost(host: SimulatedHost) -> None:
    facts = facts_of(host)
    risky = {
        name
        for name, parameters, _ in GOLDEN
        if (fault := build(name, parameters)).notes(facts, fault.locate(host, facts)).risks
    }
    assert risky == {"torn_write", "misdirected_write", "silent_corruption", "lost_flush"}


def test_what_is_in_the_cache(host: SimulatedHost, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = plant(host, "lost_flush", **ACCEPT)
    planted.passed("below", writes=3, sectors=24)
    status = {"data": "0 16384 16380 0 7 6 9 0 0 0 0 5 0 0"}
    monkeypatch.setattr(host.dm, "status", lambda name: (DmTarget(0, 8192, "writecache", status.get(name, "")),))
    counters = {"writes": 9, "bytes_only_in_memory": 4 * 4096, "bytes_on_disk": 24 * 512}
    seen = planted.evidence()
    assert (seen.hits, dict(seen.counters), seen.notes, seen.lost) == (9, counters, (), ())
    status["data"] = "-5" + status["data"][1:]
    assert "refuses every access" in planted.evidence().notes[0]


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_a_cache_that_gave_up_is_made_anew(
    host: SimulatedHost, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """dm-writecache refuses its messages after one failed write; where it fails again, it stays as it is."""
    before = tables(host)
    planted = plant(host, "lost_flush", **ACCEPT)
    standing, said = tables(host), []

    def message(name: str, sector: int, text: str) -> None:
        said.append(text)
        if said.count("flush") <= failures:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(host.dm, "message", message)
    top = planted.fault.steps(facts_of(host), planted.target, TAG)[-1]
    with pytest.raises(OSError, match="Input") if failures == 2 else nullcontext():
        top.revert(host, {})
    assert said == ["flush"] * min(failures + 1, 2) + ["flush_on_suspend"] * (failures < 2)
    assert tables(host)["data"] == (standing if failures == 2 else before)["data"]
