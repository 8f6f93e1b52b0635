"""pids_exhausted: no more processes or threads can be made, in one unit or on the node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from node_agent.errors import Refusal
from node_agent.fault import Evidence, Facts, Fault, Missing, PlanNotes, Target
from node_agent.host import Reader
from node_agent.signs import Sign, in_log, rises
from node_agent.steps import Step
from node_agent.steps.file_value import FileValue
from node_agent.steps.mark_file import MarkFile

from .groups import (
    Group,
    GroupFields,
    answers_of,
    end_of_helper,
    find_group,
    helpers_root,
    keeper,
    limit,
    number,
    numbers,
    stressor,
)

THREADS = "/proc/sys/kernel/threads-max"


class PidsPlace(Target):
    """A control group and what it may have, or the node (no group); and what was there before."""

    group: Group | None
    root: str
    value: int
    before: int
    events_before: int
    title: str

    def describe(self) -> str:
        return self.title


class PidsExhausted(GroupFields, Fault):
    """fork, clone and starting a thread answer EAGAIN, because there are as many as there may be.

    Of a unit, a control group or a container: pids.max is set to what it has now and `spare` more. Of the whole
    node: kernel.threads-max is set to what there is, `leak` and `reserve` more, and a process of this injection
    starts threads until only `reserve` are left, and takes again what others give back. The reserve is for whoever
    comes first: it is what logins and the agent go on with.
    """

    name: ClassVar[str] = "pids_exhausted"
    summary: ClassVar[str] = "no more processes or threads can be made"
    operator_sees: ClassVar[str] = (
        "'fork: Resource temporarily unavailable' (EAGAIN), 'can't start new thread', connections that a forking "
        "server drops at once; in one unit also 'cgroup: fork rejected by pids controller' in the kernel log and "
        "max in pids.events; memory and files are free, and root is refused as well"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({}, {"unit": "cron", "spare": 1})

    spare: int = Field(default=0, ge=0, le=1 << 16, description="of a unit: so many more than now are possible")
    leak: int = Field(default=256, ge=1, le=1 << 15, description="whole node: threads that this injection holds")
    reserve: int = Field(default=48, ge=32, le=1 << 12, description="whole node: so many are left at first")

    def requires(self, facts: Facts) -> tuple[Missing, ...]:
        return facts.missing("cgroup.pids") if self.names_a_group else ()

    def locate(self, reader: Reader, facts: Facts) -> PidsPlace:
        if not self.names_a_group:
            there, most = threads_of(reader), number(reader, THREADS)
            value = there + self.leak + self.reserve
            if most and value > most:
                raise Refusal(
                    f"leak: the node has {there} of {most} threads already", field="leak",
                    allowed=f"at most {max(0, most - there - self.reserve)}",
                )  # fmt: skip
            title = f"threads of the node: {value}, of which {self.leak} are held and {self.reserve} left"
            return PidsPlace(
                group=None, root=helpers_root(facts), value=value, before=most, events_before=0, title=title
            )
        group = find_group(reader, facts, self)
        there = number(reader, f"{group.path}/pids.current")
        return PidsPlace(
            group=group, root=helpers_root(facts), value=there + self.spare, before=0,
            events_before=_refused(reader, group),
            title=f"processes and threads of {group.title}: {there + self.spare}, it has {there}",
        )  # fmt: skip

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        assert isinstance(target, PidsPlace)
        if target.group is None:
            most = FileValue(path=THREADS, value=str(target.value), default=str(target.before))
            title = f"hold about {self.leak} threads"
            return (most, stressor(tag, "limits", title, {"mode": "threads", "leave": self.reserve}))
        pids = limit(target.group, "pids.max", target.value)
        return (
            MarkFile(name=tag, text=f"{pids.path} is {pids.value}"), pids, keeper(tag, target.group, (pids,))
        )  # fmt: skip

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        assert isinstance(target, PidsPlace)
        if target.group is None:
            return PlanNotes(
                backend="kernel.threads-max, real threads",
                covers=("every new process and thread on the node, of root as well",),
                warnings=(
                    "whoever takes the reserve keeps others, and logins, from working: the recovery at the end of "
                    "the lease needs no new process",
                ),
            )
        return PlanNotes(
            backend="pids.max",
            covers=(f"every new process and thread in {target.group.title}, also after a restart",),
            not_covered=("those that systemd starts elsewhere and moves there",),
            warnings=("what it has ended it can start again: only more than now is refused",),
        )

    def signs(self, target: Target | None) -> tuple[Sign, ...]:
        if isinstance(target, PidsPlace) and target.group is None:
            return ()
        group, when = target.group if isinstance(target, PidsPlace) else None, "once it wants more"
        name = group.below_root if group else "/"
        found = [in_log("the kernel's line", f"cgroup: fork rejected by pids controller in {name}", when)]
        if group:
            found.append(rises("times that it was refused", f"{group.path}/pids.events", 0, when))
        return tuple(found)

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        assert isinstance(target, PidsPlace)
        ended = end_of_helper(reader, target.root, tag)
        notes = [ended] if ended else []
        held = answers_of(reader, tag)
        if target.group is None:
            there, most = threads_of(reader), number(reader, THREADS)
            counters = {"threads": there, "threads_max": most, "held": held.get("held", 0)}
            stands = most == target.value
            notes += [] if stands else [f"somebody has changed {THREADS}"]
            return Evidence(armed=stands and not ended, hits=0, counters=counters, notes=tuple(notes))
        pids = limit(target.group, "pids.max", target.value)
        renewed = held.get("renewed", 0)
        hits = max(0, _refused(reader, target.group) - (0 if renewed else target.events_before))
        known = reader.exists(pids.path)
        counters = {
            "refused": hits, "renewed": renewed, "processes": number(reader, f"{target.group.path}/pids.current")
        }  # fmt: skip
        if not pids.stands(reader):
            notes.append(f"somebody has changed {pids.path}" if known else f"{target.group.title} does not run")
        armed = pids.stands(reader) or (not known and not ended)
        return Evidence(armed=armed, hits=hits, counters=counters, notes=tuple(notes))


def threads_of(reader: Reader) -> int:
    """How many threads there are on the node: the fourth field of /proc/loadavg (proc_loadavg(5))."""
    return int(reader.read_text("/proc/loadavg").split()[3].partition("/")[2])


def _refused(reader: Reader, group: Group) -> int:
    return numbers(reader, f"{group.path}/pids.events").get("max", 0)
