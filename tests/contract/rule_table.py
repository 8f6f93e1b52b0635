"""The rule table on the simulated machine: rules live as long as the agent that holds their links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from node_agent.rules import Hook, Rule, RuleState, Sample

if TYPE_CHECKING:
    from tests.contract.simulated import SimulatedHost

_COUNTERS = ("seen", "matched", "injected", "suppressed_by_deadline", "suppressed_by_budget",
             "suppressed_by_schedule", "suppressed_by_guard")  # fmt: skip
GRACE_S = 60.0
NO_OVERRIDE = "the simulated kernel lets nobody override its system calls"


@dataclass
class SimRule:
    """A rule in the kernel. `deadline` in seconds since boot."""

    agent: SimulatedHost
    rule: Rule
    deadline: float


class SimulatedBpf:
    """`host.bpf` of one agent. Every call of the agent itself counts as seen, as the probes expect."""

    def __init__(self, host: SimulatedHost) -> None:
        self._h = host

    def _here(self) -> dict[str, SimRule]:
        self._h.alive()
        rules = self._h.kernel.rules
        for tag in [tag for tag, one in rules.items() if one.agent.dead]:
            del rules[tag]
        return rules

    def state(self, tag: str) -> RuleState | None:
        one = self._here().get(tag)
        return RuleState(True, 1, dict.fromkeys(_COUNTERS, 0) | {"seen": 1}) if one else None

    def samples(self, tag: str) -> Sequence[Sample]:
        return ()

    def links(self) -> Mapping[str, str]:
        hooks: dict[Hook, list[str]] = {}
        for tag, one in self._here().items():
            for hook in one.rule.hooks:
                hooks.setdefault(hook, []).append(tag)
        return {f"link {n}": f"{hook.name} {' '.join(tags)}" for n, (hook, tags) in enumerate(hooks.items())}

    def refusal(self, hook: Hook) -> str:
        return NO_OVERRIDE if hook.flavour.startswith("override") else ""

    def add(self, tag: str, rule: Rule) -> None:
        self._h.change()
        refusals = [self.refusal(h) for h in rule.hooks if self.refusal(h)]
        if refusals:
            raise OSError(22, refusals[0])
        self._here().setdefault(tag, SimRule(self._h, rule, self._h.boottime() + GRACE_S))

    def hold(self, tag: str, expires: float) -> None:
        self._h.change()
        if tag in self._here():
            self._here()[tag].deadline = expires

    def remove(self, tag: str) -> None:
        self._h.change()
        self._here().pop(tag, None)


def systemctl(argv: tuple[str, ...]) -> str | None:
    """What systemd answers about cron.service, and about units it does not know."""
    if argv[:2] != ("systemctl", "show"):
        return None
    loaded = argv[-1] == "cron.service"
    group = "/system.slice/cron.service" if loaded else ""
    return f"LoadState={'loaded' if loaded else 'not-found'}\nControlGroup={group}\nSlice=system.slice\n"


def cgroup_texts() -> dict[str, str]:
    """Control groups of version 2 with one of our own making, and a unit."""
    return {
        "/sys/fs/cgroup/work/cgroup.procs": "700\n",
        "/sys/fs/cgroup/system.slice/cron.service/cgroup.procs": "701\n",
        "/proc/self/cgroup": "0::/system.slice/groundfault-agent.service\n",
    }
