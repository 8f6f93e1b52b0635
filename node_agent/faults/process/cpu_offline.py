"""cpu_offline: CPUs are taken out of use while the system runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from node_agent.errors import Refusal
from node_agent.fault import Evidence, Facts, Fault, Missing, PlanNotes, Target
from node_agent.host import Host, Reader
from node_agent.probe import Lacking, capability
from node_agent.signs import Sign, in_log
from node_agent.steps import Step
from node_agent.steps.cpu_online import CpuOnline
from node_agent.steps.mark_file import MarkFile

from .cpus import CPU_LIST, CPUS, cpus_in, online_cpus, present_cpus, shown

_LOG_LINES = 10


class Cores(Target):
    """Which CPUs, and how many stay."""

    cpus: tuple[int, ...]
    stay: tuple[int, ...]

    def describe(self) -> str:
        return f"CPU {shown(self.cpus)}; {shown(self.stay)} stay"


class CpuOffline(Fault):
    """The kernel stops using CPUs, as it does with one that it is told is failing.

    Everything moves to those that stay. CPU 0 and the last one are never taken.
    """

    name: ClassVar[str] = "cpu_offline"
    summary: ClassVar[str] = "CPUs are taken out of use while the system runs"
    operator_sees: ClassVar[str] = (
        "fewer CPUs in /sys/devices/system/cpu/online, nproc and top than the machine has, a higher load on the "
        "rest, 'is now offline' in the kernel log"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({}, {"cpus": "1"})

    cpus: str = Field(
        default="", pattern=CPU_LIST, description='which CPUs, such as "3" or "1,4-6"; none: one, by the seed'
    )

    def requires(self, facts: Facts) -> tuple[Missing, ...]:
        return facts.missing("cpu.hotplug")

    def locate(self, reader: Reader, facts: Facts) -> Cores:
        online = online_cpus(reader)
        there = present_cpus(reader)
        can = tuple(cpu for cpu in there if cpu and reader.exists(f"{CPUS}/cpu{cpu}/online"))
        allowed = shown(can) if can else "none on this node"
        if self.cpus:
            chosen = cpus_in(self.cpus)
        elif can:
            chosen = (can[self.seed % len(can)],)
        else:
            raise Refusal("cpus: this node has no CPU to spare", field="cpus", allowed=allowed)
        reasons = {
            "is never taken": {0} & set(chosen),
            "is not on this node": set(chosen) - set(there),
            "cannot be taken offline": set(chosen) - set(can),
        }
        for why, which in reasons.items():
            if which:
                raise Refusal(f"cpus: CPU {shown(which)} {why}", field="cpus", allowed=allowed)
        stay = tuple(cpu for cpu in online if cpu not in chosen)
        if not stay:
            raise Refusal(f"cpus: CPU {shown(online)} is the last one", field="cpus", allowed="to leave one")
        return Cores(cpus=chosen, stay=stay)

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        assert isinstance(target, Cores)
        return (MarkFile(name=tag, text=f"CPU {shown(target.cpus)} is offline"), CpuOnline(cpus=target.cpus))

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        return PlanNotes(
            backend="cpu hotplug",
            covers=("threads, timers, interrupts: all of it moves to the CPUs that stay",),
            not_covered=("what firmware and other systems see: for them the CPU is there",),
            warnings=(
                "interrupts and threads that were bound to it are bound to it again at the end; programs that "
                "have counted CPUs meanwhile keep what they counted",
            ),
        )

    def signs(self, target: Target | None) -> tuple[Sign, ...]:
        which = "|".join(map(str, target.cpus)) if isinstance(target, Cores) else r"\d+"
        # x86: "smpboot: CPU 1 is now offline"; arm64: "psci: CPU1 killed".
        return (in_log("the kernel says that a CPU is offline", rf"CPU ?({which}) (is now offline|killed)"),)

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        assert isinstance(target, Cores)
        online = online_cpus(reader)
        off = [cpu for cpu in target.cpus if cpu not in online]
        records, lost = reader.log.since(log_mark)
        said = [r.text for r in records if "is now offline" in r.text or "psci: CPU" in r.text]
        back = [cpu for cpu in target.cpus if cpu in online]
        notes = (f"CPU {shown(back)} is online again: somebody has brought it back",) if back else ()
        return Evidence(
            armed=bool(off), hits=len(off), counters={"offline": len(off), "online": len(online)},
            log=tuple(said[-_LOG_LINES:]), log_gap=lost > 0, notes=notes,
        )  # fmt: skip


@capability("cpu.hotplug", remedy="a machine with more than one CPU, and a kernel with CONFIG_HOTPLUG_CPU")
def probe(host: Host) -> None:
    """There is a CPU with a switch that takes its own value."""
    switches = host.glob(f"{CPUS}/cpu[0-9]*/online")
    if not [path for path in switches if path != f"{CPUS}/cpu0/online"]:
        raise Lacking(f"no CPU of this node can be taken offline: online are {shown(online_cpus(host))}")
