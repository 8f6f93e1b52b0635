"""kernel_hang: nothing but interrupts gets a CPU of a node for a while."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from node_agent.fault import Evidence, Facts, Fault, Missing, PlanNotes, Target
from node_agent.host import Host, Reader
from node_agent.probe import Lacking, capability
from node_agent.signs import Sign, in_log
from node_agent.steps import Step
from node_agent.steps.file_value import FileValue

from .countdown import GONE, AcceptReboot, DelayS, WholeMachine, countdown, countdown_evidence

_THROTTLE = "/proc/sys/kernel/sched_rt_runtime_us"
_SCHED_DEBUG = "/sys/kernel/debug/sched"
_FAIR_SERVERS = f"{_SCHED_DEBUG}/fair_server/cpu*/runtime"
_MOST_S = 120
"""The agent feeds systemd's watchdog at least every 45 s, and that bites after 180."""


class KernelHang(Fault):
    """Tasks that never sleep keep every CPU, at the highest priority: no process and no kernel thread runs.

    It is what user space can do on any kernel: a machine that hangs by its scheduler. Interrupts are still served,
    so the node may answer pings and accept connections that nobody then serves. The agent hangs as well: it can
    neither recover anything nor end a lease until `hang_s` have gone by; then everything goes on by itself.
    """

    name: ClassVar[str] = "kernel_hang"
    summary: ClassVar[str] = "nothing but interrupts gets a CPU for a while: the node hangs"
    operator_sees: ClassVar[str] = (
        "a node that may answer pings and nothing else; then a gap in all logs, perhaps a line of an RCU stall"
    )
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({"accept_reboot": True},)

    hang_s: int = Field(default=30, ge=1, le=_MOST_S, description="seconds that it lasts; nothing ends it sooner")
    delay_s: DelayS = 3.0
    accept_reboot: AcceptReboot = False

    def requires(self, facts: Facts) -> tuple[Missing, ...]:
        return facts.missing("machine.own", "machine.hang")

    def locate(self, reader: Reader, facts: Facts) -> WholeMachine:
        return WholeMachine(boot_id=facts.boot_id, cpus=facts.cpus, files=tuple(reader.glob(_FAIR_SERVERS)))

    def steps(self, facts: Facts, target: Target, tag: str) -> tuple[Step, ...]:
        assert isinstance(target, WholeMachine)
        title = f"keep {target.cpus} CPUs from everybody for {self.hang_s} s"
        return (
            FileValue(path=_THROTTLE, value="-1", default="950000"),
            *(FileValue(path=path, value="0", default="50000000") for path in target.files),
            countdown(tag, title, "hang_machine", after_s=self.delay_s, hang_s=self.hang_s),
        )

    def notes(self, facts: Facts, target: Target) -> PlanNotes:
        watchdog = "a watchdog that nobody feeds meanwhile, in hardware or of a hypervisor, reboots the node"
        return PlanNotes(
            backend="sched-fifo",
            covers=("every process and kernel thread of the node, and this agent",),
            not_covered=("interrupt handlers: pings may be answered", "the kernel's stop-machine threads"),
            warnings=(f"it cannot be recovered while it lasts: {self.hang_s} s, whatever the lease says",),
            risks={"reboot": f"{watchdog}: then {GONE}"},
        )

    def signs(self, target: Target | None) -> tuple[Sign, ...]:
        return (
            in_log(
                "the kernel says that RCU waits in vain", r"rcu: .*(detected stall|kthread starved)",
                when="where one waits and it lasts longer than rcu_cpu_stall_timeout, usually 21 s",
            ),
        )  # fmt: skip

    def evidence(self, reader: Reader, target: Target, tag: str, log_mark: int) -> Evidence:
        return countdown_evidence(reader, tag)


@capability("machine.hang", remedy=f"mount -t debugfs debugfs {_SCHED_DEBUG.removesuffix('/sched')}")
def probe(host: Host) -> None:
    """What keeps real-time tasks from taking all of a CPU can be turned off.

    That is the throttle (Documentation/scheduler/sched-rt-group.rst), and since Linux 6.12 a server for others on
    each CPU (kernel/sched/debug.c), which may be there and not be seen where debugfs is not mounted.
    """
    for path in (_THROTTLE, *host.glob(_FAIR_SERVERS)):
        host.write_text(path, host.read_text(path).strip())
    if not host.listdir(_SCHED_DEBUG):
        raise Lacking("debugfs is not mounted or is locked down")
