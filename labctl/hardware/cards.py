"""The card of the lab network: unplugged, plugged in, and what the guest says of its carrier."""

from __future__ import annotations

import time
from collections.abc import Callable

from labctl.hardware.bench import CARD, CARD_NET, CARD_PORT, Bench, devices
from labctl.lab.qmp import Qmp
from node_agent.signs import Sign, rises

_POLL_S = 0.2
_CARRIER = f"/sys/class/net/{CARD}/carrier"


def has_carrier(bench: Bench) -> bool:
    """Whether the guest's card has a carrier; False where there is no card.

    The guest is asked, because QEMU has no query for a link that :command:`set_link` has taken down.
    """
    up = rises("carrier", _CARRIER)
    return bench.agent().observe((up,), {"log": 0, "counters": {f"{_CARRIER} 0": 0}})[1][0].seen


def await_carrier(
    bench: Bench, within_s: float, wanted: bool = True, sleep: Callable[[float], None] = time.sleep
) -> bool:
    """Wait until the guest has, or has lost, the carrier. False where it takes too long."""
    deadline = time.monotonic() + within_s
    while has_carrier(bench) != wanted:
        if time.monotonic() >= deadline:
            return False
        sleep(_POLL_S)
    return True


def carrier_signs() -> tuple[Sign, ...]:
    """What a lost carrier leaves. The virtio driver logs nothing, so these are counters."""
    return (rises("how often the carrier went", f"/sys/class/net/{CARD}/carrier_down_count"),)


def unplug(qmp: Qmp, within_s: float) -> bool:
    """Ask the guest to let the card go. False where it does not."""
    qmp.execute("device_del", id=CARD)
    return qmp.wait_event("DEVICE_DELETED", within_s, device=CARD)


def plug(qmp: Qmp, mac: str) -> None:
    """Plug the card in again where it was."""
    if CARD not in devices(qmp):
        qmp.execute(
            "device_add", driver="virtio-net-pci", id=CARD, netdev=CARD_NET, bus=CARD_PORT, romfile="", mac=mac
        )
