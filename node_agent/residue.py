"""The state of a host that faults may change, as data, and what differs between two looks at it.

An entry is a category, an item in it, and its text. What the agent made carries the id of its injection in a
name, so a difference can be told to belong to a live injection, to nobody (residue), or to somebody else.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from pydantic import BaseModel, ConfigDict

from node_agent import routing_state
from node_agent.clock_state import clock_state, same_clock
from node_agent.fault import TAG_PREFIX, tag_of
from node_agent.host import Reader
from node_agent.lanes import state as shaping_state
from node_agent.steps import ram_disk
from node_agent.steps.task_flags import FLAGGED_TASKS, flagged_tasks

State = dict[str, dict[str, str]]
"""Category to item to text."""

SYSCTLS = (
    "kernel/panic", "kernel/panic_on_oops", "kernel/hung_task_timeout_secs", "kernel/pid_max",
    "kernel/threads-max", "vm/overcommit_memory", "vm/overcommit_ratio", "vm/swappiness",
    "kernel/sched_rt_runtime_us", "fs/file-max", "fs/nr_open",
    "net/ipv4/ip_forward", "net/ipv4/ip_local_port_range", "net/ipv4/tcp_mtu_probing", "net/core/somaxconn",
)  # fmt: skip
"""Settings that faults of the catalogue touch, below /proc/sys."""

_COME_AND_GO = ("autofs", "tmpfs", "ramfs", "tracefs")
"""File systems whose mounts tell nothing. The kernel mounts tracefs below debugfs when anybody looks there."""

_DEVICE_NUMBER = re.compile(r"\b(\d+:\d+)\b")


class Difference(BaseModel):
    """One item that is not as it was. Empty text: not there. `injection`: the live one that holds it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    category: str
    item: str
    before: str
    after: str
    injection: str = ""
    foreign: bool = False

    def __str__(self) -> str:
        return f"{self.category} {self.item}: {self.before or 'absent'} -> {self.after or 'absent'}"


def _dm(reader: Reader) -> dict[str, str]:
    devices = reader.dm.list()
    names = {device.number: device.name for device in devices}
    tables = {}
    for device in devices:
        try:
            table = reader.dm.table(device.name)
        except OSError as error:
            if error.errno == errno.ENXIO:  # it has gone meanwhile
                continue
            raise
        lines = (f"{t.start} {t.length} {t.kind} {t.args}".rstrip() for t in table)
        text = _DEVICE_NUMBER.sub(lambda m: names.get(m[1], m[1]), "; ".join(lines))
        tables[device.name] = text + (" (suspended)" if device.suspended else "")
    return tables


def _loops(reader: Reader) -> dict[str, str]:
    names = {f"/dev/dm-{device.number.partition(':')[2]}": device.name for device in reader.dm.list()}
    return {loop.path: names.get(loop.backing, loop.backing) for loop in reader.loop.list()}


def _mounts(reader: Reader) -> dict[str, str]:
    lines = reader.read_text("/proc/self/mounts").splitlines()
    fields = (line.split() for line in lines)
    return {f[1]: f"{f[0]} {f[2]} {f[3]}" for f in fields if len(f) >= 4 and f[2] not in _COME_AND_GO}


def _nft(reader: Reader) -> dict[str, str]:
    tables: dict[str, str] = {}
    name = ""
    for line in reader.network.ruleset().splitlines():
        if line.startswith("table "):
            name = line.removesuffix("{").strip()
        tables[name] = tables.get(name, "") + line.strip() + " "
    return tables


def _bpf(reader: Reader) -> dict[str, str]:
    """Links, whoever attached them, and pins of ours."""
    pins = {path: "pinned" for path in reader.glob("/sys/fs/bpf/**") if TAG_PREFIX in path}
    return {**pins, **reader.bpf.links()}


def _cgroups(reader: Reader) -> dict[str, str]:
    return {path: "cgroup" for path in reader.glob(f"/sys/fs/cgroup/**/*{TAG_PREFIX}*") if ".service" not in path}


def _sysctls(reader: Reader) -> dict[str, str]:
    found = {}
    for name in SYSCTLS:
        with suppress(OSError):  # kernels differ in what they have
            found[name] = reader.read_text(f"/proc/sys/{name}").strip()
    return found


def _cpus(reader: Reader) -> dict[str, str]:
    path = "/sys/devices/system/cpu/online"
    return {"online": reader.read_text(path).strip()} if reader.exists(path) else {}


def _kernel_values(reader: Reader) -> dict[str, str]:
    """The kernel's own fault facilities (Documentation/fault-injection), where it has them."""
    names = ("probability", "interval", "times", "space", "task-filter", "inject")
    paths = [path for name in names for path in reader.glob(f"/sys/kernel/debug/fail*/{name}")]
    paths += reader.glob("/sys/block/*/make-it-fail")
    values = {path: reader.read_text(path).strip() for path in paths}
    tasks = flagged_tasks(reader)
    return {**values, FLAGGED_TASKS: f"{len(tasks)} tasks"} if tasks else values


def _swaps(reader: Reader) -> dict[str, str]:
    """Swap by its file or device: how much that takes is nobody's change."""
    lines = reader.read_text("/proc/swaps").splitlines()[1:] if reader.exists("/proc/swaps") else []
    return {line.split()[0]: " ".join(line.split()[1:3]) for line in lines if line.strip()}


def _files(reader: Reader) -> dict[str, str]:
    places = ("/run/groundfault", ram_disk.PLACE)
    return {path: "file" for place in places for path in reader.glob(f"{place}/{TAG_PREFIX}*")}


CATEGORIES: Mapping[str, Callable[[Reader], dict[str, str]]] = {
    "dm": _dm, "loop": _loops, "mount": _mounts, "qdisc": shaping_state.qdiscs,
    "link": shaping_state.links, "nft": _nft, "bpf": _bpf,
    "cgroup": _cgroups, "sysctl": _sysctls, "cpu": _cpus, "file": _files,
    "value": _kernel_values, "swap": _swaps, "clock": clock_state,
    "interface": routing_state.interfaces, "address": routing_state.addresses, "route": routing_state.routes,
    "neighbour": routing_state.neighbours,
}  # fmt: skip


def look(reader: Reader) -> State:
    """The whole state, now."""
    return {category: read(reader) for category, read in CATEGORIES.items()}


def compare(
    before: State, after: State, live: Iterable[str] = (), touched: Iterable[tuple[str, str]] = (),
    held: Mapping[tuple[str, str], str] | None = None,
) -> tuple[Difference, ...]:  # fmt: skip
    """What differs. `live` are ids of injections that may hold state; `touched` the (category, item) pairs that
    this agent's injections have changed: a difference that is neither marked nor touched is foreign. `held` says
    which live injection holds such a pair."""
    ids = tuple(live)
    known = set(touched)
    found = []
    for category in sorted({*before, *after}):
        old, new = before.get(category, {}), after.get(category, {})
        for item in sorted({*old, *new}):
            was, now = old.get(item, ""), new.get(item, "")
            if was == now or (category == "clock" and same_clock(was, now)):
                continue
            text = f"{item} {now}"
            holder = _owner(text, ids) or (held or {}).get((category, item), "")
            foreign = TAG_PREFIX not in f"{text} {was}" and (category, item) not in known
            found.append(
                Difference(category=category, item=item, before=was, after=now, injection=holder, foreign=foreign)
            )
    return tuple(found)


def _owner(text: str, ids: Iterable[str]) -> str:
    """Whose mark a text bears. The mark of `a-1` is also in that of `a-12`: the longest one counts."""
    return max((i for i in ids if tag_of(i) in text), key=len, default="")


def residue_of(injection: str, now: State, live: Iterable[str] = ()) -> tuple[str, ...]:
    """What still bears the mark of an injection, one line each. `live` are the ids of all that may hold state."""
    ids = {injection, *live}
    return tuple(
        f"{category} {item}: {text}"
        for category, items in now.items()
        for item, text in items.items()
        if _owner(f"{item} {text}", ids) == injection
    )
