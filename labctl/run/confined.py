"""The tools of a confined solver: a few verbs on the nodes instead of a shell.

`node w2 status nginx.service`. Each verb is a fixed command; words of the solver are only ever arguments, checked.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from labctl.errors import UsageError
from labctl.nearest import nearest
from labctl.run.oracle import Lookout

LONGEST = 30_000
"""Characters of an answer; of more the end is told."""

TIMEOUT_S = 120.0
_UNIT = re.compile(r"[A-Za-z0-9][A-Za-z0-9@_.:-]{0,80}")
_FORBIDDEN = re.compile(r"groundfault|node-agent|^ssh|^systemd|^dbus")


@dataclass(frozen=True)
class Verb:
    """One verb: what it does, its command, and what follows it: nothing, a unit, or SQL."""

    what: str
    command: tuple[str, ...]
    takes: str = ""


VERBS: Mapping[str, Verb] = {
    "units": Verb("services and whether they run", ("systemctl", "list-units", "--type=service", "--all",
                                                    "--plain", "--no-legend", "--no-pager")),
    "status": Verb("the state of a unit", ("systemctl", "status", "--no-pager", "--lines=20"), "unit"),
    "logs": Verb("the last lines of a unit's journal", ("journalctl", "--no-pager", "-n", "200", "-u"), "unit"),
    "start": Verb("start a unit", ("systemctl", "start"), "unit"),
    "stop": Verb("stop a unit", ("systemctl", "stop"), "unit"),
    "restart": Verb("restart a unit", ("systemctl", "restart"), "unit"),
    "kernel": Verb("the last lines of the kernel log", ("journalctl", "--no-pager", "--dmesg", "--lines=200")),
    "disks": Verb("file systems and how full they are", ("df", "-h", "-x", "tmpfs", "-x", "devtmpfs")),
    "smart": Verb("health of the data disk", ("sh", "-c", "for d in /dev/sd?; do smartctl -a \"$d\"; done")),
    "network": Verb("interfaces and their counters", ("ip", "-s", "addr", "show")),
    "processes": Verb("who uses CPU and memory", ("top", "-b", "-n", "1", "-w", "160")),
    "sql": Verb("run SQL in the database of the service", ("runuser", "-u", "postgres", "--", "psql", "-XAd",
                                                           "booking", "-c"), "sql"),
}  # fmt: skip


class NodeTool:
    """See :data:`labctl.run.solvers.desk.Tool`."""

    def __init__(self, lab: Lookout) -> None:
        self._lab = lab

    def __call__(self, text: str) -> str:
        """Do what the words say. Raises :class:`UsageError` for those that make no sense."""
        words = text.split(maxsplit=2)
        if not words:
            return "\n".join(f"NODE {n} {v.takes.upper():6} {v.what}" for n, v in VERBS.items())
        node, argv = read(words, self._lab.nodes)
        done = self._lab.sh(node, f"cd / && {shlex.join(argv)} 2>&1", timeout_s=TIMEOUT_S)
        said = "\n".join(line for line in done.stdout.splitlines() if not _FORBIDDEN.search(line.strip()))
        return said[-LONGEST:] or f"ended with {done.status}"


def read(words: Sequence[str], nodes: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The node and the command that words stand for."""
    if words[0] not in nodes:
        raise UsageError(f"node: there is no {words[0]!r}", f"one of: {' '.join(nodes)}")
    if len(words) < 2 or words[1] not in VERBS:
        named = words[1] if len(words) > 1 else ""
        raise UsageError(f"node: there is no verb {named!r}", nearest(named, list(VERBS), "verbs"))
    verb, rest = VERBS[words[1]], words[2] if len(words) > 2 else ""
    if bool(verb.takes) != bool(rest):
        raise UsageError(
            f"node: {words[1]} takes {verb.takes or 'nothing more'}", f"such as: {_example(words[1])}"
        )
    if verb.takes == "unit" and (not _UNIT.fullmatch(rest) or _FORBIDDEN.search(rest)):
        raise UsageError(f"node: {rest!r} is no unit of the service", "node NODE units")
    return words[0], (*verb.command, *((rest,) if rest else ()))


def _example(verb: str) -> str:
    words = {"": "", "unit": " nginx.service", "sql": " SELECT 1"}[VERBS[verb].takes]
    return f"node w1 {verb}{words}"
