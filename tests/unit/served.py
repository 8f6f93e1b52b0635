"""Runs `node_agent.serve` in a process of its own, over a made-up injector and machine. Used by test_serve."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import node_agent.injector
import node_agent.serve
from node_agent.host import Host
from node_agent.injection import InjectionView
from tests.unit.agents import FakeInjector, FakeMachine, view


class Injector(FakeInjector):
    """Writes its life to a file. `ticks` says what goes wrong in the leases."""

    def __init__(self, host: Host, state_dir: Path, node: str) -> None:
        super().__init__()
        self._diary = state_dir / "diary"
        self._ticks = 0

    def _note(self, name: str, *arguments: Any) -> None:
        super()._note(name, *arguments)
        with self._diary.open("a") as diary:
            print(name, *arguments, file=diary)

    def start(self) -> tuple[InjectionView, ...]:
        self._note("start")
        self.live["inj-1"] = view("inj-1")
        return ()

    def tick(self) -> None:
        self._ticks += 1
        if self._ticks == 1:
            raise ZeroDivisionError("a lease with a bug")
        self._note("tick")


def machine() -> Any:
    return FakeMachine(clock=time.time)


if __name__ == "__main__":
    node_agent.injector.Injector = Injector  # type: ignore[assignment,misc]
    node_agent.serve.TICK_S = 0.05
    options = dict(word.split("=", 1) for word in sys.argv[1:])
    sys.exit(node_agent.serve.serve(options, machine))
