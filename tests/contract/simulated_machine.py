"""What ends or hangs the simulated machine: files of its kernel, as they are at rest."""

from __future__ import annotations

from collections.abc import Mapping

FILES: Mapping[str, str] = {
    "/proc/sysrq-trigger": "",
    "/proc/sys/kernel/panic": "0",
    "/proc/sys/kernel/sched_rt_runtime_us": "950000",
    "/sys/kernel/debug/sched/fair_server/cpu0/runtime": "50000000",
}
SYSTEMD = {"/run/systemd/system": ""}


def at_rest(texts: Mapping[str, str]) -> bool:
    """Whether all of them are as after a boot."""
    return all(texts[path] == text for path, text in FILES.items())
