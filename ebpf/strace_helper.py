"""strace as a step of a fault, and its evidence. See :mod:`ebpf.strace` for what it can do."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from ebpf.runners.protocol import parse_report, script
from ebpf.strace import STRACE, Tampering, When, strace_argv
from node_agent.fault import Evidence
from node_agent.host import Host, Reader
from node_agent.probe import Lacking, capability
from node_agent.steps.helper_process import Claim, HelperProcess


@capability("strace", remedy="apt-get install strace")
def probe_strace(host: Host) -> None:
    """strace is there. That it may trace is seen when it attaches: it says so then."""
    if not host.exists(STRACE):
        raise Lacking(f"there is no {STRACE}")


def helper_name(tag: str) -> str:
    """The name of an injection's strace."""
    return f"{tag}-strace"


def strace_step(tag: str, pids: Sequence[int], what: Tampering, schedule: When) -> HelperProcess:
    """The step that keeps strace on these processes as long as the injection lives. Pure.

    Raises :class:`ebpf.strace.CannotDoError`. Two of them on one process are refused: a process has one tracer.
    """
    payload = {"argv": strace_argv(pids, what, schedule), "pids": list(pids), "signal": what.signal}
    return HelperProcess(
        name=helper_name(tag),
        title=f"strace tampers with {', '.join(what.calls)} of {', '.join(map(str, pids))}",
        argv=(sys.executable, "-I", "-S", script("strace_runner")),
        payload=json.dumps(payload),
        claims=tuple(Claim(kind="cgroup", name=f"tracer of process {pid}") for pid in pids),
    )


def strace_evidence(reader: Reader, tag: str) -> Evidence:
    """Armed while strace has a tracee. Raises OSError where its helper has ended."""
    report = parse_report(reader.helpers.ask(helper_name(tag), "report"))
    counters = dict(report["counters"])
    return Evidence(
        armed=report["attached"] > 0, hits=counters.pop("hits", 0), counters=counters, notes=report["notes"]
    )
