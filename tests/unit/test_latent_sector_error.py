"""latent_sector_error on a simulated machine: parameters, refusals, layers, evidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from disk_faults.bad_sectors import BadSectors, steps_for
from disk_faults.latent_sector_error import LatentSectorError
from disk_faults.showing import evidence, prove
from node_agent.errors import AgentError, ApplyError, ConflictError, Refusal
from node_agent.facts import gather_facts
from node_agent.fault import Capability, Facts, build_fault
from node_agent.host import SECTOR, DmTarget, Extent, LogRecord
from node_agent.probe import run_probes
from node_agent.residue import compare, residue_of
from node_agent.steps.dm_device import DmDevice
from node_agent.steps.dm_tables import put_in
from tests.contract.simulated import SimFile, SimulatedHost, fresh_kernel

TAG = "groundfault-inj-1"


@pytest.fixture
def host() -> SimulatedHost:
    kernel = fresh_kernel()
    kernel.files |= {
        "/srv/data/empty": SimFile(0, [], inode=20),
        "/srv/data/link": SimFile(10, [], kind="symlink", inode=21),
        "/srv/data/pipe": SimFile(0, [], kind="other", inode=22),
        "/srv/data/fresh": SimFile(
            4096, [Extent(0, 0, 4096, frozenset({"last", "unknown", "delalloc"}))], inode=23
        ),
        "/srv/data/shared": SimFile(4096, [Extent(0, 4096 * 700, 4096, frozenset({"shared"}))], inode=24),
        "/srv/data/sparse": SimFile(1 << 20, [], inode=25),
    }
    return SimulatedHost(kernel)


def facts_of(host: SimulatedHost, *without: str, plus: tuple[str, ...] = ()) -> Facts:
    answers = dict(run_probes(host))
    answers |= {name: Capability(name=name, available=False, reason="taken away") for name in without}
    answers |= {name: Capability(name=name, available=True) for name in plus}
    return gather_facts(host, "w2", answers)


def fault(**parameters: Any) -> LatentSectorError:
    built = build_fault(LatentSectorError, parameters)
    assert isinstance(built, LatentSectorError)
    return built


def planted(host: SimulatedHost, **parameters: Any) -> tuple[LatentSectorError, BadSectors]:
    """The fault with its steps applied."""
    facts = facts_of(host)
    one = fault(**parameters)
    target = one.locate(host, facts)
    for step in one.steps(facts, target, TAG):
        step.capture(host)
        step.apply(host)
    return one, target


@pytest.mark.parametrize(
    ("parameters", "field", "text"),
    [
        ({"file": "/srv/data/a", "range": "0+8"}, "range", "exclude"),
        ({"range": "8"}, "range", "START+COUNT"),
        ({"range": "0+8", "sectors": 16}, "sectors", "range says"),
        ({"sectors": 0}, "sectors", "greater"),
        ({"sectors": 513}, "sectors", "less"),
        ({"schedule": "every:3"}, "schedule", "bad by its place"),
        ({"schedule": "probability:0.5"}, "schedule", "bad by its place"),
        ({"schedule": "burst:7200/1"}, "schedule", "3600"),
        ({"fiel": "/x"}, "fiel", "Extra"),
        ({"file": "srv/data/a"}, "file", "absolute"),
        ({"file": "/srv/data/none"}, "file", "does not exist"),
        ({"file": "/srv/data/none*"}, "file", "matches nothing"),
        ({"file": "/srv/data/em*"}, "file", "none of them a regular file"),
        ({"file": "/srv/data"}, "file", "is a directory"),
        ({"file": "/srv/data/empty"}, "file", "empty"),
        ({"file": "/srv/data/link"}, "file", "symbolic link"),
        ({"file": "/srv/data/pipe"}, "file", "device, pipe or socket"),
        ({"file": "/etc/passwd"}, "file", "disk of the system (/)"),
        ({"file": "/srv/data/fresh"}, "file", "delalloc and unknown"),
        ({"file": "/srv/data/shared"}, "file", "shared"),
        ({"file": "/srv/data/sparse"}, "file", "hole"),
        ({"file": "/srv/data/b", "sectors": 72}, "sectors", "has 64 sectors of its own"),
        ({"disk": "sdb"}, "disk", "no data disk"),
        ({"range": "8190+8"}, "range", "ends at sector 8198"),
    ],
)  # fmt: skip
def test_bad_input_names_the_field_and_what_is_allowed(
    host: SimulatedHost, parameters: Mapping[str, Any], field: str, text: str
) -> None:
    with pytest.raises(Refusal) as refused:
        fault(**parameters).locate(host, facts_of(host))
    assert refused.value.field == field
    assert text in refused.value.message and "\n" not in refused.value.message


@pytest.mark.parametrize("parameters", LatentSectorError.examples)
def test_parameters_written_out_whole_mean_the_same(parameters: Mapping[str, Any]) -> None:
    one = fault(**parameters)
    assert fault(**one.model_dump(mode="json")) == one


def test_a_file_that_cannot_be_mapped_is_told(host: SimulatedHost, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, *, sync: bool = True) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(host.disk, "extents", refuse)
    with pytest.raises(ConflictError, match="cannot be mapped: Operation not supported"):
        fault(file="/srv/data/a").locate(host, facts_of(host))


def test_a_file_on_a_file_system_that_does_not_tell_places_is_refused(host: SimulatedHost) -> None:
    host.kernel.texts["/proc/self/mountinfo"] = host.kernel.texts["/proc/self/mountinfo"].replace(
        "ext4 /dev/mapper/data", "f2fs /dev/mapper/data"
    )
    with pytest.raises(Refusal, match="f2fs, which does not tell"):
        fault(file="/srv/data/a").locate(host, facts_of(host))


def test_the_choice_is_by_seed_and_says_where(host: SimulatedHost) -> None:
    facts = facts_of(host)
    targets = {fault(seed=seed).locate(host, facts) for seed in range(40)}
    assert {t.file for t in targets} == {"/srv/data/a", "/srv/data/b"}
    assert len({t.pieces for t in targets}) > 10
    one = fault(file="/srv/data/a", seed=3).locate(host, facts)
    assert one == fault(file="/srv/data/a", seed=3).locate(host, facts)
    assert "/srv/data/a at byte" in one.describe() and "device 8:16" in one.describe()


def test_sectors_are_rounded_up_to_blocks(host: SimulatedHost) -> None:
    target = fault(file="/srv/data/a", sectors=9).locate(host, facts_of(host))
    assert [p.length for p in target.pieces] == [8, 8]


@pytest.mark.parametrize(
    ("parameters", "without", "plus", "backend"),
    [
        ({}, (), (), "snapshot"),
        ({}, ("dm.snapshot",), ("dm.dust",), "dust"),
        ({"permanent": True}, (), (), "flakey"),
        ({"permanent": True}, ("dm.flakey_error_reads",), (), "error"),
        ({"schedule": "burst:3/2"}, (), (), "snapshot"),
        ({"schedule": "burst:3/2", "permanent": True}, (), (), "flakey"),
    ],
)
def test_backends_follow_what_the_kernel_can_do(
    host: SimulatedHost, parameters: dict[str, Any], without: tuple[str, ...], plus: tuple[str, ...], backend: str
) -> None:
    facts, one = facts_of(host, *without, plus=plus), fault(**parameters)
    assert one.requires(facts) == ()
    target = one.locate(host, facts)
    assert target.backend == backend and one.notes(facts, target).backend == f"dm-{backend}"
    steps = steps_for(target, TAG)
    made = {s.name.removeprefix(f"{TAG}-"): s for s in steps if isinstance(s, DmDevice)}
    assert ("snap-0" in made) == (backend == "snapshot")
    (media,) = made["media"].table
    expected = {
        "snapshot": "flakey" if "schedule" in parameters else "error", "dust": "dust", "flakey": "flakey",
        "error": "error",
    }  # fmt: skip
    assert media.kind == expected[backend]
    if "schedule" in parameters:
        assert media.args == f"dm:{TAG}-pass 0 2 3 1 error_reads", (
            "up comes first: reads succeed for 2 s, fail for 3"
        )
    assert ("pass" in made) == (media.kind != "error")
    if backend == "dust":
        first = target.pieces[0].start
        assert made["media"].messages[1] == f"addbadblock {first}" and made["media"].messages[-1] == "enable"


@pytest.mark.parametrize(
    ("parameters", "without", "missing"),
    [
        ({}, ("dm.snapshot",), {"dm.snapshot"}),
        ({}, ("dm.error", "loop.direct_io"), {"dm.error", "loop.direct_io"}),
        ({"permanent": True}, ("dm.snapshot", "dm.flakey_error_reads"), set()),
        ({"schedule": "burst:1/1"}, ("dm.flakey_error_reads",), {"dm.flakey_error_reads"}),
    ],
)
def test_all_that_is_missing_is_told(
    host: SimulatedHost, parameters: dict[str, Any], without: tuple[str, ...], missing: set[str]
) -> None:
    assert {m.capability for m in fault(**parameters).requires(facts_of(host, *without))} == missing


def test_what_bites_is_counted_and_logged_and_a_rewrite_heals(host: SimulatedHost) -> None:
    _, target = planted(host, file="/srv/data/a", sectors=16)
    prove(host, target)
    seen = evidence(host, target, TAG, 0)
    assert seen.armed and seen.hits >= 2 and seen.counters["healed_blocks"] == 0
    assert {int(line.split("sector ")[1].split()[0]) for line in seen.log} == {p.start for p in target.pieces}
    healed = target.pieces[0]
    host.disk.rewrite("/srv/data/a", healed.offset)
    assert host.disk.direct_read("/srv/data/a", healed.offset, 8 * SECTOR)
    after = evidence(host, target, TAG, 0)
    assert after.counters["healed_blocks"] == 1 and f"sector {healed.start}+8: healed" in after.notes[0]
    with pytest.raises(ApplyError, match="read well instead"):
        prove(host, target)


def test_evidence_tells_what_became_of_the_file(host: SimulatedHost) -> None:
    _, target = planted(host, file="/srv/data/a")
    host.kernel.files["/srv/data/a"].extents = [Extent(0, 2048 * SECTOR, 64 * 1024, frozenset({"last"}))]
    assert "no longer maps to 1 of the 1" in evidence(host, target, TAG, 0).notes[0]
    with pytest.raises(ApplyError, match="was moved"):
        prove(host, target)
    host.kernel.files["/srv/data/a"].inode = 99
    assert "another file now" in evidence(host, target, TAG, 0).notes[0]
    del host.kernel.files["/srv/data/a"]
    seen = evidence(host, target, TAG, 0)
    assert "is gone" in seen.notes[0] and seen.armed


def test_log_lines_may_name_an_earlier_sector_and_never_another_disk(host: SimulatedHost) -> None:
    _, target = planted(host, range="4096+8")
    host.kernel.log = [
        LogRecord(n, 0, 3, f"I/O error, dev {device}, sector {sector} op 0x0:(READ) flags 0x80700")
        for n, (device, sector) in enumerate(
            [("loop0", 3840), ("loop0", 4103), ("loop0", 3839), ("loop0", 4104), ("sda", 4096), ("loop1", 4096)]
        )
    ]
    seen = evidence(host, target, TAG, 0)
    assert [line.split("sector ")[1].split()[0] for line in seen.log] == ["3840", "4103"] and not seen.log_gap
    host.kernel.log.append(LogRecord(6, 0, 3, "blk_print_req_error: 7 callbacks suppressed"))
    assert evidence(host, target, TAG, 0).log_gap and "rate-limited" in evidence(host, target, TAG, 0).notes[0]


def test_two_on_one_disk_compose_and_one_place_is_held_once(host: SimulatedHost) -> None:
    planted(host, range="4096+8")
    facts = facts_of(host)
    with pytest.raises(ConflictError, match=f"{TAG}-snap-0"):
        fault(range="4096+16").locate(host, facts)
    other = fault(range="4104+8")
    target = other.locate(host, facts)
    for step in other.steps(facts, target, "groundfault-inj-2"):
        step.capture(host)
        step.apply(host)
    assert evidence(host, target, "groundfault-inj-2", 0).armed


def test_a_disk_that_is_bad_already_is_no_target(host: SimulatedHost) -> None:
    facts = facts_of(host)
    place = fault(file="/srv/data/a", seed=5).locate(host, facts).pieces[0]
    number = host.dm.create("broken", [DmTarget(0, 8192, "error", "")]).number
    broken = put_in(host.dm.table("data"), [DmTarget(place.start, 8, "linear", f"{number} 0")])
    host.dm.swap("data", broken)
    with pytest.raises(AgentError, match="as it is"):
        fault(file="/srv/data/a", seed=5).locate(host, facts)


def test_a_mark_that_is_the_start_of_another_is_told_apart() -> None:
    state = {"dm": {"groundfault-lse-12-bad": "0 8 zero"}, "loop": {"/dev/loop0": "groundfault-lse-12-bad"}}
    assert residue_of("lse-1", state, ("lse-1", "lse-12")) == ()
    assert len(residue_of("lse-12", state, ("lse-1", "lse-12"))) == 2
    assert {d.injection for d in compare({}, state, ("lse-1", "lse-12"))} == {"lse-12"}
