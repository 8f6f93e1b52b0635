"""Who uses a mounted file system, and the services among them: found, stopped, started again.

Source: proc(5) for what a process has open, cgroups(7) and systemd(1) for the unit that a process belongs to.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from node_agent.facts import parse_mountinfo
from node_agent.host.holders import bound_loops, read_line
from node_agent.host.tool import run_tool

SYSTEMCTL_S, STOP_S = 20.0, 120.0
KEEPER_S = 1800
_OWN = "groundfault-agent.service"
_NEVER = (_OWN, "ssh.service", "sshd.service", "dbus.service", "systemd-journald.service", "systemd-udevd.service")
_PULLED_DOWN = ("RequiredBy", "BoundBy", "ConsistsOf", "PropagatesStopTo")
_ROUNDS = 8


@dataclass(frozen=True)
class User:
    """A process or loop device that uses a file system. `unit` empty: nothing that can be stopped and started."""

    who: str
    unit: str = ""


@dataclass(frozen=True)
class _Place:
    """A mounted file system as the files of processes show it."""

    number: int
    hexadecimal: str
    target: str

    def has(self, path: str) -> bool:
        """Whether a path, or the file that a link of /proc stands for, is on it.

        An XFS that has shut down does not even answer stat; then the name has to do.
        """
        try:
            return Path(path).stat().st_dev == self.number
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return False
        except OSError:
            pass
        try:
            name = str(Path(path).readlink())
        except OSError:
            name = path
        return name == self.target or name.startswith(f"{self.target}/")


def users_of(device: str, target: str) -> tuple[User, ...]:
    """Everybody with an open file, a mapping, a working or root directory on file system "major:minor"."""
    major, minor = (int(part) for part in device.split(":"))
    place = _Place(os.makedev(major, minor), f"{major:02x}:{minor:02x}", target)
    found = [User(f"loop device {loop.path}") for loop in bound_loops() if place.has(loop.backing)]
    for process in sorted(Path("/proc").glob("[0-9]*"), key=lambda p: int(p.name)):
        if _uses(process, place):
            found.append(User(f"process {process.name} ({read_line(process / 'comm')})", unit_of(process)))
    return tuple(found)


def unit_of(process: Path) -> str:
    """The system service of a process; empty where it has none that may be stopped.

    A service of a user's own manager, a scope (a login session, a container) and the agent itself are none.
    """
    for line in read_line(process / "cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number != "0" and controllers != "name=systemd":
            continue
        unit = next((part for part in path.split("/") if part.endswith((".service", ".scope"))), "")
        if unit.endswith(".service") and not path.startswith("/user.slice/") and unit not in _NEVER:
            return unit
    return ""


def _uses(process: Path, place: _Place) -> bool:
    if any(place.has(str(process / name)) for name in ("cwd", "root", "exe")):
        return True
    try:
        if any(place.has(entry.path) for entry in os.scandir(process / "fd")):
            return True
        lines = (process / "maps").read_text(errors="replace").splitlines()
    except OSError:  # it has ended meanwhile
        return False
    return any(line.split(maxsplit=4)[3] == place.hexadecimal for line in lines)


def mounted_for(device: str) -> tuple[str, ...]:
    """In whose mount namespaces, ours among them, a file system is mounted: one process of each, and where."""
    found: dict[str, str] = {}
    for process in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        mounts = parse_mountinfo(read_line(process / "mountinfo"))
        if places := [mount.target for mount in mounts if mount.device == device]:
            with suppress(OSError):  # it ended meanwhile
                namespace = str((process / "ns/mnt").readlink())
                who = f"process {process.name} ({read_line(process / 'comm')}) at {', '.join(places)}"
                found.setdefault(namespace, who)
    return tuple(found.values())


def _shown(units: Sequence[str], *properties: str) -> list[dict[str, str]]:
    """Properties of units, a mapping each."""
    text = (
        run_tool(("systemctl", "show", f"--property=Id,{','.join(properties)}", *units), SYSTEMCTL_S)
        .checked()
        .text
    )
    blocks = (block.splitlines() for block in text.split("\n\n"))
    return [dict(line.partition("=")[::2] for line in block) for block in blocks]


def active(units: Iterable[str]) -> tuple[str, ...]:
    """Those that run now."""
    wanted = tuple(dict.fromkeys(units))
    if not wanted:
        return ()
    running = ("active", "activating", "reloading")
    return tuple(u["Id"] for u in _shown(wanted, "ActiveState") if u.get("ActiveState") in running)


def with_triggers(units: Sequence[str]) -> tuple[str, ...]:
    """The units and the active sockets, timers and paths that would start them while they are to be stopped."""
    if not units:
        return ()
    triggers = [name for unit in _shown(units, "TriggeredBy") for name in unit.get("TriggeredBy", "").split()]
    return (*active(triggers), *units)


def pulled_down(units: Sequence[str], mount_unit: str) -> tuple[str, ...]:
    """The units and every active one that systemd stops along with them, or when the mount goes."""
    known = dict.fromkeys(units)
    bound = [name for unit in _shown((mount_unit,), "BoundBy") for name in unit.get("BoundBy", "").split()]
    fresh = tuple(dict.fromkeys((*units, *active(bound))))
    for _ in range(_ROUNDS):
        if not fresh:
            break
        known |= dict.fromkeys(fresh)
        named = [n for unit in _shown(fresh, *_PULLED_DOWN) for p in _PULLED_DOWN for n in unit.get(p, "").split()]
        fresh = active(name for name in named if name not in known)
    return tuple(known)


def has_file(unit: str) -> bool:
    """Whether a unit is written down somewhere (fstab counts), and not only seen by systemd."""
    return any(found.get("FragmentPath") for found in _shown((unit,), "FragmentPath"))


def keep_loaded(keeper: str, units: Sequence[str]) -> None:
    """Refer to units from one more, so that transient ones (systemd-run) are not forgotten while they are stopped.

    The keeper is a service that sleeps; it ends by itself after half an hour, whatever becomes of the agent.
    """
    if not units or active((keeper,)):
        return
    after = [f"--property=After={unit}" for unit in units]
    words = ("--quiet", "--collect", f"--unit={keeper}", f"--property=RuntimeMaxSec={KEEPER_S}", *after)
    run_tool(("systemd-run", *words, "sleep", "infinity"), SYSTEMCTL_S).checked()


def stop(units: Sequence[str]) -> None:
    """Stop units and wait. Raises CommandError where one does not stop in time."""
    if units:
        run_tool(("systemctl", "stop", *units), STOP_S).checked()


def start(units: Sequence[str], keeper: str) -> None:
    """Start units again and wait; those that run are left alone. Raises OSError naming those that do not start."""
    if units:
        ended = run_tool(("systemctl", "start", *units), STOP_S)
        if ended.status != 0:
            raise OSError(errno.EAGAIN, f"units that do not start again: {ended.text.splitlines()[:1]}")
    if active((keeper,)):
        stop((keeper,))
