"""Table arithmetic: cutting, merging, overlaying and taking overlays off in any order."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.fault import tag_of
from node_agent.host import DmTarget, LoopInfo
from node_agent.host.dm import pack_table, unpack_table
from node_agent.steps.dm_names import (
    TableLine,
    holder_of,
    lines_of,
    made_devices,
    node_path,
    numbers,
    resolved,
)
from node_agent.steps.dm_overlay import DmOverlay
from node_agent.steps.dm_tables import (
    Table,
    cut_out,
    fill,
    length_of,
    merge,
    parse_table,
    part_of,
    place_of,
    put_in,
    render_table,
)
from tests.contract.simulated import SimulatedHost, fresh_kernel


@st.composite
def linear_tables(draw: st.DrawFn) -> Table:
    """Canonical tables of linear lines over a few disks."""
    lines, start = [], 0
    for _ in range(draw(st.integers(1, 5))):
        length = draw(st.integers(1, 400))
        lines.append(DmTarget(start, length, "linear", f"8:{draw(st.integers(0, 2))} {draw(st.integers(0, 999))}"))
        start += length
    return merge(lines)


@st.composite
def tables_and_ranges(draw: st.DrawFn) -> tuple[Table, list[tuple[int, int]]]:
    """A table, and ranges of it that do not overlap, in any order."""
    table = draw(linear_tables())
    cuts = sorted(draw(st.sets(st.integers(0, length_of(table)), min_size=2, max_size=10)))
    ranges = [(a, b) for a, b in pairwise(cuts) if draw(st.booleans())]
    return table, draw(st.permutations(ranges or [(cuts[0], cuts[1])]))


@given(tables_and_ranges(), st.data())
def test_overlays_compose_and_end_in_any_order(
    case: tuple[Table, list[tuple[int, int]]], data: st.DataObject
) -> None:
    original, ranges = case
    table = original
    saved = {}
    for number, (start, end) in enumerate(ranges):
        saved[start, end] = cut_out(original, start, end)
        table = put_in(table, [DmTarget(start, end - start, "linear", f"253:{number} {start}")])
        assert length_of(table) == length_of(original) and merge(table) == table
    for start, end in data.draw(st.permutations(ranges)):
        table = put_in(table, saved[start, end])
        assert length_of(table) == length_of(original) and merge(table) == table
    assert table == original
    assert render_table(table) == render_table(original)


@given(tables_and_ranges())
def test_every_sector_keeps_its_place(case: tuple[Table, list[tuple[int, int]]]) -> None:
    table, ranges = case
    for start, end in ranges:
        for sector in {start, (start + end) // 2, end - 1}:
            line = next(t for t in table if t.start <= sector < t.start + t.length)
            part = next(t for t in cut_out(table, start, end) if t.start <= sector < t.start + t.length)
            assert place_of(part, sector) == place_of(line, sector)


@given(linear_tables())
def test_text_and_wire_round_trips(table: Table) -> None:
    assert parse_table(render_table(table)) == table
    assert tuple(line.as_target() for line in lines_of(table)) == table
    # DM_TABLE_LOAD counts `next` from each spec, DM_TABLE_STATUS from the first one
    packed = bytearray(pack_table(table))
    at = 0
    while at < len(packed):
        step = int.from_bytes(packed[at + 20 : at + 24], "little")
        packed[at + 20 : at + 24] = (at + step).to_bytes(4, "little")
        at += step
    assert unpack_table(len(table), bytes(packed)) == table


def test_fill_puts_lines_into_a_table_of_one_kind() -> None:
    line = DmTarget(8, 8, "linear", "dm:x 8")
    assert render_table(fill([line], 32, "error")) == "0 8 error\n8 8 linear dm:x 8\n16 16 error"
    assert fill([DmTarget(0, 32, "linear", "dm:x 0")], 32, "zero") == (DmTarget(0, 32, "linear", "dm:x 0"),)


def test_what_cannot_be_cut_is_not_cut() -> None:
    with pytest.raises(ValueError, match="crypt is not linear"):
        part_of(DmTarget(0, 16, "crypt", "aes 0 8:0 0"), 0, 8)
    with pytest.raises(ValueError, match="not within"):
        put_in((DmTarget(0, 16, "linear", "8:0 0"),), [DmTarget(12, 8, "zero", "")])
    with pytest.raises(ValueError, match="not a device-mapper"):
        parse_table("0 8")


def test_the_mark_of_a_device_is_the_mark_of_an_injection() -> None:
    host = SimulatedHost(fresh_kernel())
    assert made_devices(host) == {}
    made = host.dm.create(f"{tag_of('a')}-bad", [DmTarget(0, 8, "error", "")])
    assert made_devices(host) == {made.number: f"{tag_of('a')}-bad"}


def _overlay(host: SimulatedHost, name: str, *ranges: tuple[int, int]) -> DmOverlay:
    host.dm.create(name, [DmTarget(0, 8192, "error", "")])
    table = host.dm.table("data")
    return DmOverlay(
        device="data",
        lines=tuple(TableLine(start=a, length=b - a, kind="linear", args=f"dm:{name} {a}") for a, b in ranges),
        base=lines_of(line for a, b in ranges for line in cut_out(table, a, b)),
    )


@given(
    st.lists(st.integers(0, 63), min_size=1, max_size=12, unique=True),
    st.integers(1, 4),
    st.data(),
)
def test_overlay_steps_compose(blocks: list[int], count: int, data: st.DataObject) -> None:
    host = SimulatedHost(fresh_kernel())
    plain = host.dm.table("data")
    steps = []
    for number in range(count):
        mine = [(b * 8, b * 8 + 8) for b in blocks[number::count]]
        if mine:
            steps.append(_overlay_from(host, f"groundfault-i{number}-x", mine, plain))
    for step in data.draw(st.permutations(steps)):
        again = data.draw(st.integers(1, 2))
        for _ in range(again):
            step.revert(host, None)
        assert step.leftovers(host, None) == ()
    assert host.dm.table("data") == plain


def _overlay_from(host: SimulatedHost, name: str, ranges: list[tuple[int, int]], plain: Table) -> DmOverlay:
    host.dm.create(name, [DmTarget(0, 8192, "error", "")])
    step = DmOverlay(
        device="data",
        lines=tuple(TableLine(start=a, length=b - a, kind="linear", args=f"dm:{name} {a}") for a, b in ranges),
        base=lines_of(line for a, b in ranges for line in cut_out(plain, a, b)),
    )
    assert step.capture(host) == {}
    step.apply(host)
    assert step.leftovers(host, None)
    return step


def test_overlay_that_never_was_reverts_to_nothing() -> None:
    host = SimulatedHost(fresh_kernel())
    step = _overlay(host, "groundfault-a-x", (16, 24))
    host.dm.remove("groundfault-a-x")
    changes = host.changes
    step.revert(host, None)
    assert host.changes == changes and step.leftovers(host, None) == ()


def test_names_become_numbers() -> None:
    host = SimulatedHost(fresh_kernel())
    bad = host.dm.create("groundfault-a-bad", [DmTarget(0, 64, "zero", "")])
    loop = host.loop.attach(node_path(bad.number), direct_io=True)
    line = TableLine(start=0, length=64, kind="snapshot", args="loop:groundfault-a-bad dm:data N 8")
    known = numbers(host, [line])
    assert resolved(line, known).args == f"{loop.number} 252:0 N 8"
    made = made_devices(host)
    assert made == {bad.number: "groundfault-a-bad", loop.number: "groundfault-a-bad"}
    assert holder_of(DmTarget(0, 8, "linear", f"{loop.number} 0"), made) == "groundfault-a-bad"
    assert holder_of(DmTarget(0, 8, "linear", "8:16 0"), made) == ""
    assert holder_of(DmTarget(0, 8, "crypt", "x"), made) == "crypt"
    with pytest.raises(OSError, match="no such device"):
        resolved(TableLine(start=0, length=8, kind="linear", args="dm:gone 0"), {})
    assert isinstance(loop, LoopInfo)


def test_ten_thousand_ranges_of_four_tebibytes() -> None:
    size = 4 * 2**40 // 512
    plain = (DmTarget(0, size, "linear", "8:0 0"),)
    bad = [DmTarget(8 + n * 800_000, 8, "linear", f"7:0 {8 + n * 800_000}") for n in range(10_000)]
    began = time.monotonic()
    table = put_in(plain, bad)
    assert len(table) == 20_001 and length_of(table) == size
    assert put_in(table, [part_of(plain[0], t.start, t.start + t.length) for t in bad]) == plain
    assert time.monotonic() - began < 5


def test_a_disk_that_came_back_under_another_number() -> None:
    kernel = fresh_kernel()
    host = SimulatedHost(kernel)
    host.dm.create(f"{tag_of('a')}-bad", [DmTarget(0, 8192, "error", "")])
    step = DmOverlay(
        device="data",
        lines=(TableLine(start=8, length=8, kind="linear", args=f"dm:{tag_of('a')}-bad 8"),),
        base=(TableLine(start=8, length=8, kind="linear", args="8:16 8"),),
    )
    step.apply(host)
    number, table = kernel.dm["data"]
    kernel.dm["data"] = (
        number,
        tuple(DmTarget(t.start, t.length, t.kind, t.args.replace("8:16", "8:32")) for t in table),
    )
    step.revert(host, {})
    assert kernel.dm["data"][1] == (DmTarget(0, 8192, "linear", "8:32 0"),)
