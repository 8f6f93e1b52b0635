"""ebpf/include/rules.h in ctypes, and how a rule of the vocabulary is written down in it."""

from __future__ import annotations

import ctypes as c
import ipaddress

from node_agent.rules import Kind, Rule

MAX_RULES = 4096
MAX_TOKENS = 16
MAX_COMPOSED = 16
HINTS = 65536
MAX_ROOTS = 4
MAX_PARTS = 4
NAME_LEN = 64
PATH_LEN = 256
INHERITED = 1 << 63

SCHEDULES = ("always", "probability", "every", "after", "first", "burst", "ratio")
KINDS: dict[Kind, int] = {
    "regular": 1, "directory": 2, "block": 4, "character": 8, "pipe": 16, "socket": 32, "other": 64,
    "thread": 128, "process": 256,
}  # fmt: skip
(
    WANT_KIND, WANT_DEVICE, WANT_PATH, WANT_ANY_DEPTH, WANT_ADDRESS, WANT_PORT, WANT_SIZE, WANT_FLAGS, WANT_FAMILY,
    WANT_CALL,
) = (1 << n for n in range(10))  # fmt: skip
AF_INET, AF_INET6 = 2, 10

u32, u64, s32 = c.c_uint32, c.c_uint64, c.c_int32


class Label(c.Structure):
    _fields_ = [("text", c.c_char * NAME_LEN)]


class Root(c.Structure):
    _fields_ = [("inode", u64), ("device", u64)]


class RuleEntry(c.Structure):
    """struct rule."""

    _fields_ = [
        ("deadline_ns", u64), ("armed_ns", u64), ("budget", u64), ("seed", u64), ("a", u64), ("b", u64),
        ("size", u64), ("answer", s32), ("signal", u32), ("schedule", u32), ("wants", u32), ("kinds", u32),
        ("device", u32), ("open_flags", u32), ("family", u32), ("port", u32), ("prefix_bits", u32),
        ("address", u32 * 4), ("root_count", u32), ("part_count", u32), ("zero", u32), ("call", u32),
        ("roots", Root * MAX_ROOTS), ("parts", Label * MAX_PARTS),
    ]  # fmt: skip


COUNTERS = ("seen", "matched", "injected", "suppressed_by_deadline", "suppressed_by_budget",
            "suppressed_by_schedule", "suppressed_by_guard")  # fmt: skip
"""The names that users see, in the order of struct counters."""


class Counters(c.Structure):
    """struct counters."""

    _fields_ = [
        ("seen", u64), ("matched", u64), ("injected", u64), ("by_deadline", u64), ("by_budget", u64),
        ("by_schedule", u64), ("by_guard", u64), ("ticket", u64), ("last_hit_ns", u64), ("last_sample_ns", u64),
    ]  # fmt: skip


class Tokens(c.Structure):
    _fields_ = [("at", u64 * MAX_TOKENS)]


class BindingKey(c.Structure):
    _fields_ = [("token", u64), ("operation", u64)]


class Binding(c.Structure):
    _fields_ = [("count", u32), ("slot", u32 * MAX_COMPOSED)]


class Config(c.Structure):
    _fields_ = [("processes", u64), ("agent", u32), ("spare", u32)]


class CgroupPath(c.Structure):
    _fields_ = [("text", c.c_char * PATH_LEN)]


class SampleEntry(c.Structure):
    """struct sample."""

    _fields_ = [
        ("time_ns", u64), ("operation", u64), ("slot", u32), ("pid", u32), ("tid", u32), ("answer", s32),
        ("family", u32), ("port", u32), ("address", u32 * 4), ("comm", c.c_char * 16), ("name", Label),
        ("parent", Label),
    ]  # fmt: skip

    def where(self) -> str:
        """The path's last two names, or the address, as far as the hook knew it."""
        if self.family in (AF_INET, AF_INET6):
            raw = bytes(self.address)
            host = ipaddress.ip_address(raw[:4] if self.family == AF_INET else raw)
            return f"{host}:{self.port}" if self.family == AF_INET else f"[{host}]:{self.port}"
        name, parent = (x.text.decode(errors="surrogateescape") for x in (self.name, self.parent))
        return f"{parent.rstrip('/')}/{name}" if parent else name


STRUCTS: dict[str, type[c.Structure]] = {
    "rule": RuleEntry, "counters": Counters, "tokens": Tokens, "binding_key": BindingKey, "binding": Binding,
    "config": Config, "cgroup_path": CgroupPath, "sample": SampleEntry, "label": Label, "root": Root,
}  # fmt: skip
"""By their names in C; a test compares the layouts."""


def encode(rule: Rule, armed_ns: int) -> RuleEntry:
    """The table's entry of a rule. Its deadline is 0: it bites only once one is set."""
    entry = RuleEntry(
        armed_ns=armed_ns, budget=rule.budget, seed=rule.seed, answer=-rule.errno, signal=rule.signal
    )
    _encode_schedule(rule, entry)
    match, wants = rule.match, 0
    if match.kinds:
        wants |= WANT_KIND
        entry.kinds = sum(KINDS[k] for k in match.kinds)
    if match.device is not None:
        wants |= WANT_DEVICE
        entry.device = match.device
    if match.roots:
        wants |= WANT_PATH | (WANT_ANY_DEPTH if match.any_depth else 0)
        entry.root_count, entry.part_count = len(match.roots), len(match.parts)
        for i, root in enumerate(match.roots):
            entry.roots[i] = Root(inode=root.inode, device=root.device)
        for i, part in enumerate(match.parts):
            entry.parts[i].text = part.encode(errors="surrogateescape")
    if match.family is not None:
        wants |= WANT_FAMILY
        entry.family = match.family
    if match.address:
        wants |= WANT_ADDRESS
        network = ipaddress.ip_network(match.address)
        entry.family = AF_INET if network.version == 4 else AF_INET6
        entry.prefix_bits = network.prefixlen
        raw = network.network_address.packed.ljust(16, b"\0")
        entry.address[:] = [int.from_bytes(raw[i : i + 4], "little") for i in range(0, 16, 4)]
    if match.port is not None:
        wants |= WANT_PORT
        entry.port = match.port
    if match.min_size:
        wants |= WANT_SIZE
        entry.size = match.min_size
    if match.open_flags:
        wants |= WANT_FLAGS
        entry.open_flags = match.open_flags
    if match.call is not None:
        wants |= WANT_CALL
        entry.call = match.call
    entry.wants = wants
    return entry


def _encode_schedule(rule: Rule, entry: RuleEntry) -> None:
    kind, a, b = rule.schedule.kind, rule.schedule.a, rule.schedule.b
    entry.schedule = SCHEDULES.index(kind)
    if kind == "probability":
        entry.a = round(a * 2**32)
    elif kind == "burst":
        entry.a, entry.b = int(a * 1e9), int(b * 1e9)
    else:
        entry.a, entry.b = int(a), int(b)
