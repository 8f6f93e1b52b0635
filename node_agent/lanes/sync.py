"""Making the kernel's tree of an interface the desired one, and telling what differs.

The shapes that stand are files in /run, one an injection, so that the tree can be made again after the agent was
killed, and is forgotten when the kernel forgets it. New lanes come first, then the rules change in one
transaction, then lanes nobody is led to any more run empty and go. A lane that stays as it is is not touched.
Killed in between, the next run goes on from whatever is there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from pydantic import ValidationError

from node_agent.errors import ConflictError
from node_agent.fault import TAG_PREFIX
from node_agent.host import Host, Reader
from node_agent.host.links import Interface
from node_agent.lanes.qdiscs import drain_s, same
from node_agent.lanes.rules import MARK_HEAD, Measured, marks_of, measured_tables, same_chain, table_of, ways_of
from node_agent.lanes.tree import LANE_PREFIX, Lane, LiveShape, Tree, desired

PLACE = "/run/groundfault"
_FILE = f"{PLACE}/%s-shape"
_LANE = re.compile(rf"^{LANE_PREFIX}[0-9a-f]{{12}}$")
GROUP_ROOTS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")


def file_of(tag: str) -> str:
    """Where the shape of an injection is kept."""
    return _FILE % tag


def live_shapes(reader: Reader) -> tuple[LiveShape, ...]:
    """All shapes that stand on this node. A file that was being written when the agent was killed is none."""
    return tuple(_read(reader))


def _read(reader: Reader) -> Iterator[LiveShape]:
    for path in reader.glob(_FILE % f"{TAG_PREFIX}*"):
        try:
            yield _parsed(reader.read_text(path))
        except (OSError, ValidationError):
            continue


@lru_cache(maxsize=64)
def _parsed(text: str) -> LiveShape:
    return LiveShape.model_validate_json(text)


@dataclass(frozen=True)
class Ground:
    """What the tree of an interface rests on: the interface itself, and control groups with their numbers."""

    interface: str
    index: int
    groups: Mapping[str, int]


def ground(reader: Reader, interface: str, shapes: Sequence[LiveShape]) -> Ground:
    """Look. `index` is 0 where there is no such interface."""
    index = next((one.index for one in reader.links.list() if one.name == interface), 0)
    paths = {path for one in shapes for path in one.selection.cgroups}
    found = {path: _number(reader, path) for path in paths}
    return Ground(interface, index, {path: number for path, number in found.items() if number is not None})


def _number(reader: Reader, path: str) -> int | None:
    for root in GROUP_ROOTS:
        if reader.exists(f"{root}{path}/cgroup.procs"):
            info = reader.file_info(f"{root}{path}")
            return info.inode if info else 0
    return None


def stands(shape: LiveShape, on: Ground) -> bool:
    """Whether what a shape was meant for is still there: the same interface, and its control groups."""
    here = shape.selection
    return here.index == on.index and here.interface == on.interface and all(p in on.groups for p in here.cgroups)


def wanted_tree(reader: Reader, interface: str, more: Sequence[LiveShape] = ()) -> Tree:
    """The tree there should be now, with `more` shapes. Raises :class:`ConflictError`."""
    replaced = {one.tag for one in more}
    shapes = [
        one for one in live_shapes(reader) if one.selection.interface == interface and one.tag not in replaced
    ]
    shapes += more
    on = ground(reader, interface, shapes)
    return desired(interface, [one for one in shapes if stands(one, on)], on.groups)


def lanes_there(reader: Reader, interface: str) -> dict[str, Interface]:
    """The IFBs of the lab's for an interface, and those that were not finished, by name."""
    words = (f"{interface} out {TAG_PREFIX}", f"{interface} in {TAG_PREFIX}")
    return {
        one.name: one
        for one in reader.links.list()
        if one.kind == "ifb" and (one.alias.startswith(words) or (not one.alias and _LANE.match(one.name)))
    }


SHOULD_NOT_BE = "should not be there"


def is_led(reader: Reader, tree: Tree, tag: str, directions: Sequence[str]) -> bool:
    """Whether the rules that stand are those of another set of shapes than the tree's, and lead the packets of
    this one to lanes of its own all the same."""
    there = measured_tables(reader.network.ruleset()).get(("netdev", table_of(tree.interface)))
    if there is None or set(there.counters) == set(tree.tags):
        return False
    lanes = {name: one for name, one in lanes_there(reader, tree.interface).items() if tag in one.alias.split()}
    for direction in directions:
        head, rules = there.chains.get(direction, ("", ()))
        ways = ways_of(rule for rule in rules if f'"{tag}"' in rule)
        if f'"{tree.interface}"' not in head or not ways or not all(w in lanes and lanes[w].up for w in ways):
            return False
    return True


def differences(reader: Reader, tree: Tree) -> tuple[str, ...]:
    """In what the kernel's tree is not the desired one, one line each."""
    there, qdiscs = lanes_there(reader, tree.interface), reader.links.qdiscs()
    found = [f"lane {name} {SHOULD_NOT_BE}" for name in sorted({*there} - {lane.name for lane in tree.lanes})]
    for lane in tree.lanes:
        one = there.get(lane.name)
        if one is None:
            found.append(f"lane {lane.name} is missing")
        elif not (one.up and one.alias == lane.alias and one.mtu == lane.mtu):
            found.append(f"lane {lane.name} is not set up")
        elif not same(lane.qdiscs, tuple(qdiscs.get(one.index, ()))):
            found.append(f"lane {lane.name} has other qdiscs")
    return (*found, *_rule_differences(reader, tree))


def _rule_differences(reader: Reader, tree: Tree) -> Iterator[str]:
    name = table_of(tree.interface)
    tables = measured_tables(reader.network.ruleset())
    there = tables.get(("netdev", name))
    if there is None:
        if tree.chains:
            yield f"table netdev {name} is missing"
    elif not tree.chains:
        yield f"table netdev {name} should not be there"
    else:
        yield from (
            f"chain {chain.name} of {name} is another"
            for chain in tree.chains
            if not same_chain(chain, there.chains.get(chain.name))
        )
        extra = {*there.chains} - {chain.name for chain in tree.chains}
        yield from (f"chain {one} of {name} should not be there" for one in sorted(extra))
        if sorted(there.counters) != sorted(tree.tags):
            yield f"the counters of {name} are others"
    told = tuple(re.findall(r'comment "control group (\d+)"', "\n".join(tree.marks)))
    if marks_of(tables.get(("inet", name))) != told:
        yield f"the marks of table inet {name} are others"


def refuse_taken(reader: Reader, tree: Tree) -> None:
    """Raises :class:`ConflictError` where somebody else has an interface or table of a name that is needed."""
    ours = lanes_there(reader, tree.interface)
    names = {one.name for one in reader.links.list()} - {*ours}
    for lane in tree.lanes:
        if lane.name in names:
            raise ConflictError(
                f"there is an interface {lane.name} that is not the lab's",
                field="interface", allowed=f"rename or delete {lane.name}",
            )  # fmt: skip


def sync(host: Host, interface: str) -> None:
    """Make the kernel's tree of an interface that which its files say. Nothing to do is fine."""
    tree = wanted_tree(host, interface)
    if not differences(host, tree):
        return
    refuse_taken(host, tree)
    there, qdiscs = lanes_there(host, interface), host.links.qdiscs()
    for lane in tree.lanes:
        one = there.get(lane.name)
        if one is None:
            _build(host, lane)
        elif not (one.up and one.alias == lane.alias and same(lane.qdiscs, tuple(qdiscs.get(one.index, ())))):
            host.links.delete(lane.name)  # the agent was killed while it built it: nobody is led there yet
            _build(host, lane)
    script = rule_script(tree, measured_tables(host.network.ruleset()))
    if script:
        host.network.load_rules(script)
    unused = [one for name, one in there.items() if name not in {lane.name for lane in tree.lanes}]
    for one in unused:
        if one.up:
            host.links.drain(one.name, drain_s(tuple(qdiscs.get(one.index, ()))))
        host.links.delete(one.name)


def _build(host: Host, lane: Lane) -> None:
    host.links.add_ifb(lane.name)
    host.links.describe(lane.name, lane.alias, lane.mtu)
    host.links.add_qdiscs(lane.name, lane.qdiscs)
    host.links.set_up(lane.name)


def rule_script(tree: Tree, tables: Mapping[tuple[str, str], Measured]) -> str:
    """Commands of nft(8) that make the rules those of the tree. Pure.

    Counters and chains that stay are kept, so that counts go on and hooks stay where they are.
    """
    name = table_of(tree.interface)
    there = tables.get(("netdev", name))
    lines: list[str] = []
    if tree.chains:
        lines.append(f"add table netdev {name}")
        lines += [f"add counter netdev {name} {tag}" for tag in tree.tags]
        for chain in tree.chains:
            at = f"netdev {name} {chain.name}"
            before = there.chains.get(chain.name) if there else None
            if before and f'"{tree.interface}"' not in before[0]:
                lines.append(f"delete chain {at}")  # it lost its interface
            lines += [f"add chain {at} {{ {chain.head} }}", f"flush chain {at}"]
        kept = {chain.name for chain in tree.chains}
        for old in sorted({*there.chains} - kept) if there else ():
            lines += [f"flush chain netdev {name} {old}", f"delete chain netdev {name} {old}"]
        lines += [f"add rule netdev {name} {chain.name} {rule}" for chain in tree.chains for rule in chain.rules]
        gone = sorted({*there.counters} - {*tree.tags}) if there else ()
        lines += [f"delete counter netdev {name} {tag}" for tag in gone]
    elif there is not None:
        lines.append(f"delete table netdev {name}")
    if tree.marks:
        at = f"inet {name} out"
        lines += [f"add table inet {name}", f"add chain {at} {{ {MARK_HEAD} }}", f"flush chain {at}"]
        lines += [f"add rule {at} {rule}" for rule in tree.marks]
    elif ("inet", name) in tables:
        lines.append(f"delete table inet {name}")
    return "".join(f"{line}\n" for line in lines)
