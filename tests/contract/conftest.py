"""Every fault of the catalogue with each of its examples, on a simulated machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from node_agent.catalog import catalog
from node_agent.injector import Injector
from node_agent.probe import run_probes
from node_agent.probing import Probing
from tests.contract import simulated_machine, simulated_memory, simulated_processes, simulated_settings
from tests.contract.facilities import at_rest
from tests.contract.simulated import Kernel, Killed, SimulatedHost, fresh_kernel
from tests.contract.simulated_links import SimNet

CASES = [(name, dict(example)) for name, cls in catalog().items() for example in cls.examples]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", CASES, ids=[f"{name}-{sorted(e.items())}" for name, e in CASES])


class Rig:
    """A node that survives its agent: the kernel and the disk stay, agents come and go."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.kernel: Kernel = fresh_kernel()
        self.healthy = deepcopy(self.kernel.dm)
        self.lives = 1
        self.capabilities = run_probes(SimulatedHost(fresh_kernel()))

    @property
    def id(self) -> str:
        """The id of the injection in hand; each restart of the agent begins another."""
        return f"inj-{self.lives}"

    def agent(
        self, *, die_at: int = 0, after_append: Callable[[str, int], None] | None = None
    ) -> tuple[Injector, SimulatedHost]:
        host = SimulatedHost(self.kernel, die_at)
        injector = Injector(host, self.state_dir, "w2", after_append=after_append)
        injector.probing = Probing(host, self.capabilities)
        return injector, host

    def killed_at_record(self, number: int) -> Injector:
        """An agent that dies right after its `number`-th journal record of an injection is on disk."""

        def die(_: str, count: int) -> None:
            if count >= number:
                host.dead = True
            host.alive()

        injector, host = self.agent(after_append=die)
        return injector

    def is_healthy(self) -> bool:
        """Whether the kernel is as provisioning left it, and nothing of the agent's lies about."""
        strays = [p for p in self.kernel.texts if "groundfault-" in p]
        helpers = [name for name, helper in self.kernel.helpers.items() if not helper.agent.dead]
        rules = [tag for tag, rule in self.kernel.rules.items() if not rule.agent.dead]
        wired = self.kernel.net == SimNet() and simulated_settings.at_rest(self.kernel.texts, self.kernel.config)
        quiet = not self.kernel.loops and not strays and not helpers and not rules and at_rest(self.kernel.texts)
        open_net = not self.kernel.netfilter.tables and not self.kernel.netfilter.filled
        open_net = open_net and self.kernel.shaping.at_rest()
        well = open_net and not self.kernel.ailments and not self.kernel.reactions
        well = well and simulated_processes.at_rest(self.kernel.texts, self.kernel.services)
        well = well and self.kernel.time.at_rest(self.kernel.clock)
        well = well and simulated_machine.at_rest(self.kernel.texts)
        well = well and simulated_memory.at_rest(self.kernel.texts)
        return quiet and wired and well and self.kernel.dm == self.healthy

    def apply(self, injector: Injector, case: tuple[str, Mapping[str, Any]], lease_s: float = 60) -> bool:
        """True where the agent lived to say that the fault is active, False where it was killed."""
        try:
            return injector.apply(self.id, case[0], case[1], lease_s).state == "active"
        except Killed:
            return False

    def restart(self) -> Injector:
        injector, _ = self.agent()
        injector.start()
        self.lives += 1
        return injector

    def open_journals(self) -> list[str]:
        return [p.name for p in (self.state_dir / "journal").glob("*.journal")]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)
