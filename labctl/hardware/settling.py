"""Ending the hardware injections of machines whose QEMU is gone: before another one opens their disks.

The lab calls this before it boots or restores a machine, and after it has ended one. It is all that a restored
snapshot needs: a machine is always restored in a new process, which has no filter above its disks.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from labctl.hardware.bench import Files, tag_of
from labctl.hardware.journal import Journal, RecordMemory
from labctl.lab.machine import Places


def settle(lab: Path, places: Places, reason: str, *, keep: bool, healer: str = "") -> tuple[str, ...]:
    """Close every live injection of a node whose process is gone, and name them.

    `keep`: what the guest had written has to be in its disks. Raises :class:`labctl.errors.LabError` where it
    cannot be put there; the machine must not be booted then. `healer`: an injection whose recovery boots the
    machine; it holds the node's lock, and closes itself.
    """
    journal = Journal(lab, places.name)
    if not any(record.id != healer for record in journal.live()):
        return ()
    from labctl.hardware.catalog import hardware_catalog

    ended = []
    with contextlib.nullcontext() if healer else journal.lock():
        for record in reversed([record for record in journal.live() if record.id != healer]):
            fault = hardware_catalog()[record.fault].model_validate(dict(record.parameters))
            place = fault.place.model_validate(record.place)
            fault.settle(Files(places, tag_of(record.id)), place, keep)
            RecordMemory(journal, record).change(
                state="recovered", reason=record.reason or reason, residue=(), error=record.error
            )
            ended.append(f"{record.fault} {record.id}")
    return tuple(ended)
