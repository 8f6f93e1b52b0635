from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.errors import StorageError
from node_agent.journal import KEEP_CLOSED, Journal, decode, encode

records = st.lists(
    st.dictionaries(st.text(), st.one_of(st.integers(), st.text(), st.none()), max_size=4), max_size=6
)


@given(records, st.integers(min_value=0, max_value=300))
def test_what_is_written_is_read_and_unused_space_is_nothing(written: list[dict[str, object]], spare: int) -> None:
    data = b"".join(encode(r) for r in written) + b"\0" * spare
    assert decode(data) == (written, 0)


@given(records.filter(bool), st.data())
def test_one_flipped_byte_costs_at_most_its_line_and_is_noticed(
    written: list[dict[str, object]], data: st.DataObject
) -> None:
    raw = bytearray(b"".join(encode(r) for r in written))
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] ^= data.draw(st.integers(1, 255))
    read, corrupt = decode(bytes(raw))
    assert [r for r in read if r not in written] == []
    assert corrupt >= 1 or len(read) < len(written) or read == written
    assert len(read) >= len(written) - 2


def test_space_is_reserved_and_appends_stay_inside_it(tmp_path: Path) -> None:
    entry = Journal(tmp_path).create("one", {"rec": "plan"})
    size, blocks = entry.path.stat().st_size, entry.path.stat().st_blocks
    for n in range(100):
        entry.append({"rec": "will", "n": n})
    assert (entry.path.stat().st_size, entry.path.stat().st_blocks) == (size, blocks)
    assert blocks * 512 >= size, "the space is really there, not a hole"


def test_a_torn_last_line_does_not_swallow_the_next(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    entry = journal.create("one", {"rec": "plan"})
    entry.append({"rec": "will", "n": 0})
    with entry.path.open("r+b") as file:
        file.seek(entry.offset - 5)
        file.write(b"\0" * 5)
    ((again, found, corrupt),) = journal.open_entries()
    assert (found, corrupt) == ([{"rec": "plan"}], 1)
    again.append({"rec": "recovering"})
    ((_, found, corrupt),) = journal.open_entries()
    assert (found, corrupt) == ([{"rec": "plan"}, {"rec": "recovering"}], 1)


def test_closing_keeps_history_within_bounds(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for n in range(KEEP_CLOSED + 3):
        journal.close(journal.create(f"i{n}", {"rec": "plan", "n": n}))
    assert list(journal.open_entries()) == []
    kept = [i for i, _ in journal.closed_records()]
    assert len(kept) == KEEP_CLOSED and f"i{KEEP_CLOSED + 2}" in kept and "i0" not in kept


def test_no_directory_no_journal(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(StorageError, match="nothing was changed"):
        Journal(blocker / "journal").create("one", {"rec": "plan"})
