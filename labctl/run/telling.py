"""Whether anything that a solver can read names the fault: its papers, and what its tools show while it stands."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from labctl.hardware.catalog import hardware_catalog
from labctl.run.diagnosis import Triple
from labctl.run.problem import Problem, Script
from node_agent.catalog import catalog

OTHER_WORDS = 3
"""So many words of each dimension of a vocabulary belong to no cause, or guessing is easy."""

_INJECTOR = (
    r"groundfault-x[0-9a-f]{6,}", r"\b(?:blkdebug|netem|fmod_ret|bpf_override\w*|fail_make_request|failslab)\b",
    r"\bdm[-_](?:dust|flakey|error|delay)\b", r"\b\d+ (?:dust|flakey|error|delay) \d+:\d+",
)  # fmt: skip
"""What injectors are made of: marks of injections, tools, kinds of device-mapper targets and their tables."""

_ALWAYS = re.compile(r"^\w+ \d+ \d+ \S+ (?:Live|Loading) 0x.*$|^.*\bnetem: version [0-9.]+$", re.M)
"""What every node says at all times: the agent tries out what its kernel can when it first starts, and the modules
that this loads stay. They are the same whatever is planted, so they name nothing.
"""

READING = """
export LC_ALL=C
try() { echo "## $*"; sudo -n "$@" 2>&1 || "$@" 2>&1; }
try journalctl --no-pager -n 3000
try dmesg
try systemctl list-units --all --no-pager --plain
systemctl cat '*' --no-pager 2>/dev/null | head -n 2000
ps -eo user,pid,ppid,comm,args --width 300
lsblk -o NAME,TYPE,SIZE,MOUNTPOINT; cat /proc/mounts; df -h; df -i
ls -l /dev/mapper; try dmsetup table; try dmsetup ls
try smartctl -a /dev/sda
ip -d -s link; ip addr; ip route; ip neigh; try tc -s qdisc show; try tc filter show dev lan
try nft list ruleset; try ss -tanp; cat /etc/resolv.conf /etc/hosts
try sysctl -a; cat /proc/meminfo /proc/loadavg /proc/pressure/* /proc/modules
ls -lR /etc/systemd/system /run/systemd /sys/fs/bpf 2>/dev/null
ls -la / /tmp /run /var/lib /opt /home/oncall
cat /var/log/*.log 2>/dev/null | tail -n 500
sudo -n -l
true
"""
"""What somebody who is on call would look with, and what somebody nosy would try."""


def reader(nodes: Sequence[str]) -> Script:
    """A solver that only looks."""
    return Script(title="look", steps=tuple((node, READING) for node in nodes), declares=False)


def names_in(text: str) -> tuple[str, ...]:
    """The words of injectors in a text, each once: names of faults, and of what they are made with."""
    faults = [re.escape(name) for name in (*catalog(), *hardware_catalog()) if "_" in name]
    pattern = "|".join((rf"(?<![\w-])(?:{'|'.join(faults)})(?!\w)", *_INJECTOR))
    return tuple(dict.fromkeys(match[0] for match in re.finditer(pattern, _ALWAYS.sub("", text))))


def on_paper(problem: Problem) -> tuple[str, ...]:
    """What is wrong with the papers of a problem; empty where nothing is."""
    told = [f"{where} says {word!r}" for where, text in _papers(problem) for word in names_in(text)]
    for where, text in _papers(problem):
        told += [f"{where} has the mechanism {t.mechanism!r}" for t in _sorted(problem) if _has(text, t.mechanism)]
    own = {word for triple in problem.cause for word in (triple.component, triple.mechanism, triple.scope)}
    for dimension in ("component", "mechanism", "scope"):
        others = [word for word in getattr(problem.vocabulary, dimension) if word not in own]
        if len(others) < OTHER_WORDS:
            told.append(f"vocabulary: only {len(others)} words of {dimension} are decoys; give {OTHER_WORDS}")
    return tuple(told)


def _papers(problem: Problem) -> Iterable[tuple[str, str]]:
    return (("name", problem.name.replace("_", " ")), ("title", problem.title), ("statement", problem.statement))


def _sorted(problem: Problem) -> list[Triple]:
    return sorted(problem.cause, key=str)


def _has(text: str, words: str) -> bool:
    return re.search(rf"\b{re.escape(words.lower())}\b", text.lower()) is not None
