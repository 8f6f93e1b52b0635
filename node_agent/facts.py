"""Gathering the facts of a node."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping

from node_agent.fault import Capability, Facts, Mount
from node_agent.host import Reader
from node_agent.version import VERSION


def parse_mountinfo(text: str) -> tuple[Mount, ...]:
    """Parse /proc/self/mountinfo (proc_pid_mountinfo(5)); octal escapes in paths are undone."""
    mounts = []
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        fields, tail = left.split(), right.split()
        if len(fields) < 6 or len(tail) < 2:
            continue
        mounts.append(
            Mount(source=_unescape(tail[1]), target=_unescape(fields[4]), fstype=tail[0], options=fields[5],
                  device=fields[2])
        )  # fmt: skip
    return tuple(mounts)


def _unescape(text: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text


def _line(text: str, key: str, separator: str) -> str:
    for line in text.splitlines():
        left, found, right = line.partition(separator)
        if found and left.strip() == key:
            return right.strip().strip('"')
    return ""


def gather_facts(reader: Reader, node: str, capabilities: Mapping[str, Capability]) -> Facts:
    """Everything a plan may rest on, read now. `capabilities` come from :func:`node_agent.probe.run_probes`."""
    memory = _line(reader.read_text("/proc/meminfo"), "MemTotal", ":").split()
    return Facts(
        node=node,
        kernel=platform.release(),
        boot_id=reader.boot_id(),
        os=_line(reader.read_text("/etc/os-release"), "PRETTY_NAME", "="),
        python=platform.python_version(),
        agent_version=VERSION,
        cpus=os.cpu_count() or 1,
        memory_mib=int(memory[0]) // 1024 if memory else 0,
        mounts=parse_mountinfo(reader.read_text("/proc/self/mountinfo")),
        capabilities=dict(capabilities),
    )
