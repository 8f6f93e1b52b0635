"""Faults of system calls: eBPF programs, their loader, and the faults made of them."""
