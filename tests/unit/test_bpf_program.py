"""bpf_program on a simulated machine: what is refused and planned, and what a refusal by the kernel becomes."""

from __future__ import annotations

import ctypes
import json
from typing import Any

import pytest

from ebpf.bpf_program import BpfProgram, OwnProgram, probe_bcc, probe_object
from ebpf.runners.bcc_runner import number, reason
from ebpf.runners.protocol import counter_names, parse_report
from node_agent.content import encode_content
from node_agent.errors import Refusal
from node_agent.facts import gather_facts
from node_agent.fault import Capability, Facts, build_fault
from node_agent.probe import Lacking, run_probes
from node_agent.steps.helper_process import HelperProcess
from tests.contract.simulated import SimulatedHost, fresh_kernel

TAG = "groundfault-a-1"
SOURCE = "BPF_ARRAY(hits, u64, 1);\n"
OBJECT = encode_content(b"\x7fELF\x02\x01" + bytes(12) + b"\xf7\0" + bytes(44))


@pytest.fixture
def host() -> SimulatedHost:
    kernel = fresh_kernel()
    kernel.texts |= {"/proc/700/comm": "postgres\n", "/proc/701/comm": "sshd\n", "/proc/1/comm": "systemd\n"}
    return SimulatedHost(kernel)


def facts_of(host: SimulatedHost, *without: str) -> Facts:
    answers = dict(run_probes(host))
    answers |= {name: Capability(name=name, available=False, reason="none", remedy="get it") for name in without}
    return gather_facts(host, "w2", answers)


def step_of(host: SimulatedHost, **parameters: Any) -> HelperProcess:
    fault = build_fault(BpfProgram, parameters)
    facts = facts_of(host)
    (step,) = fault.steps(facts, fault.locate(host, facts), TAG)
    assert isinstance(step, HelperProcess)
    return step


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({}, "source"),
        ({"source": " \n"}, "source"),
        ({"source": encode_content(b"\x7fELF\x02\x01" + bytes(60))}, "source"),
        ({"source": encode_content(b"\x7fELF")}, "source"),
        ({"source": encode_content(b"PNG\0\xff")}, "source"),
        ({"source": SOURCE, "pid": 1}, "pid"),
        ({"source": SOURCE, "pid": 701}, "pid"),
        ({"source": SOURCE, "pid": 702}, "pid"),
        ({"source": OBJECT, "attach": ("kprobe:vfs_read=count",)}, "attach"),
    ],
)
def test_refused_where_it_is_looked_for(host: SimulatedHost, parameters: dict[str, Any], field: str) -> None:
    with pytest.raises(Refusal) as refused:
        build_fault(BpfProgram, parameters).locate(host, facts_of(host))
    assert refused.value.field == field and refused.value.allowed


@pytest.mark.parametrize("hint", ["kprobe:x", "kprobe:x=y z", "uprobe:x=y", "tracepoint:x=y", "kprobe:x;y=z", ""])
def test_hints_that_are_none(hint: str) -> None:
    with pytest.raises(Refusal, match="attach"):
        build_fault(BpfProgram, {"source": SOURCE, "attach": (hint,)})


def test_a_source_goes_to_the_systems_python(host: SimulatedHost) -> None:
    step = step_of(host, source=SOURCE, pid=700, seed=5, attach=("tracepoint:syscalls:sys_enter_read=f",))
    given = json.loads(step.payload)
    assert step.argv[0] == "/usr/bin/python3" and step.argv[-1].endswith("/bcc_runner.py")
    assert given["source"] == SOURCE and given["flags"] == ["-DTARGET_PID=700", "-DSEED=5ULL"]
    assert given["attach"] == ["tracepoint:syscalls:sys_enter_read=f"]


def test_an_object_goes_to_the_agents(host: SimulatedHost) -> None:
    step = step_of(host, source=OBJECT, pid=700, seed=5)
    assert step.argv[-1].endswith("/object_runner.py") and json.loads(step.payload)["target"] == [700, 5]


def test_the_same_program_for_two_processes_is_two(host: SimulatedHost) -> None:
    one, other = step_of(host, source=SOURCE, pid=700), step_of(host, source=SOURCE)
    assert not any(a.conflicts(b) for a in one.resources()[1:] for b in other.resources()[1:])


def test_what_it_needs_follows_from_what_it_is(host: SimulatedHost) -> None:
    neither = facts_of(host, "bpf.bcc", "bpf.object")
    assert [m.capability for m in build_fault(BpfProgram, {"source": SOURCE}).requires(neither)] == ["bpf.bcc"]
    assert [m.capability for m in build_fault(BpfProgram, {"source": OBJECT}).requires(neither)] == ["bpf.object"]
    assert len(BpfProgram().requires(neither)) == 2
    assert BpfProgram().requires(facts_of(host, "bpf.bcc")) == ()


@pytest.mark.parametrize(
    ("gone", "words"),
    [("/usr/lib/python3/dist-packages/bcc/__init__.py", "not installed"),
     ("/lib/modules/6.12.0-simulated/build/Makefile", "no headers of kernel 6.12.0-simulated")],
)  # fmt: skip
def test_bcc_is_looked_for_before_it_is_tried(host: SimulatedHost, gone: str, words: str) -> None:
    del host.kernel.texts[gone]
    with pytest.raises(Lacking, match=words):
        probe_bcc(host)
    assert host.changes == 0, "nothing was run"


@pytest.mark.parametrize("gone", ["/usr/lib/x86_64-linux-gnu/libbpf.so.1", "/sys/kernel/btf/vmlinux"])
def test_objects_need_libbpf_and_type_information(host: SimulatedHost, gone: str) -> None:
    del host.kernel.texts[gone]
    with pytest.raises(Lacking):
        probe_object(host)


def test_evidence_is_of_the_kernel_and_of_the_map(host: SimulatedHost) -> None:
    fault = build_fault(BpfProgram, {"source": SOURCE})
    target = fault.locate(host, facts_of(host))
    assert isinstance(target, OwnProgram)
    step_of(host, source=SOURCE).apply(host)
    host.kernel.helper_says = '{"counters": {"hits": 3, "seen": 9}, "attached": 1}'
    found = fault.evidence(host, target, TAG, 0)
    assert (found.armed, found.hits, found.counters) == (True, 3, {"seen": 9, "programs": 1, "attached": 1})
    host.kernel.texts["/proc/5000/fdinfo/5"] = "flags:\t02\n"
    assert not fault.evidence(host, target, TAG, 0).armed, "the process is there, and holds no program"
    host.helpers.stop(f"{TAG}-bpf")
    with pytest.raises(ProcessLookupError):
        fault.evidence(host, target, TAG, 0)


def test_what_bcc_writes_when_a_program_does_not_compile() -> None:
    written = """/virtual/main.c:3:5: error: use of undeclared identifier 'x'
    x = 1;
    ^
/virtual/main.c:9:1: warning: unused
2 errors generated.
"""
    told = reason(written, "Failed to compile BPF module <text>")
    assert told == "the program does not compile: line 3:5: error: use of undeclared identifier 'x'"


def test_what_the_verifier_writes() -> None:
    log = "\n".join(f"{n}: (b7) r0 = {n}" for n in range(50))
    written = f"bpf: Failed to load program: Permission denied\n{log}\nR0 invalid\nprocessed 50 insns\n\nHINT: no"
    told = reason(written, "Failed to load BPF program b'kprobe__x': Permission denied")
    assert "refuses the program kprobe__x: Permission denied" in told and told.endswith(
        "49: (b7) r0 = 49 | R0 invalid"
    )
    assert "44: (b7)" not in told and "HINT" not in told


def test_other_reasons() -> None:
    assert "linux-headers" in reason("Unable to find kernel headers. Try rebuilding", "Failed to compile")
    assert reason("", "Failed to attach") == "Failed to attach"
    assert (
        reason("cannot attach kprobe, x may not exist\n", "Failed")
        == "Failed: cannot attach kprobe, x may not exist"
    )


def test_counters_as_bcc_gives_them() -> None:
    assert number(ctypes.c_ulonglong(2**63)) == 2**63
    assert number((ctypes.c_ulonglong * 4)(1, 2, 3, 4)) == 10
    with pytest.raises(TypeError):
        number(type("key_t", (ctypes.Structure,), {"_fields_": [("x", ctypes.c_int)]})())


def test_names_of_counters() -> None:
    assert counter_names(1) == ("hits",) and counter_names(0) == ()
    assert counter_names(5) == ("hits", "seen", "matched", "hits[3]", "hits[4]")
    empty = {"attached": 0, "counters": {"hits": 1}, "notes": (), "samples": ()}
    assert parse_report('{"counters": {"hits": 1}}') == empty
