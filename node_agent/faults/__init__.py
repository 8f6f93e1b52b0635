"""Faults of the network, processes, CPU, memory, clock and settings. One file a fault, found by looking."""
