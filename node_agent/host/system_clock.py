"""The real clocks: clock_gettime(2), clock_adjtime(2), and the services that keep time.

A shift is made with ADJ_SETOFFSET, which the kernel adds to whatever the clock shows, so no time is lost between
reading and setting. As every step it makes the kernel doubt its time (STA_UNSYNC, 16 s of possible error).
"""

from __future__ import annotations

import ctypes
import errno
import time
from collections.abc import Sequence
from pathlib import Path

from node_agent.host import units
from node_agent.host.clock import Instant, Keeper, Rate, Sync
from node_agent.host.holders import read_line
from node_agent.host.libc import check, libc
from node_agent.host.tool import run_tool

KEEPERS = frozenset(
    ("chronyd", "ntpd", "systemd-timesyn", "openntpd", "phc2sys", "ptp4l", "timemaster", "htpdate")
)  # fmt: skip
"""Names of processes, cut to 15 characters as the kernel does. ntpsec and OpenNTPD are called ntpd, too."""

_CAP_SYS_TIME = 25
_TRIES = 8
_READ, _FREQUENCY, _MAXERROR, _ESTERROR, _STATUS, _SETOFFSET, _TICK = 0, 0x2, 0x4, 0x8, 0x10, 0x100, 0x4000
_READ_ONLY = 0xFF00
"""STA_RONLY: bits that nobody can set (adjtimex(2))."""


class _Timex(ctypes.Structure):
    """struct timex on 64-bit machines: <linux/timex.h>. A shift goes in `sec` and `usec`."""

    _fields_ = [
        ("modes", ctypes.c_uint),
        *((name, ctypes.c_long) for name in ("offset", "freq", "maxerror", "esterror")),
        ("status", ctypes.c_int),
        *((name, ctypes.c_long) for name in ("constant", "precision", "tolerance", "sec", "usec", "tick")),
        *((name, ctypes.c_long) for name in ("ppsfreq", "jitter")),
        ("shift", ctypes.c_int),
        *((name, ctypes.c_long) for name in ("stabil", "jitcnt", "calcnt", "errcnt", "stbcnt")),
        ("tai", ctypes.c_int),
        ("_padding", ctypes.c_int * 11),
    ]


class SystemClock:
    """`host.clock` of this machine."""

    def now(self) -> Instant:
        """Of several looks the one that took the least time."""
        return min((_look() for _ in range(_TRIES)), key=lambda look: look[0])[1]

    def rate(self) -> Rate:
        found = _adjust(_READ)
        return Rate(found.tick, found.freq)

    def sync(self) -> Sync:
        found = _adjust(_READ)
        return Sync(found.status, found.maxerror, found.esterror)

    def shift(self, microseconds: int) -> None:
        seconds, rest = divmod(microseconds, 1_000_000)  # the kernel wants the rest not negative
        _adjust(_SETOFFSET, sec=seconds, usec=rest)

    def set_rate(self, rate: Rate) -> None:
        _adjust(_TICK | _FREQUENCY, tick=rate.tick_us, freq=rate.freq)

    def set_sync(self, sync: Sync) -> None:
        _adjust(
            _STATUS | _MAXERROR | _ESTERROR, status=sync.status & ~_READ_ONLY, maxerror=sync.max_error_us,
            esterror=sync.error_us,
        )  # fmt: skip

    def keepers(self) -> Sequence[Keeper]:
        found = []
        for process in sorted(Path("/proc").glob("[0-9]*"), key=lambda p: int(p.name)):
            name = read_line(process / "comm").strip()
            if name in KEEPERS and _may_set_time(read_line(process / "status")):
                found.append(Keeper(int(process.name), name, _lasting(units.unit_of(process))))
        return found

    def triggers(self, units_: Sequence[str]) -> Sequence[str]:
        return units.with_triggers(units_)[: -len(units_)] if units_ else ()

    def active(self, units_: Sequence[str]) -> Sequence[str]:
        return units.active(units_)

    def missing(self, units_: Sequence[str]) -> Sequence[str]:
        running = set(units.active(units_))
        return tuple(unit for unit in units_ if unit not in running and units.has_file(unit))

    def stop_units(self, units_: Sequence[str]) -> None:
        units.stop(units_)

    def start_units(self, units_: Sequence[str]) -> None:
        ended = run_tool(("systemctl", "start", *units_), units.STOP_S)
        if ended.status != 0:
            raise OSError(errno.EAGAIN, f"units that do not start again: {ended.text.splitlines()[:1]}")


def _look() -> tuple[int, Instant]:
    """All clocks, and how long it took."""
    first = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
    wall = time.clock_gettime_ns(time.CLOCK_REALTIME)
    boot = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    monotonic = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    last = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
    return last - first, Instant(wall, boot, monotonic, (first + last) // 2)


def _adjust(modes: int, **values: int) -> _Timex:
    """clock_adjtime(2) of CLOCK_REALTIME; its answer says whether the clock is synchronised, which is no error."""
    request = _Timex(modes=modes, **values)
    check(libc().clock_adjtime(time.CLOCK_REALTIME, ctypes.byref(request)), "clock_adjtime")
    return request


def _may_set_time(status: str) -> bool:
    fields = dict(line.partition(":\t")[::2] for line in status.splitlines())
    return bool(int(fields.get("CapEff", "0"), 16) >> _CAP_SYS_TIME & 1)


def _lasting(unit: str) -> str:
    """The unit, where it has a file: one of systemd-run is forgotten when it stops."""
    if not unit:
        return ""
    shown = run_tool(("systemctl", "show", "--property=FragmentPath", "--value", unit), units.SYSTEMCTL_S)
    path = shown.text.strip()
    return unit if shown.status == 0 and path and not path.startswith("/run/systemd/transient/") else ""
