"""From extents and ranges to bad sectors: what is chosen, and what is refused by name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disk_faults.places import choose, layout_of, parse_range, pieces_of_range
from node_agent.errors import ConflictError, Refusal
from node_agent.host import SECTOR, DmTarget, Extent
from node_agent.host.fiemap import FLAGS, flag_names, pack_request, unpack_reply

PLAIN = (DmTarget(0, 1 << 20, "linear", "8:16 2048"),)
BLOCK = 8 * SECTOR


def extent(logical: int, physical: int, blocks: int, *flags: str) -> Extent:
    return Extent(logical * BLOCK, physical * BLOCK, blocks * BLOCK, frozenset(flags))


@st.composite
def files(draw: st.DrawFn) -> list[Extent]:
    found, logical, physical = [], 0, 1
    for _ in range(draw(st.integers(1, 6))):
        logical += draw(st.integers(0, 3))
        physical += draw(st.integers(0, 50))
        blocks = draw(st.integers(1, 20))
        found.append(
            extent(logical, physical, blocks, *draw(st.sets(st.sampled_from(["last", "merged", "unwritten"]))))
        )
        logical, physical = logical + blocks, physical + blocks
    return found


@given(files(), st.integers(0, 2**63 - 1), st.data())
def test_choice_is_of_the_files_own_written_blocks(extents: list[Extent], seed: int, data: st.DataObject) -> None:
    size = extents[-1].logical + extents[-1].length - data.draw(st.integers(0, BLOCK - 1))
    layout = layout_of(extents, size, 8, PLAIN)
    good = [e for e in extents if "unwritten" not in e.flags]
    assert layout.units == sum(e.length for e in good) // BLOCK
    if not layout.units:
        return
    count = data.draw(st.integers(1, layout.units))
    pieces = choose(layout, count, 8, seed=seed, table=PLAIN, made={})
    assert pieces == choose(layout, count, 8, seed=seed, table=PLAIN, made={})
    assert len({p.start for p in pieces}) == count and list(pieces) == sorted(pieces, key=lambda p: p.start)
    for p in pieces:
        assert p.length == 8 and p.start > 0 and (p.base, p.base_start) == ("8:16", p.start + 2048)
        assert any(
            e.logical <= p.offset < e.logical + e.length and e.physical + p.offset - e.logical == p.start * SECTOR
            for e in good
        )


@pytest.mark.parametrize("flag", sorted(set(FLAGS.values()) - {"last", "merged"}))
def test_extents_with_a_flag_are_never_chosen(flag: str) -> None:
    layout = layout_of([extent(0, 100, 4, flag, "last")], 4 * BLOCK, 8, PLAIN)
    assert layout.units == 0 and layout.why_not() == f"{flag}: 16384 bytes"


def test_unknown_flags_are_refused_too() -> None:
    assert flag_names(0x4000_0001) == {"last", "flag_0x40000000"}
    layout = layout_of([Extent(0, 819200, 4096, flag_names(0x4000_0000))], 4096, 8, PLAIN)
    assert layout.units == 0 and "flag_0x40000000" in layout.why_not()


def test_never_sector_zero_and_never_a_hole() -> None:
    layout = layout_of([extent(0, 0, 1, "last")], 10 * BLOCK, 8, PLAIN)
    assert layout.units == 0
    assert layout.why_not() == "hole: 36864 bytes, no place: 4096 bytes"


def test_misaligned_places_are_refused_by_name() -> None:
    layout = layout_of([Extent(0, 100 * BLOCK + SECTOR, BLOCK, frozenset())], BLOCK, 8, PLAIN)
    assert layout.why_not() == "not_aligned: 4096 bytes"


def test_preallocation_after_the_end_is_not_the_files() -> None:
    layout = layout_of([extent(0, 100, 8, "last")], 2 * BLOCK + 1, 8, PLAIN)
    assert layout.units == 3


def test_blocks_on_two_lines_of_the_table_are_left_out() -> None:
    table = (DmTarget(0, 804, "linear", "8:16 0"), DmTarget(804, 1000, "linear", "8:32 0"))
    layout = layout_of([extent(0, 100, 3, "last")], 3 * BLOCK, 8, table)
    assert layout.units == 2 and "two lines" in layout.why_not()
    pieces = choose(layout, 2, 8, seed=1, table=table, made={})
    assert [(p.base, p.base_start) for p in pieces] == [("8:32", 4), ("8:32", 12)]


def test_the_same_seed_is_the_same_place_and_its_holder_is_named() -> None:
    layout = layout_of([extent(0, 100, 1, "last")], BLOCK, 8, PLAIN)
    held = (*PLAIN[:0], DmTarget(0, 800, "linear", "8:16 0"), DmTarget(800, 8, "linear", "253:7 800"))
    with pytest.raises(ConflictError, match="groundfault-i1-snap-0") as refused:
        choose(layout, 1, 8, seed=0, table=held, made={"253:7": "groundfault-i1-snap-0"})
    assert refused.value.field == "file"


@pytest.mark.parametrize("text", ["", "8", "8+", "+8", "8+0", "-1+8", "8 + 8", "0x8+8", "8+8+8", "1e3+8"])
def test_ranges_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"START\+COUNT"):
        parse_range(text)


@pytest.mark.parametrize(
    ("start", "count", "units"), [(2048, 8, [8]), (2048, 24, [8] * 3), (2049, 3, [1] * 3), (8, 12, [1] * 12)]
)
def test_ranges_in_whole_blocks_or_in_sectors(start: int, count: int, units: list[int]) -> None:
    pieces = pieces_of_range(start, count, PLAIN, 1 << 20, {})
    assert [p.length for p in pieces] == units
    assert [p.start for p in pieces] == [start + sum(units[:n]) for n in range(len(units))]


@pytest.mark.parametrize(("start", "count"), [(1 << 20, 8), ((1 << 20) - 4, 8), (0, 520), (1, 65)])
def test_ranges_past_the_end_or_too_long(start: int, count: int) -> None:
    with pytest.raises(Refusal) as refused:
        pieces_of_range(start, count, PLAIN, 1 << 20, {})
    assert refused.value.field == "range" and refused.value.allowed


def test_a_range_that_is_held_names_the_holder() -> None:
    held = (DmTarget(0, 800, "linear", "8:16 0"), DmTarget(800, 8, "linear", "253:7 800"))
    with pytest.raises(ConflictError, match="sector 800 is held by groundfault-x-snap-0"):
        pieces_of_range(792, 16, held, 808, {"253:7": "groundfault-x-snap-0"})


def test_fiemap_reply() -> None:
    request = bytearray(pack_request(4096, True))
    assert int.from_bytes(request[16:20], "little") == 1, "FIEMAP_FLAG_SYNC"
    assert int.from_bytes(pack_request(0, False)[16:20], "little") == 0
    request[20:24] = (1).to_bytes(4, "little")
    for at, value, size in ((32, 4096, 8), (40, 81920, 8), (48, 8192, 8), (72, 0x2801, 4)):
        request[at : at + size] = value.to_bytes(size, "little")
    (one,) = unpack_reply(bytes(request))
    assert one == Extent(4096, 81920, 8192, frozenset({"last", "unwritten", "shared"}))
