"""Whose calls a rule hits: from what a user types to what the kernel knows. Only looks.

A unit, a control group and a container are known by their cgroup, so children and restarts stay covered and
nothing else is hit; a process by its number and start time.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import PurePosixPath

from pydantic import BaseModel, Field

from node_agent.container_groups import container_groups, group_of_process
from node_agent.errors import Refusal
from node_agent.fault import Facts
from node_agent.host import Reader
from node_agent.rules import Scope

PROTECTED_UNITS = ("groundfault-agent.service", "ssh.service", "sshd.service", "init.scope", "-.slice")
_KTHREADD = 2
_SHORT = 12
_FULL_ID = re.compile(r"[0-9a-f]{64}")
_CONTAINER = re.compile(r"^[0-9a-zA-Z][0-9a-zA-Z_.-]{0,127}$")


class ScopeFields(BaseModel):
    """The parameters that say whose calls. Exactly one is given."""

    unit: str = Field(default="", description="systemd unit, through its restarts; .service may be left out")
    cgroup: str = Field(default="", description="control group, by its path below the cgroup root")
    container: str = Field(default="", description="container by id or name: containerd, CRI-O, Docker, Podman")
    pid: int = Field(default=0, ge=0, le=2**22, description="one process with all its threads")
    tree: int = Field(default=0, ge=0, le=2**22, description="a process and all its descendants, wherever they go")


def find_scope(reader: Reader, facts: Facts, wanted: ScopeFields) -> Scope:
    """The scope that the parameters name.

    Raises :class:`Refusal` where none or several are given, where it does not exist, or where it holds pid 1, the
    agent or sshd.
    """
    given = [name for name in ScopeFields.model_fields if getattr(wanted, name)]
    if len(given) != 1:
        allowed = "exactly one of unit, cgroup, container, pid, tree"
        said = "nobody is named" if not given else f"{' and '.join(given)} exclude each other"
        raise Refusal(f"scope: {said}", field=given[0] if given else "unit", allowed=allowed)
    if wanted.pid or wanted.tree:
        return _process(reader, given[0], wanted.pid or wanted.tree)
    if wanted.container:
        return _container(reader, facts, wanted.container)
    root = cgroup_root(facts, given[0])
    if wanted.unit:
        return _unit(reader, wanted.unit)
    return _cgroup(reader, root, wanted.cgroup)


def cgroup_root(facts: Facts, field: str = "cgroup") -> str:
    """Where version 2 of the control groups is mounted: alone, or beside version 1 (hybrid)."""
    mount = next((m for m in facts.mounts if m.fstype == "cgroup2"), None)
    if mount is None:
        raise Refusal(
            f"{field}: this node has control groups of version 1 only, which the kernel's programs cannot see",
            field=field, allowed="pid or tree; or boot with systemd.unified_cgroup_hierarchy=1",
        )  # fmt: skip
    return mount.target


def _unit(reader: Reader, unit: str) -> Scope:
    name = unit if "." in unit else f"{unit}.service"
    known = _shown(reader, name)
    names = [name]
    if known.get("Type") == "oneshot" and not known.get("ControlGroup") and known.get("ConsistsOf"):
        names = sorted(n for n in known["ConsistsOf"].split() if n.endswith(".service"))  # postgresql on Debian
    paths = []
    for one in names:
        if one in PROTECTED_UNITS:
            allowed = "a unit that control does not need"
            raise Refusal(f"unit: {one} is never a target", field="unit", allowed=allowed)
        if one != name:
            known = _shown(reader, one)
        paths.append(known.get("ControlGroup") or f"{_slice_path(known.get('Slice') or 'system.slice')}/{one}")
        _refuse_protected(reader, "unit", paths[-1])
    title = f"unit {name}" + (f" ({', '.join(names)})" if names != [name] else "")
    return Scope(kind="unit", name=title, cgroup=paths[0], also=tuple(paths[1:]))


def _shown(reader: Reader, name: str) -> dict[str, str]:
    """What systemd knows of a unit. Raises :class:`Refusal` where it has not loaded it."""
    asked = ("LoadState", "ControlGroup", "Slice", "Type", "ConsistsOf")
    shown = reader.query(("systemctl", "show", *(f"--property={word}" for word in asked), "--", name))
    if shown is None:
        raise Refusal(f"unit: systemd does not answer about {name}", field="unit", allowed="cgroup, pid or tree")
    known = dict(line.partition("=")[::2] for line in shown.splitlines())
    if known.get("LoadState") != "loaded":
        state = known.get("LoadState", "unknown")
        raise Refusal(f"unit: {name} is {state} on this node", field="unit", allowed="a unit systemd has loaded")
    return known


def _slice_path(name: str) -> str:
    """a-b.slice lies in a.slice: systemd.slice(5)."""
    if name == "-.slice":
        return ""
    parts = name.removesuffix(".slice").split("-")
    return "".join(f"/{'-'.join(parts[: i + 1])}.slice" for i in range(len(parts)))


def _cgroup(reader: Reader, root: str, wanted: str) -> Scope:
    path = "/" + wanted.removeprefix(root).strip("/")
    if path == "/" or ".." in path.split("/"):
        raise Refusal(
            f"cgroup: {wanted} is the whole node", field="cgroup", allowed="a control group below the root"
        )
    if not reader.exists(f"{root}{path}/cgroup.procs"):
        raise Refusal(f"cgroup: there is no {root}{path}", field="cgroup", allowed="a control group that exists")
    _refuse_protected(reader, "cgroup", path)
    return Scope(kind="cgroup", name=f"cgroup {path}", cgroup=path)


def _refuse_protected(reader: Reader, field: str, path: str) -> None:
    """A control group that holds the agent, sshd or pid 1 is no target."""
    own = next((line[3:] for line in reader.read_text("/proc/self/cgroup").splitlines() if line[:3] == "0::"), "")
    held = [("the agent", own.strip()), ("pid 1", "/init.scope")]
    held += [("sshd", f"/system.slice/{name}") for name in PROTECTED_UNITS if name.startswith("ssh")]
    for what, inside in held:
        if inside == path or inside.startswith(f"{path}/"):
            raise Refusal(f"{field}: {path} holds {what}", field=field, allowed="a smaller scope")


def _process(reader: Reader, field: str, pid: int) -> Scope:
    try:
        stat = reader.read_text(f"/proc/{pid}/stat")
        status = dict(line.partition(":\t")[::2] for line in reader.read_text(f"/proc/{pid}/status").splitlines())
    except OSError:
        raise Refusal(f"{field}: there is no process {pid}", field=field, allowed="a process that runs") from None
    comm, words = stat.rpartition(")")[0].partition("(")[2], stat.rpartition(")")[2].split()
    leader = int(status.get("Tgid", pid))
    if leader != pid:
        raise Refusal(f"{field}: {pid} is a thread of process {leader}", field=field, allowed=f"{leader}")
    agent = int(reader.read_text("/proc/self/stat").split()[0])
    reasons = {
        "pid 1": pid == 1, "a kernel thread": _KTHREADD in (pid, int(words[1])), "the agent": pid == agent,
        "sshd": comm.startswith("sshd"),
    }  # fmt: skip
    for why, is_so in reasons.items():
        if is_so:
            raise Refusal(f"{field}: process {pid} ({comm}) is {why}", field=field, allowed="another process")
    kind = "tree" if field == "tree" else "process"
    what = "process" if kind == "process" else "process and descendants of"
    return Scope(kind=kind, name=f"{what} {pid} ({comm})", pid=pid, started=int(words[19]))


def _container(reader: Reader, facts: Facts, wanted: str) -> Scope:
    """By the id in the name of its control group, as the runtimes and both cgroup drivers write it."""
    if not _CONTAINER.match(wanted):
        raise Refusal(
            f"container: {wanted!r} is not an id or a name", field="container", allowed="an id or a name"
        )
    identity = _container_id(reader, wanted)
    short = wanted[:_SHORT] if _FULL_ID.fullmatch(wanted) else wanted
    root = "" if _is_version_1(facts) else cgroup_root(facts, "container")
    paths = container_groups(_groups_named(reader, root, identity), identity) if root else ()
    if len(paths) == 1:
        _refuse_protected(reader, "container", paths[0])
        return Scope(kind="cgroup", name=f"container {short} ({paths[0]})", cgroup=paths[0])
    if paths:
        raise Refusal(
            f"container: {wanted} fits {len(paths)} containers", field="container", allowed="a longer id"
        )
    process, path = _container_process(reader, identity)
    if process:
        scope = _process(reader, "tree", process)
        return scope.model_copy(update={"name": f"container {short} ({path}, process {process})"})
    raise Refusal(
        f"container: {wanted} does not run on this node", field="container", allowed="a running container"
    )


def _is_version_1(facts: Facts) -> bool:
    kinds = {mount.fstype for mount in facts.mounts}
    return "cgroup" in kinds and "cgroup2" not in kinds


def _groups_named(reader: Reader, root: str, identity: str) -> list[str]:
    found = reader.glob(f"{root}/**/*{identity}*/cgroup.procs")
    return [str(PurePosixPath(path).parent).removeprefix(root) for path in found]


def _container_id(reader: Reader, wanted: str) -> str:
    """The full id of a container that is known by a name; the word itself where no runtime knows better."""
    if _FULL_ID.fullmatch(wanted):
        return wanted
    asks: tuple[tuple[str, ...], ...] = (
        ("docker", "inspect", "--format", "{{.Id}}", "--", wanted),
        ("podman", "inspect", "--type", "container", "--format", "{{.Id}}", "--", wanted),
        ("crictl", "ps", "--quiet", "--name", f"^{wanted}$"),
    )
    for argv in asks:
        answer = (reader.query(argv) or "").split()
        if len(answer) == 1 and re.fullmatch(r"[0-9a-f]{12,64}", answer[0]):
            return answer[0]
    return wanted


def _container_process(reader: Reader, identity: str) -> tuple[int, str]:
    """The first process of a container whose control group is one of version 1 only (hybrid): its tree is hit.

    The oldest one, which started the others: those that somebody runs in there later are no children of it. With
    its control group. Raises :class:`Refusal` where the id fits several.
    """
    found: list[tuple[int, int, str]] = []
    for path in reader.glob("/proc/[0-9]*/cgroup"):
        with suppress(OSError):
            group = group_of_process(reader.read_text(path).splitlines(), identity)
            if group:
                pid = int(path.split("/")[2])
                stat = reader.read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
                found.append((int(stat[19]), pid, group))
    if len({group for _, _, group in found}) > 1:
        raise Refusal(f"container: {identity} fits several containers", field="container", allowed="a longer id")
    _, first, group = min(found, default=(0, 0, ""))
    return first, group
