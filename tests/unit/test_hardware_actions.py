"""What hands do to machines, and which faults that ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from labctl.errors import LabError, UsageError
from labctl.hardware.catalog import hardware_catalog
from labctl.run.hardware_actions import ACTIONS, DEAD, LASTING, HardwareActions
from node_agent.catalog import catalog
from node_agent.injection import InjectionView

from .solving import Notebook


def view(fault: str, **parameters: Any) -> InjectionView:
    return InjectionView(
        id=f"i-{fault.replace('_', '-')}", node="w2", fault=fault, parameters=parameters, state="active",
        target="", backend="", lease_s=60, expires_in_s=60, age_s=1,
    )  # fmt: skip


@dataclass
class Toys:
    there: list[InjectionView] = field(default_factory=list)
    did: list[str] = field(default_factory=list)

    def state(self, node: str) -> str:
        return "on"

    def reset(self, node: str) -> None:
        self.did.append(f"reset {node}")

    def off(self, node: str) -> None:
        self.did.append(f"off {node}")

    def on(self, node: str) -> None:
        self.did.append(f"on {node}")

    def blank(self, node: str) -> None:
        self.did.append(f"blank {node}")

    def link(self, node: str, up: bool) -> None:
        self.did.append(f"link {node} {'up' if up else 'down'}")

    def live(self, node: str) -> Sequence[InjectionView]:
        return self.there

    def recover(self, node: str, ids: Sequence[str]) -> None:
        self.did.append(f"recover {node} {' '.join(ids)}")


def hands(toys: Toys, notes: Notebook) -> HardwareActions:
    return HardwareActions(
        ("w1", "w2"), toys, notes, lambda node: toys.did.append(f"booted {node}"), lambda seconds: None
    )


def test_every_name_is_that_of_a_fault() -> None:
    known = {*catalog(), *hardware_catalog()}
    named = LASTING | DEAD | frozenset().union(*(action.ends for action in ACTIONS.values()))
    assert named <= known, f"no faults: {sorted(named - known)}"


@pytest.mark.parametrize(
    ("action", "fault", "did"),
    [
        ("power-cycle", "node_frozen", ["recover w2 i-node-frozen", "reset w2", "booted w2"]),
        ("power-cycle", "medium_error", ["reset w2", "booted w2"]),
        ("power-off", "medium_error", ["off w2", "booted w2"]),
        ("power-on", "medium_error", ["on w2", "booted w2"]),
        ("replace-disk", "medium_error", ["recover w2 i-medium-error", "blank w2", "booted w2"]),
        ("replace-disk", "disk_slow", ["recover w2 i-disk-slow", "blank w2", "booted w2"]),
        ("replace-disk", "packet_loss", ["blank w2", "booted w2"]),
        ("reseat-disk", "disk_slow", ["recover w2 i-disk-slow"]),
        ("reseat-disk", "medium_error", []),
        ("reseat-nic", "packet_loss", ["recover w2 i-packet-loss", "link w2 down", "link w2 up"]),
        ("reseat-nic", "cpu_burn", ["link w2 down", "link w2 up"]),
        ("replace-cable", "nic_removed", ["link w2 down", "link w2 up"]),
        ("reset-switch-port", "mtu_blackhole", ["recover w2 i-mtu-blackhole"]),
        ("replace-memory", "memory_poison", ["recover w2 i-memory-poison", "reset w2", "booted w2"]),
    ],
)
def test_what_is_done_and_what_that_ends(action: str, fault: str, did: list[str]) -> None:
    toys, notes = Toys([view(fault)]), Notebook()
    said = hands(toys, notes)(f"{action} w2")
    assert toys.did == did and "w2" in said and fault not in said
    ended = [f"{fault} i-{fault.replace('_', '-')}"] if any("recover" in one for one in did) else []
    assert notes.events == [("hardware", {"action": action, "node": "w2", "ended": ended})]


def test_only_what_hands_can_reach() -> None:
    toys = Toys([view("packet_loss", interface="mgmt")])
    hands(toys, Notebook())("replace-cable w2")
    assert toys.did == ["link w2 down", "link w2 up"]


@pytest.mark.parametrize("action", ["power-on", "power-cycle", "replace-disk", "replace-memory"])
def test_a_machine_that_is_dead_stays_so(action: str) -> None:
    toys = Toys([view("power_loss")])
    with pytest.raises(LabError, match="w2 does not come on"):
        hands(toys, Notebook())(f"{action} w2")
    assert toys.did == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("replace-dsk w2", "there is no 'replace-dsk'"),
        ("replace-disk", "replace-disk takes a node"),
        ("replace-disk w9", "replace-disk takes a node"),
        ("replace-disk w1 w2", "replace-disk takes a node"),
    ],
)
def test_words_that_make_no_sense(text: str, reason: str) -> None:
    toys = Toys()
    with pytest.raises(UsageError, match=reason):
        hands(toys, Notebook())(text)
    assert toys.did == []


def test_help_and_status() -> None:
    mine = hands(Toys(), Notebook())
    assert mine("status w1") == "w1 is on"
    assert all(f"{name} NODE" in mine("") for name in (*ACTIONS, "status"))
