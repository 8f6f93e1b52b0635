"""Refusing a lab that this machine has no memory for, before the kernel's OOM killer decides."""

from __future__ import annotations

from labctl.errors import LabError
from labctl.lab.model import LabOptions

OVERHEAD_MIB = 300
"""What a QEMU process needs besides the guest's memory: translated code, device state, buffers."""


def check(options: LabOptions, available_mib: int) -> None:
    """Raise a LabError where the nodes' memory and QEMU's own do not fit into `available_mib` (MemAvailable)."""
    each = options.memory_mib + OVERHEAD_MIB
    needed = options.nodes * each
    if needed > available_mib:
        fits = available_mib // each
        smaller = (
            f"--nodes {fits}" if fits else f"--memory {max(384, available_mib // options.nodes - OVERHEAD_MIB)}"
        )
        raise LabError(
            f"{options.nodes} nodes need {needed} MiB of memory ({options.memory_mib} MiB each and {OVERHEAD_MIB} "
            f"MiB for QEMU), this machine has {available_mib} MiB available",
            f"ask for less, e.g. {smaller}, or end other programs",
        )
