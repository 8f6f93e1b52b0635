"""Putting the agent on a node over SSH, and taking it off again without a trace.

Both are safe to repeat and safe to interrupt: every step first looks, or does the same again. The program is
unpacked beside the old one and swapped in by renames.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel, ConfigDict

from labctl.errors import LabctlError, LabError, NodeDirtyError, UnsupportedError, UsageError
from labctl.lab import footprint as at
from labctl.lab.belonging import refuse_another, refuse_clock
from labctl.lab.holding import held
from labctl.lab.model import Ready
from labctl.lab.root import Root
from labctl.progress import Task

PYTHON = "/usr/bin/python3"
PYTHON_VERSIONS = ("3.11", "3.12", "3.13")
ARCHITECTURES = ("x86_64", "aarch64")
NEEDED_MIB = 200
NEEDED_STATE_MIB = 64
"""For journals, and what the agent tells of its life."""

OLDEST_GLIBC = (2, 28)
"""What the oldest of the packages' wheels were built for (PEP 600)."""

UPLOAD_TIMEOUT_S = 900.0

_LOOK = """
import json, os, platform, shutil, sys, time
names = lambda d: sorted(os.listdir(d)) if os.path.isdir(d) else []
drifted = lambda p, mode: os.stat(p).st_mode & 0o7777 != int(mode, 8) or os.stat(p).st_uid != os.geteuid()
text = lambda p: open(p).read(65536) if os.path.isfile(p) else ""
free = lambda d: shutil.disk_usage(d if os.path.isdir(d) else "/").free >> 20
print(json.dumps({
    "python": "%%d.%%d" %% sys.version_info[:2],
    "implementation": platform.python_implementation(),
    "arch": platform.machine(),
    "libc": " ".join(platform.libc_ver()),
    "systemd": os.path.isdir("/run/systemd/system"),
    "free_mib": free("/opt"),
    "state_mib": free("/var/lib"),
    "clock_unix_s": time.time(),
    "name": text(%(name)r).strip(),
    "authority": text(%(authority)r),
    "present": [p for p in %(owned)r if os.path.lexists(p)],
    "live": [n[:-8] for n in names(%(journal)r) if n.endswith(".journal")],
    "program": text(%(key)r).strip(),
    "unit": text(%(unit)r),
    "certificates": names(%(tls)r),
    "drifted": [p for p, mode in %(modes)r.items() if os.path.exists(p) and drifted(p, mode)],
    "kept": [d + "/" + n for d in %(shared)r for n in names(d) if d + "/" + n not in %(lab)r],
    "disks": [n[:-5] for n in names(%(disks)r) if n.endswith(".json")],
}))
"""


class Bundler(Protocol):
    """Makes the archive that an install unpacks: :func:`labctl.lab.bundle.build_bundle`."""

    def __call__(self, *, python_version: str, arch: str) -> Path: ...


class Agent(Protocol):
    """What is asked of an agent that is there already: a part of the client."""

    def live(self) -> Sequence[str]:
        """Ids of live injections. Raises :class:`LabctlError` where the agent does not answer."""

    def recover(self) -> Sequence[str]:
        """Recover everything; tells what is stuck. Raises as :meth:`live`."""

    def heal(self) -> Sequence[str]:
        """Recover everything and refuse new faults; tells what is stuck. Raises as :meth:`live`."""


class Machine(BaseModel):
    """What a look at a node found. `live`: ids whose journal is open; `present`: paths of the agent;
    `kept`: what lies in the shared directories; `disks`: names of disks that were prepared; `name` and
    `authority`: which node the agent there takes itself for, and whom it obeys (PEM); `program`: the key of its
    bundle; `unit`: its unit's text; `certificates`: names of files; `drifted`: paths with another mode or owner
    than an install gives them."""

    python: str
    arch: str
    systemd: bool
    free_mib: int
    present: tuple[str, ...]
    live: tuple[str, ...]
    kept: tuple[str, ...]
    disks: tuple[str, ...] = ()
    implementation: str = "CPython"
    libc: str = ""
    state_mib: int = NEEDED_STATE_MIB
    clock_unix_s: float | None = None
    name: str = ""
    authority: str = ""
    program: str = ""
    unit: str = ""
    certificates: tuple[str, ...] = ()
    drifted: tuple[str, ...] = ()

    model_config = ConfigDict(frozen=True, extra="forbid")


def look_script() -> str:
    """Python that a node runs: it prints a :class:`Machine`, as JSON. Changes nothing."""
    return _LOOK % {
        "owned": at.OWNED, "journal": at.JOURNAL, "shared": at.SHARED, "disks": at.DISKS, "lab": at.OF_THE_LAB,
        "name": at.NODE_FILE, "authority": f"{at.TLS}/ca.pem", "key": at.KEY_FILE, "unit": at.UNIT_FILE,
        "tls": at.TLS, "modes": at.MODES,
    }  # fmt: skip


def look(root: Root) -> Machine:
    """Find out what a node is and what of the agent is on it. Changes nothing."""
    done = root.ask(PYTHON, "-c", look_script())
    if done.status == 127 or "not found" in done.stderr:
        raise UnsupportedError(
            f"{root.name}: there is no {PYTHON}", f"install Python {PYTHON_VERSIONS[0]} or newer"
        )
    if done.status != 0:
        raise LabError(
            f"{root.name}: {PYTHON} does not work: {(done.stderr.strip() or 'no message').splitlines()[-1]}"
        )
    return Machine.model_validate_json(done.stdout)


def obstacles(machine: Machine) -> tuple[str, ...]:
    """Why the agent cannot run on such a machine: all reasons at once."""
    found = []
    if machine.python not in PYTHON_VERSIONS or machine.implementation != "CPython":
        other = "" if machine.implementation == "CPython" else f"{machine.implementation} "
        found.append(f"{other}Python {machine.python}, supported are {', '.join(PYTHON_VERSIONS)}")
    if machine.arch not in ARCHITECTURES:
        found.append(f"architecture {machine.arch}, supported are {', '.join(ARCHITECTURES)}")
    if not machine.systemd:
        found.append("it was not booted with systemd, which starts the agent again and ends what it left")
    if machine.libc and not _new_enough(machine.libc):
        found.append(f"C library {machine.libc.strip()}, needed is glibc {OLDEST_GLIBC[0]}.{OLDEST_GLIBC[1]}")
    if machine.free_mib < NEEDED_MIB:
        found.append(f"{machine.free_mib} MiB free for /opt, needed are {NEEDED_MIB}")
    if machine.state_mib < NEEDED_STATE_MIB:
        found.append(f"{machine.state_mib} MiB free for /var/lib, needed are {NEEDED_STATE_MIB}")
    return tuple(found)


def _new_enough(libc: str) -> bool:
    name, _, version = libc.partition(" ")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    return name == "glibc" and numbers >= OLDEST_GLIBC


def install(
    root: Root,
    *,
    files: Callable[[], Mapping[str, bytes]],
    bundler: Bundler,
    agent: Agent,
    ready: Ready,
    task: Task,
    who: str = "",
    take_over: bool = False,
    recover: bool = False,
) -> None:
    """Put the agent on a node, or replace the one there, and wait until it answers.

    `files` makes the node's certificates. `who` is told to others who want to do the same meanwhile. `take_over`:
    also where the agent there is another node's, or another lab's. `recover`: end live injections first. Raises a
    :class:`LabctlError`; what was done stays, and running it again goes on from there. An agent that was replaced
    is back where the new one does not answer.
    """
    task.update("looking at the node", 0.0)
    with held(root, who):
        machine = look(root)
        problems = obstacles(machine)
        if problems:
            raise UnsupportedError(f"{root.name}: the agent cannot run here: {'; '.join(problems)}")
        made = files()
        if not take_over:
            refuse_another(root.name, machine, made)
        refuse_clock(root.name, machine, made)
        _end_live(root.name, machine, agent, recover)
        task.update("building the bundle", 0.1)
        bundle = bundler(python_version=machine.python, arch=machine.arch)
        task.update("uploading", 0.3)
        _unpack(root, bundle)
        task.update("writing certificates and unit", 0.6)
        _configure(root, made)
        task.update("starting the agent", 0.7)
        try:
            _start(root)
            task.update("waiting for its answer", 0.8)
            ready(root.remote.node)
        except LabctlError as error:
            _back(root, error)
            raise
        root.run("rm", "-rf", at.RETIRED)


def _end_live(name: str, machine: Machine, agent: Agent, recover: bool) -> None:
    """An upgrade restarts the agent, which would end what is live under somebody's hands."""
    if not machine.live:
        return
    if recover:
        stuck = agent.recover()
        if stuck:
            raise NodeDirtyError(f"{name}: {'; '.join(stuck)}; nothing was changed", f"labctl node residue {name}")
        return
    try:
        live = agent.live()
    except LabctlError:
        live = machine.live
    if live:
        raise UsageError(
            f"{name}: injections are live: {', '.join(live)}; nothing was changed", f"labctl recover --node {name}"
        )


def _unpack(root: Root, bundle: Path) -> None:
    root.run("rm", "-rf", at.STAGING)
    root.run("mkdir", "-m", "0755", at.STAGING)
    try:
        with bundle.open("rb") as archive:
            root.run("tar", "--extract", "--gzip", "--no-same-owner", "--file", "-", "--directory", at.STAGING,
                     stdin=archive, timeout_s=UPLOAD_TIMEOUT_S)  # fmt: skip
        root.run("sync", "-f", at.STAGING)
    except LabError:
        with suppress(LabError):  # a disk that is full now is not left so
            root.run("rm", "-rf", at.STAGING)
        raise
    # The retired one goes when its successor has answered. Where it is still there, the program never has.
    if root.ask("test", "-e", at.RETIRED).status == 0:
        root.run("rm", "-rf", at.PROGRAM)
    elif root.ask("test", "-e", at.PROGRAM).status == 0:
        root.run("mv", "-T", at.PROGRAM, at.RETIRED)
    root.run("mv", "-T", at.STAGING + at.PROGRAM, at.PROGRAM)
    root.run("rm", "-rf", at.STAGING)


def _configure(root: Root, files: Mapping[str, bytes]) -> None:
    root.run("install", "-d", "-m", at.MODES[at.CONFIG], at.CONFIG)
    write_certificates(root, files)
    root.write(at.NODE_FILE, f"{root.name}\n".encode(), at.MODES[at.NODE_FILE], beside=at.FRESH)
    _take_unit(root)


def write_certificates(root: Root, files: Mapping[str, bytes]) -> None:
    """Put these into the agent's directory for them. A running agent takes them by itself."""
    root.run("install", "-d", "-m", at.MODES[at.TLS], at.TLS)
    for name, content in files.items():
        root.write(f"{at.TLS}/{name}", content, at.CERTIFICATE_MODE, beside=at.FRESH)


def _take_unit(root: Root) -> None:
    root.run("install", "-m", at.MODES[at.UNIT_FILE], at.UNIT_SOURCE, at.UNIT_FILE)
    root.run("systemctl", "daemon-reload")


def _start(root: Root) -> None:
    root.run("systemctl", "enable", at.UNIT)
    # On disk before it starts: a power cut must not leave an empty unit, which systemd takes for a mask.
    root.run("sync", "-f", at.PROGRAM, at.CONFIG, at.UNIT_FILE)
    root.run("systemctl", "restart", at.UNIT, timeout_s=300)


def _back(root: Root, error: LabctlError) -> None:
    """Bring back the agent that was replaced, where there is one; raises what to tell then."""
    try:
        if root.ask("test", "-e", at.RETIRED).status != 0:
            return
        root.run("rm", "-rf", at.PROGRAM)
        root.run("mv", "-T", at.RETIRED, at.PROGRAM)
        _take_unit(root)
        _start(root)
    except LabctlError as worse:
        raise LabError(
            f"{error.message}; and the agent of before could not be brought back: {worse.message}",
            f"labctl node install {root.name} goes on from there",
        ) from None
    raise LabError(f"{error.message}; the agent of before is back", error.hint) from None


def remove(root: Root, agent: Agent, task: Task, who: str = "") -> tuple[str, ...] | None:
    """Heal the node, stop the agent and delete everything of it.

    Returns what lies beside it and is not the agent's, or None where no agent was. Raises
    :class:`NodeDirtyError` and removes nothing while something cannot be undone: the agent is what can.
    """
    task.update("looking at the node", 0.0)
    with held(root, who):
        return _remove(root, agent, task)


def _remove(root: Root, agent: Agent, task: Task) -> tuple[str, ...] | None:
    machine = look(root)
    if not at.SIGNS.intersection(machine.present):
        return None
    if machine.disks:
        raise UsageError(
            f"{root.name}: disks are under device mapper: {', '.join(machine.disks)}; nothing was removed",
            f"labctl node prepare-disk {root.name} --undo --name {machine.disks[0]}",
        )
    task.update("recovering everything", 0.2)
    _heal(root.name, machine, agent)
    task.update("stopping the agent", 0.5)
    if at.UNIT_FILE in machine.present:
        root.run("systemctl", "disable", "--now", at.UNIT, timeout_s=300)
        left = look(root).live
        if left:
            raise NodeDirtyError(
                f"{root.name}: {', '.join(left)} could not be undone; the agent is stopped, its files are kept",
                f"on the node: systemctl start {at.UNIT}",
            )
    task.update("deleting its files", 0.8)
    root.run("rm", "-rf", "--", *at.OWNED)
    root.ask("rmdir", *at.SHARED)
    if machine.systemd:
        root.run("systemctl", "daemon-reload")
        root.ask("systemctl", "reset-failed", at.UNIT)
    after = look(root)
    if after.present:
        raise NodeDirtyError(f"{root.name}: still there: {', '.join(after.present)}")
    return after.kept


def _heal(name: str, machine: Machine, agent: Agent) -> None:
    try:
        stuck = agent.heal()
    except LabctlError as error:
        if not machine.live:
            return  # no agent that answers, and nothing for it to undo
        raise NodeDirtyError(
            f"{name}: {', '.join(machine.live)} may be live and the agent does not answer ({error.message}); "
            "nothing was removed",
            f"on the node: systemctl restart {at.UNIT}, which undoes them",
        ) from None
    if stuck:
        raise NodeDirtyError(f"{name}: {'; '.join(stuck)}; nothing was removed", f"labctl node residue {name}")
