"""Signs of a failure: what is declared, and whether it is seen since a mark."""

from __future__ import annotations

import json

import pytest

from node_agent import signs
from node_agent.errors import Refusal
from node_agent.host import LogRecord
from node_agent.signs import Mark, Sign, in_log, named, rises
from tests.contract.simulated import Kernel, SimulatedHost

_COUNTER = "/sys/block/sda/device/ioerr_cnt"


def _log(kernel: Kernel, text: str) -> None:
    kernel.log.append(LogRecord(len(kernel.log), 0, 3, text))


@pytest.fixture
def kernel() -> Kernel:
    kernel = Kernel()
    kernel.texts[_COUNTER] = "0x1e\n"
    return kernel


def test_a_line_counts_from_the_mark_on(kernel: Kernel) -> None:
    host = SimulatedHost(kernel)
    wanted = (in_log("the disk says so", r"critical medium error, dev \S+", "once the file is read"),)
    _log(kernel, "critical medium error, dev sda, sector 8")
    mark = signs.mark(host, wanted)
    (before,) = signs.seen(host, wanted, mark)
    assert (before.seen, before.found, before.when) == (False, "", "once the file is read")
    _log(kernel, "critical medium error, dev sda, sector 16")
    _log(kernel, "something else")
    (after,) = signs.seen(host, wanted, mark)
    assert after.seen and after.found == "critical medium error, dev sda, sector 16"


@pytest.mark.parametrize(
    ("before", "after", "nth", "is_seen"),
    [
        ("0x1e", "0x1f", 0, True),
        ("0x1e", "0x1e", 0, False),
        ("1 2 3", "1 2 4", 2, True),
        ("1 2 3", "1 5 3", 2, False),
        ("7", "", 0, False),  # a device that is gone has counted nothing more
        ("", "3", 0, True),
        ("1", "1", 4, False),
    ],
)
def test_a_counter_rises(kernel: Kernel, before: str, after: str, nth: int, is_seen: bool) -> None:
    host = SimulatedHost(kernel)
    wanted = (rises("errors of the disk", _COUNTER, nth),)
    kernel.texts[_COUNTER] = before
    mark = signs.mark(host, wanted)
    kernel.texts[_COUNTER] = after
    (found,) = signs.seen(host, wanted, Mark.model_validate_json(mark.model_dump_json()))
    assert found.seen is is_seen and " -> " in found.found


_SNMP = "Tcp: RtoMin RetransSegs\nTcp: 200 {}\nUdp: RetransSegs InErrors\nUdp: 77 0\n"


@pytest.mark.parametrize(
    ("name", "is_seen", "found"),
    [("Tcp RetransSegs", True, "5 -> 6"), ("Udp InErrors", False, "0 -> 0"), ("Tcp Gone", False, "0 -> 0")],
)
def test_a_counter_by_its_name(kernel: Kernel, name: str, is_seen: bool, found: str) -> None:
    host, path = SimulatedHost(kernel), "/proc/net/snmp"
    wanted = (named("segments sent again", path, name),)
    kernel.texts[path] = _SNMP.format(5)
    mark = signs.mark(host, wanted)
    kernel.texts[path] = _SNMP.format(6)
    (one,) = signs.seen(host, wanted, mark)
    assert (one.seen, one.found) == (is_seen, found)


def test_a_pattern_is_the_sum_of_its_files(kernel: Kernel) -> None:
    host = SimulatedHost(kernel)
    wanted = (rises("errors of any disk", "/sys/block/*/device/ioerr_cnt"),)
    mark = signs.mark(host, wanted)
    kernel.texts["/sys/block/sdb/device/ioerr_cnt"] = "0x2"
    (found,) = signs.seen(host, wanted, mark)
    assert found.found == "30 -> 32"


@pytest.mark.parametrize(
    "data",
    [
        {"kind": "log"},
        [{"kind": "log", "what": "x", "pattern": "("}],
        [{"kind": "counter", "what": "x", "path": "/etc/shadow"}],
        [{"kind": "counter", "what": "x", "path": "/sys/../etc/shadow"}],
        [{"kind": "other", "what": "x"}],
        [{"kind": "log", "what": "x", "pattern": "y"}] * 65,
    ],
)
def test_what_is_no_sign_is_refused(data: object) -> None:
    with pytest.raises(Refusal):
        signs.signs_of(data)


def test_signs_travel_as_data() -> None:
    wanted = (in_log("a", "b"), rises("c", "/proc/diskstats", 3))
    assert signs.signs_of(json.loads(json.dumps([one.model_dump() for one in wanted]))) == wanted
    assert all(isinstance(one, Sign) for one in wanted)
