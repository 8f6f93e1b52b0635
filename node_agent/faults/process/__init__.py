"""Faults of processes and of the CPU time they get."""
