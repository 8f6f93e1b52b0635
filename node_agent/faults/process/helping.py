"""What faults of processes and CPUs share: signals by name, and what a helper counts."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated

from pydantic import AfterValidator

from node_agent.fault import Facts
from node_agent.host import Reader
from node_agent.members import folders_of
from node_agent.rules import Scope

_LETHAL_NOT = {"SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGCONT", "SIGCHLD", "SIGURG", "SIGWINCH"}


def _known(value: str) -> str:
    name = value.upper() if value.upper().startswith("SIG") else f"SIG{value.upper()}"
    if name not in signal.Signals.__members__:
        raise ValueError(f"there is no {value}; allowed: names such as SIGKILL, SIGTERM, SIGSEGV, ABRT")
    return signal.Signals[name].name


SignalName = Annotated[str, AfterValidator(_known)]


def is_lethal(name: str) -> bool:
    """Whether a signal ends a process that does nothing about it (signal(7))."""
    return name not in _LETHAL_NOT


def is_clean(name: str) -> bool:
    """Whether systemd takes a death by it for a clean exit (systemd.service(5), "SuccessExitStatus=")."""
    return name in ("SIGHUP", "SIGINT", "SIGTERM", "SIGPIPE")


def counters_of(reader: Reader, name: str) -> tuple[bool, Mapping[str, int]]:
    """Whether a helper runs, and what it has counted."""
    if not reader.helpers.pids(name):
        return False, {}
    with suppress(OSError, ValueError, KeyError):
        said = json.loads(reader.helpers.ask(name, "count"))
        return True, {str(key): int(value) for key, value in said["counters"].items()}
    return True, {}


def unit_names(scope: Scope) -> tuple[str, ...]:
    """The units of a scope that is one, in the order of its control groups."""
    if scope.kind != "unit":
        return ()
    return tuple(path.rpartition("/")[2] for path in (scope.cgroup, *scope.also))


def service_of(reader: Reader, pid: int) -> str:
    """The system service that a process belongs to; empty where it belongs to none."""
    with suppress(OSError):
        for line in reader.read_text(f"/proc/{pid}/cgroup").splitlines():
            number, controllers, path = line.split(":", 2)
            if (number == "0" or controllers == "name=systemd") and not path.startswith("/user.slice/"):
                return next((part for part in path.split("/") if part.endswith(".service")), "")
    return ""


def text_of(reader: Reader, path: str) -> str:
    """What a file says; empty where it is gone."""
    with suppress(OSError):
        return reader.read_text(path).strip()
    return ""


def stat_of(reader: Reader, path: str) -> dict[str, int]:
    """A file of "name number" lines, such as cpu.stat; empty where it is gone."""
    words = (line.split() for line in text_of(reader, path).splitlines())
    return {w[0]: int(w[1]) for w in words if len(w) == 2 and w[1].isdigit()}


def folders(facts: Facts, scope: Scope) -> tuple[str, ...]:
    """The control groups of a scope; none of a process."""
    return folders_of(facts, scope)
