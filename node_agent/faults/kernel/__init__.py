"""Faults of the kernel's own facilities for making itself fail (Documentation/fault-injection)."""
