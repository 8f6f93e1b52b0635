"""bpf_program: a researcher's own program, BCC source or CO-RE object, with journal, lease and counters."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from ebpf.runners.protocol import NAMES, parse_report, script
from node_agent.content import FileContent, decode_content
from node_agent.errors import Refusal
from node_agent.fault import Evidence, Facts, Fault, Missing, PlanNotes, Target
from node_agent.host import Host, Reader
from node_agent.probe import Lacking, capability
from node_agent.steps import Step
from node_agent.steps.helper_process import MAX_READY_S, Claim, HelperProcess

SYSTEM_PYTHON = "/usr/bin/python3"
"""The one that Debian's python3-bpfcc is installed for."""

_ELF, _EM_BPF = b"\x7fELF\x02\x01", (247).to_bytes(2, "little")
_OBJECT_S = 60.0
_HINT = r"(kprobe|kretprobe|raw_tracepoint):[A-Za-z0-9_.]+=\w+|tracepoint:\w+:\w+=\w+"
_SPARED = ("sshd", "sshd-session", "node-agent")

_EXAMPLE = """\
#include <linux/fs.h>
BPF_ARRAY(hits, u64, 1);
LSM_PROBE(file_open, struct file *file)
{
    if ((bpf_get_current_pid_tgid() >> 32) != TARGET_PID)
        return 0;
    hits.atomic_increment(0);
    return -EACCES;
}
"""


@capability("bpf.bcc", remedy="apt-get install python3-bpfcc, and the headers of the running kernel")
def probe_bcc(host: Host) -> None:
    """Debian's bindings can be loaded and there are headers. Looked for first: most nodes have none.

    What compiles is seen when it is compiled: even a trial program takes LLVM seconds.
    """
    if not host.glob("/usr/lib/python3*/*-packages/bcc/__init__.py"):
        raise Lacking("BCC is not installed", "apt-get install python3-bpfcc, or a compiled CO-RE object")
    release = host.read_text("/proc/sys/kernel/osrelease").strip()
    if not any(map(host.exists, (f"/lib/modules/{release}/build/Makefile", "/sys/kernel/kheaders.tar.xz"))):
        raise Lacking(
            f"BCC has no headers of kernel {release}",
            "apt-get install linux-headers-cloud-amd64 (or -amd64), or a kernel with CONFIG_IKHEADERS",
        )
    host.run((SYSTEM_PYTHON, "-I", "-c", "import bcc; bcc.BPF"), timeout_s=60)


@capability("bpf.object", remedy="apt-get install libbpf1, and a kernel with CONFIG_DEBUG_INFO_BTF")
def probe_object(host: Host) -> None:
    """libbpf is there, and the kernel's own type information, which fits an object to this kernel."""
    places = ("/usr/lib/*-linux-gnu*/libbpf.so.1", "/usr/lib64/libbpf.so.1", "/usr/lib/libbpf.so.1")
    if not any(map(host.glob, places)):
        raise Lacking("libbpf is not installed", "apt-get install libbpf1")
    if not host.exists("/sys/kernel/btf/vmlinux"):
        raise Lacking("this kernel has no type information", "a kernel with CONFIG_DEBUG_INFO_BTF, or BCC")


class OwnProgram(Target):
    """A program and whom it is told to look at. `pid` 0: nobody is named."""

    form: Literal["bcc", "object"]
    size: int
    digest: str
    pid: int
    comm: str

    def describe(self) -> str:
        form = "BCC source" if self.form == "bcc" else "CO-RE object"
        whom = f", told of process {self.pid} ({self.comm})" if self.pid else ""
        return f"{form} of {self.size} bytes, sha256 {self.digest[:16]}{whom}"


class BpfProgram(Fault):
    """Runs your program in the kernel as long as the injection lives.

    The file is sent to the node. A BCC source is compiled there; an object (`clang -target bpf -g -O2`) is fitted
    to the kernel by libbpf. Count in a map called `hits`, an array of u64: 0 hits, 1 seen, 2 matched, others as
    you like. Sources have the macros TARGET_PID and SEED, objects a map `target`, an array of two u64 with them.
    """

    name: ClassVar[str] = "bpf_program"
    summary: ClassVar[str] = "your own BPF program, BCC source or CO-RE object, under a lease"
    operator_sees: ClassVar[str] = "what the program does; bpftool prog list shows it, held by a process"
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {"source": _EXAMPLE},
        {"source": "int count(void *ctx) { return 0; }", "attach": ("kprobe:vfs_read=count",)},
        {"source": "base64:" + base64.b64encode(_ELF + bytes(12) + _EM_BPF + bytes(44)).decode()},
    )

    source: FileContent = Field(
        default="", description="BCC program in C, or compiled CO-RE object: a file of this machine"
    )
    pid: int = Field(default=0, ge=0, lt=2**22, description="process that the program is told of; 0: none")
    attach: tuple[str, ...] = Field(
        default=(),
        max_length=32,
        description="where a function of a BCC source belongs if its name does not say: kprobe:NAME=FUNCTION, "
        "kretprobe:…, tracepoint:CATEGORY:NAME=FUNCTION, raw_tracepoint:NAME=FUNCTION",
    )

    @field_validator("source")
    @classmethod
    def _whole(cls, value: str) -> str:
        decode_content(value)
        return value

    @field_validator("attach")
    @classmethod
    def _hints(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for hint in value:
            if not re.fullmatch(_HINT, hint):
                raise ValueError(f"{hint!r}; allowed: kprobe:, kretprobe:, raw_tracepoint:NAME=FUNCTION, "
                                 "tracepoint:CATEGORY:NAME=FUNCTION")  # fmt: skip
        return value

    @property
    def _is_object(self) -> bool:
        return decode_content(self.source).startswith(_ELF[:4])

    def requires(self, facts: Facts) -> tuple[Missing, ...]:
        if not self.source:
            either = facts.can("bpf.bcc") or facts.can("bpf.object")
            return () if either else facts.missing("bpf.bcc", "bpf.object")
        return facts.missing("bpf.object" if self._is_object else "bpf.bcc")

    def locate(self, reader: Reader, facts: Facts) -> OwnProgram:
        content = decode_content(self.source)
        if not content.strip():
            raise Refusal("source: there is no program", field="source", allowed="a file: --source my_fault.c")
        if self._is_object:
            self._check_object(content)
        elif b"\0" in content:
            raise Refusal("source: neither a text nor an object", field="source", allowed="C for BCC, or .bpf.o")
        comm = _comm_of(reader, self.pid) if self.pid else ""
        return OwnProgram(
            form="object" if self._is_object else "bcc", size=len(content), pid=self.pid, comm=comm,
            digest=hashlib.sha256(content).hexdigest(),
        )  # fmt: skip

    def _check_object(self, content: bytes) -> None:
        if not content.startswith(_ELF) or content[18:20] != _EM_BPF:
            raise Refusal(
                "source: an ELF file, but not of a BPF program", field="source",
                allowed="clang -target bpf -g -O2 -c my_fault.bpf.c",
            )  # fmt: skip
        if self.attach:
            raise Refusal(
                "attach: the sections of an object say where it belongs", field="attach", allowed="none of it"
            )

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        ours = _ours(target)
        content = decode_content(self.source)
        if ours.form == "bcc":
            argv: tuple[str, ...] = (SYSTEM_PYTHON, "-I", script("bcc_runner"))
            flags = [f"-DTARGET_PID={ours.pid}", f"-DSEED={self.seed}ULL"]
            given: dict[str, Any] = {"source": content.decode(), "flags": flags, "attach": self.attach}
        else:
            argv = (sys.executable, "-I", "-S", script("object_runner"))
            given = {"source": base64.b64encode(content).decode(), "target": (ours.pid, self.seed)}
        whom = f" for process {ours.pid}" if ours.pid else ""
        return (
            HelperProcess(
                name=_helper(tag),
                title=f"run the program {ours.digest[:16]}{whom}",
                argv=argv,
                payload=json.dumps(given),
                ready_s=MAX_READY_S if ours.form == "bcc" else _OBJECT_S,
                claims=(Claim(kind="bpf", name=f"program {ours.digest[:16]}{whom}"),),
            ),
        )

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        ours = _ours(target)
        warnings = ["what the program does besides its counters nobody undoes: files, packets, other maps"]
        if ours.form == "bcc":
            warnings.append(
                "the node does nothing else while BCC compiles: seconds, a minute where it is emulated"
            )
        return PlanNotes(
            backend="bcc" if ours.form == "bcc" else "libbpf",
            covers=("what the program is attached to",),
            not_covered=("the program judges for itself: no schedule, no budget, no scope but its own",),
            warnings=tuple(warnings),
        )

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        report = parse_report(reader.helpers.ask(_helper(tag), "report"))
        counters = dict(report["counters"])
        held = _programs_of(reader, reader.helpers.pids(_helper(tag)))
        return Evidence(
            armed=held > 0 and report["attached"] > 0,
            hits=counters.pop(NAMES[0], 0),
            counters={**counters, "programs": held, "attached": report["attached"]},
        )


def _helper(tag: str) -> str:
    return f"{tag}-bpf"


def _ours(target: Target) -> OwnProgram:
    if not isinstance(target, OwnProgram):
        raise TypeError(f"{type(target).__name__} is not a target of this fault")
    return target


def _comm_of(reader: Reader, pid: int) -> str:
    """The name of a process that may be a target. Raises :class:`Refusal` where it may not."""
    try:
        comm = reader.read_text(f"/proc/{pid}/comm").strip()
    except OSError:
        raise Refusal(f"pid: there is no process {pid}", field="pid", allowed="a process of this node") from None
    if pid in (1, os.getpid()) or comm in _SPARED:
        raise Refusal(f"pid: {pid} is {comm}", field="pid", allowed="not pid 1, the agent, sshd")
    return comm


def _programs_of(reader: Reader, pids: Sequence[int]) -> int:
    """How many BPF programs and links these processes hold, as the kernel shows it (proc_pid_fdinfo(5))."""
    found = 0
    for pid in pids:
        folder = f"/proc/{pid}/fdinfo"
        for name in reader.listdir(folder):
            try:
                found += "\nprog_id:" in reader.read_text(f"{folder}/{name}")
            except OSError:  # closed meanwhile
                continue
    return found
