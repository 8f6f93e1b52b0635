"""Can this kernel fail calls by BPF, and how: a rule for the agent itself, one call, and a look at the counters.

The agent is never hit (the programs see to that), but its calls are counted, so a program that was attached and
never runs is told from one that works: where `bpf` is not among the active security modules, loading and attaching
succeed and nothing happens.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

from ebpf.calls import operation_of
from ebpf.operations import FAMILIES
from node_agent.errors import ApplyError
from node_agent.fault import TAG_PREFIX
from node_agent.host import Host
from node_agent.probe import Lacking, capability
from node_agent.rules import Flavour, Hook, Rule, Scope

_EXECUTE = 0o111
_LSM = "boot with bpf at the end of lsm= on the kernel command line"
_BTF = "a kernel with BTF (CONFIG_DEBUG_INFO_BTF), and BPF not locked down (lockdown=none, no Secure Boot)"
_OVERRIDE = "a kernel with BPF_KPROBE_OVERRIDE and FUNCTION_ERROR_INJECTION: labctl up --kernel lab; or strace"


def _open_a_file() -> None:
    Path("/proc/self/status").read_text(encoding="utf-8", errors="replace")


def _ask_for_group() -> None:
    os.getpgid(0)


def _try(host: Host, flavour: Flavour, hook: Hook, operation: int, act: Callable[[], object]) -> None:
    tag = f"{TAG_PREFIX}probe-{flavour.replace('_', '-')}"
    pid = int(host.read_text("/proc/self/stat").split()[0])
    started = int(host.read_text("/proc/self/stat").rpartition(")")[2].split()[19])
    scope = Scope(kind="process", name="the agent", pid=pid, started=started)
    try:
        host.bpf.add(tag, Rule(operations=(operation,), hooks=(hook,), scope=scope, errno=1))
        act()
        state = host.bpf.state(tag)
    except ApplyError as error:
        raise Lacking(error.message) from error
    finally:
        host.bpf.remove(tag)
    if state is None or not state.counters["seen"]:
        raise Lacking(f"a program attached as {flavour} is never run", _LSM if flavour.startswith("lsm") else "")


@capability("bpf.lsm", remedy=_BTF)
def probe_lsm(host: Host) -> None:
    """Security hooks."""
    _try(host, "lsm", Hook(name="file_open", flavour="lsm"), FAMILIES["open"].number, _open_a_file)


@capability("bpf.fmod_ret", remedy=_BTF)
def probe_fmod_ret(host: Host) -> None:
    """The functions around the security hooks: these run whatever security modules are active."""
    _try(host, "fmod_ret", Hook(name="file_open", flavour="fmod_ret"), FAMILIES["open"].number, _open_a_file)


def _connect() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:  # sends nothing
        datagrams.connect(("127.0.0.1", 9))


@capability("bpf.cgroup", remedy=f"{_BTF}; control groups of version 2")
def probe_cgroup(host: Host) -> None:
    """The socket hooks of control groups, with an errno of our choice (Linux 5.18)."""
    _try(host, "cgroup", Hook(name="connect4", flavour="cgroup"), FAMILIES["connect"].number, _connect)


def _probe_override(host: Host, flavour: Flavour) -> None:
    # A call with an argument: the type information of kernels leaves out those without, and fmod_ret needs it.
    operation = operation_of("getpgid")
    hook = Hook(name="__x64_sys_getpgid", flavour=flavour, operation=operation)
    _try(host, flavour, hook, operation, _ask_for_group)


@capability("bpf.override_fmod_ret", remedy=_OVERRIDE)
def probe_override_fmod_ret(host: Host) -> None:
    """System calls themselves, by a trampoline."""
    _probe_override(host, "override_fmod_ret")


@capability("bpf.override_kprobe", remedy=_OVERRIDE)
def probe_override_kprobe(host: Host) -> None:
    """System calls themselves, by a kprobe."""
    _probe_override(host, "override_kprobe")
