"""Run the benchmark: a lab of two nodes; JSON on standard output.

On one node packets of one port get lost and do so no more, again and again: by the agent over an open gRPC
connection, by the agent over SSH, by `tc` over one SSH connection that stays open, and by `tc` over a connection
of its own each time. Timed is the whole answer. The agent plans, journals, builds a lane, looks whether it is
there and compares the host before and after; `tc` puts netem at the root of the interface, where it meets
everybody. Meanwhile packets of another port go to the second node and back, and are counted.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from labctl.lab.model import LabOptions, Node
from labctl.lab.store import lab_dir, open_lab
from labctl.pki import LabAuthority
from labctl.progress import PlainProgress, Progress
from labctl.transport.base import Kind
from labctl.transport.client import AgentClient
from labctl.transport.connect import connect
from tests.bench.disk.report import times
from tests.bench.lab import machine
from tests.lab import lab_up, ssh, ssh_argv, state_home
from tests.vm import net_meter

INTERFACE, SPOILT, OTHER = "lan", 7001, 7000
PLANT = f"tc qdisc replace dev {INTERFACE} root netem loss 10%"
TAKE_BACK = f"tc qdisc del dev {INTERFACE} root"
GAP_MS, MOST_S = 10.0, 1200.0
_PID = "/run/net-meter.pid"

Cycle = Callable[[int], tuple[float, float]]
"""Plants once and takes back: seconds of each."""


def timed(work: Callable[[], object]) -> float:
    start = time.monotonic()
    work()
    return time.monotonic() - start


def by_agent(agent: AgentClient) -> Cycle:
    """Through everything that the agent does for safety. Raises where the fault did not bite or did not go."""

    def plant(name: str) -> None:
        parameters = {"loss_percent": 10, "ports": str(SPOILT), "direction": "out", "interface": INTERFACE}
        view = agent.apply(name, "packet_loss", parameters, 600)
        assert view.state == "active" and view.evidence is not None and view.evidence.armed, view

    def take_back(name: str) -> None:
        (ended,) = agent.recover((name,)).injections
        assert ended.state == "recovered" and not ended.residue, ended

    def cycle(number: int) -> tuple[float, float]:
        name = f"bench-{number}-{time.monotonic_ns()}"
        return timed(lambda: plant(name)), timed(lambda: take_back(name))

    return cycle


def by_tc(node: Node, options: tuple[str, ...] = ()) -> Cycle:
    """What somebody types, by ssh; `options` let it use a connection that is open."""

    def run(command: str) -> None:
        program, *words = ssh_argv(node, command)
        subprocess.run((program, *options, *words), check=True, capture_output=True, timeout=120)

    return lambda number: (timed(lambda: run(PLANT)), timed(lambda: run(TAKE_BACK)))


def repeated(cycle: Cycle, runs: int) -> dict[str, Any]:
    """The first is not counted: it loads modules, and logs in."""
    cycle(0)
    inject, recover = zip(*(cycle(number) for number in range(1, runs + 1)), strict=True)
    return {"inject": times(inject), "recover": times(recover)}


@contextmanager
def others(here: Node, there: Node) -> Iterator[dict[str, Any]]:
    """Packets of another port, meanwhile; what became of them is in the dictionary at the end."""
    address = ssh(there, f"ip -4 -o addr show dev {INTERFACE}").stdout.split()[3].partition("/")[0]
    count = round(MOST_S * 1000 / GAP_MS)
    meter_argv = net_meter.udp_script([f"{address}/{OTHER}/64"], count, GAP_MS)
    script = f"echo $$ > {_PID}; exec {meter_argv}"
    found: dict[str, Any] = {}
    with subprocess.Popen(ssh_argv(here, script), stdout=subprocess.PIPE, text=True) as meter:
        try:
            yield found
        finally:
            ssh(here, f"kill -INT $(cat {_PID})")
            text, _ = meter.communicate(timeout=60)
    (flow,) = net_meter.flows_of(text)
    found.update(sent=flow.sent, lost=len(flow.lost), median_ms=round(flow.median_ms, 1))


def measure(nodes: tuple[Node, ...], authority: LabAuthority, runs: int, progress: Progress) -> dict[str, Any]:
    """All ways one after the other, each with what others noticed."""
    here, there = nodes[0], nodes[1]
    for node in (here, there):
        net_meter.install(ssh_argv(node))
    ssh(there, f"systemd-run --quiet --unit=net-meter {net_meter.PLACE} serve {OTHER} {SPOILT}")
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        sockets = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
        shared = ("-o", "ControlMaster=auto", "-o", f"ControlPath={sockets}/%p", "-o", "ControlPersist=600")
        agents: dict[Kind, AgentClient] = {
            kind: AgentClient(stack.enter_context(connect(here, authority, kind))) for kind in ("grpc", "ssh")
        }
        agents["grpc"].probe()
        ways = {
            "agent, gRPC": by_agent(agents["grpc"]),
            "agent, SSH": by_agent(agents["ssh"]),
            "tc, SSH connection kept": by_tc(here, shared),
            "tc, SSH connection each time": by_tc(here),
        }
        for way, cycle in ways.items():
            with progress.task(f"{way}, {runs} times"), others(here, there) as noticed:
                found[way] = repeated(cycle, runs)
            found[way]["packets of another port"] = noticed
        subprocess.run(("ssh", *shared, "-O", "exit", *ssh_argv(here)[-2:-1]), capture_output=True, timeout=30)
    ssh(there, "systemctl stop net-meter")
    return found


@contextmanager
def nodes_of(lab: str) -> Iterator[tuple[tuple[Node, ...], LabAuthority]]:
    """The nodes of a running lab, or of one that is made for this and destroyed."""
    if lab:
        yield open_lab(lab).nodes(), LabAuthority.ensure(lab_dir(lab) / "pki", lab)
        return
    with tempfile.TemporaryDirectory(prefix="groundfault-bench-") as state, state_home(Path(state)):
        with lab_up("bench-network", LabOptions(nodes=2)) as up:
            yield up.nodes, up.authority


def main(argv: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="how often each way is timed")
    parser.add_argument("--lab", default="", help="a running lab of two nodes; none: one of its own")
    options = parser.parse_args(list(argv) if argv is not None else None)
    progress = PlainProgress()
    with nodes_of(options.lab) as (nodes, authority):
        result = {"machine": machine(), "ways": measure(nodes, authority, options.runs, progress)}
    print(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
