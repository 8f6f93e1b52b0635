"""How container runtimes name control groups, and which of many is a container's. Pure.

Seen of containerd, CRI-O, Docker and Podman, with cgroup drivers systemd and cgroupfs, on version 1 and 2:
`cri-containerd-ID.scope`, `crio-ID.scope`, `docker-ID.scope`, `libpod-ID.scope`; plain `ID` and `crio-ID`;
`SLICE:cri-containerd:ID` where runtime and kubelet disagree about the driver; a container of `ctr` by its name.
Beside a container of CRI-O or Podman its monitor has a group of its own, with the same id.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_ID = re.compile(r"[0-9a-f]+")
_SCOPE = ".scope"
_MONITOR = "conmon"


def names_container(directory: str, wanted: str) -> bool:
    """Whether a control group called `directory` is that of a container: by id, its beginning, or name."""
    name = directory.removesuffix(_SCOPE)
    more = "[0-9a-f]*" if _ID.fullmatch(wanted) else ""
    before = "(?P<before>(.*[-:])?)" if more or name != directory else "(?P<before>(.*:)?)"
    found = re.fullmatch(f"{before}{re.escape(wanted)}{more}", name)
    return found is not None and _MONITOR not in found["before"]


def container_groups(paths: Iterable[str], wanted: str) -> tuple[str, ...]:
    """The control groups of the containers that `wanted` fits, each once, without those below them.

    `paths` are control groups, of whichever hierarchy, below its root; those below a container's count for it.
    """
    found = set()
    for path in paths:
        parts = path.strip("/").split("/")
        depth = next((n for n, part in enumerate(parts, start=1) if names_container(part, wanted)), 0)
        if depth:
            found.add("/" + "/".join(parts[:depth]))
    return tuple(sorted(found))


def group_of_process(lines: Iterable[str], wanted: str) -> str:
    """The control group of a container in /proc/PID/cgroup (cgroups(7)) of one of its processes; "" where none is.

    Version 1 has a line for each hierarchy; systemd's own is taken last, since it may be another tree.
    """
    rows = [line.strip().split(":", 2) for line in lines if line.count(":") >= 2]
    rows.sort(key=lambda row: (row[0] == "0", row[1] == "name=systemd"))
    return next((groups[0] for row in rows if (groups := container_groups([row[2]], wanted))), "")
