"""A real lab as the world of an episode: what is planted there, how often it bites, and how it all ends."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from labctl.errors import LabctlError, LabError
from labctl.hardware.catalog import hardware_catalog
from labctl.hardware.fault import HardwareFault
from labctl.hardware.keeper import Keeper
from labctl.run.episode import Load, Solver
from labctl.run.hardware_actions import HardwareActions, lasts
from labctl.run.noise import NoiseMaker
from labctl.run.problem import Planted
from labctl.run.shells import Shells
from labctl.run.solvers.access import Access
from node_agent.catalog import catalog
from node_agent.fault import Fault
from node_agent.injection import ENDED, InjectionView

HARDWARE = "hardware"
LEASE_MORE_S = 3600.0
"""How much longer than the solver's time a fault may stand: a runner that died leaves nothing for ever."""

CHALLENGE_S = 600.0
BOOT_S = 420.0
_POLL_S = 1.0
_BOOT_ID = "cat /proc/sys/kernel/random/boot_id"
_BOOTED = ("restart", "reboot", "power on", "power lost", "power off")
"""Why injections end with the boot of their node."""


@dataclass
class Standing:
    """A planted fault. It may have been planted again, after a boot that no broken hardware is mended by."""

    planted: Planted
    injection: str
    proved: int
    signs: int
    before: int = 0
    """Hits of its earlier injections."""

    ended: bool = False


@dataclass
class LabWorld:
    """See :class:`labctl.run.episode.World`. `reset` takes the lab to its snapshot; None: it is taken as it is.
    `ready` waits for a node's agent after a boot. `note` writes to the record. Times in seconds.
    """

    lab: Shells
    keepers: Mapping[str, Keeper]
    load: Load
    solver: Solver
    access: Access
    hands: HardwareActions
    noise: NoiseMaker
    note: Callable[..., None]
    lease_s: float
    reset: Callable[[], None] | None
    ready: Callable[[str], None]
    prepared: Callable[[], None] = lambda: None
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.monotonic
    stands: dict[str, Standing] = field(default_factory=dict)

    def prepare(self) -> None:
        """The golden snapshot, or a lab without faults; the on-call account is there, and closed."""
        began = self.now()
        if self.reset is not None:
            self.lab.close()
            self.reset()
        else:
            self._refuse_live()
        self.access.prepare()
        self.prepared()
        self.note("prepared", reset=self.reset is not None, took_s=round(self.now() - began, 1))

    def disturb(self, on: bool) -> None:
        if on:
            self.noise.start()
        else:
            self.noise.stop()

    # -- faults ---------------------------------------------------------------------------------------------------

    def plant(self, planted: Planted) -> str:
        name = f"x{secrets.token_hex(6)}"
        view = self._apply(name, planted)
        self.stands[name] = Standing(planted, name, _proved(view), _signs(view))
        return name

    def hits(self, injection: str) -> int:
        """Signs of a hardware fault count as hits: the guest shows what QEMU does not count."""
        mine = self.stands[injection]
        view = self._view(mine)
        if view.state in ENDED and view.reason in _BOOTED and not mine.ended and lasts(mine.planted):
            view = self._again(mine, view)
        return mine.before + _bitten(mine, view)

    def end(self, injection: str) -> None:
        mine = self.stands[injection]
        mine.ended = True
        for view in self.keepers[mine.planted.node].recover(ids=(mine.injection,)).injections:
            if view.state not in ENDED:
                raise LabError(f"{view.node}: {view.fault} does not end: {'; '.join(view.residue) or view.state}")

    def booted(self, node: str) -> None:
        """A node was switched by hands: its login is no more, and what is broken below it is as it was."""
        self.lab.drop(node)
        self.access.reopen(node)
        for name, mine in self.stands.items():
            if mine.planted.node == node:
                try:
                    self.hits(name)
                except LabctlError as error:
                    self.note("unseen", injection=name, problem=error.message)

    def challenge(self, node: str, script: str) -> None:
        """Whatever comes of it is for the oracles to see. A boot is waited for."""
        if node == HARDWARE:
            self.note("hands", said=self.hands(script))
            return
        before = self._boot_id(node)
        done = None
        try:
            done = self.lab.sh(node, script, timeout_s=CHALLENGE_S)
        except LabError:
            if not _boots(script):
                raise
        if done is not None:
            self.note("done", node=node, status=done.status, said=(done.stdout + done.stderr)[-2000:])
        if _boots(script):
            self._await_boot(node, before)

    # -- the end --------------------------------------------------------------------------------------------------

    def recover(self) -> tuple[str, ...]:
        """End all injections of all nodes, of hardware first; what is left, or whom nobody could ask."""
        nodes = self.lab.nodes
        with ThreadPoolExecutor(max_workers=max(1, len(nodes)), thread_name_prefix="recover") as pool:
            found = list(pool.map(self._recover_node, nodes))
        self.lab.close()
        return tuple(one for left in found for one in left)

    def _recover_node(self, node: str) -> list[str]:
        try:
            self.hands.wake(node)
            ended = self.keepers[node].recover(everything=True).injections
        except LabctlError as error:
            return [error.message]
        return [f"{node}: {one.fault}: {'; '.join(one.residue)}" for one in ended if one.state not in ENDED]

    def _refuse_live(self) -> None:
        live = [f"{n}: {one.fault}" for n, k in self.keepers.items() for one in k.list().injections]
        if live:
            raise LabError(
                f"the lab has faults already: {', '.join(live)}", "labctl recover --all, or labctl reset"
            )

    # -- how ------------------------------------------------------------------------------------------------------

    def _apply(self, name: str, planted: Planted) -> InjectionView:
        return self.keepers[planted.node].apply(name, planted.name, planted.parameters, self.lease_s)

    def _view(self, mine: Standing) -> InjectionView:
        found = self.keepers[mine.planted.node].list(ended=True, ids=(mine.injection,)).injections
        if not found:
            raise LabError(f"{mine.planted.node} knows nothing of {mine.injection}")
        return found[0]

    def _again(self, mine: Standing, gone: InjectionView) -> InjectionView:
        """Plant what a boot took away and no boot mends."""
        mine.before += _bitten(mine, gone)
        mine.injection = f"x{secrets.token_hex(6)}"
        view = self._apply(mine.injection, mine.planted)
        mine.proved, mine.signs = _proved(view), _signs(view)
        self.note("planted_again", fault=mine.planted.name, node=mine.planted.node, injection=mine.injection)
        return view

    def _boot_id(self, node: str) -> str:
        return boot_id(self.lab, node)

    def _await_boot(self, node: str, before: str) -> None:
        deadline = self.now() + BOOT_S
        self.lab.drop(node)
        while self._boot_id(node) in ("", before):
            if self.now() > deadline:
                raise LabError(f"{node} did not boot within {BOOT_S:g} s", "look at its console: labctl console")
            self.sleep(_POLL_S)
        self.ready(node)
        self.booted(node)


def boot_id(lab: Shells, node: str) -> str:
    """Which boot of a node it is; "" where it does not answer."""
    try:
        return lab.sh(node, _BOOT_ID, timeout_s=20.0).stdout.strip()
    except LabctlError:
        return ""


def _boots(script: str) -> bool:
    return any(word in script.split() for word in ("reboot", "poweroff"))


def _proved(view: InjectionView) -> int:
    """The hits that the planting made itself; none for faults that only their victims can make bite."""
    known: Mapping[str, type[Fault] | type[HardwareFault]] = {**catalog(), **hardware_catalog()}
    kind = known.get(view.fault)
    proves = kind is not None and kind.prove not in (Fault.prove, HardwareFault.prove)
    return view.evidence.hits if proves and view.evidence else 0


def _signs(view: InjectionView) -> int:
    if view.fault not in hardware_catalog() or view.evidence is None:
        return 0
    return sum(sign.seen for sign in view.evidence.signs)


def _bitten(mine: Standing, view: InjectionView) -> int:
    if view.evidence is None:
        return 0
    return max(0, view.evidence.hits - mine.proved) + max(0, _signs(view) - mine.signs)
