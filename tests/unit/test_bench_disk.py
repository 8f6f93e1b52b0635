"""The disk benchmark's arithmetic, its reading of fio, and its plot, on canned measurements."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from tests.bench.disk import counted, fio, latency, report
from tests.bench.disk.plot import svg

READ = {"iops": 100.0, "bw_bytes": 2**20, "total_ios": 10, "lat_ns": {"max": 5_000_000}}
WRITE = {"iops": 50.0, "bw_bytes": 2**19, "total_ios": 5, "lat_ns": {"max": 7_000_000}}
FIO = {"jobs": [{"error": 0, "total_err": 2, "read": READ, "write": WRITE}]}
ERRORS = """fio: io_u error on file /srv/data/victim: Input/output error: read offset=1994752, buflen=4096
fio: io_u error on file /srv/data/victim: Input/output error: write offset=0, buflen=512
"""


def lines(unit: str, linear: float, fuse: float) -> list[dict[str, Any]]:
    """Ten rounds that get dearer from one to the next, as on a busy machine: only pairs show the share."""
    found = []
    for job in counted.JOBS:
        for number in range(1, 11):
            bare = 1000.0 * number
            for arm in job["arms"]:
                part = {"linear": linear, "linear, disk": linear, "fuse": fuse}.get(arm, 1.0)
                value = bare / part if unit == "instructions" else bare * part
                found.append({"job": job["name"], "arm": arm, "round": number, unit: value})
    return found


def result(linear: float = 0.98, p99: float = 0.09, outside: int = 0) -> dict[str, Any]:
    times = {"inject": report.times([0.05] * 98 + [p99] * 2), "recover": report.times([0.05] * 100)}
    whole: dict[str, Any] = {
        "machine": {"accelerator": "tcg"},
        "latency": {"latent_sector_error": {"idle": times, "load": {**times, "errors": 0}}},
        "reader": {"inside": 3, "outside": outside},
        "timed": report.ratios(lines("mib_s", linear, 0.3), "mib_s"),
        "counted": report.ratios(lines("instructions", linear, 0.3), "instructions"),
    }
    return whole | {"reach": report.reach(whole)}


def test_percentiles_are_measured_values() -> None:
    assert [report.percentile(range(1, 101), p) for p in (1, 50, 99, 100)] == [1, 50, 99, 100]
    assert report.percentile([5.0, 1.0, 3.0], 99) == 5.0, "of few runs it is the worst"
    assert report.times([0.1, 0.3, 0.2]) == {
        "n": 3,
        "p50_ms": 200.0,
        "p99_ms": 300.0,
        "min_ms": 100.0,
        "max_ms": 300.0,
    }


def test_shares_are_of_pairs() -> None:
    for unit in ("mib_s", "instructions"):
        rows = report.ratios(lines(unit, 0.98, 0.3), unit)
        assert len(rows) == sum(len(job["arms"]) for job in counted.JOBS)
        for row in rows:
            wanted = {"linear": 0.98, "linear, disk": 0.98, "fuse": 0.3}.get(row["arm"], 1.0)
            assert (row["share"], row["low"], row["high"], row["n"]) == (wanted, wanted, wanted, 10)


def test_an_interval_holds_the_median_and_grows_with_the_scatter() -> None:
    calm, wild = [1.0, 1.01, 0.99] * 10, [1.0, 1.5, 0.5] * 10
    assert report.interval(calm)[0] <= 1.0 <= report.interval(calm)[1]
    assert (
        report.interval(wild)[1] - report.interval(wild)[0] > report.interval(calm)[1] - report.interval(calm)[0]
    )


def test_what_was_to_be_reached() -> None:
    met = {name: check["met"] for name, check in result()["reach"].items()}
    assert all(met.values()) and len(met) == 2 + 1 + 1 + 2 * (5 + 3)
    missed = {name for name, check in result(0.96, 0.101, 1)["reach"].items() if not check["met"]}
    assert any("inject under load" in name for name in missed) and not any("recover" in name for name in missed)
    assert any("bad places only" in name for name in missed)
    assert sum("at least 97%" in name for name in missed) == 2 * 5
    with pytest.raises(LookupError, match=r"nothing measured for sleep, linear"):
        report.share(result()["timed"], "sleep", "linear")


def test_fio_is_understood() -> None:
    run = fio.understood(f"some words of fio\n{json.dumps(FIO)}", ERRORS)
    assert (run.iops, run.mib_s, run.calls, run.total_errors, run.longest_s) == (150.0, 1.5, 15, 2, 0.007)
    assert run.errors[0] == fio.IoError("/srv/data/victim", "Input/output error", "read", 1994752, 4096)
    assert [e.operation for e in run.errors] == ["read", "write"]


def test_a_job_is_one_command_line() -> None:
    argv = fio.job("load", "/srv/data/x", rw="randrw", size_mib=64, runtime="2")
    assert argv[0] == "fio" and {"--direct=1", "--rw=randrw", "--size=64m", "--runtime=2"} <= set(argv)


def test_a_target_says_where_it_is() -> None:
    target = "/srv/data/victim at byte 1994752: sector 274232+8 of data (device 8:0, sector 274232)"
    assert latency._places(target) == [(1994752, 4096)]


def test_parts_of_the_time() -> None:
    rows = [{"a": 1.0, "b": 5.0, "dm: suspend and resume": 3.0}, {"a": 2.0}, {"a": 3.0, "b": 7.0}]
    assert latency.medians(rows) == {"b": 5.0, "a": 2.0, "dm: suspend and resume": 0.0}
    assert latency.standstills(rows) == [0.003, 0.0, 0.0]


def test_the_plot_has_every_row() -> None:
    whole = result()
    root = ET.fromstring(svg(whole))
    texts = [node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "latent_sector_error: inject, full load" in texts and "50, 90" in texts
    assert sum("FUSE" in text for text in texts) == 2 * len(counted.JOBS)
    assert texts.count("98.0 %") == 2 * 5 and texts.count("30.0 %") == 2 * 3
    width = float(root.attrib["width"])
    for dot in root.iter("{http://www.w3.org/2000/svg}circle"):
        assert 0 < float(dot.attrib["cx"]) < width
