"""Putting the agent on a node over SSH, and taking it off again without a trace.

Both are safe to repeat and safe to interrupt: every step first looks, or does the same again. The program is
unpacked beside the old one and swapped in by renames.
"""

from __future__ import annotations

import io
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

from pydantic import BaseModel, ConfigDict

from labctl.errors import LabctlError, LabError, NodeDirtyError, UnsupportedError, UsageError
from labctl.lab import footprint as at
from labctl.lab.model import Ready
from labctl.lab.remote import COMMAND_TIMEOUT_S, Output, Remote
from labctl.progress import Task

PYTHON = "/usr/bin/python3"
PYTHON_VERSIONS = ("3.11", "3.12", "3.13")
ARCHITECTURES = ("x86_64", "aarch64")
NEEDED_MIB = 200
UPLOAD_TIMEOUT_S = 900.0

_LOOK = """
import json, os, platform, shutil, sys
names = lambda d: sorted(os.listdir(d)) if os.path.isdir(d) else []
print(json.dumps({
    "python": "%%d.%%d" %% sys.version_info[:2],
    "arch": platform.machine(),
    "systemd": os.path.isdir("/run/systemd/system"),
    "free_mib": shutil.disk_usage("/opt" if os.path.isdir("/opt") else "/").free >> 20,
    "present": [p for p in %(owned)r if os.path.lexists(p)],
    "live": [n[:-8] for n in names(%(journal)r) if n.endswith(".journal")],
    "kept": [d + "/" + n for d in %(shared)r for n in names(d)],
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

    def heal(self) -> Sequence[str]:
        """Recover everything and refuse new faults; tells what is stuck. Raises as :meth:`live`."""


class Machine(BaseModel):
    """What a look at a node found. `live`: ids whose journal is open; `present`: paths of the agent;
    `kept`: what lies in the shared directories; `disks`: names of disks that were prepared."""

    python: str
    arch: str
    systemd: bool
    free_mib: int
    present: tuple[str, ...]
    live: tuple[str, ...]
    kept: tuple[str, ...]
    disks: tuple[str, ...] = ()

    model_config = ConfigDict(frozen=True, extra="forbid")


class Root:
    """Runs commands on a node as root, by sudo where the login is not root's."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        self.name = remote.node.name
        user = remote.node.ssh_user
        root = remote.run(("id", "-u")).stdout.strip() == "0"
        self._prefix: tuple[str, ...] = () if root else ("sudo", "-n", "--")
        if not root and remote.run((*self._prefix, "true")).status != 0:
            raise UnsupportedError(
                f"{self.name}: user {user} is not root and may not use sudo without a password",
                f"add a sudoers rule with NOPASSWD for {user}, or name root in the inventory",
            )

    def ask(self, *argv: str) -> Output:
        """Run a command whose status is an answer."""
        return self._remote.run((*self._prefix, *argv))

    def run(self, *argv: str, stdin: IO[bytes] | None = None, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        """Run a command that must succeed. Raises :class:`LabError` with what it said."""
        done = self._remote.run((*self._prefix, *argv), stdin=stdin, timeout_s=timeout_s)
        if done.status != 0:
            said = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
            raise LabError(f"{self.name}: {shlex.join(argv[:2])} ended with status {done.status}: {said}")
        return done.stdout


def look(root: Root) -> Machine:
    """Find out what a node is and what of the agent is on it. Changes nothing."""
    script = _LOOK % {"owned": at.OWNED, "journal": at.JOURNAL, "shared": at.SHARED, "disks": at.DISKS}
    done = root.ask(PYTHON, "-c", script)
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
    if machine.python not in PYTHON_VERSIONS:
        found.append(f"Python {machine.python}, supported are {', '.join(PYTHON_VERSIONS)}")
    if machine.arch not in ARCHITECTURES:
        found.append(f"architecture {machine.arch}, supported are {', '.join(ARCHITECTURES)}")
    if not machine.systemd:
        found.append("it was not booted with systemd, which starts the agent again and ends what it left")
    if machine.free_mib < NEEDED_MIB:
        found.append(f"{machine.free_mib} MiB free for /opt, needed are {NEEDED_MIB}")
    return tuple(found)


def install(
    remote: Remote,
    *,
    files: Callable[[], Mapping[str, bytes]],
    bundler: Bundler,
    agent: Agent,
    ready: Ready,
    task: Task,
) -> None:
    """Put the agent on a node, or replace the one there, and wait until it answers.

    `files` makes the node's certificates. Raises a :class:`LabctlError`; what was done stays, and running it
    again goes on from there.
    """
    task.update("looking at the node", 0.0)
    root = Root(remote)
    machine = look(root)
    problems = obstacles(machine)
    if problems:
        raise UnsupportedError(f"{root.name}: the agent cannot run here: {'; '.join(problems)}")
    _refuse_live(root.name, machine, agent)
    task.update("building the bundle", 0.1)
    bundle = bundler(python_version=machine.python, arch=machine.arch)
    task.update("uploading", 0.3)
    _unpack(root, bundle)
    task.update("writing certificates and unit", 0.6)
    _configure(root, files())
    task.update("starting the agent", 0.7)
    root.run("systemctl", "enable", at.UNIT)
    # On disk before it starts: a power cut must not leave an empty unit, which systemd takes for a mask.
    root.run("sync", "-f", at.PROGRAM, at.CONFIG, at.UNIT_FILE)
    root.run("systemctl", "restart", at.UNIT, timeout_s=300)
    task.update("waiting for its answer", 0.8)
    ready(remote.node)


def _refuse_live(name: str, machine: Machine, agent: Agent) -> None:
    """An upgrade restarts the agent, which would end what is live under somebody's hands."""
    if not machine.live:
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
    with bundle.open("rb") as archive:
        root.run("tar", "--extract", "--gzip", "--no-same-owner", "--file", "-", "--directory", at.STAGING,
                 stdin=archive, timeout_s=UPLOAD_TIMEOUT_S)  # fmt: skip
    root.run("sync", "-f", at.STAGING)
    root.run("rm", "-rf", at.RETIRED)
    if root.ask("test", "-e", at.PROGRAM).status == 0:
        root.run("mv", "-T", at.PROGRAM, at.RETIRED)
    root.run("mv", "-T", at.STAGING + at.PROGRAM, at.PROGRAM)
    root.run("rm", "-rf", at.STAGING, at.RETIRED)


def _configure(root: Root, files: Mapping[str, bytes]) -> None:
    root.run("install", "-d", "-m", "0755", at.CONFIG)
    root.run("install", "-d", "-m", "0700", at.TLS)
    for name, content in files.items():
        _write(root, f"{at.TLS}/{name}", content, "0600")
    _write(root, at.NODE_FILE, f"{root.name}\n".encode(), "0644")
    root.run("install", "-m", "0644", at.UNIT_SOURCE, at.UNIT_FILE)
    root.run("systemctl", "daemon-reload")


def _write(root: Root, path: str, content: bytes, mode: str) -> None:
    """Write a file so that it is there as a whole or not at all, and never readable by others meanwhile."""
    fresh = f"{at.TLS}/.new"  # what an interrupted install leaves there goes with the certificates
    root.run("install", "-m", mode, "/dev/stdin", fresh, stdin=io.BytesIO(content))
    root.run("mv", "-T", fresh, path)


def remove(remote: Remote, agent: Agent, task: Task) -> tuple[str, ...] | None:
    """Heal the node, stop the agent and delete everything of it.

    Returns what lies beside it and is not the agent's, or None where no agent was. Raises
    :class:`NodeDirtyError` and removes nothing while something cannot be undone: the agent is what can.
    """
    task.update("looking at the node", 0.0)
    root = Root(remote)
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
