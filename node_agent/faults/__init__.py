"""Faults of the network, processes, CPU, memory, clock and settings: a package a family, one file a fault."""
