"""The rule table's two descriptions, in C and in ctypes, are one; and rules are written down as they are meant."""

from __future__ import annotations

import ctypes
import ipaddress
import re
import subprocess
from pathlib import Path

import pytest

from ebpf.loader import abi
from ebpf.loader.engine import cgroup_root
from ebpf.operations import FAMILIES
from node_agent.rules import Hook, Match, Root, Rule, Scope
from node_agent.schedule import parse_schedule

EBPF = Path(abi.__file__).resolve().parents[1]
SCOPE = Scope(kind="cgroup", name="cgroup /work", cgroup="/work")


def _rule(**more: object) -> Rule:
    return Rule.model_validate(
        {"operations": (1,), "hooks": (Hook(name="file_open", flavour="lsm"),), "scope": SCOPE, "errno": 5, **more}
    )


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """Size and offset of every structure and field, as the C compiler has them."""
    lines = []
    for name, struct in abi.STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof(struct {name}));')
        for field, *_ in struct._fields_:
            lines.append(f'printf("{name}.{field} %zu\\n", __builtin_offsetof(struct {name}, {field}));')
    work = tmp_path_factory.mktemp("abi")
    source = work / "layout.c"
    source.write_text('#include "include/rules.h"\nint printf(const char *, ...);\nint main(void)\n{\n'
                      + "\n".join(lines) + "\nreturn 0;\n}\n")  # fmt: skip
    program = work / "layout"
    subprocess.run(["clang", "-I", str(EBPF), "-o", str(program), str(source)], check=True, capture_output=True)
    said = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    return {line.split()[0]: int(line.split()[1]) for line in said.splitlines()}


@pytest.mark.parametrize("name", abi.STRUCTS)
def test_both_sides_lay_it_out_alike(name: str, layout: dict[str, int]) -> None:
    struct = abi.STRUCTS[name]
    assert ctypes.sizeof(struct) == layout[name]
    for field, *_ in struct._fields_:
        assert getattr(struct, field).offset == layout[f"{name}.{field}"], field


def _defines(header: str) -> dict[str, int]:
    text = (EBPF / "include" / header).read_text()
    return {m[1]: int(m[2]) for m in re.finditer(r"^#define (\w+) (\d+)\b", text, re.M)}


def test_both_sides_have_the_same_limits_and_numbers() -> None:
    limits = _defines("rules.h")
    for name in ("MAX_RULES", "MAX_TOKENS", "MAX_COMPOSED", "HINTS", "MAX_ROOTS", "MAX_PARTS", "NAME_LEN",
                 "PATH_LEN"):  # fmt: skip
        assert getattr(abi, name) == limits[name], name
    text = (EBPF / "include" / "rules.h").read_text()
    wants = {m[1]: int(m[2]) for m in re.finditer(r"\t(WANT_\w+) = (\d+),", text)}
    assert wants and wants == {name: getattr(abi, name) for name in wants}
    kinds = {m[1].lower(): int(m[2]) for m in re.finditer(r"\tKIND_(\w+) = (\d+),", text)}
    assert {k: v for k, v in kinds.items() if k != "none"} == abi.KINDS
    schedules = re.findall(r"\tSCHEDULE_(\w+),", text)
    assert tuple(s.lower() for s in schedules) == abi.SCHEDULES


def test_both_sides_number_operations_alike() -> None:
    text = (EBPF / "include" / "operations.h").read_text()
    names = re.findall(r"\tOP_(\w+)", text)
    assert {name.lower(): n for n, name in enumerate(names, 1)} == {f.name: f.number for f in FAMILIES.values()}


def test_every_hook_of_every_family_has_a_program() -> None:
    source = (EBPF / "rules.bpf.c").read_text()
    programs = set(re.findall(r"^(?:HOOK|HOOK_AS|FMOD_RET)\((\w+),", source, re.M))
    assert {hook for family in FAMILIES.values() for hook in (*family.hooks, *family.also)} == programs


@pytest.mark.parametrize(
    ("text", "kind", "a", "b"),
    [
        ("always", "always", 0, 0),
        ("probability:0.25", "probability", 2**30, 0),
        ("probability:1", "probability", 2**32, 0),
        ("every:3", "every", 3, 0),
        ("burst:2/5", "burst", 2_000_000_000, 5_000_000_000),
        ("ratio:2/7", "ratio", 2, 7),
    ],
)
def test_schedules(text: str, kind: str, a: int, b: int) -> None:
    entry = abi.encode(_rule(schedule=parse_schedule(text)), 0)
    assert (abi.SCHEDULES[entry.schedule], entry.a, entry.b) == (kind, a, b)


def test_a_new_entry_bites_nobody_until_it_is_held() -> None:
    entry = abi.encode(_rule(), 77)
    assert (entry.deadline_ns, entry.armed_ns, entry.answer, entry.zero) == (0, 77, -5, 0)


@pytest.mark.parametrize("network", ["10.77.0.0/16", "192.168.1.4", "2001:db8::/32", "::1"])
def test_addresses_are_in_network_order(network: str) -> None:
    entry = abi.encode(_rule(match=Match(address=network, port=5432)), 0)
    wanted = ipaddress.ip_network(network)
    raw = bytes(entry.address)
    assert raw[: 4 if wanted.version == 4 else 16] == wanted.network_address.packed
    assert entry.prefix_bits == wanted.prefixlen and entry.port == 5432
    assert entry.wants == abi.WANT_ADDRESS | abi.WANT_PORT
    assert entry.family == {4: abi.AF_INET, 6: abi.AF_INET6}[wanted.version]


def test_only_what_is_asked_is_wanted() -> None:
    match = Match(
        kinds=("regular", "block"), roots=(Root(device=1, inode=2),), parts=("*.wal", "pg?"), any_depth=False
    )
    entry = abi.encode(_rule(match=match), 0)
    assert entry.wants == abi.WANT_KIND | abi.WANT_PATH
    assert entry.kinds == abi.KINDS["regular"] | abi.KINDS["block"]
    assert [entry.parts[i].text for i in range(entry.part_count)] == [b"*.wal", b"pg?"]
    assert (entry.roots[0].device, entry.roots[0].inode, entry.root_count) == (1, 2, 1)


@pytest.mark.parametrize(
    ("mounts", "root"),
    [
        ("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n", "/sys/fs/cgroup"),
        (
            "tmpfs /sys/fs/cgroup tmpfs ro 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n",
            "/sys/fs/cgroup/unified",
        ),
        ("tmpfs /sys/fs/cgroup tmpfs ro 0 0\n", "/sys/fs/cgroup"),
    ],
)
def test_where_control_groups_are(mounts: str, root: str) -> None:
    """A node with version 1 alone still has processes and trees to hit."""
    assert cgroup_root(mounts) == Path(root)
