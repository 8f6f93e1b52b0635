"""The benchmark's arithmetic and its plot, on canned measurements of guests."""

from __future__ import annotations

import json
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from tests.bench.ebpf import report
from tests.bench.ebpf.plot import CALLS, ROWS, dots, svg

BENCH = Path(report.__file__).parent
COSTS = {"groundfault": 1080.0, "fmod_ret": 1090.0, "kprobe": 1200.0, "seccomp": 1070.0, "strace": 16000.0}


def lines(bystander: float = 1080.0) -> list[dict[str, Any]]:
    """What a guest would say in which nothing loaded costs 1,000."""
    said: list[dict[str, Any]] = [
        {"kernel": "6.12.0-lab"},
        {"timing": "add", "kind": "unit", "rules": 1, "ns": []},
        {"timing": "add", "kind": "unit", "rules": 10, "ns": [8_000_000, 10_000_000, 90_000_000]},
    ]
    for call, _ in CALLS:
        said += [{"call": call, "mechanism": "nothing", "situation": "nothing loaded", "rules": 0, "ns": ns}
                 for ns in (1010.0, 1000.0)]  # fmt: skip
        said.append({"call": call, "mechanism": "groundfault", "situation": "rule for another hook", "rules": 1,
                     "ns": 1000.0})  # fmt: skip
        for _, mechanism, situation, rules in ROWS:
            cost = 1000.0 if situation == "loaded" else COSTS[mechanism]
            if (mechanism, situation, rules) == ("groundfault", "other unit", 1000):
                cost = bystander
            said.append({"call": call, "mechanism": mechanism, "situation": situation, "rules": rules, "ns": cost})
    return said


def whole(bystander: float = 1080.0) -> dict[str, Any]:
    runs = [report.run_of(lines(bystander), name, "instructions") for name in ("lab", "stock", "two")]
    return report.whole({"cores": 2}, runs)


def test_ratios_are_to_the_least_that_nothing_cost() -> None:
    run = report.run_of(lines(), "lab", "instructions")
    assert run["kernel"] == "6.12.0-lab" and run["unit"] == "instructions"
    assert report.ratio(run, "pread", "groundfault", "other unit", 10) == 1.08
    assert report.ratio(run, "connect", "strace", "other call", 1) == 16.0
    with pytest.raises(LookupError, match=r"nothing measured for .*'kprobe', 'other process', 77"):
        report.ratio(run, "pread", "kprobe", "other process", 77)


def test_times_are_told_in_milliseconds() -> None:
    assert whole()["runs"][2]["timings"] == [
        {"timing": "add", "kind": "unit", "rules": 10, "count": 3, "median_ms": 10.0, "max_ms": 90.0}
    ]


def test_what_was_to_be_reached() -> None:
    met = {name: check["met"] for name, check in whole()["reach"].items()}
    assert met == {
        "no rule for a hook costs nothing": True,
        "1,000 rules for others: at most 10 % on pread": True,
        "independent of the number of rules": True,
        "below kprobe, other process": True,
        "below fmod_ret, other process": True,
        "below seccomp, other call": False,  # 1.07
        "below strace, other call": True,
        "rule update at most 5 ms at one instruction a nanosecond": False,  # 10 ms
    }
    missed = whole(1101.0)["reach"]
    assert missed["1,000 rules for others: at most 10 % on pread"] == {"measured": 1.101, "met": False}
    assert not missed["independent of the number of rules"]["met"]


def test_the_result_is_json() -> None:
    result = whole()
    assert json.loads(json.dumps(result)) == result
    assert list(result) == ["machine", "reach", "runs"]


def test_the_plot_has_every_row_of_every_call() -> None:
    picture = svg(whole()["runs"][0])
    root = ET.fromstring(picture)
    texts = [node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}text")]
    for _, title in CALLS:
        assert title in texts
    for label, *_ in ROWS:
        assert texts.count(label) == len(CALLS)
    assert texts.count("+8.0 %") == 4 * len(CALLS) and texts.count("16.0 times") == len(CALLS)
    assert texts.count("nothing") == len(CALLS)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for dot in root.iter("{http://www.w3.org/2000/svg}circle"):
        assert 0 < float(dot.attrib["cx"]) < width and 0 < float(dot.attrib["cy"]) < height


def test_what_was_not_measured_is_left_out() -> None:
    run = report.run_of([line for line in lines() if line.get("mechanism") != "kprobe"], "stock", "instructions")
    shown = dots(run["results"], "pread")
    assert len(shown) == len(ROWS) - 2 and all(dot.mechanism != "kprobe" for dot in shown)


@pytest.mark.parametrize("call", ["pread", "openat", "connect"])
@pytest.mark.parametrize("seccomp", ["none", "other", "errno"])
def test_the_loop_makes_its_calls(tmp_path: Path, call: str, seccomp: str) -> None:
    """As the bench runs it in a guest: nothing fails but what seccomp was asked to fail."""
    loop, page = tmp_path / "loop", tmp_path / "page"
    page.write_bytes(bytes(8192))
    subprocess.run(
        ["gcc", "-O2", "-static", "-Wall", "-Werror", "-o", str(loop), str(BENCH / "loop.c")], check=True
    )
    argv = [str(loop), call, "50", "3", seccomp]
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, env={"LOOP_FILE": str(page)}
    )
    ready, *numbers = done.stdout.split()
    times, (failures, made) = [float(n) for n in numbers[:-2]], (int(n) for n in numbers[-2:])
    assert ready == "ready" and len(times) == 3 and min(times) > 0
    assert made == 6 + 3 * 50 and failures == (made if seccomp == "errno" else 0)
