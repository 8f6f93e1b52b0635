"""What a bad wire does to frames, by arithmetic and by real sockets."""

from __future__ import annotations

import json
import socket
import struct
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labctl.errors import UsageError
from labctl.hardware.faults.link_degraded import LinkDegraded
from labctl.hardware.wire import Carrier, Quality, Wire, counters_of, frames, sockets
from tests.user import until

MINE, PEER, OTHER = "52:54:00:67:02:01", "52:54:00:67:02:02", "52:54:00:67:02:03"


def frame(to: str = PEER, by: str = MINE, payload: int = 50) -> bytes:
    return bytes.fromhex((to + by).replace(":", "")) + b"\x08\x00" + bytes(payload)


def runs(lost: list[bool]) -> list[int]:
    """How many are lost in a row, each time."""
    text = "".join("x" if one else "." for one in lost)
    return [len(run) for run in text.split(".") if run]


def lose(quality: Quality, count: int = 40_000) -> list[bool]:
    wire = Wire(quality)
    return [wire.arrives("out", frame(), n / 1000) is None for n in range(count)]


def test_each_frame_is_lost_for_itself() -> None:
    lost = lose(Quality(loss=0.1))
    assert sum(lost) / len(lost) == pytest.approx(0.1, abs=0.01)
    assert sum(runs(lost)) / len(runs(lost)) == pytest.approx(1 / 0.9, abs=0.03), "the mean of a geometric one"


def test_frames_are_lost_in_bursts() -> None:
    lost = lose(Quality(loss=0.1, burst=8))
    assert sum(lost) / len(lost) == pytest.approx(0.1, abs=0.02)
    assert sum(runs(lost)) / len(runs(lost)) == pytest.approx(8, abs=1)


def test_the_same_seed_loses_the_same_frames() -> None:
    assert lose(Quality(loss=0.3, seed=5), 200) == lose(Quality(loss=0.3, seed=5), 200)
    assert lose(Quality(loss=0.3, seed=5), 200) != lose(Quality(loss=0.3, seed=6), 200)


def test_large_payloads_vanish() -> None:
    wire = Wire(Quality(mtu=1000))
    assert wire.arrives("out", frame(payload=1000), 1.0) == 1.0
    assert wire.arrives("in", frame(payload=1001), 1.0) is None
    assert wire.counters == {"seen": 2, "lost": 0, "too_long": 1, "late": 0}


def test_one_way_one_peer_and_the_rest_is_as_it_was() -> None:
    wire = Wire(Quality(loss=1.0, ways=("out",), peers=(PEER,)))
    assert wire.arrives("out", frame(to=PEER), 0.0) is None
    assert wire.arrives("in", frame(to=MINE, by=PEER), 0.0) == 0.0
    assert wire.arrives("out", frame(to=OTHER), 0.0) == 0.0
    assert wire.counters["seen"] == 1


def test_a_slow_wire_has_a_queue_that_is_not_endless() -> None:
    wire = Wire(Quality(bytes_per_s=1000))
    found = [wire.arrives("out", frame(payload=86), 0.0) for _ in range(20)]
    assert found[:3] == pytest.approx([0.1, 0.2, 0.3])
    assert found[-1] is None and wire.counters["lost"] >= 8


def test_bad_for_a_while_and_well_for_a_while() -> None:
    wire = Wire(Quality(loss=1.0, on_s=2, off_s=3))
    assert [wire.arrives("out", frame(), at) is None for at in (0.5, 1.9, 2.1, 4.9, 5.1)] == [1, 1, 0, 0, 1]


@given(st.lists(st.floats(0, 0.01), max_size=60), st.floats(0, 0.5), st.floats(0, 0.5))
def test_nothing_overtakes(gaps: list[float], delay: float, jitter: float) -> None:
    wire, now, due = Wire(Quality(delay_s=delay, jitter_s=jitter)), 0.0, []
    for gap in gaps:
        now += gap
        due.append(wire.arrives("out", frame(), now) or 0.0)
        assert due[-1] >= now
    assert due == sorted(due)


@given(st.lists(st.binary(max_size=40), max_size=10), st.integers(1, 7))
def test_frames_come_in_pieces(sent: list[bytes], size: int) -> None:
    stream = b"".join(struct.pack("!I", len(one)) + one for one in sent)
    buffer, found = bytearray(), []
    for at in range(0, len(stream), size):
        buffer += stream[at : at + size]
        found += frames(buffer)
    assert found == sent and not buffer


def test_frames_are_carried_until_qemu_hangs_up(tmp_path: Path) -> None:
    base = tmp_path / "w1.gf-x"
    carrier = Carrier(base, Wire(Quality(mtu=100)))
    thread = threading.Thread(target=carrier.run)
    thread.start()
    until("it listens", lambda: counters_of(base).exists(), 20)
    ends = {}
    for end, path in sockets(base).items():
        ends[end] = socket.socket(socket.AF_UNIX)
        ends[end].settimeout(20)
        ends[end].connect(str(path))
    for way in ("out", "in"):
        for sent in (frame(payload=200), frame(payload=20)):
            ends[way, "from"].sendall(struct.pack("!I", len(sent)) + sent)
        assert ends[way, "to"].recv(1000)[4:] == frame(payload=20), "the long one is gone"
    until("it is told", lambda: json.loads(counters_of(base).read_text())["too_long"] == 2, 20)
    for channel in ends.values():
        channel.close()
    thread.join(20)
    assert not thread.is_alive() and list(tmp_path.iterdir()) == [], "nothing stays"


@pytest.mark.parametrize(
    ("given_", "text"),
    [
        ({"loss_percent": 0}, "nothing is bad"),
        ({"loss_percent": 90, "burst": 2}, "burst: 2 is too short"),
        ({"schedule": "every:3"}, "bad by time"),
        ({"direction": "up"}, "direction"),
    ],
)
def test_what_makes_no_sense_is_refused(given_: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        LinkDegraded.model_validate(given_)


class Here:
    """As much of a bench as it takes to find a place."""

    class node:
        name = "w2"


def test_peers_are_nodes_by_name_or_by_address() -> None:
    named = LinkDegraded(peers=("w1", "10.77.0.3", "fe80::5054:ff:fe67:203", "w3"))
    place = named.locate(Here)  # type: ignore[arg-type]
    assert place.names == ("w1", "w3") and place.peers == (MINE, OTHER)
    for peer, text in (("db", "no node"), ("10.77.0.2", "the node itself")):
        with pytest.raises(UsageError, match=text):
            LinkDegraded(peers=(peer,)).locate(Here)  # type: ignore[arg-type]
