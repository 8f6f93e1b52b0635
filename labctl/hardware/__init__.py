"""Faults below the operating system of the lab's virtual machines, planted in QEMU. See docs/hardware.md."""
