"""Run the benchmark: a lab of one node, then a guest that counts; JSON on standard output, a plot in a file.

Latency: faults planted and taken back over one open connection, while the disk is idle and while fio keeps it
fully busy. Throughput: the same fio jobs on the bare disk, through dm-linear, and through a FUSE pass-through file
system, timed on the node and counted in instructions.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from labctl.lab.model import LabOptions, Node
from labctl.lab.store import lab_dir, open_lab
from labctl.pki import LabAuthority
from labctl.progress import PlainProgress, Progress
from labctl.transport.client import AgentClient
from labctl.transport.connect import connect
from tests.bench.disk import counted, latency, report
from tests.bench.disk.plot import svg
from tests.bench.lab import machine
from tests.lab import lab_up, state_home

FAULTS: Mapping[str, Mapping[str, Any]] = {
    "latent_sector_error": {"file": latency.VICTIM},
    "write_error": {"file": latency.VICTIM},
    "disk_slow": {"read_ms": 5, "write_ms": 5},
}
"""What is planted: in one block of a file, in a whole file, and in the way of the whole disk."""


def latencies(node: Node, authority: LabAuthority, runs: int, progress: Progress) -> dict[str, Any]:
    """Everything that needs an agent."""
    found: dict[str, Any] = {"latency": {}}
    with connect(node, authority) as transport:
        agent = AgentClient(transport)
        agent.probe()
        latency.prepare(node)
        for fault, parameters in FAULTS.items():
            with progress.task(f"{fault}, {runs} times, idle and under load"):
                idle = latency.cycles(agent, runs, fault, parameters)
                loaded, fio = latency.under_load(node, agent, runs, fault, parameters)
            with progress.task(f"{fault}: where the agent's time goes"):
                parts = latency.phases(node, agent, max(3, runs // 3), fault, parameters)
            found["latency"][fault] = {
                "idle": {"inject": report.times(idle.inject), "recover": report.times(idle.recover)},
                "load": {"inject": report.times(loaded.inject), "recover": report.times(loaded.recover),
                         "errors": fio.total_errors, "iops": round(fio.iops),
                         "slowest_io_ms": round(1000 * fio.longest_s)},
                "standstill": {verb: report.times(latency.standstills(rows)) for verb, rows in parts.items()},
                "parts_ms": {verb: latency.medians(rows) for verb, rows in parts.items()},
            }  # fmt: skip
        with progress.task("a reader of bad sectors"):
            reader = latency.errors_of_a_reader(node, agent, 5)
    return found | {"reader": {"inside": reader.inside, "outside": reader.outside}}


@contextmanager
def node_of(lab: str) -> Iterator[tuple[Node, LabAuthority]]:
    """The first node of a running lab, or of one that is made for this and destroyed."""
    if lab:
        yield open_lab(lab).nodes()[0], LabAuthority.ensure(lab_dir(lab) / "pki", lab)
        return
    with tempfile.TemporaryDirectory(prefix="groundfault-bench-") as state, state_home(Path(state)):
        with lab_up("bench-disk", LabOptions(nodes=1, packages=counted.PACKAGES)) as up:
            yield up.nodes[0], up.authority


def main(argv: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the JSON there, too")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write a plot (SVG) there")
    parser.add_argument("--runs", type=int, default=40, help="how often each fault is planted")
    parser.add_argument("--rounds", type=int, default=12, help="how often each way is timed; counted: half of it")
    parser.add_argument(
        "--lab", default="", help="a running lab with fio and bindfs; its data disk is overwritten"
    )
    options = parser.parse_args(list(argv) if argv is not None else None)
    progress = PlainProgress()
    with node_of(options.lab) as (node, authority):
        result: dict[str, Any] = {"machine": machine(), **latencies(node, authority, options.runs, progress)}
        with progress.task("throughput, timed"):
            result["timed"] = report.ratios(counted.time_on(node, options.rounds), "mib_s")
    result["counted"] = report.ratios(counted.count(progress, max(2, options.rounds // 2)), "instructions")
    result["reach"] = report.reach(result)
    text = json.dumps(result, indent=2)
    if options.json:
        options.json.write_text(text + "\n")
    if options.plot:
        options.plot.write_text(svg(result))
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
