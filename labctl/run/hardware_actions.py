"""What hands in the data centre do for a solver: power, a new disk, a card seated anew.

Each action is real: a machine is reset, a disk is blank afterwards. Which faults an action ends is data here, by
the fault's name; whether one did is nobody's to know but the record's. A reset is done inside the machine's
process, so that broken hardware is as broken after it as before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict

from labctl.errors import LabError, UsageError
from labctl.nearest import nearest
from labctl.run.problem import Planted
from node_agent.injection import InjectionView

INTERFACE = "lan"
"""The interface of the lab network: the only one whose card and cable hands can reach."""

DISK_PATH = frozenset(
    ("disk_slow", "disk_hang", "write_error", "flush_error", "disk_gone", "disk_removed", "disk_degraded")
)
"""Faults between the machine and its disk: cable, controller, firmware that has lost its way."""

DISK_MEDIUM = frozenset(
    ("latent_sector_error", "medium_error", "silent_corruption", "torn_write", "lost_flush", "misdirected_write")
)
DISK_CONTENT = frozenset(("disk_full", "inodes_full", "readonly_remount"))
LINK = frozenset(
    ("link_down", "link_flap", "packet_loss", "packet_corrupt", "packet_delay", "packet_duplicate",
     "packet_jitter", "packet_reorder", "bandwidth_limit", "nic_link_down", "nic_removed", "link_degraded",
     "pcie_errors")
)  # fmt: skip
SWITCH = frozenset(("partition", "mtu_blackhole", "bandwidth_limit", "link_degraded"))
MEMORY = frozenset(("memory_corrected_errors", "memory_uncorrected_error", "memory_poison"))
HALTED = frozenset(("node_frozen", "memory_uncorrected_error", "kernel_panic", "kernel_hang"))
"""Machines that stand still, and go on once they are reset."""

DEAD = frozenset(("power_loss",))
"""Machines that nothing brings back."""

LASTING = DISK_PATH | DISK_MEDIUM | LINK | SWITCH | frozenset(("memory_corrected_errors",))
"""What no boot of the machine takes away: it is planted again after one."""

Deed = Literal["reset", "off", "on", "blank", "link"]


class Action(BaseModel):
    """One action: what hands do, which faults it ends, what is done to the machine, in this order."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    what: str
    says: str
    ends: frozenset[str] = frozenset()
    deeds: tuple[Deed, ...] = ()


ACTIONS: Mapping[str, Action] = {
    "power-cycle": Action(what="take its power away and give it again", says="{} has booted", ends=HALTED,
                          deeds=("reset",)),
    "power-off": Action(what="pull its plug", says="{} is off", deeds=("off",)),
    "power-on": Action(what="give it power", says="{} is on", deeds=("on",)),
    "replace-disk": Action(what="put a blank disk in the place of its data disk; it is off meanwhile",
                           says="{} has booted with a blank data disk",
                           ends=DISK_PATH | DISK_MEDIUM | DISK_CONTENT, deeds=("blank",)),
    "reseat-disk": Action(what="seat its data disk, with cable and controller, anew; the data stay",
                          says="the data disk of {} is seated anew", ends=DISK_PATH),
    "reseat-nic": Action(what=f"seat the card of its interface {INTERFACE} anew",
                         says=f"the card of interface {INTERFACE} of {{}} is seated anew",
                         ends=LINK, deeds=("link",)),
    "replace-cable": Action(what=f"put a new cable to its interface {INTERFACE}",
                            says=f"interface {INTERFACE} of {{}} has a new cable",
                            ends=LINK - {"nic_removed", "pcie_errors"}, deeds=("link",)),
    "reset-switch-port": Action(what=f"give the switch port of its interface {INTERFACE} its usual settings",
                                says="the switch port of {} has its usual settings", ends=SWITCH),
    "replace-memory": Action(what="replace its memory; it is off meanwhile", says="{} has booted with new memory",
                             ends=MEMORY, deeds=("reset",)),
}  # fmt: skip
STATUS = "status"
FLAP_S = 2.0
"""How long a card or a cable is out."""


class Machines(Protocol):
    """The machines of a lab. All raise :class:`labctl.errors.LabctlError`; all are bounded."""

    def state(self, node: str) -> str:
        """ "on" or "off"."""

    def reset(self, node: str) -> None:
        """Take its power for a moment; returns when its agent answers."""

    def off(self, node: str) -> None: ...
    def on(self, node: str) -> None:
        """Give it power, and wait until its agent answers."""

    def blank(self, node: str) -> None:
        """Switch it off, make its data disk blank, and have it boot."""

    def link(self, node: str, up: bool) -> None:
        """The link of its card of the lab network."""

    def live(self, node: str) -> Sequence[InjectionView]:
        """What is planted there."""

    def recover(self, node: str, ids: Sequence[str]) -> None:
        """End these injections."""


class HardwareActions:
    """Does them. `note` writes down what each ended; `booted` is told of each machine that was switched."""

    def __init__(
        self,
        nodes: Sequence[str],
        machines: Machines,
        note: Callable[..., None],
        booted: Callable[[str], None] = lambda node: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._nodes, self._machines, self._note, self._booted, self._sleep = nodes, machines, note, booted, sleep

    def __call__(self, text: str) -> str:
        """Do what the words say, such as `replace-disk w2`; what was done, in words. No words: what there is.

        Raises :class:`UsageError` for words that make no sense, :class:`LabError` where it did not succeed.
        """
        words = text.split()
        if not words:
            return self.help()
        name, node = self._read(words)
        if name == STATUS:
            return f"{node} is {self._machines.state(node)}"
        return self._do(name, node)

    def wake(self, node: str) -> None:
        """Give power to a machine that hands have left without."""
        if self._machines.state(node) == "off" and not any(one.fault in DEAD for one in self._machines.live(node)):
            self._machines.on(node)

    def help(self) -> str:
        """The actions, a line each."""
        rows = {f"{STATUS} NODE": "whether it has power"} | {f"{k} NODE": a.what for k, a in ACTIONS.items()}
        return "\n".join(f"{words:24} {what}" for words, what in rows.items())

    def _read(self, words: Sequence[str]) -> tuple[str, str]:
        known = (STATUS, *ACTIONS)
        if words[0] not in known:
            raise UsageError(f"hardware: there is no {words[0]!r}", nearest(words[0], known, "actions"))
        if len(words) != 2 or words[1] not in self._nodes:
            raise UsageError(f"hardware: {words[0]} takes a node", f"one of: {' '.join(self._nodes)}")
        return words[0], words[1]

    def _do(self, name: str, node: str) -> str:
        action, machines = ACTIONS[name], self._machines
        live = machines.live(node)
        dead = [one for one in live if one.fault in DEAD]
        if dead and set(action.deeds) & {"reset", "on", "blank"}:
            self._note("hardware", action=name, node=node, ended=[])
            raise LabError(f"{node} does not come on: its power supply is dead, and there is no spare")
        ended = [one for one in live if one.fault in action.ends and _reachable(one)]
        if ended:
            machines.recover(node, [one.id for one in ended])
        for deed in action.deeds:
            self._deed(deed, node)
        self._note("hardware", action=name, node=node, ended=[f"{one.fault} {one.id}" for one in ended])
        return action.says.format(node)

    def _deed(self, deed: Deed, node: str) -> None:
        machines = self._machines
        if deed == "link":
            machines.link(node, False)
            self._sleep(FLAP_S)
            machines.link(node, True)
            return
        {"reset": machines.reset, "off": machines.off, "on": machines.on, "blank": machines.blank}[deed](node)
        self._booted(node)


def _reachable(one: InjectionView) -> bool:
    """Whether hands can reach what it is on: of network faults only those of the lab's interface."""
    on = one.parameters.get("interface")
    return one.fault not in LINK | SWITCH or not isinstance(on, str) or on in ("", INTERFACE)


def lasts(planted: Planted) -> bool:
    """Whether a fault is one of hardware that a boot leaves as it is."""
    return planted.name in LASTING and not planted.ends_after_s
